"""Two clones that appended on their own: what is displaced is shown, kept, and recorded again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tools import skip_without_rights
from tests.unit.cli.conftest import Answer, living_in, move_in

HEAD = "refs/gatos/shiplog/ops/head"
Clone = Callable[..., Answer]


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def both(folder: Path) -> tuple[Clone, Clone]:
    ropewalk = living_in(folder)

    def at(name: str) -> Clone:
        return lambda *arguments, **more: ropewalk("--repo", str(folder / name), *arguments, **more)

    return at("ours.git"), at("theirs.git")


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two clones with two events in common, three more in `ours`, two more in `theirs`."""
    folder = tmp_path_factory.mktemp("parted")
    ours, theirs = both(folder)
    assert living_in(folder)("init", "ours.git").code == 0
    append(ours, "common", 1, 2)
    git(folder, "clone", "-q", "--mirror", "ours.git", "theirs.git")
    append(ours, "ours", 3, 4, 5)
    append(theirs, "theirs", 3, 4)
    return folder


@pytest.fixture
def clones(parted: Path, tmp_path: Path) -> tuple[Clone, Clone]:
    """Both clones, in a folder of their own."""
    move_in(parted, tmp_path)
    return both(tmp_path)


def append(clone: Clone, kind: str, *numbers: int) -> list[dict[str, Any]]:
    lines = "".join(json.dumps({"type": kind, "payload": {"n": n}}) + "\n" for n in numbers)
    done = clone("shiplog", "append", "--ns", "ops", "--file", "-", "--jsonl", "--json", stdin=lines.encode())
    assert done.code == 0, done.text
    return [json.loads(line) for line in done.text.splitlines()]


def force_fetch(tmp_path: Path) -> None:
    git(tmp_path / "ours.git", "fetch", "-q", "../theirs.git", "+refs/gatos/*:refs/gatos/*")


def difference(clone: Clone, *more: str) -> dict[str, Any]:
    answer = clone("heads", "diff", "--ns", "ops", "--json", *more)
    assert answer.code == 0, answer.text
    found: dict[str, Any] = answer.json
    return found


def events(clone: Clone) -> list[dict[str, Any]]:
    return [row["envelope"] for row in clone("shiplog", "read", "--ns", "ops", "--json").json["events"]]


def remove_objects(repository: Path, *oids: str) -> None:
    """Take objects away, as a copy that was cut short or a careless prune does."""
    packs = repository / "objects/pack"
    aside = repository.with_name("aside")
    aside.mkdir()
    for path in [*packs.glob("*.pack"), *packs.glob("*.idx")]:
        shutil.move(path, aside)
    for pack in aside.glob("*.pack"):
        with pack.open("rb") as stream:
            subprocess.run(["git", "-C", repository, "unpack-objects", "-q"], stdin=stream, check=True)
    for oid in oids:
        (repository / "objects" / oid[:2] / oid[2:]).unlink()


def make_anew(repository: Path) -> None:
    """Make every commit anew, as a change of somebody's name in all of history does."""
    at = ""
    for commit in git(repository, "rev-list", "--reverse", HEAD).splitlines():
        message = git(repository, "show", "-s", "--format=%B", commit)
        if at:
            message = message.replace(git(repository, "rev-parse", f"{commit}~1"), at)
        parent = ("-p", at) if at else ()
        who = ("-c", "user.name=New Name", "-c", "user.email=new@example.test")
        at = git(repository, *who, "commit-tree", f"{commit}^{{tree}}", *parent, "-m", message)
    git(repository, "update-ref", HEAD, at)


