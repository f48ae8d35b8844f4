"""A peer that speaks the protocol byte by byte, and so can also break it."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.remote.dialing import parse_address
from ropewalk.ledger.remote.messages import RemoteMessage, parse_message
from ropewalk.ledger.remote.negotiate import MESSAGE_BYTES, Capabilities, advertise
from ropewalk.net.frames import FrameDecoder, frame, pack_parts, unpack_parts
from tests.waiting import LIMIT_S

__all__ = ["Peer", "framed"]

KEY = SigningKey.generate("ed25519", b"peer" + bytes(28))
PARTS_MAX = 10_000
BUFFER_BYTES = 256 << 10


def framed(message: RemoteMessage) -> bytes:
    """The bytes of a message on the wire."""
    return frame(pack_parts(message.parts_out()))


class Peer:
    """One connection, with small buffers of its own so that it is soon full."""

    def __init__(self, url: str) -> None:
        _, host, port = parse_address(url)
        self._socket = socket.socket()
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        self._socket.connect((host, port))
        self._socket.setblocking(False)
        self._frames = FrameDecoder(MESSAGE_BYTES)
        self._ready: list[bytes] = []
        self.waits = 0

    @classmethod
    @contextmanager
    def connected(cls, url: str, channel: str | None = None) -> Iterator[Peer]:
        """A peer that has opened a session, where a channel is given."""
        peer = cls(url)
        try:
            if channel is not None:
                asked = advertise(
                    KEY, Capabilities(("tcp",)), timestamp="2024-11-01T12:00:00Z", correlation_id="peer"
                )
                peer.send(framed(RemoteMessage("open", 0, {"channel": channel}, (asked.raw,))))
                said = peer.receive()
                assert said is not None and said.op == "opened", said
            yield peer
        finally:
            peer._socket.close()

    def send(self, raw: bytes) -> None:
        """Send all of it, however long the other side takes to read; counts how often it had to wait for that."""
        view = memoryview(raw)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                self.waits += 1
                if not self._ready_for(select.POLLOUT):
                    raise TimeoutError("nobody reads") from None

    def receive(self) -> RemoteMessage | None:
        """The next message, or None at the end."""
        while not self._ready:
            data = self._recv()
            if not data:
                return None
            self._ready = self._frames.receive(data)
        return parse_message(unpack_parts(self._ready.pop(0), PARTS_MAX))

    def is_let_go(self) -> bool:
        """Whether the other side ends this connection; what it still says is read."""
        try:
            while self._recv():
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    def _recv(self) -> bytes:
        if not self._ready_for(select.POLLIN):
            raise TimeoutError("nothing comes")
        return self._socket.recv(1 << 16)

    def _ready_for(self, event: int) -> bool:
        poll = select.poll()  # unlike select(), poll() takes descriptors above 1,023
        poll.register(self._socket, event)
        return bool(poll.poll(LIMIT_S * 1000))
