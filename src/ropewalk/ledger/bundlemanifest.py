"""The manifest of a bundle: what is inside, with the digest and size of every file. It is what the signature covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

from ropewalk.errors import Invalid
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.bundleanchors import ANCHORS_MAX, Anchor, parse_anchor

__all__ = ["BUNDLE_BLOCKS_MAX", "File", "Manifest", "parse_manifest"]

BUNDLE_BLOCKS_MAX: Final = 100_000  # the manifest of more would be tens of megabytes; cut the range instead

_NAMES: Final = frozenset(
    (
        "version",
        "channel",
        "start_height",
        "end_height",
        "block_hashes",
        "range_root",
        "merkle_proofs",
        "payload_refs",
        "policy_hash",
        "created_at",
        "signer",
        "files",
    )
)


@dataclass(frozen=True, slots=True)
class File:
    """A member of the bundle as the manifest lists it."""

    name: str
    blake3: str
    size: int

    def to_json(self) -> dict[str, Any]:
        """As the manifest holds it."""
        return {"name": self.name, "blake3": self.blake3, "bytes": self.size}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle says about itself."""

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
    anchors: tuple[Anchor, ...] = ()

    @property
    def heights(self) -> range:
        """The heights it holds."""
        return range(self.start_height, self.end_height + 1)

    @property
    def size(self) -> int:
        """How many bytes its files have together."""
        return sum(file.size for file in self.files)

    def to_bytes(self) -> bytes:
        """The canonical bytes, which are signed."""
        value: dict[str, Any] = {
            "version": 1,
            "channel": self.channel,
            "start_height": self.start_height,
            "end_height": self.end_height,
            "block_hashes": list(self.block_hashes),
            "range_root": self.range_root,
            "merkle_proofs": list(self.merkle_proofs),
            "payload_refs": list(self.payload_refs),
            "policy_hash": self.policy_hash,
            "created_at": self.created_at,
            "signer": self.signer.to_json(),
            "files": [file.to_json() for file in self.files],
        }
        if self.anchors:
            value["anchors"] = [anchor.to_json() for anchor in self.anchors]
        return jcs.encode(value)


def parse_manifest(raw: bytes) -> Manifest:
    """A manifest from its canonical bytes; form only.

    >>> parse_manifest(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: manifest: expected exactly the members of a bundle manifest
    """
    value = jcs.parse_canonical(raw)
    if not isinstance(value, dict) or value.keys() - {"anchors"} != _NAMES:
        raise _wrong("expected exactly the members of a bundle manifest")
    if value["version"] != 1 or value["version"] is True:
        raise _wrong(f"version {value['version']!r:.20} is not known; 1 is")
    start, end = _natural(value, "start_height"), _natural(value, "end_height")
    if not start <= end < start + BUNDLE_BLOCKS_MAX:
        raise _wrong(f"heights {start} to {end} are no range of at most {BUNDLE_BLOCKS_MAX} blocks")
    if not isinstance(value["channel"], str) or not isinstance(value["created_at"], str):
        raise _wrong("channel and created_at are texts")
    if value["policy_hash"] is not None:
        _hash(value["policy_hash"], "policy_hash")
    anchors = _list(value, "anchors") if "anchors" in value else None
    if anchors is not None and not 1 <= len(anchors) <= ANCHORS_MAX:
        raise _wrong(f"{len(anchors)} anchors; there are 1 to {ANCHORS_MAX}, or the member is left out")
    refs = _list(value, "payload_refs")
    if not all(
        isinstance(each, dict) and each.keys() == {"envelope_id", "payload_ref", "payload_hash"}
        for each in refs
    ):
        raise _wrong("payload_refs have envelope_id, payload_ref and payload_hash")
    return Manifest(
        value["channel"],
        start,
        end,
        tuple(_hash(each, "block_hashes") for each in _list(value, "block_hashes")),
        _hash(value["range_root"], "range_root"),
        tuple(refs),
        cast("str | None", value["policy_hash"]),
        value["created_at"],
        PublicKey.from_json(value["signer"]),
        tuple(_file(each) for each in _list(value, "files")),
        tuple(_text(each, "merkle_proofs") for each in _list(value, "merkle_proofs")),
        tuple(map(parse_anchor, anchors or ())),
    )


def _file(value: Any) -> File:
    if not isinstance(value, dict) or value.keys() != {"name", "blake3", "bytes"}:
        raise _wrong("files have name, blake3 and bytes")
    return File(_text(value["name"], "files"), _hash(value["blake3"], "files"), _natural(value, "bytes"))


def _list(value: dict[str, Any], name: str) -> list[Any]:
    if not isinstance(value[name], list):
        raise _wrong(f"{name} is a list")
    return cast("list[Any]", value[name])


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise _wrong(f"{name} holds texts")
    return value


def _natural(value: dict[str, Any], name: str) -> int:
    if type(value[name]) is not int or value[name] < 0:
        raise _wrong(f"{name} is a natural number")
    return cast(int, value[name])


def _hash(value: Any, name: str) -> str:
    if hash_from_hex(value) is None:
        raise _wrong(f"{name}: hashes are 64 lower-case hex digits")
    return str(value)


def _wrong(what: str) -> Invalid:
    return Invalid(f"manifest: {what}", advice="Export the bundle again.")
