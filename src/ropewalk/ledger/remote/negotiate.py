"""Negotiation (S4 §5, §8, §9): both sides advertise capabilities and derive the same agreement from them.

    initiator   → an envelope `transport.capability`: what it can do
    responder   ← an envelope `transport.capability`: its capabilities on this connection, under the channel's policy
                  and an envelope `transport.agreed`: the ids of both, what was chosen, and the transcript

The choice follows from the two advertisements alone, so each side computes it. The transcript is a hash over both
ids and the choice, and the responder signs it: stripping an option on the way breaks a signature or changes an id,
and is detected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from ropewalk.errors import Denied, Invalid, RopewalkError, SigInvalid, Unavailable, Unverified
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import Tag, hash_from_hex, tagged
from ropewalk.kernel.keys import PublicKey, SigningKey
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.envelope.fields import FIELDS
from ropewalk.ledger.envelope.model import Envelope, payload_hash
from ropewalk.ledger.evidence.binding import report_data
from ropewalk.ledger.mailbox.agreement import TRANSPORT as MAILBOX
from ropewalk.ledger.mailbox.agreement import MailboxLimits
from ropewalk.ledger.rules.rules import rule_1_canonical_hash
from ropewalk.ledger.rules.verdict import Context
from ropewalk.ledger.versions.versions import highest_common, parse_range

CAPABILITY_TYPE: Final = "transport.capability"
AGREED_TYPE: Final = "transport.agreed"
CERTIFICATE_TYPE: Final = "transport.certificate"
DOMAIN: Final = "ropewalk.transport"
ENCRYPTED: Final = frozenset({"tls", "quic", "grpc"})  # S4 §7.6: what may carry restricted envelopes
MESSAGE_BYTES: Final = (4 << 20) + (64 << 10)  # the largest envelope, and what is said about it
MESSAGE_BYTES_MIN: Final = 64 << 10  # below this, not even every refusal would fit
IN_FLIGHT: Final = 32  # requests one side sends before the first is answered
FEATURES: Final = frozenset({"append", "read", "retry", "streaming"})
NAMES_MAX: Final = 64  # in each list of an advertisement
NAME_CHARS_MAX: Final = 64
# S4 §9 signs these. The rest of an advertisement is covered by its id, which the transcript holds.
SIGNED: Final = frozenset(
    ("protocol_version", "domain", "event_class", "event_type", "timestamp", "payload_hash")
)


Attest = Callable[[bytes], dict[str, jcs.Json]]  # evidence, from the report data that it must bind


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of one side; ordered lists have the preferred value first.

    `grace_versions` are past their sunset: a peer that knows no others may still read.

    >>> Capabilities(("tls",)).to_json()["supported_versions"]
    ['1.0.x', '1.1.x']
    """

    transports: tuple[str, ...]
    supported_versions: tuple[str, ...] = ("1.0.x", "1.1.x")
    retiring_versions: tuple[str, ...] = ()
    grace_versions: tuple[str, ...] = ()
    max_message_bytes: int = MESSAGE_BYTES
    compression: tuple[str, ...] = ("none", "zstd")
    attestation_formats: tuple[str, ...] = ("tee.report", "slsa.v1", "snark.v1")
    features: frozenset[str] = FEATURES
    max_in_flight: int = IN_FLIGHT
    mailbox: MailboxLimits | None = None
    policy_hash: str | None = None  # of the policy that the initiator goes by, where it knows one (S4 §14)
    unreachable_transports: tuple[str, ...] = ()  # tried before this one (S4 §8): a downgrade is on record

    def to_json(self) -> dict[str, Any]:
        """Return the payload of an advertisement, as S4 §9 shows it."""
        return {
            "transports": list(self.transports),
            "supported_versions": list(self.supported_versions),
            "retiring_versions": list(self.retiring_versions),
            "grace_versions": list(self.grace_versions),
            "max_message_bytes": self.max_message_bytes,
            "compression": list(self.compression),
            "attestation_formats": list(self.attestation_formats),
            "features": dict.fromkeys(sorted(self.features), True),
            "max_in_flight": self.max_in_flight,
            **({} if self.mailbox is None else {MAILBOX: self.mailbox.to_json()}),
            **({} if self.policy_hash is None else {"policy_hash": self.policy_hash}),
            **(
                {"unreachable_transports": list(self.unreachable_transports)}
                if self.unreachable_transports
                else {}
            ),
        }


