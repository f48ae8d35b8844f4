"""Channels over gRPC: the calls of `ledger.proto`, answered by the same sessions as frames are."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from google.protobuf.message import DecodeError

from ropewalk.errors import Invalid, RopewalkError, Unauthenticated, Unavailable
from ropewalk.kernel import jcs
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.remote.conversation import Conversation, Peer, cancelled
from ropewalk.ledger.remote.messages import RemoteMessage, outcome_of
from ropewalk.ledger.remote.negotiate import MESSAGE_BYTES
from ropewalk.ledger.remote.proto import ledger_pb2 as pb
from ropewalk.ledger.remote.transports.grpc_messages import SERVICE, abort, handlers, outcome_message
from ropewalk.net.admission import HANDSHAKE_S_MAX
from ropewalk.net.refusals import listening
from ropewalk.net.tls import Certificate, TlsFiles, certificate_from, server_tls

if TYPE_CHECKING:
    from ropewalk.ledger.remote.server import LedgerServer

Context = Any  # grpc.aio.ServicerContext; the package publishes no types

SESSION_S: Final = 600.0  # a session that is not used for so long must be negotiated again
CALLS_MAX: Final = 256  # in progress, of all clients together
STREAMS_MAX: Final = 64  # in progress, of one connection
READS_MAX: Final = 32  # that send blocks, of all clients together; one whose client reads nothing holds 3 MiB
READS_EACH_MAX: Final = 4  # of one certificate
# Connections, also those whose handshake is in progress: grpcio has no separate limit for them, and one costs 38 KiB.
CONNECTIONS_MAX: Final = 1_024
GRACE_S: Final = 1.0  # for calls to end when the server stops
OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES + (64 << 10)),
    ("grpc.max_send_message_length", MESSAGE_BYTES + (64 << 10)),
    ("grpc.max_concurrent_streams", STREAMS_MAX),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 30_000),
    ("grpc.max_connection_idle_ms", 600_000),
    ("grpc.max_allowed_incoming_connections", CONNECTIONS_MAX),
    ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S_MAX * 1_000)),
    ("grpc.so_reuseport", 0),
)
_journal = logging.getLogger("ropewalk.ledger.remote")


class GrpcListener:
    """A port that answers the ledger service, health checks and reflection."""

    def __init__(self, server: grpc.aio.Server, port: int, certificates: _Certificates) -> None:
        self._server, self.port, self._certificates = server, port, certificates
        self._stopping: asyncio.Task[None] | None = None

    def renew(self, files: TlsFiles, _tls: ssl.SSLContext) -> None:
        """Use the certificates that are in the files now, for new connections."""
        self._certificates.renew(files)

    def refuse(self) -> None:
        """Take no more calls; those under way may end."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._server.stop(GRACE_S))

    async def close(self) -> None:
        """End all calls."""
        self.refuse()
        assert self._stopping is not None
        await self._stopping


class _Certificates:
    """Gives gRPC, in its threads and before every handshake, the certificates to use from then on, or None."""

    def __init__(self, files: TlsFiles) -> None:
        self._lock = threading.Lock()
        self.renew(files)

    def renew(self, files: TlsFiles) -> None:
        """Read the files."""
        pair = files.key.read_bytes(), files.certificate.read_bytes()
        found = grpc.ssl_server_certificate_configuration([pair], files.roots.read_bytes())
        with self._lock:
            self._next: grpc.ServerCertificateConfiguration | None = found

    def take(self) -> grpc.ServerCertificateConfiguration | None:
        """Return what was read since the last call."""
        with self._lock:
            found, self._next = self._next, None
        return found


async def serve_grpc(
    host: LedgerServer, address: tuple[str, int], files: TlsFiles, *, sessions_max: int, idle_s: float
) -> GrpcListener:
    """Listen; clients must show a certificate."""
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection

    server_tls(files, "h2")  # says what is wrong with the files; gRPC would not
    certificates = _Certificates(files)
    credentials = grpc.dynamic_ssl_server_credentials(
        certificates.take(), certificates.take, require_client_authentication=True
    )
    server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
    server.add_generic_rpc_handlers((handlers(LedgerService(host, sessions_max, idle_s)),))
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    name, port = address
    with listening(name, port):
        try:
            bound = server.add_secure_port(
                f"[{name}]:{port}" if ":" in name else f"{name}:{port}", credentials
            )
        except RuntimeError as error:
            raise OSError(98, "Address already in use") from error
    await server.start()
    for each in ("", SERVICE):
        await checks.set(each, health_pb2.HealthCheckResponse.SERVING)
    return GrpcListener(server, bound, certificates)


