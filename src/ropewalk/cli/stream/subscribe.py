"""`ropewalk stream sub` (S2): what a stream tells, printed as it happens."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import Command, drop_output, emit, emit_line, say, session
from ropewalk.cli.common.hangup import has_ended, output_pipe
from ropewalk.cli.common.serving import say_journal
from ropewalk.cli.git.events import short
from ropewalk.cli.stream.serve import JOURNAL, stream_token
from ropewalk.errors import Denied, Invalid, RopewalkError
from ropewalk.kernel.terminal_text import printable, printable_json

if TYPE_CHECKING:
    from ropewalk.stream.core.frames import ErrorFrame
    from ropewalk.stream.core.subscriber import Item


@click.command(
    "sub",
    cls=Command,
    epilog="Examples:\n  ropewalk stream sub ws://127.0.0.1:8090 --topic 'jobs.*'\n"
    "  ropewalk stream sub ws://127.0.0.1:8090 --ref 'refs/gatos/**' --since-seq 0 --jsonl\n"
    "  ropewalk stream sub ws://127.0.0.1:8090 --topic jobs --limit 1 --json\n",
)
@click.argument("url")
@click.option(
    "--ref",
    "refs",
    multiple=True,
    metavar="PATTERN",
    help="Refs below refs/gatos/ to be told of; may be given again.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="PATTERN",
    help="Topics to get messages of; may be given again.",
)
@click.option(
    "--since-seq",
    type=click.IntRange(0),
    metavar="N",
    help="First what came after this frame; 0 means all that is kept. Default: only what comes.",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="End after so many frames.")
@click.option("--jsonl", is_flag=True, help="One JSON object a line, as --json.")
@click.option("--token-file", metavar="F", help="The token the server asks for.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long to wait for a server that went away. Default: for ever.",
)
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
    """Print what the stream at URL tells of these refs and topics, each frame once, until interrupted.

    In patterns, * stands for anything within one part and ** for any number of parts: 'refs/gatos/state/**', 'jobs.*'.
    If the connection breaks, it is made again and goes on where it was. Frames that can no longer be had are said to be
    lost.
    """
    session().json = session().json or jsonl
    say_journal(JOURNAL)
    options: dict[str, Any] = {
        "refs": refs,
        "topics": topics,
        "since_seq": since_seq,
        "token": stream_token(token_file),
        "patience_s": patience,
    }
    asyncio.run(_sub(url, options, limit))


async def _sub(url: str, options: dict[str, Any], limit: int | None) -> None:
    """Print frames until there are enough, or until whoever reads what we print has gone."""
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
    """Within, the event is set once nobody reads the pipe we print into: without it, only the next frame would tell."""
    descriptor = output_pipe()
    if descriptor is None:
        yield
        return
    loop = asyncio.get_running_loop()

    def hung_up() -> None:
        loop.remove_reader(descriptor)
        if has_ended(descriptor):
            gone.set()

    # The writing end of a pipe is never readable; what wakes us is its hang-up, or what a socket's other end says.
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
    """Nothing will come of anything that was asked for."""
    if error.code == "NOT_WATCHED":
        advice = "Ask for 'refs/gatos/**', or for less of it; branches and tags are not told of."
        return Invalid(f"{url}: {error.message}", advice=advice, reason=error.code)
    return Denied(f"{url}: {error.message}", advice="Ask whoever runs the server.")


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
            if item.seq_origin is not None:  # it travels inside the payload, where nobody has put it
                document["seq_origin"] = item.seq_origin
            emit(document, f"{names}  {payload}")
        case Lost():
            document = {"kind": "lost", "reason": item.reason, "sinceSeq": item.since_seq, "seq": item.seq}
            _tell({**document, "message": item.message}, f"frames were lost: {item.message}")
        case _:
            _tell(_document(encode(item)), f"{item.code}: {item.message}")


def _tell(document: dict[str, Any], plain: str) -> None:
    """What is no data is data for a program all the same."""
    if session().json:
        emit_line(document)
    else:
        say(printable(plain))


def _document(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found
