"""One session of a remote channel on the server, as frames over a pipe."""

from __future__ import annotations

import asyncio
import contextlib

from ropewalk.errors import NegotiateAgain, RopewalkError, Unavailable
from ropewalk.ledger.remote.conversation import Conversation, Peer, SessionHost, cancelled, error_of_task
from ropewalk.ledger.remote.messages import (
    PARTS_MAX,
    RemoteMessage,
    compress,
    decompress,
    parse_message,
    problem_message,
)
from ropewalk.net.admission import ConnectionSlot
from ropewalk.net.frame_pipe import FramePipe
from ropewalk.net.frames import FrameDecoder, frame, pack_parts, unpack_parts
from ropewalk.net.pipe import Pipe
from ropewalk.net.tls import Certificate

OPEN_BYTES_MAX = 256 << 10  # an advertisement; an unidentified client may not send more
PARTING_S = 1.0  # for the peer to read why it must go


class LedgerSession(Conversation):
    """One peer. `run` returns when it has left, or was sent an error."""

    def __init__(
        self,
        served: SessionHost,
        pipe: Pipe,
        *,
        transport: str,
        idle_s: float,
        certificate: Certificate | None = None,
        slot: ConnectionSlot | None = None,
    ) -> None:
        super().__init__(served, transport, Peer(pipe.name, certificate), slot)
        self._pipe = pipe
        self._cutter = FrameDecoder(OPEN_BYTES_MAX)
        self._frames = FramePipe(pipe, self._cutter, frame, idle_s=idle_s)
        self._compressed = False
        self.outdated = False  # whether it ended because it must be negotiated again

    async def run(self) -> None:
        """Negotiate, then answer until the peer has gone."""
        opening = asyncio.create_task(self._negotiate())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                return
            refused = error_of_task(opening)
            if refused is not None:
                self._host.refused(str(self.peer), refused.detail)
                await self.close_with_error(refused)
                return
            await self._attend(stopping)
        finally:
            await cancelled(opening, stopping)

    async def _attend(self, stopping: asyncio.Task[bool]) -> None:
        """Answer until the peer has gone, and tell it what ends the session."""
        fault = await self.converse(stopping)
        self.outdated = isinstance(fault, NegotiateAgain)
        if fault is not None and (self.outdated or not isinstance(fault, Unavailable)):
            await self.close_with_error(fault)

    async def _negotiate(self) -> None:
        raw = await self._frames.receive()
        if raw is None:
            raise Unavailable("it left before it said anything")
        await self._send(await self.open(parse_message(unpack_parts(raw, 2))))
        self._begin_messages()

    def _begin_messages(self) -> None:
        """Give messages the agreed form from now on."""
        self._cutter.limit = self._agreement.max_message_bytes
        self._compressed = self._agreement.compression == "zstd"

    async def _receive(self) -> tuple[RemoteMessage, int] | None:
        raw = await self._frames.receive(patient=True)
        if raw is None:
            return None
        body = decompress(raw, self._agreement.max_message_bytes) if self._compressed else raw
        return parse_message(unpack_parts(body, PARTS_MAX)), len(body)

    async def _send(self, message: RemoteMessage) -> None:
        body = pack_parts(message.parts_out())
        await self._frames.send(compress(body) if self._compressed else body)

    async def close_with_error(self, error: RopewalkError) -> None:
        """Tell the peer why it ends, if it still listens."""
        with contextlib.suppress(RopewalkError, TimeoutError):
            async with asyncio.timeout(PARTING_S):
                await self._send(problem_message(error))
                # What it has sent is read all the same: a system that drops unread bytes drops ours with them.
                while await self._pipe.receive():
                    pass
