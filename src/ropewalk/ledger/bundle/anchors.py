"""Anchors (S4 §12): signed heads of a channel that travel with a bundle, each with the way from its blocks to the head.

    {"note": the head, a C2SP note, its exact text, "left": [hex…], "right": [hex…]}

A head is signed over the SHA-256 tree of the channel's headers. `left` and `right` are what surrounds the bundle's
headers in that tree, so whoever trusts a signature under the note knows that its signer had these very blocks before
it. The channel's own key says only what the operator says anyway; a witness is somebody else. A note that nobody
trusted has signed proves nothing, and that is what is said of it.
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
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.transparency.head_signers import SHOWN_MAX, HeadSigner, list_names

ANCHORS_MAX: Final = 16
ANCHOR_NOTE_MAX: Final = 1 << 17  # bytes: sixteen cosignatures of the largest kind
_PATH_MAX: Final = 64
_RANKS: Final[dict[Status, int]] = {"failed": 0, "passed": 1, "not_checked": 2}


@dataclass(frozen=True, slots=True)
class BundleAnchor:
    """A signed head, and what surrounds the bundle's headers in the tree it speaks of.

    >>> BundleAnchor(b"a note", RangeProof((), ())).to_json()
    {'note': 'a note', 'left': [], 'right': []}
    """

    note: bytes
    proof: RangeProof

    def to_json(self) -> dict[str, Any]:
        """As the manifest holds it."""
        left, right = ([each.hex() for each in side] for side in (self.proof.left, self.proof.right))
        return {"note": self.note.decode(), "left": left, "right": right}

    def explain(self) -> str:
        """What it says of itself, in one line; nothing is verified.

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
    """What came of one anchor. A head that could not be read has neither size nor root."""

    status: Status
    detail: str
    origin: str = ""
    size: int | None = None
    root: str = ""
    signers: tuple[HeadSigner, ...] = ()

    @property
    def has_witness(self) -> bool:
        """Whether somebody who is not the channel's own key, and is trusted, has signed."""
        return any(signer.kind == "witness" for signer in self.signers)

    def to_json(self) -> dict[str, Any]:
        """As `bundle verify --json` prints it."""
        return {
            "status": self.status,
            "detail": self.detail,
            "origin": self.origin,
            "size": self.size,
            "root": self.root,
            "signers": [signer.to_json() for signer in self.signers],
        }


def parse_anchor(value: Any) -> BundleAnchor:
    """An anchor as a manifest holds it; form only.

    >>> parse_anchor({"note": "x", "left": [], "right": []}).note
    b'x'
    """
    if not isinstance(value, dict) or value.keys() != {"note", "left", "right"}:
        raise Invalid("anchors have note, left and right")
    if not isinstance(value["note"], str):
        raise Invalid("the note of an anchor is a text")
    note = value["note"].encode()
    if len(note) > ANCHOR_NOTE_MAX:
        raise TooLarge(f"an anchor's note of {len(note)} bytes", size=len(note), limit=ANCHOR_NOTE_MAX)
    return BundleAnchor(note, RangeProof(_hashes(value["left"]), _hashes(value["right"])))


def pick_anchors(anchors: Iterable[BundleAnchor]) -> tuple[BundleAnchor, ...]:
    """Each once, the smallest head first: in whatever order they were given, a bundle has the same bytes.

    >>> pick_anchors([])
    ()
    """
    picked = sorted(set(anchors), key=lambda anchor: (claimed_head(anchor.note)[0].size, anchor.note))
    if len(picked) > ANCHORS_MAX:
        raise TooLarge(
            f"{len(picked)} anchors for one bundle; at most {ANCHORS_MAX}",
            size=len(picked),
            limit=ANCHORS_MAX,
        )
    return tuple(picked)


def head_of(note: bytes, channel: str) -> SignedHead:
    """What a note says of a channel, before anybody's signature is believed; a head of something else is refused.

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
    """Raise unless the headers, given as leaves of the tree, stand from `start` on under the root of the note."""
    head = head_of(anchor.note, channel)
    merkle.verify_range(leaves, start, head.size, anchor.proof, head.root, merkle.SHA256)
    return head


def judge_anchor(
    anchor: BundleAnchor, channel: str, start: int, leaves: Sequence[bytes], trust: Trust
) -> AnchorFinding:
    """Whether an anchor leads to its head, and whether somebody who is believed has signed that.

    Once a trust file names witnesses, one of them must have signed; until then the channel's own key will do.
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
        return AnchorFinding("not_checked", f"{where}, signed by nobody trusted: {names}", *said, signers)
    outside = [signer.explain() for signer in known if signer.kind == "witness"]
    if trust.witnesses and not outside:
        why = f"{where}, signed by the channel's own key and by no witness that is trusted"
        return AnchorFinding("not_checked", why, *said, signers)
    by = ", ".join(outside) if outside else "signed by the channel's own key alone"
    return AnchorFinding("passed", f"{where}, {by}", *said, signers)


def anchors_step(findings: Sequence[AnchorFinding]) -> Step:
    """The step of a report. One head that a trusted key signed is enough; a proof that does not hold fails it.

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
        detail += f"; {mute} more signed by nobody who counts"
    return Step("anchors", first.status, detail, {"anchors": [each.to_json() for each in findings]})


def require_witnesses(step: Step, findings: Sequence[AnchorFinding], trust: Trust, threshold: int) -> Step:
    """The same step, failed unless so many of the witnesses named have signed, under one head or several.

    >>> require_witnesses(anchors_step([]), [], Trust((), ()), 1).detail
    'the bundle has no anchors; no witness is named, and 1 must have signed'
    """
    # As with heads: the channel's key is no witness under another name, and one key under two names is one witness.
    named = {(each.name, each.key_id.hex()): each.key for each in trust.witnesses}
    many = len(set(named.values()) - set(trust.block_signers))
    seen = {
        named[signer.name, signer.key_id]
        for each in findings
        for signer in each.signers
        if signer.kind == "witness"
    }
    fields = {**step.fields, "threshold": threshold}
    if step.status == "failed" or len(seen) >= threshold:
        return Step(step.name, step.status, step.detail, fields)
    have = f"{len(seen)} of {many} witnesses named have signed" if many else "no witness is named"
    return Step(step.name, "failed", f"{step.detail}; {have}, and {threshold} must have signed", fields)


def _signers(note: bytes, head: SignedHead, trust: Trust) -> tuple[HeadSigner, ...]:
    """Who signed. A trusted signature that is wrong raises; the channel's key is no witness under another name."""
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
        raise Invalid("left and right of an anchor are short lists of hashes")
    hashes = [hash_from_hex(each) for each in value]
    if any(each is None for each in hashes):
        raise Invalid("anchors: hashes are 64 lower-case hex digits")
    return tuple(each for each in hashes if each is not None)
