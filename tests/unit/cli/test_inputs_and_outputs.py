"""Files that go in and come out: what is wrong is named with its place, and what is there is not harmed."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.cli.conftest import living_in, move_in
from tests.waiting import LIMIT_S, Crew

from ropewalk.cli.common.command import from_os_error
from ropewalk.errors import NotFound, Unavailable, locate


@pytest.fixture(scope="module")
def one_envelope(tmp_path_factory):
    """A folder with a repository with one envelope in the channel `audit`, and the envelope's id."""
    folder = tmp_path_factory.mktemp("one_envelope")
    ropewalk = living_in(folder)
    ropewalk("init", "log.git")
    ropewalk("key", "new", "ada")
    (folder / "body.json").write_text('{"n":1}')
    repo = ("--repo", "log.git")
    made = ("--domain", "ops", "--class", "Observation", "--type", "disk.full", "--payload", "body.json")
    envelope = ropewalk(*repo, "ledger", "envelope", "--channel", "audit", *made, "--key", "ada")
    answer = ropewalk(
        *repo, "ledger", "append", "--channel", "audit", "--file", "-", "--json", stdin=envelope.out
    )
    return folder, answer.json["envelope_id"]


@pytest.fixture
def ledger(one_envelope, tmp_path):
    """The repository, in a folder of its own; answers with the envelope's id."""
    folder, envelope_id = one_envelope
    move_in(folder, tmp_path)
    return envelope_id


def test_of_two_files_the_wrong_one_is_named(ropewalk, ledger, tmp_path):
    repo = ("--repo", "log.git")
    ropewalk(*repo, "ledger", "prove", ledger, "-o", "proof.json")
    (tmp_path / "half.json").write_text("{")
    for arguments in (("verify", "half.json"), ("verify", "proof.json", "--trust", "half.json")):
        answer = ropewalk(*arguments)
        assert answer.code == 8
        assert "half.json: " in answer.err
        assert ropewalk(*arguments, "--json").json["input"] == "half.json"
    assert "stdin: " in ropewalk("hash", "-", stdin=b"{").err


def test_of_many_lines_the_refused_ones_are_named(ropewalk):
    ropewalk("init", "log.git")
    lines = b'{"type":"a","payload":{}}\n\n{oops\n{"type":"b","payload":{}}\n{"payload":{}}\n'
    append = ("--repo", "log.git", "shiplog", "append", "--ns", "demo", "--file", "-", "--jsonl")
    answer = ropewalk(*append, stdin=lines)
    assert answer.code == 8
    assert answer.text.count("ok  commit=") == 2
    said = [line for line in answer.err.splitlines() if line.startswith("error")]
    assert "line 3: " in said[0] and "line 5: " in said[1]
    answers = [json.loads(line) for line in ropewalk(*append, "--json", stdin=lines).text.splitlines()]
    assert [each.get("input") for each in answers] == [None, "line 3", None, "line 5"]


@pytest.mark.parametrize(
    "command",
    [
        ("shiplog", "append", "--ns", "a"),
        ("messages", "publish", "--topic", "a"),
        ("ledger", "append", "--channel", "audit"),
        ("ledger", "send", "tcp://127.0.0.1:1", "--channel", "audit"),
    ],
)
def test_lines_that_were_not_announced_are_answered_with_how_to(ropewalk, ledger, command):
    lines = b'{"type":"a","payload":{}}\n' * 2
    answer = ropewalk("--repo", "log.git", *command, "--file", "-", "--json", stdin=lines)
    assert answer.code == 8 and "--jsonl" in answer.json["advice"]


def test_lines_that_fail_together_keep_their_own_numbers():
    shared = Unavailable("the disk is full", advice="Make room.", path="/mnt")
    first, second = locate(shared, "line 1"), locate(shared, "line 2")
    assert (first.detail, second.detail) == ("line 1: the disk is full", "line 2: the disk is full")
    assert second.to_problem()["advice"] == "Make room." and second.fields["path"] == "/mnt"
    assert shared.detail == "the disk is full"


