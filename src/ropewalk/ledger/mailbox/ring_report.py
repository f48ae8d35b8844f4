"""Report the contents of a mailbox, read-only."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.errors import DigestMismatch, NotFound, RopewalkError
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.json_form import members_of
from ropewalk.ledger.mailbox.agreement import DAMAGED, SignedRoot, mailbox_root
from ropewalk.ledger.mailbox.ring import Ring
from ropewalk.ledger.mailbox.server import RING_NAME
from ropewalk.ledger.mailbox.shared_memory import map_ring

LOOKS_MAX = 5  # while the host is at work what is read may be half old, half new


@dataclass(frozen=True, slots=True)
class RingReport:
    """One ring: how many were taken, how many wait, which of these are damaged, and what the host said last.

    `root` is "holds" or "differs", "gone" where slots have been filled again since, None before the first. `signer` is
    the key that signed it, if it is one of those that were asked about.
    """

    name: str
    channel: str
    slots: int
    slot_bytes: int
    taken: int
    waiting: int
    damaged: tuple[int, ...]
    root: str | None
    signer: str | None

    @property
    def ok(self) -> bool:
        """Whether nothing is amiss."""
        return not self.damaged and self.root != "differs"

    def to_json(self) -> dict[str, Any]:
        """Return what commands print."""
        return members_of(self, name="ring")


def read_rings(folder: Path, signers: Iterable[PublicKey] = ()) -> list[RingReport]:
    """Return the rings of a mailbox: one for each session that is open, or that was when its host was killed."""
    if not folder.is_dir():
        raise NotFound(f"no mailbox at {folder}", name=str(folder))
    keys, found = tuple(signers), []
    for path in sorted(folder.iterdir()):
        name = RING_NAME.fullmatch(path.name)
        if name is None:
            continue
        try:
            mapped = map_ring(path, write=False)
        except NotFound:  # its session has just ended
            continue
        with closing(mapped):
            for _ in range(LOOKS_MAX):
                report = _look(mapped.ring, path.name, name[1], keys)
                if report.ok:
                    break
            found.append(report)
    return found


def _look(ring: Ring, name: str, channel: str, keys: tuple[PublicKey, ...]) -> RingReport:
    head = ring.head
    end = min(max(ring.published(), ring.tail), head + ring.slots)
    damaged = tuple(place for place in range(head, end) if _digest(ring, place) == DAMAGED)
    signed = SignedRoot.from_bytes(ring.seal)
    root = signer = None
    if signed is not None:
        places = range(signed.first, signed.first + min(signed.count, ring.slots + 1))
        if end > signed.first + ring.slots:
            root = "gone"
        else:
            digests = [_digest(ring, place) for place in places]
            root = "holds" if mailbox_root(ring.id, signed.first, digests) == signed.root else "differs"
        signer = next((key.did() for key in keys if _signed_by(key, signed)), None)
    return RingReport(
        name, channel, ring.slots, ring.slot_bytes, head, max(0, end - head), damaged, root, signer
    )


def _digest(ring: Ring, place: int) -> bytes:
    try:
        return ring.look(place)[0]
    except DigestMismatch:
        return DAMAGED


def _signed_by(key: PublicKey, signed: SignedRoot) -> bool:
    try:
        key.verify(signed.root, signed.signature)
    except RopewalkError:
        return False
    return True
