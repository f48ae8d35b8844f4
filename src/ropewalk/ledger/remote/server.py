"""Channels that others can append to and read from: over TLS, gRPC and QUIC, or plain TCP where that is asked for."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from ropewalk.errors import NotFound, RopewalkError, Unauthenticated, Unavailable, Usage
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.channel.settings import channels as channels_of
from ropewalk.ledger.channel.settings import read_settings
from ropewalk.ledger.envelope.adapt import resign
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.remote.conversation import Conversation, Peer
from ropewalk.ledger.remote.messages import PROTOCOL
from ropewalk.ledger.remote.negotiate import FEATURES, Attest, Capabilities, NegotiationAnswer
from ropewalk.ledger.remote.quarantine import Quarantine, Standing
from ropewalk.ledger.remote.server_session import LedgerSession
from ropewalk.ledger.remote.writer_lease import LINGER_S, WriterLease
from ropewalk.ledger.versions.lifecycle import open_minors, read_lifecycle, version_to_write
from ropewalk.ledger.versions.versions import LIFECYCLE, access, newest_version
from ropewalk.net.admission import ConnectionLimits
from ropewalk.net.frame_pipe import IDLE_S
from ropewalk.net.log_rate_limit import LogRateLimit
from ropewalk.net.refusals import need_packages
from ropewalk.net.revocation import RevocationList
from ropewalk.net.tcp import TcpPipe, serve_tcp
from ropewalk.net.tls import TlsFiles, server_tls

SESSIONS_MAX = 64  # at once; more are turned away
RENEWAL_S = 2.0  # between two looks at the files of the certificate

_journal = logging.getLogger("ropewalk.ledger.remote")


class Listening(Protocol):
    """A port that takes sessions of one transport."""

    port: int

    def renew(self, files: TlsFiles, tls: ssl.SSLContext) -> None:
        """Use the certificates that are in the files now, for new connections; `tls` is made of them."""

    def refuse(self) -> None:
        """Take no more connections."""

    async def close(self) -> None:
        """End all connections."""


class LedgerServer:
    """Serves the channels of a repository. Use it in an `async with`.

    `keys` gives the keys of a channel, the newest first; it is called from threads. Without `channels`, all that exist
    are served; none is ever made. With `record`, what every session negotiated is sealed in that channel before the
    session begins; clients may read it and append nothing. `grpc` and `quic` are addresses to listen on in addition,
    with the certificates of `files`; without a `port` only these listen. `attest` seals the answers to negotiations,
    and `quarantine` judges the evidence of clients. `rights` narrows what a client may do, and
    `leases` gives the doors to channels where another part of the process writes to them, too.
    """

    def __init__(
        self,
        home: Path,
        keys: Callable[[str], Sequence[SigningKey]],
        *,
        host: str = "127.0.0.1",
        port: int | None = 0,
        tls: ssl.SSLContext | None = None,
        files: TlsFiles | None = None,
        grpc: tuple[str, int] | None = None,
        quic: tuple[str, int] | None = None,
        plain: bool = False,
        channels: Sequence[str] | None = None,
        features: frozenset[str] = FEATURES,
        record: str | None = None,
        idle_s: float = IDLE_S,
        sessions_max: int = SESSIONS_MAX,
        limits: ConnectionLimits | None = None,
        linger_s: float = LINGER_S,
        now_ns: Callable[[], int] = time.time_ns,
        attest: Attest | None = None,
        quarantine: Quarantine | None = None,
        rights: Callable[[Peer, str], frozenset[str]] | None = None,
        leases: Callable[[str], WriterLease] | None = None,
    ) -> None:
        if (grpc is not None or quic is not None) and files is None:
            raise Usage(
                "gRPC and QUIC need certificates: S4 asks for mutual TLS",
                advice="Give --tls DIR, or --tls-cert, --tls-key and --client-ca; `ropewalk pki` makes them.",
            )
        if files is not None and tls is None and port is not None:
            tls = server_tls(files, PROTOCOL)
        if port is not None and tls is None and not plain and not is_loopback(host):
            raise Usage(
                f"{host} is not a loopback address, and the connection would not be encrypted",
                advice="Give --tls-cert, --tls-key and --client-ca, or ask for --plain.",
            )
        for channel in (*(channels or ()), *([record] if record is not None else [])):
            read_settings(home, channel)  # NotFound, now rather than later
        self.host, self.port = host, port or 0
        self.sessions: set[Conversation] = set()
        self._wanted = {"quic": quic, "grpc": grpc, self.transport_over(tls): port is not None}
        self._files = files
        self._revoked = (
            RevocationList(files.crl, files.roots) if files is not None and files.crl is not None else None
        )
        self._rights = rights or (lambda _peer, _channel: FEATURES)
        self._shared = leases
        self.attest = attest
        self.quarantine = quarantine or Quarantine()
        self._home, self._keys, self._tls = home, keys, tls
        self._channels, self._features, self._record = channels, features, record
        self._idle_s, self._linger_s = idle_s, linger_s
        self._connections = limits or ConnectionLimits(sessions_max)
        self._now_ns = now_ns
        self._leases: dict[str, WriterLease] = {}
        self._listening: dict[str, Listening] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()
        self._refused = LogRateLimit(_journal.warning)

    @staticmethod
    def transport_over(tls: ssl.SSLContext | None) -> str:
        """Return the name of the transport of frames over TCP."""
        return "tcp" if tls is None else "tls"

    @property
    def transports(self) -> tuple[str, ...]:
        """What sessions travel over, the preferred one first."""
        return tuple(name for name, wanted in self._wanted.items() if wanted)

    @property
    def transport(self) -> str:
        """The transport of `url`: TCP or TLS where they are served."""
        return self.transports[-1]

    @property
    def urls(self) -> dict[str, str]:
        """Where to connect to, by transport."""
        return {name: self._url(name) for name in self.transports}

    @property
    def url(self) -> str:
        """Where to connect to."""
        return self._url(self.transport)

    def _url(self, transport: str) -> str:
        wanted = self._wanted[transport]
        host = wanted[0] if isinstance(wanted, tuple) else self.host
        port = self._listening[transport].port if transport in self._listening else self.port
        return f"{transport}://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def address(self) -> dict[str, Any]:
        """The parts of it."""
        return {"host": self.host, "port": self.port}

    @property
    def channels(self) -> list[str]:
        """The channels that are served now."""
        return list(self._channels) if self._channels is not None else channels_of(self._home)

    async def __aenter__(self) -> LedgerServer:
        mark = self._files.mark() if self._files is not None else None
        try:
            for transport in self.transports:
                self._listening[transport] = await self._listeners[transport]()
        except BaseException:
            await asyncio.gather(*(each.close() for each in self._listening.values()))
            raise
        self.port = self._listening[self.transport].port
        if self._files is not None:
            self._renewing = asyncio.create_task(self._renew(self._files, mark))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        for each in self._listening.values():
            each.refuse()
        for session in list(self.sessions):
            session.stop()
        while self.sessions:
            self._gone.clear()
            await self._gone.wait()
        for each in self._listening.values():
            await each.close()
        for lease in self._leases.values():
            await lease.close()
        self._refused.close()

    async def _renew(self, files: TlsFiles, mark: object) -> None:
        """Use certificates that were replaced for new connections, if they fit their key."""
        while True:
            await asyncio.sleep(RENEWAL_S)
            if (now := files.mark()) == mark:
                continue
            mark = now
            try:
                tls = server_tls(files, PROTOCOL)  # says what is wrong before anything is changed
                for each in self._listening.values():
                    each.renew(files, tls)
            except (RopewalkError, OSError, ValueError) as error:
                _journal.warning("the certificate was not renewed, and the old one stays in use: %s", error)
            else:
                _journal.info("renewed the certificate from %s", files.certificate)

    # What a session asks.

    def lease(self, channel: str) -> WriterLease:
        """Return the door to a channel that is served; raise NotFound for any other."""
        if channel not in self.channels:
            raise NotFound(
                f'no channel "{channel[:80]}" is served here',
                channel=channel[:80],
                advice="The server's operator creates channels: `ropewalk ledger create --channel NAME`.",
            )
        return self._lease(channel)

    def capabilities(self, lease: WriterLease, transport: str) -> Capabilities:
        """Return what can be done over a transport: what we can, narrowed by the policy of the channel (S4 §5).

        All transports that are served are named, so that a client that could not reach a better one can tell.
        """
        policy = lease.policy()
        now, table = self._now_ns(), read_lifecycle(self._home)
        open_now = open_minors(self._home, policy, now)
        pinned = {} if policy is None else policy.capability_matrix
        able = Capabilities(self.transports)
        if transport == "grpc":  # it has its own framing, and compresses by its own means
            able = replace(able, compression=("none",))
        ranges = sorted(tuple(map(int, minor.split("."))) for minor in open_now)
        known = {life.minor for life in LIFECYCLE}
        return Capabilities(
            transports=_narrowed(able.transports, pinned.get("transports")),
            supported_versions=tuple(f"{major}.{minor}.x" for major, minor in ranges),
            retiring_versions=tuple(
                f"{life.minor}.x" for life in table if life.stage == "deprecated" and life.minor in open_now
            ),
            grace_versions=tuple(
                f"{life.minor}.x"
                for life in table
                if life.minor in known and access(life.minor, now, table)[0] == "read"
            ),
            compression=_narrowed(able.compression, pinned.get("compression")),
            attestation_formats=_narrowed(able.attestation_formats, pinned.get("evidence")),
            # Only the server writes to the record channel.
            features=self._features - {"append"} if lease.channel == self._record else self._features,
        )

    def rights(self, peer: Peer, channel: str) -> frozenset[str]:
        """Return what a client may do in a channel now; asked for every request."""
        return self._rights(peer, channel)

    def check_certificate(self, peer: Peer, channel: str) -> None:
        """Quarantine a client whose certificate was revoked, and raise Unauthenticated; asked for every request."""
        if self._revoked is None:
            return
        try:
            self._revoked.check(peer.certificate)
        except Unauthenticated as error:
            if peer.certificate is not None:
                self.quarantine.put(peer.certificate.subject, error.detail, channel, self._now_ns())
            raise

    def release(self, peer: Peer) -> None:
        """End the quarantine of a client that begins with defaults."""
        if peer.certificate is not None:
            self.quarantine.peers.pop(peer.certificate.subject, None)

    def admit(self, peer: str, asked: Envelope, lease: WriterLease) -> Standing:
        """Judge the evidence and the policy of a peer; Quarantined if they have drifted."""
        return self.quarantine.admit(peer, asked, _policy_hash(lease), self._now_ns(), lease.channel)

    def check_standing(self, standing: Standing, lease: WriterLease) -> None:
        """Raise NegotiateAgain if a session is out of date."""
        self.quarantine.check(standing, _policy_hash(lease), self._now_ns())

    def must_negotiate(self, lease: WriterLease) -> bool:
        """Return whether there are no defaults: the policy pins some, or what was negotiated is recorded."""
        policy = lease.policy()
        return (
            self._record is not None
            or self.quarantine.trust is not None
            or (policy is not None and bool(policy.capability_matrix))
        )

    def now_ns(self) -> int:
        """Return the time."""
        return self._now_ns()

    def refused(self, who: str, why: str) -> None:
        """Log a refused client, with a rate limit."""
        self._refused(f"{who}: refused: {why}")

    def version(self, able: Capabilities) -> str:
        """Return the version in which to answer: one that the channel takes which records it."""
        if self._record is not None:
            policy = self._lease(self._record).policy()
            return version_to_write(self._home, policy, self._now_ns())
        return newest_version(able.supported_versions[:1])

    async def record(
        self, said: NegotiationAnswer, initiator: Envelope, shown: Envelope | None
    ) -> LedgerReceipt | None:
        """Seal the negotiation: first the request, last the agreement.

        An advertisement in a version past its sunset is recorded inside one of ours (S4 §8): its author may know a
        supported version, or read for a grace time.
        """
        if self._record is None:
            return None
        lease, now_ns = self._lease(self._record), self._now_ns()
        asking, version = initiator, initiator.protocol_version
        if version[: version.rindex(".")] not in open_minors(self._home, lease.policy(), now_ns):
            # With the time of the original: the same advertisement again is then found to stand there already.
            key, _ = lease.keys(now_ns)
            asking = resign(
                initiator.raw, key, initiator.timestamp, protocol_version=said.agreed.protocol_version
            ).envelope
        between = [] if shown is None else [shown.raw]
        outcomes = await lease.submit_many([asking.raw, said.advertisement.raw, *between, said.agreed.raw])
        for outcome in outcomes:
            if isinstance(outcome, RopewalkError):
                raise outcome
        asked, *_, agreed = outcomes
        assert isinstance(asked, LedgerReceipt) and isinstance(agreed, LedgerReceipt)
        return asked if asked.replayed else agreed

    def _lease(self, channel: str) -> WriterLease:
        if self._shared is not None:
            return self._shared(channel)
        found = self._leases.get(channel)
        if found is None:
            found = WriterLease(self._home, channel, self._keys, linger_s=self._linger_s, now_ns=self._now_ns)
            self._leases[channel] = found
        return found

    @property
    def _listeners(self) -> dict[str, Callable[[], Awaitable[Listening]]]:
        return {
            "quic": self._listen_quic,
            "grpc": self._listen_grpc,
            "tls": self._listen,
            "tcp": self._listen,
        }

    async def _listen_quic(self) -> Listening:
        need_packages("quic", "aioquic")
        from ropewalk.ledger.remote.transports.quic_server import QuicSessions

        wanted = self._wanted["quic"]
        assert self._files is not None and isinstance(wanted, tuple)
        sessions = QuicSessions(self, self._files, self._connections, self._idle_s)
        return await sessions.open(wanted, self._files)

    async def _listen_grpc(self) -> Listening:
        need_packages("grpc", "grpc", "grpc_health", "grpc_reflection", "grpc_status")
        from ropewalk.ledger.remote.transports.grpc_server import serve_grpc

        wanted = self._wanted["grpc"]
        assert self._files is not None and isinstance(wanted, tuple)
        most = self._connections.connections_max
        return await serve_grpc(self, wanted, self._files, sessions_max=most, idle_s=self._idle_s)

    async def _listen(self) -> Listening:
        return await serve_tcp(
            self._accept, self.host, self.port, limits=self._connections, tls=self._tls, refused=self.refused
        )

    def _session(self, pipe: TcpPipe) -> LedgerSession:
        return LedgerSession(
            self,
            pipe,
            transport=self.transport,
            idle_s=self._idle_s,
            certificate=pipe.certificate,
            slot=pipe.slot,
        )

    async def _accept(self, pipe: TcpPipe) -> None:
        session = self._session(pipe)
        if self._tls is not None and pipe.protocol != PROTOCOL:
            self.refused(pipe.name, f"it does not speak {PROTOCOL}")
            await session.close_with_error(Unavailable(f"only {PROTOCOL} is spoken here"))
            return
        self.sessions.add(session)
        try:
            await session.run()
        finally:
            self.leave(session)

    def leave(self, session: Conversation) -> None:
        """Forget a session that has ended."""
        self.sessions.discard(session)
        self._gone.set()


def _policy_hash(lease: WriterLease) -> str | None:
    policy = lease.settings().policy
    return None if policy is None else policy.hash.hex()


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _narrowed(able: tuple[str, ...], pinned: object) -> tuple[str, ...]:
    """Return what a policy leaves of what we can do; it may leave nothing."""
    if pinned is None:
        return able
    return tuple(each for each in able if isinstance(pinned, list) and each in pinned)
