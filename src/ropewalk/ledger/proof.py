"""Proofs a stranger can check: an envelope in a block, blocks under a head, one head under a later one.

Proof             an envelope, its path, its sealed block: one file, checked offline
RangeStatement    consecutive blocks under the root of the channel's outer tree (S4 §12)
Consistency       an older root is a prefix of a newer one
signed_head       the size and root of the header tree as a C2SP note, for witnesses
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from ropewalk.errors import InvalidProof, RopewalkError
from ropewalk.kernel import jcs, merkle, note
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.report import Report, Step
from ropewalk.ledger.block import BlockRecord, check_signature, parse_record
from ropewalk.ledger.envelope import Envelope, parse_stored
from ropewalk.ledger.evidencecheck import EvidenceTally
from ropewalk.ledger.rules import Context, rule_1_canonical_hash, rule_2_signature_scope
from ropewalk.ledger.trust import Trust

__all__ = [
    "Consistency",
    "Proof",
    "RangeStatement",
    "head_signer",
    "parse_consistency",
    "parse_proof",
    "parse_range",
    "range_root",
    "signed_head",
    "verify_proof",
]

PATH_MAX = 64  # a tree beyond 2^63 leaves does not exist


@dataclass(frozen=True, slots=True)
class Proof:
    """An envelope, where it stands, the path to its block's root, and the sealed block record."""

    envelope: Envelope
    index: int
    path: tuple[bytes, ...]
    block: BlockRecord
    height: int
    claimed_id: str

    def to_bytes(self) -> bytes:
        """The proof as a file."""
        value: dict[str, Any] = {
            "version": 1,
            "envelope": self.envelope.value,
            "envelope_id": self.claimed_id,
            "height": self.height,
            "index": self.index,
            "path": [each.hex() for each in self.path],
            "block": jcs.parse(self.block.raw),
        }
        return jcs.encode(value)


def parse_proof(raw: bytes) -> Proof:
    """A proof from its file; form only.

    >>> parse_proof(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.InvalidProof: proof: expected version, envelope, envelope_id, height, index, path and block
    """
    names = {"version", "envelope", "envelope_id", "height", "index", "path", "block"}
    value = _members(raw, names, "version, envelope, envelope_id, height, index, path and block")
    try:
        return Proof(
            parse_stored(jcs.encode(value["envelope"])),
            _natural(value, "index"),
            _hashes(value["path"]),
            parse_record(jcs.encode(value["block"])),
            _natural(value, "height"),
            value["envelope_id"] if isinstance(value["envelope_id"], str) else "",
        )
    except InvalidProof:
        raise
    except RopewalkError as error:
        raise InvalidProof(f"proof: {error.detail}") from error


def verify_proof(proof: Proof, trust: Trust | None = None) -> Report:
    """Every step of a proof, offline. Without a trust file, who sealed the block stays unchecked."""
    block, envelope = proof.block, proof.envelope
    steps = [_step("envelope_hash", lambda: _check_id(proof))]
    for name, rule in (
        ("payload_hash", rule_1_canonical_hash),
        ("envelope_signature", rule_2_signature_scope),
    ):
        finding = rule(envelope, Context())
        steps.append(Step(name, finding.status, finding.detail))
    steps.append(
        _step(
            "merkle_path",
            lambda: merkle.verify_inclusion(
                envelope.id, proof.index, block.header.envelope_count, proof.path, block.header.merkle_root
            ),
        )
    )
    steps.append(_step("block_signature", lambda: check_signature(block)))
    if trust is None:
        steps.append(Step("block_signer", "not_checked", "no trust file: any key could have sealed this"))
        steps.append(Step("policy_hash", "not_checked", "no trust file"))
    else:
        steps.append(_step("block_signer", lambda: check_signature(block, trust.block_signers)))
        if trust.policy_hash is None:
            steps.append(Step("policy_hash", "not_checked", "the trust file pins no policy"))
        else:
            same = block.header.policy_hash == trust.policy_hash
            steps.append(
                Step("policy_hash", "passed" if same else "failed", "" if same else "another policy")
            )
    if "attestation_evidence" in envelope.value:
        tally = EvidenceTally(trust)
        tally.look(envelope, proof.height, proof.index, block.header.timestamp_ns)
        steps.append(tally.step())
    return Report.of(steps, entries=1)


@dataclass(frozen=True, slots=True)
class RangeStatement:
    """Blocks from `start` on, one after another, in the outer tree of `size` blocks."""

    channel: str
    start: int
    size: int
    block_hashes: tuple[bytes, ...]
    proof: merkle.RangeProof
    root: bytes

    def verify(self) -> None:
        """Raise unless the blocks stand there under the root."""
        merkle.verify_range(self.block_hashes, self.start, self.size, self.proof, self.root, merkle.RANGE)

    def to_bytes(self) -> bytes:
        """The statement as a file."""
        value: dict[str, Any] = {
            "version": 1,
            "kind": "range",
            "channel": self.channel,
            "start": self.start,
            "size": self.size,
            "block_hashes": [each.hex() for each in self.block_hashes],
            "left": [each.hex() for each in self.proof.left],
            "right": [each.hex() for each in self.proof.right],
            "root": self.root.hex(),
        }
        return jcs.encode(value)


