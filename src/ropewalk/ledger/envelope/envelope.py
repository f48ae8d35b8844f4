"""Envelopes (S4 §3, §4): sixteen fields, one canonical form, one id.

    parse         from a caller: strict JSON in any layout, null optionals dropped, edge spellings made canonical
    parse_stored  from segments and bundles: canonical bytes only
    parse_cbor    from CBOR on the wire; same model, same id
    parse_wire    from a peer, JSON or CBOR
    build         make and sign one in a single call

The id covers the signature, so a signature with two encodings would give one statement two ids.
That is why base64 must be canonical and why keys and signatures have fixed lengths.
"""

from __future__ import annotations

from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from ropewalk.errors import InvalidEnvelope, InvalidJson, InvalidKey, TooLarge
from ropewalk.kernel import cbor, jcs
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.keys import PublicKey, SigningKey
from ropewalk.kernel.proofs import LEDGER
from ropewalk.kernel.schema import shipped as schema
from ropewalk.ledger.envelope import formats
from ropewalk.ledger.envelope.edge_forms import canonical_members, mark_cbor, mark_json, unmark
from ropewalk.ledger.envelope.fields import OPTIONAL, SCHEMA, STRICT_SIGNED, EventClass, parse_timestamp
from ropewalk.ledger.envelope.model import Envelope, EnvelopeId, payload_hash, signature_preimage
from ropewalk.ledger.envelope.run import EnvelopeRun, make_known
from ropewalk.ledger.envelope.template_cache import CastLines, cast_lines, learn, recast

ENVELOPE_BYTES_MAX: Final = 4 << 20  # what a peer may send
INLINE_BYTES_MAX: Final = 1 << 20  # a larger payload must be detached
BUILD_ADVICE: Final = (
    "`ropewalk ledger envelope --channel C --domain D --class Observation --type T --payload F --key NAME` builds and "
    "signs one around a payload; append what it prints."
)
_OPTIONAL: Final = frozenset(OPTIONAL)


def parse(raw: bytes) -> Envelope:
    """Parse an envelope from strict JSON in any layout; null optionals are dropped, then the bytes are canonical.

    >>> parse(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.InvalidEnvelope: ...
    """
    _check_size(raw)
    known = _recast(raw)
    if known is not None:
        return known
    try:
        value = jcs.parse_canonical(raw)
    except InvalidJson:  # another layout, or invalid; only parsing again can tell
        marked = mark_json(raw)
        found = unmark(jcs.parse(marked[0]), marked[1]) if marked is not None else None
        return _from_value(canonical_members(jcs.parse(raw) if found is None else found))
    checked, key = _checked(canonical_members(value))
    if checked is not value:
        return _envelope(jcs.encode(checked), checked, key)
    return _learnt(_envelope(raw, checked, key))


def parse_stored(raw: bytes, known_id: bytes | None = None) -> Envelope:
    """Parse an envelope from its canonical bytes; reject any other bytes, because their id would differ.

    `known_id` is the id if the caller has computed it from these bytes.
    """
    known = _recast(raw, known_id)
    if known is not None:
        return known
    value = jcs.parse_canonical(raw)
    checked, key = _checked(value)
    if checked is not value:
        raise InvalidEnvelope(
            "null optional members are not canonical; leave them out", where="", schema=SCHEMA
        )
    return _learnt(_envelope(raw, checked, key, known_id))


def parse_run(raws: Sequence[bytes], known_ids: Sequence[bytes]) -> EnvelopeRun | Iterator[Envelope]:
    """Return what `parse_stored` returns for each of them, an `EnvelopeRun` if the templates of all are cached."""
    lines = cast_lines(raws)
    moulds = lines.moulds() if lines is not None and max(map(len, raws)) <= INLINE_BYTES_MAX else None
    if lines is not None and moulds is not None:
        return EnvelopeRun(lines, moulds, known_ids)
    known = _recast_each(raws, known_ids, lines)
    return (
        parse_stored(raw, known_id) if each is None else each
        for raw, known_id, each in zip(raws, known_ids, known, strict=True)
    )


