"""`gatosd rpc` and `gatosd messages-read`, through real pipes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.serving import call, make


@pytest.fixture
def folder(tmp_path):
    make(tmp_path)
    return tmp_path


def ask(folder, *requests) -> list[dict[str, Any]]:
    raw = b"".join(
        (each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n" for each in requests
    )
    answer = call(folder, "rpc", stdin=raw)
    assert answer.returncode == 0, answer.stderr
    return [json.loads(line) for line in answer.stdout.splitlines()]


def test_rpc_answers_every_method(folder):
    event = {"type": "t", "payload": {"n": 1}}
    first, second, bad = ask(
        folder,
        {"id": 1, "method": "shiplog.append", "params": {"ns": "demo", "event": event}},
        {"id": "b", "method": "messages.publish", "params": {"topic": "jobs", "message": event}},
        {"id": 3, "method": "shiplog.append", "params": {"ns": "demo", "event": {"payload": {}}}},
    )
    assert first["ok"] and first["id"] == 1 and first["result"]["ns"] == "demo"
    assert second["ok"] and second["id"] == "b" and second["result"]["topic"] == "jobs"
    assert (bad["ok"], bad["code"]) == (False, "InvalidEnvelope") and bad["reason"]
    commit, ulid = first["result"]["commit"], first["result"]["ulid"]
    read, tail, put, got, messages = ask(
        folder,
        {"id": 1, "method": "shiplog.read", "params": {"ns": "demo", "limit": 5}},
        {"id": 2, "method": "shiplog.tail", "params": {"ns": ["demo"]}},
        {
            "id": 3,
            "method": "shiplog.checkpoint.set",
            "params": {"group": "g", "ns": "demo", "commit": commit[:9]},
        },
        {"id": 4, "method": "shiplog.checkpoint.get", "params": {"group": "g", "ns": "demo"}},
        {"id": 5, "method": "messages.read", "params": {"topic": "jobs", "since_ulid": None, "limit": 9}},
    )
    assert read["result"]["events"][0]["envelope"]["payload"] == {"n": 1}
    assert tail["result"]["watermarks"] == {"demo": ulid}
    assert (
        put["result"]
        == got["result"]
        == {"ref": "refs/gatos/consumers/g/demo", "ulid": ulid, "commit": commit}
    )
    told = call(folder, "messages-read", "--topic", "jobs")
    assert messages["result"] == json.loads(told.stdout)


def test_rpc_answers_what_is_wrong_and_goes_on(folder):
    answers = ask(
        folder,
        b"{",
        b"[]",
        {"id": 7, "method": "nothing.here"},
        {"id": 8, "method": "messages.read", "params": {"topic": "nowhere"}},
        {"id": 9, "method": "messages.read", "params": {"topic": "jobs", "limit": "x"}},
        {"id": 10, "method": "shiplog.read", "params": []},
    )
    assert [answer["code"] for answer in answers] == [
        "InvalidJson", "InvalidInput", "NotFound", "topic_not_found", "invalid_input", "InvalidInput",
    ]  # fmt: skip
    assert [answer["id"] for answer in answers] == [None, None, 7, 8, 9, 10]
    done = call(folder, "messages-read", "--topic", "nowhere", "--json")
    assert done.returncode == 3 and json.loads(done.stdout)["code"] == "topic_not_found"
