"""Find forks: compare a bundle with another one, or with its channel, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.disk.durable import Disk
from ropewalk.errors import Damaged, Invalid
from ropewalk.ledger.block.block import BlockRecord, Fork, check_signature, find_fork, parse_record
from ropewalk.ledger.bundle.format import HEADERS
from ropewalk.ledger.bundle.members import HEADER_LINE_MAX, check_member, no_bundle
from ropewalk.ledger.bundle.tar import Member, TarReader
from ropewalk.ledger.bundle.zstd_file import read_packed
from ropewalk.ledger.channel.channel import Channel


@dataclass(frozen=True, slots=True)
class ForkComparison:
    """How far two histories agree: equal blocks, blocks only one has, and the first that differs."""

    channel: str
    same: int
    alone: int
    fork: Fork | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `bundle compare` prints."""
        return {
            "channel": self.channel,
            "same": self.same,
            "alone": self.alone,
            "fork": self.fork is not None,
        }


def compare_bundles(first: Path, second: Path) -> ForkComparison:
    """Compare two bundles of one channel. Signatures are checked; `verify_bundle` checks everything else."""
    left, right = bundle_records(first), bundle_records(second)
    one, other = next(left, None), next(right, None)
    if one is None or other is None:
        raise no_bundle("the bundle has no headers")
    channel = one.header.channel
    if other.header.channel != channel:
        raise Invalid(f"bundles of two channels, {channel} and {other.header.channel}, cannot be compared")
    same = alone = 0
    while one is not None and other is not None:
        if one.height != other.height:
            alone += 1
            one, other = (next(left, None), other) if one.height < other.height else (one, next(right, None))
            continue
        fork = find_fork(one, other)
        if fork is not None:
            return ForkComparison(channel, same, alone, fork)
        same += 1
        one, other = next(left, None), next(right, None)
    alone += sum(1 for _ in left) + sum(1 for _ in right) + (one is not None) + (other is not None)
    return ForkComparison(channel, same, alone)


def compare_with_channel(path: Path, channel: Channel) -> ForkComparison:
    """Compare a bundle with its channel. A fork is stored in the channel's folder as evidence."""
    name, size = channel.settings.channel, channel.head().height
    same = alone = 0
    for record in bundle_records(path):
        if record.header.channel != name:
            raise Invalid(f"{path} is a bundle of {record.header.channel}, not of {name}")
        if record.height >= size:
            alone += 1
            continue
        if channel.index.block_hash(record.height) == record.hash:
            same += 1
            continue
        ours = parse_record(channel.segments.find(record.height).lines[0])
        fork = find_fork(ours, record)
        if fork is None:
            same += 1  # the index was wrong, the log was not
            continue
        folder = channel.folder / "evidence"
        Disk().make_directories(folder)
        kept = folder / f"fork-{record.height}-{record.hash.hex()[:16]}.json"
        Disk().replace(kept, fork.to_bytes(), mode=0o600)
        return ForkComparison(name, same, alone, fork)
    return ForkComparison(name, same, alone)


def bundle_records(path: Path) -> Iterator[BlockRecord]:
    """Yield the block records of a bundle, ascending, each with a valid signature of its own key."""
    tar, name, rest = TarReader(), "", bytearray()
    for piece in read_packed(path):
        for event in tar.feed(piece):
            if isinstance(event, Member):
                name = event.name
                check_member(name, event.size)
            elif name == HEADERS and event:
                rest += event
                while (end := rest.find(b"\n")) >= 0:
                    record = parse_record(bytes(rest[:end]))
                    del rest[: end + 1]
                    check_signature(record)
                    yield record
                if len(rest) > HEADER_LINE_MAX:
                    raise Damaged(f"{HEADERS}: a line of more than {HEADER_LINE_MAX} bytes", reason="line")
            elif name == HEADERS:
                return
