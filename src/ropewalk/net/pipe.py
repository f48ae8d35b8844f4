"""A pipe: bytes both ways, in order, with an end. TCP, a WebSocket and a stream inside either are pipes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from ropewalk.net.admission import ConnectionSlot


class Pipe(Protocol):
    """Bytes both ways. The call that notices a broken connection raises Unavailable."""

    name: str  # who is at the other end, for people

    async def receive(self) -> bytes:
        """Return the next bytes, as many as came; none at the end."""

    async def send(self, data: bytes) -> None:
        """Send bytes; returns when there is room for more."""

    async def close(self) -> None:
        """End it; closing twice is no error."""


class Listener(Protocol):
    """A server socket that accepts connections."""

    port: int

    async def close(self) -> None:
        """Accept no more connections, and close the open pipes."""


class ServedPipe(Pipe, Protocol):
    """A pipe that a server accepted; `slot` is how it is counted."""

    slot: ConnectionSlot | None


Accept = Callable[[ServedPipe], Awaitable[None]]
