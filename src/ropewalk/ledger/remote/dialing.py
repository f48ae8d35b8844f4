"""Reach a server and negotiate with it: addresses in their order, certificates, evidence, keys that may answer."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

from ropewalk.errors import (
    Invalid,
    NegotiateAgain,
    RopewalkError,
    SigInvalid,
    Unauthenticated,
    Unavailable,
    Unverified,
    Usage,
)
from ropewalk.kernel.keys import PublicKey, SigningKey
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.envelope.fields import format_timestamp
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.keys.history import KeyHistory, parse_key_proofs
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.remote.client_session import Carrier, ClientSession, PipeCarrier
from ropewalk.ledger.remote.messages import PROTOCOL, RemoteMessage, outcome_of
from ropewalk.ledger.remote.negotiate import Attest, Capabilities, advertise, capabilities_of, check_answer
from ropewalk.ledger.remote.quarantine import fresh_until, judge_report
from ropewalk.ledger.versions.versions import newest_version
from ropewalk.net.refusals import need_packages
from ropewalk.net.revocation import RevocationList
from ropewalk.net.tcp import connect_tcp
from ropewalk.net.threads import in_thread
from ropewalk.net.tls import Certificate, TlsFiles, client_tls

HEIGHT_MAX = 1 << 53  # of blocks to come
PAUSE_S = (0.05, 2.0)  # between two tries; it doubles from the first to the second
# Ends of TLS without a word: a server that does not accept our certificate, or one that stops.
SILENCES_MAX = 3
SCHEMES = ("quic", "grpc", "tls", "tcp")  # the preferred one first


class Address(NamedTuple):
    """Where a server listens, and over which transport."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def parse_address(url: str) -> Address:
    """Parse scheme, host and port of an address such as `tls://HOST:PORT`.

    >>> parse_address("tls://[::1]:7443")
    Address(scheme='tls', host='::1', port=7443)
    """
    try:
        found = urlsplit(url)
        scheme, host, port = found.scheme, found.hostname, found.port
    except (ValueError, AttributeError, TypeError):
        scheme, host, port = "", None, None
    if (
        scheme not in SCHEMES
        or not host
        or not port
        or found.path not in ("", "/")
        or found.query
        or found.username
    ):
        raise Usage(
            f"{str(url)[:200]!r} is not a ledger address",
            advice="Write quic://HOST:PORT, grpc://HOST:PORT, tls://HOST:PORT or tcp://HOST:PORT.",
        )
    return Address(scheme, host, port)