class _Call(Conversation):
    """A session as calls; `_Append` is the one that has a stream of requests."""

    def _part(self, outcome: LedgerReceipt | RopewalkError) -> bytes:
        return bytes(outcome_message(outcome).SerializeToString())


class _Append(_Call):
    """The stream of one Append call."""

    def __init__(self, host: LedgerServer, peer: Peer, context: Context, first: pb.AppendRequest) -> None:
        super().__init__(host, "grpc", peer)
        self._context, self._first = context, first
        self._counts: list[int] = []  # envelopes of each request

    async def _receive(self) -> tuple[RemoteMessage, int] | None:
        try:
            request = await self._context.read() if self._counts else self._first
        except DecodeError as error:
            raise Invalid("message: it must be an AppendRequest") from error
        if request is grpc.aio.EOF:
            return None
        self._counts.append(len(request.envelopes))
        message = RemoteMessage("append", len(self._counts), {}, tuple(request.envelopes))
        return message, request.ByteSize()

    async def _send(self, message: RemoteMessage) -> None:
        if message.op == "problem":  # of the whole request
            outcomes = [outcome_message(_problem_of(message))] * self._counts[message.number - 1]
        else:
            outcomes = [pb.Outcome.FromString(part) for part in message.parts]
        await self._context.write(
            pb.AppendResponse(request=message.number, first=message.facts.get("first", 0), outcomes=outcomes)
        )


