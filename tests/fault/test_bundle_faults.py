"""Exports under bad conditions: a failing disk, a full one, a killed process. The file is whole or not there."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.tools import needs_that
from tests.unit.ledger.bundling import TRUST, verdict
from tests.unit.ledger.making import NODE, chain_of_blocks, observed, opened
from tests.waiting import ended

from ropewalk.errors import Unavailable
from ropewalk.ledger.bundle import zstd_file
from ropewalk.ledger.bundle.files import export_blocks, export_bundle
from ropewalk.ledger.channel.channel import open_channel

ROOT = Path(__file__).resolve().parents[2]


class Failing:
    """Counts every write and sync of an export, and fails one of them."""

    def __init__(self, monkeypatch, at):
        self.calls, self.at = 0, at
        real_open, real_fsync, real_spool = Path.open, os.fsync, zstd_file.Spool.write

        def count():
            self.calls += 1
            if self.calls == self.at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def watched_open(path, mode="r", *args, **kwargs):
            stream = real_open(path, mode, *args, **kwargs)
            return Watched(stream, count) if "w" in mode else stream

        def watched_fsync(descriptor):
            count()
            real_fsync(descriptor)

        def watched_spool(spool, raw):
            try:
                count()
            except OSError as error:
                raise Unavailable("gathering") from error
            real_spool(spool, raw)

        monkeypatch.setattr(Path, "open", watched_open)
        monkeypatch.setattr(os, "fsync", watched_fsync)
        monkeypatch.setattr(zstd_file.Spool, "write", watched_spool)


class Watched:
    """A file whose writes are counted."""

    def __init__(self, stream, count):
        self._stream, self._count = stream, count

    def write(self, raw):
        self._count()
        return self._stream.write(raw)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._stream.close()

    def __getattr__(self, name):
        return getattr(self._stream, name)


def test_whichever_write_fails_the_bundle_is_whole_or_not_there(tmp_path):
    blocks = chain_of_blocks(4)
    export_blocks(blocks, NODE, tmp_path / "good.tar.zst")
    good = (tmp_path / "good.tar.zst").read_bytes()
    path, at = tmp_path / "x.tar.zst", 1
    while True:
        with pytest.MonkeyPatch.context() as patch:
            failing = Failing(patch, at)
            with contextlib.suppress(Unavailable):
                export_blocks(blocks, NODE, path)
        if failing.calls < at:
            break
        # The last sync is of the folder: by then the file stands under its name, and whole.
        assert not path.exists() or path.read_bytes() == good
        assert {each.name for each in tmp_path.iterdir()} <= {"good.tar.zst", "x.tar.zst"}
        path.unlink(missing_ok=True)
        at += 1
    assert at > 10
    assert path.read_bytes() == good


def test_an_export_that_fails_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "x.tar.zst"
    export_blocks(chain_of_blocks(2), NODE, path)
    before = path.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        Failing(patch, 3)
        with pytest.raises(Unavailable):
            export_blocks(chain_of_blocks(3), NODE, path)
    assert path.read_bytes() == before


@needs_that(Path("/dev/full").exists(), "/dev/full is a Linux device; the loop above runs everywhere")
def test_a_full_disk_is_said_to_be_full(tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "with_name", lambda path, _name: path.parent / "full")
        with pytest.raises(Unavailable, match="full"):
            export_blocks(chain_of_blocks(2), NODE, tmp_path / "x.tar.zst")


SCRIPT = """
    import sys
    from pathlib import Path
    from tests.unit.ledger.making import NODE
    from ropewalk.ledger.bundle.files import export_bundle
    from ropewalk.ledger.channel.channel import open_channel

    home = Path(sys.argv[1])
    with open_channel(home, "ea.core") as channel:
        while True:
            for start in range(0, 24, 4):
                print("go", flush=True)
                export_bundle(channel, NODE, start, start + 3, home / f"{start}.tar.zst")
                (home / f"{start}.tar.zst").unlink()
            export_bundle(channel, NODE, 0, 23, home / "all.tar.zst")
            (home / "all.tar.zst").unlink()
"""


def test_a_killed_export_is_taken_up_again(tmp_path):
    with opened(tmp_path) as ledger:
        for number in range(24):
            ledger.log.submit(observed(number).raw)
    for lines in (1, 2, 5, 9):
        command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path)]
        with ended(subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)) as process:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(lines)] == [b"go\n"] * lines
            process.kill()
        for path in tmp_path.glob("*.tar.zst"):
            assert verdict(path, TRUST).ok, "a file under its name is whole"
    with open_channel(tmp_path, "ea.core") as channel:
        export_bundle(channel, NODE, 0, 23, tmp_path / "all.tar.zst")
        for start in range(0, 24, 4):
            export_bundle(channel, NODE, start, start + 3, tmp_path / f"{start}.tar.zst")
    assert all(verdict(path, TRUST).ok for path in tmp_path.glob("*.tar.zst"))
    assert not list(tmp_path.glob(".*.tmp")), "what a killed process left behind is cleared away"
