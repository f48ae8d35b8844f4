"""`ropewalk mirror` as other software calls it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import ended

EVENT = b'{"type": "deploy.finished", "payload": {"service": "web"}}'


def append(log: Any, ns: str = "prod") -> dict[str, Any]:
    answer: dict[str, Any] = log("shiplog", "append", "--ns", ns, "--file", "-", "--json", stdin=EVENT).json
    return answer


def test_a_mirror_says_what_it_brought_and_where_the_log_stands(log):
    made = append(log)
    first = log("mirror", "--from", "ns:prod", "--to", "topic:deploys", "--json").json
    assert {**first, "refs": list(first["refs"])} == {
        "mirrored": 1,
        "skipped": 0,
        "withheld": 0,
        "attachments_left": 0,
        "waiting": 0,
        "refs": ["refs/gatos/messages/deploys/head"],
    }
    (message,) = log("messages", "read", "--topic", "deploys", "--json").json["messages"]
    assert (message["ulid"], message["content_id"]) == (made["ulid"], made["content_id"])
    assert message["commit"] == first["refs"]["refs/gatos/messages/deploys/head"] != made["commit"]
    again = log("mirror", "--from", "ns:prod", "--to", "topic:deploys")
    assert again.text.startswith("ok  0 mirrored, 1 there already\n    refs/gatos/messages/deploys/head -> ")


@pytest.mark.parametrize(
    ("source", "to", "code", "name"),
    [
        ("prod", "topic:t", 2, "Usage"),
        ("ns:prod", "channel:c", 2, "Usage"),
        ("ns:nowhere", "topic:t", 3, "NotFound"),
        ("channel:nowhere", "topic:t", 3, "NotFound"),
        ("channel:../x", "topic:t", 8, "InvalidName"),
        ("ns:prod", "ns:prod", 4, "Conflict"),
        ("ns:prod", "topic:a..b", 8, "InvalidName"),
        ("ns:prod", "ns:else", 8, "InvalidEnvelope"),
    ],
)
def test_a_mirror_that_cannot_be_ends_with_the_code_that_says_why(log, source, to, code, name):
    append(log)
    refused = log("mirror", "--from", source, "--to", to, "--json")
    assert (refused.code, refused.json["code"]) == (code, name)
    assert log("verify").code == 0


def test_a_mirror_that_follows_brings_what_comes(log, tmp_path):
    append(log)
    command = [
        str(Path(sys.executable).with_name("ropewalk")),
        "mirror",
        "--from",
        "ns:prod",
        "--to",
        "topic:t",
    ]
    environment = {**os.environ, "ROPEWALK_REPO": str(tmp_path / "log.git")}
    with ended(
        subprocess.Popen([*command, "--follow", "--json"], stdout=subprocess.PIPE, env=environment)
    ) as follower:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["mirrored"] == 1
        fresh = append(log)
        assert json.loads(follower.stdout.readline())["mirrored"] == 1
        follower.send_signal(signal.SIGINT)
        assert follower.wait() == 130
    (*_, last) = log("messages", "read", "--topic", "t", "--json").json["messages"]
    assert last["ulid"] == fresh["ulid"]
