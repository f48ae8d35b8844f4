"""Pipes, sockets and odd bytes where git keeps files: refused by name, never waited for."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ropewalk.disk.durable import read_file
from ropewalk.errors import Damaged, Denied, RopewalkError, Unverified
from ropewalk.gitlog.core.layout import SHIPLOG
from ropewalk.gitlog.repository.opening import init_repository, open_repository
from ropewalk.repository_check import verify_gitlogs

REF = SHIPLOG.head_ref("demo")


def recorded(folder: Path) -> Path:
    """A repository with one event."""
    with init_repository(folder) as log:
        log.append("demo", {"type": "t", "payload": {}})
    return folder


def swap_for_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


PLACES = {
    "ref": lambda git: git / REF,
    "packed_refs": lambda git: git / "packed-refs",
    "config": lambda git: git / "config",
    "alternates": lambda git: git / "objects/info/alternates",
    "pack": lambda git: only(git, "objects/pack/pack-*.pack"),
    "pack_index": lambda git: only(git, "objects/pack/pack-*.idx"),
    "policy": lambda git: git / "ropewalk/policy.json",
}


@pytest.mark.parametrize("name", PLACES)
def test_pipe_in_place_of_a_file_is_refused(tmp_path, name):
    git = recorded(tmp_path / "log.git")
    place = PLACES[name](git)
    swap_for_pipe(place)

    def act():
        with open_repository(git) as log:
            log.append("demo", {"type": "t", "payload": {}})

    with pytest.raises((Denied, Unverified)) as refused:
        act()
    assert str(place) in refused.value.detail
    assert refused.value.advice_now


def test_pipe_as_loose_object_is_refused(tmp_path):
    git = recorded(tmp_path / "log.git")
    with open_repository(git) as log:
        swap_for_pipe(git / "objects/ab" / ("cd" * 19))
        with pytest.raises(Damaged, match="regular file"):
            log.store.get("ab" + "cd" * 19)


def test_pipe_is_named_by_a_deep_verify(tmp_path):
    git = recorded(tmp_path / "log.git")
    with open_repository(git) as log:
        swap_for_pipe(PLACES["pack"](git))
        report = verify_gitlogs(log.store, deep=True)
    assert any(step.name == "packs" and step.status == "failed" for step in report.steps)


def test_a_socket_is_refused(tmp_path):
    with socket.socket(socket.AF_UNIX) as peer:
        peer.bind(str(tmp_path / "s"))
        with pytest.raises(Damaged):
            read_file(tmp_path / "s")
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)


@pytest.mark.parametrize("raw", [b"/tmp/\xff\xfe\n", b"\xff", b"nowhere\r\n# comment\n\n"])
def test_alternates_may_be_any_bytes(tmp_path, raw):
    git = recorded(tmp_path / "log.git")
    (git / "objects/info").mkdir(exist_ok=True)
    (git / "objects/info/alternates").write_bytes(raw)
    with open_repository(git) as log:
        assert len(log.read("demo").events) == 1


def test_alternates_of_odd_bytes_are_read(tmp_path):
    lender = recorded(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.git")))
    borrower = tmp_path / "borrower.git"
    init_repository(borrower).close()
    (borrower / "objects/info").mkdir(exist_ok=True)
    (borrower / "objects/info/alternates").write_bytes(os.fsencode(lender / "objects") + b"\n")
    with open_repository(lender) as log:
        head = log.store.head(REF)
    assert head is not None
    with open_repository(borrower) as log:
        assert log.store.get(head)[0] == "commit"


def test_alternates_with_zero_bytes_are_refused(tmp_path):
    git = recorded(tmp_path / "log.git")
    (git / "objects/info").mkdir(exist_ok=True)
    (git / "objects/info/alternates").write_bytes(b"/a\0b\n")
    with pytest.raises(RopewalkError, match="zero byte") as refused:
        open_repository(git)
    assert refused.value.exit_code == 5
