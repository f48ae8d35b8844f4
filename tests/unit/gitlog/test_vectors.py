"""The language-neutral vectors of gitlog, run against the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropewalk.errors import RopewalkError
from ropewalk.gitlog.core.commit import parse_message
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import LAYOUTS, check_namespace
from ropewalk.gitlog.core.objects import GitSignature, parse_commit
from ropewalk.gitlog.core.planning import AppendContext, Receipt, Tip, plan

HOME = Path(__file__).resolve().parents[3] / "vectors" / "gitlog"


def cases(name: str) -> list[Any]:
    document = json.loads((HOME / f"{name}.json").read_text(encoding="utf-8"))
    return [pytest.param(case, id=case["name"]) for case in document["cases"]]


@pytest.mark.parametrize("case", cases("lines"))
def test_a_line_has_the_bytes_and_commits_of_the_vector(case):
    given = case["input"]
    who = GitSignature(
        given["author"]["name"], given["author"]["email"], given["author"]["time_s"], given["author"]["zone"]
    )
    setting = AppendContext(given["now_ms"], bytes(10), who, lambda *_: None)
    made = plan(
        LAYOUTS[given["layout"]],
        given["topic"],
        Tip(),
        [Draft(event) for event in given["events"]],
        setting,
        None,
    )
    stored = {oid: raw for oid, _, raw in made.objects}
    assert len(made.outcomes) == len(case["expect"])
    for outcome, expect in zip(made.outcomes, case["expect"], strict=True):
        assert isinstance(outcome, Receipt)
        commit = parse_commit(stored[outcome.commit])
        assert outcome.content_id == expect["content_id"]
        assert stored[expect["blob"]].decode() == expect["canonical"]
        assert commit.tree == expect["tree"]
        assert commit.message.decode() == expect["message"]
        assert outcome.commit == expect["commit"]


@pytest.mark.parametrize("case", cases("namespace"))
def test_a_namespace_is_taken_or_refused(case):
    if "error" in case:
        with pytest.raises(RopewalkError) as refused:
            check_namespace(case["input"])
        assert refused.value.code == case["error"]
    else:
        assert check_namespace(case["input"]) == case["expect"]


@pytest.mark.parametrize("case", cases("message"))
def test_a_message_is_read_or_refused(case):
    raw = case["input"].encode()
    if "error" in case:
        with pytest.raises(RopewalkError) as refused:
            parse_message(raw)
        assert refused.value.code == case["error"]
    else:
        headers = parse_message(raw)
        found = {"ulid": headers.ulid, "content_id": headers.content_id, "namespace": headers.namespace}
        assert found == case["expect"]