class Dialer:
    """Connects to one of some addresses of a server. The options are those of `LedgerClient`."""

    def __init__(
        self,
        url: str,
        channel: str,
        *,
        tls: ssl.SSLContext | None,
        files: TlsFiles | None,
        key: SigningKey | None,
        trust: Trust | None,
        versions: tuple[str, ...],
        compression: tuple[str, ...],
        max_message_bytes: int,
        first_s: float,
        told: Callable[[RopewalkError], None],
        idle_s: float,
        connect_s: float,
        attest: Attest | None,
        attested: bool,
        now_ns: Callable[[], int],
    ) -> None:
        self.url, self.channel = url, channel
        self._tls, self._files, self._trust = tls, files, trust
        self._revoked = (
            RevocationList(files.crl, files.roots) if files is not None and files.crl is not None else None
        )
        self._attest, self._attested, self._now_ns = attest, attested, now_ns
        self._places = self._locate()
        self._key = key or SigningKey.generate("ed25519", os.urandom(32))
        self._able = Capabilities(
            tuple(dict.fromkeys(place.scheme for place in self._places)),
            versions,
            compression=compression,
            max_message_bytes=max_message_bytes,
            policy_hash=trust.policy_hash.hex()
            if trust is not None and trust.policy_hash is not None
            else None,
        )
        self._first_s, self._told, self._idle_s, self._connect_s = first_s, told, idle_s, connect_s
        self._shown: Certificate | None = None  # by the server of the newest connection
        self._silences = 0  # how often the other side ended before it said anything
        self.connections = 0
        # Transports before the one in use, and why they were not reached; those that the server says it serves.
        self.missed: dict[str, RopewalkError] = {}
        self.downgraded: tuple[str, ...] = ()

    def _locate(self) -> list[Address]:
        """Return where the addresses lead, in the order in which they are tried."""
        places = [parse_address(each) for each in str(self.url).split(",")]
        for place in places:
            given = self._files is not None or (place.scheme == "tls" and self._tls is not None)
            if (place.scheme != "tcp") != given or (place.scheme == "tcp" and self._tls is not None):
                plain = "is not encrypted, and certificates were given"
                raise Usage(
                    f"{place} {plain if place.scheme == 'tcp' else 'needs certificates'}",
                    advice="All but tcp:// go with --tls DIR, or --tls-cert, --tls-key and --server-ca.",
                )
            if place.scheme == "tls" and self._tls is None and self._files is not None:
                self._tls = client_tls(self._files, PROTOCOL)
        return places

    async def _connect_first(self) -> ClientSession:
        """Return the first connection, for which a server that is about to start is waited for."""
        begin, pause, told = time.monotonic(), PAUSE_S[0], False
        while True:
            try:
                return await self._connect()
            except Unavailable as error:
                left = begin + self._first_s - time.monotonic()
                # Waiting makes no certificate right.
                if left <= 0 or isinstance(error.__cause__, ssl.SSLError) or self._silences == SILENCES_MAX:
                    raise
                if not told:
                    self._told(error)
                told = True
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, PAUSE_S[1])

    async def _connect(self) -> ClientSession:
        """Connect to the first place that can be reached (S4 §8). A refused certificate is no reason to go on."""
        missed: dict[str, RopewalkError] = {}
        for place in self._places:
            try:
                carrier = await self._reach(place)
                try:
                    session = await self._negotiate(carrier, place, missed)
                except BaseException:
                    await carrier.close()
                    raise
            except Unavailable as error:
                if place is self._places[-1] or isinstance(error.__cause__, ssl.SSLError):
                    raise
                missed[place.scheme] = error
            else:
                self.connections += 1
                return session
        raise AssertionError("unreachable: there is at least one place")

    async def _reach(self, place: Address) -> Carrier:
        scheme, host, port = place
        if scheme == "quic":
            need_packages("quic", "aioquic")
            from ropewalk.ledger.remote.transports.quic_client import reach_quic

            assert self._files is not None
            made = await reach_quic(host, port, self._files, self._connect_s, self._idle_s)
            self._shown = made.link.certificate
            return made
        if scheme == "grpc":
            need_packages("grpc", "grpc", "grpc_health", "grpc_reflection", "grpc_status")
            from ropewalk.ledger.remote.transports.grpc_client import connect_grpc

            assert self._files is not None
            return await connect_grpc(host, port, self._files, self._connect_s, check=self._check_certificate)
        if scheme == "tls" and self._files is not None:
            self._tls = client_tls(self._files, PROTOCOL)  # the certificate may have been renewed
        tls = self._tls if scheme == "tls" else None
        pipe = await connect_tcp(host, port, timeout_s=self._connect_s, tls=tls)
        try:
            self._check_certificate(pipe.certificate)
            if tls is not None and pipe.protocol != PROTOCOL:
                raise Unavailable(f"{self.url} does not speak {PROTOCOL}", advice="Check the port.")
        except BaseException:
            await pipe.close()
            raise
        return PipeCarrier(pipe, self._idle_s)

    def _check_certificate(self, shown: Certificate | None) -> None:
        """Raise for a server whose certificate was revoked."""
        self._shown = shown
        if self._revoked is not None:
            self._revoked.check(shown)

    def _check_standing(self, until_ns: int | None) -> None:
        """Raise NegotiateAgain once the evidence of the server is stale, or its certificate was revoked."""
        if until_ns is not None and self._now_ns() > until_ns:
            raise NegotiateAgain("the evidence of the server is stale")
        try:
            self._check_certificate(self._shown)
        except Unauthenticated as error:
            raise NegotiateAgain(error.detail) from error

    def _capabilities(self, place: Address, missed: Iterable[str]) -> Capabilities:
        """Return what we offer over this transport: it comes first, and those that were not reached are said."""
        names = self._able.transports
        return replace(
            self._able,
            transports=names[names.index(place.scheme) :],
            unreachable_transports=tuple(missed),
            compression=("none",) if place.scheme == "grpc" else self._able.compression,
        )

    async def _negotiate(
        self, carrier: Carrier, place: Address, missed: dict[str, RopewalkError]
    ) -> ClientSession:
        asked = await in_thread(
            partial(
                advertise,
                self._key,
                self._capabilities(place, missed),
                timestamp=format_timestamp(self._now_ns() // 1000 * 1000),
                correlation_id=os.urandom(16).hex(),
                protocol_version=newest_version(self._able.supported_versions),
                attest=self._attest,
            )
        )
        opening = RemoteMessage("open", 0, {"channel": self.channel}, (asked.raw,))
        self._silences += self._tls is not None
        message = await carrier.open(opening)
        if message is not None:
            self._silences = 0
        else:
            wants = "want tls://" if self._tls is None else "not accept your certificate"
            raise Unavailable(f"{self.url} closed the connection", advice=f"It may be full, or {wants}.")
        if message.op == "problem" and len(message.parts) == 1:
            told = outcome_of(message.parts[0])
            raise told if isinstance(told, RopewalkError) else Invalid("message: a problem without one")
        if message.op != "opened" or len(message.parts) != 2:
            raise Invalid(f"message: `{message.op}` answers no `open`")
        own, agreed = map(parse_stored, message.parts)
        agreement = check_answer(asked, own, agreed)
        proofs = message.facts.get("keys")
        self.key_proofs = parse_key_proofs(proofs) if proofs is not None else ()
        if any(each.record.header.channel != self.channel for each in self.key_proofs):
            # One key may seal several channels: what one of them says about keys does not hold for another.
            raise Invalid(f"message: key statements must be of channel {self.channel}")
        self._check_responder(agreed.public_key)
        if agreement.transport != place.scheme:
            raise Invalid(f"message: {agreement.transport} was agreed on, over {place.scheme}")
        self.missed = dict(missed)
        self.downgraded = tuple(each for each in missed if each in capabilities_of(own).transports)
        session = carrier.session(agreement, agreed.public_key, message.facts)
        session.until_ns = self._check_sealed(agreed)
        return session

    def _check_sealed(self, agreed: Envelope) -> int | None:
        """Return until when evidence that seals an answer is fresh; raise Unverified if it fails, or is missing."""
        if "attestation_evidence" not in agreed.value and not self._attested:
            return None
        status, detail = judge_report(agreed, self._trust, self._now_ns())
        if status == "failed" or (self._attested and status != "passed"):
            raise Unverified(
                f"the answer is not sealed by a trusted environment: {detail}",
                advice="Name roots and measurements in the trust file: `ropewalk ledger evidence set`.",
            )
        return fresh_until(agreed)

    def _check_responder(self, key: PublicKey) -> None:
        """Raise unless the responder's key is valid for the channel, by the trust file and the channel's key
        statements.
        """
        if self._trust is None:
            return
        key_history = KeyHistory(self._trust)
        key_history.follow(self.key_proofs)
        validity = key_history.validity(key)
        if validity is None or not validity.named or not validity.is_valid(HEIGHT_MAX, time.time_ns()):
            raise SigInvalid(
                f"the answer is signed by {key.did()}, which is not trusted",
                advice="Check the address, or use the trust file of its operator.",
            )
