"""Adapters (S4 §8): read envelopes of older or newer versions without losing what their author signed.

Two different functions:

`view`: how an accepted envelope reads to code of another version. Missing fields are filled in, fields that the reader
does not know are left out; nothing is hashed or signed again. `read_as` does the same for a value.

`resign`: a new envelope signed by our key for one that cannot be accepted as it is. It carries the original bytes.

An adapted envelope names the id of the original (`legacy_envelope_id`) and holds its bytes and signature in
`attestation_evidence.report`, so any verifier can check what the author signed.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

from ropewalk.errors import Invalid, InvalidEnvelope, InvalidJson, RopewalkError, TooLarge, Unverified
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.keys import PublicKey, SigningKey
from ropewalk.ledger.envelope import formats
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.envelope.fields import FIELDS, MINIMUM_SIGNED, EventClass, decode_base64
from ropewalk.ledger.envelope.model import Envelope, envelope_id, payload_hash, signature_preimage
from ropewalk.ledger.evidence.binding import report_data, wrap_report
from ropewalk.ledger.versions.versions import LIFECYCLE, Lifecycle, parse_minor, version_of

ORIGINAL_BYTES_MAX: Final = 512 << 10  # it is carried inside another envelope, in base64
CLASSES: Final = frozenset(get_args(EventClass))
# An adapter must not change these: a policy tag, for example, decides whether an Alert may be repeated.
_KEPT: Final = (
    "domain",
    "event_type",
    "correlation_id",
    "payload_hash",
    "confidentiality_tag",
    "policy_tag",
    "integrity_proof",
)


@dataclass(frozen=True, slots=True)
class AdaptedEnvelope:
    """Result of adapting: the new envelope, the id of the original, and a list of changes."""

    envelope: Envelope
    legacy_envelope_id: str
    changes: tuple[str, ...]


def view(envelope: Envelope, position: tuple[int, int] | None = None) -> dict[str, Any]:
    """Return the envelope as newer code reads it, with no field missing. For reading only; its id is the original's.

    The chain is made from the correlation id, or from the position in the log if there is none. A missing level is
    public; a policy may still deny it.

    >>> from ropewalk.kernel.keys import SigningKey
    >>> old = build(SigningKey.generate("ed25519", bytes(32)), domain="d", event_class="Alert", event_type="t",
    ...             payload=1, timestamp="2024-11-01T12:00:00Z")
    >>> view(old, (3, 0))["causality_chain"], view(old)["confidentiality_tag"]
    (['block:3/0'], {'level': 'public'})
    """
    return read_as(envelope.value, position)


def read_as(
    value: dict[str, Any], position: tuple[int, int] | None = None, minor: str | None = None
) -> dict[str, Any]:
    """Return an envelope's value as code of a minor version reads it; without one, as the newest does.

    An older reader of the same major version gets no field that it does not know. A newer major version reads `legacy`
    where a field was not required yet. No reader understands a newer major version.
    """
    said = version_of(value["protocol_version"])
    at = parse_minor(minor) if minor is not None else said[:2]
    if said[0] > at[0]:
        raise Unverified(f"version {value['protocol_version']} cannot be read by an adapter for {minor}.x")
    known = formats.FORMATS.of(f"{at[0]}.{at[1]}")
    out = {name: each for name, each in value.items() if name in FIELDS or name in known}
    out |= {name: each.legacy for name, each in known.items() if each.required and name not in value}
    if "causality_chain" not in out:
        if out.get("correlation_id") is not None:
            out["causality_chain"] = [out["correlation_id"]]
        elif position is not None:
            out["causality_chain"] = [f"block:{position[0]}/{position[1]}"]
    out.setdefault("confidentiality_tag", {"level": "public"})
    return out


def adapt(
    raw: bytes, key: SigningKey, timestamp: str, table: Sequence[Lifecycle] = LIFECYCLE
) -> AdaptedEnvelope:
    """Return an envelope of a newer minor version, adapted to one we can accept. The author's signature must be valid.

    Unknown fields are dropped and an unknown class becomes Observation; the original keeps both.
    """
    value, changes = _read(raw), []
    major, minor, _ = version_of(str(value.get("protocol_version")))
    known = sorted(tuple(map(int, each.minor.split("."))) for each in table)
    same = [each for each in known if each[0] == major]
    if not same:
        raise Unverified(f"version {value['protocol_version']} has an unsupported major version")
    if (major, minor) in same and value.get("event_class") not in CLASSES:
        raise InvalidEnvelope(
            f"class {str(value.get('event_class'))[:40]!r} does not exist in {major}.{minor}"
        )
    if (major, minor) < same[0]:
        raise Unverified(f"version {value['protocol_version']} is older than the oldest supported version")
    target = max(each for each in same if each <= (major, minor))
    if target != (major, minor):
        changes.append(f"version {value['protocol_version']} read as {target[0]}.{target[1]}.0")
    if value["event_class"] not in CLASSES:
        changes.append(f"class {str(value['event_class'])[:40]} read as Observation")
        value = {**value, "event_class": "Observation"}
    known_fields = formats.FORMATS.of(f"{target[0]}.{target[1]}")
    unknown = sorted(value.keys() - set(FIELDS) - known_fields.keys())
    if unknown:
        changes.append(f"left out: {', '.join(unknown)[:200]}")
    version = f"{target[0]}.{target[1]}.0" if changes else value["protocol_version"]
    return resign(raw, key, timestamp, value=value, protocol_version=version, changes=tuple(changes))


def resign(
    raw: bytes,
    key: SigningKey,
    timestamp: str,
    *,
    value: dict[str, Any] | None = None,
    protocol_version: str | None = None,
    changes: tuple[str, ...] = (),
) -> AdaptedEnvelope:
    """Verify the original, then return a new envelope, signed by `key`, that carries it."""
    if len(raw) > ORIGINAL_BYTES_MAX:
        raise TooLarge(
            f"an envelope of {len(raw)} bytes is too large to be carried inside another",
            size=len(raw),
            limit=ORIGINAL_BYTES_MAX,
        )
    original = _read(raw)
    canonical = jcs.encode(original)
    _check_author(original)
    value = value or original
    name = envelope_id(canonical).hex()
    correlation_id = cast("str | None", original.get("correlation_id"))
    report: dict[str, Any] = {
        "legacy_envelope_id": name,
        "legacy_envelope": b64encode(canonical).decode(),
        "legacy_signature": original["signature"],
        "report_data": report_data(bytes.fromhex(original["payload_hash"]), correlation_id).hex(),
    }
    ref = value.get("payload_ref")
    detached = ref if ref is not None and value.get("payload") is None else None
    envelope = build(
        key,
        domain=value["domain"],
        event_class=value["event_class"],
        event_type=value["event_type"],
        payload=value.get("payload"),
        timestamp=timestamp,
        correlation_id=correlation_id,
        ancestors=(*_ancestors(original), name) if value["event_class"] == "Result" else (),
        detached=detached,
        hash_of_detached=original["payload_hash"] if detached is not None else None,
        evidence=wrap_report("tee.report", report),
        label="adapter",
        protocol_version=protocol_version or original["protocol_version"],
        integrity_proof=value.get("integrity_proof"),
        confidentiality=value.get("confidentiality_tag"),
        policy_tag=value.get("policy_tag"),
        added={name: value[name] for name in _added_names(protocol_version, original) if name in value},
    )
    return AdaptedEnvelope(envelope, name, (*changes, "signed again"))


def _added_names(version: str | None, original: dict[str, Any]) -> Iterable[str]:
    """Return the added fields that an envelope of the version may have."""
    return formats.FORMATS.of(str(version or original["protocol_version"]).rpartition(".")[0])


def _ancestors(original: dict[str, Any]) -> list[str]:
    """Return the ids in the original's causality chain; a Result may come from a version that requires none."""
    chain = original.get("causality_chain")
    return [each for each in chain[:-1] if isinstance(each, str)] if isinstance(chain, list) else []


