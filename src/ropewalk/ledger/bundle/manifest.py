"""The manifest of a bundle: its contents, with the digest and size of every file. The signature covers it."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, Final, cast

from ropewalk.errors import RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.bundle.anchors import ANCHORS_MAX, BundleAnchor, parse_anchor
from ropewalk.ledger.bundle.manifest_fields import File, ManifestForm
from ropewalk.ledger.json_form import members_of
from ropewalk.ledger.keys.history import KeyProof, parse_key_proofs

BUNDLE_BLOCKS_MAX: Final = 100_000  # the manifest of more would be tens of megabytes; split the range instead

ENCODINGS: Final = ["json", "cbor"]
_OPTIONAL: Final = frozenset(("anchors", "encodings", "keys"))
_FORM: Final = ManifestForm("manifest", "Export the bundle again.")


@dataclass(frozen=True, slots=True)
class BundleManifest:
    """The contents of a bundle as its manifest lists them."""

    channel: str
    start_height: int
    end_height: int
    block_hashes: tuple[str, ...]
    range_root: str
    payload_refs: tuple[dict[str, Any], ...]
    policy_hash: str | None
    created_at: str
    signer: PublicKey
    files: tuple[File, ...]
    merkle_proofs: tuple[str, ...]
    anchors: tuple[BundleAnchor, ...] = ()
    keys: tuple[KeyProof, ...] = ()  # key statements of the channel, inside and outside the range
    both: bool = False  # whether the envelopes are there in CBOR too

    @property
    def heights(self) -> range:
        return range(self.start_height, self.end_height + 1)

    @property
    def size(self) -> int:
        """The total size of its files in bytes."""
        return sum(file.size for file in self.files)

    def to_bytes(self) -> bytes:
        """Return the canonical bytes, which are signed."""
        value = {"version": 1, **members_of(self)}
        if value.pop("both"):
            value["encodings"] = ENCODINGS
        return jcs.encode({name: each for name, each in value.items() if each or name not in _OPTIONAL})


def parse_manifest(raw: bytes) -> BundleManifest:
    """Parse a manifest from its canonical bytes; only the form is checked.

    >>> parse_manifest(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: manifest: expected exactly the members of a bundle manifest
    """
    names = [field.name for field in fields(BundleManifest) if field.default is MISSING]
    expected = "exactly the members of a bundle manifest"
    value = _FORM.members(jcs.parse_canonical(raw), names, expected, _OPTIONAL)
    start, end = _FORM.natural(value, "start_height"), _FORM.natural(value, "end_height")
    if not start <= end < start + BUNDLE_BLOCKS_MAX:
        raise _FORM.wrong(f"heights {start} to {end} must be a range of at most {BUNDLE_BLOCKS_MAX} blocks")
    if not isinstance(value["channel"], str) or not isinstance(value["created_at"], str):
        raise _FORM.wrong("channel and created_at must be strings")
    if value["policy_hash"] is not None:
        _FORM.digest(value["policy_hash"], "policy_hash")
    if value.get("encodings", ENCODINGS) != ENCODINGS:
        raise _FORM.wrong(f"encodings must be {ENCODINGS} or absent")
    anchors = _FORM.items(value, "anchors") if "anchors" in value else None
    if anchors is not None and not 1 <= len(anchors) <= ANCHORS_MAX:
        raise _FORM.wrong(f"anchors must have 1 to {ANCHORS_MAX} items or be absent, got {len(anchors)}")
    refs = _FORM.items(value, "payload_refs")
    if not all(
        isinstance(each, dict) and each.keys() == {"envelope_id", "payload_ref", "payload_hash"}
        for each in refs
    ):
        raise _FORM.wrong("payload_refs must have envelope_id, payload_ref and payload_hash")
    return BundleManifest(
        value["channel"],
        start,
        end,
        tuple(_FORM.digest(each, "block_hashes") for each in _FORM.items(value, "block_hashes")),
        _FORM.digest(value["range_root"], "range_root"),
        tuple(refs),
        cast("str | None", value["policy_hash"]),
        value["created_at"],
        PublicKey.from_json(value["signer"]),
        tuple(_FORM.file(each) for each in _FORM.items(value, "files")),
        tuple(_FORM.text(each, "merkle_proofs") for each in _FORM.items(value, "merkle_proofs")),
        tuple(map(parse_anchor, anchors or ())),
        _keys(value["keys"], value["channel"]) if "keys" in value else (),
        "encodings" in value,
    )


def _keys(value: Any, channel: str) -> tuple[KeyProof, ...]:
    try:
        found = parse_key_proofs(value)
    except RopewalkError as error:
        raise _FORM.wrong(error.detail) from error
    if any(each.record.header.channel != channel for each in found):
        raise _FORM.wrong("keys: a statement of another channel")
    return found
