"""Run a server from the command line: log connections on stderr, stop cleanly on a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from ropewalk.cli.common.command import emit_line, parse_input, say
from ropewalk.cli.common.options import F, integer, together
from ropewalk.errors import Invalid
from ropewalk.kernel.terminal_text import printable

TOKEN_BYTES_MAX = 4_096
T = TypeVar("T")


def connection_options(connections: int) -> Callable[[F], F]:
    """Return the options that limit the connections of a server."""
    return together(
        integer(
            "--max-connections",
            "N",
            "Maximum number of clients that are connected at once.",
            least=1,
            most=100_000,
            default=connections,
        ),
        integer(
            "--max-per-address",
            "N",
            "Maximum number of clients of one address. Default: half of --max-connections, at least 16.",
            least=1,
            most=100_000,
        ),
    )


class _StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(printable(record.getMessage()))  # remote peers control parts of the text


def log_to_stderr(name: str) -> None:
    """Print the log of connections on stderr."""
    journal = logging.getLogger(name)
    journal.addHandler(_StderrHandler())
    journal.setLevel(logging.INFO)


async def run_server(server: AbstractAsyncContextManager[T], facts: Callable[[T], dict[str, Any]]) -> None:
    """Serve until SIGINT or SIGTERM, then drain. Print the facts once the server listens."""
    stop = asyncio.Event()
    signals: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        signals.append(number)
        stop.set()

    # Also if a shell started us in the background with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    async with server as served:
        emit_line(facts(served))
        await stop.wait()
    if signal.SIGINT in signals:
        raise KeyboardInterrupt


def read_token(file: str | None) -> str | None:
    """Read the token from a file, if one was named."""
    return None if file is None else parse_input(file, _parse_token, limit=TOKEN_BYTES_MAX)


def _parse_token(raw: bytes) -> str:
    token = raw.decode("ascii", "replace").strip()
    if not token or not all("!" <= each <= "~" for each in token):
        raise Invalid(
            "the token must be one line of printable ASCII without spaces",
            advice="Write a new token, for example with `openssl rand -hex 32`.",
        )
    return token
