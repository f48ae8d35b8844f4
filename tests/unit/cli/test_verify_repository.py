"""`ropewalk verify` on a repository looks at every log in it, whatever engine wrote it."""

from __future__ import annotations

import pytest
from tests.unit.cli.conftest import living_in, move_in


@pytest.fixture(scope="module")
def every_engine(tmp_path_factory):
    """A folder with a repository with a log of each engine."""
    folder = tmp_path_factory.mktemp("every_engine")
    ropewalk = living_in(folder)
    (folder / "event.json").write_text('{"type":"vote.cast","payload":{"n":1}}')
    ropewalk("init", "log.git")
    ropewalk("key", "new", "ada")
    repo = ("--repo", "log.git")
    ropewalk(*repo, "shiplog", "append", "--ns", "votes", "--file", "event.json")
    ropewalk(*repo, "gossip", "append", "--topic", "com.example", "--payload", "event.json")
    made = ("--domain", "ops", "--class", "Observation", "--type", "vote.cast", "--payload", "event.json")
    envelope = ropewalk(*repo, "ledger", "envelope", "--channel", "audit", *made, "--key", "ada").out
    ropewalk(*repo, "ledger", "append", "--channel", "audit", "--file", "-", stdin=envelope)
    return folder


@pytest.fixture
def place(every_engine, tmp_path):
    """The repository, in a folder of its own."""
    move_in(every_engine, tmp_path)
    return tmp_path


def test_every_engine_has_its_steps(ropewalk, place):
    report = ropewalk("verify", "log.git", "--json").json
    names = [step["name"] for step in report["steps"]]
    assert report["ok"] and report["entries"] == 3
    assert "chain" in names
    assert "ledger/audit:block_signatures" in names
    assert "gossip/com.example:signatures" in names
    for name in ("votes", "audit", "com.example"):
        assert ropewalk("verify", "log.git", "--ns", name, "--json").json["entries"] == 1
    assert ropewalk("verify", "log.git", "--ns", "nobody").code == 3


def test_a_topic_that_cannot_be_opened_is_a_finding(ropewalk, place):
    (store,) = place.glob("log.git/ropewalk/gossip/*/data.mdb")
    store.write_bytes(b"no such store" * 1000)
    answer = ropewalk("verify", "log.git", "--json")
    assert (answer.code, answer.json["ok"]) == (5, False)
    failed = [step["name"] for step in answer.json["steps"] if step["status"] == "failed"]
    assert failed == ["gossip/com.example:open"]


def test_trust_that_names_nobody_is_refused(ropewalk, place):
    for raw in (b"", b"# no key\n", b"{}", b'{"version":1}', b'{"a":1,"a":2}', b"\xff"):
        (place / "trust").write_bytes(raw)
        answer = ropewalk("verify", "log.git", "--trust", "trust")
        assert (answer.code, answer.out) == (8, b"")
        assert "trust: " in answer.err


def test_a_trust_file_counts_for_the_channels_too(ropewalk, place):
    ropewalk("--repo", "log.git", "ledger", "trust", "--channel", "audit", "-o", "trust.json")
    assert ropewalk("verify", "log.git", "--trust", "trust.json").code == 0
    ropewalk("init", "other.git")
    ropewalk("--repo", "other.git", "ledger", "create", "--channel", "audit")
    ropewalk("--repo", "other.git", "ledger", "trust", "--channel", "audit", "-o", "other.json")
    answer = ropewalk("verify", "log.git", "--trust", "other.json", "--json")
    assert answer.code == 5
    failed = [step["name"] for step in answer.json["steps"] if step["status"] == "failed"]
    assert failed == ["ledger/audit:block_signatures"]


def test_of_several_logs_those_in_which_all_is_well_have_one_line(ropewalk, place):
    ropewalk("--repo", "log.git", "shiplog", "append", "--ns", "deploys", "--file", "event.json")
    lines = ropewalk("verify", "log.git").text.splitlines()
    for log in ("shiplog/votes", "shiplog/deploys", "ledger/audit", "gossip/com.example"):
        assert len([line for line in lines if f" {log}" in line]) == 1
    whole = ropewalk("verify", "log.git", "--steps").text.splitlines()
    assert whole[-1] == lines[-1], "the verdict and the count of unchecked steps are the same"
    assert len(whole) > len(lines) + 10
    (place / "log.git/refs/gatos/shiplog/votes/head").write_text("torn")
    lines = ropewalk("verify", "log.git").text.splitlines()
    assert any(line.startswith("✗ shiplog/votes:") for line in lines)
    assert len([line for line in lines if " shiplog/deploys" in line]) == 1
