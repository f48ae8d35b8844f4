"""A server of QUIC: bounded handshakes and connections, and a retry packet before any of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer
from aioquic.quic.connection import QuicConnection

from ropewalk.errors import RopewalkError, Unavailable
from ropewalk.net.admission import ConnectionLimits
from ropewalk.net.certificates import CertificateVerifier
from ropewalk.net.quic.datagrams import waiting, widen
from ropewalk.net.quic.link import EXCESSIVE_LOAD, NO_ERROR, REQUEST_REJECTED, QuicLink, QuicPipe
from ropewalk.net.quic.settings import configuration
from ropewalk.net.refusals import listening
from ropewalk.net.tls import TlsFiles


class _Server(QuicServer):
    """The server of aioquic, which here takes all datagrams that have come before anything is answered."""

    def datagram_received(self, data: Any, addr: Any) -> None:
        super().datagram_received(data, addr)
        for more in waiting(self._transport):
            super().datagram_received(*more)


class QuicListener:
    """A UDP port that takes connections of clients with an accepted certificate."""

    def __init__(
        self,
        opened: Callable[[QuicLink, QuicPipe], None],
        files: TlsFiles,
        limits: ConnectionLimits,
        refused: Callable[[str, str], None],
    ) -> None:
        self._opened, self._limits, self._refused = opened, limits, refused
        self._verifier = CertificateVerifier(files)
        self._links: dict[
            QuicLink, asyncio.TimerHandle | None
        ] = {}  # with the deadline of those that are new
        self._server: _Server | None = None
        self.port = 0

    async def open(self, host: str, port: int, files: TlsFiles, protocol: str) -> QuicListener:
        """Begin to listen."""
        self._configure = partial(configuration, protocol=protocol, host=host, client=False)
        with listening(host, port):
            # A retry packet shows that a client has the address it sends from, before it costs us a handshake.
            _, self._server = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: _Server(
                    configuration=self._configure(files), create_protocol=self._begin, retry=True
                ),
                local_addr=(host, port),
            )
        assert self._server._transport is not None
        widen(self._server._transport)
        self.port = self._server._transport.get_extra_info("sockname")[1]
        return self

    def settle(self, link: QuicLink) -> None:
        """Keep a connection: its session is open."""
        timer = self._links.get(link)
        if timer is not None:
            timer.cancel()
            self._links[link] = None

    def renew(self, files: TlsFiles) -> None:
        """Use the certificate and the authorities that are in the files now, for new connections."""
        verifier = CertificateVerifier(files)
        if self._server is not None:
            self._server._configuration = self._configure(files)
            self._verifier = verifier

    def refuse(self) -> None:
        """Take no more connections."""
        if self._server is not None:
            self._server._create_protocol = lambda *_a, **_k: _Deaf()

    async def close(self) -> None:
        """End all connections."""
        for link in list(self._links):
            link.close_with(NO_ERROR, Unavailable("the server has stopped"))
        if self._server is not None:
            self._server.close()

    def _begin(self, quic: QuicConnection, stream_handler: Any = None) -> QuicLink:  # noqa: ARG002
        link = QuicLink(
            quic,
            verify=lambda link: self._verifier.check_client(*link.shown),
            opened=self._opened,
            admit=self._admit,
            left=self._leave,
        )
        new = [each for each, timer in self._links.items() if timer is not None]
        if len(new) >= self._limits.handshakes_max:
            new[0].close_with(EXCESSIVE_LOAD, Unavailable(f"{len(new)} handshakes are in progress"))
        late = Unavailable(f"no session within {self._limits.handshake_s:g} s")
        loop = asyncio.get_running_loop()
        self._links[link] = loop.call_later(
            self._limits.handshake_s, partial(link.close_with, REQUEST_REJECTED, late)
        )
        return link

    def _admit(self, link: QuicLink) -> None:
        known = [each for each in self._links if each.certificate is not None]
        same = sum(each.address == link.address for each in known)
        if len(known) >= self._limits.connections_max or same >= self._limits.per_address:
            raise Unavailable(f"{len(known)} connections are open already", advice="Try again later.")

    def _leave(self, link: QuicLink, why: RopewalkError | None) -> None:
        timer = self._links.pop(link, None)
        if timer is not None:
            timer.cancel()
            self._refused(link.name, why.detail if why is not None else "it left before a session was open")


class _Deaf(QuicConnectionProtocol):
    """What answers nothing: the server stops."""

    def __init__(self) -> None:
        self._ignored = True

    def connection_made(self, transport: Any) -> None:
        pass

    def datagram_received(self, data: Any, addr: Any) -> None:
        pass
