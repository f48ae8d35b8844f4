"""Refs are watched by looking at folders: no move is missed, however it was made, and nothing moves twice."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from ropewalk.errors import Unavailable
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.stream.serve.ref_watch import RefWatch

PREFIX = "refs/gatos/"


def oid(n: int) -> str:
    return f"{n:040x}"


class Ager:
    """Makes what is in a folder old, each time a little less: then marks prove something, as after a second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next = 1_000_000_000

    def age(self) -> None:
        for root, _, files in os.walk(self._folder):
            for path in (Path(root), *(Path(root) / name for name in files)):
                found = path.stat()
                if found.st_mtime > 1_500_000_000:  # changed since it was made old
                    self._next += 1
                    os.utime(path, (self._next, self._next))


@pytest.fixture
def watched(log: GitRepository) -> tuple[GitRepository, RefWatch, Ager]:
    return log, RefWatch(log.store, PREFIX), Ager(log.store.place.git_dir)


def test_moves_are_seen_whoever_makes_them_and_each_once(watched):
    log, watch, ager = watched
    chance = random.Random(5)
    names = [f"{PREFIX}{folder}/{name}" for folder in ("a", "a/b", "c/d/e") for name in ("x", "y")]
    heads: dict[str, str] = {}
    for n in range(1, 120):
        before = dict(heads)
        for _ in range(chance.randrange(3)):
            name = chance.choice(names)
            old = heads.get(name)
            what = chance.choice(["move", "move", "drop", "pack"])
            if what == "move":
                heads[name] = oid(n)
                if old != oid(n):
                    log.store.move_head(name, old, oid(n))
            elif what == "drop" and old is not None:
                log.store.drop_head(name, old)
                del heads[name]
            elif what == "pack" and heads:
                pack(log, heads)
        if chance.random() < 0.7:
            ager.age()
        moved = {update.ref: (update.old, update.new) for update in watch.look()}
        assert moved == {
            name: (before.get(name), heads.get(name))
            for name in {*before, *heads}
            if before.get(name) != heads.get(name)
        }
        assert watch.heads == heads
        assert watch.look() == []


def pack(log: GitRepository, heads: dict[str, str]) -> None:
    """As `git pack-refs --all` does it: all into one file, then the loose ones and empty folders go."""
    git_dir = log.store.place.git_dir
    lines = "".join(f"{heads[name]} {name}\n" for name in sorted(heads))
    beside = git_dir / "packed-refs.new"
    beside.write_text("# pack-refs with: peeled fully-peeled sorted\n" + lines, encoding="ascii")
    beside.rename(git_dir / "packed-refs")
    for name in heads:
        (git_dir / name).unlink(missing_ok=True)
    subprocess.run(["find", str(git_dir / PREFIX), "-type", "d", "-empty", "-delete"], check=False)


