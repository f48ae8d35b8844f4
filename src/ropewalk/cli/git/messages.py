"""`ropewalk messages` (S1): publish to a topic, read it as `messages.read` answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ropewalk.cli.common.command import emit, group, parse_input, read_input, say, session
from ropewalk.cli.common.options import choice, flag, option, repeated, required
from ropewalk.cli.git.events import announcing_group, event_line, opened, say_more, suggesting_names
from ropewalk.errors import SPELLINGS, NotFound, RopewalkError
from ropewalk.gitlog.core.layout import MESSAGES, check_topic


@group(
    "messages",
    "ropewalk messages publish --topic jobs/pending --file job.json",
    "ropewalk messages read --topic jobs/pending --group workers --json",
)
def messages() -> None:
    """Publish and read messages. Every message is a commit in the log of its topic."""


@messages.command("publish", "ropewalk messages publish --topic jobs --file job.json")
@required("--topic", "TOPIC", "Topic; parts are separated by /.")
@required("--file file", "F", "Message as JSON; - reads stdin.")
@repeated("--attach", "PATH", "File to attach; refs must name it by digest; repeatable.")
@flag("--jsonl", "Read one message per line; print one result per line.")
@flag("--stop-on-error", "With --jsonl: stop at the first rejected line.")
@flag("--allow-secret", "Record the event even if it seems to contain a secret.")
def publish(
    topic: str, file: str, attach: tuple[str, ...], jsonl: bool, stop_on_error: bool, allow_secret: bool
) -> None:
    """Publish a message. `ulid` and `ns` are optional. The message is durable when the command returns."""
    from ropewalk.cli.git.appending import EventWriter, append_lines, draft_parser

    with spelled(), opened() as log:
        check_topic(topic)
        log.allow_secrets = allow_secret
        if jsonl:
            writer = EventWriter(log, MESSAGES, topic, "topic")
            append_lines(file, draft_parser(), writer, "topic", stop_on_error=stop_on_error, spell=_spell)
            return
        files = {Path(path).name: read_input(path) for path in attach}
        draft = replace(parse_input(file, draft_parser()), attachments=files)
        EventWriter(log, MESSAGES, topic, "topic").write_one(draft).answer("topic")


@messages.command("read", "ropewalk messages read --topic jobs --limit 100")
@required("--topic", "TOPIC", "The topic.")
@option("--since", "ULID", "Print only messages after this one (default with --group: its checkpoint).")
@option("--limit", "N", "Maximum number of messages (at most 512).", type=int, default=128)
@option(
    "--group", "GROUP", "Read for this consumer group, and move its checkpoint to the last printed message."
)
@choice(
    "--on-missing", ["restart", "error"], "What to do when --since is not in the topic.", default="restart"
)
def read(topic: str, since: str | None, limit: int, group: str | None, on_missing: str) -> None:
    """Print messages in order, as `messages.read` of S1. If there are more, stderr names the command to continue.

    A group's checkpoint moves only if the group has read all messages before the printed ones.
    """
    from ropewalk.gitlog.consumers.consumers import open_cursor
    from ropewalk.gitlog.consumers.cursor import height_of, move_cursor
    from ropewalk.gitlog.core.reading import messages_answer

    with spelled(), opened() as log, suggesting_names(log, MESSAGES):
        cursor = open_cursor(log, group, topic, MESSAGES) if group is not None else None
        start = cursor.ulid if cursor is not None and since is None else since
        page = log.read(topic, start, limit, layout=MESSAGES)
        if page.restarted and on_missing == "error":
            raise NotFound(f"{start} is not in {topic}", topic=topic, since_ulid=start)
        line = log.lines.line(MESSAGES, topic)
        # A group whose checkpoint is not in the topic starts again; reading old messages moves nothing.
        lost = page.restarted and since is None
        position = -1 if lost else height_of(line, cursor)
        unread = page.events[0].height - position - 1 if page.events else 0
        moves = bool(page.events) and unread <= 0 and page.events[-1].height > position
        answer = messages_answer(page, topic, group if moves else None)
        if session().json or page.events:
            emit(answer, map(event_line, page.events))
        if group is not None and moves:
            # Only after printing: a checkpoint must not pass messages that were not delivered.
            (place,) = line.span(page.events[-1].height, page.events[-1].height + 1)
            with announcing_group(log, group):
                move_cursor(log.store, MESSAGES, group, topic, place, cursor, backwards=lost)
        elif group is not None and unread > 0:
            say(
                f"the checkpoint of {group} stays: {unread} messages before these were not read by it. To pass over "
                f"them: ropewalk consumer reset --group {group} --ns {topic} --to {page.events[-1].ulid}"
            )
        say_more(page, line.count, "run it again" if moves and since is None and group is not None else None)


@contextmanager
def spelled() -> Iterator[None]:
    """Rename error codes raised within to those of S1."""
    try:
        yield
    except RopewalkError as error:
        raise _spell(error) from error.__cause__


def _spell(error: RopewalkError) -> RopewalkError:
    spelling = SPELLINGS.get(error.code)
    # S1 has a code for missing topics, not for missing files.
    if spelling is not None and not (isinstance(error, NotFound) and "topic" not in error.fields):
        vars(error)["code"] = spelling.messages
    return error
