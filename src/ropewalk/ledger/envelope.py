"""Envelopes (S4 §3, §4): sixteen fields, one canonical form, one id.

    parse         at the edge: any layout of strict JSON, null optionals dropped
    parse_stored  inside segments and bundles: the canonical bytes or nothing
    parse_cbor    the wire form; the same model, hence the same id
    parse_wire    what arrives from outside, JSON or CBOR
    build         make and sign one in a single call

The id covers the signature, so a signature that could be written in two ways would give one statement two names.
That is why base64 must be canonical and why keys and signatures have fixed lengths.
"""

from __future__ import annotations

from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final, NewType, cast

import orjson

from ropewalk.errors import InvalidEnvelope, InvalidJson, InvalidKey, TooLarge
from ropewalk.kernel import cbor, jcs, schema
from ropewalk.kernel.digest import Tag, blake3
from ropewalk.kernel.keys import PublicKey, SigningKey
from ropewalk.kernel.proofs import LEDGER
from ropewalk.ledger.fields import (
    DEFAULT_SIGNED,
    FIELDS,
    MINIMUM_SIGNED,
    NANOS,
    OPTIONAL,
    SCHEMA,
    STRICT_SIGNED,
    EventClass,
    Level,
    decode_base64,
    parse_timestamp,
)
from ropewalk.ledger.mould import learn, recast

__all__ = [
    "DEFAULT_SIGNED",
    "FIELDS",
    "MINIMUM_SIGNED",
    "NANOS",
    "STRICT_SIGNED",
    "Envelope",
    "EnvelopeId",
    "EventClass",
    "Level",
    "build",
    "chain_after",
    "decode_base64",
    "envelope_id",
    "parse",
    "parse_cbor",
    "parse_stored",
    "parse_timestamp",
    "parse_wire",
    "payload_hash",
    "signature_preimage",
    "to_cbor",
]

EnvelopeId = NewType("EnvelopeId", bytes)
"""32 bytes; written as 64 hex digits."""

ENVELOPE_BYTES_MAX: Final = 4 << 20  # what a peer may send at all
INLINE_BYTES_MAX: Final = 1 << 20  # beyond this the payload must be detached
_SIGNATURE_TAG: Final = bytes(Tag.SIGNATURE)
_OPTIONAL: Final = frozenset(OPTIONAL)


