"""The git store: objects in packs, heads by compare-and-swap, damage named."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import subprocess
import sys
import threading
import time
import zlib
from functools import partial
from pathlib import Path

import pytest
from tests.tools import needs, needs_that
from tests.waiting import LIMIT_S, together

from ropewalk.disk.durable import Disk
from ropewalk.disk.repository_paths import RepositoryPaths, make_repository
from ropewalk.errors import (
    BrokenLink,
    Conflict,
    DigestMismatch,
    HeadMoved,
    Invalid,
    InvalidName,
    NotFound,
    Unavailable,
)
from ropewalk.gitlog.core.objects import object_id
from ropewalk.gitlog.repository.opening import init_repository, open_repository
from ropewalk.gitlog.store.object_store import GitStore
from ropewalk.gitlog.store.pack_index import read_index
from ropewalk.gitlog.store.pack_writer import build_pack
from ropewalk.gitlog.store.rollup import pack_count, roll_up

REF = "refs/gatos/shiplog/demo/head"
A, B = "a" * 40, "b" * 40


@pytest.fixture
def place(tmp_path: Path) -> RepositoryPaths:
    return make_repository(tmp_path / "r.git")[0]


@pytest.fixture
def store(place: RepositoryPaths) -> GitStore:
    return GitStore(place, lock_wait_s=0.3)


def blob(raw: bytes):
    return object_id("blob", raw), "blob", raw


def test_objects_come_back_as_they_went_in(store):
    objects = [blob(b""), blob(b"x" * 10), blob(os.urandom(100_000)), blob(b"y" * 5000)]
    with store.put(objects):
        pass
    for oid, kind, raw in objects:
        assert store.get(oid) == (kind, raw)


def test_the_pack_is_kept_only_while_its_block_runs(store):
    with store.put([blob(b"1")]):
        assert list(store.pack_folder.glob("*.keep"))
    assert not list(store.pack_folder.glob("*.keep"))


def test_index_lists_every_object_in_order():
    objects = [blob(str(n).encode()) for n in range(300)]
    _, pack, index = build_pack(objects)
    entries = read_index(index)
    assert [e.oid.hex() for e in entries] == sorted(oid for oid, _, _ in objects)
    assert all(pack[e.offset] >> 4 & 7 == 3 for e in entries)


def test_a_damaged_index_is_refused():
    _, _, index = build_pack([blob(b"1")])
    with pytest.raises(DigestMismatch):
        read_index(index[:-30] + b"\x00" + index[-29:])


def test_missing_object_is_not_found(store):
    with pytest.raises(NotFound):
        store.get(A)


@pytest.mark.parametrize("keep", [0, 1, 5, 15])
def test_truncated_loose_object_is_named_not_waited_for(store, place, keep):
    raw = b"hello" * 100
    oid = object_id("blob", raw)
    path = place.git_dir / "objects" / oid[:2] / oid[2:]
    path.parent.mkdir()
    path.write_bytes(zlib.compress(b"blob %d\x00" % len(raw) + raw)[:keep])
    with pytest.raises(DigestMismatch, match="damaged"):
        store.get(oid)


def test_loose_object_with_other_bytes_is_refused(store, place):
    oid = object_id("blob", b"right")
    path = place.git_dir / "objects" / oid[:2] / oid[2:]
    path.parent.mkdir()
    path.write_bytes(zlib.compress(b"blob 5\x00wrong"))
    with pytest.raises(DigestMismatch, match="other bytes"):
        store.get(oid)


def test_head_moves_only_from_what_was_expected(store):
    assert store.head(REF) is None
    with pytest.raises(HeadMoved):
        store.move_head(REF, A, B)
    store.move_head(REF, None, A)
    assert store.head(REF) == A
    with pytest.raises(HeadMoved):
        store.move_head(REF, None, B)
    with pytest.raises(HeadMoved):
        store.move_head(REF, B, A)
    store.move_head(REF, A, B)
    assert store.head(REF) == B
    assert store.heads("refs/gatos/") == {REF: B}


def test_only_one_of_many_first_writers_wins(store):
    won = []
    barrier = threading.Barrier(8)

    def race(n):
        barrier.wait(LIMIT_S)
        try:
            store.move_head(REF, None, f"{n:040x}")
            won.append(n)
        except HeadMoved:
            pass

    together(*(partial(race, n) for n in range(1, 9)))
    assert len(won) == 1
    assert store.head(REF) == f"{won[0]:040x}"


def test_packed_refs_are_read_and_superseded(store, place):
    (place.git_dir / "packed-refs").write_text(
        f"# pack-refs with: peeled fully-peeled sorted \n{A} {REF}\n^{B}\n"
    )
    assert store.head(REF) == A
    with pytest.raises(HeadMoved):
        store.move_head(REF, None, B)
    store.move_head(REF, A, B)
    assert store.head(REF) == B
    assert store.heads("refs/") == {REF: B}


def test_a_name_cannot_be_both_file_and_folder(store, place):
    store.move_head("refs/gatos/consumers/g/jobs", None, A)
    with pytest.raises(Conflict, match="file and the other as a folder"):
        store.move_head("refs/gatos/consumers/g/jobs/pending", None, A)
    store.move_head("refs/gatos/consumers/h/jobs/pending", None, A)
    with pytest.raises(Conflict):
        store.move_head("refs/gatos/consumers/h/jobs", None, A)
    (place.git_dir / "packed-refs").write_text(
        f"{A} refs/gatos/consumers/p/x/y\n{A} refs/gatos/consumers/p/z\n"
    )
    for name in ("refs/gatos/consumers/p/x", "refs/gatos/consumers/p/z/y"):
        with pytest.raises(Conflict):
            store.move_head(name, None, A)


def test_empty_folders_left_by_git_do_not_block_a_ref(store, place):
    (place.git_dir / "refs/gatos/consumers/g/jobs/pending").mkdir(parents=True)
    store.move_head("refs/gatos/consumers/g/jobs", None, A)
    assert store.head("refs/gatos/consumers/g/jobs") == A


def test_lock_left_by_a_killed_ropewalk_process_does_not_block(store, place):
    store.move_head(REF, None, A)
    child = os.fork()
    if child == 0:
        store.disk.rename = lambda old, new: os._exit(9)
        store.move_head(REF, A, B)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert (place.git_dir / (REF + ".lock")).exists()
    store.move_head(REF, A, B)
    assert store.head(REF) == B
    assert not (place.git_dir / (REF + ".lock")).exists()


def test_file_systems_without_hard_links_are_served(store, place):
    def refuse(old, new):
        raise OSError(95, "Operation not supported")

    store.disk.link = refuse
    store.move_head(REF, None, A)
    store.move_head(REF, A, B)
    assert store.head(REF) == B
    assert not (place.git_dir / (REF + ".lock")).exists()


def test_fresh_lock_of_another_program_is_respected(store, place):
    store.move_head(REF, None, A)
    lock = place.git_dir / (REF + ".lock")
    lock.touch()
    with pytest.raises(Unavailable, match="locked by another program"):
        store.move_head(REF, A, B)
    assert store.head(REF) == A
    assert lock.exists()


def test_abandoned_lock_of_another_program_is_broken_by_age(store, place):
    store.move_head(REF, None, A)
    lock = place.git_dir / (REF + ".lock")
    lock.touch()
    os.utime(lock, (time.time() - 61,) * 2)
    store.move_head(REF, A, B)
    assert store.head(REF) == B


def test_abandoned_locks_below_a_prefix_are_removed(store, place):
    old, young = (place.git_dir / f"refs/remotes/origin/{name}.lock" for name in ("old", "young"))
    old.parent.mkdir(parents=True)
    for lock in (old, young):
        lock.touch()
    os.utime(old, (time.time() - 61,) * 2)
    with store.turn(REF):  # a pull has its turn then
        store.refs.break_abandoned("refs/remotes/origin/")
    assert not old.exists()
    assert young.exists()


def test_abandoned_lock_that_cannot_be_removed_is_unavailable(place):
    class Kept(Disk):
        def rename(self, old: Path, new: Path) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    lock = place.git_dir / "refs/remotes/origin/head.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (time.time() - 61,) * 2)
    with pytest.raises(Unavailable, match="removing an abandoned lock"):
        GitStore(place, disk=Kept()).refs.break_abandoned("refs/remotes/origin/")


@pytest.mark.parametrize("raw", [b"", b"\x00" * 41, b"zz", b"A" * 40 + b"\n"])
def test_torn_ref_is_named(store, place, raw):
    path = place.git_dir / REF
    path.parent.mkdir(parents=True)
    path.write_bytes(raw)
    with pytest.raises(BrokenLink, match="holds no object id"):
        store.head(REF)


def test_symbolic_ref_is_refused(store, place):
    path = place.git_dir / REF
    path.parent.mkdir(parents=True)
    path.write_text("ref: refs/heads/main\n")
    with pytest.raises(Invalid, match="symbolic"):
        store.head(REF)


@pytest.mark.parametrize(
    "name", ["refs/x/../y", "HEAD", "refs/a b/c", "refs/a/b.lock", "refs/a//b", "refs/a/.b", "refs/a/b@{1"]
)
def test_names_git_refuses_are_refused(store, name):
    with pytest.raises(InvalidName):
        store.move_head(name, None, A)


def test_reflog_is_kept_where_git_would_keep_it(place):
    with (place.git_dir / "config").open("a") as config:
        config.write(
            "[core]\n\tlogAllRefUpdates = always\n[user]\n\tname = Ada\n\temail = ada@example.test\n"
        )
    store = GitStore(place)
    store.move_head(REF, None, A)
    store.move_head(REF, A, B)
    lines = (place.git_dir / "logs" / REF).read_text().splitlines()
    assert [line.split("\t")[0].split(" ")[:2] for line in lines] == [["0" * 40, A], [A, B]]
    assert "Ada <ada@example.test>" in lines[0]


@pytest.mark.parametrize(
    ("section", "match"), [("objectFormat = sha256", "SHA256"), ("refStorage = reftable", "reftable")]
)
def test_formats_we_cannot_serve_are_refused(place, section, match):
    with (place.git_dir / "config").open("a") as config:
        config.write(f"[extensions]\n\t{section}\n")
    with pytest.raises(Invalid, match=match):
        GitStore(place)


def test_borrowed_objects_are_found(store, place, tmp_path):
    with store.put([blob(b"lent")]):
        pass
    other = make_repository(tmp_path / "other.git")[0]
    (other.git_dir / "objects/info").mkdir(exist_ok=True)
    (other.git_dir / "objects/info/alternates").write_text(f"{place.git_dir}/objects\n")
    assert GitStore(other).get(object_id("blob", b"lent")) == ("blob", b"lent")


def test_small_packs_roll_up_and_nothing_vanishes(store, place):
    everything = []
    reader = GitStore(place)
    for n in range(60):
        objects = [blob(f"{n}-{m}".encode() * 9) for m in range(3)]
        everything += objects
        with store.put(objects):
            pass
        reader.get(objects[0][0])
    assert pack_count(store.pack_folder) == 60
    assert roll_up(store.pack_folder, place.home / "locks", store.disk) > 40
    assert pack_count(store.pack_folder) < 20
    for oid, kind, raw in everything:
        assert reader.get(oid) == (kind, raw)
        assert GitStore(place).get(oid) == (kind, raw)


def test_packs_that_do_not_fit_into_one_become_several(store, place, monkeypatch):
    monkeypatch.setattr("ropewalk.gitlog.store.rollup.PACK_OBJECTS_MAX", 40)
    everything = []
    for n in range(60):
        objects = [blob(f"{n}-{m}".encode()) for m in range(4)]
        everything += objects
        with store.put(objects):
            pass
    roll_up(store.pack_folder, place.home / "locks", store.disk)
    assert 6 <= pack_count(store.pack_folder) <= 24
    assert all(GitStore(place).get(oid) == (kind, raw) for oid, kind, raw in everything)


def test_roll_up_compresses_stored_objects(store, place):
    bodies = [b'{"n":%d,"text":"%s"}' % (n, b"lorem ipsum " * 90) for n in range(60)]
    for body in bodies:
        with store.put([blob(body)]):
            pass
    before = sum(path.stat().st_size for path in store.pack_folder.glob("*.pack"))
    roll_up(store.pack_folder, place.home / "locks", store.disk)
    assert sum(path.stat().st_size for path in store.pack_folder.glob("*.pack")) < before / 4
    assert [GitStore(place).get(blob(body)[0])[1] for body in bodies] == bodies
    subprocess.run(["git", "fsck", "--full", "--strict"], cwd=place.git_dir, check=True, capture_output=True)


def test_an_object_of_several_packs_is_rolled_up_once(store, place):
    shared = blob(b"in every pack")
    objects = {}
    for n in range(60):
        batch = [blob(f"before {n}".encode()), shared, blob(f"behind {n}".encode() * n)]
        objects.update({oid: (kind, raw) for oid, kind, raw in batch})
        with store.put(batch):
            pass
    roll_up(store.pack_folder, place.home / "locks", store.disk)
    listed = [
        entry.oid for path in store.pack_folder.glob("*.idx") for entry in read_index(path.read_bytes())
    ]
    assert len(listed) == len(set(listed)) == len(objects)
    assert {oid: GitStore(place).get(oid) for oid in objects} == objects
    subprocess.run(["git", "-C", place.git_dir, "fsck", "--full", "--strict"], check=True)


def test_a_pack_with_a_wrong_byte_is_left_as_it_is(store, place):
    for n in range(60):
        with store.put([blob(f"{n}".encode() * 30)]):
            pass
    damaged = sorted(store.pack_folder.glob("*.pack"))[7]
    raw = bytearray(damaged.read_bytes())
    raw[20] ^= 1
    damaged.chmod(0o644)
    damaged.write_bytes(raw)
    assert roll_up(store.pack_folder, place.home / "locks", store.disk) > 40
    assert damaged.read_bytes() == raw
    assert damaged.with_suffix(".idx").exists()


def test_roll_up_on_full_disk_loses_nothing(store, place):
    class Full(Disk):
        def write(self, descriptor, raw):
            if isinstance(raw, bytearray):  # objects of a pack
                raise OSError(28, "No space left on device")
            super().write(descriptor, raw)

    everything = [blob(f"{n}".encode() * 30) for n in range(60)]
    for each in everything:
        with store.put([each]):
            pass
    before = sorted(store.pack_folder.iterdir())
    with pytest.raises(Unavailable):
        roll_up(store.pack_folder, place.home / "locks", Full())
    assert sorted(store.pack_folder.iterdir()) == before
    assert all(GitStore(place).get(oid) == (kind, raw) for oid, kind, raw in everything)


def test_kept_packs_are_not_rolled_up(store, place):
    with store.put([blob(b"held")]):
        for n in range(50):
            with store.put([blob(str(n).encode())]):
                pass
        roll_up(store.pack_folder, place.home / "locks", store.disk)
        held = list(store.pack_folder.glob("*.keep"))
        assert len(held) == 1
        assert held[0].with_suffix(".pack").exists()


def test_keep_of_a_dead_writer_is_swept(store, place):
    child = os.fork()
    if child == 0:
        with store.put([blob(b"orphan")]):
            os._exit(0)
    os.waitpid(child, 0)
    assert list(store.pack_folder.glob("*.keep"))
    roll_up(store.pack_folder, place.home / "locks", store.disk)
    assert not list(store.pack_folder.glob("*.keep"))


@pytest.mark.parametrize("oid", ["", "zz", "z" * 40, "A" * 40, "../" * 13 + "x", "1" * 41])
def test_what_is_no_object_id_is_not_found(store, oid):
    with pytest.raises(NotFound):
        store.get(oid)
    with pytest.raises(Invalid):
        store.resolve(oid)


def test_a_ref_is_dropped_from_packed_refs_as_they_are_under_the_lock(store, place, monkeypatch):
    packed = place.git_dir / "packed-refs"
    packed.write_text(f"# pack-refs with: peeled\n{A} {REF}\n")
    assert store.head(REF) == A
    take = store.refs._take

    def then_pack(lock, claim, name, **how):
        if name == "packed-refs":  # what `git pack-refs` writes just before we get the lock must stay
            packed.write_text(packed.read_text() + f"{B} refs/heads/new\n")
        take(lock, claim, name, **how)

    monkeypatch.setattr(store.refs, "_take", then_pack)
    store.drop_head(REF, A)
    assert (store.head(REF), store.head("refs/heads/new")) == (None, B)
    assert not (place.git_dir / "packed-refs.lock").exists()


def test_packed_refs_that_git_holds_are_left_alone(store, place):
    packed, lock = place.git_dir / "packed-refs", place.git_dir / "packed-refs.lock"
    packed.write_text(f"{A} {REF}\n")
    lock.touch()
    os.utime(lock, (0, 0))  # however old: rewriting all refs under a living owner would lose some
    with pytest.raises(Unavailable, match="locked by another program"):
        store.drop_head(REF, A)
    assert store.head(REF) == A
    lock.unlink()
    store.drop_head(REF, A)
    assert store.head(REF) is None


def test_git_never_takes_a_pack_being_written_for_a_pack(place):
    names: set[str] = set()

    class Watching(Disk):
        def rename(self, old, new):
            names.update(path.name for path in place.git_dir.joinpath("objects/pack").iterdir())
            super().rename(old, new)

    store = GitStore(place, disk=Watching())
    for n in range(4):
        with store.put([blob(b"%d" % n)]):
            pass
    assert roll_up(store.pack_folder, place.home / "locks", store.disk, at_most=1)
    assert any(name.startswith(".ropewalk-") for name in names)
    assert not [name for name in names if not name.startswith("pack-") and name.endswith((".pack", ".idx"))]


READING = """
import sys
from ropewalk.gitlog.repository.opening import open_repository
with open_repository(sys.argv[1]) as log:
    print([event.payload["n"] for event in log.events("prod")], "pygit2" in sys.modules)
