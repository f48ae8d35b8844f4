"""`ropewalk stream serve` (S2): what changes in a repository, told as it happens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ropewalk.cli.common.command import Group, parse_input, say
from ropewalk.cli.common.serving import connection_options, run_server, say_journal
from ropewalk.cli.git.events import opened
from ropewalk.errors import Invalid

if TYPE_CHECKING:
    from ropewalk.gitlog.repository.repository import GitRepository

CONNECTIONS_MAX = 4_096  # written out so that --help loads no engine; a test compares
REPLAY_FRAMES = 1_000  # written out so that --help loads no engine; a test compares
REPLAY_MINUTES = 10.0
TOKEN_BYTES_MAX = 4_096
JOURNAL = "ropewalk.stream"
F = TypeVar("F", bound=Callable[..., Any])


# As browsers send it: scheme, host and a port that is not the usual one. Pages out of files say `null`.
ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._~-]+)(:[0-9]{1,5})?")


def _check_origins(_ctx: click.Context, _param: click.Parameter, origins: tuple[str, ...]) -> tuple[str, ...]:
    for origin in origins:
        if not ORIGIN.fullmatch(origin):
            raise click.BadParameter(
                f"{origin!r} is no origin: write it as browsers do, https://ops.example or http://localhost:3000, "
                "in lower case and without a path"
            )
    return origins


def shows_page(asked: bool | None, token: str | None) -> bool:
    """Whether browsers are shown the live page. They cannot show a token, so one excludes the other."""
    if asked and token is not None:
        raise click.UsageError("a page in a browser cannot show a token: leave out --page or --token-file")
    return token is None if asked is None else asked


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
            callback=_check_origins,
            help="Web pages of this origin, https://HOST, may connect; may be given again. Others may not.",
        ),
        click.option(
            "--page/--no-page",
            default=None,
            help="Show browsers what happens, live, at /. They are shown it unless a token is asked for.",
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
        command = connection_options(CONNECTIONS_MAX)(command)
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.group(
    "stream",
    cls=Group,
    lazy={
        "sub": ("ropewalk.cli.stream.subscribe", "sub", "Print what a stream tells, as it happens."),
        "proxy": ("ropewalk.cli.stream.proxy", "proxy", "Serve a stream again, to clients of your own."),
    },
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
    page: bool | None,
    replay_limit: int,
    replay_minutes: float,
    max_connections: int,
    max_per_address: int | None,
) -> None:
    """Tell subscribers what changes here, whichever process changes it: at /api/v1/stream, over WebSockets.

    Prints one JSON line when it listens. What may be seen is said by the policy of the repository. Open the address
    called `page` in a browser to watch.
    """
    from ropewalk.stream.core.window import WindowBounds

    token = stream_token(token_file)
    if token is None and host not in ("127.0.0.1", "::1", "localhost"):
        say(f"anybody who reaches {host} can read the stream; --token-file asks for a token")
    say_journal(JOURNAL)
    with opened() as log:
        options: dict[str, Any] = {
            "host": host,
            "port": port,
            "token": token,
            "origins": origins,
            "page": shows_page(page, token),
            "bounds": WindowBounds(replay_limit, int(replay_minutes * 60_000)),
            "connections_max": max_connections,
            "address_max": max_per_address,
        }
        asyncio.run(_serve(log, options))


async def _serve(log: GitRepository, options: dict[str, Any]) -> None:
    from ropewalk.stream.serve.repository_stream import RepositoryStream

    await run_server(
        RepositoryStream(log, **options),
        lambda served: {
            "url": served.url,
            "host": options["host"],
            "port": served.server.port,
            "page": served.server.page_url,
            "stream": served.window.stream,
            "seq": served.window.seq,
        },
    )


def stream_token(file: str | None) -> str | None:
    """The token in a file, if one was named."""
    return None if file is None else parse_input(file, _parse_token, limit=TOKEN_BYTES_MAX)


def _parse_token(raw: bytes) -> str:
    token = raw.decode("ascii", "replace").strip()
    if not token or not all("!" <= each <= "~" for each in token):
        raise Invalid("no token", advice="A token is one line of ASCII without blanks.")
    return token
