"""A client of QUIC: connect, and keep the connection alive."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from aioquic.asyncio.client import connect
from aioquic.quic.connection import QuicConnection

from ropewalk.errors import Unavailable
from ropewalk.net.certificates import CertificateVerifier
from ropewalk.net.quic.datagrams import widen
from ropewalk.net.quic.link import QuicLink
from ropewalk.net.quic.settings import configuration
from ropewalk.net.refusals import reason
from ropewalk.net.tls import TlsFiles

KEEP_ALIVE_S: Final = 20.0


async def connect_quic(
    host: str, port: int, files: TlsFiles, protocol: str, *, timeout_s: float
) -> tuple[QuicLink, Callable[[], Any]]:
    """Connect; return the connection and what closes it. The server's certificate must be for the host."""
    url = f"quic://{f'[{host}]' if ':' in host else host}:{port}"
    verifier = CertificateVerifier(files)
    links: list[QuicLink] = []

    def begin(quic: QuicConnection, stream_handler: Any = None) -> QuicLink:  # noqa: ARG001
        links.append(QuicLink(quic, verify=lambda link: verifier.check_server(host, *link.shown)))
        return links[0]

    entering = connect(
        host, port, configuration=configuration(files, protocol, host, client=True), create_protocol=begin
    )
    try:
        async with asyncio.timeout(timeout_s):
            link = await entering.__aenter__()
    except TimeoutError as error:
        raise Unavailable(f"{url} does not answer within {timeout_s:g} s") from error
    except ConnectionError as error:
        failed = links[0].refusal if links else None
        raise failed or Unavailable(f"{url}: the handshake failed") from error
    except OSError as error:
        raise Unavailable(f"{url}: {reason(error)}", advice="Check the name of the host.") from error
    assert isinstance(link, QuicLink)
    widen(link._transport)
    alive = asyncio.get_running_loop().create_task(_keep_alive(link))

    async def close() -> None:
        alive.cancel()
        await asyncio.gather(alive, return_exceptions=True)
        with contextlib.suppress(ConnectionError):
            await entering.__aexit__(None, None, None)

    link.name = url
    if link.certificate is None:
        await close()
        raise link.refusal or Unavailable(f"{url}: the server has shown no certificate")
    return link, close


async def _keep_alive(link: QuicLink) -> None:
    while True:
        await asyncio.sleep(KEEP_ALIVE_S)
        await link.ping()