@dataclass(frozen=True)
class Envelope:
    """A checked envelope: its canonical bytes, its id, and the value those bytes mean. Never change the value.

    >>> key = SigningKey.generate("ed25519", bytes(range(32)))
    >>> one = build(key, domain="ea.core", event_class="Observation", event_type="demo.seen",
    ...             payload={"n": 1}, timestamp="2024-11-01T12:00:00Z")
    >>> one.event_type, parse(one.raw) == one
    ('demo.seen', True)
    """

    raw: bytes
    id: EnvelopeId
    # All members; where they came out of a mould, all but payload, payload_hash, timestamp and the sig.
    fields: dict[str, Any] = field(repr=False, compare=False)
    # The key that must have signed; an attested domain uses the algorithm its signature names.
    public_key: PublicKey = field(repr=False, compare=False)
    signature_bytes: bytes = field(repr=False, compare=False)
    hash_holds: bool = field(
        default=False, repr=False, compare=False
    )  # the payload was seen to have its hash

    @cached_property
    def value(self) -> dict[str, Any]:
        """What the canonical bytes mean."""
        return cast(dict[str, Any], orjson.loads(self.raw))

    @property
    def hex_id(self) -> str:
        """The id as people and files write it."""
        return self.id.hex()

    @property
    def protocol_version(self) -> str:
        """Semantic version of the envelope's own format."""
        return cast(str, self.fields["protocol_version"])

    @property
    def domain(self) -> str:
        """The logical boundary it belongs to; not the channel."""
        return cast(str, self.fields["domain"])

    @property
    def event_class(self) -> EventClass:
        """One of the six classes of S4 §3.2."""
        return cast(EventClass, self.fields["event_class"])

    @property
    def event_type(self) -> str:
        """What kind of event, in the words of its domain."""
        return cast(str, self.fields["event_type"])

    @property
    def correlation_id(self) -> str | None:
        """What ties a Result to its Command."""
        return self.fields.get("correlation_id")

    @property
    def causality_chain(self) -> tuple[str, ...]:
        """Ids of ancestors, oldest first, then the correlation id; empty if absent."""
        return tuple(self.fields.get("causality_chain", ()))

    @cached_property
    def timestamp(self) -> str:
        """When its author says it was made."""
        return cast(str, self.value["timestamp"])

    @property
    def timestamp_ns(self) -> int:
        """The same in nanoseconds since the epoch."""
        return parse_timestamp(self.timestamp)

    @property
    def payload(self) -> jcs.Json:
        """The event body; None where it is detached."""
        return cast(jcs.Json, self.value["payload"])

    @property
    def payload_hash(self) -> bytes:
        """BLAKE3 of the canonical payload, as the author claims."""
        return bytes.fromhex(self.value["payload_hash"])

    @property
    def is_detached(self) -> bool:
        """Whether the payload lies elsewhere; only its hash is here, so it can be erased there."""
        return self.value["payload"] is None and "payload_ref" in self.value

    @property
    def level(self) -> Level:
        """How confidential it is; nothing said means public (S4 §8)."""
        tag = self.fields.get("confidentiality_tag")
        return cast(Level, tag["level"]) if tag else "public"

    @property
    def signed_fields(self) -> tuple[str, ...]:
        """The names the signature covers, in its order."""
        return tuple(self.fields["signature"]["signed_fields"])

    @property
    def unsigned_fields(self) -> tuple[str, ...]:
        """Fields that are present but that the signature does not reach; the payload is reached through its hash."""
        signed = set(self.value["signature"]["signed_fields"])
        if "payload_hash" in signed and not self.is_detached:
            signed.add("payload")
        return tuple(
            name
            for name in FIELDS
            if name not in signed
            and name != "signature"
            and name in self.value
            and not (name == "payload" and self.is_detached)
        )

    @property
    def payload_raw(self) -> bytes:
        """The canonical bytes of the payload.

        Members stand sorted, so the payload ends where payload_hash begins; no member behind that has such a key.
        In front of it only evidence may hold keys of its own choosing.
        """
        if "attestation_evidence" in self.value:
            return jcs.encode(self.value["payload"])
        return self.raw[self.raw.index(b',"payload":') + 11 : self.raw.rindex(b',"payload_hash":"')]

    @cached_property
    def preimage(self) -> bytes:
        """The bytes its author signed."""
        return _fast_preimage(self.value)

    @property
    def intent(self) -> bytes:
        """Digest of what was signed: the same for every signature over one statement."""
        made: bytes | None = self.__dict__.get(
            "_intent"
        )  # a cached_property takes a lock, which costs as much again
        if made is None:
            made = self.__dict__["_intent"] = blake3(self.preimage)
        return made


def parse(raw: bytes) -> Envelope:
    """An envelope from strict JSON in any layout; null optionals are dropped, then the bytes are canonical.

    >>> parse(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.InvalidEnvelope: ...
    """
    if len(raw) > ENVELOPE_BYTES_MAX:
        raise TooLarge(
            f"envelope of {len(raw)} bytes; at most {ENVELOPE_BYTES_MAX}",
            size=len(raw),
            limit=ENVELOPE_BYTES_MAX,
        )
    known = _recast(raw)
    if known is not None:
        return known
    try:
        value = jcs.parse_canonical(raw)
    except InvalidJson:  # another layout, or wrong; only parsing again can tell
        return _from_value(jcs.parse(raw))
    checked, key = _checked(value)
    if checked is not value:
        return _envelope(jcs.encode(checked), checked, key)
    return _learnt(_envelope(raw, checked, key))


def parse_stored(raw: bytes, known_id: bytes | None = None) -> Envelope:
    """An envelope from its canonical bytes; anything else is refused, for its id would not be the one stored.

    `known_id` is the id where the caller has computed it from these bytes already.
    """
    known = _recast(raw, known_id)
    if known is not None:
        return known
    value = jcs.parse_canonical(raw)
    checked, key = _checked(value)
    if checked is not value:
        raise InvalidEnvelope("null optionals are not canonical", where="", schema=SCHEMA)
    return _learnt(_envelope(raw, checked, key, known_id))


def parse_cbor(raw: bytes) -> Envelope:
    """An envelope from deterministic CBOR. Byte strings become the text that JSON peers hash (S4 §4.2).

    >>> key = SigningKey.generate("ed25519", bytes(range(32)))
    >>> one = build(key, domain="ea.core", event_class="Alert", event_type="x", payload=None,
    ...             timestamp="2024-11-01T12:00:00Z")
    >>> parse_cbor(to_cbor(one)) == one
    True
    """
    if len(raw) > ENVELOPE_BYTES_MAX:
        raise TooLarge(
            f"envelope of {len(raw)} bytes; at most {ENVELOPE_BYTES_MAX}",
            size=len(raw),
            limit=ENVELOPE_BYTES_MAX,
        )
    value = cbor.decode(raw)
    if not isinstance(value, dict):
        raise InvalidEnvelope("an envelope is a map", where="", schema=SCHEMA)
    return _from_value(_bytes_to_text(value))