@dataclass(frozen=True, slots=True)
class Agreement:
    """What both sides do: the tuple of S4 §5, and the limits and features that come with it."""

    transport: str
    protocol_version: str
    compression: str
    attestation_format: str | None
    versions: tuple[str, ...]
    attestation_formats: tuple[str, ...]
    max_message_bytes: int
    max_in_flight: int
    features: frozenset[str]
    mailbox: MailboxLimits | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what the transcript covers."""
        return {
            "transport": self.transport,
            "protocol_version": self.protocol_version,
            "compression": self.compression,
            "attestation_format": self.attestation_format,
            "versions": list(self.versions),
            "attestation_formats": list(self.attestation_formats),
            "max_message_bytes": self.max_message_bytes,
            "max_in_flight": self.max_in_flight,
            "features": dict.fromkeys(sorted(self.features), True),
            **({} if self.mailbox is None else {MAILBOX: self.mailbox.to_json()}),
        }

    @property
    def encrypted(self) -> bool:
        """Whether the transport is encrypted."""
        return self.transport in ENCRYPTED

    def narrows(self, responder: Capabilities) -> bool:
        """Return whether it refuses envelopes that the responder alone would take, so that each must be looked at."""
        return (
            not self.encrypted
            or set(self.versions) != set(responder.supported_versions)
            or set(self.attestation_formats) != set(responder.attestation_formats)
        )

    def check(self, envelope: Envelope) -> None:
        """Raise what keeps an envelope out of this session."""
        if envelope.level == "restricted" and not self.encrypted:
            raise confidentiality_refusal(self.transport)
        version = envelope.protocol_version
        if f"{version[: version.rindex('.')]}.x" not in self.versions:
            raise Unverified(
                f"rule 4, version_gate: version {version[:40]} was not agreed on; {', '.join(self.versions)} were",
                advice="Write it in a version that both sides know, or adapt it (`ledger adapt`).",
            )
        evidence = envelope.fields.get("attestation_evidence")
        if evidence is not None and evidence["format"] not in self.attestation_formats:
            raise Denied(
                f"evidence in the form {evidence['format']} was not agreed on",
                advice="Attach evidence in a form that both sides know.",
            )


@dataclass(frozen=True, slots=True)
class NegotiationAnswer:
    """A responder's answer: its capabilities, the agreement, and both as the envelopes it sends."""

    advertisement: Envelope
    agreed: Envelope
    agreement: Agreement


def advertise(
    key: SigningKey,
    capabilities: Capabilities,
    *,
    timestamp: str,
    correlation_id: str,
    parent: Envelope | None = None,
    protocol_version: str = "1.0.0",
    attest: Attest | None = None,
) -> Envelope:
    """Return what one side can do, as an envelope; `attest` adds evidence of the environment that says it.

    A fresh correlation id keeps old answers from passing for new ones.

    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> made = advertise(key, Capabilities(("tls",)), timestamp="2024-11-01T12:00:00Z", correlation_id="c")
    >>> capabilities_of(made) == Capabilities(("tls",))
    True
    """
    payload = cast(jcs.Json, capabilities.to_json())
    return build(
        key,
        domain=DOMAIN,
        event_class="CapabilityAdvertisement",
        event_type=CAPABILITY_TYPE,
        payload=payload,
        evidence=_evidence(payload, correlation_id, attest),
        timestamp=timestamp,
        correlation_id=correlation_id,
        parent=parent,
        protocol_version=protocol_version,
    )


def capabilities_of(envelope: Envelope) -> Capabilities:
    """Parse an advertisement with a valid signature. Unknown members are ignored."""
    _check_said(envelope, CAPABILITY_TYPE)
    said = envelope.payload
    if not isinstance(said, dict):
        raise _wrong("the payload must be an object")
    ranges = {
        name: _names(said, name)
        for name in ("supported_versions", "retiring_versions", "grace_versions")
        if name == "supported_versions" or name in said
    }
    for text in (text for texts in ranges.values() for text in texts):
        parse_range(text)
    features = said.get("features", {})
    if not isinstance(features, dict) or not all(isinstance(each, bool) for each in features.values()):
        raise _wrong("features are names with true or false")
    size = _number(said, "max_message_bytes", None)
    if size < MESSAGE_BYTES_MIN:
        raise _wrong(f"max_message_bytes is at least {MESSAGE_BYTES_MIN}")
    return Capabilities(
        transports=_names(said, "transports"),
        supported_versions=ranges["supported_versions"],
        retiring_versions=ranges.get("retiring_versions", ()),
        grace_versions=ranges.get("grace_versions", ()),
        max_message_bytes=size,
        compression=_names(said, "compression"),
        attestation_formats=_names(said, "attestation_formats"),
        features=frozenset(name for name, has in features.items() if has),
        max_in_flight=_number(said, "max_in_flight", IN_FLIGHT),
        mailbox=MailboxLimits.from_json(said[MAILBOX]) if MAILBOX in said else None,
        policy_hash=_policy_hash(said),
        unreachable_transports=_names(said, "unreachable_transports")
        if "unreachable_transports" in said
        else (),
    )


