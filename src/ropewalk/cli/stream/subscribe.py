"""`ropewalk stream sub` (S2): print the frames of a stream as they arrive."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import command, drop_output, emit, emit_line, say, session
from ropewalk.cli.common.hangup import has_ended, output_pipe
from ropewalk.cli.common.options import decimal, flag, integer, option, repeated
from ropewalk.cli.common.serving import log_to_stderr, read_token
from ropewalk.cli.git.events import short
from ropewalk.cli.stream.serve import JOURNAL
from ropewalk.errors import Denied, Invalid, RopewalkError
from ropewalk.kernel.terminal_text import printable, printable_json

if TYPE_CHECKING:
    from ropewalk.stream.core.frames import ErrorFrame
    from ropewalk.stream.core.subscriber import Item


@command(
    "sub",
    "ropewalk stream sub ws://127.0.0.1:8090 --topic 'jobs.*'",
    "ropewalk stream sub ws://127.0.0.1:8090 --ref 'refs/gatos/**' --since-seq 0 --jsonl",
    "ropewalk stream sub ws://127.0.0.1:8090 --topic jobs --limit 1 --json",
)
@click.argument("url")
@repeated("--ref refs", "PATTERN", "Refs below refs/gatos/ to subscribe to; repeatable.")
@repeated("--topic topics", "PATTERN", "Topics to subscribe to; repeatable.")
@integer(
    "--since-seq", "N", "First print kept frames after this one; 0 means all (default: only new frames)."
)
@integer("--limit", "N", "Exit after N frames (default: no limit).", least=1)
@flag("--jsonl", "Print one JSON object per line, as --json.")
@option("--token-file", "F", "File with the token for the server.")
@decimal("--patience", "SECONDS", "How long to retry a lost connection (default: no limit).")
def sub(
    url: str,
    refs: tuple[str, ...],
    topics: tuple[str, ...],
    since_seq: int | None,
    limit: int | None,
    jsonl: bool,
    token_file: str | None,
    patience: float | None,
) -> None:
    """Print the frames of these refs and topics from the stream at URL, each once, until interrupted.

    In patterns, * matches within one part and ** any number of parts: 'refs/gatos/state/**', 'jobs.*'. After a lost
    connection, printing continues where it stopped. Frames that are no longer available are reported as lost.
    """
    session().json = session().json or jsonl
    log_to_stderr(JOURNAL)
    options: dict[str, Any] = {
        "refs": refs,
        "topics": topics,
        "since_seq": since_seq,
        "token": read_token(token_file),
        "patience_s": patience,
    }
    asyncio.run(_sub(url, options, limit))


async def _sub(url: str, options: dict[str, Any], limit: int | None) -> None:
    """Print frames up to the limit, or until the reader of stdout has closed its pipe."""
    printing = asyncio.ensure_future(_print_frames(url, options, limit))
    gone = asyncio.Event()
    with _noticing_hangup(gone):
        leaving = asyncio.ensure_future(gone.wait())
        await asyncio.wait([printing, leaving], return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    if printing.done():
        return printing.result()
    printing.cancel()
    await asyncio.gather(printing, return_exceptions=True)
    return drop_output(sys.stdout)


@contextmanager
def _noticing_hangup(gone: asyncio.Event) -> Iterator[None]:
    """Set the event when the reader of stdout closes its pipe, also while no frame arrives."""
    descriptor = output_pipe()
    if descriptor is None:
        yield
        return
    loop = asyncio.get_running_loop()

    def hung_up() -> None:
        loop.remove_reader(descriptor)
        if has_ended(descriptor):
            gone.set()

    # The writing end of a pipe is never readable: a hang-up wakes us, or data from the peer of a socket.
    loop.add_reader(descriptor, hung_up)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)


async def _print_frames(url: str, options: dict[str, Any], limit: int | None) -> None:
    from ropewalk.stream.core.frames import BusEvent, ErrorFrame, RefUpdate
    from ropewalk.stream.serve.follow import Following

    left = limit
    names = {*(("ref", name) for name in options["refs"]), *(("topic", name) for name in options["topics"])}
    async with Following(url, **options) as frames:
        async for item in frames:
            if isinstance(item, ErrorFrame) and item.dropped:
                names -= {("ref", item.ref), ("topic", item.topic)}
                if not names:
                    raise _refusal(url, item)
            _show(item)
            if left is not None and isinstance(item, BusEvent | RefUpdate):
                left -= 1
                if not left:
                    return


def _refusal(url: str, error: ErrorFrame) -> RopewalkError:
    """Return the error for a rejected last subscription."""
    if error.code == "NOT_WATCHED":
        advice = "Subscribe to 'refs/gatos/**' or a part of it; branches and tags are not sent."
        return Invalid(f"{url}: {error.message}", advice=advice, reason=error.code)
    return Denied(f"{url}: {error.message}", advice="Ask the operator of the server for access.")


def _show(item: Item) -> None:
    from ropewalk.stream.core.frames import BusEvent, RefUpdate, encode
    from ropewalk.stream.core.subscriber import Lost

    match item:
        case RefUpdate():
            places = f"{short(item.old or 'nothing')} → {short(item.new or 'nothing')}"
            emit(_document(encode(item)), printable(f"{item.ts}  {item.ref}  {places}"))
        case BusEvent():
            about = item.about or {}
            names = printable(f"{item.ts}  {item.topic}  {about.get('ulid', '-')}  {about.get('type', '-')}")
            payload = printable_json(json.dumps(item.payload, ensure_ascii=False, separators=(",", ":")))
            document = {**_document(encode(item)), "payload": item.payload}
            if item.seq_origin is not None:  # the wire format carries it inside the payload
                document["seq_origin"] = item.seq_origin
            emit(document, f"{names}  {payload}")
        case Lost():
            document = {"kind": "lost", "reason": item.reason, "sinceSeq": item.since_seq, "seq": item.seq}
            _tell({**document, "message": item.message}, f"frames were lost: {item.message}")
        case _:
            _tell(_document(encode(item)), f"{item.code}: {item.message}")


def _tell(document: dict[str, Any], plain: str) -> None:
    """Print a notice: to stdout as JSON, else to stderr."""
    if session().json:
        emit_line(document)
    else:
        say(printable(plain))


def _document(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found
