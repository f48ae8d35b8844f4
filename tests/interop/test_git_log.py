"""Beside the real git: its tools read what we write, and what they do to the repository does us no harm."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.tools import needs

from ropewalk.disk.repository_paths import find_repository, make_repository
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import LOG_NOTES, MESSAGES, SHIPLOG
from ropewalk.gitlog.core.notes import add_note, read_note
from ropewalk.gitlog.core.objects import Oid, object_id
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.gitlog.store.object_store import GitStore
from ropewalk.repository_check import verify_gitlogs

pytestmark = needs("git")
REF = SHIPLOG.head_ref("demo")


def git(where: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=where, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def log(tmp_path):
    with open_repository(make_repository(tmp_path / "log.git")[0].git_dir) as repository:
        yield repository


def fill(log: GitRepository, count: int, topic: str = "demo") -> None:
    for n in range(count):
        log.append(topic, {"type": "t", "payload": {"n": n, "text": "é" * n}})


def git_dir(log: GitRepository) -> Path:
    return log.store.place.git_dir


def test_git_reads_what_we_wrote(log):
    fill(log, 3)
    (event, *_) = log.events("demo")
    path = f"gatos/shiplog/demo/{event.ulid}.json"
    assert git(git_dir(log), "show", f"{event.commit}:{path}").encode() == event.raw
    assert git(git_dir(log), "rev-list", "--count", REF) == "3"
    assert git(git_dir(log), "ls-tree", "-r", "--name-only", event.commit) == path
    git(git_dir(log), "fsck", "--full", "--strict")
    for pack in log.store.pack_folder.glob("*.idx"):
        git(git_dir(log), "verify-pack", str(pack))


@pytest.mark.parametrize(
    "command",
    [
        ("gc", "-q", "--prune=now", "--aggressive"),
        ("repack", "-q", "-a", "-d", "--write-midx"),
        ("pack-refs", "--all", "--prune"),
        ("unpack-objects",),
        *(
            pytest.param(command, marks=pytest.mark.slow)
            for command in (
                ("gc", "-q"),  # does a part of what the fast ones do
                ("repack", "-q", "-a", "-d", "-f", "--depth=50"),
                ("repack", "-q", "-d", "--geometric=2"),
                ("multi-pack-index", "write"),
                ("commit-graph", "write", "--reachable"),
            )
        ),
    ],
    ids=lambda command: " ".join(command[:3]),
)
def test_git_housekeeping_changes_nothing_we_read(log, command):
    fill(log, 30)
    before = list(log.events("demo"))
    if command[0] == "unpack-objects":
        for pack in list(log.store.pack_folder.glob("*.pack")):
            aside = git_dir(log) / pack.name
            shutil.move(pack, aside)
            pack.with_suffix(".idx").unlink()
            with aside.open("rb") as stream:
                subprocess.run(["git", "unpack-objects", "-q"], cwd=git_dir(log), stdin=stream, check=True)
    else:
        git(git_dir(log), *command)
    assert list(log.events("demo")) == before
    with open_repository(git_dir(log)) as fresh:
        assert list(fresh.events("demo")) == before
        fill(fresh, 60)  # enough small packs for a roll-up beside what git made
    fill(log, 1)
    assert len(list(log.events("demo"))) == 91
    assert verify_gitlogs(log.store, deep=True).ok
    git(git_dir(log), "fsck", "--full", "--strict")


def test_refs_git_packed_are_moved_and_git_sees_it(log):
    fill(log, 1)
    git(git_dir(log), "pack-refs", "--all", "--prune")
    assert not (git_dir(log) / REF).exists()
    fill(log, 1)
    assert git(git_dir(log), "rev-parse", REF) == log.store.head(REF)
    log.store.move_head("refs/gatos/consumers/g/demo", None, log.store.head(REF))
    git(git_dir(log), "pack-refs", "--all", "--prune")
    log.store.drop_head("refs/gatos/consumers/g/demo", log.store.head(REF))
    assert "consumers" not in git(git_dir(log), "for-each-ref")
    assert git(git_dir(log), "rev-parse", REF) == log.store.head(REF)


def test_a_clone_elsewhere_verifies(log, tmp_path):
    fill(log, 5)
    log.append("jobs/a", {"type": "t", "payload": {}}, layout=MESSAGES)
    git(tmp_path, "clone", "-q", "--mirror", str(git_dir(log)), "clone.git")
    report = verify_gitlogs(GitStore(find_repository(tmp_path / "clone.git")), deep=True)
    assert report.ok
    assert report.entries == 6


def test_push_and_fetch_carry_the_log(log, tmp_path):
    fill(log, 2)
    other = make_repository(tmp_path / "other.git")[0]
    spec = "refs/gatos/*:refs/gatos/*"
    git(git_dir(log), "push", "-q", str(other.git_dir), spec)
    with open_repository(other.git_dir) as elsewhere:
        assert len(list(elsewhere.events("demo"))) == 2
        fill(elsewhere, 1)
        git(git_dir(log), "fetch", "-q", str(other.git_dir), spec)
        assert list(log.events("demo")) == list(elsewhere.events("demo"))


def test_a_forced_push_is_reported(log, tmp_path):
    fill(log, 3)
    first = next(iter(log.events("demo"))).commit
    git(git_dir(log), "update-ref", REF, first)
    from ropewalk.errors import HistoryRewritten

    with pytest.raises(HistoryRewritten):
        log.read("demo")


def test_a_work_tree_and_a_linked_work_tree_share_the_log(tmp_path):
    git(tmp_path, "init", "-q", "-b", "main", "tree")
    git(
        tmp_path / "tree",
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "x",
    )
    git(tmp_path / "tree", "worktree", "add", "-q", "../linked")
    with open_repository(tmp_path / "tree") as log:
        log.append("demo", {"type": "t", "payload": {}})
    with open_repository(tmp_path / "linked") as log:
        log.append("demo", {"type": "t", "payload": {}})
        assert len(list(log.events("demo"))) == 2
    assert git(tmp_path / "tree", "status", "--porcelain") == ""


def test_notes_are_git_notes(log):
    fill(log, 30)
    targets = [event.commit for event in log.events("demo")]
    for n, target in enumerate(targets):
        add_note(log.store, LOG_NOTES, target, f"log {n}\n".encode(), log.author(0))
    for n, target in enumerate(targets):
        assert git(git_dir(log), "notes", "--ref", LOG_NOTES, "show", target) == f"log {n}"
    blob = git(git_dir(log), "rev-parse", targets[0] + "^{tree}")
    git(
        git_dir(log),
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "notes",
        "--ref",
        LOG_NOTES,
        "add",
        "-m",
        "by git",
        blob,
    )
    assert (read_note(log.store, LOG_NOTES, Oid(blob)) or b"").decode().strip() == "by git"
    git(git_dir(log), "fsck", "--full", "--strict")


def test_sha256_and_reftable_repositories_are_refused(tmp_path):
    from ropewalk.errors import Invalid

    git(tmp_path, "init", "-q", "--bare", "--object-format=sha256", "sha256.git")
    with pytest.raises(Invalid, match="SHA-1"):
        open_repository(tmp_path / "sha256.git")


def test_a_torn_loose_object_is_named_not_waited_for(log):
    fill(log, 1)
    event = next(iter(log.events("demo")))
    blob = object_id("blob", event.raw)
    loose = git_dir(log) / "objects" / blob[:2] / blob[2:]
    loose.parent.mkdir(exist_ok=True)
    loose.write_bytes(b"x\x9c")
    assert log.read("demo").events[0].raw == event.raw  # the pack's copy is whole


def test_batches_of_a_thousand_pass_fsck(log):
    log.append_all("demo", [Draft({"type": "t", "payload": {"n": n}}) for n in range(1000)])
    git(git_dir(log), "fsck", "--full", "--strict")
    assert git(git_dir(log), "rev-list", "--count", REF) == "1000"