def original_of(envelope: Envelope) -> bytes | None:
    """Return the original bytes an adapted envelope carries, or None. Their hash must match the id it names."""
    report = (envelope.value.get("attestation_evidence") or {}).get("report") or {}
    name, text = report.get("legacy_envelope_id"), report.get("legacy_envelope")
    if not isinstance(name, str) or not isinstance(text, str):
        return None
    raw = decode_base64(text, "/attestation_evidence/report/legacy_envelope")
    if envelope_id(raw).hex() != name:
        raise Unverified(f"the carried original does not have id {name[:64]}")
    return raw


def check_adapted(envelope: Envelope) -> dict[str, Any]:
    """Return the original's value if the adapted envelope matches it and the author's signature is valid."""
    raw = original_of(envelope)
    if raw is None:
        raise Invalid("this envelope carries no original")
    try:
        value = _formed(jcs.parse_canonical(raw))
    except (InvalidEnvelope, InvalidJson) as error:
        raise Unverified(f"the carried original is not a valid envelope: {error.detail}") from error
    _check_author(value)
    names = _KEPT if value["payload"] is not None else (*_KEPT, "payload_ref")
    for name in (*names, *_added_names(None, envelope.value)):
        if value.get(name) != envelope.value.get(name):
            raise Unverified(f"{name} must equal the original's value")
    kind = value["event_class"] if value["event_class"] in CLASSES else "Observation"
    if envelope.event_class != kind:
        raise Unverified("event_class must equal the original's value")
    return value


