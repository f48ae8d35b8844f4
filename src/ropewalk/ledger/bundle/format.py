"""Bundles (S4 §12): a range of blocks with everything needed to verify it offline, in one file.

    bundle.manifest.json     what is inside, with the digest and size of every other file
    bundle.manifest.sig      the signature over the manifest
    headers.jsonl            one block record per line
    blocks/<height>.jsonl    one envelope per line, its exact bytes
    proofs/<height>.jsonl    for each envelope its id, its index and the path to the block's root
    cbor/<height>.cbor       the same envelopes as a CBOR sequence (RFC 8742), if both encodings were asked for

The manifest comes first and names all digests, so blocks are gathered before anything can be written: `BundleBuilder`
takes blocks one by one and returns the bytes of two members, which the caller stores; it keeps only
digests and headers. The manifest also holds the anchors, if there are any. `check` verifies the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from blake3 import blake3

from ropewalk.errors import BrokenLink, DigestMismatch, RangeExceeded
from ropewalk.kernel import cbor, jcs, merkle
from ropewalk.kernel.digest import Tag
from ropewalk.kernel.keys import Signature, SigningKey
from ropewalk.kernel.proofs import pack_leaves
from ropewalk.ledger.block.block import Block, Header
from ropewalk.ledger.block.leaves import tree_levels
from ropewalk.ledger.bundle.anchors import BundleAnchor, check_anchor, pick_anchors
from ropewalk.ledger.bundle.manifest import BUNDLE_BLOCKS_MAX, BundleManifest
from ropewalk.ledger.bundle.manifest_fields import File
from ropewalk.ledger.bundle.tar import END, member_header, padding
from ropewalk.ledger.envelope.model import envelope_id
from ropewalk.ledger.keys.history import KeyProof

MANIFEST: Final = "bundle.manifest.json"
SIGNATURE: Final = "bundle.manifest.sig"
HEADERS: Final = "headers.jsonl"


def block_name(height: int) -> str:
    """Return the name of the member with a block's envelopes.

    >>> block_name(7)
    'blocks/0000000007.jsonl'
    """
    return f"blocks/{height:010d}.jsonl"


def proof_name(height: int) -> str:
    """Return the name of the member with a block's paths.

    >>> proof_name(7)
    'proofs/0000000007.jsonl'
    """
    return f"proofs/{height:010d}.jsonl"


def cbor_name(height: int) -> str:
    """Return the name of the member with a block's envelopes in CBOR.

    >>> cbor_name(7)
    'cbor/0000000007.cbor'
    """
    return f"cbor/{height:010d}.cbor"


def member_names(heights: Sequence[int], *, both: bool = False) -> Iterator[str]:
    """Yield the members after manifest and signature, in order; with `both`, also those in CBOR.

    >>> list(member_names([4]))
    ['headers.jsonl', 'blocks/0000000004.jsonl', 'proofs/0000000004.jsonl']
    """
    yield HEADERS
    yield from map(block_name, heights)
    yield from map(proof_name, heights)
    if both:
        yield from map(cbor_name, heights)


def frame_member(name: str, raw: bytes) -> bytes:
    """Return a member as stored in the archive.

    >>> len(frame_member("headers.jsonl", b"x"))
    1024
    """
    return b"".join((member_header(name, len(raw)), raw, padding(len(raw))))


def prove_block(ids: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the root over these envelope ids, and the proofs file.

    Texts are built from the root down: the path of a node is its sibling followed by its parent's path, so all leaves
    below a node share the upper part.

    >>> prove_block([bytes(32)])[0] == bytes(32)
    True
    """
    levels = tree_levels(pack_leaves(ids))
    paths = [""]
    for level in reversed(levels[:-1]):
        text = level.hex()
        names = [text[at : at + 64] for at in range(0, len(text), 64)]
        tails = [f'","{path}' if path else "" for path in paths]
        fresh: list[str] = []
        for left, right, tail in zip(names[::2], names[1::2], tails, strict=False):
            fresh.append(right + tail)
            fresh.append(left + tail)
        if len(names) & 1:  # the odd node moves up: its path is its parent's
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
    """Return the detached payloads of canonical envelopes, as the manifest lists them."""
    for name, raw in zip(ids, envelopes, strict=True):
        if b'"payload_ref":{' not in raw:
            continue  # most have none, and canonical bytes have one encoding of the name
        value = jcs.parse(raw)
        if isinstance(value, dict) and value.get("payload_ref") and value.get("payload") is None:
            ref, hash_ = value["payload_ref"], value.get("payload_hash")
            yield {"envelope_id": name.hex(), "payload_ref": ref, "payload_hash": hash_}


