"""Find what a new or a known envelope belongs to: its channel, its parent, the version to write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ropewalk.errors import NotFound
from ropewalk.ledger.block.index_keys import claim_key
from ropewalk.ledger.channel.channel import Channel, current_policy, open_channel
from ropewalk.ledger.channel.settings import channels
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.versions.lifecycle import version_to_write


def find_parent(
    home: Path, channel: str, parent: bytes | None, event_class: str, correlation_id: str | None
) -> Envelope | None:
    """Return the parent of a new envelope: the one named, or the Command of a Result."""
    if parent is not None:
        with open_channel(home, channel) as reading:
            return reading.envelope(parent)
    if event_class != "Result" or correlation_id is None:
        return None
    try:
        with open_channel(home, channel) as reading:
            place = reading.index.claim(claim_key("Command", correlation_id))
            if place is None:
                return None
            height, leaf = place
            (block,) = reading.blocks(height, height)
    except NotFound:  # no such channel here: the envelope may be for another repository
        return None
    return parse_stored(block.envelopes[leaf])


def version_for(home: Path, channel: str, now_ns: int) -> str:
    """Return the version for new envelopes: the oldest that the channel accepts now."""
    try:
        policy = current_policy(home, channel)
    except NotFound:
        policy = None
    return version_to_write(home, policy, now_ns)


@contextmanager
def channel_of(home: Path, envelope: bytes, channel: str | None) -> Iterator[Channel]:
    """Open the channel that holds an envelope: the one named, or the first that has it."""
    for each in [channel] if channel is not None else channels(home):
        with open_channel(home, each) as reading:
            if reading.index.position(envelope) is not None:
                yield reading
                return
    raise NotFound(f"no envelope {envelope.hex()} in {channel or 'any channel'}", id=envelope.hex())
