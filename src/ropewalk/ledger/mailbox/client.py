"""A channel whose host is on this machine and has a mailbox: envelopes go through memory, the rest over its bell."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ropewalk.errors import Invalid, RopewalkError, TooLarge, Unavailable, Usage
from ropewalk.ledger.envelope.envelope import parse_wire, to_cbor
from ropewalk.ledger.ingest.log import check_wire
from ropewalk.ledger.mailbox.agreement import DAMAGED, TRANSPORT, MailboxLimits, SignedRoot
from ropewalk.ledger.mailbox.ring import RingWriter
from ropewalk.ledger.mailbox.server import BELL, RING_NAME
from ropewalk.ledger.mailbox.shared_memory import MappedRing, connect_bell, map_ring
from ropewalk.ledger.remote.client import BATCH_ENVELOPES, LedgerClient, Outcomes
from ropewalk.ledger.remote.client_session import Carrier, ClientSession, FrameSession, PipeCarrier
from ropewalk.ledger.remote.dialing import Address
from ropewalk.ledger.remote.messages import RemoteMessage

SCHEME = "mailbox:"


@dataclass(slots=True, kw_only=True)
class RingSession(FrameSession):
    """A connection with a ring for the envelopes."""

    mapped: MappedRing
    writer: RingWriter
    idle_s: float
    # By the number of the request: from which place on, and the digests.
    put: dict[int, tuple[int, list[bytes]]] = field(default_factory=dict)
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False

    async def send(self, message: RemoteMessage) -> None:
        if message.op == "append":
            first, digests = self.writer.tail, list[bytes]()
            for raw in message.parts:
                await self._wait_for_room()
                digests.append(self.writer.put(raw))
            self.put[message.number] = (first, digests)
            message = RemoteMessage("append", message.number, {"slots": len(digests)})
        await FrameSession.send(self, message)

    async def receive(self) -> RemoteMessage | None:
        message: RemoteMessage | None = None
        try:
            message = await FrameSession.receive(self)
            if message is not None and message.op == "outcomes" and message.natural("first") == 0:
                self._check(message)
            return message
        finally:
            self.over = message is None
            self.freed.set()

    async def close(self) -> None:
        await FrameSession.close(self)
        self.mapped.close()

    def _check(self, message: RemoteMessage) -> None:
        """Verify the host's signature over what it took from the ring."""
        if message.number not in self.put:
            raise Invalid(f"message: outcomes of {message.number}, which was not asked")
        first, digests = self.put.pop(message.number)
        damaged = message.facts.get("damaged", [])
        if not isinstance(damaged, list) or not all(place in range(len(digests)) for place in damaged):
            raise Invalid("message: damaged names places among the slots")
        for place in damaged:
            digests[place] = DAMAGED
        signed = SignedRoot.from_json(message.facts.get("mailbox"))
        signed.check(self.responder, self.mapped.ring.id, first, digests)

    async def _wait_for_room(self) -> None:
        """Wait while the ring is full: the host has not come so far."""
        while self.writer.room == 0:
            self.freed.clear()
            if self.over or self.error is not None:
                raise Unavailable("the mailbox has been closed")
            try:
                async with asyncio.timeout(self.idle_s):
                    await self.freed.wait()
            except TimeoutError as error:
                raise Unavailable(f"the mailbox has been full for {self.idle_s:g} s") from error


class MailboxClient(LedgerClient):
    """A channel at `mailbox:FOLDER`; see LedgerClient for the options. `limits` is what we would have at most."""

    def __init__(
        self, url: str, channel: str, *, limits: MailboxLimits | None = None, **options: Any
    ) -> None:
        super().__init__(url, channel, **options)
        self._able = replace(self._able, mailbox=limits or MailboxLimits(4096, 8 << 20))
        self._ids: dict[bytes, bytes] = {}  # of what is on its way

    def _locate(self) -> list[Address]:
        path = self.url.removeprefix(SCHEME)
        if self._tls is not None or not self.url.startswith(SCHEME) or not path:
            raise Usage(f"{self.url} is not a mailbox", advice="Write mailbox:FOLDER, without certificates.")
        self._folder = Path(path).absolute()
        return [Address(TRANSPORT, path, 0)]

    async def _reach(self, place: Address) -> Carrier:  # noqa: ARG002
        return PipeCarrier(await connect_bell(self._folder / BELL, timeout_s=self._connect_s), self._idle_s)

    async def _negotiate(
        self, carrier: Carrier, place: Address, missed: dict[str, RopewalkError]
    ) -> ClientSession:
        session = await super()._negotiate(carrier, place, missed)
        name, limits = session.facts.get("ring"), session.agreement.mailbox
        if name is None or limits is None:
            return session  # nothing can be appended
        if not isinstance(name, str) or RING_NAME.fullmatch(name) is None:
            raise Invalid("message: ring is the name of one")
        mapped = map_ring(self._folder / name)
        ring = mapped.ring
        if (ring.slots, ring.slot_bytes) != (limits.slots, limits.slot_bytes) or ring.published():
            mapped.close()
            raise Invalid("message: another ring than was agreed on")
        known = {each.name: getattr(session, each.name) for each in fields(session)}
        return RingSession(**known, mapped=mapped, writer=RingWriter(ring), idle_s=self._idle_s)

    @property
    def _limits(self) -> MailboxLimits:
        limits = self.agreement.mailbox
        assert limits is not None  # the transport was agreed on
        return limits

    @property
    def _batch_envelopes(self) -> int:
        # Some of the ring, so that it is filled while it is emptied; and no more than a second lets through.
        rate = self._limits.burst_per_s or BATCH_ENVELOPES
        return max(1, min(BATCH_ENVELOPES, self._limits.slots // 4, rate))

    async def submit_many(self, raws: Sequence[bytes]) -> Outcomes:
        """Put envelopes in, in order, as CBOR; one outcome each, in order, refusals in their places."""
        refused: dict[int, RopewalkError] = {}
        ready: list[bytes] = []
        for number, raw in enumerate(map(check_wire, raws)):
            try:
                envelope = parse_wire(raw)
                self.agreement.check(envelope)  # what is restricted must not even lie there
                ready.append(to_cbor(envelope))
                self._ids[ready[-1]] = envelope.id
            except RopewalkError as error:
                refused[number] = error
        try:
            rest = iter(await super().submit_many(ready) if ready else [])
        finally:
            for raw in ready:
                self._ids.pop(raw, None)
        return [refused[number] if number in refused else next(rest) for number in range(len(raws))]

    def _refusal(self, raw: bytes, limit: int) -> RopewalkError | None:  # noqa: ARG002 - slots have their own limit
        size = self._limits.slot_bytes
        if len(raw) <= size:
            return None
        return TooLarge(
            f"an envelope of {len(raw)} bytes as CBOR; a slot holds {size}",
            size=len(raw),
            limit=size,
            advice="Detach its payload, or have the mailbox served with larger slots.",
        )

    def _id_of(self, raw: bytes) -> bytes:
        return self._ids.get(raw) or super()._id_of(raw)
