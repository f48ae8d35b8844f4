"""The private names of aioquic that `net/quic/` uses: a new version that drops one must fail here, not in service.

Also what was made faster and must stay safe: datagrams are taken in bounded runs, and paced beyond one machine.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
from typing import Any, cast

import pytest
from aioquic import tls
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from ropewalk.net.quic.datagrams import (
    DATAGRAM_BYTES,
    LOOPBACK_DATAGRAM_BYTES,
    TURN_DATAGRAMS,
    waiting,
    widen,
)
from ropewalk.net.quic.link import QuicLink
from ropewalk.net.tls import Certificate


def test_quic_private_names_are_there():
    quic = QuicConnection(configuration=QuicConfiguration(is_client=True))
    for name in ("_initialize", "_write_stream_limits", "_write_connection_limits"):
        assert callable(getattr(quic, name))
    for limit in (quic._local_max_streams_bidi, quic._local_max_streams_uni, quic._local_max_data):
        assert {"value", "sent", "used"} <= vars(limit).keys()
    made = inspect.getsource(tls.Context.__init__)
    for name in ("_request_client_certificate", "_peer_certificate", "_peer_certificate_chain"):
        assert f"self.{name}" in made
    assert "highest_offset * 2 > stream.max_stream_data_local" in inspect.getsource(quic._write_stream_limits)
    assert "max_data.used * 2 > max_data.value" in inspect.getsource(quic._write_connection_limits)
    assert "self._create_protocol(" in inspect.getsource(QuicServer.datagram_received)
    for name in ("_process_events", "_transmit_soon"):
        assert callable(getattr(QuicConnectionProtocol, name))
    assert list(inspect.signature(quic._loss._pacer.update_rate).parameters) == [
        "congestion_window",
        "smoothed_rtt",
    ]


@pytest.mark.parametrize(("size", "paced"), [(DATAGRAM_BYTES, True), (LOOPBACK_DATAGRAM_BYTES, False)])
def test_quic_is_paced_except_within_one_machine(size, paced):
    async def main() -> None:
        quic = QuicConnection(configuration=QuicConfiguration(is_client=True, max_datagram_size=size))
        QuicLink(quic, verify=lambda _link: cast(Certificate, None))
        pacer = quic._loss._pacer
        pacer.update_rate(congestion_window=12_000, smoothed_rtt=1.0)
        for _ in range(100):
            pacer.update_after_send(now=1.0)
        assert (pacer.next_send_time(now=1.0) is not None) is paced

    asyncio.run(main())


def test_quic_takes_the_datagrams_of_a_turn_together_up_to_a_bound():
    turns: list[int] = []

    class Reader(asyncio.DatagramProtocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            widen(transport)

        def datagram_received(self, data: bytes, addr: Any) -> None:
            turns.append(1 + len(waiting(self.transport)))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(Reader, local_addr=("127.0.0.1", 0))
        its = transport.get_extra_info("socket")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            room = (each.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) for each in (sender, its))
            assert next(room) < next(room)
            for number in range(TURN_DATAGRAMS + 10):
                sender.sendto(bytes([number]), its.getsockname())
        while sum(turns) < TURN_DATAGRAMS + 10:
            await asyncio.sleep(0)
        assert turns == [TURN_DATAGRAMS + 1, 9]
        transport.close()

    asyncio.run(asyncio.wait_for(main(), 30))