class LedgerService:
    """The methods of the service. A session that was negotiated belongs to the certificate that negotiated it."""

    def __init__(self, host: LedgerServer, sessions_max: int, idle_s: float) -> None:
        self._host, self._sessions_max, self._idle_s = host, sessions_max, idle_s
        self._reads = asyncio.Semaphore(READS_MAX)
        self._reads_of: WeakValueDictionary[Certificate, asyncio.Semaphore] = WeakValueDictionary()
        self._sessions: OrderedDict[bytes, tuple[_Call, float]] = OrderedDict()  # the longest unused first

    async def Negotiate(self, request: pb.NegotiateRequest, context: Context) -> pb.NegotiateResponse:
        async with _told(context):
            call = _Call(self._host, "grpc", _peer(context))
            try:
                opened = await call.open(
                    RemoteMessage("open", 0, {"channel": request.channel}, (request.advertisement,))
                )
            except RopewalkError as error:
                self._host.refused(str(call.peer), error.detail)
                raise
            self._drop_old()
            while len(self._sessions) >= self._sessions_max:
                self._sessions.popitem(last=False)  # its client negotiates again if it is still there
            name = os.urandom(16)
            self._sessions[name] = (call, time.monotonic())
            own, agreed = opened.parts
            return pb.NegotiateResponse(
                session=name, advertisement=own, agreed=agreed, facts=jcs.encode(opened.facts)
            )
        raise AssertionError("unreachable: the call was aborted")

    async def Append(self, _requests: Any, context: Context) -> None:
        async with _told(context):
            first = await context.read()
            if first is grpc.aio.EOF:
                return
            call = _Append(self._host, _peer(context), context, first)
            self._join(call, first.session)
            self._host.sessions.add(call)
            stopping = asyncio.create_task(call.stopping())
            try:
                fault = await call.converse(stopping)
            finally:
                await cancelled(stopping)
                self._host.leave(call)
            if fault is not None:
                raise fault

    async def Read(self, request: pb.ReadRequest, context: Context) -> None:
        async with _told(context):
            call = self._call(request.session, context)
            assert call.peer.certificate is not None
            own = self._reads_of.setdefault(call.peer.certificate, asyncio.Semaphore(READS_EACH_MAX))
            async with self._turn(own) as _, self._turn(self._reads) as give_way:
                await self._read(call, request, context, give_way)

    @contextlib.asynccontextmanager
    async def _turn(self, reads: asyncio.Semaphore) -> AsyncIterator[Callable[[], None]]:
        """Wait until another read ends; yields what gives the place to the next before the end."""
        try:
            async with asyncio.timeout(2 * self._idle_s):  # longer than a stalled call keeps its place
                await reads.acquire()
        except TimeoutError as error:
            raise Unavailable("too many reads are in progress", advice="Try again later.") from error
        with contextlib.ExitStack() as held:
            held.callback(reads.release)
            yield held.close

    async def _read(
        self, call: _Call, request: pb.ReadRequest, context: Context, give_way: Callable[[], None]
    ) -> None:
        height, sent = getattr(request, "from"), 0
        facts = {"to": request.to} if request.HasField("to") else {}
        while True:
            begun = height
            async for message in call.answer(RemoteMessage("blocks", 1, {"from": height, **facts})):
                if message.op == "problem":
                    raise _problem_of(message)
                height = message.facts["height"]
                if message.op == "block":
                    sent += sum(map(len, message.parts))
                    said = pb.ReadResponse(
                        height=height,
                        first=message.facts["first"],
                        lines_total=message.facts["lines"],
                        lines=message.parts,
                    )
                    await self._write(context, said, give_way)
            if height == begun or (request.max_bytes and sent >= request.max_bytes):
                return

    async def _write(self, context: Context, message: Any, give_way: Callable[[], None]) -> None:
        """Send a message. If the client reads nothing, other clients go first, and the call ends once it reads again.

        grpcio cannot end a call whose message is still on its way. So a stalled call keeps its place among those of
        its certificate, and only those.
        """
        sending = asyncio.ensure_future(context.write(message))
        try:
            done, _ = await asyncio.wait({sending}, timeout=self._idle_s)
            if not done:
                told = f"grpc:{context.peer()} has read nothing for {self._idle_s:g} s"
                _journal.warning("%s", told)
                give_way()
                await sending
                raise Unavailable(told, advice="Ask again.")
            await sending
        finally:
            sending.cancel()

    async def Head(self, request: pb.HeadRequest, context: Context) -> pb.HeadResponse:
        async with _told(context):
            call = self._call(request.session, context)
            head, said = [await _only(call.answer(RemoteMessage(op, 1))) for op in ("head", "settings")]
            block_hash = head.facts["block_hash"]
            return pb.HeadResponse(
                height=head.facts["height"],
                block_hash=bytes.fromhex(block_hash) if block_hash is not None else b"",
                envelopes=head.facts["envelopes"],
                key=said.text("key"),
                signer=jcs.encode(said.facts["signer"]),
                policy=said.parts[0] if said.parts else b"",
            )
        raise AssertionError("unreachable: the call was aborted")

    async def Prove(self, request: pb.ProveRequest, context: Context) -> pb.ProveResponse:
        async with _told(context):
            call = self._call(request.session, context)
            facts = {"envelope_id": request.envelope_id.hex()}
            return pb.ProveResponse(
                proof=(await _only(call.answer(RemoteMessage("prove", 1, facts)))).parts[0]
            )
        raise AssertionError("unreachable: the call was aborted")

    def _call(self, session: pb.Session, context: Context) -> _Call:
        call = _Call(self._host, "grpc", _peer(context))
        self._join(call, session)
        return call

    def _join(self, call: _Call, session: pb.Session) -> None:
        """Continue the session that a request names, or begin with the defaults of its channel."""
        if not session.id:
            call.adopt_defaults(session.channel)
            return
        self._drop_old()
        found, _ = self._sessions.get(session.id, (None, 0.0))
        shown = call.peer.certificate
        if found is None or shown is None or found.peer.certificate != shown:
            raise Unavailable("this session is not open, or has expired", advice="Call Negotiate again.")
        self._sessions[session.id] = (found, time.monotonic())
        self._sessions.move_to_end(session.id)
        call.adopt(found)

    def _drop_old(self) -> None:
        end = time.monotonic() - SESSION_S
        while self._sessions and next(iter(self._sessions.values()))[1] < end:
            self._sessions.popitem(last=False)


async def _only(messages: AsyncIterator[RemoteMessage]) -> RemoteMessage:
    """Return the one message of an answer; raise a problem."""
    (message,) = [each async for each in messages]
    if message.op == "problem":
        raise _problem_of(message)
    return message


def _problem_of(message: RemoteMessage) -> RopewalkError:
    told = outcome_of(message.parts[0])
    return told if isinstance(told, RopewalkError) else Invalid("message: a problem without one")


@contextlib.asynccontextmanager
async def _told(context: Context) -> AsyncIterator[None]:
    """End the call with the error that is raised within."""
    try:
        yield
    except RopewalkError as error:
        await abort(context, error)


def _peer(context: Context) -> Peer:
    """Return the client of a call; gRPC has verified its certificate, and that there is one."""
    (pem, *_) = context.auth_context().get("x509_pem_cert", (None,))
    if pem is None:
        raise Unauthenticated("the client has shown no certificate")
    der = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    token = next(
        (value for name, value in context.invocation_metadata() or () if name == "authorization"), None
    )
    return Peer(f"grpc:{context.peer()}", certificate_from(der), token if isinstance(token, str) else None)
