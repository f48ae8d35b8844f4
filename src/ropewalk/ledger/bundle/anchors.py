"""Anchors (S4 §12): signed heads of a channel carried by a bundle, each with a proof from its blocks to the head.

`{"note": the head, a C2SP note, its exact text, "left": [hex…], "right": [hex…]}`

A head is signed over the SHA-256 tree of the channel's headers. `left` and `right` are the hashes around the bundle's
headers in that tree, so a trusted signature under the note proves that its signer had these blocks. The channel's own
key only repeats the operator's claim; a witness is independent. A note without a trusted signature proves nothing, and
the report says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ropewalk.errors import Invalid, InvalidNote, RopewalkError, TooLarge
from ropewalk.kernel import merkle
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.note.key import Verifier, is_key_name
from ropewalk.kernel.note.note import SignedHead, claimed_head, open_note
from ropewalk.kernel.proofs import RangeProof
from ropewalk.kernel.report import Status, Step
from ropewalk.kernel.terminal_text import printable
from ropewalk.ledger.json_form import members_of
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.transparency.head_signers import SHOWN_MAX, HeadSigner, list_names
from ropewalk.ledger.transparency.witness_policy import distinct_witnesses

ANCHORS_MAX: Final = 16
ANCHOR_NOTE_MAX: Final = 1 << 17  # bytes: sixteen cosignatures of the largest kind
_PATH_MAX: Final = 64
_RANKS: Final[dict[Status, int]] = {"failed": 0, "passed": 1, "not_checked": 2}


@dataclass(frozen=True, slots=True)
class BundleAnchor:
    """A signed head, and the hashes around the bundle's headers in its tree.

    >>> BundleAnchor(b"a note", RangeProof((), ())).to_json()
    {'note': 'a note', 'left': [], 'right': []}
    """

    note: bytes
    proof: RangeProof

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form in the manifest."""
        left, right = ([each.hex() for each in side] for side in (self.proof.left, self.proof.right))
        return {"note": self.note.decode(), "left": left, "right": right}

    def explain(self) -> str:
        """Return a one-line description; nothing is verified.

        >>> BundleAnchor(b"a note", RangeProof((), ())).explain()
        'unreadable: note: the last line does not end'
        """
        try:
            head, lines = claimed_head(self.note)
        except RopewalkError as error:
            return f"unreadable: {printable(error.detail, SHOWN_MAX)}"
        names = list_names(line.name for line in lines)
        return f"{printable(head.origin, SHOWN_MAX)} at {head.size}, signed by {names}"


