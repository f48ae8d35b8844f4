"""WebSocket connections that their server's admission counts from the moment they are accepted."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from websockets.asyncio.server import ServerConnection

from ropewalk.net.admission import Admission, ConnectionSlot


class CountedConnection(ServerConnection):
    """A connection with its slot, which is there once the connection was made."""

    admission: ClassVar[Admission]
    slot: ConnectionSlot | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.slot = self.admission.enter(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.slot is not None:
            self.slot.leave()
        super().connection_lost(exc)


def counted(counting: Admission) -> type[CountedConnection]:
    """Return the connections of one server, for `websockets.serve` to make."""

    class Counted(CountedConnection):
        admission = counting

    return Counted