class BundleBuilder:
    """Collects the blocks of one range for a bundle.

    >>> from ropewalk.ledger.block.block import GENESIS, seal
    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> gathering = BundleBuilder()
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
        self._leaves: list[bytes] = []
        self._blocks: list[File] = []
        self._proofs: list[File] = []
        self._cbor: list[File] = []
        self._refs: list[dict[str, Any]] = []
        self._keys: dict[int, KeyProof] = {}
        self._last: Header | None = None

    def add(self, block: Block) -> tuple[bytes, bytes]:
        """Return the two members of the next block; the caller stores them until the manifest is made."""
        header, last = block.header, self._last
        if last is not None and (header.height, header.prev_block_hash) != (last.height + 1, last.hash):
            raise BrokenLink(f"block {header.height} does not follow block {last.height}")
        if len(self._hashes) == BUNDLE_BLOCKS_MAX:
            raise RangeExceeded(
                f"a bundle must have at most {BUNDLE_BLOCKS_MAX} blocks",
                advice="Split the range: `bundle export --chunk N` writes several files.",
            )
        ids = [envelope_id(raw) for raw in block.envelopes]
        lines = b"\n".join(block.envelopes) + b"\n"
        root, proofs = prove_block(ids)
        if root != header.merkle_root:
            raise DigestMismatch(
                f"block {header.height}: its envelopes do not match its header",
                expected=header.merkle_root.hex(),
                got=root.hex(),
                where="merkle_root",
            )
        self._blocks.append(File(block_name(header.height), blake3(lines).hexdigest(), len(lines)))
        self._proofs.append(File(proof_name(header.height), blake3(proofs).hexdigest(), len(proofs)))
        self._headers.append(block.record.raw + b"\n")
        self._hashes.append(header.hash)
        self._leaves.append(merkle.SHA256.leaf(header.encode()))
        self._refs.extend(find_refs(ids, block.envelopes))
        if (said := KeyProof.of(block)) is not None:
            self._keys[header.height] = said
        self._last = header
        return lines, proofs

    def add_cbor(self, block: Block) -> bytes:
        """Return the CBOR member of a block that was added; every block of a bundle has one, or none."""
        raw = b"".join(cbor.encode(jcs.parse(each)) for each in block.envelopes)
        self._cbor.append(File(cbor_name(block.height), blake3(raw).hexdigest(), len(raw)))
        return raw

    @property
    def headers(self) -> bytes:
        """Return the member with the block records."""
        return b"".join(self._headers)

    def finish(
        self,
        key: SigningKey,
        created_at: str | None = None,
        anchors: Iterable[BundleAnchor] = (),
        keys: Iterable[KeyProof] = (),
    ) -> BundleManifest:
        """Return the manifest. Its time is the last block's unless given, so the same range gives the same bytes.

        `keys` are key statements outside of the range; those inside are found here.
        """
        last = self._last
        if last is None:
            raise RangeExceeded("a bundle must have at least one block")
        picked = pick_anchors(anchors)
        for anchor in picked:
            check_anchor(anchor, last.channel, last.height + 1 - len(self._leaves), self._leaves)
        headers = self.headers
        return BundleManifest(
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
                *self._cbor,
            ),
            tuple(file.name for file in self._proofs),
            picked,
            tuple(
                sorted({**{each.record.height: each for each in keys}, **self._keys}.values(), key=_height)
            ),
            both=bool(self._cbor),
        )

    def front(self, manifest: BundleManifest, key: SigningKey) -> bytes:
        """Return the archive up to the blocks: manifest, signature, headers. Blocks, proofs and `END` follow."""
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
        files = [*self._blocks, *self._proofs, *self._cbor]
        return len(front) + sum(512 + file.size + -file.size % 512 for file in files) + len(END)


def _height(proof: KeyProof) -> int:
    return proof.record.height
