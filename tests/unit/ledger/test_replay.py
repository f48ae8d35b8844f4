"""Replay: the same blocks give the same root; nothing unverified, unfrozen or impure gets in."""

from __future__ import annotations

import contextlib
import datetime
import gc
import json
import os
import random
import secrets
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path
from random import random as chance
from time import time as clock
from typing import Any

import pytest
from tests.unit.ledger.bundling import TRUST, verdict
from tests.unit.ledger.making import (
    ADA,
    NODE,
    NOON_NS,
    chain_of_blocks,
    observed,
    opened,
)

from ropewalk.errors import (
    BrokenLink,
    DigestMismatch,
    Invalid,
    NotFound,
    RangeExceeded,
    SigInvalid,
    Unavailable,
    Unverified,
)
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import Tag, blake3, tagged
from ropewalk.ledger.block.block import GENESIS, seal
from ropewalk.ledger.channel.channel import open_channel, open_log
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.keys.history import KeyHistory
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.replay.channel_replay import recorded_snapshots, replay_channel
from ropewalk.ledger.replay.encoded_state import state_root
from ropewalk.ledger.replay.guard import guarded
from ropewalk.ledger.replay.reducers import REDUCERS, FoldContext, Reducer, find_reducer
from ropewalk.ledger.replay.replay import (
    Replay,
    ReplayDivergence,
    Snapshot,
    alert_of,
    companion,
    parse_snapshot,
    snapshot_envelope,
)
from ropewalk.ledger.rules.policy import STRICT
from ropewalk.ledger.rules.rules import judge
from ropewalk.ledger.rules.verdict import Context

COUNTS = REDUCERS["counts"]


def replayed(blocks, reducer=COUNTS, **options):
    replay = Replay(reducer, "ea.core", key_history=KeyHistory(Trust((NODE.public,), ())), **options)
    for block in blocks:
        replay.feed(block.lines())
    return replay


def test_two_replays_end_in_the_same_root():
    blocks = chain_of_blocks(5)
    one, two = replayed(blocks), replayed(blocks)
    assert one.root() == two.root() == tagged(Tag.STATE, jcs.encode(one.state))
    assert one.state["total"] == 15
    recorded = one.snapshot()
    assert two.compare(recorded, 1) is None
    for other in ({"state_root": bytes(32)}, {"state_map_root": bytes(32)}, {"block_hash": bytes(32)}):
        wrong = two.compare(replace(recorded, **other), 1)
        assert wrong is not None and (wrong.height, wrong.got, wrong.start) == (4, one.root(), 2)


