"""Replay over Spark gives the roots that one process gives, however the work is cut, resumed or killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ropewalk.disk import key_files
from ropewalk.errors import Damaged, RopewalkError, Unverified
from ropewalk.kernel import jcs
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.replay.channel_replay import recorded_snapshots, replay_channel
from ropewalk.ledger.replay.encoded_state import state_root
from ropewalk.ledger.replay.reducers import find_reducer
from ropewalk.ledger.replay.replay import companion
from ropewalk.pipeline.jobs.replay import ReplayedChannel, Replays, replay_channels
from ropewalk.pipeline.tables.warehouse import Warehouse
from tests.launched.test_commands import command
from tests.pipeline.tampering import change_payload
from tests.pipeline.world import NODE, World
from tests.waiting import ended, until

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
COUNTS = find_reducer("counts")
SIGNING = partial(replay_channel, key=NODE)


def roots(world: World, *channels: str) -> dict[str, str]:
    """What one process comes to."""
    home = world.place.home
    return {name: replay_channel(home, name, COUNTS).state_root.hex() for name in channels}


@pytest.mark.slow
def test_replay_roots_independent_of_partitioning(spark: Any, world: World):
    world.ledger("ea.other", 9)
    home, channels = world.place.home, ("ea.core", "ea.other")
    expected = roots(world, *channels)
    for partitions in (1, 2, 7, 16):
        found = replay_channels(
            spark,
            world.path,
            "counts",
            SIGNING,
            resume=False,
            snapshot_every=2,
            partitions=partitions,
            rows_per_range=max(1, 40 // partitions),
        )
        assert {each.channel: each.state_root for each in found} == expected
    # One process and Spark sign the very same snapshots, and each goes on from the other's.
    signed = [each.height for each in recorded_snapshots(home, "ea.core")]
    assert signed == [1, 3] and found[0].compared == 2
    before = replay_channel(home, "ea.core", COUNTS, key=NODE, snapshot_every=2)
    assert before.compared == 2 and len(recorded_snapshots(home, "ea.core")) == 2
    assert replay_channel(home, "ea.core", COUNTS, from_snapshot=True).started_from == 3
    world.ledger("ea.core", 5)
    expected = roots(world, *channels)
    for partitions in (1, 2, 7, 16):
        found = replay_channels(spark, world.path, "counts", replay_channel, partitions=partitions)
        assert {each.channel: each.state_root for each in found} == expected
        assert [(each.from_snapshot, each.blocks) for each in found] == [(3, 3), (1, 1)]


def test_a_channel_that_does_not_verify_is_not_folded(spark: Any, world: World):
    change_payload(world)
    with pytest.raises(Unverified, match="block 2"):
        replay_channels(spark, world.path, "counts", replay_channel)


def test_a_second_run_has_nothing_to_do_until_the_channel_grows(spark: Any, world: World, tmp_path: Path):
    replays = Replays(Warehouse(tmp_path / "tables"))

    def run(**options: Any) -> Any:
        found = replay_channels(spark, world.path, "counts", SIGNING, known=replays.last("counts"), **options)
        replays.keep(found, datetime.now(UTC))
        return found[0]

    first, second = run(), run()
    assert (first.blocks, first.kept, second.blocks, second.kept) == (5, False, 0, True)
    assert second.state_root == first.state_root
    assert len(replays.warehouse.noted("replays")) == 1
    world.ledger("ea.core", 4)
    assert (run().blocks, run().kept) == (6, True)


def test_forged_replay_row_folded_again_or_refused(spark: Any, world: World, tmp_path: Path):
    replays = Replays(Warehouse(tmp_path / "tables"))
    run = partial(replay_channels, spark, world.path, "counts", SIGNING)
    (true,) = run()
    replays.keep([replace(true, state='{"total":0}')], datetime.now(UTC))  # its root is of another state
    assert replays.last("counts") == {}
    (found,) = run(known=replays.last("counts"))
    assert (found.kept, found.state_root) == (False, true.state_root)
    replays.keep([found], datetime.now(UTC))
    last, path = replays.last("counts"), replays.warehouse.noted("replays")[-1]
    assert run(known=last)[0].kept
    forged = pq.read_table(path, partitioning=None).set_column(7, "state_root", [["00" * 32]])
    pq.write_table(forged, path)
    with pytest.raises(Damaged, match=r"replays/replay-[0-9]+\.parquet holds other bytes") as caught:
        replays.last("counts")
    assert f"replays.{path.stem}.json" in caught.value.advice_now
    path.unlink()
    (replays.warehouse.home / "noted" / f"replays.{path.stem}.json").unlink()
    assert replays.last("counts") == {}  # as it advises


def test_replay_row_without_record_does_not_count(spark: Any, world: World, tmp_path: Path):
    replays = Replays(Warehouse(tmp_path / "tables"))
    replays.keep(replay_channels(spark, world.path, "counts", SIGNING), datetime.now(UTC))
    (path,) = replays.warehouse.noted("replays")
    path.rename(path.with_name("replay-1.parquet"))
    assert replays.last("counts") == {}
    shutil.rmtree(replays.warehouse.home / "noted")  # as a version that recorded nothing left it
    assert replays.last("counts") == {}


@pytest.mark.parametrize("odd", [{"state": None}, {"zone": "a"}, None], ids=["no state", "column", "others"])
def test_odd_replay_row_does_not_count(tmp_path: Path, odd: dict[str, Any] | None):
    """A recorded file may be of another version; its rows are folded again."""
    row = ReplayedChannel("a", "counts", "", 1, 1, 1, "00", state_root({}).hex(), "{}")
    replays = Replays(Warehouse(tmp_path / "tables"))
    replays.keep([row], datetime.fromtimestamp(1, UTC))
    assert replays.last("counts") == {"a": row}
    (path,) = replays.warehouse.noted("replays")
    known = pq.read_table(path).to_pylist()[0]
    replays.warehouse.note(
        "replays", path.stem, pa.Table.from_pylist([{**known, **odd} if odd else {"n": 1}])
    )
    assert replays.last("counts") == {}


def test_broken_snapshots_are_refused_by_name_and_replay_starts_earlier(spark: Any, world: World):
    home = world.place.home
    replay_channel(home, "ea.core", COUNTS, key=NODE, snapshot_every=2)
    states = {each.height: each.state_root.hex() for each in recorded_snapshots(home, "ea.core")}
    folder = home / "ledger" / companion("ea.core") / "states"
    (folder / f"{states[3]}.json").write_bytes(jcs.encode({"total": 0}))
    (found,) = replay_channels(spark, world.path, "counts", replay_channel)
    assert (found.from_snapshot, found.blocks, found.state_root) == (1, 3, roots(world, "ea.core")["ea.core"])
    assert [each["snapshot"] for each in found.to_json()["refused"]] == ["snapshot at 3"]


def test_replay_finds_changed_reducer(
    spark: Any, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "weighed.py"
    module.write_text("def fold(state, event, moment):\n    return {'n': state.get('n', 0) + 1}\n")
    replays = Replays(Warehouse(tmp_path / "tables"))
    run = partial(replay_channels, spark, world.path, "weighed:fold", SIGNING)
    replays.keep(run(snapshot_every=2), datetime.now(UTC))
    assert run(known=replays.last("weighed:fold"))[0].kept
    module.write_text("def fold(state, event, moment):\n    return {'n': state.get('n', 0) + 2}  # changed\n")
    del sys.modules["weighed"]
    with pytest.raises(Unverified, match="diverges at height 1") as caught:
        run(known=replays.last("weighed:fold"))
    fields = caught.value.fields
    assert (Path(fields["folder"]) / "blocks.tar.zst").exists()
    with open_channel(world.place.home, companion("ea.core")) as reading:
        alert = reading.envelope(bytes.fromhex(fields["alert"]))
    assert alert.event_class == "Alert"


def test_pipeline_replay_guards_reducers(
    spark: Any, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "dialling.py").write_text(
        "import socket\ndef fold(state, event, moment):\n    socket.socket()\n    return state\n"
    )
    with pytest.raises(RopewalkError, match="must not use the network"):
        replay_channels(spark, world.path, "dialling:fold", SIGNING, channels="ea.core")


@pytest.mark.slow
def test_a_replay_killed_at_any_moment_is_taken_up_by_the_next(
    spark: Any, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    key_files.make(world.place.keys, "node", "ed25519", b"node" + bytes(28))
    world.ledger("ea.core", 25, per_block=1)
    (tmp_path / "slow.py").write_text(
        "import time\ndef fold(state, event, moment):\n"
        "    time.sleep(0.1)\n    return {'n': state.get('n', 0) + 1}\n"
    )
    arguments = command(
        "replay", "--warehouse", str(tmp_path / "t"), "--source", str(world.path), "--master", "local[1]",
        "--reducer", "slow:fold", "--unsafe-no-guard", "--snapshot-every", "1",
    )  # fmt: skip
    home = world.place.home
    process = subprocess.Popen(
        arguments,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with ended(process, 240):
        try:
            until(lambda: bool(recorded_snapshots(home, "ea.core")) or process.poll() is not None, 240)
            assert process.poll() is None
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    stood = max(each.height for each in recorded_snapshots(home, "ea.core"))
    (found,) = replay_channels(
        spark,
        world.path,
        "slow:fold",
        SIGNING,
        resume=True,
        snapshot_every=1,
        channels="ea.core",
        unsafe_no_guard=True,
    )
    assert found.from_snapshot is not None and found.from_snapshot >= stood and found.height == 29
    assert json.loads(found.state) == {"n": 45}
    assert [each.height for each in recorded_snapshots(home, "ea.core")] == list(range(30))
