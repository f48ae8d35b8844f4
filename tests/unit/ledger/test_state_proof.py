"""State proofs: a member of a replayed state, or its absence, under a signed snapshot."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.ledger.making import ADA, NODE, opened
from tests.unit.ledger.making import observed as envelope
from vectors.generate.state_map import state_root as second_root

import ropewalk
from ropewalk import errors, native
from ropewalk.errors import Invalid, InvalidProof, NotFound, RopewalkError
from ropewalk.kernel import jcs
from ropewalk.ledger.proof.trust import Trust, parse_trust
from ropewalk.ledger.replay.channel_replay import recorded_snapshots, replay_channel
from ropewalk.ledger.replay.encoded_state import state_root
from ropewalk.ledger.replay.prove_state import prove_state
from ropewalk.ledger.replay.reducers import REDUCERS, FoldContext, Reducer
from ropewalk.ledger.replay.replay import Replay, parse_snapshot, snapshot_envelope
from ropewalk.ledger.replay.state_map import (
    StateMap,
    check_members,
    parse_pointer,
    pointer_text,
    state_map_root,
    value_at,
)
from ropewalk.ledger.replay.state_proof import parse_state_proof, verify_state_proof

CHANNEL = "ea.core"
VECTORS = json.loads(
    (Path(__file__).parents[3] / "vectors/ledger/state_map.json").read_text(encoding="utf-8")
)
TRUST = Trust((NODE.public,), ())
COUNTS = REDUCERS["counts"]
NAMES = st.text(st.sampled_from('ab/~é😀\uff5a"\\\n'), max_size=2)
VALUES = st.recursive(
    st.none()
    | st.integers(-3, 3)
    | st.lists(st.integers(0, 1) | st.sampled_from(('"]', "}{\\", ":,")), max_size=2)
    | st.sampled_from(("x" * 1_100, [7] * 600)),  # more than a chunk
    lambda inner: st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
STATES = st.dictionaries(NAMES, VALUES, max_size=5)
KEYS = st.lists(NAMES, max_size=3).map(tuple)


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_state_map_vectors(case):
    whole = StateMap(case["input"])
    assert [list(key) for key in whole.keys] == case["expect"]["keys"]
    assert whole.root().hex() == case["expect"]["root"]


FILES = json.loads(
    (Path(__file__).parents[3] / "vectors/ledger/state_proof.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("case", FILES["cases"], ids=lambda case: case["name"])
def test_state_proof_vectors(case):
    trust, raw = (jcs.encode(case["input"][name]) for name in ("trust", "proof"))
    if "error" in case:
        with pytest.raises(getattr(errors, case["error"])):
            parse_state_proof(raw)
    else:
        assert verify_state_proof(parse_state_proof(raw), parse_trust(trust)).verdict == case["expect"]


@given(STATES)
def test_map_root_equals_second_implementation(state):
    expected, raw = second_root(state)[1], jcs.encode(state)
    assert state_map_root(raw) == StateMap(state).root() == expected
    with native.switched_off():
        assert state_map_root(raw) == StateMap(state).root() == expected


@pytest.mark.parametrize("state", [1, None, "x", "x" * 2_000, [], [{"a": 1}], {"a": {}}, {"": {"": 1}}])
def test_map_root_of_other_states(state):
    assert state_map_root(jcs.encode(state)) == second_root(state)[1]


@pytest.mark.parametrize("size", [850, 900, 950, 1_000, 5_000])
@pytest.mark.parametrize("depth", [1, 100])
def test_map_root_with_names_beyond_a_chunk(size, depth):
    state: Any = {"a": 1, "b" * size: {"c": 2}, "d": 3}
    for level in range(depth):
        state = {str(level): state, "z": level}
    assert state_map_root(jcs.encode(state)) == second_root(state)[1]


EVENTS = st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=3), VALUES, st.booleans()), max_size=12)


@given(EVENTS)
def test_map_root_follows_every_change(events):
    """After every event the root is that of the state from scratch, whether the reducer changes it or copies it."""

    def fold(state: Any, event: dict[str, Any], _moment: FoldContext) -> Any:
        state = copy.deepcopy(state) if event["copies"] else state
        at = state
        for name in event["key"][:-1]:
            if not isinstance(at.get(name), dict):
                at[name] = {}
            at = at[name]
        at[event["key"][-1]] = event["value"]
        return state

    replay = Replay(Reducer("sets", fold), CHANNEL)
    for height, (key, value, copies) in enumerate(events):
        event = {"key": key, "value": copy.deepcopy(value), "copies": copies}
        replay.fold([event], FoldContext(CHANNEL, height, height))
        assert replay.snapshot().state_map_root == second_root(replay.state)[1]
        assert replay.snapshot().state_root == state_root(replay.state) == replay.root()


@given(STATES, KEYS)
def test_every_key_is_proved_or_absent(state, key):
    whole = StateMap(state)
    proof, value = whole.prove(key), value_at(state, key)
    check_members(whole.root(), proof, key, *value)
    other = [{"no": "value"}] if not value else []
    with pytest.raises(InvalidProof):
        check_members(whole.root(), proof, key, *other)


@given(STATES, KEYS, st.data())
def test_left_out_leaves_are_noticed(state, key, data):
    """Whichever shorter run of leaves a prover shows, absence or a smaller value is not believed."""
    whole = StateMap(state)
    value = value_at(state, key)
    start = data.draw(st.integers(0, len(whole.keys) - 1))
    end = data.draw(st.integers(start + 1, len(whole.keys)))
    honest = whole.prove(key)
    forged = replace(
        honest,
        index=start,
        leaves=tuple(whole.leaf(place) for place in range(start, end)),
        around=whole._tree.range(start, end),
    )
    claims: list[list[Any]] = [[]] if value else []
    if value and isinstance(value[0], dict) and len(value[0]) > 1:
        less = dict(value[0])
        less.pop(sorted(less)[0])
        claims.append([less])
    for claim in claims:
        with pytest.raises(RopewalkError):
            check_members(whole.root(), forged, key, *claim)


@pytest.fixture
def home(tmp_path):
    with opened(tmp_path) as ledger:
        for number in range(6):
            ledger.log.submit(envelope(number).raw)
    replay_channel(tmp_path, CHANNEL, COUNTS, key=NODE, snapshot_every=2)
    return tmp_path


def proof_file(home: Path, pointer: str, to: Path, height: int | None = None) -> Path:
    to.write_bytes(prove_state(home, CHANNEL, COUNTS, parse_pointer(pointer), height).to_bytes())
    return to


@pytest.mark.parametrize(
    ("pointer", "height", "value"),
    [
        ("/total", None, (6,)),
        ("/total", 3, (4,)),
        ("/by_class", 1, ({"Observation": 2},)),
        ("/by_class/Alert", None, ()),
    ],
)
def test_proof_file_verifies_offline(home, tmp_path, pointer, height, value):
    path = proof_file(home, pointer, tmp_path / "proof.json", height)
    assert parse_state_proof(path.read_bytes()).value == value
    report = ropewalk.verify(path, trust=TRUST)
    assert report.verdict == "passed", report
    steps = {step.name: step.detail for step in report.steps}
    assert {"state_member", "snapshot", "block_signer"} <= steps.keys()
    said = jcs.encode(value[0]).decode() if value else "absent"
    assert steps["state_member"].endswith(f" is {said}")
    assert ropewalk.verify(path).verdict == "untrusted"


@pytest.mark.parametrize(
    "change",
    [
        {"value": 7},
        {"height": 3},
        {"reducer": "registers"},
        {"channel": "other"},
        {"key": ["by_class"]},
        {"size": 99},
        {"tree_root": "00" * 32},
        {"leaves": []},
    ],
)
def test_changed_proof_fails(home, tmp_path, change):
    path = proof_file(home, "/total", tmp_path / "proof.json")
    path.write_bytes(jcs.encode({**json.loads(path.read_bytes()), **change}))
    assert ropewalk.verify(path, trust=TRUST).verdict == "failed"


@pytest.mark.parametrize("text", ["web", "/a~", "/a~2b", "/~/x", "~0"])
def test_pointer_has_one_spelling(text):
    with pytest.raises(Invalid, match="JSON pointer"):
        parse_pointer(text)


@given(KEYS)
def test_pointer_names_one_key(key):
    """Otherwise the report about a member "web/prod" would read like one about /web/prod."""
    assert parse_pointer(pointer_text(key)) == key


def test_report_names_the_key_without_doubt(home):
    proof = prove_state(home, CHANNEL, COUNTS, ("seen", "a"))
    said = {
        key: verify_state_proof(replace(proof, key=key), TRUST).steps[-1].detail
        for key in (("web/prod",), ("web", "prod"), ("web~1prod",))
    }
    assert len(set(said.values())) == 3


def test_value_claimed_absent_fails(home, tmp_path):
    path = proof_file(home, "/total", tmp_path / "proof.json")
    value = json.loads(path.read_bytes())
    del value["value"]
    path.write_bytes(jcs.encode({**value, "absent": True}))
    assert ropewalk.verify(path, trust=TRUST).verdict == "failed"


def test_snapshot_by_another_key_is_refused(home):
    proof = prove_state(home, CHANNEL, COUNTS, ("total",))
    forged = snapshot_envelope(parse_snapshot(proof.snapshot.envelope), ADA, 0)
    steps = verify_state_proof(replace(proof, snapshot=replace(proof.snapshot, envelope=forged)), TRUST).steps
    assert {step.name for step in steps if step.status == "failed"} >= {"merkle_path", "snapshot"}


def test_snapshots_without_map_stay_valid(home):
    recorded = recorded_snapshots(home, CHANNEL)[-1]
    old = replace(recorded, state_map_root=None)
    assert parse_snapshot(snapshot_envelope(old, NODE, 0)) == old
    replay = Replay(COUNTS, CHANNEL)
    replay.resume(old, {"total": 6, "by_class": {"Observation": 6}, "by_type": value_of_types(home)})
    assert replay.height == old.height


def value_of_types(home: Path) -> Any:
    return replay_channel(home, CHANNEL, COUNTS).state["by_type"]


def test_without_snapshot_advice_names_the_command(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.log.submit(envelope(1).raw)
    with pytest.raises(NotFound, match="no snapshot") as caught:
        prove_state(tmp_path, CHANNEL, COUNTS, ("total",))
    assert "--snapshot-every" in caught.value.advice_now
    with pytest.raises(NotFound, match='no channel "audti"'):
        prove_state(tmp_path, "audti", COUNTS, ("total",))