def test_a_refused_line_of_envelopes_is_named_too(ropewalk, ledger):
    append = ("--repo", "log.git", "ledger", "append", "--channel", "audit", "--file", "-", "--jsonl")
    answer = ropewalk(*append, stdin=b"{oops\n{}\n")
    assert answer.code == 8
    assert [line.split(": ")[1] for line in answer.text.splitlines()] == ["line 1", "line 2"]


def test_a_name_that_leads_nowhere_is_not_found(ropewalk, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "body.json").write_text("{}")
    (tmp_path / "loop").symlink_to("loop")
    ropewalk("init", "log.git")
    for name in ("nothing.json", "folder", "body.json/inside", "loop"):
        for jsonl in ((), ("--jsonl",)):
            answer = ropewalk(
                "--repo", "log.git", "shiplog", "append", "--ns", "demo", "--file", name, *jsonl
            )
            assert (answer.code, answer.out) == (3, b"")
            assert name in answer.err


def test_a_missing_file_or_repository_is_not_told_as_a_missing_topic(ropewalk):
    publish = ("messages", "publish", "--topic", "jobs", "--file", "nothing.json", "--json")
    assert ropewalk(*publish).json["code"] == "NotFound"
    ropewalk("init", "log.git")
    assert ropewalk("--repo", "log.git", *publish).json["code"] == "NotFound"
    read = ropewalk("--repo", "log.git", "messages", "read", "--topic", "jobs", "--json")
    assert read.json["code"] == "topic_not_found"


def test_messages_in_lines_are_refused_by_the_names_of_s1_too(ropewalk):
    ropewalk("init", "log.git")
    publish = ("--repo", "log.git", "messages", "publish", "--topic", "jobs", "--file", "-", "--json")
    assert ropewalk(*publish, stdin=b"{oops").json["code"] == "invalid_json"
    answer = ropewalk(*publish, "--jsonl", stdin=b"{oops\n").json
    assert (answer["code"], answer["input"]) == ("invalid_json", "line 1")


def test_a_file_system_that_says_no_is_told_with_what_to_do():
    said = from_os_error(OSError(errno.EROFS, "Read-only file system", "/mnt/x"))
    assert isinstance(said, Unavailable) and said.detail == "/mnt/x: Read-only file system"
    assert "writable" in said.advice_now
    assert "disk space" in from_os_error(OSError(errno.ENOSPC, "No space left on device")).advice_now
    assert isinstance(from_os_error(FileNotFoundError(errno.ENOENT, "No such file", "x")), NotFound)


