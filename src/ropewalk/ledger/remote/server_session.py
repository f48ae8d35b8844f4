"""One session of a remote channel on the server: requests in, answers out, in order.

Requests are read while earlier ones are processed, up to an agreed number and a number of bytes; beyond that, nothing
is read and the peer's pipe fills up. So a client cannot make the server hold more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ropewalk.errors import Denied, Invalid, Replayed, RopewalkError, Unavailable
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.envelope.envelope import parse_stored, parse_wire
from ropewalk.ledger.envelope.fields import NANOS, format_timestamp
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.remote.messages import (
    PARTS_MAX,
    RemoteMessage,
    compress,
    decompress,
    outcome_part,
    parse_message,
    problem_message,
    split_parts,
)
from ropewalk.ledger.remote.negotiate import (
    Agreement,
    Capabilities,
    NegotiationAnswer,
    answer,
    certificate_statement,
)
from ropewalk.ledger.remote.writer_lease import WriterLease
from ropewalk.net.admission import ConnectionSlot
from ropewalk.net.frame_pipe import FramePipe
from ropewalk.net.frames import FrameDecoder, frame, pack_parts, unpack_parts
from ropewalk.net.pipe import Pipe
from ropewalk.net.tls import Certificate

OPEN_BYTES_MAX = 256 << 10  # an advertisement; an unidentified client may not send more
HELD_BYTES_MAX = 4 << 20  # requests of one session that are worked on; one larger message is taken alone
READ_BYTES_MAX = 4 << 20  # of blocks, in answer to one request
GOODBYE_S = 10.0  # what the last answers may take when the server stops
PARTING_S = 1.0  # for the peer to read why it must go

_journal = logging.getLogger("ropewalk.ledger.remote")


class SessionHost(Protocol):
    """What a session asks of its server."""

    def lease(self, channel: str) -> WriterLease:
        """The door to a channel that is served; NotFound for any other."""

    def capabilities(self, lease: WriterLease) -> Capabilities:
        """What can be done on this connection, under the policy of the channel."""

    def version(self, able: Capabilities) -> str:
        """The version in which the server answers."""

    def now_ns(self) -> int:
        """The time."""

    def refused(self, who: str, why: str) -> None:
        """Log that a client was refused."""

    async def record(
        self, said: NegotiationAnswer, initiator: Envelope, shown: Envelope | None
    ) -> LedgerReceipt | None:
        """Seal what was negotiated, and the certificate that was shown, where the server keeps it."""


@dataclass(frozen=True, slots=True)
class _Reply:
    """The answer to one request, made while earlier ones are sent, and how many bytes its request holds."""

    messages: AsyncGenerator[RemoteMessage, None]
    held: int


class LedgerSession:
    """One peer. `run` returns when it has left, or was sent an error."""

    def __init__(
        self,
        served: SessionHost,
        pipe: Pipe,
        *,
        idle_s: float,
        certificate: Certificate | None = None,
        slot: ConnectionSlot | None = None,
    ) -> None:
        self.name, self._certificate = pipe.name, certificate
        self._slot = slot
        self._host, self._pipe, self._idle_s = served, pipe, idle_s
        self._cutter = FrameDecoder(OPEN_BYTES_MAX)
        self._frames = FramePipe(pipe, self._cutter, frame, idle_s=idle_s)
        self._stopping = asyncio.Event()
        self._freed = asyncio.Event()
        self._held = 0
        self._compressed = False

    def stop(self) -> None:
        """Read nothing more; what was read is answered."""
        self._stopping.set()

    async def run(self) -> None:
        """Negotiate, then answer until the peer has gone."""
        opening = asyncio.create_task(self._negotiate())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                return
            refused = _error_of(opening)
            if refused is not None:
                who = self.name if self._certificate is None else f"{self.name} ({self._certificate})"
                self._host.refused(who, refused.detail)
                await self.close_with_error(refused)
                return
            self._lease, self._agreement, self._look = opening.result()
            await self._converse(stopping)
        finally:
            await _cancelled(opening, stopping)

    async def _converse(self, stopping: asyncio.Task[Any]) -> None:
        self._replies: asyncio.Queue[_Reply | None] = asyncio.Queue(self._agreement.max_in_flight)
        writing = asyncio.create_task(self._write())
        reading = asyncio.create_task(self._read())
        try:
            await asyncio.wait({writing, reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await _cancelled(reading)
            fault = _error_of(reading)
            last = asyncio.create_task(self._replies.put(None))  # there may be no room for it yet
            await asyncio.wait({writing}, timeout=GOODBYE_S if self._stopping.is_set() else None)
            await _cancelled(last)
            if fault is not None and not isinstance(fault, Unavailable):
                await self.close_with_error(fault)
            fault = fault or _error_of(writing)
            _journal.info("%s: %s", self.name, "left" if fault is None else fault.detail)
        finally:
            await _cancelled(writing, reading)
            while not self._replies.empty():
                reply = self._replies.get_nowait()
                if reply is not None:
                    await reply.messages.aclose()

    # --- opening ----------------------------------------------------------------------------------------------------

    async def _negotiate(self) -> tuple[WriterLease, Agreement, bool]:
        raw = await self._frames.receive()
        if raw is None:
            raise Unavailable("it left before it said anything")
        message = parse_message(unpack_parts(raw, 2))
        if message.op != "open" or len(message.parts) != 1:
            raise Invalid("message: a session begins with `open` and an advertisement")
        lease = self._host.lease(message.text("channel"))
        asked = parse_wire(message.parts[0])
        if self._slot is not None:  # it is identified, so idle connections do not take its place
            if not self._slot.join():
                raise Unavailable(self._slot.refusal, advice="Try again later.")
            self._slot.settle()
        able = self._host.capabilities(lease)
        now_ns = self._host.now_ns()
        key, proofs = lease.keys(now_ns)
        moment = format_timestamp(now_ns // NANOS * NANOS)
        said = answer(key, asked, able, timestamp=moment, protocol_version=self._host.version(able))
        shown = self._certificate
        recorded = await self._host.record(
            said,
            asked,
            certificate_statement(key, asked, shown.subject, shown.sha256, said.advertisement)
            if shown is not None
            else None,
        )
        if recorded is not None and recorded.replayed:
            raise Replayed("this advertisement opened another session before", advice="Make a new one.")
        facts: dict[str, Any] = {} if recorded is None else {"recorded": recorded.to_json()}
        if proofs:
            facts["keys"] = [proof.to_json() for proof in proofs]
        facts |= self._prepare(lease, said.agreement, key)
        await self._send(RemoteMessage("opened", 0, facts, (said.advertisement.raw, said.agreed.raw)))
        who = asked.public_key.did() if shown is None else f"{shown}, with the key {asked.public_key.did()}"
        _journal.info("%s: connected to %s as %s", self.name, lease.channel, who)
        self._cutter.limit = said.agreement.max_message_bytes
        self._compressed = said.agreement.compression == "zstd"
        return lease, said.agreement, said.agreement.narrows(able)

    def _prepare(self, lease: WriterLease, agreement: Agreement, key: SigningKey) -> dict[str, Any]:  # noqa: ARG002
        """Prepare what the transport needs in addition to the pipe, and return its location."""
        return {}

    # --- reading ----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        number = 0
        while (raw := await self._frames.receive(patient=True)) is not None:
            limit = self._agreement.max_message_bytes
            body = decompress(raw, limit) if self._compressed else raw
            message = parse_message(unpack_parts(body, PARTS_MAX))
            number += 1
            if message.number != number:
                raise Invalid(f"message: number {message.number} where {number} belongs")
            while self._held and self._held + len(body) > HELD_BYTES_MAX:
                self._freed.clear()
                await self._freed.wait()
            self._held += len(body)
            await self._replies.put(_Reply(_told(number, self._begin(message)), len(body)))

    def _begin(self, message: RemoteMessage) -> AsyncGenerator[RemoteMessage, None]:
        """Begin to work on a request; its answer is waited for in its turn."""
        features = self._agreement.features
        if message.op == "append":
            if "append" not in features:
                return self._refuse(message, "appended to")
            # Now, so that what was read together is judged and sealed together.
            return self._outcomes(message, asyncio.ensure_future(self._append(message.parts)))
        if message.op in ("head", "settings", "blocks") and not message.parts:
            if "read" not in features:
                return self._refuse(message, "read")
            return {"head": self._head, "settings": self._settings, "blocks": self._blocks}[message.op](
                message
            )
        raise Invalid(f"message: `{message.op}` is not a request")

    async def _refuse(self, message: RemoteMessage, act: str) -> AsyncGenerator[RemoteMessage, None]:
        yield problem_message(
            Denied(
                f"channel {self._lease.channel} cannot be {act} in this session",
                advice="The operator disabled it, sessions are recorded there, or the common versions "
                "may only be read.",
            ),
            message.number,
        )

    async def _append(self, raws: Sequence[bytes]) -> list[LedgerReceipt | RopewalkError]:
        if not self._look:
            return await self._lease.submit_many(raws)
        refused: dict[int, RopewalkError] = {}
        for number, raw in enumerate(raws):
            try:
                self._agreement.check(parse_wire(raw))
            except RopewalkError as error:
                refused[number] = error
        taken = [raw for number, raw in enumerate(raws) if number not in refused]
        rest = iter(await self._lease.submit_many(taken) if taken else [])
        return [refused[number] if number in refused else next(rest) for number in range(len(raws))]

    async def _outcomes(
        self, message: RemoteMessage, work: asyncio.Future[list[LedgerReceipt | RopewalkError]]
    ) -> AsyncGenerator[RemoteMessage, None]:
        outcomes = await work
        parts = [outcome_part(outcome) for outcome in outcomes]
        for first, run in split_parts(parts, self._agreement.max_message_bytes):
            yield RemoteMessage("outcomes", message.number, {"first": first}, run)
        if not parts:
            yield RemoteMessage("outcomes", message.number, {"first": 0})

    async def _head(self, message: RemoteMessage) -> AsyncGenerator[RemoteMessage, None]:
        head = await self._lease.head()
        yield RemoteMessage("head", message.number, head_json(head.height, head.block_hash, head.envelopes))

    async def _settings(self, message: RemoteMessage) -> AsyncGenerator[RemoteMessage, None]:
        settings = self._lease.settings()
        policy = settings.policy
        facts = {"key": settings.key, "signer": settings.signer.to_json()}
        parts = () if policy is None else (policy.to_bytes(),)
        yield RemoteMessage("settings", message.number, facts, parts)

    async def _blocks(self, message: RemoteMessage) -> AsyncGenerator[RemoteMessage, None]:
        height, sent = message.natural("from"), 0
        end = message.natural("to") if "to" in message.facts else None
        while sent < READ_BYTES_MAX and (end is None or height <= end):
            found = await self._lease.read(height, end)
            if not found:
                break
            for height, lines in found:
                if not self._agreement.encrypted:
                    _check_may_be_seen(height, lines)
                for first, run in split_parts(lines, self._agreement.max_message_bytes):
                    facts = {"height": height, "first": first, "lines": len(lines)}
                    yield RemoteMessage("block", message.number, facts, run)
                sent += sum(map(len, lines))
            height += 1
        yield RemoteMessage("blocks", message.number, {"height": height})

    # --- writing ----------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        while (reply := await self._replies.get()) is not None:
            async for message in reply.messages:
                await self._send(message)
            self._held -= reply.held
            self._freed.set()

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


def head_json(height: int, block_hash: bytes, envelopes: int) -> dict[str, Any]:
    """Where a channel ends, as `ledger head` prints it; `height` is that of the next block."""
    return {
        "height": None if height == 0 else height - 1,
        "block_hash": None if height == 0 else block_hash.hex(),
        "envelopes": envelopes,
    }


def _check_may_be_seen(height: int, lines: Sequence[bytes]) -> None:
    """S4 §7.6: what is restricted does not leave over a pipe that everybody can read."""
    for raw in lines[1:]:
        # Stored bytes are canonical: where these stand nowhere, neither does the tag.
        if b'"level":"restricted"' in raw and parse_stored(raw).level == "restricted":
            raise Denied(
                f"block {height} holds restricted envelopes, and this connection does not encrypt",
                advice="Read over tls://.",
            )


async def _told(
    number: int, messages: AsyncGenerator[RemoteMessage, None]
) -> AsyncGenerator[RemoteMessage, None]:
    """Yield the messages; an error is sent in their place."""
    try:
        async for message in messages:
            yield message
    except RopewalkError as error:
        yield problem_message(error, number)


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Wait until the tasks have ended, cancelled or not."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _error_of(task: asyncio.Task[Any]) -> RopewalkError | None:
    if not task.done() or task.cancelled():
        return None
    error = task.exception()
    if error is None or isinstance(error, RopewalkError):
        return error
    return RopewalkError(f"{type(error).__name__}: {error}")