def test_diff_shows_where_two_clones_part_and_what_each_has_alone(clones, tmp_path):
    ours, theirs = clones
    mine, others = events(ours), events(theirs)
    force_fetch(tmp_path)
    assert ours("shiplog", "read", "--ns", "ops").code == 5
    found = difference(ours)
    assert found["counts"] == {"displaced": 3, "lost": 3, "gone": 0, "added": 2}
    assert [row["ulid"] for row in found["displaced"]] == [event["ulid"] for event in mine[2:]]
    assert [row["ulid"] for row in found["added"]] == [event["ulid"] for event in others[2:]]
    assert {row["type"] for row in found["displaced"]} == {"ours"}
    assert found["displaced"][-1]["commit"] == found["old"]
    assert found["added"][-1]["commit"] == found["head"] == git(tmp_path / "theirs.git", "rev-parse", HEAD)
    assert found["parted"] == git(tmp_path / "theirs.git", "rev-parse", f"{HEAD}~2")
    said = ours("heads", "diff", "--ns", "ops", "--limit", "1").text.splitlines()
    assert "displaced: 3 (3 lost, 0 recorded again, 0 unreadable)" in said
    rows = [
        f"{mark} {row['ulid']}  {row['type']}  {row['content_id'][:11]}…  {row['commit'][:7]}"
        for mark, row in (("-", found["displaced"][0]), ("+", found["added"][0]))
    ]
    shown = [line for line in said if line.startswith(("- ", "+ ", "  …"))]
    assert shown == [rows[0], "  … and 2 more", rows[1], "  … and 1 more"]


def test_a_line_that_only_grew_displaces_nothing(clones, tmp_path):
    ours, theirs = clones
    git(tmp_path / "theirs.git", "fetch", "-q", "../ours.git", "+refs/gatos/*:refs/gatos/*")
    theirs("heads", "accept", "--ns", "ops")
    append(theirs, "more", 6)
    force_fetch(tmp_path)
    found = difference(ours)
    assert found["counts"] == {"displaced": 0, "lost": 0, "gone": 0, "added": 1}
    assert found["parted"] == found["old"]


def test_displaced_events_survive_gc_and_are_recorded_again_once(clones, tmp_path):
    ours, _ = clones
    mine = events(ours)
    force_fetch(tmp_path)
    assert ours("heads", "rescue", "--ns", "ops", "--json").json["code"] == "HistoryRewritten"
    accepted = ours("heads", "accept", "--ns", "ops", "--json")
    assert (accepted.json["accepted"], accepted.json["displaced"], accepted.json["lost"]) == (True, 3, 3)
    assert "heads rescue" in accepted.err
    git(tmp_path / "ours.git", "gc", "-q", "--prune=now")
    assert git(tmp_path / "ours.git", "rev-parse", accepted.json["kept"]) == accepted.json["old"]
    rescued = ours("heads", "rescue", "--ns", "ops", "--json").json
    assert [row["displaced"]["ulid"] for row in rescued["rescued"]] == [event["ulid"] for event in mine[2:]]
    now = events(ours)
    assert [event["payload"] for event in now[-3:]] == [event["payload"] for event in mine[2:]]
    assert [event["ulid"] for event in now] == sorted({event["ulid"] for event in now})
    old = difference(ours, "--old", accepted.json["old"][:10])
    assert [event["refs"]["displaced"] for event in now[-3:]] == [
        row["content_id"] for row in old["displaced"]
    ]
    assert [row["again"] for row in old["displaced"]] == [row["commit"] for row in rescued["rescued"]]
    again = ours("heads", "rescue", "--ns", "ops")
    assert (again.code, again.out) == (0, b"")
    assert "nothing to rescue" in again.err
    assert events(ours) == now
    assert ours("verify").code == 0
    assert git(tmp_path / "ours.git", "fsck", "--strict") == ""


def test_a_push_of_the_logs_does_not_carry_what_was_kept(clones, tmp_path):
    ours, _ = clones
    force_fetch(tmp_path)
    assert ours("heads", "accept", "--ns", "ops").code == 0
    git(tmp_path / "ours.git", "push", "-q", "../theirs.git", "refs/gatos/*:refs/gatos/*")
    assert git(tmp_path / "ours.git", "for-each-ref", "refs/ropewalk/displaced/") != ""
    assert git(tmp_path / "theirs.git", "for-each-ref", "refs/ropewalk/") == ""


def test_what_is_to_be_forgotten_is_not_kept(clones, tmp_path):
    ours, _ = clones
    force_fetch(tmp_path)
    accepted = ours("heads", "accept", "--ns", "ops", "--forget", "--json")
    assert (accepted.json["accepted"], accepted.json["kept"], accepted.err) == (True, None, "")
    git(tmp_path / "ours.git", "gc", "-q", "--prune=now")
    with pytest.raises(subprocess.CalledProcessError):
        git(tmp_path / "ours.git", "cat-file", "-e", accepted.json["old"])


