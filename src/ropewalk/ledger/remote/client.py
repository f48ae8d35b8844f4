"""Client of a remote channel for coroutines: submit envelopes, receive receipts and blocks.

Requests are kept until they are answered. If the connection is lost, the client reconnects and sends all unanswered
requests again, in order; an envelope that is already stored gets its first receipt, so nothing is lost or stored
twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, cast

from ropewalk.errors import Invalid, RopewalkError, TooLarge, Unavailable, Unverified
from ropewalk.kernel.keys import PublicKey, SigningKey
from ropewalk.ledger.envelope.envelope import parse_wire
from ropewalk.ledger.envelope.model import envelope_id
from ropewalk.ledger.ingest.log import check_wire
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.remote.client_session import ClientSession, Request
from ropewalk.ledger.remote.dialing import PAUSE_S, Dialer
from ropewalk.ledger.remote.messages import ROOM, Op, RemoteMessage, correlation_of, outcome_of
from ropewalk.ledger.remote.negotiate import MESSAGE_BYTES, Agreement, Attest, confidentiality_refusal
from ropewalk.ledger.rules.policy import Policy, parse_policy
from ropewalk.net.tls import TlsFiles

BATCH_ENVELOPES = 512  # in one message; few enough that answers come while the next are on their way
BATCH_BYTES = 1 << 20
CONNECT_S = 10.0
ANSWER_S = 60.0  # longer than a server waits for its turn to write
RETRY_S = 60.0  # how long a lost connection is retried before waiting callers get an error

Outcomes = list[LedgerReceipt | RopewalkError]
Found = tuple[int, list[bytes]]


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """Signer and policy of a channel, as reported by its server."""

    key: str
    signer: PublicKey
    policy: Policy | None


@dataclass(slots=True)
class _Batch:
    """Envelopes of one request, and their places among those that were submitted."""

    raws: list[bytes] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    size: int = 0


class LedgerClient(Dialer):
    """A channel at `tls://HOST:PORT`, `grpc://…`, `quic://…` or `tcp://…`. An `async with` connects, or raises.

    Several addresses, joined by commas, are tried in their order; `missed` and `downgraded` say what was passed over.

    `key` signs our capabilities; without one a temporary key is made. With `trust`, only a valid key of the channel
    may answer. `compression` lists our preferences. `retry_s` is how long a lost connection is retried, `first_s` the
    first one; `told` is called once with the reason for the delay. Certificates come as `files`, or for tls:// as a
    context.
    """

    def __init__(
        self,
        url: str,
        channel: str,
        *,
        tls: ssl.SSLContext | None = None,
        files: TlsFiles | None = None,
        key: SigningKey | None = None,
        trust: Trust | None = None,
        versions: tuple[str, ...] = ("1.0.x", "1.1.x"),
        compression: tuple[str, ...] = ("none", "zstd"),
        max_message_bytes: int = MESSAGE_BYTES,
        retry_s: float = RETRY_S,
        first_s: float = 0.0,
        told: Callable[[RopewalkError], None] = lambda _error: None,
        idle_s: float = ANSWER_S,
        connect_s: float = CONNECT_S,
        attest: Attest | None = None,
        attested: bool = False,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        super().__init__(
            url,
            channel,
            tls=tls,
            files=files,
            key=key,
            trust=trust,
            versions=versions,
            compression=compression,
            max_message_bytes=max_message_bytes,
            first_s=first_s,
            told=told,
            idle_s=idle_s,
            connect_s=connect_s,
            attest=attest,
            attested=attested,
            now_ns=now_ns,
        )
        self._retry_s = retry_s
        self._waiting: deque[Request] = deque()
        self._gathered: list[tuple[bytes, asyncio.Future[LedgerReceipt]]] = []
        self._gathering: asyncio.Task[None] | None = None
        self._session: ClientSession | None = None
        self._changed = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._heard_at = 0.0
        self._lost_at: float | None = None  # when a connection was lost, if nothing was answered since

    async def __aenter__(self) -> LedgerClient:
        self._session = await self._connect_first()
        self._pump = asyncio.create_task(self._keep_going())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        self._fail_all(Unavailable("the connection was closed here"))

    @property
    def agreement(self) -> Agreement:
        """What was agreed on, on the newest connection."""
        return self._newest().agreement

    @property
    def responder(self) -> PublicKey:
        """The key that answers for the channel."""
        return self._newest().responder

    @property
    def recorded(self) -> dict[str, Any] | None:
        """The receipt of what was negotiated, where the server keeps it."""
        recorded: dict[str, Any] | None = self._newest().facts.get("recorded")
        return recorded

    async def submit(self, raw: bytes) -> LedgerReceipt:
        """Send one envelope, and return its receipt once it is durable there. What refuses it there is raised here."""
        waiting: asyncio.Future[LedgerReceipt] = asyncio.get_running_loop().create_future()
        raw = check_wire(raw)
        # What other callers submit in this turn of the loop goes with it, in one message.
        if not self._gathered:
            self._gathering = asyncio.get_running_loop().create_task(self._submit_gathered())
        self._gathered.append((raw, waiting))
        return await waiting

    async def _submit_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        try:
            outcomes = await self.submit_many([raw for raw, _ in gathered])
        except BaseException as error:
            outcomes = [error if isinstance(error, RopewalkError) else Unavailable(f"{error!r}")] * len(
                gathered
            )
        for (_, waiting), outcome in zip(gathered, outcomes, strict=True):
            if waiting.done():  # the caller was cancelled
                continue
            if isinstance(outcome, RopewalkError):
                waiting.set_exception(outcome)
            else:
                waiting.set_result(outcome)

    async def submit_many(self, raws: Sequence[bytes]) -> Outcomes:
        """Send envelopes in order; one outcome each, in order, refusals in their places."""
        limit = min(self.agreement.max_message_bytes, MESSAGE_BYTES)
        outcomes: list[LedgerReceipt | RopewalkError | None] = []
        batches: list[_Batch] = []
        newest: dict[str | None, _Batch] = {}  # by lane
        # One request has one correlation id if QUIC may carry it, also after a reconnect.
        lane_of = correlation_of if "quic" in self._able.transports else lambda _raw: None
        for number, raw in enumerate(map(check_wire, raws)):
            refused = self._refusal(raw, limit)
            outcomes.append(refused)
            if refused is not None:
                continue
            lane = lane_of(raw)
            batch = newest.get(lane)
            if (
                batch is None
                or len(batch.raws) >= self._batch_envelopes
                or batch.size + len(raw) + 4 > min(limit - ROOM, BATCH_BYTES)
            ):
                batch = newest[lane] = _Batch()
                batches.append(batch)
            batch.raws.append(raw)
            batch.places.append(number)
            batch.size += len(raw) + 4
        requests = [(Request("append", {}, tuple(batch.raws)), batch.places) for batch in batches]
        self._ask(*(request for request, _ in requests))
        answers = await asyncio.gather(*(request.answer for request, _ in requests), return_exceptions=True)
        for (request, where), heard in zip(requests, answers, strict=True):
            if isinstance(heard, RopewalkError):
                for number in where:
                    outcomes[number] = heard
            elif isinstance(heard, BaseException):
                raise heard
            else:
                parts = [part for message in heard for part in message.parts]
                for number, raw, part in zip(where, request.parts, parts, strict=True):
                    outcomes[number] = self._outcome(raw, request.decode(part))
        return cast(Outcomes, outcomes)

    @property
    def _batch_envelopes(self) -> int:
        return BATCH_ENVELOPES

    def _refusal(self, raw: bytes, limit: int) -> RopewalkError | None:
        """Return what keeps an envelope from being sent at all."""
        if len(raw) + ROOM + 4 > limit:
            return TooLarge(
                f"an envelope of {len(raw)} bytes; at most {limit - ROOM - 4}", size=len(raw), limit=limit
            )
        if self.agreement.encrypted:
            return None
        # The other side would refuse it too, when everybody on the way has read it.
        with contextlib.suppress(RopewalkError):
            envelope = parse_wire(raw)
            if envelope.level == "restricted":
                return confidentiality_refusal(self.agreement.transport)
        return None

    def _outcome(self, raw: bytes, outcome: LedgerReceipt | RopewalkError) -> LedgerReceipt | RopewalkError:
        """Return what became of an envelope, if that is what the answer is about."""
        # Almost all envelopes are sent in their canonical form, whose id is at hand.
        if isinstance(outcome, LedgerReceipt) and outcome.envelope_id != envelope_id(raw):
            own = self._id_of(raw)
            if outcome.envelope_id != own:
                return Unverified(f"a receipt for {outcome.envelope_id.hex()}, where {own.hex()} was sent")
        return outcome

    def _id_of(self, raw: bytes) -> bytes:
        return parse_wire(raw).id

    async def head(self) -> dict[str, Any]:
        """Return where the channel ends: height, block hash, number of envelopes."""
        (message,) = await self._asked("head", {})
        return message.facts

    async def prove(self, envelope_id: bytes) -> bytes:
        """Return the proof of an envelope, as `ledger prove` writes it. Nothing about it is verified."""
        (message,) = await self._asked("prove", {"envelope_id": envelope_id.hex()})
        if len(message.parts) != 1:
            raise Invalid("message: prove: one proof belongs in the answer")
        return message.parts[0]

    async def settings(self) -> RemoteSettings:
        """Return signer and policy of the channel; trust them only if the key is known."""
        (message,) = await self._asked("settings", {})
        policy = parse_policy(message.parts[0]) if message.parts else None
        return RemoteSettings(message.text("key"), PublicKey.from_json(message.facts.get("signer")), policy)

    async def read_blocks(self, start: int, end: int | None = None) -> list[Found]:
        """Return some blocks from a height on, as their lines; none at the end. Nothing about them is verified."""
        facts = {"from": start} if end is None else {"from": start, "to": end}
        *blocks, _ = await self._asked("blocks", facts)
        found: list[Found] = []
        for message in blocks:
            if message.natural("first") == 0:
                found.append((message.natural("height"), []))
            height, lines = found[-1] if found else (-1, [])
            if message.natural("height") != height or message.natural("first") != len(lines):
                raise Invalid("message: lines of a block are missing")
            lines.extend(message.parts)
        if [height for height, _ in found] != list(range(start, start + len(found))):
            raise Invalid("message: other blocks than those that were asked for")
        return found

    async def blocks(self, start: int = 0, end: int | None = None) -> AsyncIterator[Found]:
        """Yield blocks from a height on, up to and with `end` or as many as there are."""
        while found := await self.read_blocks(start, end):
            for each in found:
                yield each
            start = found[-1][0] + 1
            if end is not None and start > end:
                return

    # --- the conversation -------------------------------------------------------------------------------------------

    async def _asked(self, op: Op, facts: dict[str, Any]) -> list[RemoteMessage]:
        request = Request(op, facts)
        self._ask(request)
        return await request.answer

    def _ask(self, *requests: Request) -> None:
        if self._pump is None or self._pump.done():
            raise Unavailable(f"the connection to {self.url} is closed", advice="Connect again.")
        self._waiting.extend(requests)
        self._changed.set()

    def _newest(self) -> ClientSession:
        if self._session is None:
            raise Unavailable(f"{self.url} is not connected", advice="Use it in an `async with`.")
        return self._session

    async def _keep_going(self) -> None:
        """Send what waits while there is room in the window; if the connection is lost, make another."""
        session = self._newest()
        session.reading = asyncio.create_task(self._read(session))
        self._heard_at = time.monotonic()
        while True:
            self._changed.clear()
            if session.error is None:
                try:
                    self._check_standing(session.until_ns)
                    while (
                        self._waiting
                        and len(session.sent) < session.agreement.max_in_flight
                        and session.error is None
                    ):
                        if not session.sent:
                            self._heard_at = time.monotonic()  # it owes us nothing from before
                        request = self._waiting.popleft()
                        session.number += 1
                        session.sent[session.number] = request
                        request.decode = session.outcome
                        await session.send(request.begin(session.number))
                except RopewalkError as error:
                    session.error = session.error or error
            if session.error is not None and (session.sent or self._waiting):
                again = await self._again(session)
                if again is None:
                    continue
                session = self._session = again
                session.reading = asyncio.create_task(self._read(session))
                continue
            left = self._heard_at + self._idle_s - time.monotonic() if session.sent else None
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                if session.sent and time.monotonic() - self._heard_at >= self._idle_s:
                    session.error = Unavailable(f"{self.url} has not answered for {self._idle_s:g} s")

    async def _read(self, session: ClientSession) -> None:
        try:
            while (message := await session.receive()) is not None:
                self._heard_at = time.monotonic()
                if message.number == 0 and message.op == "problem" and len(message.parts) == 1:
                    told = outcome_of(message.parts[0])
                    session.error = told if isinstance(told, RopewalkError) else None
                    break
                if session.request_of(message).hear(message):
                    del session.sent[message.number]
                    self._lost_at = None
                    self._changed.set()
            session.error = session.error or Unavailable(f"{self.url} has closed the connection")
        except RopewalkError as error:
            session.error = session.error or error
        self._changed.set()

    async def _again(self, session: ClientSession) -> ClientSession | None:
        """Reconnect for all unanswered requests; on failure all callers get the error."""
        await session.close()
        fresh = not session.sent  # nothing was lost: the requests have not waited yet
        self._waiting.extendleft(reversed(session.sent.values()))
        session.sent.clear()
        assert session.error is not None
        error, pause = session.error, PAUSE_S[0]
        self._lost_at = self._lost_at or time.monotonic()
        end = self._lost_at + self._retry_s
        while fresh or (
            isinstance(error, Unavailable)
            and "retry" in session.agreement.features
            and time.monotonic() < end
        ):
            try:
                made = await self._connect()
                self._heard_at = time.monotonic()
                return made
            except RopewalkError as refused:
                error, fresh = refused, False
            await asyncio.sleep(min(pause, max(0.0, end - time.monotonic())))
            pause = min(2 * pause, PAUSE_S[1])
        self._lost_at = None
        self._fail_all(error)
        return None

    def _fail_all(self, error: RopewalkError) -> None:
        requests = [*(self._session.sent.values() if self._session is not None else ()), *self._waiting]
        self._waiting.clear()
        if self._session is not None:
            self._session.sent.clear()
        for request in requests:
            request.fail(error)
