"""Replay over Spark: every channel verified in parallel ranges, then folded in order with the same pure reducer.

Folding is cheap beside verifying, and its order is the channel's. So ranges of all channels are verified by all hands
first, and only then each channel is folded by one of them; any number of partitions gives the same roots.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.errors import BrokenLink, NotFound, Unverified
from ropewalk.kernel import jcs
from ropewalk.ledger.block import GENESIS, Block, check_contents, check_link
from ropewalk.ledger.reducers import REDUCERS, Moment, Reducer
from ropewalk.ledger.replay import Replay
from ropewalk.pipeline.ledgers import Ledgers
from ropewalk.pipeline.spread import spread
from ropewalk.pipeline.verify import verify_logs
from ropewalk.stores.place import find_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ReplayedChannel", "find_reducer", "fold_channel", "replay_channels"]

ANSWERS = (
    "channel string, reducer string, height bigint, blocks bigint, envelopes bigint, "
    "block_hash string, state_root string, state string"
)


@dataclass(frozen=True, slots=True)
class ReplayedChannel:
    """What the fold of one channel came to; `state` is canonical JSON."""

    channel: str
    reducer: str
    height: int
    blocks: int
    envelopes: int
    block_hash: str
    state_root: str
    state: str

    def to_json(self) -> dict[str, Any]:
        """As `pipeline replay` prints it."""
        return {name: value for name, value in asdict(self).items() if name != "state"}


def find_reducer(name: str) -> Reducer:
    """A reducer that ships, or `module:function`; a function's attribute `initial` is the state it starts from.

    >>> find_reducer("counts").name
    'counts'
    """
    if name in REDUCERS:
        return REDUCERS[name]
    module, _, attribute = name.partition(":")
    try:
        fold = getattr(import_module(module), attribute) if attribute else None
    except (ImportError, AttributeError) as error:
        raise NotFound(f'no reducer "{name}": {error}', name=name) from error
    if not callable(fold):
        raise NotFound(
            f'no reducer "{name}"', name=name, advice=f"One of {', '.join(REDUCERS)}, or module:function."
        )
    initial = jcs.encode(getattr(fold, "initial", {}))
    return Reducer(name, fold, lambda: jcs.parse(initial))


def fold_channel(source: Path, channel: str, reducer: Reducer, head: str) -> ReplayedChannel:
    """Fold a channel whose ranges were verified up to `head`: roots and links are checked on the way, seals were."""
    found = Ledgers(find_place(source)).channel(channel)
    replay = Replay(reducer, channel)
    below = None
    blocks = 0
    if head:
        for height, place in found.segments.places():
            block = Block.from_lines(found.segments.read(place, height).lines)
            check_link(below, block.header)
            check_contents(block)
            moment = Moment(channel, height, block.header.timestamp_ns)
            replay.fold([_event(raw) for raw in block.envelopes], moment)
            below, blocks = block.header, blocks + 1
            if below.hash.hex() == head:
                break
    got = (below.hash if below is not None else GENESIS).hex()
    if head and got != head:
        raise BrokenLink(f"channel {channel}: block {head[:16]}… that was verified is gone", topic=channel)
    height = -1 if below is None else below.height
    state = jcs.encode(replay.state).decode()
    return ReplayedChannel(
        channel, reducer.name, height, blocks, replay.envelopes, got, replay.root().hex(), state
    )


def replay_channels(
    spark: SparkSession,
    source: Path,
    reducer: str,
    *,
    channels: str | None = None,
    partitions: int | None = None,
    rows_per_range: int | None = None,
) -> list[ReplayedChannel]:
    """The state roots of channels. A channel that does not verify is refused before anything is folded."""
    find_reducer(reducer)
    place = find_place(source).git_dir
    report, _ = verify_logs(spark, place, engine="ledger", topics=channels, rows_per_range=rows_per_range)
    for log in report.logs:
        if log.detail is not None:
            raise Unverified(
                f"channel {log.log.topic}, {log.entry}: {log.detail}", topic=log.log.topic, entry=log.entry
            )

    def fold(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [asdict(fold_channel(place, row["channel"], find_reducer(reducer), row["head"]))]

    rows = [{"channel": log.log.topic, "head": log.head} for log in report.logs]
    found = spread(spark, rows, "channel string, head string", fold, ANSWERS, partitions)
    return sorted((ReplayedChannel(**row) for row in found), key=lambda each: each.channel)


def _event(raw: bytes) -> dict[str, Any]:
    value = jcs.parse(raw)
    assert isinstance(value, dict)
    return value
