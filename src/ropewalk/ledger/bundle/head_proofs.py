"""Collect signed heads of a channel for bundles: check each against the channel once, then prove any range."""

from __future__ import annotations

from ropewalk.errors import DigestMismatch, RangeExceeded
from ropewalk.kernel.note.key import Verifier, is_key_name
from ropewalk.kernel.note.note import claimed_head, open_note
from ropewalk.ledger.bundle.anchors import BundleAnchor, head_of, pick_anchors
from ropewalk.ledger.channel.channel import Channel
from ropewalk.ledger.transparency.publish import header_tree


class AnchorCollector:
    """Add notes, then ask for the anchors of a range.

    A note must be a head of this channel, at a size the channel has reached, with the root it had then. If it names
    the channel's own key, that signature must be valid. The verifier checks other signatures.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._tree = header_tree(channel)
        self._notes: list[bytes] = []

    def add(self, note: bytes) -> None:
        """Add a note. Raise `Invalid` if it is not a head of this channel, `Unverified` if it is of another history."""
        name = self._channel.settings.channel
        head = head_of(note, name)
        if not 0 < head.size <= self._tree.size:
            raise RangeExceeded(
                f"signed head covers {head.size} blocks, but the channel has only {self._tree.size}",
                advice="Export from a copy that has all blocks of the head.",
                size=head.size,
            )
        signers = [
            validity.key
            for validity in self._channel.key_history().validities
            if validity.key.alg == "ed25519"
        ]
        for signer in signers if is_key_name(head.origin) else ():
            own = Verifier(head.origin, signer)
            if any((each.name, each.key_id) == (own.name, own.key_id) for each in claimed_head(note)[1]):
                open_note(note, [own])
        root = self._tree.root(head.size)
        if root != head.root:
            raise DigestMismatch(
                f"the head of {head.size} blocks has the root {head.root.hex()[:16]}…, channel {name} had "
                f"{root.hex()[:16]}… then",
                advice="The head is of another history. Keep it as evidence: its signer signed two histories.",
                expected=head.root.hex(),
                got=root.hex(),
                where="root",
            )
        self._notes.append(note)

    def over(self, start: int, end: int) -> tuple[BundleAnchor, ...]:
        """Return the anchors of the blocks from `start` to `end`, inclusive, in bundle order."""
        made = []
        for note in self._notes:
            size = claimed_head(note)[0].size
            if size <= end:
                raise RangeExceeded(
                    f"a head of {size} blocks does not cover block {end}",
                    advice=f"Give a head of at least {end + 1} blocks, or export no further than block {size - 1}.",
                    size=size,
                    end=end,
                )
            made.append(BundleAnchor(note, self._tree.range(start, end + 1, size)))
        return pick_anchors(made)
