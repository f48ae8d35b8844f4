"""The rehearsals of vectors/ledger_versions/, held against our replay by two adapters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.evolving import evolve
from tests.unit.ledger.making import ADA, NOON, opened

from ropewalk import errors
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.replay.reducers import REDUCERS, Reducer
from ropewalk.ledger.versions.rehearsal import parse_rehearsal
from ropewalk.ledger.versions.rehearse import rehearse

FOLDER = Path(__file__).parents[3] / "vectors" / "ledger_versions"


def cases(name: str) -> list[Any]:
    return [pytest.param(each, id=each["name"]) for each in json.loads((FOLDER / name).read_bytes())["cases"]]


def count_members(state: Any, event: dict[str, Any], _moment: Any) -> Any:
    for name in event:
        state[name] = state.get(name, 0) + 1
    return state


@pytest.mark.parametrize("case", cases("rehearsal.json"))
def test_rehearsal_has_the_defined_roots(case, tmp_path, monkeypatch):
    evolve(monkeypatch)
    reducer = Reducer("members", count_members)
    monkeypatch.setitem(REDUCERS, reducer.name, reducer)  # built in, so that it runs in this process
    with opened(tmp_path, "ea.core") as ledger:
        for number, event in enumerate(case["input"]["events"]):
            has = event["has"]
            made = build(
                ADA,
                domain="ea.core",
                event_class="Observation",
                event_type="x",
                payload={"n": number},
                timestamp=NOON,
                protocol_version=event["version"],
                correlation_id=f"c-{number}" if "correlation_id" in has else None,
                confidentiality={"level": "internal"} if "confidentiality_tag" in has else None,
                added={"priority": 1} if "priority" in has else None,
            )
            ledger.log.submit(made.raw)
    found = rehearse(tmp_path, "ea.core", case["input"]["from"], case["input"]["to"], reducer)
    assert found.to_json()["snapshots"] == case["expect"]["snapshots"]
    assert (found.fault() is None) is case["expect"]["holds"]


@pytest.mark.parametrize("case", cases("holds.json"))
def test_rehearsal_holds_or_not(case):
    if "error" in case:
        with pytest.raises(getattr(errors, case["error"])):
            parse_rehearsal(case["input"])
    else:
        assert (parse_rehearsal(case["input"]).fault() is None) is case["expect"]
