"""Offline proofs: an envelope in a block, blocks under a head, an older head under a newer one.

Proof             an envelope, its path, its sealed block: one file, checked offline
RangeStatement    consecutive blocks under the root of the channel's outer tree (S4 §12)
Consistency       an older root is a prefix of a newer one
signed_head       the size and root of the header tree as a C2SP note, for witnesses
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ropewalk.errors import InvalidProof, RopewalkError, TooLarge
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.note import note
from ropewalk.kernel.report import Report, Step
from ropewalk.kernel.schema.form import StrictForm
from ropewalk.ledger.block.block import BlockRecord, check_channel_name, check_signature, parse_record
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.evidence.recheck import EvidenceTally
from ropewalk.ledger.json_form import members_of
from ropewalk.ledger.keys.history import KeyHistory, KeyProof, parse_key_proofs
from ropewalk.ledger.proof.steps import compared, short, signer_step
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.rules.rules import rule_1_canonical_hash, rule_2_signature_scope
from ropewalk.ledger.rules.verdict import Context

PATH_MAX = 64  # a tree beyond 2^63 leaves does not exist
PROOF_BYTES_MAX = 16 << 20  # the largest envelope, and four thousand key statements of the channel
_FORM = StrictForm("proof", error=InvalidProof)
natural = _FORM.natural


@dataclass(frozen=True, slots=True)
class Proof:
    """An envelope, its position, the path to its block's root, and the sealed block record."""

    envelope: Envelope
    index: int
    path: tuple[bytes, ...]
    block: BlockRecord
    height: int
    claimed_id: str
    keys: tuple[KeyProof, ...] = ()  # key statements of the channel

    def to_bytes(self) -> bytes:
        """Return the bytes of the proof file."""
        value: dict[str, Any] = {
            "version": 1,
            "envelope": self.envelope.value,
            "envelope_id": self.claimed_id,
            "height": self.height,
            "index": self.index,
            "path": [each.hex() for each in self.path],
            "block": jcs.parse(self.block.raw),
        }
        if self.keys:
            value["keys"] = [each.to_json() for each in self.keys]
        return jcs.encode(value)


def parse_proof(raw: bytes) -> Proof:
    """Parse a proof from its file; only the form is checked.

    >>> parse_proof(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.InvalidProof: proof: expected version, envelope, envelope_id, height, index, path and block
    """
    names = {"version", "envelope", "envelope_id", "height", "index", "path", "block"}
    value = members(raw, names, "version, envelope, envelope_id, height, index, path and block", {"keys"})
    try:
        return Proof(
            parse_stored(jcs.encode(value["envelope"])),
            natural(value, "index"),
            hashes(value["path"]),
            parse_record(jcs.encode(value["block"])),
            natural(value, "height"),
            value["envelope_id"] if isinstance(value["envelope_id"], str) else "",
            parse_key_proofs(value["keys"]) if "keys" in value else (),
        )
    except InvalidProof:
        raise
    except RopewalkError as error:
        raise InvalidProof(f"proof: {error.detail}") from error