def test_displaced_events_can_be_appended_as_lines(clones, tmp_path):
    ours, _ = clones
    force_fetch(tmp_path)
    lines = ours("heads", "diff", "--ns", "ops", "--jsonl")
    assert lines.code == 0
    assert [json.loads(line)["payload"]["n"] for line in lines.text.splitlines()] == [3, 4, 5]
    assert "ulid" not in lines.text
    ours("heads", "accept", "--ns", "ops")
    done = ours("shiplog", "append", "--ns", "ops", "--jsonl", "--file", "-", stdin=lines.out)
    assert done.code == 0
    assert [event["payload"]["n"] for event in events(ours)] == [1, 2, 3, 4, 3, 4, 5]
    assert ours("heads", "rescue", "--ns", "ops", "--json").json["rescued"] == []


def test_events_under_other_commits_are_displaced_and_not_lost(clones, tmp_path):
    ours, _ = clones
    before = events(ours)
    make_anew(tmp_path / "ours.git")
    found = difference(ours)
    assert found["counts"] == {"displaced": 5, "lost": 0, "gone": 0, "added": 5}
    assert found["parted"] is None
    assert [row["again"] for row in found["displaced"]] == [row["commit"] for row in found["added"]]
    assert ours("heads", "accept", "--ns", "ops").code == 0
    assert ours("heads", "rescue", "--ns", "ops", "--json").json["rescued"] == []
    assert events(ours) == before


def test_an_event_both_lines_name_is_not_lost_where_its_body_is_missing(clones, tmp_path):
    ours, _ = clones
    repository = tmp_path / "ours.git"
    make_anew(repository)
    last = difference(ours)["displaced"][-1]
    blob = git(repository, "rev-parse", f"{last['commit']}:gatos/shiplog/ops/{last['ulid']}.json")
    remove_objects(repository, blob)
    assert difference(ours)["counts"] == {"displaced": 5, "lost": 0, "gone": 1, "added": 5}
    assert ours("heads", "accept", "--ns", "ops").code == 0
    assert ours("heads", "rescue", "--ns", "ops", "--old", last["commit"]).code == 0


def test_a_ref_that_is_gone_displaces_the_whole_log(clones, tmp_path):
    ours, _ = clones
    mine = events(ours)
    git(tmp_path / "ours.git", "update-ref", "-d", HEAD)
    found = difference(ours)
    assert (found["head"], found["parted"]) == (None, None)
    assert found["counts"] == {"displaced": 5, "lost": 5, "gone": 0, "added": 0}
    assert "now gone" in ours("heads", "diff", "--ns", "ops").text
    assert ours("heads", "accept", "--ns", "ops").code == 0
    assert ours("heads", "rescue", "--ns", "ops").code == 0
    assert [event["payload"] for event in events(ours)] == [event["payload"] for event in mine]


def test_an_old_line_with_a_hole_is_shown_from_what_the_index_remembers(clones, tmp_path):
    ours, _ = clones
    mine = events(ours)  # reading brings the index up to the head
    force_fetch(tmp_path)
    whole = difference(ours)
    missing = whole["displaced"][1]
    remove_objects(tmp_path / "ours.git", missing["commit"])
    found = difference(ours)
    assert found["counts"] == {"displaced": 3, "lost": 3, "gone": 1, "added": 2}
    assert (found["parted"], found["cut"]) == (whole["parted"], None)
    assert [row["ulid"] for row in found["displaced"]] == [event["ulid"] for event in mine[2:]]
    assert [row["content_id"] for row in found["displaced"]] == [
        row["content_id"] for row in whole["displaced"]
    ]
    assert "is not in the repository" in found["displaced"][1]["problem"]
    lines = ours("heads", "diff", "--ns", "ops", "--jsonl")
    assert lines.code == 5
    assert [json.loads(line)["payload"]["n"] for line in lines.text.splitlines()] == [3, 5]
    assert missing["ulid"] in lines.err
    accepted = ours("heads", "accept", "--ns", "ops", "--json")
    assert (accepted.code, accepted.json["kept"], accepted.json["gone"]) == (0, None, 1)
    assert "cannot be kept" in accepted.err
    git(tmp_path / "ours.git", "gc", "-q")  # git does not stumble over a ref with holes below


