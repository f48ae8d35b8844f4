"""Bundles (S4 §12): a range of blocks with everything a stranger needs to check it, in one file.

    bundle.manifest.json     what is inside, with the digest and size of every other file
    bundle.manifest.sig      the signature over the manifest
    headers.jsonl            one block record a line
    blocks/<height>.jsonl    one envelope a line, its exact bytes
    proofs/<height>.jsonl    for each envelope its id, its index and the path to the block's root

The manifest comes first and names all digests, so blocks are gathered before anything can be written: `Gathering`
takes blocks one by one and hands back the bytes of two members, which the caller keeps aside; it remembers only
digests and headers. `bundlecheck` reads what is made here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from blake3 import blake3

from ropewalk.errors import BrokenLink, DigestMismatch, Invalid, RangeExceeded
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import Tag, hash_from_hex
from ropewalk.kernel.keys import PublicKey, Signature, SigningKey
from ropewalk.kernel.proofs import HASH_BYTES, pack_leaves
from ropewalk.ledger.block import Block, Header
from ropewalk.ledger.envelope import envelope_id
from ropewalk.ledger.tar import END, member_header, padding

__all__ = [
    "BUNDLE_BLOCKS_MAX",
    "HEADERS",
    "MANIFEST",
    "SIGNATURE",
    "File",
    "Gathering",
    "Manifest",
    "block_name",
    "frame_member",
    "member_names",
    "parse_manifest",
    "proof_lines",
    "proof_name",
    "prove_block",
]

MANIFEST: Final = "bundle.manifest.json"
SIGNATURE: Final = "bundle.manifest.sig"
HEADERS: Final = "headers.jsonl"
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
        return jcs.encode(value)


def block_name(height: int) -> str:
    """The member that holds a block's envelopes.

    >>> block_name(7)
    'blocks/0000000007.jsonl'
    """
    return f"blocks/{height:010d}.jsonl"


def proof_name(height: int) -> str:
    """The member that holds a block's paths.

    >>> proof_name(7)
    'proofs/0000000007.jsonl'
    """
    return f"proofs/{height:010d}.jsonl"


def member_names(heights: Sequence[int]) -> Iterator[str]:
    """The members after manifest and signature, in their order.

    >>> list(member_names([4]))
    ['headers.jsonl', 'blocks/0000000004.jsonl', 'proofs/0000000004.jsonl']
    """
    yield HEADERS
    yield from map(block_name, heights)
    yield from map(proof_name, heights)


def frame_member(name: str, raw: bytes) -> bytes:
    """A member as it stands in the archive.

    >>> len(frame_member("headers.jsonl", b"x"))
    1024
    """
    return b"".join((member_header(name, len(raw)), raw, padding(len(raw))))


def proof_lines(ids: Sequence[bytes]) -> bytes:
    """The proofs file of a block with these envelope ids.

    >>> proof_lines([bytes(32)])[-24:]
    b'0","index":0,"path":[]}\\n'
    """
    return prove_block(ids)[1]


def prove_block(ids: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The root over these envelope ids, and the proofs file.

    Texts are built from the root down: the path of a node is its sibling before its parent's path, so all leaves below
    a node share what stands above it.

    >>> prove_block([bytes(32)])[0] == bytes(32)
    True
    """
    levels = [pack_leaves(ids)]
    while len(levels[-1]) > HASH_BYTES:
        below = levels[-1]
        odd = len(below) % (2 * HASH_BYTES)
        levels.append(merkle.LEDGER.level(below[: len(below) - odd]) + below[len(below) - odd :])
    paths = [""]
    for level in reversed(levels[:-1]):
        text = level.hex()
        names = [text[at : at + 64] for at in range(0, len(text), 64)]
        tails = [f'","{path}' if path else "" for path in paths]
        fresh: list[str] = []
        for left, right, tail in zip(names[::2], names[1::2], tails, strict=False):
            fresh.append(right + tail)
            fresh.append(left + tail)
        if len(names) & 1:  # the odd one rises: its path is its parent's
            fresh.append(paths[-1])
        paths = fresh
    text = levels[0].hex()
    lines = [
        f'{{"envelope_id":"{text[64 * index : 64 * index + 64]}","index":{index},"path":["{path}"]}}\n'
        for index, path in enumerate(paths)
    ]
    if len(lines) == 1:
        lines = [lines[0].replace('[""]', "[]")]
    return levels[-1], "".join(lines).encode("ascii")


