"""What both sides of a QUIC connection are set to."""

from __future__ import annotations

import ssl
from typing import Final

from aioquic.quic.configuration import QuicConfiguration

from ropewalk.net.admission import address_group
from ropewalk.net.quic.datagrams import DATAGRAM_BYTES, LOOPBACK_DATAGRAM_BYTES
from ropewalk.net.quic.link import CONNECTION_BYTES_MAX, STREAM_BYTES_MAX
from ropewalk.net.tls import TlsFiles, server_tls

IDLE_S: Final = 60.0


def configuration(files: TlsFiles, protocol: str, host: str, *, client: bool) -> QuicConfiguration:
    """Return the settings of a server, or of a client that connects to a host."""
    server_tls(files, protocol)  # says what is wrong with the files
    loopback = address_group((host, 0)) in ("127.0.0.1", "::/64") or host == "localhost"
    made = QuicConfiguration(
        is_client=client,
        alpn_protocols=[protocol],
        idle_timeout=IDLE_S,
        max_data=CONNECTION_BYTES_MAX,
        max_stream_data=STREAM_BYTES_MAX,
        max_datagram_size=LOOPBACK_DATAGRAM_BYTES if loopback else DATAGRAM_BYTES,
        server_name=host if client else None,
        cafile=str(files.roots),
        # Without a handler for tickets nothing is resumed: a resumed session shows no certificate.
        verify_mode=ssl.CERT_REQUIRED if client else ssl.CERT_NONE,
    )
    made.load_cert_chain(files.certificate, files.key)
    return made
