"""The memory of heads: damage is told from absence, and a rewound log is never taken for a new one."""

from __future__ import annotations

import os

import pytest

from ropewalk.disk.durable import Disk
from ropewalk.errors import Damaged
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import SHIPLOG
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.store.seen_heads import SeenHeads
from ropewalk.repository_check import verify_gitlogs

REF = SHIPLOG.head_ref("demo")
EVENT = {"type": "t", "payload": {}}


def rewound(log):
    """A log of three events whose ref was put back to the first; returns where its memory lies."""
    receipts = log.append_all("demo", [Draft({**EVENT, "payload": {"n": n}}) for n in range(3)])
    log.store.move_head(REF, receipts[-1].commit, receipts[0].commit)
    return log.store.place.home / "seen" / REF


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0" * 41,
        b"ab" * 19,
        b"Z" * 41,
        b"a" * 400,
        b"\xff\xfe",
        b"0" * 40 + b"\nmore",
        b"0" * 40 + b"\n" + b"0" * 16 + b"\n",  # another head's checksum
    ],
)
def test_damaged_memory_is_refused(log, clock, raw):
    path = rewound(log)
    path.write_bytes(raw)
    with open_repository(log.store.place.git_dir, now_ms=clock) as again:
        for act in (
            lambda: again.read("demo"),
            lambda: again.append("demo", EVENT),
            lambda: again.tail(["demo"]),
        ):
            with pytest.raises(Damaged, match="seen last cannot be read") as refused:
                act()
            assert "heads accept" in refused.value.advice_now
    failed = {step.name for step in verify_gitlogs(log.store).steps if step.status == "failed"}
    assert failed == {"seen_head"}
    assert path.read_bytes() == raw


def test_a_pipe_as_memory_is_refused(log, clock):
    path = rewound(log)
    path.unlink()
    os.mkfifo(path)
    with open_repository(log.store.place.git_dir, now_ms=clock) as again, pytest.raises(Damaged):
        again.read("demo")


def test_a_damaged_memory_can_be_accepted(log, clock):
    path = rewound(log)
    path.write_bytes(b"")
    with open_repository(log.store.place.git_dir, now_ms=clock) as again:
        done = again.lines.accept(SHIPLOG, "demo", "ada")
        assert (done.anew, done.divergence, done.head) == (True, None, again.store.head(REF))
        again.append("demo", EVENT)
        assert len(again.read("demo").events) == 2
    assert verify_gitlogs(log.store).ok
    assert f"{REF} damaged {done.head} ada" in (path.parents[4] / "accepted.log").read_text()


def test_leftovers_are_no_memory(log):
    log.append("demo", EVENT)
    path = log.store.place.home / "seen" / REF
    path.with_name(".head.77.88").write_bytes(b"")
    assert log.lines.seen.refs(SHIPLOG.prefix) == [REF]
    assert verify_gitlogs(log.store).ok


class CountingDisk(Disk):
    """A disk that counts syncs."""

    syncs = 0

    def fsync(self, descriptor):
        self.syncs += 1
        super().fsync(descriptor)


def test_memory_is_replaced_in_place(tmp_path):
    """Within one sector and without a sync: a power cut leaves the old head or the new one."""
    disk, path = CountingDisk(), tmp_path / REF
    seen = SeenHeads(tmp_path, disk)
    seen.set(REF, "a" * 40)
    inode, disk.syncs = path.stat().st_ino, 0
    seen.set(REF, "b" * 40)
    assert (seen.get(REF), path.stat().st_ino, disk.syncs) == ("b" * 40, inode, 0)
    assert path.stat().st_size <= 512


@pytest.mark.parametrize("other", ["a name", "a size"])
def test_memory_of_another_form_is_replaced(tmp_path, other):
    """A copy that shares the file keeps its head, and a bare commit id, as older versions wrote it, is read."""
    seen, path = SeenHeads(tmp_path, Disk()), tmp_path / REF
    seen.set(REF, "a" * 40)
    if other == "a name":
        os.link(path, tmp_path / "copy")
    else:
        path.write_text("a" * 40 + "\n")
        assert seen.get(REF) == "a" * 40
    inode = path.stat().st_ino
    seen.set(REF, "b" * 40)
    assert seen.get(REF) == "b" * 40
    assert path.stat().st_ino != inode
    if other == "a name":
        assert (tmp_path / "copy").read_text().startswith("a" * 40)


def test_memory_read_while_it_is_written(tmp_path):
    seen = SeenHeads(tmp_path, Disk())
    heads = ["a" * 40, "b" * 40]
    seen.set(REF, heads[0])
    child = os.fork()
    if not child:
        for number in range(20_000):
            seen.set(REF, heads[number % 2])
        os._exit(0)
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        assert seen.get(REF) in heads
