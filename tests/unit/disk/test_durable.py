"""One disk layer: every sync of ropewalk goes through `durable.sync`, which asks for all that the platform offers."""

from __future__ import annotations

import ast
import errno
import fcntl
import os
from pathlib import Path

import pytest

import ropewalk
from ropewalk.disk import durable
from ropewalk.disk.durable import Disk
from ropewalk.ledger.channel.segments.writer import SegmentWriter

SOURCE = Path(ropewalk.__file__).parent
SYNCS = {"fsync", "fdatasync", "sync_file_range", "F_FULLFSYNC"}
FULL = 51  # what macOS calls F_FULLFSYNC


def raw_syncs(path: Path) -> set[str]:
    """The calls of `os` and `fcntl` in a module that put a file on disk."""
    found: set[str] = set()
    text = path.read_text(encoding="utf-8")
    if not any(name in text for name in SYNCS):  # most do not, and to parse all takes seconds
        return found
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr in SYNCS and isinstance(node.value, ast.Name):
            if node.value.id in ("os", "fcntl"):
                found.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module in ("os", "fcntl"):
            found |= {f"{node.module}.{each.name}" for each in node.names if each.name in SYNCS}
    return found


def test_sync_is_called_in_one_module_only():
    found = {path.relative_to(SOURCE).as_posix(): raw_syncs(path) for path in SOURCE.rglob("*.py")}
    assert {name: calls for name, calls in found.items() if calls} == {"disk/durable.py": {"os.fsync"}}


@pytest.fixture
def macos(monkeypatch):
    """A platform with F_FULLFSYNC: the list of what was asked for, in order."""
    asked: list[str] = []
    whole, plain = fcntl.fcntl, os.fsync

    def control(descriptor, command, *rest):
        if command != FULL:
            return whole(descriptor, command, *rest)
        asked.append("full")
        plain(descriptor)
        return 0

    def fsync(descriptor):
        asked.append("plain")
        plain(descriptor)

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", fsync)
    return asked


def test_sync_uses_full_fsync_where_it_exists(macos, tmp_path):
    Disk().replace(tmp_path / "file", b"x")  # as refs of git logs are written
    assert macos and set(macos) == {"full"}


def test_writer_syncs_by_full_fsync(macos, tmp_path):
    with SegmentWriter(tmp_path) as writer:
        writer.append(0, [b"{}"])
        macos.clear()
        writer.sync()
    assert macos and set(macos) == {"full"}


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_sync_falls_back_to_fsync(macos, monkeypatch, tmp_path, code):
    monkeypatch.setattr(fcntl, "fcntl", lambda *_: (_ for _ in ()).throw(OSError(code, os.strerror(code))))
    with (tmp_path / "file").open("wb") as stream:
        durable.sync(stream.fileno())
    assert macos == ["plain"]


def test_sync_failure_is_never_a_fallback(macos, monkeypatch, tmp_path):
    monkeypatch.setattr(fcntl, "fcntl", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
    with (tmp_path / "file").open("wb") as stream, pytest.raises(OSError, match="I/O error"):
        durable.sync(stream.fileno())
    assert macos == []


def test_make_directories_syncs_each_new_name(tmp_path, monkeypatch):
    """Before, the parents of new channels, keys and evidence were made without a sync."""
    synced: list[Path] = []
    monkeypatch.setattr(Disk, "fsync_directory", lambda _self, path: synced.append(path))
    Disk().make_directories(tmp_path / "a" / "b", mode=0o700)
    assert synced == [tmp_path, tmp_path / "a"]
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
