"""`ropewalk stream serve` and `sub` (S2): what changes in a repository, as it happens."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ropewalk.cli.gitlog import opened, short
from ropewalk.cli.manners import Group, emit, emit_line, parse_input, say, session
from ropewalk.errors import Denied, Invalid
from ropewalk.kernel.plaintext import printable, printable_json

if TYPE_CHECKING:
    from ropewalk.node.repository import Repository
    from ropewalk.stream.subscriber import Item

__all__ = ["serving_options", "stream", "stream_journal", "stream_token"]

REPLAY_FRAMES = 1_000  # written out so that --help loads no engine; a test compares
REPLAY_MINUTES = 10.0
TOKEN_BYTES_MAX = 4_096
F = TypeVar("F", bound=Callable[..., Any])


def serving_options(frames: int, minutes: float, *, envvar: str | None = None) -> Callable[[F], F]:
    """The options of a command that serves a stream: where, to whom, and how much is kept for those who come back."""
    besides = f"; also ${envvar}" if envvar else ""
    options = (
        click.option(
            "--host", default="127.0.0.1", show_default=True, metavar="HOST", help="The address to listen on."
        ),
        click.option(
            "--port", required=True, type=click.IntRange(0, 65535), metavar="P", help="0 takes a free one."
        ),
        click.option("--token-file", metavar="F", help="Ask everybody for the token in this file."),
        click.option(
            "--origin",
            "origins",
            multiple=True,
            metavar="URL",
            help="Web pages of this origin may connect; may be given again. Others may not.",
        ),
        click.option(
            "--replay-limit",
            type=click.IntRange(1, 1_000_000),
            default=frames,
            show_default=True,
            envvar=envvar,
            metavar="N",
            help=f"How many frames are kept for those who come back{besides}.",
        ),
        click.option(
            "--replay-minutes",
            type=click.FloatRange(min=0, min_open=True),
            default=minutes,
            show_default=True,
            metavar="M",
            help="For how long they are kept at most.",
        ),
    )

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.group(
    "stream",
    cls=Group,
    lazy={"proxy": ("ropewalk.cli.stream_proxy", "proxy", "Serve a stream again, to clients of your own.")},
    epilog="Examples:\n  ropewalk stream serve --port 8090\n"
    "  ropewalk stream sub ws://127.0.0.1:8090 --topic 'jobs.*' --ref 'refs/gatos/shiplog/**'\n"
    "  ropewalk stream proxy ws://127.0.0.1:8090 --port 8091\n",
)
def stream() -> None:
    """Refs that move and messages that are published, pushed to whoever subscribed."""


@stream.command(
    "serve",
    epilog="Examples:\n  ropewalk stream serve --port 8090\n"
    "  ropewalk stream serve --host 0.0.0.0 --port 8090 --token-file token.txt\n"
    "  ropewalk stream serve --port 8090 --origin https://ops.example\n",
)
@serving_options(REPLAY_FRAMES, REPLAY_MINUTES, envvar="STREAM_REPLAY_LIMIT")
def serve(
    host: str,
    port: int,
    token_file: str | None,
    origins: tuple[str, ...],
    replay_limit: int,
    replay_minutes: float,
) -> None:
    """Tell subscribers what changes here, whichever process changes it: at /api/v1/stream, over WebSockets.

    Prints one JSON line when it listens. What may be seen is said by the policy of the repository.
    """
    from ropewalk.stream.window import Bounds

    token = stream_token(token_file)
    if token is None and host not in ("127.0.0.1", "::1", "localhost"):
        say(f"anybody who reaches {host} can read the stream; --token-file asks for a token")
    stream_journal()
    with opened() as log:
        options: dict[str, Any] = {
            "host": host,
            "port": port,
            "token": token,
            "origins": origins,
            "bounds": Bounds(replay_limit, int(replay_minutes * 60_000)),
        }
        asyncio.run(_serve(log, options))


async def _serve(log: Repository, options: dict[str, Any]) -> None:
    from ropewalk.node.streams import RepositoryStream

    stop = asyncio.Event()
    signals: list[signal.Signals] = []

    def heard(number: signal.Signals) -> None:
        signals.append(number)
        stop.set()

    # Also where a shell starts us in the background, with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, heard, number)
    async with RepositoryStream(log, **options) as served:
        emit_line(
            {
                "url": served.url,
                "host": options["host"],
                "port": served.server.port,
                "stream": served.window.stream,
                "seq": served.window.seq,
            }
        )
        await stop.wait()
    if signal.SIGINT in signals:
        raise KeyboardInterrupt


@stream.command(
    "sub",
    epilog="Examples:\n  ropewalk stream sub ws://127.0.0.1:8090 --topic 'jobs.*'\n"
    "  ropewalk stream sub ws://127.0.0.1:8090 --ref 'refs/gatos/**' --since-seq 0 --jsonl\n"
    "  ropewalk stream sub ws://127.0.0.1:8090 --topic jobs --limit 1 --json\n",
)
@click.argument("url")
@click.option(
    "--ref", "refs", multiple=True, metavar="PATTERN", help="Refs to be told of; may be given again."
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
    stream_journal()
    options: dict[str, Any] = {
        "refs": refs,
        "topics": topics,
        "since_seq": since_seq,
        "token": stream_token(token_file),
        "patience_s": patience,
    }
    asyncio.run(_sub(url, options, limit))


async def _sub(url: str, options: dict[str, Any], limit: int | None) -> None:
    from ropewalk.node.following import Following
    from ropewalk.stream.frames import BusEvent, ErrorFrame, RefUpdate

    left = limit
    names = {*(("ref", name) for name in options["refs"]), *(("topic", name) for name in options["topics"])}
    async with Following(url, **options) as frames:
        async for item in frames:
            if isinstance(item, ErrorFrame) and item.dropped:
                names -= {("ref", item.ref), ("topic", item.topic)}
                if not names:
                    raise Denied(f"{url}: {item.message}", advice="Ask whoever runs the server.")
            _show(item)
            if left is not None and isinstance(item, BusEvent | RefUpdate):
                left -= 1
                if not left:
                    return


def _show(item: Item) -> None:
    from ropewalk.stream.frames import BusEvent, RefUpdate, encode
    from ropewalk.stream.subscriber import Lost

    match item:
        case RefUpdate():
            places = f"{short(item.old or 'nothing')} → {short(item.new or 'nothing')}"
            emit(_document(encode(item)), printable(f"{item.ts}  {item.ref}  {places}"))
        case BusEvent():
            import json

            about = item.about or {}
            names = printable(f"{item.ts}  {item.topic}  {about.get('ulid', '-')}  {about.get('type', '-')}")
            payload = printable_json(json.dumps(item.payload, ensure_ascii=False, separators=(",", ":")))
            emit(_document(encode(item)), f"{names}  {payload}")
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
    import json

    found: dict[str, Any] = json.loads(text)
    return found


def stream_token(file: str | None) -> str | None:
    """The token in a file, if one was named."""
    return None if file is None else parse_input(file, _parse_token, limit=TOKEN_BYTES_MAX)


def _parse_token(raw: bytes) -> str:
    token = raw.decode("ascii", "replace").strip()
    if not token or not all("!" <= each <= "~" for each in token):
        raise Invalid("no token", advice="A token is one line of ASCII without blanks.")
    return token


def stream_journal() -> None:
    """Say on stderr who comes, who goes and why."""
    import logging

    class Talk(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(printable(record.getMessage()))

    journal = logging.getLogger("ropewalk.stream")
    journal.addHandler(Talk())
    journal.setLevel(logging.INFO)