def choose(initiator: Capabilities, responder: Capabilities) -> Agreement:
    """Return what follows from two advertisements: the initiator's preference, of what both can do; the newest version.

    >>> ours, theirs = Capabilities(("tls",)), Capabilities(("quic", "tls"), ("1.0.x",), compression=("zstd",))
    >>> chosen = choose(theirs, ours)
    >>> chosen.transport, chosen.protocol_version, chosen.compression
    ('tls', '1.0.x', 'zstd')
    """
    features = initiator.features & responder.features
    theirs = (*initiator.supported_versions, *initiator.grace_versions)
    versions = _common(theirs, responder.supported_versions)
    if not versions:
        versions = _common(theirs, responder.grace_versions)
        features -= {"append"}
    version = highest_common(versions, versions)
    if version is None:
        raise _nothing("version", theirs, responder.supported_versions)
    formats = _common(initiator.attestation_formats, responder.attestation_formats)
    transport = _first("transport", initiator.transports, responder.transports)
    slots, others = (side.mailbox or MailboxLimits() for side in (initiator, responder))
    return Agreement(
        transport,
        version,
        _first("compression", initiator.compression, responder.compression),
        formats[0] if formats else None,
        versions,
        formats,
        min(initiator.max_message_bytes, responder.max_message_bytes),
        min(initiator.max_in_flight, responder.max_in_flight) if "streaming" in features else 1,
        features,
        slots.within(others) if transport == MAILBOX else None,
    )


def transcript(initiator: Envelope, responder: Envelope, agreement: Agreement) -> bytes:
    """Return what the responder signs: the hash over both advertisements and what was chosen."""
    return tagged(Tag.CAPABILITY, initiator.id, responder.id, jcs.encode(agreement.to_json()))


def answer(
    key: SigningKey,
    initiator: Envelope,
    capabilities: Capabilities,
    *,
    timestamp: str,
    protocol_version: str = "1.0.0",
    attest: Attest | None = None,
) -> NegotiationAnswer:
    """Return the responder's side: judge the initiator's advertisement, choose, and sign; `attest` seals it (S4 §5)."""
    agreement = choose(capabilities_of(initiator), capabilities)
    correlation_id = initiator.correlation_id or initiator.hex_id
    own = advertise(
        key,
        capabilities,
        timestamp=timestamp,
        correlation_id=correlation_id,
        parent=initiator,
        protocol_version=protocol_version,
    )
    payload = cast(jcs.Json, _statement(initiator, own, agreement))
    agreed = build(
        key,
        domain=DOMAIN,
        event_class="CapabilityAdvertisement",
        event_type=AGREED_TYPE,
        payload=payload,
        evidence=_evidence(payload, correlation_id, attest),
        timestamp=timestamp,
        correlation_id=correlation_id,
        parent=own,
        protocol_version=protocol_version,
    )
    return NegotiationAnswer(own, agreed, agreement)


def certificate_statement(
    key: SigningKey, initiator: Envelope, subject: str, sha256: str, own: Envelope
) -> Envelope:
    """Return the responder's word on the initiator's certificate, for the record: nothing is agreed by it."""
    return build(
        key,
        domain=DOMAIN,
        event_class="CapabilityAdvertisement",
        event_type=CERTIFICATE_TYPE,
        payload={"initiator": initiator.hex_id, "certificate": {"subject": subject, "sha256": sha256}},
        timestamp=own.fields["timestamp"],
        correlation_id=own.correlation_id,
        parent=initiator,
        protocol_version=own.protocol_version,
    )