def recast_run(raws: Sequence[bytes]) -> list[Envelope | None]:
    """Return the envelopes whose templates are cached, checked by one compiled loop; None for all others."""
    return _recast_each(raws, None, cast_lines(raws))


def _recast_each(
    raws: Sequence[bytes], known_ids: Sequence[bytes] | None, lines: CastLines | None
) -> list[Envelope | None]:
    made: list[Envelope | None] = [None] * len(raws)
    if lines is None:
        return made
    for at, raw in enumerate(raws):
        mould = lines.mould(at) if len(raw) <= INLINE_BYTES_MAX else None
        if mould is not None:
            known_id = LEDGER.leaf(raw) if known_ids is None else known_ids[at]
            made[at] = make_known(lines.facts(at, mould), known_id)
    return made


def parse_cbor(raw: bytes) -> Envelope:
    """Parse an envelope from deterministic CBOR. Byte strings become the text that JSON peers hash (S4 §4.2).

    >>> key = SigningKey.generate("ed25519", bytes(range(32)))
    >>> one = build(key, domain="ea.core", event_class="Alert", event_type="x", payload=None,
    ...             timestamp="2024-11-01T12:00:00Z")
    >>> parse_cbor(to_cbor(one)) == one
    True
    """
    _check_size(raw)
    marked = mark_cbor(raw)
    value: Any = unmark(cbor.decode(marked[0]), marked[1]) if marked is not None else None
    if value is None:
        value = cbor.decode(raw)
    if not isinstance(value, dict):
        raise InvalidEnvelope("a CBOR envelope must be a map", where="", schema=SCHEMA)
    return _from_value(canonical_members(_bytes_to_text(value)))


def parse_wire(raw: bytes) -> Envelope:
    """Parse an envelope from JSON or CBOR. The first byte of a CBOR map cannot start JSON text, so the form is
    unambiguous.

    >>> parse_wire(b"\\xa0")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ropewalk.errors.InvalidEnvelope: expected a signed envelope (...), got an object with no members
    """
    return parse_cbor(raw) if raw and 0xA0 <= raw[0] <= 0xBF else parse(raw)


def to_cbor(envelope: Envelope) -> bytes:
    """Return the envelope as deterministic CBOR. Text stays text: a byte string would come back in another encoding."""
    return cbor.encode(envelope.value)


