"""`ropewalk shiplog` (S0): append to a namespace, read it, follow it, and see what stands in it."""

from __future__ import annotations

import sys
from typing import Any

import click

from ropewalk.cli.common.command import Group, drop_output, emit, emit_line, parse_input, session
from ropewalk.cli.common.hangup import Hangup
from ropewalk.cli.git.events import event_json, event_line, meaning, opened, say_more

# name → (module, attribute, one line of help); imported on first use.
MORE: dict[str, tuple[str, str, str]] = {
    "run": ("ropewalk.cli.git.run", "run", "Run a command and record it."),
    "checkpoint": ("ropewalk.cli.git.checkpoint", "checkpoint", "Where consumers stand, by commit."),
    "anchor": ("ropewalk.cli.git.anchor", "anchor", "Statements about a head, kept outside the log."),
    "show": ("ropewalk.cli.git.recent", "show", "Show one event with everything known about it."),
    "ls": ("ropewalk.cli.git.recent", "ls", "List what was recorded lately."),
    "import": ("ropewalk.cli.git.compat", "import_", "Bring in journals of git shiplog."),
    "export": ("ropewalk.cli.git.compat", "export", "Write a namespace as a journal of git shiplog."),
    "current": ("ropewalk.cli.git.recent", "current", "What is deployed now."),
}


@click.group(
    "shiplog",
    cls=Group,
    lazy=MORE,
    epilog="Examples:\n  ropewalk shiplog append --ns governance --file event.json\n"
    "  ropewalk shiplog read --ns governance --limit 2\n"
    "  ropewalk shiplog run --ns deploy --service web -- ./deploy.sh\n",
)
def shiplog() -> None:
    """Events of a namespace in a git repository, in an order nobody can quietly change."""


@shiplog.command(
    "append",
    epilog="Examples:\n  ropewalk shiplog append --ns governance --file event.json\n"
    '  echo \'{"type":"note","payload":{}}\' | ropewalk shiplog append --ns demo --file -\n',
)
@click.option("--ns", required=True, help="The namespace.")
@click.option("--file", "file", required=True, metavar="F", help="The event as JSON; - reads stdin.")
@click.option("--trailer", metavar="F", help="Deployment fields (JSON) for the commit's trailer.")
@click.option("--jsonl", is_flag=True, help="F holds one event a line; one answer a line.")
@click.option("--stop-on-error", is_flag=True, help="With --jsonl: end at the first refusal.")
@click.option("--replay", is_flag=True, help="The event was recorded before and must keep its ULID.")
@click.option("--allow-secret", is_flag=True, help="Record even what looks like a secret.")
def append(
    ns: str,
    file: str,
    trailer: str | None,
    jsonl: bool,
    stop_on_error: bool,
    replay: bool,
    allow_secret: bool,
) -> None:
    """Record an event. `ulid` and `ns` may be left out of the document; it is on disk when this answers."""
    from ropewalk.cli.git.appending import Writer, append_lines, drafting
    from ropewalk.gitlog.core.layout import SHIPLOG, check_namespace

    check_namespace(ns)
    with opened() as log:
        log.allow_secrets = allow_secret
        make = drafting(trailer, replay=replay)
        if jsonl:
            writer = Writer(log, SHIPLOG, ns, "namespace")
            append_lines(file, make, writer, "ns", stop_on_error=stop_on_error)
            return
        draft = parse_input(file, make)
        Writer(log, SHIPLOG, ns, "namespace").write_one(draft).answer("ns")


@shiplog.command("read", epilog="Examples:\n  ropewalk shiplog read --ns governance --limit 2\n")
@click.option("--ns", required=True, help="The namespace.")
@click.option("--since", metavar="ULID", help="Only events after this one.")
@click.option("--limit", type=int, default=128, show_default=True, help="How many at most (512 is the most).")
def read(ns: str, since: str | None, limit: int) -> None:
    """Print events in order, one a line. If there are more, stderr says how to go on.

    With --json, `next_since` is the ULID to go on from.
    """
    from ropewalk.gitlog.core.layout import SHIPLOG

    with opened() as log, meaning(log, SHIPLOG):
        page = log.read(ns, since, limit)
        answer = {"events": [event_json(event) for event in page.events], "next_since": page.next_since}
        if session().json or page.events:
            emit(answer, lambda: "\n".join(event_line(event) for event in page.events))
        say_more(page, log.lines.line(SHIPLOG, ns).count)


@shiplog.command("tail", epilog="Examples:\n  ropewalk shiplog tail --ns deploy --ns governance --follow\n")
@click.option("--ns", "namespaces", required=True, multiple=True, help="A namespace; may be given again.")
@click.option(
    "--limit-per-ns", type=click.IntRange(min=1), default=10, show_default=True, help="How many of each."
)
@click.option("--follow", is_flag=True, help="Go on with new events as they come.")
def tail(namespaces: tuple[str, ...], limit_per_ns: int, follow: bool) -> None:
    """Print the newest events of several namespaces, one of each in turn."""
    from ropewalk.gitlog.core.layout import SHIPLOG

    with opened() as log, meaning(log, SHIPLOG):
        found = log.tail(namespaces, limit_per_topic=limit_per_ns)
        marks = {event.topic: str(event.ulid) for event in found}
        if not follow:
            rows = [{"ns": event.topic, **event_json(event)} for event in found]
            next_since = found[-1].ulid if found else None
            answer = {"events": rows, "watermarks": marks, "next_since": next_since}
            emit(answer, lambda: "\n".join(f"{event.topic}  {event_line(event)}" for event in found))
            return
        for event in found:
            _print_tail(event.topic, event, marks)
        gone = Hangup()
        for event in log.follow(namespaces, {ns: marks.get(ns, "") for ns in namespaces}, stop=gone):
            marks[event.topic] = event.ulid
            _print_tail(event.topic, event, marks)
        drop_output(sys.stdout)


def _print_tail(ns: str, event: Any, marks: dict[str, str]) -> None:
    if session().json:
        emit_line({"ns": ns, **event_json(event), "watermarks": dict(marks)})
    else:
        click.echo(f"{ns}  {event_line(event)}")
        sys.stdout.flush()
