"""`ropewalk gossip`: a signed log between peers (S3)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import (
    emit,
    emit_line,
    group,
    parse_input,
    progress,
    read_input,
    say,
    session,
    write_output,
)
from ropewalk.cli.common.locations import NODE_KEY, here, signing_key
from ropewalk.cli.common.options import choice, decimal, flag, integer, option, required
from ropewalk.cli.common.suggest import describe_new
from ropewalk.cli.common.verdict import end_with_report, format_report
from ropewalk.errors import NotFound, Usage
from ropewalk.kernel.terminal_text import printable, printable_json

if TYPE_CHECKING:
    from ropewalk.gossip.core.events import Event, Stored
    from ropewalk.gossip.core.log import GossipLog
    from ropewalk.gossip.core.message import SignedMessage

PROFILES = ("v0.13", "v0.6")  # written out so that --help loads no engine; a test compares
LINE_CHARS = 72  # of a payload, where a message is shown on one line


@group(
    "gossip",
    "ropewalk gossip append --topic com.example.chat --payload hello.json --key ada",
    "ropewalk gossip log --topic com.example.chat --graph",
    "ropewalk gossip sync ws://peer.example:8080 --topic com.example.chat",
    lazy={  # commands that talk to peers, imported on first use
        "sync": "gossip.net:sync Exchange messages with a peer until both logs are equal.",
        "serve": "gossip.net:serve Accept peers, stay connected, and exchange what is appended.",
        "peers": "gossip.net:peers List the peers of running servers.",
    },
)
def gossip() -> None:
    """Append to signed logs, exchange messages with peers, and verify them.

    TOPIC names the log. Commands that may make it need the name; others may leave it out where there is only one.
    """


def say_new_topic(topic: str, known: Sequence[str]) -> None:
    """Report that a topic was made, and which similar ones exist: it may be a typing error."""
    if topic not in known:
        say(describe_new("gossip topic", topic, known))


topic_option = option("--topic", "TOPIC", "The log; may be left out if there is only one.")


def open_here(topic: str | None, **options: Any) -> GossipLog:
    """Open the log that a command names, which has to exist."""
    from ropewalk.gossip.peer.topics import open_topic, topics

    home = here().home
    if topic is None:
        known = topics(home)
        if not known:
            raise NotFound(
                "no gossip topic here yet",
                advice="Make one with `ropewalk gossip append --topic NAME` or `ropewalk gossip sync`.",
            )
        if len(known) != 1:
            raise Usage(
                f"there are {len(known)} gossip topics here",
                advice="Name one with --topic: " + ", ".join(known[:10]),
            )
        topic = known[0]
    return open_topic(home, topic, create=False, **options)


@gossip.command("append", 'echo \'{"text":"hi"}\' | ropewalk gossip append --topic com.example --payload -')
@required("--topic", "TOPIC", "The log; made if it is new.")
@required("--payload", "F|-", "JSON, or DAG-JSON for bytes and links.")
@option("--key", "NAME", "The key that signs.", default=NODE_KEY)
@choice("--profile", PROFILES, "The wire profile of a new topic; default v0.13.")
def append(topic: str, payload: str, key: str, profile: Any) -> None:
    """Sign a payload and append it on top of all heads."""
    from ropewalk.gossip.core import dag_json
    from ropewalk.gossip.core.message import check_topic, profile_named, sign
    from ropewalk.gossip.peer.topics import open_topic, topic_folder, topics

    value = parse_input(payload, dag_json.parse)
    signer = signing_key(key)
    home = here().home
    known = topics(home)
    if not topic_folder(home, topic).is_dir():
        # What cannot be signed must not leave an empty topic behind, whose profile would be fixed.
        wire = profile_named(profile or PROFILES[0])
        sign(wire, signer, check_topic(wire, topic), (), value)
    with open_topic(home, topic, create=True, profile=profile, signer=signer) as log:
        stored = log.append(value)
    say_new_topic(topic, known)
    message = stored.message
    emit(
        {"id": stored.id, "clock": message.clock, "parents": list(message.parents)},
        f"ok  {stored.id}  clock={message.clock} parents={len(message.parents)}",
    )


@gossip.command("insert", "ropewalk gossip insert --topic com.example --file message.cbor")
@required("--topic", "TOPIC", "The log; made if it is new and the message is good.")
@required("--file file", "F|-", "The signed message as it travels.")
def insert(topic: str, file: str) -> None:
    """Store a message of another peer; it waits if its parents are missing."""
    from ropewalk.gossip.core.message import profile_of
    from ropewalk.gossip.peer.topics import open_topic, topics

    raw = read_input(file)
    home = here().home
    known = topics(home)
    # The form of the first message decides the profile of a new topic.
    profile = None if topic in known else profile_of(topic, raw).name
    with open_topic(home, topic, create=True, profile=profile) as log:
        outcome = log.insert(raw)
    say_new_topic(topic, known)
    answer = {"id": outcome.id, "pending": outcome.pending, "status": outcome.status}
    emit({**answer, "missing": list(outcome.missing)}, f"ok  {outcome.id}  {outcome.status}")


@gossip.command("heads", "ropewalk gossip heads --topic com.example --json")
@topic_option
def heads(topic: str | None) -> None:
    """Print the messages without children, and the clock of the next one."""
    with open_here(topic) as log:
        clock, ids = log.get_clock()
        waiting = len(log.pending())
    emit({"heads": ids, "clock": clock, "pending": waiting}, ids, "no messages yet")


@gossip.group(
    "pending",
    "ropewalk gossip pending ls --topic com.example --json",
    "ropewalk gossip pending drop --topic com.example --older-than 1",
    invoke_without_command=True,
)
@topic_option
@flag("--drop", "Drop all of them, as `pending drop --all` does.")
@click.pass_context
def pending(context: click.Context, topic: str | None, drop: bool) -> None:
    """List or drop messages that wait for their parents; without a command, list them."""
    if context.invoked_subcommand is not None:
        if drop:
            raise click.UsageError("--drop goes with no command")
    elif drop:
        _drop_pending(topic, lambda log: log.drop_pending())
    else:
        _list_pending(topic)


@pending.command("ls", "ropewalk gossip pending ls --topic com.example --json")
@topic_option
def pending_ls(topic: str | None) -> None:
    """List the messages that wait for parents, each with what it waits for."""
    _list_pending(topic)


@pending.command(
    "drop",
    "ropewalk gossip pending drop $ID --topic com.example",
    "ropewalk gossip pending drop --all --topic com.example",
)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@topic_option
@flag("--all everything", "Drop all of them.")
@decimal("--older-than", "DAYS", "Drop those that have waited for more than so many days.")
def pending_drop(ids: tuple[str, ...], topic: str | None, everything: bool, older_than: float | None) -> None:
    """Drop messages that wait for their parents. A peer that still has them can send them again."""
    if (bool(ids), everything, older_than is not None).count(True) != 1:
        raise click.UsageError("give IDs, --all or --older-than DAYS")
    age_s = None if older_than is None else int(older_than * 86_400)
    _drop_pending(topic, lambda log: log.drop_pending(ids or None, older_than_s=age_s))


def _drop_pending(topic: str | None, drop: Callable[[GossipLog], int]) -> None:
    with open_here(topic) as log:
        dropped = drop(log)
        left = len(log.pending())
    emit({"dropped": dropped, "pending": left}, f"ok  dropped={dropped} pending={left}")


def _list_pending(topic: str | None) -> None:
    with open_here(topic) as log:
        waiting = [{"id": id, "missing": missing} for id, missing in log.pending()]
    lines = (f"{row['id']}  waits for {' '.join(row['missing'])}" for row in waiting)
    emit({"pending": waiting}, lines, "nothing waits")


@gossip.command(
    "get",
    "ropewalk gossip get $(ropewalk gossip heads)",
    "ropewalk gossip get $(ropewalk gossip heads) -o message.cbor",
)
@click.argument("id")
@topic_option
@option("-o --output", "F", "Write it there as it travels, for `gossip insert`.")
def get(id: str, topic: str | None, output: str | None) -> None:
    """Show the message ID with its signature, as DAG-JSON."""
    with open_here(topic) as log:
        found = log.get(id)
        if found is None:
            raise NotFound(f"no message {id} in {log.topic}", id=id)
        shown = {"id": found.id, **_whole(log, found)}
    if output is not None:
        write_output(output, found.raw)
        if output != "-":
            emit({"id": found.id, "output": output}, f"ok  {found.id}  {len(found.raw)} bytes")
        return
    emit(
        shown,
        lambda: "\n".join(map(printable_json, json.dumps(shown, ensure_ascii=False, indent=2).split("\n"))),
    )


def _whole(log: GossipLog, signed: SignedMessage) -> dict[str, Any]:
    from ropewalk.gossip.core.dag_json import to_json
    from ropewalk.gossip.core.message import cid_of

    message, signature = signed.message, signed.signature
    return {
        "signature": {
            "publicKey": signature.public_key,
            "signature": to_json(signature.signature),
            # The signature object of each profile: v0.6 names what was signed, v0.13 how it was written.
            **(
                {"cid": to_json(cid_of(signed))} if log.profile.name == "v0.6" else {"codec": signature.codec}
            ),
        },
        "message": {
            "topic": message.topic,
            "clock": message.clock,
            "parents": list(message.parents),
            "payload": to_json(message.payload),
        },
    }


@gossip.command("log", "ropewalk gossip log --graph", "ropewalk gossip log --reverse --limit 5 --json")
@topic_option
@flag("--graph", "Draw the graph of messages and parents, newest first.")
@flag("--reverse", "Newest first.")
@integer("--limit", "N", "At most N messages.", least=1)
@flag("--follow", "Also print messages as they arrive, until interrupted.")
@flag("--events", "Print messages, commits and syncs as they happen in any process, until interrupted.")
def log(topic: str | None, graph: bool, reverse: bool, limit: int | None, follow: bool, events: bool) -> None:
    """Print the messages by clock, so that each comes after its parents.

    With --follow they are printed in the order of arrival, with --json one object per line.
    """
    if (follow or events) and (graph or reverse):
        raise click.UsageError("--follow and --events go with neither --graph nor --reverse")
    with open_here(topic) as found:
        if events:
            _follow_events(found, limit)
            return
        if follow:
            _follow(found, limit)
            return
        messages: Iterator[SignedMessage] = islice(found.iterate(reverse=reverse or graph), limit)
        if session().json:
            emit({"messages": [_row(signed) for signed in messages]}, "")
        elif graph:
            from ropewalk.cli.gossip.graph import draw

            for line in draw((signed.id, signed.message.parents, _line(signed)) for signed in messages):
                click.echo(line)
        else:
            for signed in messages:
                click.echo(_line(signed))


def _follow(log: GossipLog, limit: int | None) -> None:
    """Print what has arrived and what arrives; with a limit, end after so many messages."""
    from ropewalk.gossip.peer.follow import follow

    json = session().json
    for _, signed in islice(follow(log), limit):
        if json:
            emit_line(_row(signed))
        else:
            click.echo(_line(signed))


def _follow_events(log: GossipLog, limit: int | None) -> None:
    """Print what happens from now on; with a limit, end after so many events."""
    from ropewalk.gossip.peer.follow import follow_events

    for event in islice(follow_events(log), limit):
        row, line = _shown_event(event)
        if session().json:
            emit_line(row)
        else:
            click.echo(line)


def _shown_event(event: Event) -> tuple[dict[str, Any], str]:
    from ropewalk.gossip.core.events import MessageRefused, Stored, Synced

    assert not isinstance(event, MessageRefused)  # only the process that refuses a message knows of it
    if isinstance(event, Stored):
        return {"event": "message", **_row(event)}, f"message  {_line(event)}"
    root = {"level": event.root.level, "hash": event.root.hash.hex()}
    line = f"{root['level']}/{root['hash']}"
    if not isinstance(event, Synced):
        return {"event": "commit", "root": root}, f"commit  {line}"
    row = {"event": "sync", "peer": event.peer, "received": event.received, "root": root}
    return row, printable(f"sync  {event.peer}  received={event.received} root={line}")


def _row(signed: SignedMessage | Stored) -> dict[str, Any]:
    from ropewalk.gossip.core.dag_json import to_json

    message = signed.message
    return {
        "id": signed.id,
        "clock": message.clock,
        "parents": list(message.parents),
        "payload": to_json(message.payload),
        "author": signed.signature.public_key,
    }


def _line(signed: SignedMessage | Stored) -> str:
    from ropewalk.gossip.core.dag_json import to_json

    text = json.dumps(to_json(signed.message.payload), ensure_ascii=False, separators=(",", ":"))
    shown = printable_json(text if len(text) <= LINE_CHARS else text[: LINE_CHARS - 1] + "…")
    return f"{signed.id}  {signed.message.clock}  {signed.signature.public_key[-8:]}  {shown}"


@gossip.command("ancestors", "ropewalk gossip ancestors $(ropewalk gossip heads) 6")
@click.argument("id")
@click.argument("clock", type=int)
@topic_option
def ancestors(id: str, clock: int, topic: str | None) -> None:
    """Print the frontier of the history of ID at CLOCK."""
    with open_here(topic) as found:
        ids = found.get_ancestors(id, clock)
    emit({"ancestors": ids}, ids)


@gossip.command("root", "ropewalk gossip root --topic com.example")
@topic_option
def root(topic: str | None) -> None:
    """Print the root of the tree over all messages: equal roots mean equal logs."""
    with open_here(topic) as found:
        node = found.root()
    emit({"level": node.level, "hash": node.hash.hex()}, f"{node.level}  {node.hash.hex()}")


@gossip.command("verify", "ropewalk gossip verify --topic com.example --json")
@topic_option
def verify(topic: str | None) -> None:
    """Check every signature, id and parent again, and the tree and the indexes against them."""
    from ropewalk.gossip.core.verify import verify_log

    with open_here(topic) as found:
        report = verify_log(found, lambda rows: progress(rows, "messages", len(found)))
    end_with_report(report, lambda: format_report(report))