def check_answer(
    initiator: Envelope, own: Envelope, agreed: Envelope, responders: Iterable[PublicKey] | None = None
) -> Agreement:
    """Return what was agreed, if the answer is to what was asked, signed, and nothing was stripped.

    `responders` are the keys that may answer, where the caller knows them.
    """
    if responders is not None and agreed.public_key not in tuple(responders):
        raise SigInvalid(
            f"the answer is signed by {agreed.public_key.did()}, which is not trusted",
            advice="Check the address, or use the trust file of its operator.",
        )
    if own.public_key != agreed.public_key:
        raise _stripped("what the other side can do, and what it agreed to, are signed by two keys")
    agreement = choose(capabilities_of(initiator), capabilities_of(own))
    _check_said(agreed, AGREED_TYPE)
    if agreed.payload != _statement(initiator, own, agreement):
        raise _stripped("what is agreed does not follow from what both sides said")
    return agreement


def confidentiality_refusal(transport: str) -> Denied:
    """Return what refuses a restricted envelope on a transport without encryption (S4 §7.6)."""
    return Denied(
        f"rule 6, confidentiality: restricted, and {transport} does not encrypt",
        advice="Send it over tls://.",
    )


def _evidence(payload: jcs.Json, correlation_id: str, attest: Attest | None) -> dict[str, jcs.Json] | None:
    """Return the evidence of the environment about a payload; it binds the report data of S4 §6."""
    if attest is None:
        return None
    return attest(report_data(bytes.fromhex(payload_hash(payload)), correlation_id))


def _statement(initiator: Envelope, own: Envelope, agreement: Agreement) -> dict[str, Any]:
    return {
        "initiator": initiator.hex_id,
        "responder": own.hex_id,
        "agreed": agreement.to_json(),
        "transcript": transcript(initiator, own, agreement).hex(),
    }


def _check_said(envelope: Envelope, event_type: str) -> None:
    """Check that an envelope is such an advertisement, with the payload that was hashed, signed by its author."""
    if envelope.event_class != "CapabilityAdvertisement" or envelope.event_type != event_type:
        raise _wrong(f"{envelope.event_class} {envelope.event_type[:40]!r} where {event_type} belongs")
    names = envelope.signed_fields
    if len(set(names)) != len(names) or not SIGNED <= set(names) <= set(FIELDS) - {"signature"}:
        raise SigInvalid(f"{event_type}: the signature covers less than {', '.join(sorted(SIGNED))}")
    kind = envelope.fields["origin_identity"]["identity_type"]
    alg = envelope.fields["signature"]["alg"]
    if kind not in (alg, "attested-domain"):
        raise SigInvalid(f"{event_type}: a {kind} identity cannot sign with {alg}")
    try:
        envelope.public_key.verify(envelope.preimage, envelope.signature_bytes)
    except RopewalkError as error:
        raise _stripped(f"{event_type}: {error.detail}") from error
    if rule_1_canonical_hash(envelope, Context()).status != "passed":
        raise _stripped(f"{event_type}: the payload is not the one that was signed")


def _common(ours: Sequence[str], theirs: Collection[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for each in ours if each in theirs))


def _first(what: str, ours: Sequence[str], theirs: Sequence[str]) -> str:
    both = _common(ours, theirs)
    if not both:
        raise _nothing(what, ours, theirs)
    return both[0]


def _nothing(what: str, ours: Sequence[str], theirs: Sequence[str]) -> Unavailable:
    return Unavailable(
        f"no {what} in common: one side can {', '.join(ours) or 'none'}, the other {', '.join(theirs) or 'none'}",
        advice="Offer one that both sides know; the policy of the channel may have narrowed them.",
    )


def _names(said: dict[str, Any], name: str) -> tuple[str, ...]:
    found = said.get(name)
    if not isinstance(found, list) or len(found) > NAMES_MAX:
        raise _wrong(f"{name} must be a list of at most {NAMES_MAX} names")
    if not all(isinstance(each, str) and 0 < len(each) <= NAME_CHARS_MAX for each in found):
        raise _wrong(f"{name} are texts of at most {NAME_CHARS_MAX} characters")
    return tuple(found)


def _policy_hash(said: dict[str, Any]) -> str | None:
    found = said.get("policy_hash")
    if found is not None and hash_from_hex(found) is None:
        raise _wrong("policy_hash must be 64 lowercase hex digits")
    return found


def _number(said: dict[str, Any], name: str, default: int | None) -> int:
    found = said.get(name, default)
    if type(found) is not int or found < 1:
        raise _wrong(f"{name} must be a number above 0")
    return found


def _wrong(what: str) -> Invalid:
    return Invalid(f"capability advertisement: {what}")


def _stripped(what: str) -> SigInvalid:
    return SigInvalid(
        f"negotiation: {what}",
        advice="The negotiation was changed in transit; nothing was sent over this connection.",
    )