def parse_wire(raw: bytes) -> Envelope:
    """An envelope as JSON or as CBOR. A CBOR map begins with a byte that begins no text, so there is no doubt.

    >>> parse_wire(b"\\xa0")
    Traceback (most recent call last):
    ropewalk.errors.InvalidEnvelope: timestamp must be RFC 3339 text
    """
    return parse_cbor(raw) if raw and 0xA0 <= raw[0] <= 0xBF else parse(raw)


def to_cbor(envelope: Envelope) -> bytes:
    """The envelope as deterministic CBOR. Text stays text: a byte string would come back in another spelling."""
    return cbor.encode(envelope.value)


def envelope_id(raw: bytes) -> EnvelopeId:
    """The id of canonical envelope bytes, which is also its leaf in the block's tree.

    >>> envelope_id(b"\\0").hex()[:8]
    '746a0f0f'
    """
    return EnvelopeId(LEDGER.leaf(raw))


def payload_hash(payload: object) -> str:
    """Hex BLAKE3 of the canonical payload.

    >>> payload_hash({"b": [1, 2, {"z": None}], "a": "é"})[:16]
    '56b512d0d4cac4ee'
    """
    return blake3(jcs.encode(payload)).hex()


def signature_preimage(value: dict[str, Any]) -> bytes:
    """What the author signs: names and values in pairs, so that the list itself is authenticated.

    >>> signature_preimage({"a": 1, "signature": {"signed_fields": ["a", "b"]}})
    b'ea:signature:v1[["a",1],["b",null]]'
    """
    return Tag.SIGNATURE + jcs.encode(
        [[name, value.get(name)] for name in value["signature"]["signed_fields"]]
    )


def _fast_preimage(value: dict[str, Any]) -> bytes:
    """The same for a checked value, without a walk over it where nothing in it can be written in two ways."""
    names = value["signature"]["signed_fields"]
    if "payload" in names or "attestation_evidence" in value:
        return signature_preimage(value)
    # All other members are texts, lists of texts and objects with ASCII keys.
    return _SIGNATURE_TAG + orjson.dumps(
        list(zip(names, map(value.get, names), strict=True)), option=orjson.OPT_SORT_KEYS
    )


def chain_after(parent: Envelope, correlation_id: str) -> list[str]:
    """The causality chain of a child: its parent's ancestors, its parent, the correlation id."""
    return [*parent.causality_chain[:-1], parent.hex_id, correlation_id]


def build(
    key: SigningKey,
    *,
    domain: str,
    event_class: EventClass,
    event_type: str,
    payload: jcs.Json,
    timestamp: str,
    correlation_id: str | None = None,
    parent: Envelope | None = None,
    detached: dict[str, jcs.Json] | None = None,
    hash_of_detached: str | None = None,
    evidence: dict[str, jcs.Json] | None = None,
    integrity_proof: dict[str, jcs.Json] | None = None,
    confidentiality: dict[str, jcs.Json] | None = None,
    policy_tag: dict[str, jcs.Json] | None = None,
    label: str | None = None,
    protocol_version: str = "1.0.0",
    signed_fields: Sequence[str] = STRICT_SIGNED,
) -> Envelope:
    """Make and sign an envelope.

    A child of `parent` takes over its correlation id unless one is given. A payload is detached by naming where it
    lies (`detached`, a `payload_ref`): then only its hash is kept.

    >>> key = SigningKey.generate("ed25519", bytes(range(32)))
    >>> ask = build(key, domain="ea.core", event_class="Command", event_type="deploy", payload={"v": 7},
    ...             timestamp="2024-11-01T12:00:00Z", correlation_id="c-1")
    >>> done = build(key, domain="ea.core", event_class="Result", event_type="deployed", payload={"ok": True},
    ...              timestamp="2024-11-01T12:00:01Z", parent=ask)
    >>> done.correlation_id, done.causality_chain == (ask.hex_id, "c-1")
    ('c-1', True)
    """
    if correlation_id is None and parent is not None:
        correlation_id = parent.correlation_id
    chain: list[str] | None = None
    if correlation_id is not None:
        chain = chain_after(parent, correlation_id) if parent is not None else [correlation_id]
    public = key.public
    identity: dict[str, Any] = {"identity_type": public.alg, "public_key": public.raw.hex()}
    value: dict[str, Any] = {
        "protocol_version": protocol_version,
        "domain": domain,
        "event_class": event_class,
        "event_type": event_type,
        "correlation_id": correlation_id,
        "causality_chain": chain,
        "timestamp": timestamp,
        "origin_identity": identity if label is None else {**identity, "label": label},
        "attestation_evidence": evidence,
        "payload_hash": hash_of_detached or payload_hash(payload),
        "payload_ref": detached,
        "integrity_proof": integrity_proof,
        "confidentiality_tag": confidentiality,
        "policy_tag": policy_tag,
        "payload": None if detached is not None else payload,
        "signature": {"alg": public.alg, "sig": "", "signed_fields": list(signed_fields)},
    }
    value = {name: each for name, each in value.items() if each is not None or name == "payload"}
    value["signature"]["sig"] = b64encode(key.sign(signature_preimage(value))).decode()
    return _from_value(value)


