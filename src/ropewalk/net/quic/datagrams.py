"""The socket below QUIC: how large datagrams are, how many wait, and how they are taken."""

from __future__ import annotations

import socket
from typing import Any, Final

DATAGRAM_BYTES: Final = 1200  # every path carries so much (RFC 9000 §14); no larger size is probed
LOOPBACK_DATAGRAM_BYTES: Final = 16 << 10  # the largest that aioquic can encode the length of
SOCKET_BYTES: Final = 2 << 20  # asked of the system for datagrams; it may grant less
TURN_DATAGRAMS: Final = 64  # taken in one turn of the loop, beside the one that asyncio takes


def widen(transport: Any) -> None:
    """Ask for room for the datagrams that come while the loop does other work: what does not fit is lost."""
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)


def waiting(transport: Any) -> list[tuple[bytes, Any]]:
    """Return the datagrams that have come to a socket, of which asyncio takes one in each turn of the loop."""
    its = transport.get_extra_info("socket")
    same = socket.socket(its.family, its.type, its.proto, fileno=its.fileno())
    found: list[tuple[bytes, Any]] = []
    try:
        same.setblocking(False)
        while len(found) < TURN_DATAGRAMS:
            found.append(same.recvfrom(1 << 16))
    except OSError:  # there are no more; errors of a path mean nothing to aioquic
        pass
    finally:
        same.detach()
    return found
