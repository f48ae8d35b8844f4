"""Blocks (S4 §2): a batch of envelopes under one root, signed with the channel's key, linked to the previous block.

A *block record* is the stored form of the header: `{"header":{…},"signature":{…},"signer":{…}}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from ropewalk.errors import (
    BrokenLink,
    DigestMismatch,
    Forked,
    Invalid,
    InvalidName,
    RopewalkError,
    SigInvalid,
    TooLarge,
)
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import Tag, hash_from_hex, tagged
from ropewalk.kernel.keys import PublicKey, Signature, SigningKey
from ropewalk.ledger.block.leaves import StoredLines, leaf_hashes, leaves_root

FORMAT: Final = 1  # header.protocol_version: the major version of this block format
GENESIS: Final = bytes(32)
BLOCK_BYTES_TARGET: Final = 1 << 20
BLOCK_BYTES_MAX: Final = 4 << 20
BLOCK_ENVELOPES_MAX: Final = 8192
HEADER_BYTES_MAX: Final = 60_000  # S4 §10 anchors headers in logs whose entries are below 64 KiB

_CHANNEL = re.compile(r"[a-z][a-z0-9._-]{0,127}")
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,19}")


@dataclass(frozen=True)
class Header:
    """The signed header of a block. Times are nanoseconds since the epoch, hashes 32 bytes.

    >>> Header("ea.core", 0, GENESIS, bytes(32), 0, bytes(32), 1).encode()[:30]
    b'{"channel":"ea.core","envelope'
    """

    channel: str
    height: int
    prev_block_hash: bytes
    merkle_root: bytes
    timestamp_ns: int
    origin_identity: bytes
    envelope_count: int
    policy_hash: bytes | None = None
    integrity_proof: jcs.Json = None
    protocol_version: int = FORMAT

    def to_json(self) -> dict[str, Any]:
        """Return the ten members, nulls kept."""
        return {
            "protocol_version": self.protocol_version,
            "channel": self.channel,
            "height": self.height,
            "prev_block_hash": self.prev_block_hash.hex(),
            "merkle_root": self.merkle_root.hex(),
            "timestamp": str(self.timestamp_ns),
            "origin_identity": self.origin_identity.hex(),
            "integrity_proof": self.integrity_proof,
            "policy_hash": None if self.policy_hash is None else self.policy_hash.hex(),
            "envelope_count": self.envelope_count,
        }

    def encode(self) -> bytes:
        """Return the canonical bytes; also the leaf data of the public log."""
        return self._raw

    @cached_property
    def _raw(self) -> bytes:
        return jcs.encode(self.to_json())

    @cached_property
    def hash(self) -> bytes:
        return tagged(Tag.BLOCK, self._raw)


_MEMBERS: Final = Header("", 0, GENESIS, GENESIS, 0, GENESIS, 1).to_json().keys()


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """A header with its signature, and the exact bytes both are stored in."""

    header: Header
    signature: Signature
    signer: PublicKey
    raw: bytes

    @property
    def hash(self) -> bytes:
        return self.header.hash

    @property
    def height(self) -> int:
        """Its place in the channel."""
        return self.header.height


@dataclass(frozen=True, slots=True)
class Block:
    """A block record with the canonical bytes of its envelopes."""

    record: BlockRecord
    envelopes: Sequence[bytes]

    @property
    def header(self) -> Header:
        return self.record.header

    @property
    def hash(self) -> bytes:
        return self.record.hash

    @property
    def height(self) -> int:
        """Its place in the channel."""
        return self.record.header.height

    def lines(self) -> list[bytes]:
        """Return the stored lines: the block record, then one envelope per line."""
        return [self.record.raw, *self.envelopes]

    @classmethod
    def from_lines(cls, lines: Sequence[bytes]) -> Block:
        """Return the block made of these lines. Only the form is checked."""
        if len(lines) < 2:
            raise Invalid("a block must have a record and at least one envelope")
        return cls(parse_record(lines[0]), lines[1:] if isinstance(lines, StoredLines) else tuple(lines[1:]))


@dataclass(frozen=True, slots=True)
class Fork:
    """Two signed blocks of one height: evidence against the key that signed both."""

    ours: BlockRecord
    theirs: BlockRecord

    def to_bytes(self) -> bytes:
        """Return both sides as one canonical document."""
        sides = {"ours": jcs.parse(self.ours.raw), "theirs": jcs.parse(self.theirs.raw)}
        return jcs.encode({"version": 1, "kind": "fork", "height": self.ours.height, **sides})

    def error(self) -> Forked:
        """Return the error that carries both hashes."""
        return Forked(
            f"channel {self.ours.header.channel}: blocks {self.ours.hash.hex()[:16]}… and "
            f"{self.theirs.hash.hex()[:16]}… both claim height {self.ours.height}",
            height=self.ours.height,
            ours=self.ours.hash.hex(),
            theirs=self.theirs.hash.hex(),
        )


def seal(
    key: SigningKey,
    *,
    channel: str,
    height: int,
    prev_block_hash: bytes,
    envelopes: Sequence[bytes],
    timestamp_ns: int,
    policy_hash: bytes | None = None,
    leaves: Sequence[bytes] | None = None,
    prove: Callable[[bytes], jcs.Json] | None = None,
) -> Block:
    """Make and sign a block over canonical envelopes. `leaves` are their ids, if the caller has computed them.

    `prove` makes the integrity_proof of the header from its merkle_root.

    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> block = seal(key, channel="ea.core", height=0, prev_block_hash=GENESIS, envelopes=[b"{}"], timestamp_ns=1)
    >>> parse_record(block.record.raw) == block.record
    True
    """
    check_size(envelopes)
    root = leaves_root(leaf_hashes(envelopes) if leaves is None else merkle.pack_leaves(leaves))
    header = Header(
        channel,
        height,
        prev_block_hash,
        root,
        timestamp_ns,
        key.public.identity(),
        len(envelopes),
        policy_hash,
        None if prove is None else prove(root),
    )
    if len(header.encode()) > HEADER_BYTES_MAX:  # no reader would take it
        raise TooLarge(
            f"header of {len(header.encode())} bytes", size=len(header.encode()), limit=HEADER_BYTES_MAX
        )
    signature = Signature(key.alg, key.sign(Tag.BLOCK_SIGNATURE + header.encode()))
    signed = jcs.encode({"signature": signature.to_json(), "signer": key.public.to_json()})
    raw = b'{"header":%b,%b' % (header.encode(), signed[1:])  # canonical: its members are, and in order
    return Block(BlockRecord(header, signature, key.public, raw), tuple(envelopes))


def parse_record(raw: bytes) -> BlockRecord:
    """Parse a block record from its canonical bytes. Checks its form and that signer and header agree, not the
    signature.

    >>> parse_record(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: block record: expected exactly header, signature and signer
    """
    value = jcs.parse_canonical(raw)
    if not isinstance(value, dict) or value.keys() != {"header", "signature", "signer"}:
        raise _wrong("expected exactly header, signature and signer")
    header = _parse_header(value["header"])
    if len(header.encode()) > HEADER_BYTES_MAX:
        raise _wrong(f"header must have at most {HEADER_BYTES_MAX} bytes, got {len(header.encode())}")
    return BlockRecord(
        header, Signature.from_json(value["signature"]), PublicKey.from_json(value["signer"]), raw
    )


def check_signature(record: BlockRecord, signers: Iterable[PublicKey] | None = None) -> None:
    """Raise unless the signature is valid, the header names its signer, and `signers`, if given, has it."""
    if record.header.origin_identity != record.signer.identity():
        raise SigInvalid(f"block {record.height}: the header names another signer", height=record.height)
    if record.signature.alg != record.signer.alg:
        raise SigInvalid(
            f"block {record.height}: {record.signature.alg} signature of a {record.signer.alg} key",
            height=record.height,
        )
    if signers is not None and record.signer not in tuple(signers):
        raise SigInvalid(
            f"block {record.height}: signer {record.signer.did()} is not trusted", height=record.height
        )
    try:
        record.signer.verify(Tag.BLOCK_SIGNATURE + record.header.encode(), record.signature.raw)
    except RopewalkError as error:
        raise SigInvalid(f"block {record.height}: {error.detail}", height=record.height) from error


def check_link(below: Header | None, header: Header) -> None:
    """Raise unless the block follows the one below: same channel, next height, its hash, no earlier time."""
    height = 0 if below is None else below.height + 1
    prev = GENESIS if below is None else below.hash
    if header.height != height:
        raise BrokenLink(f"expected block {height}, got block {header.height}", height=height)
    if header.prev_block_hash != prev:
        raise BrokenLink(
            f"block {height}: prev_block_hash must be {prev.hex()[:16]}…, got {header.prev_block_hash.hex()[:16]}…",
            height=height,
            expected=prev.hex(),
            got=header.prev_block_hash.hex(),
        )
    if below is not None and header.channel != below.channel:
        raise BrokenLink(
            f'block {height}: channel must be "{below.channel}", got "{header.channel}"', height=height
        )
    if below is not None and header.timestamp_ns < below.timestamp_ns:
        raise BrokenLink(f"block {height}: earlier than the block below it", height=height)


def check_size(envelopes: Sequence[bytes]) -> None:
    """Raise unless the block has 1 to 8,192 envelopes with at most 4 MiB in total."""
    if not envelopes:
        raise Invalid("a block must have at least one envelope")
    size = envelopes.size if isinstance(envelopes, StoredLines) else sum(map(len, envelopes))
    if len(envelopes) > BLOCK_ENVELOPES_MAX:
        raise TooLarge(
            f"a block must have at most {BLOCK_ENVELOPES_MAX} envelopes, got {len(envelopes)}",
            size=len(envelopes),
            limit=BLOCK_ENVELOPES_MAX,
        )
    if size > BLOCK_BYTES_MAX:
        raise TooLarge(
            f"a block must have at most {BLOCK_BYTES_MAX} bytes, got {size}", size=size, limit=BLOCK_BYTES_MAX
        )


def check_contents(block: Block, leaves: bytes | None = None) -> None:
    """Raise unless the envelopes match the header's count and Merkle root; `leaves` are their packed ids, if known."""
    check_size(block.envelopes)
    header = block.header
    if header.envelope_count != len(block.envelopes):
        raise DigestMismatch(
            f"block {header.height}: {len(block.envelopes)} envelopes, the header counts {header.envelope_count}",
            height=header.height,
            where="envelope_count",
        )
    got = leaves_root(leaf_hashes(block.envelopes) if leaves is None else leaves)
    if got != header.merkle_root:
        raise DigestMismatch(
            f"block {header.height}: envelopes have the root {got.hex()}, the header has {header.merkle_root.hex()}",
            height=header.height,
            expected=header.merkle_root.hex(),
            got=got.hex(),
            where="merkle_root",
        )


def find_fork(ours: BlockRecord, theirs: BlockRecord) -> Fork | None:
    """Return the fork if two records of one height and channel differ. Check their signatures first."""
    same_place = ours.height == theirs.height and ours.header.channel == theirs.header.channel
    return Fork(ours, theirs) if same_place and ours.hash != theirs.hash else None


def check_channel_name(name: str) -> str:
    """Return the name if it is safe as a folder name, a URL part and a topic.

    >>> check_channel_name("ea.core")
    'ea.core'
    """
    if _CHANNEL.fullmatch(name) is None or ".." in name or name.endswith("."):
        raise InvalidName(f"channel {name[:80]!r} is not a valid name", name=name[:80])
    return name


def _parse_header(value: Any) -> Header:
    if not isinstance(value, dict) or value.keys() != _MEMBERS:
        raise _wrong("a header must have exactly the ten members of S4 §2")
    if type(value["protocol_version"]) is not int or value["protocol_version"] != FORMAT:  # true equals 1
        raise _wrong(f"block format {value['protocol_version']!r:.20} is unknown; expected {FORMAT}")
    policy = value["policy_hash"]
    return Header(
        channel=_expect(str, value, "channel"),
        height=_expect(int, value, "height"),
        prev_block_hash=_hash(value, "prev_block_hash"),
        merkle_root=_hash(value, "merkle_root"),
        timestamp_ns=_time(value["timestamp"]),
        origin_identity=_hash(value, "origin_identity"),
        envelope_count=_expect(int, value, "envelope_count"),
        policy_hash=None if policy is None else _hash(value, "policy_hash"),
        integrity_proof=value["integrity_proof"],
    )


def _expect(kind: type[Any], value: dict[str, Any], name: str) -> Any:
    if type(value[name]) is not kind or (kind is int and value[name] < 0):
        raise _wrong(f"{name} must be a {'natural number' if kind is int else 'string'}")
    return value[name]


def _hash(value: dict[str, Any], name: str) -> bytes:
    found = hash_from_hex(value[name])
    if found is None:
        raise _wrong(f"{name} must be 64 lowercase hex digits")
    return found


def _time(text: Any) -> int:
    if not isinstance(text, str) or _DECIMAL.fullmatch(text) is None or int(text) >= 2**64:
        raise _wrong("timestamp must be nanoseconds as a decimal string")
    return int(text)


def _wrong(what: str) -> Invalid:
    return Invalid(f"block record: {what}")