def find_refs(ids: Sequence[bytes], envelopes: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    """The detached payloads among canonical envelopes, as the manifest lists them."""
    for name, raw in zip(ids, envelopes, strict=True):
        if b'"payload_ref":{' not in raw:
            continue  # most have none, and the name cannot be spelt otherwise in canonical bytes
        value = jcs.parse(raw)
        if isinstance(value, dict) and value.get("payload_ref") and value.get("payload") is None:
            ref, hash_ = value["payload_ref"], value.get("payload_hash")
            yield {"envelope_id": name.hex(), "payload_ref": ref, "payload_hash": hash_}


class Gathering:
    """Blocks of one range on their way into a bundle.

    >>> from ropewalk.ledger.block import GENESIS, seal
    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> gathering = Gathering()
    >>> blocks, proofs = gathering.add(seal(
    ...     key, channel="ea.core", height=0, prev_block_hash=GENESIS, envelopes=[b"{}"], timestamp_ns=7))
    >>> blocks
    b'{}\\n'
    >>> gathering.finish(key).created_at
    '7'
    """

    def __init__(self) -> None:
        self._headers: list[bytes] = []
        self._hashes: list[bytes] = []
        self._blocks: list[File] = []
        self._proofs: list[File] = []
        self._refs: list[dict[str, Any]] = []
        self._last: Header | None = None

    def add(self, block: Block) -> tuple[bytes, bytes]:
        """The two members of the next block; the caller keeps them until the manifest is made."""
        header, last = block.header, self._last
        if last is not None and (header.height, header.prev_block_hash) != (last.height + 1, last.hash):
            raise BrokenLink(f"block {header.height} does not stand on block {last.height}")
        if len(self._hashes) == BUNDLE_BLOCKS_MAX:
            raise RangeExceeded(
                f"more than {BUNDLE_BLOCKS_MAX} blocks for one bundle",
                advice="Cut the range: `bundle export --chunk N` writes several files.",
            )
        ids = [envelope_id(raw) for raw in block.envelopes]
        lines = b"\n".join(block.envelopes) + b"\n"
        root, proofs = prove_block(ids)
        if root != header.merkle_root:
            raise DigestMismatch(
                f"block {header.height}: its envelopes are not those its header names",
                expected=header.merkle_root.hex(),
                got=root.hex(),
                where="merkle_root",
            )
        self._blocks.append(File(block_name(header.height), blake3(lines).hexdigest(), len(lines)))
        self._proofs.append(File(proof_name(header.height), blake3(proofs).hexdigest(), len(proofs)))
        self._headers.append(block.record.raw + b"\n")
        self._hashes.append(header.hash)
        self._refs.extend(find_refs(ids, block.envelopes))
        self._last = header
        return lines, proofs

    @property
    def headers(self) -> bytes:
        """The member with the block records."""
        return b"".join(self._headers)

    def finish(self, key: SigningKey, created_at: str | None = None) -> Manifest:
        """The manifest. Its time is the last block's unless given, so that the same range gives the same bytes."""
        last = self._last
        if last is None:
            raise RangeExceeded("a bundle holds at least one block")
        headers = self.headers
        return Manifest(
            last.channel,
            last.height + 1 - len(self._hashes),
            last.height,
            tuple(each.hex() for each in self._hashes),
            merkle.root(self._hashes, merkle.RANGE).hex(),
            tuple(self._refs),
            None if last.policy_hash is None else last.policy_hash.hex(),
            created_at if created_at is not None else str(last.timestamp_ns),
            key.public,
            (
                File(HEADERS, blake3(headers).hexdigest(), len(headers)),
                *self._blocks,
                *self._proofs,
            ),
            tuple(file.name for file in self._proofs),
        )

    def front(self, manifest: Manifest, key: SigningKey) -> bytes:
        """The archive up to the blocks: manifest, signature, headers. Blocks, proofs and `END` follow."""
        raw = manifest.to_bytes()
        signature = Signature(key.alg, key.sign(Tag.BUNDLE + raw))
        return b"".join(
            (
                frame_member(MANIFEST, raw),
                frame_member(SIGNATURE, jcs.encode(signature.to_json())),
                frame_member(HEADERS, self.headers),
            )
        )

    def archive_size(self, front: bytes) -> int:
        """How many bytes the whole archive has."""
        files = [*self._blocks, *self._proofs]
        return len(front) + sum(512 + file.size + -file.size % 512 for file in files) + len(END)


def parse_manifest(raw: bytes) -> Manifest:
    """A manifest from its canonical bytes; form only.

    >>> parse_manifest(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: manifest: expected exactly the members of a bundle manifest
    """
    value = jcs.parse_canonical(raw)
    if not isinstance(value, dict) or value.keys() != _NAMES:
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