"""


def test_reading_does_not_load_libgit2(tmp_path):
    with init_repository(tmp_path / "log.git") as log:
        log.append("prod", {"type": "t", "payload": {"n": 1}})
    words = [sys.executable, "-c", READING, str(tmp_path / "log.git")]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "[1] False\n"


@pytest.mark.parametrize("hidden", ["[include]\n\tpath = more\n", "[Extensions]\n\tobjectFormat = sha256\n"])
def test_a_foreign_format_is_seen_however_the_configuration_says_it(tmp_path, hidden):
    init_repository(tmp_path / "log.git").close()
    (tmp_path / "log.git" / "more").write_text("[extensions]\n\tobjectformat = sha256\n")
    with (tmp_path / "log.git" / "config").open("a") as config:
        config.write(hidden)
    with pytest.raises(Invalid, match="SHA256 objects"):
        open_repository(tmp_path / "log.git")


def test_a_configuration_nobody_can_read_stops_writing_not_reading(tmp_path):
    with init_repository(tmp_path / "log.git") as log:
        log.append("prod", {"type": "t", "payload": {}})
    (tmp_path / "log.git" / "config").write_text("[core\n")
    with open_repository(tmp_path / "log.git") as log:
        assert len(log.read("prod").events) == 1
        with pytest.raises(Unavailable, match="configuration"):
            log.append("prod", {"type": "t", "payload": {}})


@needs("git")
def test_a_packed_ref_whose_name_holds_a_line_separator_hides_no_other(tmp_path):
    with init_repository(tmp_path / "log.git") as log:
        commit = log.append("prod", {"type": "t", "payload": {}}).commit
        odd = "refs/heads/a\u2028b\x85c"
        log.store.move_head(odd, None, commit)
        subprocess.run(["git", "pack-refs", "--all"], cwd=tmp_path / "log.git", check=True)
        assert not (tmp_path / "log.git" / odd).exists()
        assert log.store.head(odd) == log.store.head("refs/gatos/shiplog/prod/head") == commit


@needs_that(Path("/proc/self/fd").exists(), "descriptors have no names here")
def test_closed_repository_holds_no_files(place):
    """Files of packs stayed open until the garbage collector ran."""

    def held() -> list[str]:
        names = []
        for path in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                names.append(str(path.readlink()))
        return [name for name in names if name.startswith(str(place.git_dir))]

    gc.disable()
    try:
        with open_repository(place.git_dir) as log:
            receipt = log.append("demo", {"type": "t", "payload": {}})
            assert log.store.get(receipt.commit)[0] == "commit"
            assert held()
        assert held() == []
        assert log.store.get(receipt.commit)[0] == "commit"  # opened again
    finally:
        gc.enable()


def test_failed_write_leaves_an_equal_pack_alone(store, place):
    class Failing(Disk):
        def fsync_directory(self, path):
            raise OSError(28, "No space left on device")

    with store.put([blob(b"same")]):
        before = sorted(store.pack_folder.iterdir())  # with the `.keep` of the first writer
        with pytest.raises(Unavailable), GitStore(place, disk=Failing()).put([blob(b"same")]):
            pass
        assert sorted(store.pack_folder.iterdir()) == before
    with pytest.raises(Unavailable), GitStore(place, disk=Failing()).put([blob(b"same")]):
        pass
    assert GitStore(place).get(object_id("blob", b"same")) == ("blob", b"same")
    with pytest.raises(Unavailable), GitStore(place, disk=Failing()).put([blob(b"new")]):
        pass
    assert {path.name.rpartition(".")[0] for path in store.pack_folder.iterdir()} == {
        path.name.rpartition(".")[0] for path in before
    }


def test_keep_of_another_writer_stays(store, place):
    with store.put([blob(b"same")]):
        with GitStore(place).put([blob(b"same")]):
            pass
        assert list(store.pack_folder.glob("*.keep"))


def test_roll_up_ends_where_packs_cannot_be_removed(store, place):
    class Stuck(Disk):
        rounds = 0

        def unlink(self, path):
            if path.name.startswith("pack-") and path.suffix != ".keep":
                raise PermissionError(1, "Operation not permitted")
            super().unlink(path)

        def rename(self, old, new):
            self.rounds += new.suffix == ".pack"
            assert self.rounds < 5, "roll-up goes on and on"
            super().rename(old, new)

    everything = [blob(f"{n}".encode() * 30) for n in range(60)]
    for each in everything:
        with store.put([each]):
            pass
    assert roll_up(store.pack_folder, place.home / "locks", Stuck()) == 0
    assert len(list(store.pack_folder.glob("*.idx"))) == len(list(store.pack_folder.glob("*.pack")))
    assert all(GitStore(place).get(oid) == (kind, raw) for oid, kind, raw in everything)