def test_an_old_line_nobody_remembers_is_cut_where_its_commits_end(clones, tmp_path):
    ours, _ = clones
    force_fetch(tmp_path)
    missing = difference(ours)["displaced"][1]["commit"]
    remove_objects(tmp_path / "ours.git", missing)
    shutil.rmtree(tmp_path / "ours.git/ropewalk/index", ignore_errors=True)
    found = difference(ours)
    assert (found["parted"], found["cut"]) == (None, missing)
    assert found["counts"] == {"displaced": 2, "lost": 2, "gone": 1, "added": 0}
    assert "the common ancestor is unknown" in ours("heads", "diff", "--ns", "ops").text
    accepted = ours("heads", "accept", "--ns", "ops", "--json").json
    assert accepted["kept"] is None
    rescued = ours("heads", "rescue", "--ns", "ops", "--old", accepted["old"], "--json")
    assert rescued.code == 5
    assert [row["code"] for row in rescued.json["problems"]] == ["BrokenLink"]
    assert events(ours)[-1]["payload"] == {"n": 5}


def test_an_event_whose_body_alone_is_gone_is_named(clones, tmp_path):
    ours, _ = clones
    force_fetch(tmp_path)
    row = difference(ours)["displaced"][0]
    blob = git(tmp_path / "ours.git", "rev-parse", f"{row['commit']}:gatos/shiplog/ops/{row['ulid']}.json")
    remove_objects(tmp_path / "ours.git", blob)
    found = difference(ours)
    assert found["counts"]["gone"] == 1
    assert blob in found["displaced"][0]["problem"]


def test_messages_keep_their_attachments_when_they_are_rescued(ropewalk, tmp_path):
    (tmp_path / "notes.txt").write_bytes(b"hello")
    from ropewalk.kernel.digest import content_id

    message = {"type": "job", "payload": {"n": 1}, "refs": {"notes": content_id(b"hello")}}
    assert ropewalk("init", "ours.git").code == 0
    published = ropewalk(
        *("--repo", "ours.git", "messages", "publish", "--topic", "jobs/pending", "--file", "-"),
        *("--attach", "notes.txt", "--json"),
        stdin=json.dumps(message).encode(),
    )
    assert published.code == 0, published.text
    git(tmp_path / "ours.git", "update-ref", "-d", "refs/gatos/messages/jobs/pending/head")
    assert ropewalk("--repo", "ours.git", "heads", "accept", "--topic", "jobs/pending").code == 0
    rescued = ropewalk("--repo", "ours.git", "heads", "rescue", "--topic", "jobs/pending", "--json").json
    (row,) = rescued["rescued"]
    assert row["displaced"]["ulid"] == published.json["ulid"]
    assert git(tmp_path / "ours.git", "show", f"{row['commit']}:message/attachments/notes.txt") == "hello"
    assert ropewalk("--repo", "ours.git", "verify").code == 0


def test_rescued_deployment_keeps_its_author(clones, tmp_path):
    ours, theirs = clones
    for clone, artifact, hour in ((ours, "web:1", 10), (theirs, "web:2", 11)):
        when = {"start_ts": f"2024-01-01T{hour}:00:00Z", "end_ts": f"2024-01-01T{hour}:00:09Z", "dur_s": 9}
        trailer = {"status": "success", "when": when, "what": {"service": "web", "artifact": artifact}}
        (tmp_path / "trailer.json").write_text(json.dumps(trailer))
        done = clone(
            *("shiplog", "append", "--ns", "ops", "--file", "-", "--trailer", "trailer.json"),
            stdin=b'{"type":"deployment","payload":{}}',
            env={"GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.test"},
        )
        assert done.code == 0, done.err
    force_fetch(tmp_path)
    ours("heads", "accept", "--ns", "ops")
    grace = {"GIT_AUTHOR_NAME": "Grace", "GIT_AUTHOR_EMAIL": "grace@example.test"}
    assert ours("heads", "rescue", "--ns", "ops", env=grace).code == 0
    shown = ours("shiplog", "show", "ops", "--json").json
    assert shown["trailer"]["what"]["artifact"] == "web:1"
    assert shown["trailer"]["when"]["end_ts"] == "2024-01-01T10:00:09Z"
    assert git(tmp_path / "ours.git", "show", "-s", "--format=%an %cn", HEAD) == "Ada Grace"
    (row,) = ours("shiplog", "current", "--json").json["current"]
    assert row["artifact"] == "web:2"


