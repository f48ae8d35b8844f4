"""A repository with what ropewalk needs, and a doctor who looks at it."""

from __future__ import annotations

import os
import stat
import subprocess

import pygit2
import pytest
from tests.tools import skip_or_fail


def test_init_makes_a_bare_repository_with_a_key_of_its_own(ropewalk, tmp_path):
    answer = ropewalk("init", "my.git", "--json").json
    assert pygit2.Repository(str(tmp_path / "my.git")).is_bare
    assert answer["did"].startswith("did:key:z")
    node = tmp_path / "my.git" / "ropewalk" / "keys" / "node.json"
    assert stat.S_IMODE(node.stat().st_mode) == 0o600
    shown = ropewalk("key", "show", "node", "--repo", "my.git", "--json").json
    assert shown["did"] == answer["did"]


def test_init_twice_changes_nothing_and_says_so(ropewalk, tmp_path):
    did = ropewalk("init", "my.git", "--json").json["did"]
    again = ropewalk("init", "my.git", "--json").json
    assert (again["did"], again["done"]) == (did, [])
    assert "nothing was missing" in ropewalk("init", "my.git").text


def test_init_adds_to_a_repository_that_is_there(ropewalk, tmp_path):
    subprocess.run(["git", "init", "-q", "work"], cwd=tmp_path, check=True)
    answer = ropewalk("init", "work", "--json").json
    assert answer["repository"] == str(tmp_path / "work" / ".git")
    assert not any("bare" in line for line in answer["done"])
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=tmp_path / "work", capture_output=True, check=True
    )
    assert status.stdout == b""


def test_a_linked_work_tree_means_its_main_repository(ropewalk, tmp_path):
    subprocess.run(["git", "init", "-q", "work"], cwd=tmp_path, check=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.test"]
    subprocess.run(
        ["git", *identity, "commit", "-q", "--allow-empty", "-m", "x"], cwd=tmp_path / "work", check=True
    )
    subprocess.run(["git", "worktree", "add", "-q", "../linked"], cwd=tmp_path / "work", check=True)
    answer = ropewalk("init", ".", "--json", cwd=tmp_path / "linked").json
    assert answer["repository"] == str(tmp_path / "work" / ".git")


def test_init_refuses_a_folder_that_holds_something_else(ropewalk, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years of work")
    assert ropewalk("init", "full").code == 7
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["thesis.txt"]


def test_init_follows_a_git_file_only_to_a_repository(ropewalk, tmp_path):
    subprocess.run(["git", "init", "-q", "around"], cwd=tmp_path, check=True)
    work = tmp_path / "around" / "work"
    work.mkdir()
    (work / ".git").write_text(f"gitdir: {tmp_path / 'elsewhere'}\n")
    for answer in (
        ropewalk("init", str(work), "--json"),
        ropewalk("key", "show", "node", "--json", cwd=work),
    ):
        assert (answer.code, answer.json["code"]) == (3, "NotFound")
        assert "elsewhere" in answer.json["detail"]
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "around" / ".git" / "ropewalk").exists()


def test_a_work_tree_of_any_name_means_its_main_repository(ropewalk, tmp_path):
    main = tmp_path / os.fsdecode(b"na\xefve")
    subprocess.run(["git", "init", "-q", main], check=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.test"]
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "x"], cwd=main, check=True)
    subprocess.run(["git", "worktree", "add", "-q", tmp_path / "linked"], cwd=main, check=True)
    assert ropewalk("init", "linked").code == 0
    assert (main / ".git" / "ropewalk" / "keys" / "node.json").is_file()


@pytest.mark.parametrize("path", ["file/below", "dangling", "/proc/nowhere"])
def test_init_where_nothing_can_be_made_is_unavailable(ropewalk, tmp_path, path):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    answer = ropewalk("init", path, "--json")
    assert (answer.code, answer.json["code"]) == (7, "CapabilityUnavailable")


@pytest.mark.parametrize("named", [{"option": "tpyo.git"}, {"environment": "tpyo.git"}])
def test_a_misspelt_repository_is_not_the_one_around_it(ropewalk, tmp_path, named):
    subprocess.run(["git", "init", "-q", "around"], cwd=tmp_path, check=True)
    option = ["--repo", named["option"]] if "option" in named else []
    env = {"ROPEWALK_REPO": named["environment"]} if "environment" in named else {}
    answer = ropewalk("key", "new", "node", *option, "--json", cwd=tmp_path / "around", env=env)
    assert (answer.code, answer.json["code"]) == (3, "NotFound")
    assert "tpyo.git" in answer.json["detail"]


def test_doctor_is_content_with_this_installation(ropewalk):
    ropewalk("init", "my.git")
    answer = ropewalk("doctor", "--repo", "my.git", "--json")
    assert answer.code == 0, answer.json
    checks = {each["name"]: each for each in answer.json["checks"]}
    assert answer.json["ok"]
    assert {"python", "blake3", "pygit2", "server", "repository", "node key", "disk"} <= set(checks)


