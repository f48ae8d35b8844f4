"""The index of a git log never decides: a flipped bit is noticed, and every answer stays the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.torture.index import EVENTS, GitScene, flip

from ropewalk.errors import HistoryRewritten
from ropewalk.gitlog.core.layout import SHIPLOG
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.store.index import REFS_OPEN_MAX, GitIndex, LogExtent, records_of
from ropewalk.kernel import ulid

SEED = 20261117


@pytest.fixture
def scene(tmp_path: Path) -> GitScene:
    return GitScene(tmp_path / "home")


def test_git_index_flip_changes_no_answer(scene):
    assert scene.look() is None
    for path, bit in random.Random(SEED).sample(scene.bits(), 40):
        assert flip(scene, path, bit, scene.look) is None, (path.name, bit)


@pytest.mark.parametrize("suffix", [".rows", ".entries", ".places"])
def test_git_index_damage_is_no_rewritten_history(scene, suffix):
    """A damaged index must not make a log that only grew look rewritten."""
    with open_repository(scene.place.git_dir) as log:
        for number in range(3):
            log.append("demo", {"type": "t", "payload": {"n": EVENTS + number}})
        (path,) = (path for path in scene.files if path.suffix == suffix)
        path.write_bytes(bytes(len(scene.files[path])))
        head = log.store.head(SHIPLOG.head_ref("demo"))
        found = log.lines.line(SHIPLOG, "demo")
        assert (found.head, found.count) == (head, EVENTS + 3)
        assert [slot.height for slot in found.span(0, EVENTS + 3)] == list(range(EVENTS + 3))


def test_git_index_finds_an_old_head_despite_damage(scene):
    """The head seen last lies in the covered part, whose rows are damaged: it is walked, not called rewritten."""
    old = scene.truth[3].commit
    with open_repository(scene.place.git_dir) as log:
        log.append("demo", {"type": "t", "payload": {}})
        ref = SHIPLOG.head_ref("demo")
        log.lines.seen.set(ref, old)
        (rows,) = (path for path in scene.files if path.suffix == ".rows")
        rows.write_bytes(bytes(len(scene.files[rows])))
        assert log.lines.line(SHIPLOG, "demo").count == EVENTS + 1
        log.lines.seen.set(ref, "ab" * 20)
        with pytest.raises(HistoryRewritten):
            log.lines.line(SHIPLOG, "demo")


def test_git_index_keeps_few_files_open(tmp_path):
    index = GitIndex(tmp_path / "index")
    (record,) = records_of([ulid.from_bytes(bytes(16))], ["blake3:" + "00" * 32], ["11" * 20], ["22" * 20])
    for number in range(3 * REFS_OPEN_MAX):
        assert index.add(f"refs/{number}", LogExtent(None, 0), [record])
    assert len(index._refs) == REFS_OPEN_MAX
    assert all(
        index.extent(f"refs/{number}") == LogExtent("11" * 20, 1) for number in range(3 * REFS_OPEN_MAX)
    )
    index.close()


def test_git_index_sees_what_another_one_adds(tmp_path):
    one, other = GitIndex(tmp_path / "index"), GitIndex(tmp_path / "index")
    names = [ulid.from_bytes(bytes(15) + bytes([number])) for number in range(3)]
    records = records_of(
        names, ["blake3:" + "00" * 32] * 3, ["11" * 20, "22" * 20, "33" * 20], ["44" * 20] * 3
    )
    base = LogExtent(None, 0)
    for number, (writer, reader) in enumerate([(one, other), (other, one), (one, other)]):
        assert reader.find("refs/a", names[number]) is None
        assert writer.add("refs/a", base, [records[number]])
        assert not reader.add("refs/a", base, [records[number]])
        base = reader.extent("refs/a")
        found = reader.find("refs/a", names[number])
        assert found is not None and found.height == number
    one.close()
    other.close()
