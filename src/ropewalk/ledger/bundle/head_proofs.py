"""Signed heads of a channel on their way into bundles: held against it once, then proved for any range of blocks."""

from __future__ import annotations

from ropewalk.errors import DigestMismatch, RangeExceeded
from ropewalk.kernel.note.key import Verifier, is_key_name
from ropewalk.kernel.note.note import claimed_head, open_note
from ropewalk.ledger.bundle.anchors import BundleAnchor, head_of, pick_anchors
from ropewalk.ledger.channel.channel import Channel
from ropewalk.ledger.transparency.publish import header_tree


class AnchorCollector:
    """Give it notes, then ask for the anchors of a range.

    A note must be a head of this channel, at a size that the channel has reached, with the root that the channel had
    then, and where the channel's own key is said to have signed it, it must have. Who else signed is for the verifier.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._tree = header_tree(channel)
        self._notes: list[bytes] = []

    def add(self, note: bytes) -> None:
        """Take a note. `Invalid` if it is no head of this channel, `Unverified` if it is, but not of this history."""
        name = self._channel.settings.channel
        head = head_of(note, name)
        if not 0 < head.size <= self._tree.size:
            raise RangeExceeded(
                f"a head of {head.size} blocks of a channel that has {self._tree.size}",
                advice="Export from a copy that has all blocks the head speaks of.",
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
                advice="The head is of another history. Keep it: whoever signed it must explain the two.",
                expected=head.root.hex(),
                got=root.hex(),
                where="root",
            )
        self._notes.append(note)

    def over(self, start: int, end: int) -> tuple[BundleAnchor, ...]:
        """The anchors of the blocks from `start` up to and with `end`, in the order bundles have."""
        made = []
        for note in self._notes:
            size = claimed_head(note)[0].size
            if size <= end:
                raise RangeExceeded(
                    f"a head of {size} blocks says nothing of block {end}",
                    advice=f"Give a head of at least {end + 1} blocks, or export no further than block {size - 1}.",
                    size=size,
                    end=end,
                )
            made.append(BundleAnchor(note, self._tree.range(start, end + 1, size)))
        return pick_anchors(made)
