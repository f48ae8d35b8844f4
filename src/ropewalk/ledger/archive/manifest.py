"""Archives (S4 §13): a closed range of blocks for write-once storage, with a signed, linked manifest.

    archive.manifest.json    what is inside, with the digest and size of every other file
    archive.manifest.sig     the signature of the channel's key over the manifest
    blocks.seg.zst           the blocks, as a segment holds them, packed with Zstandard
    channel.json …           the settings that verification depends on
    keyproofs.json           key statements of the channel with their sealed blocks, if any

`ArchiveChain` takes manifests one after another: archives that follow one another without
a gap, each naming the digest of the previous manifest, prove as much as the channel itself up to their last block.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final

from ropewalk.errors import BrokenLink, Invalid, RopewalkError, SigInvalid
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import Tag, blake3, tagged
from ropewalk.kernel.keys import PublicKey, Signature, SigningKey
from ropewalk.ledger.block.block import GENESIS
from ropewalk.ledger.bundle.manifest_fields import File, ManifestForm
from ropewalk.ledger.json_form import members_of

MANIFEST: Final = "archive.manifest.json"
SIGNATURE: Final = "archive.manifest.sig"
BLOCKS: Final = "blocks.seg.zst"
KEY_PROOFS: Final = "keyproofs.json"
SETTINGS: Final = ("channel.json", "policy.json", "evidence.json", "lifecycle.json")
SIGNATURE_BYTES_MAX: Final = 1 << 10
ARCHIVE_MANIFEST_BYTES_MAX: Final = 4 << 20  # three times the size for so many blocks
ARCHIVE_BLOCKS_MAX: Final = 16_384  # the manifest of so many is a megabyte; a longer range is split

_FORM: Final = ManifestForm("archive manifest", "Take this archive from another copy; it cannot be repaired.")
_FORK: Final = re.compile(r"fork-(?:0|[1-9][0-9]{0,19})-[0-9a-f]{16}\.json")


@dataclass(frozen=True, slots=True)
class ArchiveManifest:
    """The contents of an archive as its manifest lists them.

    `range_root` is over its own blocks, `outer_root` over all blocks of the channel up to its last. `previous` is the
    digest of the previous manifest; only the first has none.
    """

    channel: str
    start_height: int
    end_height: int
    block_hashes: tuple[str, ...]
    range_root: str
    outer_root: str
    previous: str | None
    envelopes: int
    detached_payloads: int
    policy_hash: str | None
    created_at: str
    signer: PublicKey
    files: tuple[File, ...]

    def to_bytes(self) -> bytes:
        """Return the canonical bytes, which are signed."""
        return jcs.encode({"version": 1, **members_of(self)})


def parse_archive_manifest(raw: bytes) -> ArchiveManifest:
    """Parse a manifest from its canonical bytes; only the form is checked.

    >>> parse_archive_manifest(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: archive manifest: expected exactly the members of an archive manifest
    """
    found = jcs.parse_canonical(raw, bytes_max=ARCHIVE_MANIFEST_BYTES_MAX)
    expected = "exactly the members of an archive manifest"
    value = _FORM.members(found, [field.name for field in fields(ArchiveManifest)], expected)
    if not isinstance(value["channel"], str) or not isinstance(value["created_at"], str):
        raise _FORM.wrong("channel and created_at must be strings")
    start, end = _FORM.natural(value, "start_height"), _FORM.natural(value, "end_height")
    hashes = _FORM.items(value, "block_hashes")
    if not start <= end < start + ARCHIVE_BLOCKS_MAX or len(hashes) != end - start + 1:
        raise _FORM.wrong(
            f"block_hashes must have one item per height from {start} to {end}, got {len(hashes)}"
        )
    files = tuple(map(_file, _FORM.items(value, "files")))
    names = [file.name for file in files]
    if BLOCKS not in names or len(set(names)) != len(names):
        raise _FORM.wrong(f"files must list {BLOCKS}, and every file once")
    return ArchiveManifest(
        value["channel"],
        start,
        end,
        tuple(_FORM.digest(each, "block_hashes") for each in hashes),
        _FORM.digest(value["range_root"], "range_root"),
        _FORM.digest(value["outer_root"], "outer_root"),
        None if value["previous"] is None else _FORM.digest(value["previous"], "previous"),
        _FORM.natural(value, "envelopes"),
        _FORM.natural(value, "detached_payloads"),
        None if value["policy_hash"] is None else _FORM.digest(value["policy_hash"], "policy_hash"),
        value["created_at"],
        PublicKey.from_json(value["signer"]),
        files,
    )


def is_archived_name(name: str) -> bool:
    """Return whether a manifest may list a file of that name: no other file is ever opened.

    >>> is_archived_name("policy.json"), is_archived_name("../policy.json")
    (True, False)
    """
    return name in (BLOCKS, KEY_PROOFS) or name in SETTINGS or _FORK.fullmatch(name) is not None


def sign_manifest(raw: bytes, key: SigningKey) -> bytes:
    """Return the signature file of a manifest.

    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> sign_manifest(b"{}", key)[:16]
    b'{"alg":"ed25519"'
    """
    return jcs.encode(Signature(key.alg, key.sign(Tag.ARCHIVE + raw)).to_json())


def check_manifest_signature(raw: bytes, signature: bytes, signer: PublicKey) -> None:
    """Raise unless the signature file is valid for these manifest bytes and that key.

    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> check_manifest_signature(b"{}", sign_manifest(b"{}", key), key.public)
    """
    try:
        found = Signature.from_json(jcs.parse_canonical(signature, bytes_max=SIGNATURE_BYTES_MAX))
        if found.alg != signer.alg:
            raise Invalid(f"{found.alg} signature of a {signer.alg} key")
        signer.verify(Tag.ARCHIVE + raw, found.raw)
    except RopewalkError as error:
        raise SigInvalid(f"the manifest's signature: {error.detail}") from error


def listed_hash(record: bytes) -> str:
    """Return the block hash of a stored record, as manifests list it, without parsing the record.

    The block check verifies that the record is canonical; for any other record this is not its hash.

    >>> from ropewalk.ledger.block.block import seal
    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> one = seal(key, channel="ea.core", height=0, prev_block_hash=GENESIS, envelopes=[b"{}"], timestamp_ns=7)
    >>> listed_hash(one.record.raw) == one.hash.hex()
    True
    """
    # The last one: a header may hold any text, but not what follows the signature.
    return tagged(Tag.BLOCK, record[len(b'{"header":') : record.rfind(b',"signature":{')]).hex()


class ArchiveChain:
    """The archives of one channel so far: their end, and the root over all their blocks.

    >>> ArchiveChain().height
    0
    """

    def __init__(self) -> None:
        self.channel: str | None = None
        self.height = 0  # height of the next block
        self.block_hash = GENESIS
        self.previous: str | None = None
        self._outer = merkle.Frontier(merkle.RANGE)

    @property
    def outer_root(self) -> bytes:
        """Return the root over all blocks so far."""
        return self._outer.root()

    def grown(self, block_hashes: Iterable[bytes]) -> merkle.Frontier:
        """Return the tree edge after these blocks, without taking them."""
        edge = merkle.Frontier.from_bytes(self._outer.to_bytes(), merkle.RANGE)
        for each in block_hashes:
            edge.append(each)
        return edge

    def follow(self, manifest: ArchiveManifest, raw: bytes) -> None:
        """Take the next manifest with its bytes; raise if it does not follow the previous ones."""
        if self.channel is not None and manifest.channel != self.channel:
            raise BrokenLink(f'it belongs to channel "{manifest.channel}", expected "{self.channel}"')
        if manifest.start_height > self.height:
            missing = f"{self.height} to {manifest.start_height - 1}"
            raise BrokenLink(f"blocks {missing} are in no archive", height=self.height)
        if manifest.start_height < self.height:
            raise BrokenLink(
                f"it begins at block {manifest.start_height}, which the archive before it holds",
                height=manifest.start_height,
            )
        if manifest.previous != self.previous:
            raise BrokenLink(
                f"previous must be {self.previous or 'none'}, got {manifest.previous or 'no manifest'}"
            )
        hashes = [bytes.fromhex(each) for each in manifest.block_hashes]
        if merkle.root(hashes, merkle.RANGE).hex() != manifest.range_root:
            raise BrokenLink("range_root does not match its block hashes")
        outer = self.grown(hashes)
        if outer.root().hex() != manifest.outer_root:
            raise BrokenLink("outer_root does not match the block hashes so far")
        self._outer = outer
        self.channel, self.height, self.block_hash = manifest.channel, manifest.end_height + 1, hashes[-1]
        self.previous = blake3(raw).hex()


def _file(value: Any) -> File:
    found = _FORM.file(value)
    if not is_archived_name(found.name):
        raise _FORM.wrong(f"{found.name!r:.80} is not a file of an archive")
    return found
