"""What commands that serve have in common: they say who comes and goes, and end in order when somebody wants it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import click

from ropewalk.cli.common.command import emit_line, say
from ropewalk.kernel.terminal_text import printable

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def connection_options(connections: int) -> Callable[[F], F]:
    """Return the options that limit the connections of a server."""
    options = (
        click.option(
            "--max-connections",
            type=click.IntRange(1, 100_000),
            default=connections,
            show_default=True,
            metavar="N",
            help="Maximum number of clients that are connected at once.",
        ),
        click.option(
            "--max-per-address",
            type=click.IntRange(1, 100_000),
            metavar="N",
            help="Maximum number of clients of one address. Default: half of --max-connections, at least 16.",
        ),
    )

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class _Saying(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(printable(record.getMessage()))  # strangers have a part in what is said


def say_journal(name: str) -> None:
    """Say on stderr who comes, who goes and why."""
    journal = logging.getLogger(name)
    journal.addHandler(_Saying())
    journal.setLevel(logging.INFO)


async def run_server(server: AbstractAsyncContextManager[T], facts: Callable[[T], dict[str, Any]]) -> None:
    """Serve until a signal comes, and answer what has come until then. The facts are printed once it listens."""
    stop = asyncio.Event()
    signals: list[signal.Signals] = []

    def heard(number: signal.Signals) -> None:
        signals.append(number)
        stop.set()

    # Also where a shell starts us in the background, with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, heard, number)
    async with server as served:
        emit_line(facts(served))
        await stop.wait()
    if signal.SIGINT in signals:
        raise KeyboardInterrupt
