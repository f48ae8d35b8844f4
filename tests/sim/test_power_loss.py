"""Power cuts: every acknowledged entry survives, and the next writer goes on. A share of `make simulate`."""

from __future__ import annotations

import os
import random

import pytest

from ropewalk.errors import Unavailable
from tests.sim.power.recording import Call, Recording
from tests.sim.power.run import busy_elsewhere, recorded, simulate
from tests.sim.power.states import ACKNOWLEDGED, crash_states, last_state
from tests.sim.power.workloads import WORKLOADS
from tests.tools import needs

CC = needs("cc")
FAST = ("ledger", "gitlog", "gossip", "warehouse", "witness", "ledger_new", "gitlog_new", "gossip_new")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in WORKLOADS if name not in FAST]


@CC
@pytest.mark.parametrize("name", [*FAST, *SLOW])
def test_log_survives_power_cuts(name):
    report = simulate(name, seed=random.Random(name).randrange(1000), mixes=1, limit=60)
    assert report["ok"], report
    assert report["states"] > 3


@CC
@pytest.mark.parametrize("name", ["ledger", "gitlog", "gossip", "witness"])
def test_disk_that_does_not_sync_is_found(name):
    report = simulate(name, seed=3, mixes=1, limit=60, ignore="sWd")
    assert any("lost" in each or "fork" in each for found in report["problems"] for each in found["problems"])


@CC
@pytest.mark.parametrize("name", [*FAST, *SLOW])
def test_recording_rebuilds_the_disk(name):
    """No call is missed: with all of them kept, the simulated disk is the real one."""
    elsewhere = {
        "FETCH_HEAD",
        "lock.mdb",
        ACKNOWLEDGED,
    }  # through stdio or mmap; no engine relies on them after a cut
    with recorded(name) as (recording, folder):
        state, root = last_state(recording), folder / "root"
        paths = [path for path in root.rglob("*") if path.is_file() and path.name not in elsewhere]
        disk = {str(path.relative_to(root)): path.read_bytes() for path in paths}
    rebuilt = {
        name: raw for name, (_, raw) in state.files.items() if name.rpartition("/")[2] not in elsewhere
    }
    assert rebuilt == disk and disk


@CC
def test_push_leaves_git_configuration_whole():
    """The first push adds refspecs to the configuration: git left it empty after a cut (seed 3, call 27)."""
    with recorded("push") as (recording, _):
        moved = [n for n, call in enumerate(recording.calls, 1) if call.second == "log.git/config"]
        assert moved, "the configuration was not written"
        cuts = range(moved[0] - 1, moved[0] + 2)
        states = list(crash_states(recording, seed=1, mixes=0, cuts=cuts))
        kept = [state.files["log.git/config"][1] for state in states]
    assert kept and all(b"[core]" in raw and b'[remote "origin"]' in raw for raw in kept)


def test_push_goes_on_after_a_lock_left_by_git(tmp_path):
    """A cut in a fetch left `head.lock` of a tracking ref: every later push was refused (seed 26112102, `sync` 6)."""
    workload = WORKLOADS["push"]
    workload.prepare(tmp_path)
    workload.work(tmp_path, lambda _receipt: None)
    head = tmp_path / "log.git/refs/ropewalk/remotes/origin/gatos/shiplog/demo/head"
    head.unlink()
    lock = head.with_name("head.lock")
    lock.touch()
    with pytest.raises(Unavailable, match="cannot lock ref"):  # its owner may be at work
        list(workload.check(tmp_path, []))
    os.utime(lock, (0, 0))
    assert list(workload.check(tmp_path, [])) == []


def states_of(*calls: Call) -> list[dict[str, bytes]]:
    """Return the disks that may be there after the last of these calls."""
    recording = Recording(frozenset({"."}), {"old": (1, b"old")}, calls)
    last = crash_states(recording, seed=1, mixes=40, cuts=[len(calls)])
    return [{name: raw for name, (_, raw) in state.files.items()} for state in last]


WRITE = Call("w", 2, 0, "new", "", b"x" * 8192)
CREATE = Call("c", 2, 0, "new", "", b"")
RENAME = Call("r", 2, 0, "new", "old", b"")
SYNC, SYNC_FOLDER = Call("s", 2, 0, "new", "", b""), Call("d", 9, 0, ".", "", b"")


def test_locks_of_another_machine_are_let_go():
    """It keeps its power: a push failed on disks where the remote held `head.lock` for ever (seed 5, `sync` 5).

    The cut that parts the rename of a lock from its sync is no state of that machine either (seed 8, `eio` 28).
    """
    lock, head = "remote.git/head.lock", "remote.git/head"
    calls = [Call("c", 3, 0, lock, "", b""), WRITE, Call("r", 3, 0, lock, head, b""), CREATE]
    calls += [Call("c", 4, 0, lock, "", b""), CREATE, Call("c", 5, 0, "log.git/a.lock", "", b"")]
    recording = Recording(frozenset({"."}), {}, tuple(calls))
    assert busy_elsewhere(recording, "remote.git") == {
        1,
        2,
        3,
        5,
    }  # the last is never let go: a finding after 5
    assert busy_elsewhere(recording, "") == set()


def test_rename_without_sync_may_empty_a_file():
    found = states_of(CREATE, WRITE, RENAME)
    assert {"old": b"old"} in found
    assert {"old": b""} in found
    assert {"old": b"x" * 8192} in found
    assert any(len(state.get("old", b"")) == 8192 and b"\0" in state["old"] for state in found)


def test_synced_rename_is_old_or_new():
    found = states_of(CREATE, WRITE, SYNC, RENAME)
    assert {state["old"] for state in found if "old" in state} <= {b"old", b"x" * 8192}


def test_synced_folder_leaves_one_state():
    assert states_of(CREATE, WRITE, SYNC, RENAME, SYNC_FOLDER) == [{"old": b"x" * 8192}]
