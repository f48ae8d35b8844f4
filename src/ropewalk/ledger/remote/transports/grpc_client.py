"""A remote channel over gRPC: one connection, one Append call for all envelopes, a call for every other request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import grpc

from ropewalk.errors import Invalid, RopewalkError, Unavailable
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.remote.client_session import ClientSession
from ropewalk.ledger.remote.conversation import READ_BYTES_MAX, cancelled
from ropewalk.ledger.remote.messages import RemoteMessage, problem_message
from ropewalk.ledger.remote.negotiate import Agreement
from ropewalk.ledger.remote.proto import ledger_pb2 as pb
from ropewalk.ledger.remote.transports.grpc_messages import calls, error_from, outcome_from, request_message
from ropewalk.ledger.remote.transports.grpc_server import OPTIONS
from ropewalk.net.tcp import connect_tcp
from ropewalk.net.tls import Certificate, TlsFiles, client_tls

CLOSE_S = 5.0  # for the server to end the Append call


class GrpcCarrier:
    """A channel of gRPC, and the session that was negotiated on it."""

    def __init__(self, url: str, channel: grpc.aio.Channel, timeout_s: float) -> None:
        self.url, self._channel, self._timeout_s = url, channel, timeout_s
        self.calls = calls(channel)
        self.name = b""

    async def open(self, message: RemoteMessage) -> RemoteMessage | None:
        request = pb.NegotiateRequest(channel=message.text("channel"), advertisement=message.parts[0])
        try:
            said = await self.calls["Negotiate"](request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as failed:
            raise error_from(self.url, failed) from failed
        facts = jcs.parse(said.facts)
        if not isinstance(facts, dict):
            raise Invalid("message: the facts of a session must be an object")
        self.name = said.session
        return RemoteMessage("opened", 0, dict(facts), (said.advertisement, said.agreed))

    def session(self, agreement: Agreement, responder: PublicKey, facts: dict[str, Any]) -> ClientSession:
        return GrpcSession(self, agreement, responder, facts)

    async def close(self) -> None:
        await self._channel.close()


async def connect_grpc(
    host: str, port: int, files: TlsFiles, timeout_s: float, *, check: Callable[[Certificate | None], None]
) -> GrpcCarrier:
    """Connect; raise Unavailable if nothing answers or its certificate does not match.

    gRPC says neither what is wrong with a certificate nor which one it accepted. So a handshake comes first, and
    `check` gets the certificate of the server.
    """
    try:
        pipe = await connect_tcp(host, port, timeout_s=timeout_s, tls=client_tls(files, "h2"))
    except Unavailable as error:
        detail = error.detail.replace("tls://", "grpc://", 1)
        raise Unavailable(detail, advice=error.advice_now) from error.__cause__
    try:
        check(pipe.certificate)
    finally:
        await pipe.close()
    credentials = grpc.ssl_channel_credentials(
        files.roots.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
    )
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return GrpcCarrier(
        f"grpc://{place}", grpc.aio.secure_channel(place, credentials, options=OPTIONS), timeout_s
    )


@dataclass(slots=True)
class GrpcSession(ClientSession):
    """A session as calls. Answers of different calls come in any order."""

    carrier: GrpcCarrier
    ordered: ClassVar[bool] = False
    _inbox: asyncio.Queue[RemoteMessage | RopewalkError] = field(default_factory=asyncio.Queue)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _append: Any = None
    _numbers: list[int] = field(default_factory=list)  # of the requests of the Append call

    def outcome(self, part: bytes) -> LedgerReceipt | RopewalkError:
        return outcome_from(part)

    @property
    def _session(self) -> pb.Session:
        return pb.Session(id=self.carrier.name)

    async def send(self, message: RemoteMessage) -> None:
        if message.op != "append":
            self._begin(self._ask(message))
            return
        if self._append is None:
            self._append = self.carrier.calls["Append"]()
            self._begin(self._read_outcomes())
        self._numbers.append(message.number)
        try:
            await self._append.write(pb.AppendRequest(session=self._session, envelopes=message.parts))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as failed:
            # What ended the call is in the inbox, and says more.
            raise Unavailable(f"{self.carrier.url} has ended the call") from failed

    async def receive(self) -> RemoteMessage | None:
        found = await self._inbox.get()
        if isinstance(found, RopewalkError):
            raise found
        return found

    async def close(self) -> None:
        """Let the server end the Append call: gRPC reports the end of a cancelled one to a loop that may be closed."""
        if self._append is not None:
            with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
                async with asyncio.timeout(CLOSE_S):
                    await self._append.done_writing()
                    await self._append.code()
        await cancelled(*self._tasks)
        await ClientSession.close(self)

    def _begin(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, work: Any) -> None:
        try:
            await work
        except grpc.aio.AioRpcError as failed:
            self._inbox.put_nowait(error_from(self.carrier.url, failed))
        except RopewalkError as error:
            self._inbox.put_nowait(error)

    async def _read_outcomes(self) -> None:
        async for said in self._append:
            if not 0 < said.request <= len(self._numbers):
                raise Invalid(f"message: outcomes of {said.request}, which was not asked")
            parts = tuple(each.SerializeToString() for each in said.outcomes)
            number = self._numbers[said.request - 1]
            self._inbox.put_nowait(RemoteMessage("outcomes", number, {"first": said.first}, parts))
        raise Unavailable(f"{self.carrier.url} has ended the call")

    async def _ask(self, message: RemoteMessage) -> None:
        method, request = request_message(message, self._session, READ_BYTES_MAX)
        try:
            if method == "Read":
                await self._read_blocks(message, self.carrier.calls[method](request))
                return
            said = await self.carrier.calls[method](request)
        except grpc.aio.AioRpcError as failed:
            error = error_from(self.carrier.url, failed)
            if isinstance(error, Unavailable):
                raise error from failed
            self._inbox.put_nowait(problem_message(error, message.number))
            return
        self._inbox.put_nowait(_answer(message, said))

    async def _read_blocks(self, message: RemoteMessage, call: Any) -> None:
        height = message.facts["from"]
        async for said in call:
            facts = {"height": said.height, "first": said.first, "lines": said.lines_total}
            self._inbox.put_nowait(RemoteMessage("block", message.number, facts, tuple(said.lines)))
            height = said.height + 1
        self._inbox.put_nowait(RemoteMessage("blocks", message.number, {"height": height}))


def _answer(message: RemoteMessage, said: Any) -> RemoteMessage:
    if message.op == "prove":
        return RemoteMessage("prove", message.number, {}, (said.proof,))
    if message.op == "settings":
        facts = {"key": said.key, "signer": jcs.parse(said.signer)}
        return RemoteMessage("settings", message.number, facts, (said.policy,) if said.policy else ())
    known = said.HasField("height")
    return RemoteMessage(
        "head",
        message.number,
        {
            "height": said.height if known else None,
            "block_hash": said.block_hash.hex() if known else None,
            "envelopes": said.envelopes,
        },
    )