def test_a_folder_that_did_not_change_is_not_listed_again(watched, monkeypatch):
    log, watch, ager = watched
    for n in range(20):
        log.store.move_head(f"{PREFIX}n{n}/head", None, oid(n + 1))
    ager.age()
    assert len(watch.look()) == 20
    watch.look()
    listed: list[str] = []
    real = os.scandir

    def listing(path):
        listed.append(str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", listing)
    watch._whole_ns = time.time_ns()
    log.store.move_head(f"{PREFIX}n7/head", oid(8), oid(99))
    assert [update.ref for update in watch.look()] == [f"{PREFIX}n7/head"]
    assert [Path(path).name for path in listed] == ["n7"]


def test_a_ref_that_was_written_into_is_found_by_the_next_whole_look(watched):
    log, watch, ager = watched
    log.store.move_head(f"{PREFIX}a/x", None, oid(1))
    ager.age()
    watch.look()
    (log.store.place.git_dir / PREFIX / "a" / "x").write_text(oid(2) + "\n", encoding="ascii")
    ager.age()
    watch._whole_ns = 0
    (update,) = watch.look()
    assert (update.old, update.new) == (oid(1), oid(2))


def test_a_torn_ref_stands_where_it_stood_until_it_is_mended(watched):
    log, watch, _ = watched
    log.store.move_head(f"{PREFIX}a/x", None, oid(1))
    watch.look()
    path = log.store.place.git_dir / PREFIX / "a" / "x"
    path.write_text("", encoding="ascii")
    assert watch.look() == []
    assert watch.heads == {f"{PREFIX}a/x": oid(1)}
    path.write_text(oid(2) + "\n", encoding="ascii")
    (update,) = watch.look()
    assert (update.old, update.new) == (oid(1), oid(2))


def test_a_lock_of_somebody_is_no_ref(watched):
    log, watch, _ = watched
    folder = log.store.place.git_dir / PREFIX / "a"
    folder.mkdir(parents=True)
    (folder / "x.lock").write_text(oid(1) + "\n", encoding="ascii")
    assert watch.look() == []


def test_a_look_that_fails_half_way_forgets_no_move(watched, monkeypatch):
    log, watch, ager = watched
    for name in ("a/x", "b/y", "c/z"):
        log.store.move_head(PREFIX + name, None, oid(1))
    ager.age()
    watch.look()
    real = os.scandir

    def too_many(path: str) -> object:
        if path.endswith("gatos/b"):
            raise OSError(24, "Too many open files")
        return real(path)

    for name in ("a/x", "b/y", "c/z"):
        log.store.move_head(PREFIX + name, oid(1), oid(2))
    ager.age()
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", too_many)
        assert {update.ref for update in watch.look()} == {f"{PREFIX}a/x", f"{PREFIX}c/z"}
    assert [(update.ref, update.old, update.new) for update in watch.look()] == [
        (f"{PREFIX}b/y", oid(1), oid(2))
    ]


def test_unreadable_ref_is_read_at_next_look(watched, monkeypatch):
    log, watch, ager = watched
    log.store.move_head(f"{PREFIX}a/x", None, oid(1))
    ager.age()

    def unavailable(name: str) -> str:
        raise Unavailable(f"reading {name}: Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(log.store.refs, "read", unavailable)
        assert watch.look() == []
    assert [update.new for update in watch.look()] == [oid(1)]  # though nothing changed on disk since


def test_packed_refs_that_cannot_be_read_hold_up_no_loose_ref(watched):
    log, watch, _ = watched
    packed = log.store.place.git_dir / "packed-refs"
    packed.write_text("no ref at all\n", encoding="ascii")
    _loose(log, "a/x", 1)
    assert [update.ref for update in watch.look()] == [f"{PREFIX}a/x"]
    packed.write_text(f"{oid(2)} {PREFIX}b/y\n", encoding="ascii")
    assert [update.ref for update in watch.look()] == [f"{PREFIX}b/y"]


def test_a_name_that_is_no_text_is_passed_over_and_the_others_come(watched):
    log, watch, _ = watched
    for name in (b"aa", b"b\xff", b"cc"):
        path = os.fsencode(log.store.place.git_dir / PREFIX / "odd") + b"/" + name
        Path(os.fsdecode(path)).parent.mkdir(parents=True, exist_ok=True)
        Path(os.fsdecode(path)).write_text(oid(1) + "\n", encoding="ascii")
    assert [update.ref for update in watch.look()] == [f"{PREFIX}odd/aa", f"{PREFIX}odd/cc"]
    assert watch.look() == []


def test_folders_nested_a_thousand_deep_are_looked_at(watched):
    log, watch, _ = watched
    folders = [f"{log.store.place.git_dir}/{PREFIX}{'d/' * depth}" for depth in range(1_200)]
    for folder in folders:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - pathlib itself cannot go so deep
    deep = Path(folders[-1]) / "x"
    deep.write_text(oid(1) + "\n", encoding="ascii")
    assert [update.new for update in watch.look()] == [oid(1)]
    deep.unlink()
    for folder in reversed(folders):
        os.rmdir(folder)  # noqa: PTH106
    assert [update.old for update in watch.look()] == [oid(1)]


def _loose(log: GitRepository, name: str, n: int) -> None:
    path = log.store.place.git_dir / PREFIX / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(oid(n) + "\n", encoding="ascii")
