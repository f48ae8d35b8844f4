"""`ropewalk shiplog` (S0): append, read and follow the events of a namespace."""

from __future__ import annotations

import sys
from typing import Any

import click

from ropewalk.cli.common.command import drop_output, emit, emit_line, group, parse_input, session
from ropewalk.cli.common.hangup import Hangup
from ropewalk.cli.common.options import flag, integer, option, repeated, required
from ropewalk.cli.git.events import (
    event_json,
    event_line,
    explaining_since,
    opened,
    say_more,
    suggesting_names,
)
from ropewalk.gitlog.core.layout import SHIPLOG, check_namespace

# name → "module:attribute one line of help"; imported on first use.
MORE: dict[str, str] = {
    "run": "git.run:run Run a command and record it.",
    "checkpoint": "git.consumer:checkpoint Set and show checkpoints of consumer groups.",
    "anchor": "git.anchor:anchor Create and list anchors of heads.",
    "show": "git.recent:show Show one event with trailer, author and output.",
    "ls": "git.recent:ls List recent events.",
    "import": "git.compat:import_ Import journals of git shiplog.",
    "export": "git.compat:export Export a namespace as a journal of git shiplog.",
    "current": "git.recent:current Show what is deployed now.",
}


@group(
    "shiplog",
    "ropewalk shiplog append --ns governance --file event.json",
    "ropewalk shiplog read --ns governance --limit 2",
    "ropewalk shiplog run --ns deploy --service web -- ./deploy.sh",
    lazy=MORE,
)
def shiplog() -> None:
    """Append, read and follow events of a namespace; record deployments."""


@shiplog.command(
    "append",
    "ropewalk shiplog append --ns governance --file event.json",
    'echo \'{"type":"note","payload":{}}\' | ropewalk shiplog append --ns demo --file -',
)
@required("--ns", "NS", "The namespace.")
@required("--file file", "F", "Event as JSON; - reads stdin.")
@option("--trailer", "F", "JSON file with deployment fields for the trailer of the commit.")
@flag("--jsonl", "Read one event per line; print one result per line.")
@flag("--stop-on-error", "With --jsonl: stop at the first rejected line.")
@flag("--replay", "Accept an event recorded before; it must have its ULID.")
@flag("--allow-secret", "Record the event even if it seems to contain a secret.")
def append(
    ns: str,
    file: str,
    trailer: str | None,
    jsonl: bool,
    stop_on_error: bool,
    replay: bool,
    allow_secret: bool,
) -> None:
    """Append an event. `ulid` and `ns` are optional. The event is durable when the command returns."""
    from ropewalk.cli.git.appending import EventWriter, append_lines, draft_parser

    check_namespace(ns)
    with opened() as log:
        log.allow_secrets = allow_secret
        make = draft_parser(trailer, replay=replay)
        if jsonl:
            writer = EventWriter(log, SHIPLOG, ns, "namespace")
            append_lines(file, make, writer, "ns", stop_on_error=stop_on_error)
            return
        draft = parse_input(file, make)
        EventWriter(log, SHIPLOG, ns, "namespace").write_one(draft).answer("ns")


@shiplog.command("read", "ropewalk shiplog read --ns governance --limit 2")
@required("--ns", "NS", "The namespace.")
@option("--since", "ULID", "Print only events after this one.")
@option("--limit", "N", "Maximum number of events (at most 512).", type=int, default=128)
def read(ns: str, since: str | None, limit: int) -> None:
    """Print events in order, one per line. If there are more, stderr names the option to continue.

    With --json, `next_since` is the ULID to continue from.
    """
    with opened() as log, suggesting_names(log, SHIPLOG), explaining_since(since):
        page = log.read(ns, since, limit)
        answer = {"events": [event_json(event) for event in page.events], "next_since": page.next_since}
        if session().json or page.events:
            emit(answer, map(event_line, page.events))
        say_more(page, log.lines.line(SHIPLOG, ns).count)


@shiplog.command("tail", "ropewalk shiplog tail --ns deploy --ns governance --follow")
@repeated("--ns namespaces", "NS", "Namespace; repeatable.", required=True)
@integer("--limit-per-ns", "N", "Number of events per namespace.", least=1, default=10)
@flag("--follow", "Keep running, and print new events as they arrive.")
def tail(namespaces: tuple[str, ...], limit_per_ns: int, follow: bool) -> None:
    """Print the newest events of several namespaces, interleaved."""
    with opened() as log, suggesting_names(log, SHIPLOG):
        found = log.tail(namespaces, limit_per_topic=limit_per_ns)
        marks = {event.topic: str(event.ulid) for event in found}
        if not follow:
            rows = [{"ns": event.topic, **event_json(event)} for event in found]
            next_since = found[-1].ulid if found else None
            answer = {"events": rows, "watermarks": marks, "next_since": next_since}
            emit(answer, (f"{event.topic}  {event_line(event)}" for event in found))
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
