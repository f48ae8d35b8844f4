"""The published cases for bundle verifiers, run against ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.ledger.bundling import failed, pack, statuses, tar_of, verdict

from ropewalk.kernel import jcs
from ropewalk.ledger.proof.trust import parse_trust

FOLDER = Path(__file__).resolve().parents[3] / "vectors" / "bundle"
CASES = json.loads((FOLDER / "bundle.json").read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_each_forgery_fails_exactly_the_steps_it_should(case, tmp_path):
    members = [(name, text.encode()) for name, text in case["input"]["members"]]
    path = pack(tmp_path / "x.tar.zst", tar_of(members))
    report = verdict(path, parse_trust(jcs.encode(case["input"]["trust"])))
    assert failed(report) == set(case["expect"]["failed"])
    assert report.verdict == case["expect"]["verdict"]
    assert statuses(report).get("anchors") == case["expect"].get("anchors")


def test_bundles_of_both_encodings_are_judged(tmp_path):
    for case in json.loads((FOLDER / "both_encodings.json").read_text(encoding="utf-8"))["cases"]:
        members = [(name, bytes.fromhex(raw)) for name, raw in case["input"]["members"]]
        path = pack(tmp_path / "x.tar.zst", tar_of(members))
        report = verdict(path, parse_trust(jcs.encode(case["input"]["trust"])))
        assert failed(report) == set(case["expect"]["failed"]), case["name"]
        assert report.verdict == case["expect"]["verdict"], case["name"]