def test_events_come_in_the_order_of_the_log_with_the_blocks_clock():
    def fold(state, event, moment):
        state["seen"].append([event["payload"]["n"], moment.height, str(moment.now_ns)])
        return state

    replay = replayed(chain_of_blocks(3, 2), Reducer("order", fold, lambda: {"seen": []}))
    assert replay.state["seen"] == [[n, n // 2, str(NOON_NS + n // 2)] for n in range(6)]


def test_nothing_reaches_the_reducer_before_its_block_is_verified():
    blocks = chain_of_blocks(3)
    forged = parse_stored(blocks[1].envelopes[2]).value | {"event_type": "forged"}
    wrong = seal(
        NODE, channel="ea.core", height=1, prev_block_hash=blocks[0].hash,
        envelopes=[*blocks[1].envelopes[:2], jcs.encode(forged)], timestamp_ns=NOON_NS + 1,
    )  # fmt: skip
    other_key = seal(
        ADA, channel="ea.core", height=1, prev_block_hash=blocks[0].hash,
        envelopes=blocks[1].envelopes, timestamp_ns=NOON_NS + 1,
    )  # fmt: skip
    other_channel = seal(
        NODE, channel="ea.two", height=1, prev_block_hash=blocks[0].hash,
        envelopes=blocks[1].envelopes, timestamp_ns=NOON_NS + 1,
    )  # fmt: skip
    earlier = seal(
        NODE, channel="ea.core", height=1, prev_block_hash=blocks[0].hash,
        envelopes=blocks[1].envelopes, timestamp_ns=NOON_NS - 1,
    )  # fmt: skip
    replay = replayed(blocks[:1])
    before = replay.root()
    for lines, error in (
        (wrong.lines(), Unverified),
        (other_key.lines(), SigInvalid),
        (other_channel.lines(), BrokenLink),
        (earlier.lines(), BrokenLink),
        (blocks[2].lines(), BrokenLink),
        (blocks[0].lines(), BrokenLink),
        ([blocks[1].record.raw, *blocks[1].envelopes[:2]], DigestMismatch),
        ([blocks[1].record.raw, *blocks[1].envelopes[::-1]], DigestMismatch),
    ):
        with pytest.raises(error):
            replay.feed(lines)
        assert (replay.root(), replay.height) == (before, 0)
    replay.feed(blocks[1].lines())


def test_another_policy_is_refused():
    blocks = chain_of_blocks(1)
    with pytest.raises(Unverified, match="policy"):
        replayed(blocks, policy=STRICT)
    sealed = seal(
        NODE, channel="ea.core", height=0, prev_block_hash=GENESIS, envelopes=blocks[0].envelopes,
        timestamp_ns=NOON_NS, policy_hash=STRICT.hash,
    )  # fmt: skip
    assert replayed([sealed], policy=STRICT).height == 0
    with pytest.raises(Unverified, match="policy"):
        replayed([sealed])


@pytest.mark.parametrize("at", range(6))
def test_going_on_from_a_snapshot_gives_the_same_root(at):
    blocks = chain_of_blocks(6)
    whole, first = replayed(blocks), replayed(blocks[: at + 1])
    rest = Replay(COUNTS, "ea.core", key_history=KeyHistory(Trust((NODE.public,), ())))
    rest.resume(first.snapshot(), jcs.parse(jcs.encode(first.state)))
    for block in blocks[at + 1 :]:
        rest.feed(block.lines())
    assert rest.root() == whole.root()
    assert rest.snapshot() == whole.snapshot()


def test_a_snapshot_that_does_not_fit_is_refused():
    blocks = chain_of_blocks(4)
    first = replayed(blocks[:2])
    snapshot = first.snapshot()

    def fresh(reducer=COUNTS, channel="ea.core", policy=None):
        return Replay(reducer, channel, key_history=KeyHistory(Trust((NODE.public,), ())), policy=policy)

    with pytest.raises(DigestMismatch):
        fresh().resume(snapshot, {**first.state, "total": 7})
    with pytest.raises(Invalid):
        fresh(REDUCERS["registers"]).resume(snapshot, first.state)
    with pytest.raises(Invalid):
        fresh(channel="ea.two").resume(snapshot, first.state)
    with pytest.raises(Unverified, match="policy"):
        fresh(policy=STRICT).resume(snapshot, first.state)
    replay = fresh()
    replay.resume(snapshot, first.state)
    for wrong in (blocks[1], blocks[3]):
        with pytest.raises(BrokenLink):
            replay.feed(wrong.lines())


def test_a_snapshot_is_a_signed_envelope_that_keeps_the_rules():
    replay = replayed(chain_of_blocks(2))
    envelope = snapshot_envelope(replay.snapshot(), NODE, replay.now_ns)
    assert (envelope.event_class, envelope.event_type) == ("Attestation", "ledger.checkpoint")
    payload: Any = envelope.payload
    assert set(payload) == {
        "channel", "height", "block_hash", "state_root", "policy_hash", "attestation_digest", "evaluator",
        "state_map_root",
    }  # fmt: skip
    assert judge(envelope, Context()).ok
    assert parse_snapshot(envelope) == replay.snapshot()
    assert envelope.raw == snapshot_envelope(replay.snapshot(), NODE, replay.now_ns).raw
    with pytest.raises(Invalid):
        parse_snapshot(observed(1))


def test_evidence_leaves_its_mark_in_the_snapshot():
    first = replayed(chain_of_blocks(1)).snapshot()
    assert first.attestation_digest is None
    proof = snapshot_envelope(Snapshot("x", 0, bytes(32), bytes(32), None, None, "e"), ADA, NOON_NS)
    block = seal(
        NODE, channel="ea.core", height=0, prev_block_hash=GENESIS, envelopes=[proof.raw], timestamp_ns=NOON_NS
    )  # fmt: skip
    assert replayed([block]).snapshot().attestation_digest is not None


# --- a stored channel ---


@pytest.fixture
def home(tmp_path):
    with opened(tmp_path) as ledger:
        for number in range(7):
            ledger.log.submit(observed(number).raw)
    return tmp_path


def test_snapshots_stand_on_a_companion_channel_and_come_out_the_same(home):
    done = replay_channel(home, "ea.core", COUNTS, key=NODE, snapshot_every=2)
    assert [each.height for each in recorded_snapshots(home, "ea.core")] == [1, 3, 5]
    assert len(done.snapshots) == 3 and done.compared == 0
    again = replay_channel(home, "ea.core", COUNTS, key=NODE, snapshot_every=2)
    assert again.snapshots == done.snapshots and again.compared == 3
    assert len(recorded_snapshots(home, "ea.core")) == 3
    short = replay_channel(home, "ea.core", COUNTS, from_snapshot=True)
    assert (short.started_from, short.blocks, short.state_root) == (5, 1, done.state_root)
    assert replay_channel(home, "ea.core", COUNTS, until=2).height == 2
    with pytest.raises(RangeExceeded):
        replay_channel(home, "ea.core", COUNTS, until=99)
    with pytest.raises(NotFound):
        replay_channel(home, "ea.core", COUNTS, snapshot_every=1)


def test_without_snapshots_replay_starts_at_the_beginning(home):
    assert replay_channel(home, "ea.core", COUNTS, from_snapshot=True).started_from is None


def test_a_state_that_was_changed_on_disk_is_not_believed(home):
    replay_channel(home, "ea.core", COUNTS, key=NODE, snapshot_every=3)
    states = sorted((home / "ledger" / companion("ea.core") / "states").iterdir())
    for path in states:
        state = json.loads(path.read_bytes())
        path.write_bytes(jcs.encode({**state, "total": 0}))
    done = replay_channel(home, "ea.core", COUNTS, from_snapshot=True)
    assert (done.started_from, done.state["total"]) == (None, 7)
    assert [each.name for each in done.refused] == ["snapshot at 5", "snapshot at 2"]
    assert "the snapshot names" in done.refused[0].reason
    for path in states:
        path.unlink()
    assert replay_channel(home, "ea.core", COUNTS, from_snapshot=True).started_from is None


def test_foreign_snapshot_refused_earlier_one_used(home):
    replay_channel(home, "ea.core", COUNTS, key=NODE, snapshot_every=2)
    with open_channel(home, "ea.core") as reading:
        hashes = [block.hash for block in reading.blocks()]
    liar = {"total": 99, "by_class": {}, "by_type": {}}
    folder = home / "ledger" / companion("ea.core")
    (folder / "states" / f"{state_root(liar).hex()}.json").write_bytes(jcs.encode(liar))
    forged = Snapshot("ea.core", 6, hashes[6], state_root(liar), None, None, "ropewalk/1 counts")
    elsewhere = Snapshot("ea.core", 6, hashes[5], state_root(liar), None, None, "ropewalk/1 counts")
    with open_log(home, companion("ea.core"), NODE) as ledger:
        ledger.log.submit(snapshot_envelope(forged, ADA, NOON_NS).raw)  # anybody may sign; the node seals it
    done = replay_channel(home, "ea.core", COUNTS, from_snapshot=True)
    assert (done.started_from, done.state["total"]) == (5, 7)
    forged_id = snapshot_envelope(forged, ADA, NOON_NS).hex_id
    assert [each.name for each in done.refused] == [forged_id]
    with open_log(home, companion("ea.core"), NODE) as ledger:
        ledger.log.submit(snapshot_envelope(elsewhere, NODE, NOON_NS).raw)
    # The channel's own key signed for another block: that is no broken snapshot but a divergence.
    with pytest.raises(Unverified, match="diverges at height 6"):
        replay_channel(home, "ea.core", COUNTS, from_snapshot=True)


def test_a_companion_sealed_by_somebody_else_counts_for_nothing(home):
    create_channel(home, companion("ea.core"), "ada", ADA.public)
    with open_channel(home, "ea.core") as reading:
        (*_, last) = reading.blocks()
    liar = {"total": 99, "by_class": {}, "by_type": {}}
    forged = Snapshot("ea.core", last.height, last.hash, state_root(liar), None, None, "ropewalk/1 counts")
    with open_log(home, companion("ea.core"), ADA) as ledger:
        ledger.log.submit(snapshot_envelope(forged, ADA, NOON_NS).raw)
    done = replay_channel(home, "ea.core", COUNTS, from_snapshot=True)
    assert (done.started_from, done.compared, len(done.refused)) == (None, 0, 1)


def test_blocks_verified_elsewhere_fold_to_the_same_snapshots(home):
    whole = replay_channel(home, "ea.core", COUNTS, key=NODE, snapshot_every=2)
    again = replay_channel(home, "ea.core", COUNTS, key=NODE, snapshot_every=2, verified=range(2, 7))
    assert (again.snapshots, again.state_root, again.compared) == (whole.snapshots, whole.state_root, 3)


def test_divergence_raises_an_alert_with_what_reproduces_it(home):
    def fold(state, event, moment):
        return COUNTS.fold(state, event, moment)

    def changed(state, event, moment):
        state = COUNTS.fold(state, event, moment)
        if moment.height >= 4:
            state["total"] += 1
        return state

    good, bad = (Reducer("mine:fold", each, COUNTS.initial) for each in (fold, changed))
    replay_channel(home, "ea.core", good, key=NODE, snapshot_every=2, unsafe_no_guard=True)
    with pytest.raises(Unverified, match="diverges at height 5") as caught:
        replay_channel(home, "ea.core", bad, key=NODE, unsafe_no_guard=True)
    fields = caught.value.fields
    folder = Path(fields["folder"])
    assert fields["agreed_height"] == 3 and fields["reproduction"]["start_height"] == 4
    assert verdict(folder / "blocks.tar.zst", TRUST).ok
    with open_channel(home, companion("ea.core")) as reading:
        alert = reading.envelope(bytes.fromhex(fields["alert"]))
    assert alert.event_class == "Alert" and judge(alert, Context()).ok
    payload: Any = alert.payload
    assert payload["height"] == 5 and payload["expected_state_root"] != payload["got_state_root"]
    assert payload["reproduction"]["blake3"] == blake3((folder / "blocks.tar.zst").read_bytes()).hex()
    inputs = json.loads((folder / "inputs.json").read_bytes())
    assert inputs["agreed_height"] == 3 and inputs["state"]["total"] == 4
    # And it is minimal but enough: state and blocks give both roots again.
    for reducer, root in ((good, payload["expected_state_root"]), (bad, payload["got_state_root"])):
        state: Any = jcs.parse(jcs.encode(inputs["state"]))
        with open_channel(home, "ea.core") as reading:
            for block in reading.blocks(4, 5):
                for raw in block.envelopes:
                    state = reducer.fold(
                        state, parse_stored(raw).value, FoldContext("ea.core", block.height, 0)
                    )
        assert state_root(state).hex() == root
    # The alert stands once, however often it is found.
    with pytest.raises(Unverified):
        replay_channel(home, "ea.core", bad, key=NODE, unsafe_no_guard=True)
    with pytest.raises(Unverified):
        replay_channel(home, "ea.core", bad, unsafe_no_guard=True)


def test_alerts_name_both_roots():
    wrong = ReplayDivergence("ea.core", 9, b"\1" * 32, b"\2" * 32, None, None, "e")
    alert = alert_of(wrong, NODE, NOON_NS)
    payload: Any = alert.payload
    assert payload["reproduction"] == {"start_height": 0, "end_height": 9}
    assert judge(alert, Context()).ok


def test_reducers_are_found_by_name_or_module():
    assert find_reducer("counts") is COUNTS
    found = find_reducer("ropewalk.ledger.replay.reducers:registers")
    assert found.fold is REDUCERS["registers"].fold and found.initial() == {}
    for wrong in ("nothing", "no_such_module:f", "ropewalk.ledger.replay.reducers:nothing", "json:decoder"):
        with pytest.raises(NotFound):
            find_reducer(wrong)


# --- guard mode ---


class Late(datetime.datetime):
    pass


IMPURE = {
    "time.time": lambda: time.time(),
    "bound early": lambda: clock(),
    "monotonic": lambda: time.monotonic_ns(),
    "perf_counter": lambda: time.perf_counter(),
    "strftime": lambda: time.strftime("%Y"),
    "datetime.now": lambda: datetime.datetime.now(datetime.UTC),
    "date.today": lambda: datetime.date.today(),
    "subclass now": lambda: Late.now(datetime.UTC),
    "random.random": lambda: random.random(),
    "chance": lambda: chance(),
    "choice": lambda: random.choice([1, 2]),
    "own generator": lambda: random.Random().random(),
    "secrets": lambda: secrets.token_hex(4),
    "urandom": lambda: os.urandom(4),
    "uuid4": lambda: uuid.uuid4(),
    "uuid1": lambda: uuid.uuid1(),
    "socket": lambda: socket.socket(),
    "getaddrinfo": lambda: socket.getaddrinfo("localhost", 1),
    "open": lambda: open("/dev/null"),  # noqa: SIM115, PTH123
    "Path": lambda: Path("/dev/null").read_bytes(),
    "getenv": lambda: os.environ.get("HOME"),
    "process": lambda: subprocess.run(["true"], check=False),
    "getpid": lambda: os.getpid(),
    "hash": lambda: hash("a"),
    "id": lambda: id(object()),
}


@pytest.mark.parametrize("name", IMPURE)
def test_a_reducer_that_asks_outside_is_caught(name):
    act = IMPURE[name]
    with pytest.raises(Unverified, match="reducer sly must not use"):
        guarded(Reducer("sly", lambda state, event, moment: act() and {})).fold(
            {}, {}, FoldContext("c", 0, 0)
        )


def test_a_reducer_is_not_blamed_for_a_collection():
    before = gc.get_threshold()
    gc.callbacks.append(late := lambda phase, facts: time.time())
    gc.set_threshold(1, 1, 1)
    try:
        fold = guarded(Reducer("honest", lambda state, event, moment: {"n": [[n] for n in range(100)]})).fold
        assert fold({}, {}, FoldContext("c", 0, 0))["n"][99] == [99] and gc.isenabled()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(late)


def test_a_reducer_cannot_swallow_the_guard():
    def fold(state, event, moment):
        try:  # noqa: SIM105 - as a careless reducer would write it
            time.time()
        except BaseException:
            pass
        return state

    with pytest.raises(Unverified, match=r"time\.time"):
        guarded(Reducer("sly", fold)).fold({}, {}, FoldContext("c", 0, 0))


@pytest.mark.parametrize("name", REDUCERS)
def test_the_reducers_that_ship_pass_the_guard(name):
    blocks = chain_of_blocks(2)
    assert replayed(blocks, guarded(REDUCERS[name])).root() == replayed(blocks, REDUCERS[name]).root()


def test_arithmetic_on_given_times_is_allowed():
    def fold(state, event, moment):
        at = datetime.datetime.fromtimestamp(moment.now_ns // 10**9, datetime.UTC)
        return {"day": at.strftime("%Y-%m-%d"), "n": json.loads("1"), "s": sorted(event)}

    out = guarded(Reducer("calm", fold)).fold({}, {"b": 1}, FoldContext("c", 0, NOON_NS))
    assert out["day"] == "2024-11-01"


def test_errors_of_a_reducer_are_its_own():
    def fold(state, event, moment):
        raise KeyError("mine")

    with pytest.raises(KeyError):
        guarded(Reducer("broken", fold)).fold({}, {}, FoldContext("c", 0, 0))


def late(state, event, moment):
    return {"at": clock()}


def dials(state, event, moment):
    socket.create_connection(("127.0.0.1", 9))
    return state


def dials_quietly(state, event, moment):
    with contextlib.suppress(Exception):
        socket.socket()
    return state


def in_set_order(state, event, moment):
    """A state that follows the order of a set, and so the hash seed."""
    return {"seen": list({f"{name}-{event['payload']['n']}" for name in "abcdefgh"})}


def ends(state, event, moment):
    sys.exit(3)


def reducer_here(fold) -> Reducer:
    return Reducer(f"{__name__}:{fold.__name__}", fold)


def test_guarded_replay_of_a_channel(home):
    """A reducer of one's own is guarded unless the caller gives that up by name."""
    sly = reducer_here(late)
    with pytest.raises(Unverified, match="must not use the clock"):
        replay_channel(home, "ea.core", sly)
    assert replay_channel(home, "ea.core", sly, unsafe_no_guard=True).state["at"] > 0
    assert replay_channel(home, "ea.core", COUNTS).state["total"] == 7


@pytest.mark.parametrize("fold", [dials, dials_quietly])
def test_replay_refuses_a_socket(home, fold):
    with pytest.raises(Unverified, match="must not use the network"):
        replay_channel(home, "ea.core", reducer_here(fold))


def test_replay_does_not_follow_the_hash_seed(home):
    """Processes with three hash seeds fold a set and come to one root."""
    act = (
        "import sys; from pathlib import Path; "
        "from ropewalk.ledger.replay.channel_replay import replay_channel; "
        "from ropewalk.ledger.replay.reducers import find_reducer; "
        "print(replay_channel(Path(sys.argv[1]), 'ea.core', find_reducer(sys.argv[2])).state_root.hex())"
    )
    name = f"{__name__}:{in_set_order.__name__}"
    roots = {
        subprocess.run(
            [sys.executable, "-c", act, str(home), name],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[3],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("random", "0")
    }
    assert roots == {replay_channel(home, "ea.core", reducer_here(in_set_order)).state_root.hex() + "\n"}


def test_guarded_replay_goes_on_from_a_snapshot(home):
    mine = reducer_here(in_set_order)
    whole = replay_channel(home, "ea.core", mine, key=NODE, snapshot_every=3)
    short = replay_channel(home, "ea.core", mine, from_snapshot=True)
    assert short.started_from == 5 and short.state_root == whole.state_root and short.state == whole.state


def test_reducer_without_a_module_is_refused(home):
    """A child process cannot import it, and this process has a random hash seed."""
    with pytest.raises(Invalid, match="a child process can import"):
        replay_channel(home, "ea.core", Reducer("nowhere", lambda state, event, moment: state))


def test_reducer_that_ends_its_process_is_reported(home):
    with pytest.raises(Unavailable, match="its process ended"):
        replay_channel(home, "ea.core", reducer_here(ends))