def parse_range(raw: bytes) -> RangeStatement:
    """A range statement from its file; form only."""
    names = {"version", "kind", "channel", "start", "size", "block_hashes", "left", "right", "root"}
    value = _members(raw, names, "a range statement")
    return RangeStatement(
        str(value["channel"]),
        _natural(value, "start"),
        _natural(value, "size"),
        _hashes(value["block_hashes"], limit=None),
        merkle.RangeProof(_hashes(value["left"]), _hashes(value["right"])),
        _hashes([value["root"]])[0],
    )


@dataclass(frozen=True, slots=True)
class Consistency:
    """The outer tree of `new` blocks extends the one of `old`: nothing below was changed or dropped."""

    channel: str
    old: int
    new: int
    old_root: bytes
    new_root: bytes
    path: tuple[bytes, ...]

    def verify(self) -> None:
        """Raise unless it does."""
        merkle.verify_consistency(self.old, self.new, self.path, self.old_root, self.new_root, merkle.RANGE)

    def to_bytes(self) -> bytes:
        """The proof as a file."""
        value: dict[str, Any] = {
            "version": 1,
            "kind": "consistency",
            "channel": self.channel,
            "old": self.old,
            "new": self.new,
            "old_root": self.old_root.hex(),
            "new_root": self.new_root.hex(),
            "path": [each.hex() for each in self.path],
        }
        return jcs.encode(value)


def parse_consistency(raw: bytes) -> Consistency:
    """A consistency proof from its file; form only."""
    names = {"version", "kind", "channel", "old", "new", "old_root", "new_root", "path"}
    value = _members(raw, names, "a consistency proof")
    return Consistency(
        str(value["channel"]),
        _natural(value, "old"),
        _natural(value, "new"),
        _hashes([value["old_root"]])[0],
        _hashes([value["new_root"]])[0],
        _hashes(value["path"], limit=2 * PATH_MAX),
    )


def range_root(block_hashes: Sequence[bytes]) -> bytes:
    """The outer range root of S4 §12: the tree head over these blocks.

    >>> range_root([bytes(32)]) == bytes(32)
    True
    """
    return merkle.root(block_hashes, merkle.RANGE)


def head_signer(host: str, channel: str, key: SigningKey) -> note.Signer:
    """Who signs the heads of a channel; the public witness network wants Ed25519."""
    return note.Signer(f"{host}/{channel}", key)


def signed_head(host: str, channel: str, size: int, root: bytes, key: SigningKey) -> bytes:
    """Size and root of the SHA-256 tree over the channel's headers, as a C2SP checkpoint."""
    return note.sign_head(note.SignedHead(f"{host}/{channel}", size, root), head_signer(host, channel, key))


def _check_id(proof: Proof) -> None:
    if proof.claimed_id != proof.envelope.hex_id:
        raise InvalidProof(
            f"the envelope has the id {proof.envelope.hex_id}, the proof says {proof.claimed_id[:64]}"
        )
    if proof.height != proof.block.height:
        raise InvalidProof(f"the block has height {proof.block.height}, the proof says {proof.height}")


def _step(name: str, act: Any) -> Step:
    try:
        act()
    except RopewalkError as error:
        return Step(name, "failed", error.detail)
    return Step(name, "passed")


def _members(raw: bytes, names: set[str], what: str) -> dict[str, Any]:
    try:
        value = jcs.parse(raw)
    except RopewalkError as error:
        raise InvalidProof(f"proof: {error.detail}") from error
    if not isinstance(value, dict) or value.keys() != names:
        raise InvalidProof(f"proof: expected {what}")
    if value["version"] != 1 or value["version"] is True:
        raise InvalidProof(f"proof: version {value['version']!r:.20} is not known; 1 is")
    return cast(dict[str, Any], value)


def _natural(value: dict[str, Any], name: str) -> int:
    found = value[name]
    if type(found) is not int or found < 0:
        raise InvalidProof(f"proof: {name} is a natural number")
    return found


def _hashes(value: Any, limit: int | None = PATH_MAX) -> tuple[bytes, ...]:
    if not isinstance(value, list) or (limit is not None and len(value) > limit):
        raise InvalidProof("proof: a path is a list of hashes, and not a long one")
    hashes = tuple(raw for text in value if (raw := hash_from_hex(text)) is not None)
    if len(hashes) != len(value):
        raise InvalidProof("proof: hashes are 64 lower-case hex digits")
    return hashes
