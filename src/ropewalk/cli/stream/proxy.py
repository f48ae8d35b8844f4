"""`ropewalk stream proxy` (S2, federation): serve the stream of another server to more clients."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any

import click

from ropewalk.cli.common.command import command, emit_line, session
from ropewalk.cli.common.options import option, repeated
from ropewalk.cli.common.serving import read_token
from ropewalk.cli.git.events import opened
from ropewalk.cli.stream.serve import server_settings, serving_options

REPLAY_FRAMES = 10_000  # written out so that --help loads no engine; a test compares
REPLAY_MINUTES = 15.0


@command(
    "proxy",
    "ropewalk stream proxy ws://origin.example:8090 --port 8091",
    "ropewalk stream proxy ws://origin.example:8090 --port 8091 --topic 'jobs.**' --ref 'refs/gatos/state/**'",
    "ropewalk --repo log.git stream proxy ws://origin.example:8090 --port 8091 --upstream-token-file token.txt",
)
@click.argument("upstream_url")
@serving_options(REPLAY_FRAMES, REPLAY_MINUTES)
@option("--upstream-token-file", "F", "File with the token for the upstream server.")
@repeated("--ref refs", "PATTERN", "Refs to relay (default: all); at most 20.")
@repeated("--topic topics", "PATTERN", "Topics to relay (default: all); at most 20.")
def proxy(
    upstream_url: str,
    upstream_token_file: str | None,
    refs: tuple[str, ...],
    topics: tuple[str, ...],
    **serving: Any,
) -> None:
    """Serve the stream at UPSTREAM_URL to more clients over one upstream connection.

    Without --ref and --topic everything is relayed. With them, other subscriptions are requested from the upstream when
    a client asks for them. Print one JSON line once the upstream has answered. With --repo, undelivered frames are
    recorded in that repository.
    """
    from ropewalk.stream.core.window import PROXY_BOUNDS

    options = server_settings(serving, bytes_max=PROXY_BOUNDS.bytes_max)
    options |= {"refs": refs, "topics": topics, "upstream_token": read_token(upstream_token_file)}
    with contextlib.ExitStack() as stack:
        # Not $ROPEWALK_REPO: remote clients cause these records, so the operator must name the repository.
        if session().repo is not None:
            options["log"] = stack.enter_context(opened())
        asyncio.run(_proxy(upstream_url, options))


async def _proxy(upstream_url: str, options: dict[str, Any]) -> None:
    from ropewalk.stream.serve.proxy_server import StreamProxy

    signals: list[signal.Signals] = []
    serving = asyncio.create_task(_serve(StreamProxy(upstream_url, **options), options["host"]))

    def on_signal(number: signal.Signals) -> None:
        signals.append(number)
        serving.cancel()

    # Also if a shell started us in the background with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    try:
        await serving
    except asyncio.CancelledError:
        if not signals:
            raise
    if signal.SIGINT in signals:
        raise KeyboardInterrupt


async def _serve(served: Any, host: str) -> None:
    async with served:
        emit_line(
            {
                "url": served.url,
                "host": host,
                "port": served.server.port,
                "page": served.server.page_url,
                "stream": served.proxy.window.stream,
                "seq": served.proxy.window.seq,
                "upstream": served.upstream_url,
                "via": list(served.proxy.via),
            }
        )
        await served.wait()