def verify_proof(proof: Proof, trust: Trust | None = None) -> Report:
    """Verify every step of a proof, offline. Without a trust file, the block's signer stays unchecked."""
    block, envelope = proof.block, proof.envelope
    # A signer may seal several channels: statements of another one say nothing about this block.
    own = tuple(each for each in proof.keys if each.record.header.channel == block.header.channel)
    proof = replace(proof, keys=own)
    header, signer = block.header, block.signer.did()
    steps = [
        compared(
            "envelope_hash", f"id {short(envelope.id)} in block {block.height}", lambda: _check_id(proof)
        )
    ]
    signed = len(envelope.fields["signature"]["signed_fields"])
    for name, rule, said in (
        ("payload_hash", rule_1_canonical_hash, f"payload {envelope.value['payload_hash'][:16]}…"),
        ("envelope_signature", rule_2_signature_scope, f"{signed} fields, by {envelope.public_key.did()}"),
    ):
        finding = rule(envelope, Context())
        # A detached payload is proven by its hash alone; its bytes are not part of a proof.
        steps.append(Step(name, finding.status, finding.detail or said, need="optional"))
    key_history = KeyHistory(trust, lenient=True)
    if trust is not None:
        with contextlib.suppress(RopewalkError):  # reported by the step about the block's signer
            key_history.follow(proof.keys)
        try:
            key_history.check_author(envelope, block.height, header.timestamp_ns)
        except RopewalkError as error:
            steps[-1] = Step("envelope_signature", "failed", error.detail)
    steps.append(
        compared(
            "merkle_path",
            f"envelope {proof.index} among {header.envelope_count}, under root {short(header.merkle_root)}",
            lambda: merkle.verify_inclusion(
                envelope.id, proof.index, header.envelope_count, proof.path, header.merkle_root
            ),
        )
    )
    sealed = f"block {block.height} {short(block.hash)} of {header.channel}, sealed by {signer}"
    steps.append(compared("block_signature", sealed, lambda: check_signature(block)))
    if trust is None:
        why = f"no trust file: sealed by {signer}, which is not known to be trusted"
        steps.append(Step.untrusted("block_signer", why))
        steps.append(Step.optional("policy_hash", "no trust file"))
    else:
        steps.append(signer_step("block_signer", block, trust, proof.keys))
        steps.append(_policy_step(block, trust.policy_hash, key_history))
    if "attestation_evidence" in envelope.value:
        tally = EvidenceTally(trust)
        tally.look(envelope, proof.height, proof.index, block.header.timestamp_ns)
        steps.append(tally.step())
    return Report.of(steps, entries=1)


@dataclass(frozen=True, slots=True)
class RangeStatement:
    """Consecutive blocks from `start` on, in the outer tree of `size` blocks."""

    channel: str
    start: int
    size: int
    block_hashes: tuple[bytes, ...]
    proof: merkle.RangeProof
    root: bytes

    def verify(self) -> None:
        """Raise unless the blocks are under the root."""
        merkle.verify_range(self.block_hashes, self.start, self.size, self.proof, self.root, merkle.RANGE)

    def report(self) -> Report:
        """Return the same as steps. The root is not signed; the caller must check it."""
        last = self.start + len(self.block_hashes) - 1
        said = (
            f"blocks {self.start}–{last} among {self.size} of {self.channel}, under root {short(self.root)}"
        )
        return Report.of([compared("range", said, self.verify), _unsigned(self.root, self.size)], entries=1)

    def to_bytes(self) -> bytes:
        """Return the bytes of the statement file."""
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
    """Parse a range statement; only the form is checked, including numbers that no tree can have."""
    names = {"version", "kind", "channel", "start", "size", "block_hashes", "left", "right", "root"}
    value = members(raw, names, "a range statement")
    start, size = natural(value, "start"), natural(value, "size")
    block_hashes = hashes(value["block_hashes"], limit=None)
    if not block_hashes or start + len(block_hashes) > size:
        raise InvalidProof(
            f"proof: {len(block_hashes)} blocks from {start} on are not a range of {size} blocks"
        )
    return RangeStatement(
        _channel(value),
        start,
        size,
        block_hashes,
        merkle.RangeProof(hashes(value["left"]), hashes(value["right"])),
        hashes([value["root"]])[0],
    )


@dataclass(frozen=True, slots=True)
class Consistency:
    """Shows that the outer tree of `new` blocks extends the one of `old`: nothing was changed or dropped."""

    channel: str
    old: int
    new: int
    old_root: bytes
    new_root: bytes
    path: tuple[bytes, ...]

    def verify(self) -> None:
        """Raise unless the new tree extends the old one."""
        merkle.verify_consistency(self.old, self.new, self.path, self.old_root, self.new_root, merkle.RANGE)

    def report(self) -> Report:
        """Return the same as steps. The roots are not signed; the caller must check them."""
        said = (
            f"{self.old} blocks of {self.channel} under root {short(self.old_root)}, "
            f"{self.new} under root {short(self.new_root)}"
        )
        return Report.of(
            [compared("consistency", said, self.verify), _unsigned(self.new_root, self.new)], entries=1
        )

    def to_bytes(self) -> bytes:
        """Return the bytes of the proof file."""
        return jcs.encode({"version": 1, "kind": "consistency", **members_of(self)})


