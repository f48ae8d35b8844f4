"""Calls that fail, and bytes that rot: nothing acknowledged is lost, and damage is never taken for the log.

A share of `make simulate`; the faults that found defects are kept.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import islice

import pytest

from ropewalk.disk.memory_tables import MemoryTables
from ropewalk.errors import DigestMismatch
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.table import TABLES
from tests.sim.power.recording import Call, Recording
from tests.sim.power.rot import damaged_states, without_sectors
from tests.sim.power.run import (
    FAULTS,
    check_state,
    in_sector,
    recorded,
    simulate_again,
    simulate_faults,
    simulate_rot,
)
from tests.sim.power.states import CrashState, crash_states, last_state
from tests.sim.power.workloads import WORKLOADS
from tests.tools import needs
from tests.unit.ledger.making import NODE

CC = needs("cc")
ENGINES = ("ledger", "gitlog", "gossip", "warehouse", "witness")
QUICK = {("ledger", "sync"), ("gitlog", "full"), ("gossip", "eio"), ("warehouse", "short")}
QUICK |= {("ledger_threads", "slow"), ("gitlog_threads", "slow"), ("ledger_threads", "sync")}
QUICK |= {("ledger_new", "folder"), ("gossip_new", "folder")}
OTHERS = [name for name in WORKLOADS if name not in ENGINES]
REST = [
    (name, kind)
    for name, work in WORKLOADS.items()
    for kind in FAULTS
    if kind not in work.without and (name, kind) not in QUICK
]


def seed_of(name: str) -> int:
    return random.Random(name).randrange(1000)


@CC
@pytest.mark.parametrize(
    ("name", "kind"), [*sorted(QUICK), *(pytest.param(*each, marks=pytest.mark.slow) for each in REST)]
)
def test_failing_call_loses_nothing(name, kind):
    report = simulate_faults(name, kind, seed=seed_of(name), limit=20)
    assert report["ok"], report


@CC
@pytest.mark.parametrize("name", [*ENGINES, *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)])
def test_recovery_may_be_cut_off(name):
    report = simulate_again(name, seed=seed_of(name), limit=30)
    assert report["ok"], report


@CC
@pytest.mark.parametrize("name", [*ENGINES, *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)])
def test_rot_is_never_the_log(name):
    report = simulate_rot(name, seed=seed_of(name), limit=30)
    assert report["ok"], report


def states_after(name: str, fault: str | None) -> list[list[str]]:
    """Return what does not hold after each of the cuts of one recording."""
    mixes = 9 if name.startswith("gossip") else 1
    with recorded(name, fault) as (recording, folder):
        places = [cut for cut in range(len(recording.calls) + 1) if not in_sector(recording, cut)]
        states = crash_states(recording, seed=1, mixes=mixes, cuts=places)
        return [found for state in states if (found := check_state(WORKLOADS[name], state, folder))]


@CC
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        # The next writer took a block that a failed sync had dropped, and sealed the next one on it.
        ("ledger", "sync:1:1"),
        # Half of the mark of receipted blocks was written: the channel was refused for good.
        ("ledger", "short:5:1"),
        # LMDB put the old meta page back without a sync, and wrote over the pages that the new one named.
        ("gossip", "sync:4:1"),
        # The folder of the manifests was not synced: a committed batch was gone.
        ("warehouse", None),
        # The sync of that folder failed: the next writer recorded the head of a batch that was gone later.
        ("warehouse", "folder:16:1"),
        # The folder of all channels was not synced in its parent: a new channel was gone.
        # The name of a segment was not synced before the next one began: the channel was refused for good.
        ("ledger_new", None),
        # A sync failed before the next segment of a batch, and the one after it was believed: receipts were lost.
        ("ledger_new", "sync:14:1"),
        # The first pages of a new store were torn: LMDB refused it.
        ("gossip_new", None),
    ],
)
def test_defect_found_stays_mended(name, fault):
    assert states_after(name, fault) == []


@CC
def test_segment_read_back_is_whole_after_a_cut():
    """The cache of dropped segments was not synced: a copy with the right size and other bytes closed the channel."""
    report = simulate_again("ledger_retain", seed=26112402, limit=100)
    assert report["ok"], report


def rotten(name: str, damage: Callable[[CrashState], Iterable[CrashState]]) -> list[list[str]]:
    """Return what does not hold on the damaged disks of a workload."""
    workload = WORKLOADS[name]
    with recorded(name) as (recording, folder):
        before = workload.read(folder / "root")
        states = damage(last_state(recording))
        return [found for each in states if (found := check_state(workload, each, folder, before=before))]


@CC
def test_damaged_segment_is_not_sealed_again():
    """Review finding T1: a writer cut the damage off and sealed other blocks at heights with receipts."""

    def damage(now: CrashState) -> Iterable[CrashState]:
        cuts = damaged_states(now, now, kinds=("cut", "zeros"), seed=1)
        return islice((each for each in cuts if each.choice.endswith(".seg")), 8)

    assert rotten("ledger", damage) == []


@CC
def test_damaged_index_does_not_decide():
    """Review finding T2: a bit of the index let an envelope be sealed twice."""
    assert rotten("ledger", lambda now: without_sectors(now, ".rows")) == []


@CC
def test_torn_block_does_not_close_channel():
    """Review finding S6: the first page of a block without a receipt was lost, and no append worked any more."""
    assert states_after("ledger", None) == []


def test_rotten_gossip_message_is_not_read():
    """A bit of a stored payload flips: reading refuses it. It was handed out as a message that no peer had sent."""
    tables = MemoryTables(TABLES)
    log = GossipLog(tables, "com.example.rot", signer=NODE)
    id = log.append("sound").id
    with log.view() as view:
        ((key, raw),) = view.scan("messages")
    tables.transact(lambda change: change.put("messages", key, raw.replace(b"sound", b"soand")))
    for read in (lambda: list(log.iterate()), lambda: list(log.arrivals()), lambda: log.get(id)):
        with pytest.raises(DigestMismatch, match="is stored under key"):
            read()


def test_slow_sync_covers_what_was_there_when_it_began():
    calls = (
        Call("c", 2, 0, "new", "", b""),
        Call("w", 2, 0, "new", "", b"x" * 512),
        Call("B", 2, 0, "new", "", b""),
        Call("b", 9, 0, ".", "", b""),
        Call("w", 2, 512, "new", "", b"y" * 512),
        Call("c", 3, 0, "late", "", b""),
        Call("s", 2, 0, "new", "", b""),
        Call("d", 9, 0, ".", "", b""),
    )
    states = list(crash_states(Recording(frozenset({"."}), {}, calls), seed=1, mixes=9, cuts=[len(calls)]))
    assert {state.files["new"][1][:512] for state in states} == {b"x" * 512}
    assert any(len(state.files["new"][1]) == 512 for state in states)
    assert any("late" not in state.files for state in states)


def test_failed_sync_drops_pages_for_good():
    calls = (
        Call("c", 2, 0, "new", "", b""),
        Call("d", 9, 0, ".", "", b""),
        Call("w", 2, 0, "new", "", b"x" * 4096),
        Call("f", 2, 0, "new", "", b""),
        Call("w", 2, 4096, "new", "", b"y" * 10),
        Call("s", 2, 0, "new", "", b""),
    )
    states = list(crash_states(Recording(frozenset({"."}), {}, calls), seed=1, mixes=9, cuts=[len(calls)]))
    contents = {state.files["new"][1] for state in states}
    assert bytes(4096) + b"y" * 10 in contents  # a later sync did not bring the page back
    assert b"x" * 4096 + b"y" * 10 in contents
    assert all(raw.endswith(b"y" * 10) for raw in contents)
