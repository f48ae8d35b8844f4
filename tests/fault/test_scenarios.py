"""A small share of `make torture ONLY=scenarios`: load and chaos with real processes, and the reports about them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.torture.scenarios import NAMES, OVER, SAME_OVER_ALL, SCENES, SEED, Stage
from tests.torture.scenes.house import TRANSPORTS
from tests.torture.scenes.report import BASELINE, Scene, as_baseline, compare
from tests.torture.scenes.workload import Workload

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage(quick=True) as playing:
        yield playing


def holds(stage: Stage, scene: str) -> dict[str, Any]:
    part = stage.play(scene)
    assert part["ok"], json.dumps(part, indent=1)
    return part


@pytest.mark.slow
def test_every_transport_carries_every_size_and_says_how_fast(stage):
    measured = holds(stage, "transports")["measured"]
    for transport in TRANSPORTS:
        for size in ("1_kib", "64_kib", "1_mib"):
            assert measured[f"{transport}_{size}_envelopes_per_s"] > 0
            p50, p95, p99 = (measured[f"{transport}_{size}_durable_p{rank}_ms"] for rank in (50, 95, 99))
            assert 0 < p50 <= p95 <= p99


@pytest.mark.slow
def test_bursts_lose_nothing_in_bounded_memory(stage):
    holds(stage, "bursts")


@pytest.mark.slow
def test_replay_during_feed_finds_planted_block(stage):
    assert holds(stage, "replay")["measured"]["planted"] > 0


@pytest.mark.slow
def test_in_bad_weather_every_envelope_is_sealed_once(stage):
    assert holds(stage, "weather")["measured"]["cuts"] > 0


@pytest.mark.slow
def test_lossy_links_lose_no_envelope(stage):
    holds(stage, "lossy_links")


@pytest.mark.slow
def test_floods_leave_memory_and_healthy_clients(stage):
    measured = holds(stage, "floods")["measured"]
    assert {"grpc_growth_mib", "quic_growth_mib"} <= set(measured)


@pytest.mark.slow
def test_slow_readers_leave_memory_and_healthy_clients(stage):
    measured = holds(stage, "slow_readers")["measured"]
    assert measured["grpc_asked_mib"] > 5 * measured["grpc_growth_mib"]
    assert measured["quic_asked_mib"] > 5 * measured["quic_growth_mib"]


@pytest.mark.slow
@pytest.mark.parametrize("transport", OVER)
@pytest.mark.parametrize("scene", SAME_OVER_ALL)
def test_scene_holds_over_every_transport(stage, scene, transport):
    holds(stage, f"{scene} over {transport}")


@pytest.mark.slow
def test_late_evidence_refused_fresh_accepted(stage):
    holds(stage, "late_evidence")


@pytest.mark.slow
def test_a_key_gives_way_while_clients_send_and_a_follower_pulls(stage):
    holds(stage, "key_rotation")


@pytest.mark.slow
def test_healthy_peers_go_on_while_others_misbehave(stage):
    holds(stage, "misbehaving_peers")


@pytest.mark.slow
def test_followers_catch_up_and_bundles_are_made_under_load(stage):
    holds(stage, "followers")


@pytest.mark.slow
def test_what_a_policy_costs_is_measured(stage):
    assert holds(stage, "policy_cost")["measured"]["policy_time_ratio"] > 0


def test_workload_is_determined_by_its_seed():
    one, same, other, elsewhere = (Workload(*of) for of in ((1, "a"), (1, "a"), (2, "a"), (1, "b")))
    made = [work.raws(3, 2_000) for work in (one, same, other, elsewhere)]
    assert made[0] == made[1] and one.digest == same.digest
    assert len({tuple(each) for each in made}) == 3 and len({one.digest, other.digest, elsewhere.digest}) == 3
    assert all(abs(len(raw) - 2_000) < 200 for raws in made for raw in raws)


@pytest.mark.slow
def test_scenes_report_criteria_and_baseline(stage):
    for name in NAMES:
        stage.play(name)
    report = stage.report()
    assert json.loads(json.dumps(report)) == report and report["seed"] == SEED
    kept = json.loads(BASELINE.read_text())["sizes"]
    for name in NAMES:
        part = report["scenarios"][name]
        assert (
            part["clause"] == SCENES[name.partition(" over ")[0]][0] and part["criteria"] and part["measured"]
        )
        assert part["baseline"]["same_workload"] is True and part["baseline"]["criteria_gone"] == []
        assert {name in kept[size]["scenarios"] for size in ("quick", "full")} == {True}


def test_baseline_fails_on_worse_not_on_slower():
    scene = Scene("x", "S4-15", "a test")
    scene.check("it holds", True)
    scene.measure("took_s", 2.0)
    part = {**scene.to_json(), "workload": "w"}
    before = as_baseline(part)
    for change, ok in (
        ({}, True),
        ({"measured": {"took_s": 0.001}}, True),
        ({"criteria": ["it holds", "so does this"]}, False),
        ({"workload": "another"}, False),
    ):
        again = dict(part)
        compare(again, {**before, **change}, same_seed=True)
        assert again["ok"] is ok, change
    again = dict(part)
    compare(again, {**before, "workload": "another"}, same_seed=False)
    assert again["ok"] and again["baseline"]["ratios"] == {"took_s": 1.0}
    scene.check("it fails", False, why="because")
    assert not scene.to_json()["ok"]
