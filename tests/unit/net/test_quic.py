"""The private names of aioquic that `net/quic.py` uses: a new version that drops one must fail here, not in service."""

from __future__ import annotations

import inspect

from aioquic import tls
from aioquic.asyncio.server import QuicServer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection


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