def test_accept_without_rewrite_writes_nothing(clones, tmp_path):
    for clone in clones:
        done = clone("heads", "accept", "--ns", "ops", "--json")
        assert (done.code, done.json["accepted"], done.json["displaced"]) == (0, False, 0)
        assert "nothing to accept" in clone("heads", "accept", "--ns", "ops").text
    for name in ("ours.git", "theirs.git"):
        assert not (tmp_path / name / "ropewalk/seen/accepted.log").exists()
        assert git(tmp_path / name, "for-each-ref", "refs/ropewalk/") == ""


def test_heads_that_cannot_be_read_are_listed_and_end_with_their_code(clones, tmp_path):
    ours, _ = clones
    torn = tmp_path / "ours.git/refs/gatos/shiplog/torn/head"
    torn.parent.mkdir()
    torn.write_text("torn")
    listed = ours("heads", "ls", "--json")
    assert listed.code == 5
    problems = {row["ref"]: row["problem"] for row in listed.json["heads"]}
    assert problems[HEAD] is None
    assert "holds no object id" in problems["refs/gatos/shiplog/torn/head"]
    told = ours("heads", "ls")
    assert told.code == 5
    assert HEAD in told.text
    assert "unreadable" in told.text
    assert "holds no object id" in told.err


def test_the_advice_about_a_torn_ref_restores_it(clones, tmp_path):
    ours, _ = clones
    repository = tmp_path / "ours.git"
    good = git(repository, "rev-parse", HEAD)
    for torn in ("torn", "", f"ref: {HEAD}\n"):
        (repository / HEAD).write_text(torn)
        refused = ours("shiplog", "read", "--ns", "ops", "--json")
        assert refused.code != 0
        (command,) = [part for part in refused.json["advice"].split("`") if part.startswith("rm ")]
        script = command.replace("COMMIT", (repository / "ropewalk/seen" / HEAD).read_text().split()[0])
        subprocess.run(["sh", "-ec", script], cwd=tmp_path, check=True, capture_output=True)
        assert git(repository, "rev-parse", HEAD) == good
        assert len(events(ours)) == 5


def test_unreadable_head_exits_7(clones, tmp_path):
    hidden = tmp_path / "ours.git/refs/gatos/shiplog/hidden/head"
    hidden.parent.mkdir()
    hidden.write_text("d" * 40 + "\n")
    hidden.chmod(0)
    as_a_user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]
    prefix = as_a_user if os.geteuid() == 0 else []
    if subprocess.run([*prefix, "cat", hidden], capture_output=True, check=False).returncode == 0:
        skip_without_rights("this root cannot be made a user")
    command = [*prefix, Path(sys.executable).with_name("ropewalk"), "--repo", tmp_path / "ours.git"]
    listed = subprocess.run([*command, "heads", "ls"], capture_output=True, text=True, check=False)
    assert listed.returncode == 7
    assert HEAD in listed.stdout
    assert "Check who may read and write there" in listed.stderr


def test_unknown_name_is_not_an_intact_log(clones):
    ours, _ = clones
    assert ours("heads", "rescue", "--ns", "opps").code == 3


def test_what_a_rescue_refuses_is_named_and_harms_no_other(clones, tmp_path):
    ours, _ = clones
    secret = {"type": "ours", "payload": {"key": "ghp_" + "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zA1bC3"}}
    line = json.dumps(secret).encode()
    allowed = ("shiplog", "append", "--ns", "ops", "--allow-secret", "--file", "-", "--json")
    refused = ours(*allowed, stdin=line).json["ulid"]
    append(ours, "ours", 6)
    force_fetch(tmp_path)
    assert ours("heads", "accept", "--ns", "ops").code == 0
    done = ours("heads", "rescue", "--ns", "ops")
    assert done.code == 6
    assert f"{refused}  " in done.err
    assert [each["payload"].get("n") for each in events(ours)] == [1, 2, 3, 4, 3, 4, 5, 6]
    assert ours("heads", "rescue", "--ns", "ops", "--allow-secret").code == 0
    assert ours("heads", "rescue", "--ns", "ops").code == 0