def _read(raw: bytes) -> dict[str, Any]:
    return _formed(jcs.parse(raw))


def _formed(value: jcs.Json) -> dict[str, Any]:
    """Return the value if the members read here have the right types; other members depend on its version."""
    if not isinstance(value, dict):
        raise InvalidEnvelope("an envelope must be a JSON object")
    needed = {
        "protocol_version": str,
        "domain": str,
        "event_class": str,
        "event_type": str,
        "timestamp": str,
        "origin_identity": dict,
        "payload_hash": str,
        "signature": dict,
    }
    for name, kind in needed.items():
        if not isinstance(value.get(name), kind):
            raise InvalidEnvelope(f"{name} is missing or has the wrong type", where=f"/{name}")
    if "payload" not in value:
        raise InvalidEnvelope("payload is missing", where="/payload")
    if not isinstance(value.get("correlation_id"), str | None):
        raise InvalidEnvelope("correlation_id must be a string", where="/correlation_id")
    if hash_from_hex(value["payload_hash"]) is None:
        raise InvalidEnvelope("payload_hash must be 64 lowercase hex digits", where="/payload_hash")
    return cast("dict[str, Any]", value)


def author_key(value: dict[str, Any]) -> PublicKey:
    """Return the key of an original's author; other members than its identity and signature are not read."""
    identity = value["origin_identity"]
    kind = identity.get("identity_type")
    alg = value["signature"].get("alg") if kind == "attested-domain" else kind
    return PublicKey.from_text(str(alg), str(identity.get("public_key")))


def _check_author(value: dict[str, Any]) -> None:
    """Verify the original's own signature and payload hash."""
    signature = value["signature"]
    names = signature.get("signed_fields")
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise Unverified("the original must list its signed fields")
    if not set(MINIMUM_SIGNED) <= set(names):
        raise Unverified("the original does not sign all required fields")
    try:
        author_key(value).verify(
            signature_preimage(value), decode_base64(str(signature.get("sig")), "/signature/sig")
        )
    except RopewalkError as error:
        raise Unverified(f"the original's signature: {error.detail}") from error
    detached = value.get("payload") is None and value.get("payload_ref") is not None
    if not detached and payload_hash(value.get("payload")) != value["payload_hash"]:
        raise Unverified("the original's payload_hash does not match its payload")
