"""The server's side of one session, whatever carries it: negotiate, then answer requests in order.

Requests are read while earlier ones are processed, up to an agreed number and a number of bytes; beyond that, nothing
is read and the carrier pushes back. So a client cannot make the server hold more. A carrier says how a message is
received and sent: frames over a pipe, a QUIC stream or a gRPC call.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol
from urllib.parse import unquote

from ropewalk.errors import (
    Denied,
    Invalid,
    NegotiateAgain,
    Replayed,
    RopewalkError,
    Unauthenticated,
    Unavailable,
)
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.envelope.envelope import parse_stored, parse_wire
from ropewalk.ledger.envelope.fields import NANOS, format_timestamp
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.remote.messages import RemoteMessage, outcome_part, problem_message, split_parts
from ropewalk.ledger.remote.negotiate import (
    Agreement,
    Attest,
    Capabilities,
    NegotiationAnswer,
    answer,
    certificate_statement,
    choose,
)
from ropewalk.ledger.remote.quarantine import Standing
from ropewalk.ledger.remote.writer_lease import WriterLease
from ropewalk.net.admission import ConnectionSlot
from ropewalk.net.threads import in_thread
from ropewalk.net.tls import Certificate

HELD_BYTES_MAX = 4 << 20  # requests of one session that are worked on; one larger message is taken alone
READ_BYTES_MAX = 4 << 20  # of blocks, in answer to one request
STANDING_NS = 10**9  # a session that is out of date is noticed so late
GOODBYE_S = 10.0  # what the last answers may take when the server stops

_PLACE = re.compile(r"(?:grpc:ipv[46]:|\w+://)?\[?(.*?)\]?:\d+")  # what comes from: the host, and its port
_journal = logging.getLogger("ropewalk.ledger.remote")


@dataclass(frozen=True, slots=True)
class Peer:
    """The client of a session: its address, and what it showed to prove who it is."""

    name: str
    certificate: Certificate | None = None
    token: str | None = None

    @property
    def address(self) -> str:
        """The host that it connects from.

        >>> Peer("grpc:ipv6:%5B::1%5D:4000").address, Peer("quic://192.0.2.7:4000").address
        ('::1', '192.0.2.7')
        """
        found = _PLACE.fullmatch(unquote(self.name))
        return self.name if found is None else found[1]

    def __str__(self) -> str:
        return self.name if self.certificate is None else f"{self.name} ({self.certificate})"


class SessionHost(Protocol):
    """What a session asks of its server."""

    def lease(self, channel: str) -> WriterLease:
        """Return the door to a channel that is served; NotFound for any other."""

    def capabilities(self, lease: WriterLease, transport: str) -> Capabilities:
        """Return what can be done over this transport, under the policy of the channel."""

    def rights(self, peer: Peer, channel: str) -> frozenset[str]:
        """Return the features that this client may use in the channel now; Unauthenticated for an unknown client."""

    def check_certificate(self, peer: Peer, channel: str) -> None:
        """Quarantine a client whose certificate was revoked, and raise Unauthenticated."""

    def must_negotiate(self, lease: WriterLease) -> bool:
        """Return whether a session of this channel cannot begin with defaults."""

    def release(self, peer: Peer) -> None:
        """End the quarantine of a client that begins with defaults: its certificate holds, and no more is asked."""

    def admit(self, peer: str, asked: Envelope, lease: WriterLease) -> Standing:
        """Judge the evidence and the policy of a peer; Quarantined if they have drifted."""

    def check_standing(self, standing: Standing, lease: WriterLease) -> None:
        """Raise NegotiateAgain if a session is out of date."""

    attest: Attest | None  # evidence of the environment that the server runs in

    def version(self, able: Capabilities) -> str:
        """Return the version in which the server answers."""

    def now_ns(self) -> int:
        """Return the time."""

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


class Conversation:
    """One session. A carrier implements `_receive` and `_send`."""

    def __init__(
        self, host: SessionHost, transport: str, peer: Peer, slot: ConnectionSlot | None = None
    ) -> None:
        self.peer, self.transport = peer, transport
        self._host, self._slot = host, slot
        self._lease: WriterLease
        self._agreement: Agreement
        self._standing: Standing | None = None
        self._checked_ns = 0  # when the standing was looked at
        self._look = False  # whether each envelope must be looked at
        self._stopping = asyncio.Event()
        self._freed = asyncio.Event()
        self._held = 0

    @property
    def name(self) -> str:
        """The address of the client."""
        return self.peer.name

    def stop(self) -> None:
        """Read nothing more; what was read is answered."""
        self._stopping.set()

    async def stopping(self) -> None:
        """Return once the session is to stop."""
        await self._stopping.wait()

    def adopt(self, other: Conversation) -> None:
        """Continue a session that another carrier of the same client has opened."""
        self._lease, self._agreement, self._look = other._lease, other._agreement, other._look
        self._standing = other._standing

    def adopt_defaults(self, channel: str) -> None:
        """Begin without a negotiation, where the channel has defaults."""
        lease = self._host.lease(channel)
        self._host.check_certificate(self.peer, lease.channel)
        if self._host.must_negotiate(lease):
            raise Denied(
                f"channel {lease.channel} has no defaults: sessions must be negotiated",
                advice="Call Negotiate first; the policy pins what is agreed on, or the server records it.",
            )
        able = self._capabilities(lease)
        self._host.release(self.peer)
        self._lease = lease
        self._agreement = choose(replace(able, transports=(self.transport,)), able)

    async def _receive(self) -> tuple[RemoteMessage, int] | None:
        """Return the next request and the bytes it holds; None once the client has ended."""
        raise NotImplementedError

    async def _send(self, message: RemoteMessage) -> None:
        """Send a message; returns when there is room for more."""
        raise NotImplementedError

    async def converse(self, stopping: asyncio.Task[Any]) -> RopewalkError | None:
        """Answer until the client has gone or the server stops; return what the client did wrong."""
        self._replies: asyncio.Queue[_Reply | None] = asyncio.Queue(self._agreement.max_in_flight)
        writing = asyncio.create_task(self._write())
        reading = asyncio.create_task(self._read())
        try:
            await asyncio.wait({writing, reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await cancelled(reading)
            fault = error_of_task(reading)
            last = asyncio.create_task(self._replies.put(None))  # there may be no room for it yet
            await asyncio.wait({writing}, timeout=GOODBYE_S if self._stopping.is_set() else None)
            await cancelled(last)
            ended = fault or error_of_task(writing)
            _journal.info(
                "%s: %s", self.name, "left" if ended is None else ended.detail.removeprefix(f"{self.name}: ")
            )
            return fault
        finally:
            await cancelled(writing, reading)
            while not self._replies.empty():
                reply = self._replies.get_nowait()
                if reply is not None:
                    await reply.messages.aclose()

    # --- opening ----------------------------------------------------------------------------------------------------

    async def open(self, message: RemoteMessage) -> RemoteMessage:
        """Judge an advertisement, and return the answer to it."""
        if message.op != "open" or len(message.parts) != 1:
            raise Invalid("message: a session begins with `open` and an advertisement")
        lease = self._host.lease(message.text("channel"))
        self._host.check_certificate(self.peer, lease.channel)
        asked = parse_wire(message.parts[0])
        if self._slot is not None:  # it is identified, so idle connections do not take its place
            if not self._slot.join():
                raise Unavailable(self._slot.refusal, advice="Try again later.")
            self._slot.settle()
        able = self._capabilities(lease)
        now_ns = self._host.now_ns()
        key, proofs = lease.keys(now_ns)
        moment = format_timestamp(now_ns // NANOS * NANOS)
        shown = self.peer.certificate
        who = asked.public_key.did() if shown is None else shown.subject
        standing = self._host.admit(who, asked, lease)
        said = await in_thread(
            partial(
                answer,
                key,
                asked,
                able,
                timestamp=moment,
                protocol_version=self._host.version(able),
                attest=self._host.attest,
            )
        )
        if said.agreement.transport != self.transport:
            raise Unavailable(
                f"{said.agreement.transport} would be agreed on, and this connection is {self.transport}",
                advice="Name the transport of the connection first, or connect over the other one.",
            )
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
        who = asked.public_key.did() if shown is None else f"{shown}, with the key {asked.public_key.did()}"
        _journal.info("%s: connected to %s as %s", self.name, lease.channel, who)
        self._lease, self._agreement, self._standing = lease, said.agreement, standing
        self._look = said.agreement.narrows(able)
        return RemoteMessage("opened", 0, facts, (said.advertisement.raw, said.agreed.raw))

    def _capabilities(self, lease: WriterLease) -> Capabilities:
        """Return what can be done here by this client."""
        able = self._host.capabilities(lease, self.transport)
        return replace(able, features=able.features & self._host.rights(self.peer, lease.channel))

    def _prepare(self, lease: WriterLease, agreement: Agreement, key: SigningKey) -> dict[str, Any]:  # noqa: ARG002
        """Prepare what the transport needs in addition to the pipe, and return its location."""
        return {}

    # --- reading ----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        number = 0
        while (found := await self._receive()) is not None:
            message, size = found
            number += 1
            if message.number != number:
                raise Invalid(f"message: number {message.number} where {number} belongs")
            while self._held and self._held + size > HELD_BYTES_MAX:
                self._freed.clear()
                await self._freed.wait()
            self._held += size
            await self._replies.put(_Reply(self.answer(message), size))

    def answer(self, message: RemoteMessage) -> AsyncGenerator[RemoteMessage, None]:
        """Return the answer to one request; an error is sent in its place."""
        return _told(message.number, self._begin(message))

    def _begin(self, message: RemoteMessage) -> AsyncGenerator[RemoteMessage, None]:
        """Begin to work on a request; its answer is waited for in its turn."""
        now_ns = self._host.now_ns()
        try:
            self._host.check_certificate(self.peer, self._lease.channel)
        except Unauthenticated as error:
            raise NegotiateAgain(error.detail, advice="Negotiate with a new certificate.") from error
        if self._standing is not None and now_ns - self._checked_ns > STANDING_NS:
            self._host.check_standing(self._standing, self._lease)
            self._checked_ns = now_ns
        features = self._agreement.features & self._host.rights(self.peer, self._lease.channel)
        if message.op == "append":
            if "append" not in features:
                return self._refuse(message, "appended to")
            # Now, so that what was read together is judged and sealed together.
            return self._outcomes(message, asyncio.ensure_future(self._append(message.parts)))
        if message.op in ("head", "settings", "blocks", "prove") and not message.parts:
            if "read" not in features:
                return self._refuse(message, "read")
            acts = {
                "head": self._head,
                "settings": self._settings,
                "blocks": self._blocks,
                "prove": self._prove,
            }
            return acts[message.op](message)
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

    def _part(self, outcome: LedgerReceipt | RopewalkError) -> bytes:
        return outcome_part(outcome)

    async def _outcomes(
        self, message: RemoteMessage, work: asyncio.Future[list[LedgerReceipt | RopewalkError]]
    ) -> AsyncGenerator[RemoteMessage, None]:
        outcomes = await work
        parts = [self._part(outcome) for outcome in outcomes]
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

    async def _prove(self, message: RemoteMessage) -> AsyncGenerator[RemoteMessage, None]:
        found = hash_from_hex(message.facts.get("envelope_id"))
        if found is None:
            raise Invalid("message: prove: envelope_id must be 64 hex digits")
        proof = await self._lease.prove(found)
        if not self._agreement.encrypted:
            _check_may_be_seen(proof.height, (b"", proof.envelope.raw))
        yield RemoteMessage("prove", message.number, {}, (proof.to_bytes(),))

    # --- writing ----------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        while (reply := await self._replies.get()) is not None:
            async for message in reply.messages:
                await self._send(message)
            self._held -= reply.held
            self._freed.set()


def head_json(height: int, block_hash: bytes, envelopes: int) -> dict[str, Any]:
    """Return where a channel ends, as `ledger head` prints it; `height` is that of the next block."""
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


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Wait until the tasks have ended, cancelled or not."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def error_of_task(task: asyncio.Task[Any]) -> RopewalkError | None:
    """Return the error a task ended with."""
    if not task.done() or task.cancelled():
        return None
    error = task.exception()
    if error is None or isinstance(error, RopewalkError):
        return error
    return RopewalkError(f"{type(error).__name__}: {error}")