def _from_value(value: Any) -> Envelope:
    checked, key = _checked(value)
    return _envelope(jcs.encode(checked), checked, key)


def _envelope(raw: bytes, checked: dict[str, Any], key: PublicKey, known_id: bytes | None = None) -> Envelope:
    if len(raw) > INLINE_BYTES_MAX and checked["payload"] is not None:
        raise TooLarge(
            f"envelope of {len(raw)} canonical bytes; beyond {INLINE_BYTES_MAX} the payload must be detached",
            size=len(raw),
            limit=INLINE_BYTES_MAX,
        )
    made = Envelope(
        raw,
        EnvelopeId(known_id or LEDGER.leaf(raw)),
        checked,
        key,
        a2b_base64(checked["signature"]["sig"]),  # the schema admits one spelling only
    )
    made.__dict__["value"] = checked
    return made


def _recast(raw: bytes, known_id: bytes | None = None) -> Envelope | None:
    """The envelope if its mould is known, without reading it in full."""
    facts = recast(raw) if len(raw) <= INLINE_BYTES_MAX else None
    if facts is None:
        return None
    facts["id"] = known_id or LEDGER.leaf(raw)
    made = object.__new__(Envelope)
    made.__dict__.update(
        facts
    )  # what a frozen class does instead would cost as much as the rest of this function
    return made


def _learnt(envelope: Envelope) -> Envelope:
    learn(envelope.raw, envelope.value, envelope.public_key, envelope.preimage)
    return envelope


def _checked(document: Any) -> tuple[dict[str, Any], PublicKey]:
    """The value without null optionals, if it keeps the schema and the forms the schema cannot say; and its key."""
    if not isinstance(document, dict):
        raise InvalidEnvelope("an envelope is an object", where="", schema=SCHEMA)
    value: dict[str, Any] = document
    if not _OPTIONAL.isdisjoint(value) and any(name in value and value[name] is None for name in OPTIONAL):
        value = {k: v for k, v in value.items() if v is not None or k not in _OPTIONAL}
    stamp = value.get("timestamp")
    if not isinstance(stamp, str):
        # Integers are allowed by S4 §3.1, but nothing signed can be normalised without breaking the signature.
        raise InvalidEnvelope("timestamp must be RFC 3339 text", where="/timestamp", schema=SCHEMA)
    schema.validate(SCHEMA, value)
    parse_timestamp(stamp)
    identity = value["origin_identity"]
    kind = identity["identity_type"]
    alg = value["signature"]["alg"] if kind == "attested-domain" else kind
    try:
        return value, _public_key(alg, identity["public_key"])
    except InvalidKey as error:
        raise InvalidEnvelope(
            f"origin_identity: {error.detail}", where="/origin_identity/public_key", schema=SCHEMA
        ) from error


@lru_cache(maxsize=4096)
def _public_key(alg: str, text: str) -> PublicKey:
    return PublicKey.from_text(alg, text)


_AS_HEX: Final = {"payload_hash", "evidence_hash", "policy_hash"}
_AS_BASE64: Final = {"public_key", "sig", "proof", "cert_chain"}


def _bytes_to_text(value: dict[str, Any]) -> dict[str, Any]:
    """Byte strings in the places where the CDDL allows them, as text; elsewhere they are refused."""

    def member(name: str, item: Any, where: str) -> Any:
        if isinstance(item, bytes):
            if name in _AS_HEX:
                return item.hex()
            if name in _AS_BASE64:
                return b64encode(item).decode()
            raise InvalidEnvelope(f"{where}: a byte string has no place here", where=where, schema=SCHEMA)
        return item

    out: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, dict) and name not in ("payload",):
            out[name] = {
                inner: [member(inner, each, f"/{name}/{inner}") for each in one]
                if inner == "cert_chain" and isinstance(one, list)
                else member(inner, one, f"/{name}/{inner}")
                for inner, one in item.items()
            }
        else:
            out[name] = member(name, item, f"/{name}")
    return out
