"""An envelope as a value: its bytes, its id, its fields, and its digests.

Only `envelope` makes one, from bytes or from its parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NewType, cast

import orjson

from ropewalk.kernel import jcs
from ropewalk.kernel.digest import Tag, blake3
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.proofs import LEDGER
from ropewalk.ledger.envelope import formats
from ropewalk.ledger.envelope.fields import FIELDS, EventClass, Level, parse_timestamp

EnvelopeId = NewType("EnvelopeId", bytes)
"""32 bytes; written as 64 hex digits."""

_SIGNATURE_TAG: Final = bytes(Tag.SIGNATURE)


@dataclass(frozen=True)
class Envelope:
    """A checked envelope: its canonical bytes, its id, and the value of those bytes. Never change the value.

    >>> from ropewalk.kernel.keys import SigningKey
    >>> from ropewalk.ledger.envelope.envelope import build, parse
    >>> key = SigningKey.generate("ed25519", bytes(range(32)))
    >>> one = build(key, domain="ea.core", event_class="Observation", event_type="demo.seen",
    ...             payload={"n": 1}, timestamp="2024-11-01T12:00:00Z")
    >>> one.event_type, parse(one.raw) == one
    ('demo.seen', True)
    """

    raw: bytes
    id: EnvelopeId
    # All members; from a cached template all but payload, payload_hash, timestamp and the sig.
    fields: dict[str, Any] = field(repr=False, compare=False)
    # The key that must have signed; an attested domain uses the algorithm its signature names.
    public_key: PublicKey = field(repr=False, compare=False)
    signature_bytes: bytes = field(repr=False, compare=False)
    # Whether the payload was checked against its hash.
    hash_holds: bool = field(default=False, repr=False, compare=False)

    @cached_property
    def value(self) -> dict[str, Any]:
        """The value of the canonical bytes."""
        return cast(dict[str, Any], orjson.loads(self.raw))

    @property
    def hex_id(self) -> str:
        """The id as hex text."""
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
        """The event type, defined by its domain."""
        return cast(str, self.fields["event_type"])

    @property
    def correlation_id(self) -> str | None:
        """The id that ties a Result to its Command."""
        return self.fields.get("correlation_id")

    @property
    def causality_chain(self) -> tuple[str, ...]:
        """Ids of ancestors, oldest first, then the correlation id; empty if absent."""
        return tuple(self.fields.get("causality_chain", ()))

    @cached_property
    def timestamp(self) -> str:
        """The author's time stamp."""
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
        """Whether the payload is stored outside the envelope; only its hash is here, so the payload can be erased."""
        return self.value["payload"] is None and "payload_ref" in self.value

    @property
    def level(self) -> Level:
        """The confidentiality level; public if absent (S4 §8)."""
        tag = self.fields.get("confidentiality_tag")
        return cast(Level, tag["level"]) if tag else "public"

    @property
    def signed_fields(self) -> tuple[str, ...]:
        """The names the signature covers, in its order."""
        return tuple(self.fields["signature"]["signed_fields"])

    @property
    def unsigned_fields(self) -> tuple[str, ...]:
        """Fields that are present but not covered by the signature; the payload is covered through its hash."""
        signed = set(self.value["signature"]["signed_fields"])
        if "payload_hash" in signed and not self.is_detached:
            signed.add("payload")
        return tuple(
            name
            for name in (*FIELDS, *sorted(formats.FORMATS.names))
            if name not in signed
            and name != "signature"
            and name in self.value
            and not (name == "payload" and self.is_detached)
        )

    @property
    def payload_raw(self) -> bytes:
        """The canonical bytes of the payload.

        Members are sorted, so the payload ends where payload_hash begins; no later member has such a key. Before it,
        only evidence may hold free keys, and added fields may anywhere.
        """
        if "attestation_evidence" in self.fields or not formats.FORMATS.names.isdisjoint(self.fields):
            return jcs.encode(self.value["payload"])
        return self.raw[self.raw.index(b',"payload":') + 11 : self.raw.rindex(b',"payload_hash":"')]

    @cached_property
    def preimage(self) -> bytes:
        """The bytes its author signed."""
        return _fast_preimage(self.value)

    @property
    def intent(self) -> bytes:
        """Digest of the signed bytes: the same for every signature over one statement."""
        # A cached_property takes a lock, which doubles the cost.
        made: bytes | None = self.__dict__.get("_intent")
        if made is None:
            made = self.__dict__["_intent"] = blake3(self.preimage)
        return made


def envelope_id(raw: bytes) -> EnvelopeId:
    """Return the id of canonical envelope bytes, which is also its leaf in the block's tree.

    >>> envelope_id(b"\\0").hex()[:8]
    '746a0f0f'
    """
    return EnvelopeId(LEDGER.leaf(raw))


def payload_hash(payload: object) -> str:
    """Return the hex BLAKE3 of the canonical payload.

    >>> payload_hash({"b": [1, 2, {"z": None}], "a": "é"})[:16]
    '56b512d0d4cac4ee'
    """
    return blake3(jcs.encode(payload)).hex()


def signature_preimage(value: dict[str, Any]) -> bytes:
    """Return the bytes the author signs: pairs of names and values, so that the list itself is authenticated.

    >>> signature_preimage({"a": 1, "signature": {"signed_fields": ["a", "b"]}})
    b'ea:signature:v1[["a",1],["b",null]]'
    """
    return Tag.SIGNATURE + jcs.encode(
        [[name, value.get(name)] for name in value["signature"]["signed_fields"]]
    )


def _fast_preimage(value: dict[str, Any]) -> bytes:
    """Return the same for a checked value, without a walk over it if it has a single encoding."""
    names = value["signature"]["signed_fields"]
    if "payload" in names or "attestation_evidence" in value or not formats.FORMATS.names.isdisjoint(value):
        return signature_preimage(value)
    # All other members are strings, lists of strings and objects with ASCII keys.
    return _SIGNATURE_TAG + orjson.dumps(
        list(zip(names, map(value.get, names), strict=True)), option=orjson.OPT_SORT_KEYS
    )
