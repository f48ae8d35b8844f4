"""`ropewalk stream serve` (S2): serve repository changes to WebSocket subscribers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import group, say
from ropewalk.cli.common.options import F, decimal, integer, option, repeated, together
from ropewalk.cli.common.serving import connection_options, log_to_stderr, read_token, run_server
from ropewalk.cli.git.events import opened

if TYPE_CHECKING:
    from ropewalk.gitlog.repository.repository import GitRepository

CONNECTIONS_MAX = 4_096  # written out so that --help loads no engine; a test compares
REPLAY_FRAMES = 1_000  # written out so that --help loads no engine; a test compares
REPLAY_MINUTES = 10.0
JOURNAL = "ropewalk.stream"


# As browsers send it: scheme, host, and a port unless it is the default. Local files send `null`.
ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._~-]+)(:[0-9]{1,5})?")


def _check_origins(_ctx: click.Context, _param: click.Parameter, origins: tuple[str, ...]) -> tuple[str, ...]:
    for origin in origins:
        if not ORIGIN.fullmatch(origin):
            raise click.BadParameter(
                f"must be an origin in lower case without a path, such as https://ops.example, got {origin!r}"
            )
    return origins


def shows_page(asked: bool | None, token: str | None) -> bool:
    """Return whether to serve the live page. Browsers cannot send a token, so a token excludes the page."""
    if asked and token is not None:
        raise click.UsageError(
            "--page and --token-file exclude each other: a browser page cannot send a token"
        )
    return token is None if asked is None else asked


def serving_options(frames: int, minutes: float, *, envvar: str | None = None) -> Callable[[F], F]:
    """Return the options of a command that serves a stream: address, access and replay window."""
    variable = f"; also ${envvar}" if envvar else ""
    return together(
        option("--host", "HOST", "Address to listen on.", default="127.0.0.1"),
        integer("--port", "P", "Port to listen on; 0 chooses a free one.", most=65535, required=True),
        option("--token-file", "F", "Require the token in this file from clients."),
        repeated(
            "--origin origins",
            "URL",
            "Allow web pages of this origin, https://HOST, to connect (default: none); repeatable.",
            callback=_check_origins,
        ),
        click.option(
            "--page/--no-page",
            default=None,
            help="Serve a live page for browsers at / (default: yes, unless a token is required).",
        ),
        integer(
            "--replay-limit",
            "N",
            f"Number of frames to keep for reconnecting clients{variable}.",
            least=1,
            most=1_000_000,
            default=frames,
            envvar=envvar,
        ),
        decimal("--replay-minutes", "M", "Maximum age of kept frames in minutes.", above=0, default=minutes),
        connection_options(CONNECTIONS_MAX),
    )


def server_settings(options: dict[str, Any], **bounds: int) -> dict[str, Any]:
    """Return the settings of a stream server from its options; warn if it can be read without a token."""
    from ropewalk.stream.core.window import WindowBounds

    host, token = options["host"], read_token(options["token_file"])
    if token is None and host not in ("127.0.0.1", "::1", "localhost"):
        say(f"warning: anyone who can reach {host} can read the stream; require a token with --token-file")
    log_to_stderr(JOURNAL)
    return {
        "host": host,
        "port": options["port"],
        "token": token,
        "origins": options["origins"],
        "page": shows_page(options["page"], token),
        "bounds": WindowBounds(options["replay_limit"], int(options["replay_minutes"] * 60_000), **bounds),
        "connections_max": options["max_connections"],
        "address_max": options["max_per_address"],
    }


@group(
    "stream",
    "ropewalk stream serve --port 8090",
    "ropewalk stream sub ws://127.0.0.1:8090 --topic 'jobs.*' --ref 'refs/gatos/shiplog/**'",
    "ropewalk stream proxy ws://127.0.0.1:8090 --port 8091",
    lazy={
        "sub": "stream.subscribe:sub Print the frames of a stream as they arrive.",
        "proxy": "stream.proxy:proxy Serve the stream of another server to more clients.",
    },
)
def stream() -> None:
    """Serve, relay and print live changes of refs and topics."""


@stream.command(
    "serve",
    "ropewalk stream serve --port 8090",
    "ropewalk stream serve --host 0.0.0.0 --port 8090 --token-file token.txt",
    "ropewalk stream serve --port 8090 --origin https://ops.example",
)
@serving_options(REPLAY_FRAMES, REPLAY_MINUTES, envvar="STREAM_REPLAY_LIMIT")
def serve(**options: Any) -> None:
    """Serve repository changes to WebSocket subscribers at /api/v1/stream.

    Print one JSON line when it listens. Changes made by any process are sent. The policy of the repository decides what
    clients may see. Open the address `page` in a browser to watch.
    """
    settings = server_settings(options)
    with opened() as log:
        asyncio.run(_serve(log, settings))


async def _serve(log: GitRepository, settings: dict[str, Any]) -> None:
    from ropewalk.stream.serve.repository_stream import RepositoryStream

    await run_server(
        RepositoryStream(log, **settings),
        lambda served: {
            "url": served.url,
            "host": settings["host"],
            "port": served.server.port,
            "page": served.server.page_url,
            "stream": served.window.stream,
            "seq": served.window.seq,
        },
    )