def test_doctor_finds_the_repository_by_environment_and_by_surroundings(ropewalk, tmp_path):
    ropewalk("init", "my.git")
    named = ropewalk("doctor", "--json", env={"ROPEWALK_REPO": str(tmp_path / "my.git")}).json
    around = ropewalk("doctor", "--json", cwd=tmp_path / "my.git" / "refs").json
    for answer in (named, around):
        assert {c["name"]: c["status"] for c in answer["checks"]}["repository"] == "passed"


def test_doctor_names_a_repository_it_was_told_of_and_cannot_find(ropewalk):
    named = ropewalk("doctor", "--repo", "nowhere", "--json")
    by_environment = ropewalk("doctor", "--json", env={"ROPEWALK_REPO": "nowhere"})
    for answer in (named, by_environment):
        assert answer.code == 7
        assert "nowhere" in {c["name"]: c for c in answer.json["checks"]}["repository"]["detail"]


def test_doctor_refuses_keys_that_others_can_read(ropewalk, tmp_path):
    ropewalk("key", "new", "ada")
    (tmp_path / "config" / "keys" / "ada.json").chmod(0o644)
    answer = ropewalk("doctor", "--json")
    assert answer.code == 7
    assert "644" in {c["name"]: c for c in answer.json["checks"]}["keys"]["detail"]


def test_doctor_refuses_node_keys_that_others_can_read(ropewalk, tmp_path):
    ropewalk("init", "my.git")
    (tmp_path / "my.git" / "ropewalk" / "keys" / "node.json").chmod(0o640)
    answer = ropewalk("doctor", "--repo", "my.git", "--json")
    assert answer.code == 7
    assert "640" in {c["name"]: c for c in answer.json["checks"]}["node key"]["detail"]


def test_doctor_fix_repairs_modes_key_and_refspecs(ropewalk, tmp_path):
    ropewalk("init", "my.git")
    node = tmp_path / "my.git" / "ropewalk" / "keys" / "node.json"
    node.chmod(0o644)
    subprocess.run(["git", "remote", "add", "hub", "../hub.git"], cwd=tmp_path / "my.git", check=True)
    assert ropewalk("doctor", "--repo", "my.git").code == 7
    fixed = [
        step["detail"]
        for step in ropewalk("doctor", "--fix", "--repo", "my.git", "--json").json["checks"]
        if step["name"] == "fixed"
    ]
    assert "mode of node.json was 644, is 600" in fixed and any("refspecs of hub" in text for text in fixed)
    assert stat.S_IMODE(node.stat().st_mode) == 0o600
    node.unlink()
    again = ropewalk("doctor", "--fix", "--repo", "my.git")
    assert again.code == 0 and "made the repository's key node" in again.text


def test_doctor_and_init_refuse_sha256_repositories(ropewalk, tmp_path):
    made = subprocess.run(
        ["git", "init", "-q", "--bare", "--object-format=sha256", "x.git"], cwd=tmp_path, check=False
    )
    if made.returncode:
        skip_or_fail("this git cannot make SHA-256 repositories, git ≥ 2.29 can")
    assert ropewalk("doctor", "--repo", "x.git").code == 7
    assert ropewalk("init", "x.git").code == 7
    assert not (tmp_path / "x.git" / "ropewalk").exists()


def doctors_word(log, name):
    answer = log("doctor", "--json")
    return answer.code, [check for check in answer.json["checks"] if check["name"] == name]


def test_the_doctor_says_what_is_wrong_with_a_policy(log, tmp_path):
    policy = tmp_path / "log.git" / "ropewalk" / "policy.json"
    assert doctors_word(log, "policy") == (0, [])
    policy.write_text('{"privacy":{"rules":[{"select":"a","action":"redact"}]},"stream":{}}')
    code, (check,) = doctors_word(log, "policy")
    assert (code, check["status"], check["detail"]) == (
        0,
        "passed",
        "1 privacy rules; has rules for streams",
    )
    for broken in ("{", '{"privacy":{"rules":7}}', '{"stream":{"refs":{"deny":["heads/x"]}}}'):
        policy.write_text(broken)
        code, (check,) = doctors_word(log, "policy")
        assert (code, check["status"]) == (7, "failed")
        assert "nothing is recorded" in check["detail"] and str(policy) in check["detail"]
    policy.unlink()
    policy.mkdir()
    code, (check,) = doctors_word(log, "policy")
    assert (code, check["status"]) == (7, "failed")


def test_the_doctor_says_which_channel_cannot_be_read(log, tmp_path):
    assert log("ledger", "create", "--channel", "audit").code == 0
    assert doctors_word(log, "channel") == (0, [])
    (tmp_path / "log.git" / "ropewalk" / "ledger" / "audit" / "channel.json").write_text("{")
    code, (check,) = doctors_word(log, "channel")
    assert (code, check["status"]) == (7, "failed") and "audit" in check["detail"]
