"""One connection to a remote channel: the agreement, and the requests that wait for an answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from ropewalk.errors import Invalid, RopewalkError
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.remote.messages import (
    PARTS_MAX,
    Op,
    RemoteMessage,
    compress,
    decompress,
    outcome_of,
    parse_message,
)
from ropewalk.ledger.remote.negotiate import MESSAGE_BYTES, Agreement
from ropewalk.net.frame_pipe import FramePipe
from ropewalk.net.frames import FrameDecoder, frame, pack_parts, unpack_parts
from ropewalk.net.pipe import Pipe


class Request:
    """One question, kept until it is answered; asked again on a new connection, it begins anew."""

    def __init__(self, op: Op, facts: dict[str, Any], parts: tuple[bytes, ...] = ()) -> None:
        self.op, self.facts, self.parts = op, facts, parts
        self.number = 0
        self.decode: Callable[[bytes], LedgerReceipt | RopewalkError] = (
            outcome_of  # by the session that answers
        )
        self.answer: asyncio.Future[list[RemoteMessage]] = asyncio.get_running_loop().create_future()
        self.heard: list[RemoteMessage] = []
        self._taken = 0

    def begin(self, number: int) -> RemoteMessage:
        """Return the message that asks it."""
        self.number, self.heard, self._taken = number, [], 0
        return RemoteMessage(self.op, number, self.facts, self.parts)

    def hear(self, message: RemoteMessage) -> bool:
        """Take a message of the answer; whether it was the last."""
        if message.op == "problem" and len(message.parts) == 1:
            error = outcome_of(message.parts[0])
            if isinstance(error, RopewalkError):
                self.fail(error)
                return True
        self.heard.append(message)
        if self.op == "append" and message.op == "outcomes":
            if message.natural("first") != self._taken:
                raise Invalid("message: outcomes are missing")
            self._taken += len(message.parts)
            if self._taken > len(self.parts):
                raise Invalid("message: more outcomes than envelopes")
            return self._end(self._taken == len(self.parts))
        if self.op == "blocks" and message.op == "block":
            return False
        if message.op != self.op:
            raise Invalid(f"message: `{message.op}` answers no `{self.op}`")
        return self._end(True)

    def fail(self, error: RopewalkError) -> None:
        """Record that there will be no answer."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def _end(self, last: bool) -> bool:
        if last and not self.answer.done():
            self.answer.set_result(self.heard)
        return last


class Carrier(Protocol):
    """A connection of one transport, before and after a session is on it."""

    async def open(self, message: RemoteMessage) -> RemoteMessage | None:
        """Send the advertisement, and return the answer; None if the server has closed the connection."""

    def session(self, agreement: Agreement, responder: PublicKey, facts: dict[str, Any]) -> ClientSession:
        """Return the session on this connection."""

    async def close(self) -> None:
        """End it; closing twice is no error."""


@dataclass(slots=True)
class ClientSession:
    """A connection with a session on it."""

    carrier: Carrier
    agreement: Agreement
    responder: PublicKey
    facts: dict[str, Any]  # said when it was opened
    reading: asyncio.Task[None] | None = None
    number: int = 0
    until_ns: int | None = None  # when the evidence of the server is stale
    error: RopewalkError | None = None
    sent: dict[int, Request] = field(default_factory=dict)  # by number, in order
    ordered: ClassVar[bool] = True  # whether requests are answered in order

    def request_of(self, message: RemoteMessage) -> Request:
        """Return the request that a message answers."""
        found = self.sent.get(message.number)
        if found is None or (self.ordered and message.number != next(iter(self.sent))):
            raise Invalid(f"message: an answer to {message.number}, which was not asked")
        return found

    def outcome(self, part: bytes) -> LedgerReceipt | RopewalkError:
        """Return what became of an envelope."""
        return outcome_of(part)

    async def send(self, message: RemoteMessage) -> None:
        """Send a request as was agreed on."""
        raise NotImplementedError

    async def receive(self) -> RemoteMessage | None:
        """Return the next message, None once the other side has ended."""
        raise NotImplementedError

    async def close(self) -> None:
        """End it."""
        if self.reading is not None:
            self.reading.cancel()
            await asyncio.gather(self.reading, return_exceptions=True)
        with contextlib.suppress(RopewalkError):
            await self.carrier.close()


class PipeCarrier:
    """Frames over a pipe."""

    def __init__(self, pipe: Pipe, idle_s: float) -> None:
        self.pipe = pipe
        self._cutter = FrameDecoder(MESSAGE_BYTES)
        self.frames = FramePipe(pipe, self._cutter, frame, idle_s=idle_s)

    async def open(self, message: RemoteMessage) -> RemoteMessage | None:
        await self.frames.send(pack_parts(message.parts_out()))
        raw = await self.frames.receive()
        return None if raw is None else parse_message(unpack_parts(raw, 3))

    def session(self, agreement: Agreement, responder: PublicKey, facts: dict[str, Any]) -> ClientSession:
        self._cutter.limit = agreement.max_message_bytes
        return FrameSession(self, agreement, responder, facts)

    async def close(self) -> None:
        await self.pipe.close()


@dataclass(slots=True)
class FrameSession(ClientSession):
    """A session as frames over a pipe."""

    carrier: PipeCarrier

    async def send(self, message: RemoteMessage) -> None:
        body = pack_parts(message.parts_out())
        await self.carrier.frames.send(compress(body) if self.agreement.compression == "zstd" else body)

    async def receive(self) -> RemoteMessage | None:
        raw = await self.carrier.frames.receive(patient=True)
        if raw is None:
            return None
        body = (
            decompress(raw, self.agreement.max_message_bytes) if self.agreement.compression == "zstd" else raw
        )
        return parse_message(unpack_parts(body, PARTS_MAX))
