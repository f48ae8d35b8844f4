"""Save what an index knew before it is deleted because its log lost the last indexed block."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from ropewalk.errors import RopewalkError
from ropewalk.ledger.channel.index.rows import BlockEntry, IndexState, UnpackedIndexKeys
from ropewalk.ledger.channel.losses import LOST_MAX, KnownHead, note_known
from ropewalk.ledger.channel.segments.reader import Segments

LOST_ENVELOPES_MAX = 100_000  # envelopes listed one by one


def keep_claim(
    segments: Segments,
    state: IndexState,
    entry: Callable[[int], BlockEntry],
    derive: Callable[[Sequence[bytes]], UnpackedIndexKeys],
) -> None:
    """Record which blocks an index has that its log lacks. An index of another log is ignored.

    Best effort: a damaged index may raise anything, and the folder may not be writable. The mark of receipted blocks
    is authoritative; this names the lost blocks and envelopes, and serves channels that have no mark yet.
    """
    if not state.height:
        return
    with contextlib.suppress(Exception):
        whole = 0
        with contextlib.suppress(RopewalkError):
            for height, place in segments.places():
                record = segments.read(place, height)
                if height == 0 and derive(record.lines).block_hash != entry(0).block_hash:
                    return
                whole = height + 1
        if state.height <= whole:
            return
        lost, listed = [], 0
        for height in range(whole, min(state.height, whole + LOST_MAX)):
            found = entry(height)
            names = [found.leaf(index).hex() for index in range(found.count)]
            if (listed := listed + len(names)) > LOST_ENVELOPES_MAX:
                break
            lost.append({"height": height, "block_hash": found.block_hash.hex(), "envelopes": names})
        note_known(segments.folder, KnownHead(state.height, state.block_hash.hex(), "index", lost))
