"""`ledger archive`, `ledger restore` and `verify` of a folder with archives, as people and scripts call them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.unit.ledger.calling import make

from ropewalk.ledger.archive.manifest import BLOCKS


@pytest.fixture
def filled(ropewalk):
    """The command line, in front of a repository whose channel `audit` has three blocks."""
    for number in range(3):
        Path("body.json").write_text(json.dumps({"n": number}))
        name = make(ropewalk, f"{number}.json")
        assert ropewalk("ledger", "append", "--channel", "audit", "--file", str(name)).code == 0
    assert ropewalk("ledger", "trust", "--channel", "audit", "-o", "trust.json").code == 0
    return ropewalk


def archive(ropewalk, *more):
    return ropewalk("ledger", "archive", "--channel", "audit", "--to", "cold", *more)


def damage():
    (path,) = Path("cold/audit").glob(f"*/{BLOCKS}")
    path.chmod(0o644)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def test_archive_writes_once_and_says_what_is_new(filled):
    first = archive(filled, "--keep-blocks", "1", "--json")
    assert first.code == 0
    assert [(each["start_height"], each["end_height"]) for each in first.json["made"]] == [(0, 1)]
    assert first.json["archived_blocks"] == 2
    again = archive(filled, "--keep-blocks", "1")
    assert (again.code, again.out) == (0, "kept  audit  nothing new to archive: 2 blocks in 1 archives\n")
    assert archive(filled, "--keep-blocks", "1", "--json").json["made"] == []
    rest = archive(filled)
    assert rest.out.startswith("wrote  audit 2–2  ")
    assert rest.out.endswith("ok  audit  3 blocks in 2 archives\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("archive", "--channel", "audit", "--to", "cold", "--keep-blocks", "1", "--before", "1"),
        ("archive", "--channel", "audit", "--to", "cold", "--keep-days", "-1"),
        ("restore", "--channel", "audit", "--from", "cold", "--drill", "--to-repo", "x.git"),
        ("restore", "--channel", "audit", "--from", "cold", "--record", "x.json"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(filled, arguments):
    assert filled("ledger", *arguments).code == 2
    assert not Path("cold").exists()


def test_verify_takes_the_folder_or_one_channel_of_it(filled):
    archive(filled)
    for folder in ("cold", "cold/audit"):
        answer = filled("verify", folder, "--trust", "trust.json", "--deep", "--json")
        assert answer.code == 0
        assert (answer.json["ok"], answer.json["entries"], answer.json["archives"]) == (True, 3, 1)
    statuses = {step["name"]: step["status"] for step in filled("verify", "cold", "--json").json["steps"]}
    assert statuses["signatures"] == statuses["block_signatures"] == "not_checked"


def test_the_name_of_a_folder_cannot_speak_to_the_terminal(filled):
    archive(filled)
    shutil.copytree("cold/audit", "cold/\x1b[2Jaudit")
    answer = filled("verify", "cold", "--steps")
    assert answer.code == 5
    assert "\x1b" not in answer.out and "[2Jaudit:manifests" in answer.out


def test_verify_fails_where_a_byte_has_changed(filled):
    archive(filled)
    damage()
    answer = filled("verify", "cold", "--trust", "trust.json", "--json")
    assert answer.code == 5
    failed = {step["name"]: step for step in answer.json["steps"] if step["status"] == "failed"}
    assert failed["files"]["file"] == BLOCKS
    assert failed["files"]["archive"].startswith("0000")


def test_a_channel_is_rebuilt_in_a_new_repository_and_proves_the_same(filled):
    archive(filled)
    done = filled(
        *("ledger", "restore", "--from", "cold", "--channel", "audit"),
        *("--to-repo", "back.git", "--trust", "trust.json", "--json"),
    )
    assert (done.code, done.json["blocks"]) == (0, 3)
    for asked in ("head", "read"):
        answers = [
            filled("ledger", asked, "--channel", "audit", "--json", "--repo", each)
            for each in ("repo.git", "back.git")
        ]
        assert answers[0].out == answers[1].out
    assert filled("ledger", "verify", "--repo", "back.git", "--trust", "trust.json", "--deep").code == 0
    again = filled("ledger", "restore", "--from", "cold", "--channel", "audit", "--repo", "back.git")
    assert again.code == 4


def test_a_rebuilt_channel_takes_nothing_without_its_key(filled):
    archive(filled)
    assert filled("init", "back.git").code == 0
    assert filled("ledger", "restore", "--from", "cold", "--channel", "audit", "--repo", "back.git").code == 0
    refused = filled("ledger", "append", "--channel", "audit", "--file", "0.json", "--repo", "back.git")
    assert refused.code == 4 and "no available key may sign" in refused.err, refused.err


def test_a_drill_prints_its_time_compares_and_leaves_a_record(filled):
    archive(filled, "--keep-blocks", "1")
    done = filled(
        "ledger", "restore", "--from", "cold", "--channel", "audit", "--drill", "--trust", "trust.json"
    )
    assert done.code == 0
    assert "drill took " in done.out.splitlines()[-1]
    (path,) = Path("repo.git/ropewalk/ledger/audit/drills").iterdir()
    record = json.loads(path.read_bytes())
    assert (record["ok"], record["blocks"], record["live_blocks"]) == (True, 2, 3)
    assert f"recorded  {path.absolute()}" in done.err
    assert filled("ledger", "status", "--channel", "audit").code == 0
    assert filled("ledger", "ls", "--json").json == {"channels": ["audit"]}


def test_a_drill_that_cannot_be_recorded_is_a_drill_all_the_same(filled):
    archive(filled)
    Path("repo.git/ropewalk/ledger/audit/drills").write_text("in the way")
    done = filled("ledger", "restore", "--from", "cold", "--channel", "audit", "--drill")
    assert (done.code, "not recorded" in done.err) == (0, True)


def test_a_drill_needs_no_repository(filled, monkeypatch):
    archive(filled)
    monkeypatch.delenv("ROPEWALK_REPO")
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    drill = (
        "ledger",
        "restore",
        "--from",
        "../cold",
        "--channel",
        "audit",
        "--drill",
        "--record",
        "drill.json",
    )
    alone = filled(*drill, "--json")
    assert (alone.code, alone.json["verdict"]) == (5, "untrusted")
    done = filled(*drill, "--no-trust", "--json")
    assert done.code == 0
    assert json.loads(Path("drill.json").read_bytes()) == done.json
    statuses = {step["name"]: step["status"] for step in done.json["steps"]}
    assert statuses["live_blocks"] == "not_checked"


def test_a_drill_that_fails_exits_5_and_is_recorded_too(filled):
    archive(filled)
    damage()
    done = filled(
        *(
            "ledger",
            "restore",
            "--from",
            "cold",
            "--channel",
            "audit",
            "--drill",
            "--record",
            "drill.json",
            "--json",
        )
    )
    assert (done.code, done.json["ok"]) == (5, False)
    assert json.loads(Path("drill.json").read_bytes())["ok"] is False


def test_a_folder_without_archives_is_not_taken_for_one(filled):
    Path("cold").mkdir()
    answer = filled(
        "ledger", "restore", "--from", "cold", "--channel", "audit", "--to-repo", "x.git", "--json"
    )
    assert (answer.code, answer.json["detail"]) == (3, 'no archives of channel "audit" in cold')