def test_output_goes_into_a_pipe_and_does_not_take_its_place(ropewalk, ledger, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = Crew(1).submit(pipe.read_bytes)
    assert ropewalk("--repo", "log.git", "ledger", "prove", ledger, "-o", "pipe").code == 0
    assert json.loads(read.result(LIMIT_S))["envelope_id"] == ledger
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_output_through_a_link_leaves_the_link(ropewalk, ledger, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "proof.json").symlink_to("kept/proof.json")
    assert ropewalk("--repo", "log.git", "ledger", "prove", ledger, "-o", "proof.json").code == 0
    assert (tmp_path / "proof.json").is_symlink()
    assert json.loads((tmp_path / "kept" / "proof.json").read_bytes())["envelope_id"] == ledger
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["proof.json"]


def test_output_into_no_folder_or_over_a_folder_is_refused(ropewalk, ledger, tmp_path):
    (tmp_path / "folder").mkdir()
    for name in ("missing/proof.json", "folder"):
        answer = ropewalk("--repo", "log.git", "ledger", "prove", ledger, "-o", name)
        assert answer.code == 3
        assert name in answer.err
    assert not list((tmp_path / "folder").iterdir())


def test_a_proof_on_stdout_is_nothing_but_the_proof(ropewalk, ledger):
    prove = ("--repo", "log.git", "ledger", "prove", ledger, "-o", "-")
    assert ropewalk(*prove).json["envelope_id"] == ledger
    assert ropewalk(*prove, "--json").json["envelope_id"] == ledger


def test_append_of_no_envelope_makes_no_channel(ropewalk, ledger):
    event = b'{"type":"note","payload":{}}'
    answer = ropewalk(
        "--repo", "log.git", "ledger", "append", "--channel", "typo", "--file", "-", stdin=event
    )
    assert (answer.code, answer.out) == (8, b"")
    assert "stdin: " in answer.err and "ropewalk ledger envelope" in answer.err
    assert ropewalk("--repo", "log.git", "ledger", "ls").text == "audit\n"


def test_a_refused_envelope_comes_with_advice_for_its_author(ropewalk, ledger):
    repo = ("--repo", "log.git")
    made = ("--domain", "ops", "--class", "Result", "--type", "disk.full", "--payload", "body.json")
    result = ropewalk(*repo, "ledger", "envelope", "--channel", "audit", *made, "--key", "ada").out
    answer = ropewalk(*repo, "ledger", "append", "--channel", "audit", "--file", "-", stdin=result)
    assert answer.code == 5
    assert "rule 3" in answer.err and "Command it answers" in answer.err


def test_a_root_that_is_no_certificate_is_refused(ropewalk, ledger, tmp_path):
    for raw in (b"", b"\xff\xfe", b"{}", b"-----BEGIN CERTIFICATE-----\n"):
        (tmp_path / "root.pem").write_bytes(raw)
        answer = ropewalk("--repo", "log.git", "ledger", "trust", "--channel", "audit", "--root", "root.pem")
        assert (answer.code, answer.out) == (8, b"")
        assert "root.pem" in answer.err


def test_bundle_of_missing_blocks_refused_early(ropewalk, ledger, tmp_path):
    before = sorted(tmp_path.iterdir())
    for start, end, *more in (("1", "0"), ("5", "9"), ("0", "9"), ("0", "99999", "--chunk", "1")):
        answer = ropewalk(
            *("--repo", "log.git", "bundle", "export", "--channel", "audit", "--from", start),
            *("--to", end, "-o", "x.tar.zst", *more),
        )
        assert answer.code == 8
        assert "1 block" in answer.err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("heads", "ls"),
        ("init", "x.git"),
        ("--repo", "x.git", "heads", "ls"),
        ("verify",),
        ("ledger", "ls"),
        ("ledger", "replay", "--channel", "audit", "--reducer", "mine:fold"),
        ("gossip", "heads"),
    ],
)
def test_a_current_directory_that_was_removed_is_told_of(tmp_path, arguments):
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@" --json'
    command = [Path(sys.executable).with_name("ropewalk"), *arguments]
    done = subprocess.run(
        ["sh", "-c", script, "sh", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    problem = json.loads(done.stdout)
    assert problem["detail"] == "the current directory was removed"
    assert "Change to a directory" in problem["advice"]


def test_programs_are_told_of_a_current_directory_that_was_removed(tmp_path):
    script = """
import os, ropewalk
acts = (ropewalk.open, lambda: ropewalk.open("x"), lambda: ropewalk.init("x"))  # 3.13.0 cannot load from nowhere
os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")
for act in acts:
    try:
        act()
    except ropewalk.RopewalkError as error:
        print(error.code, error.detail)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["NotFound the current directory was removed"] * 3


def test_overlong_names_get_short_answers(tmp_path, ropewalk):
    long = "ab" * 2_000
    assert ropewalk("init", "log.git").code == 0
    for code, arguments in (
        (8, ("shiplog", "checkpoint", "set", "--group", "g", "--ns", "a", "--commit", long)),
        (8, ("heads", "diff", "--ns", "a", "--old", long)),
        (3, ("shiplog", "show", long)),
        (3, ("verify", long)),
        (3, ("hash", long)),
        (3, ("pointer", "open", long)),
    ):
        answer = ropewalk("--repo", "log.git", *arguments, "--json")
        assert answer.code == code, arguments[:3]
        assert len(answer.json["detail"]) < 300, arguments[:3]
        assert "try again" not in answer.json["advice"], arguments[:3]
        assert "payload" not in answer.json["advice"], arguments[:3]
