"""What only shows between blocks: Spark's verdict is the one a single process gives, wherever the channel is cut."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ropewalk.errors import Conflict, Unverified
from ropewalk.kernel import jcs
from ropewalk.ledger.block.block import GENESIS, Block, seal
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.segments.reader import Segments
from ropewalk.ledger.channel.segments.writer import SegmentWriter
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.proof.verify import check_channel
from ropewalk.pipeline.jobs import verify
from ropewalk.pipeline.jobs.ingest import Ingest
from ropewalk.pipeline.jobs.verify import verify_logs
from ropewalk.pipeline.tables.verify import verify_tables
from ropewalk.pipeline.tables.warehouse import Warehouse
from tests.pipeline.world import NODE, World
from tests.unit.ledger.making import changed, command, observed

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
NOON_NS = 1_730_462_400 * 10**9


def chained(number: int, *ancestors: Envelope) -> Envelope:
    name = f"c-{number}"
    return changed(
        observed(number), correlation_id=name, causality_chain=[*(each.hex_id for each in ancestors), name]
    )


def proven(number: int, block: Block) -> Envelope:
    """An envelope with a proof that a block has one envelope, and this root."""
    leaf = block.header.merkle_root.hex()
    value = {"leaf": leaf, "index": 0, "size": 1, "path": [], "root": leaf}
    proof = {"type": "merkle", "proof": b64encode(jcs.encode(value)).decode()}
    return observed(number, integrity_proof=proof)


def result(correlation_id: str, **more: Any) -> Envelope:
    return observed(event_class="Result", event_type="test.done", correlation_id=correlation_id, **more)


def alert(number: int, **more: Any) -> Envelope:
    return observed(number, event_class="Alert", correlation_id="a-1", **more)


def sealed(world: World, channel: str, *blocks: list[bytes]) -> None:
    """A channel whose own key has sealed what its log would have refused; more of it, if it is there already."""
    folder = world.place.home / "ledger" / channel
    if not folder.exists():
        create_channel(world.place.home, channel, "node", NODE.public)
    stored = list(Segments(folder).scan())
    below = Block.from_lines(stored[-1].lines).hash if stored else GENESIS
    after = stored[-1].place if stored else None
    with SegmentWriter(folder, after=after, height=len(stored)) as writer:
        for height, envelopes in enumerate(blocks, len(stored)):
            made = seal(
                NODE,
                channel=channel,
                height=height,
                prev_block_hash=below,
                envelopes=envelopes,
                timestamp_ns=NOON_NS + height,
            )
            writer.append(height, made.lines())
            below = made.hash
        writer.sync()


def block_of(*numbers: int) -> Block:
    """A block, for its root."""
    raws = [observed(number).raw for number in numbers]
    return seal(NODE, channel="x", height=0, prev_block_hash=GENESIS, envelopes=raws, timestamp_ns=0)


def one_process(world: World, channel: str) -> tuple[str, str] | None:
    with open_channel(world.place.home, channel) as reading:
        fault = check_channel(reading.lines(), trust=reading.settings.trust()).fault
    return None if fault is None else (f"block {fault.height}, envelope {fault.index}", fault.detail)


ALLOWED = {"policy_tag": {"policy_hash": "00" * 32, "decision": "allow"}}
FIRST, SECOND, LATE = observed(900), observed(901), observed(902)
LIES: dict[str, list[list[Envelope]]] = {
    "command.twice": [[command("k", payload={"n": 1})], [observed(1)], [observed(2), command("k", payload={"n": 2})]],
    "same.envelope.twice": [[FIRST], [observed(3)], [SECOND, FIRST]],
    "twice.in.one.block": [[FIRST, observed(4)], [SECOND, observed(5), SECOND]],
    "result.without.command": [[observed(6)], [result("nobody")]],
    "result.before.command": [[result("k")], [command("k")]],
    "result.twice": [[command("k")], [result("k", payload={"n": 1})], [result("k", payload={"n": 2})]],
    "ancestors.out.of.order": [[FIRST], [SECOND], [chained(7, FIRST, SECOND), chained(8, SECOND, FIRST)]],
    "proof.of.a.later.block": [[proven(9, block_of(10))], [observed(10)]],
    "proof.of.another.size": [[observed(10), observed(11)], [observed(12)], [proven(13, block_of(10, 11))]],
    "alert.again": [[alert(14)], [alert(15)]],
    "alert.again.allowed.once": [[alert(16, **ALLOWED)], [alert(17, **ALLOWED)], [alert(18)]],
    "two.lies": [[FIRST], [FIRST], [result("nobody")]],
}  # fmt: skip
SPREAD_LIES = (
    "command.twice",
    "result.twice",
    "proof.of.another.size",
    "alert.again.allowed.once",
    "two.lies",
)
TRUTHS: dict[str, list[list[Envelope]]] = {
    "result.after.command": [[command("k")], [observed(20)], [result("k")]],
    "ancestors.in.order": [[FIRST], [SECOND], [chained(21, FIRST, SECOND)]],
    "ancestor.elsewhere": [[chained(22, LATE)], [LATE]],
    "proof.of.an.earlier.block": [[observed(23)], [proven(24, block_of(23))]],
    "alert.again.allowed": [[alert(25)], [alert(26, **ALLOWED)], [alert(27, **ALLOWED)]],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lies", "truths", "fetched"),
    [
        (SPREAD_LIES[-2:], ("proof.of.an.earlier.block",), 256),
        (tuple(LIES), tuple(TRUTHS), 256),
        (tuple(LIES), tuple(TRUTHS), 0),
    ],
    ids=["some", "all", "shuffled"],
)
def test_spark_finds_what_one_process_finds_between_blocks(
    spark: Any, tmp_path: Path, lies: Any, truths: Any, fetched: int, monkeypatch: pytest.MonkeyPatch
):
    """Marks of few blocks are compared in the driver, those of many by Spark."""
    monkeypatch.setattr(verify, "BLOCKS_FETCHED_MAX", fetched)
    world = World.make(tmp_path / "log.git")
    for channel in (*lies, *truths):
        sealed(world, channel, *([each.raw for each in block] for block in {**LIES, **TRUTHS}[channel]))
    expected = {channel: one_process(world, channel) for channel in (*lies, *truths)}
    assert all(expected[channel] is not None for channel in lies), expected
    assert all(expected[channel] is None for channel in truths), expected
    report, _ = verify_logs(spark, world.path, rows_per_range=1)
    found = {
        each.log.topic: None if each.entry is None else (each.entry, each.detail) for each in report.logs
    }
    assert found == expected
    (step,) = [step for step in report.steps if step.name == "across_blocks"]
    assert step.status == "failed" and not report.ok
    report, _ = verify_logs(spark, world.path, topics=",".join(truths), deep=False)
    (step,) = [step for step in report.steps if step.name == "across_blocks"]
    assert step.status == "not_checked" and report.ok


def test_a_fault_of_a_block_alone_comes_first_if_it_stands_first(spark: Any, tmp_path: Path):
    world = World.make(tmp_path / "log.git")
    broken = jcs.encode({**FIRST.value, "event_type": "forged"})
    sealed(world, "c", [SECOND.raw], [broken], [SECOND.raw])
    report, _ = verify_logs(spark, world.path, rows_per_range=1)
    assert (report.logs[0].entry, report.logs[0].detail) == one_process(world, "c")
    assert str(report.logs[0].entry).startswith("block 1")


@pytest.mark.slow
def test_ingest_rejects_faults_between_batches(spark: Any, tmp_path: Path):
    """Batch by batch, each knowing those before it; then the tables are held against one fold of the whole."""
    world = World.make(tmp_path / "log.git")
    warehouse = tmp_path / "tables"
    lies = {name: LIES[name] for name in SPREAD_LIES}
    for part in (slice(0, 1), slice(1, None)):
        for channel, blocks in {**lies, **TRUTHS}.items():
            sealed(world, channel, *([each.raw for each in block] for block in blocks[part]))
        Ingest(spark, world.path, warehouse, now_ms=lambda: 1, mode="quarantine").once()
    assert len(Warehouse(warehouse).manifests()) == 2
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted((warehouse / "events_rejected").rglob("*.parquet")):
        for row in pq.read_table(path, partitioning=None).sort_by("position").to_pylist():
            name = f"block {row['position']}, envelope {row['leaf_index']}"
            found.setdefault(row["topic"], []).append((name, row["detail"]))
    assert {topic: rows[0] for topic, rows in found.items()} == {
        name: one_process(world, name) for name in lies
    }
    assert {topic: len(rows) for topic, rows in found.items() if len(rows) > 1} == {"two.lies": 2}
    report = verify_tables(spark, Warehouse(warehouse))
    assert report.ok, report.to_json()


@pytest.mark.slow
def test_a_strict_ingest_refuses_what_an_earlier_batch_holds_already(spark: Any, tmp_path: Path):
    world = World.make(tmp_path / "log.git")
    sealed(world, "c", [FIRST.raw], [SECOND.raw])
    warehouse = tmp_path / "tables"

    def ingest(**options: Any) -> Ingest:
        return Ingest(spark, world.path, warehouse, now_ms=lambda: 1, **options)

    kept = ingest()
    assert kept.once().rows == 2
    sealed(world, "c", [LATE.raw])
    assert ingest().once().rows == 1
    sealed(world, "c", [LATE.raw, FIRST.raw])
    with pytest.raises(Unverified) as caught:
        kept.once()  # which did not see that batch come
    assert "channel c, block 3, envelope 0" in caught.value.detail
    assert len(Warehouse(warehouse).manifests()) == 2
    done = ingest(mode="quarantine").once()
    assert (done.rows, done.rejected) == (0, 2)
    with pytest.raises(Conflict, match="off"):
        ingest(mode="off").once()