def chain_after(parent: Envelope, correlation_id: str) -> list[str]:
    """Return the causality chain of a child: its parent's ancestors, its parent, the correlation id."""
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
    ancestors: Sequence[str] = (),
    detached: dict[str, jcs.Json] | None = None,
    hash_of_detached: str | None = None,
    evidence: dict[str, jcs.Json] | None = None,
    integrity_proof: dict[str, jcs.Json] | None = None,
    confidentiality: dict[str, jcs.Json] | None = None,
    policy_tag: dict[str, jcs.Json] | None = None,
    label: str | None = None,
    protocol_version: str = "1.0.0",
    signed_fields: Sequence[str] = STRICT_SIGNED,
    added: dict[str, jcs.Json] | None = None,
) -> Envelope:
    """Make and sign an envelope.

    A child of `parent` inherits its correlation id unless one is given. `ancestors` are the ids for the causality
    chain if no parent is given. To detach a payload, name its location (`detached`, a `payload_ref`): then only its
    hash is kept. `added` are fields that later versions define (`formats`); they are signed too.

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
        chain = chain_after(parent, correlation_id) if parent is not None else [*ancestors, correlation_id]
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
        "signature": {"alg": public.alg, "sig": "", "signed_fields": [*signed_fields, *(added or ())]},
        **(added or {}),
    }
    value = {name: each for name, each in value.items() if each is not None or name == "payload"}
    value["signature"]["sig"] = b64encode(key.sign(signature_preimage(value))).decode()
    return _from_value(value)


def _check_size(raw: bytes) -> None:
    if len(raw) > ENVELOPE_BYTES_MAX:
        raise TooLarge(
            f"an envelope must have at most {ENVELOPE_BYTES_MAX} bytes, got {len(raw)}",
            size=len(raw),
            limit=ENVELOPE_BYTES_MAX,
        )


def _from_value(value: Any) -> Envelope:
    checked, key = _checked(value)
    return _envelope(jcs.encode(checked), checked, key)


def _envelope(raw: bytes, checked: dict[str, Any], key: PublicKey, known_id: bytes | None = None) -> Envelope:
    if len(raw) > INLINE_BYTES_MAX and checked["payload"] is not None:
        raise TooLarge(
            f"envelope of {len(raw)} canonical bytes; a payload must be detached above {INLINE_BYTES_MAX} bytes",
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
    """Return the envelope if its template is cached, without a full parse; otherwise None."""
    facts = recast(raw) if len(raw) <= INLINE_BYTES_MAX else None
    if facts is None:
        return None
    return make_known(facts, known_id or LEDGER.leaf(raw))


def _learnt(envelope: Envelope) -> Envelope:
    learn(envelope.raw, envelope.value, envelope.public_key, envelope.preimage)
    return envelope


def _checked(document: Any) -> tuple[dict[str, Any], PublicKey]:
    """Return the value without null optionals, and its key, if it passes the schema and the checks a schema cannot
    state.
    """
    if not isinstance(document, dict):
        raise InvalidEnvelope("an envelope must be a JSON object", where="", schema=SCHEMA)
    value: dict[str, Any] = document
    if _SIGNS_OF_ONE.isdisjoint(value):
        found = ", ".join(sorted(value)[:5])[:120] or "no members"
        raise InvalidEnvelope(
            f"expected a signed envelope (with {', '.join(_SIGNS_OF_ONE_IN_ORDER)} and others), "
            f"got an object with {found}",
            where="",
            schema=SCHEMA,
            advice=BUILD_ADVICE,
        )
    if not _OPTIONAL.isdisjoint(value) and any(name in value and value[name] is None for name in OPTIONAL):
        value = {k: v for k, v in value.items() if v is not None or k not in _OPTIONAL}
    stamp = value.get("timestamp")
    if not isinstance(stamp, str):
        raise InvalidEnvelope("timestamp must be RFC 3339 text", where="/timestamp", schema=SCHEMA)
    core = value
    if formats.FORMATS.fields:
        value, core = formats.FORMATS.split(value)
    schema.validate(SCHEMA, core)
    parse_timestamp(stamp)
    if hash_from_hex(value["payload_hash"]) is None:
        raise InvalidEnvelope(
            "payload_hash must be 64 lowercase hex digits, the canonical form",
            where="/payload_hash",
            schema=SCHEMA,
        )
    identity = value["origin_identity"]
    kind = identity["identity_type"]
    alg = value["signature"]["alg"] if kind == "attested-domain" else kind
    try:
        return value, _public_key(alg, identity["public_key"])
    except InvalidKey as error:
        raise InvalidEnvelope(
            f"origin_identity: {error.detail}", where="/origin_identity/public_key", schema=SCHEMA
        ) from error


_SIGNS_OF_ONE_IN_ORDER: Final = ("origin_identity", "payload_hash", "signature")
_SIGNS_OF_ONE: Final = frozenset(_SIGNS_OF_ONE_IN_ORDER)


@lru_cache(maxsize=4096)
def _public_key(alg: str, text: str) -> PublicKey:
    return PublicKey.from_text(alg, text)


_AS_HEX: Final = {"payload_hash", "evidence_hash", "policy_hash"}
_AS_BASE64: Final = {"public_key", "sig", "proof", "cert_chain"}


def _bytes_to_text(value: dict[str, Any]) -> dict[str, Any]:
    """Convert byte strings to text where the CDDL allows them; reject them in any other place."""

    def member(name: str, item: Any, where: str) -> Any:
        if isinstance(item, bytes):
            if name in _AS_HEX:
                return item.hex()
            if name in _AS_BASE64:
                return b64encode(item).decode()
            raise InvalidEnvelope(f"{where}: must not be a byte string", where=where, schema=SCHEMA)
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
