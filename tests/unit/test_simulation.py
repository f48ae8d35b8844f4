"""`ropewalk simulate`: reducers and policies that depend on more than the log are found, and a seed shows it again."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.errors import NotFound
from ropewalk.ledger.replay.reducers import REDUCERS
from ropewalk.ledger.rules.policy import parse_policy
from ropewalk.simulation import KINDS, draw_steps, simulate

DEPLOYED = {
    "type": "deployment.success",
    "payload": {"environment": "prod", "service": "web", "version": "1"},
}
SCHEMA = {
    "version": 1,
    "name": "services",
    "evaluator_version": "ropewalk/1",
    "capability_matrix": {},
    "rules": [
        {
            "id": "r1",
            "name": "service",
            "version": 1,
            "kind": "schema",
            "decision": "deny",
            "schema": {
                "type": "object",
                "required": ["service"],
                "properties": {"service": {"type": "string"}},
            },
        }
    ],
}


def by_service(state, event, moment):
    if event["event_type"].startswith("deployment."):
        state[event["payload"]["service"]] = moment.height
    return state


@pytest.mark.parametrize("name", REDUCERS)
def test_simulate_passes_built_in_reducers(name):
    done = simulate(name, worlds=3, strange=True)
    assert done.ok and done.worlds == 3 and done.events > 20, done
    assert simulate(name, worlds=3, strange=True) == done


def test_simulate_seeds_cover_every_kind_of_step():
    kinds = {kind for seed in range(30) for kind, _ in draw_steps(seed)}
    assert kinds == set(KINDS)


def hidden_count():
    calls = itertools.count()

    def fold(state, _event, _moment):
        return {**state, "n": next(calls)}

    return fold


def changes_event(state, event, _moment):
    event["seen"] = True
    return state


def returns_set(_state, _event, _moment):
    return {1, 2}


def keeps_history(state, event, _moment):
    return {"last": [*state.get("last", []), event["event_type"]]}


@pytest.mark.parametrize(
    ("fold", "options", "problem"),
    [
        (hidden_count(), {}, "gives another state than the live fold"),
        (changes_event, {}, "must not change its event"),
        (returns_set, {}, "must return JSON"),
        (by_service, {"strange": True}, "failed in block"),
        (keeps_history, {"any_order": True}, "in another order"),
    ],
    ids=["hidden state", "event changed", "not JSON", "exception", "order"],
)
def test_simulate_finds_impure_reducer(fold, options, problem):
    done = simulate(fold, worlds=20, **options)
    assert problem in (done.problem or ""), done
    assert done.story


def test_simulate_minimises_and_replays_seed():
    done = simulate(by_service, worlds=50, strange=True, events=[DEPLOYED])
    assert done.failed_seed is not None
    assert len(done.story) == 1, done.story
    again = simulate(by_service, seed=done.failed_seed, worlds=1, strange=True, events=[DEPLOYED])
    assert (again.failed_seed, again.problem, again.story) == (done.failed_seed, done.problem, done.story)


def test_simulate_policy_protects_reducer():
    policy = parse_policy(json.dumps(SCHEMA).encode())
    done = simulate(by_service, policy=policy, worlds=4, strange=True, events=[DEPLOYED])
    assert done.ok and done.denied > 3, done


def test_simulate_finds_policy_that_changes_its_mind():
    turns = itertools.cycle((True, True, False))
    done = simulate(policy=lambda _envelope: next(turns), worlds=20)
    assert done.problem is not None and "whose verdict was" in done.problem, done


def test_simulate_names_missing_reducer():
    with pytest.raises(NotFound, match="no reducer"):
        simulate("no_such_module:fold")


def test_simulate_command_exits_5_with_seed(tmp_path):
    (tmp_path / "mine.py").write_text(
        "seen = set()\n"
        "def fold(state, event, moment):\n"
        "    if event['event_type'] not in seen:\n"
        "        seen.add(event['event_type'])\n"
        "        state[event['event_type']] = moment.height\n"
        "    return state\n"
    )
    command = [
        str(Path(sys.executable).with_name("ropewalk")),
        "--json",
        "simulate",
        "--reducer",
        "mine:fold",
    ]
    first = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert first.returncode == 5, first.stderr
    said = json.loads(first.stdout)
    assert said["failed_seed"] == 0 and "another state" in said["problem"] and len(said["story"]) < 6, said
