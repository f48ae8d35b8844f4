"""What the commands over a git log share: how an event is shown, and how times and documents are read."""

from __future__ import annotations

import json
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.manners import answer_line, fail, parse_input, refusal_of, say, session, tell
from ropewalk.cli.places import here, login, named_writer, sealing_key
from ropewalk.errors import Invalid, RopewalkError
from ropewalk.kernel.plaintext import printable_json

if TYPE_CHECKING:
    from ropewalk.gitlog.envelope import Draft, Event
    from ropewalk.gitlog.log import Receipt
    from ropewalk.gitlog.reading import Page
    from ropewalk.node.repository import Repository

__all__ = [
    "append_lines",
    "drafting",
    "event_json",
    "event_line",
    "opened",
    "receipt_line",
    "say_more",
    "short",
    "since_ms",
]

JSONL_BATCH = 1_000  # lines that may share one pack; fewer if the input is slower than the disk
UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
ENVELOPE_ORDER = ("ulid", "ns", "type", "payload", "refs")  # as S0 §11 prints them


def opened() -> Repository:
    """The repository of this command."""
    from ropewalk.node.open import open_place

    log = open_place(here())
    log.store.identify(*named_writer(), nobody=login())
    log.privacy.keys = sealing_key  # a privacy rule may want a value behind a pointer
    return log


def short(name: str) -> str:
    """A content id or commit, shortened for people.

    >>> short("blake3:2a6c" + "0" * 60), short("8b1c1e4" + "0" * 33)
    ('blake3:2a6c…', '8b1c1e4')
    """
    if name.startswith("blake3:"):
        return name[:11] + "…"
    return name[:7]


def event_json(event: Event) -> dict[str, Any]:
    """An event as `--json` shows it."""
    return {
        "ulid": event.ulid,
        "content_id": event.content_id,
        "commit": event.commit,
        "envelope": event.envelope,
    }


def event_line(event: Event) -> str:
    """An event as S0 §11 prints it."""
    envelope = {name: event.envelope[name] for name in ENVELOPE_ORDER if name in event.envelope}
    text = json.dumps(envelope, ensure_ascii=False, separators=(",", ":"))
    return f"{event.ulid}  {short(event.content_id)}  {short(event.commit)}  {printable_json(text)}"


def receipt_line(receipt: Receipt) -> str:
    """A receipt as S0 §11 prints it."""
    again = "  (recorded before)" if receipt.replayed else ""
    return f"ok  commit={short(receipt.commit)} content_id={short(receipt.content_id)} ulid={receipt.ulid}{again}"


def say_more(page: Page, count: int, how: str | None = None) -> None:
    """Tell a person that a page is not all of `count` entries, and how to go on; programs see `next_since`."""
    left = count - page.events[-1].height - 1 if page.events else 0
    if left > 0 and not session().json:
        say(f"{left} more; to go on: {how or f'--since {page.next_since}'}")


def drafting(trailer: str | None = None, *, replay: bool = False) -> Callable[[bytes], Draft]:
    """What makes a document to append out of its bytes, with the deployment fields of a file beside it."""
    from ropewalk.gitlog.envelope import Draft, parse_document

    fields = parse_input(trailer, parse_document) if trailer is not None else None
    return lambda raw: Draft(parse_document(raw), fields, replay=replay)


def since_ms(text: str, now_ms: int) -> int:
    """A moment in the past: `2d`, `3h`, `30m`, or a date.

    >>> since_ms("2h", 10_000_000)
    2800000
    """
    if match := re.fullmatch(r"(\d+)([smhdw])", text):
        return now_ms - int(match[1]) * UNITS_S[match[2]] * 1_000
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1_000)
    except ValueError as error:
        raise Invalid(f"{text!r} is no span like 2d or 3h and no date", text=text) from error


def append_lines(
    name: str,
    make: Callable[[bytes], Draft],
    write: Callable[[list[Draft]], list[Receipt | RopewalkError]],
    show: Callable[[Receipt], dict[str, Any]],
    *,
    stop_on_error: bool,
    spell: Callable[[RopewalkError], RopewalkError] = lambda error: error,
) -> None:
    """One event a line, one answer a line, in order, each once it is durable. Ends with the first refusal's code."""
    code = 0
    # Whoever wants to end at the first refusal wants nothing recorded behind it: then one line is one batch.
    for batch in _batches(name, 1 if stop_on_error else JSONL_BATCH):
        outcomes: list[tuple[int, RopewalkError | None]] = []
        drafts: list[Draft] = []
        for number, line in batch:
            try:
                drafts.append(make(line))
                outcomes.append((number, None))
            except RopewalkError as error:
                outcomes.append((number, error))
                if stop_on_error:
                    break
        written = iter(write(drafts) if drafts else [])
        for number, refused in outcomes:
            outcome = next(written) if refused is None else refused
            if isinstance(outcome, RopewalkError):
                code = code or outcome.exit_code
                fail(spell(tell(outcome, f"line {number}")), as_json=session().json)
                if stop_on_error:
                    raise click.exceptions.Exit(code)
            else:
                answer_line(show(outcome), receipt_line(outcome))
    if code:
        raise click.exceptions.Exit(code)


def _batches(name: str, at_most: int) -> Iterator[list[tuple[int, bytes]]]:
    """The lines of an input as they come, numbered: all that are there, up to a bound, without waiting for more."""
    lines: queue.Queue[tuple[int, bytes] | OSError | None] = queue.Queue(maxsize=4 * JSONL_BATCH)

    def feed() -> None:
        try:
            with open(sys.stdin.fileno() if name == "-" else name, "rb", closefd=name != "-") as stream:
                for number, line in enumerate(stream, 1):
                    if line.strip():
                        lines.put((number, line))
            lines.put(None)
        except OSError as error:
            lines.put(error)

    threading.Thread(target=feed, daemon=True).start()
    while True:
        batch = [lines.get()]
        while len(batch) < at_most and isinstance(batch[-1], tuple):
            try:
                batch.append(lines.get_nowait())
            except queue.Empty:
                if len(batch) == 1:
                    time.sleep(0.001)  # a pipe that is being filled: a breath makes batches of its lines
                    if not lines.empty():
                        continue
                break
        ready = [line for line in batch if isinstance(line, tuple)]
        if ready:
            yield ready
        end = batch[-1]
        if isinstance(end, OSError):
            raise refusal_of(end, name) from end
        if end is None:
            return