def parse_consistency(raw: bytes) -> Consistency:
    """Parse a consistency proof; only the form is checked, as with ranges."""
    names = {"version", "kind", "channel", "old", "new", "old_root", "new_root", "path"}
    value = members(raw, names, "a consistency proof")
    old, new = natural(value, "old"), natural(value, "new")
    if old > new:
        raise InvalidProof(f"proof: {new} blocks do not extend {old}")
    return Consistency(
        _channel(value),
        old,
        new,
        hashes([value["old_root"]])[0],
        hashes([value["new_root"]])[0],
        hashes(value["path"], limit=2 * PATH_MAX),
    )


def range_root(block_hashes: Sequence[bytes]) -> bytes:
    """Return the outer range root of S4 §12: the tree head over these blocks.

    >>> range_root([bytes(32)]) == bytes(32)
    True
    """
    return merkle.root(block_hashes, merkle.RANGE)


def head_signer(host: str, channel: str, key: SigningKey) -> note.Signer:
    """Return the signer of a channel's heads; the public witness network requires Ed25519."""
    return note.Signer(f"{host}/{channel}", key)


def signed_head(host: str, channel: str, size: int, root: bytes, key: SigningKey) -> bytes:
    """Return size and root of the SHA-256 tree over the channel's headers, as a signed C2SP checkpoint."""
    return note.sign_head(note.SignedHead(f"{host}/{channel}", size, root), head_signer(host, channel, key))


def _check_id(proof: Proof) -> None:
    if proof.claimed_id != proof.envelope.hex_id:
        raise InvalidProof(
            f"the envelope has the id {proof.envelope.hex_id}, the proof claims {proof.claimed_id[:64]}"
        )
    if proof.height != proof.block.height:
        raise InvalidProof(f"the block has height {proof.block.height}, the proof claims {proof.height}")


def _policy_step(block: BlockRecord, pinned: bytes | None, key_history: KeyHistory) -> Step:
    have = block.header.policy_hash
    if pinned is None:
        return Step.optional("policy_hash", "the trust file pins no policy")
    if key_history.policies.fits(block.height, have, pinned):
        how = "as pinned" if have == pinned else f"which follows {short(pinned)}"
        return Step("policy_hash", "passed", f"policy {short(have or b'')}, {how}")
    got = "none" if have is None else short(have)
    return Step(
        "policy_hash", "failed", f"policy mismatch: the trust file pins {short(pinned)}, the block has {got}"
    )


def _unsigned(root: bytes, size: int) -> Step:
    """Return a step for an unsigned root. Heads are signed over another tree; name where to compare this root."""
    where = f"another proof about {size} blocks" + (f", or a bundle of blocks 0–{size - 1}" if size else "")
    return Step.untrusted("signed_head", f"root {short(root)} is not signed: compare it with {where}")


def members(raw: bytes, names: set[str], what: str, optional: Iterable[str] = ()) -> dict[str, Any]:
    """Parse a proof file with these members, and of version 1."""
    try:
        value = jcs.parse(raw, bytes_max=PROOF_BYTES_MAX)
    except TooLarge:
        raise
    except RopewalkError as error:
        raise InvalidProof(f"proof: {error.detail}") from error
    return _FORM.members(value, names, what, optional)


def _channel(value: dict[str, Any]) -> str:
    try:
        return check_channel_name(str(value["channel"]))
    except RopewalkError as error:
        raise InvalidProof(f"proof: {error.detail}") from error


def hashes(value: Any, limit: int | None = PATH_MAX) -> tuple[bytes, ...]:
    """Return the hashes of a list of hex texts."""
    if not isinstance(value, list) or (limit is not None and len(value) > limit):
        raise InvalidProof("proof: a path must be a list of at most 63 hashes")
    found = tuple(raw for text in value if (raw := hash_from_hex(text)) is not None)
    if len(found) != len(value):
        raise InvalidProof("proof: hashes must be 64 lowercase hex digits")
    return found
