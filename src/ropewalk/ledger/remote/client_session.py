"""One connection to a remote channel: the agreement, and the requests that wait for an answer."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ropewalk.errors import Invalid, RopewalkError
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.remote.messages import (
    PARTS_MAX,
    Op,
    RemoteMessage,
    compress,
    decompress,
    outcome_of,
    parse_message,
)
from ropewalk.ledger.remote.negotiate import Agreement
from ropewalk.net.frame_pipe import FramePipe
from ropewalk.net.frames import pack_parts, unpack_parts
from ropewalk.net.tcp import TcpPipe


class Request:
    """One question, kept until it is answered; asked again on a new connection, it begins anew."""

    def __init__(self, op: Op, facts: dict[str, Any], parts: tuple[bytes, ...] = ()) -> None:
        self.op, self.facts, self.parts = op, facts, parts
        self.number = 0
        self.answer: asyncio.Future[list[RemoteMessage]] = asyncio.get_running_loop().create_future()
        self.heard: list[RemoteMessage] = []
        self._taken = 0

    def begin(self, number: int) -> RemoteMessage:
        """The message that asks it."""
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
        """There will be no answer."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def _end(self, last: bool) -> bool:
        if last and not self.answer.done():
            self.answer.set_result(self.heard)
        return last


@dataclass(slots=True)
class ClientSession:
    """A connection with a session on it."""

    pipe: TcpPipe
    frames: FramePipe
    agreement: Agreement
    responder: PublicKey
    facts: dict[str, Any]  # said when it was opened
    reading: asyncio.Task[None] | None = None
    number: int = 0
    error: RopewalkError | None = None
    sent: deque[Request] = field(default_factory=deque)

    async def send(self, message: RemoteMessage) -> None:
        """Send a message as was agreed on."""
        body = pack_parts(message.parts_out())
        await self.frames.send(compress(body) if self.agreement.compression == "zstd" else body)

    async def receive(self) -> RemoteMessage | None:
        """The next message, None once the other side has ended."""
        raw = await self.frames.receive(patient=True)
        if raw is None:
            return None
        body = (
            decompress(raw, self.agreement.max_message_bytes) if self.agreement.compression == "zstd" else raw
        )
        return parse_message(unpack_parts(body, PARTS_MAX))