@dataclass(frozen=True, slots=True)
class AnchorFinding:
    """The result for one anchor. An unreadable head has neither size nor root."""

    status: Status
    detail: str
    origin: str = ""
    size: int | None = None
    root: str = ""
    signers: tuple[HeadSigner, ...] = ()

    @property
    def has_witness(self) -> bool:
        """Whether a trusted key other than the channel's own has signed."""
        return any(signer.kind == "witness" for signer in self.signers)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `bundle verify --json` prints."""
        return members_of(self)


def parse_anchor(value: Any) -> BundleAnchor:
    """Parse an anchor of a manifest; only the form is checked.

    >>> parse_anchor({"note": "x", "left": [], "right": []}).note
    b'x'
    """
    if not isinstance(value, dict) or value.keys() != {"note", "left", "right"}:
        raise Invalid("anchors must have note, left and right")
    if not isinstance(value["note"], str):
        raise Invalid("the note of an anchor must be a string")
    note = value["note"].encode()
    if len(note) > ANCHOR_NOTE_MAX:
        raise TooLarge(f"an anchor's note of {len(note)} bytes", size=len(note), limit=ANCHOR_NOTE_MAX)
    return BundleAnchor(note, RangeProof(_hashes(value["left"]), _hashes(value["right"])))


def pick_anchors(anchors: Iterable[BundleAnchor]) -> tuple[BundleAnchor, ...]:
    """Remove duplicates and sort by head size, so that a bundle has the same bytes in any input order.

    >>> pick_anchors([])
    ()
    """
    picked = sorted(set(anchors), key=lambda anchor: (claimed_head(anchor.note)[0].size, anchor.note))
    if len(picked) > ANCHORS_MAX:
        raise TooLarge(
            f"a bundle must have at most {ANCHORS_MAX} anchors, got {len(picked)}",
            size=len(picked),
            limit=ANCHORS_MAX,
        )
    return tuple(picked)


def head_of(note: bytes, channel: str) -> SignedHead:
    """Return the head of a note before any signature is checked; reject a head of another channel.

    >>> from ropewalk.kernel.keys import SigningKey
    >>> from ropewalk.ledger.proof.proof import signed_head
    >>> raw = signed_head("log.example", "ops", 3, bytes(32), SigningKey.generate("ed25519", bytes(32)))
    >>> head_of(raw, "audit")
    Traceback (most recent call last):
    ropewalk.errors.InvalidNote: a head of "log.example/ops"; those of channel audit are of "<host>/audit"
    """
    if len(note) > ANCHOR_NOTE_MAX:
        raise TooLarge(f"an anchor's note of {len(note)} bytes", size=len(note), limit=ANCHOR_NOTE_MAX)
    head, _ = claimed_head(note)
    if not head.origin.endswith(f"/{channel}"):
        raise InvalidNote(
            f'a head of "{printable(head.origin, SHOWN_MAX)}"; those of channel {channel} are of "<host>/{channel}"',
            origin=head.origin,
        )
    return head


def check_anchor(anchor: BundleAnchor, channel: str, start: int, leaves: Sequence[bytes]) -> SignedHead:
    """Raise unless the headers, given as leaves of the tree, are under the root of the note from `start` on."""
    head = head_of(anchor.note, channel)
    merkle.verify_range(leaves, start, head.size, anchor.proof, head.root, merkle.SHA256)
    return head


def judge_anchor(
    anchor: BundleAnchor, channel: str, start: int, leaves: Sequence[bytes], trust: Trust
) -> AnchorFinding:
    """Check that an anchor leads to its head, and that a trusted key has signed the head.

    If the trust file names witnesses, one of them must have signed; otherwise the channel's own key is enough.
    """
    try:
        head = check_anchor(anchor, channel, start, leaves)
    except RopewalkError as error:
        return AnchorFinding("failed", printable(error.detail, SHOWN_MAX))
    said = (head.origin, head.size, head.root.hex())
    where = (
        f"blocks {start}–{start + len(leaves) - 1} under {printable(head.origin, SHOWN_MAX)} at {head.size}"
    )
    try:
        signers = _signers(anchor.note, head, trust)
    except RopewalkError as error:
        return AnchorFinding("failed", f"{where}: {error.detail}", *said)
    known = [signer for signer in signers if signer.kind != "unknown"]
    if not known:
        names = list_names(signer.name for signer in signers)
        return AnchorFinding("not_checked", f"{where}, without a trusted signature: {names}", *said, signers)
    outside = [signer.explain() for signer in known if signer.kind == "witness"]
    if trust.witnesses and not outside:
        why = f"{where}, signed by the channel's own key and by no witness that is trusted"
        return AnchorFinding("not_checked", why, *said, signers)
    by = ", ".join(outside) if outside else "signed by the channel's own key alone"
    return AnchorFinding("passed", f"{where}, {by}", *said, signers)


def anchors_step(findings: Sequence[AnchorFinding]) -> Step:
    """Return the step of a report. One trusted signature is enough; an invalid proof fails the step.

    >>> anchors_step([]).detail
    'the bundle has no anchors'
    """
    if not findings:
        return Step("anchors", "not_checked", "the bundle has no anchors")
    ranked = sorted(findings, key=lambda each: (_RANKS[each.status], not each.has_witness))
    first = ranked[0]
    same = sum(1 for each in findings if each.status == first.status) - 1
    detail = first.detail + (f" (and {same} more)" if same else "")
    mute = sum(1 for each in findings if each.status == "not_checked")
    if first.status == "passed" and mute:
        detail += f"; {mute} more without a trusted signature"
    return Step("anchors", first.status, detail, {"anchors": [each.to_json() for each in findings]})


def require_witnesses(step: Step, findings: Sequence[AnchorFinding], trust: Trust, threshold: int) -> Step:
    """Return the step, failed unless at least `threshold` named witnesses have signed, under one head or several.

    >>> require_witnesses(anchors_step([]), [], Trust((), ()), 1).detail
    'the bundle has no anchors; no witness is named, and 1 must have signed'
    """
    # As with heads: the channel's key is not a witness; two names of a key, or two keys of a name, are one witness.
    named = {(each.name, each.key_id.hex()): each for each in trust.witnesses}
    many = len(distinct_witnesses(each for each in trust.witnesses if each.key not in trust.block_signers))
    seen = distinct_witnesses(
        named[signer.name, signer.key_id]
        for each in findings
        for signer in each.signers
        if signer.kind == "witness"
    )
    fields = {**step.fields, "threshold": threshold}
    if step.status == "failed" or len(seen) >= threshold:
        return Step(step.name, step.status, step.detail, fields)
    have = f"{len(seen)} of {many} witnesses named have signed" if many else "no witness is named"
    return Step(step.name, "failed", f"{step.detail}; {have}, and {threshold} must have signed", fields)


def _signers(note: bytes, head: SignedHead, trust: Trust) -> tuple[HeadSigner, ...]:
    """Return the signers. An invalid signature of a trusted key raises; the channel's key is never a witness."""
    known = list(trust.witnesses)
    if is_key_name(head.origin):  # else it cannot be the name of the log's key
        known += [Verifier(head.origin, key) for key in trust.block_signers if key.alg == "ed25519"]
    by_line = {(each.name, each.key_id): each for each in known}
    _, lines = claimed_head(note)
    # Opening verifies every line of a known key; without one there is nothing to open.
    believed = any((line.name, line.key_id) in by_line for line in lines)
    verified = open_note(note, known).verified if believed else ()
    signers = [
        HeadSigner(
            each.name,
            each.key_id.hex(),
            "channel" if by_line[each.name, each.key_id].key in trust.block_signers else "witness",
            each.time_s,
        )
        for each in verified
    ]
    signers += [
        HeadSigner(line.name, line.key_id.hex(), "unknown")
        for line in lines
        if (line.name, line.key_id) not in by_line
    ]
    return tuple(signers)


def _hashes(value: Any) -> tuple[bytes, ...]:
    if not isinstance(value, list) or len(value) > _PATH_MAX:
        raise Invalid("left and right of an anchor must be short lists of hashes")
    hashes = [hash_from_hex(each) for each in value]
    if any(each is None for each in hashes):
        raise Invalid("anchors: hashes must be 64 lowercase hex digits")
    return tuple(each for each in hashes if each is not None)
