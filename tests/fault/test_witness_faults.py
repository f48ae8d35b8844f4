"""A witness under bad conditions: killed at any moment, many at once, a disk that is full or may not be written."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.fault.failing import Countdown, FailingDisk
from tests.unit.disk.test_read_only import AS_A_USER
from tests.unit.ledger.heading import LOG, NOW_S, SECRET, WITNESS, SmallLog
from tests.waiting import LIMIT_S, Crew, ended

from ropewalk.errors import Unavailable, Unverified
from ropewalk.kernel.note.note import open_head
from ropewalk.ledger.transparency.witness import parse_request
from ropewalk.ledger.transparency.witness_folder import make_witness, open_witness


@pytest.fixture
def folder(tmp_path):
    return watching(tmp_path / "watch")


def watching(folder: Path) -> Path:
    """A new witness that watches the log."""
    make_witness(folder, WITNESS.name, "watcher", SECRET).add(LOG.verifier)
    return folder


def cosign(folder, note, now_s=NOW_S, tiles=None, **options):
    return open_witness(folder, **options).cosign(parse_request(note), SECRET, now_s, tiles)


def time_of(note):
    signature = open_head(note, LOG.verifier, [WITNESS.verifier])[1].signed_by(WITNESS.verifier)
    assert signature is not None
    return signature.time_s


def test_while_another_process_works_there_it_waits_and_then_says_so(folder):
    with open_witness(folder).state.locked(0):
        with pytest.raises(Unavailable, match="in use by another process"):
            cosign(folder, SmallLog(4).head(), wait_s=0)
        waiting = Crew(1).submit(lambda: cosign(folder, SmallLog(4).head(), wait_s=LIMIT_S))
    assert time_of(waiting.result(LIMIT_S).note) == NOW_S


COSIGN = """
import os, signal, sys
from pathlib import Path
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.transparency.witness import parse_request
from ropewalk.ledger.transparency.witness_folder import open_witness
from ropewalk.disk.durable import Disk

folder, note, tiles, calls, now_s = sys.argv[1:]
left = int(calls)

class Doomed(Disk):
    def _call(self):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

for name in ("write", "fsync", "rename", "fsync_directory"):
    def doomed(self, *arguments, _whole=getattr(Disk, name)):
        self._call()
        _whole(self, *arguments)
        self._call()
    setattr(Doomed, name, doomed)

witness = open_witness(Path(folder), wait_s=60, disk=Doomed())
raw = Path(note).read_bytes()
done = witness.cosign(parse_request(raw), SigningKey("ed25519", b"w" * 32), int(now_s), Path(tiles) if tiles else None)
sys.stdout.buffer.write(done.note)
"""


@contextmanager
def in_process(folder, note, tiles="", calls=0, now_s=NOW_S, before=()) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", COSIGN, str(folder), str(note), str(tiles), str(calls), str(now_s)]
    with ended(
        subprocess.Popen([*before, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    ) as process:
        yield process


@pytest.mark.timeout(600)  # a process for every moment
def test_killed_at_any_moment_it_never_signs_two_histories(tmp_path):
    honest, other = SmallLog(6), SmallLog(7, 2)
    public, elsewhere = honest.publish(tmp_path / "public"), other.publish(tmp_path / "elsewhere")
    deaths = 0
    for calls in range(1, 40):
        folder = watching(tmp_path / f"watch{calls}")
        cosign(folder, SmallLog(1).head())
        with in_process(folder, public / "checkpoint", public, calls, NOW_S + 1) as process:
            out, err = process.communicate()
        size = open_witness(folder).logs()[0].head.size
        assert size in (1, 6)
        if process.returncode == 0:
            assert time_of(out) == NOW_S + 1
            assert size == 6
            break
        assert process.returncode == -signal.SIGKILL, err
        assert out == b""
        deaths += 1
        # It may not have signed, but what it may have signed it knows: the other history is taken only if it is new.
        if size == 6:
            with pytest.raises(Unverified):
                cosign(folder, other.head(), NOW_S + 2, elsewhere)
        assert time_of(cosign(folder, honest.head(), NOW_S + 2, public).note) == NOW_S + 2
        with pytest.raises(Unverified):
            cosign(folder, other.head(), NOW_S + 3, elsewhere)
    else:
        pytest.fail("it never came to an end")
    assert deaths >= 6  # before and after each of write, fsync and rename at least


def test_witness_processes_sign_one_history(folder, tmp_path):
    logs = [SmallLog(4), SmallLog(4, 2)]
    notes = []
    for number, log in enumerate(logs):
        notes.append(tmp_path / f"{number}.note")
        notes[-1].write_bytes(log.head())
    with ExitStack() as stack:
        running = [stack.enter_context(in_process(folder, notes[number % 2])) for number in range(6)]
        answers = [(process.communicate(), process.returncode) for process in running]
    signed = {open_head(out, LOG.verifier)[0].root for (out, _), code in answers if code == 0}
    assert len(signed) == 1
    assert {code for _, code in answers} == {0, 1}
    assert len(open_witness(folder).forks()) == 1


def test_a_full_disk_at_any_call_signs_nothing_and_loses_nothing(tmp_path):
    log = SmallLog(6)
    tiles = log.publish(tmp_path / "public")
    for at in range(1, 20):
        folder = watching(tmp_path / f"watch{at}")
        cosign(folder, log.head(4))
        call = Countdown(at)
        try:
            cosign(folder, log.head(), NOW_S + 1, tiles, disk=FailingDisk(call))
        except Unavailable as error:
            assert "the disk is full" in error.detail
        else:
            assert call.left > 0
            break
        assert open_witness(folder).logs()[0].head.size in (4, 6)
        assert cosign(folder, log.head(), NOW_S + 2, tiles).log.head.size == 6
    assert at > 4


def test_a_folder_that_may_not_be_written_signs_nothing(folder, tmp_path):
    note = tmp_path / "head.note"
    note.write_bytes(SmallLog(4).head())
    cosign(folder, note.read_bytes())
    for path in (*folder.iterdir(), folder):
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        with in_process(folder, note, now_s=NOW_S + 1, before=AS_A_USER) as process:
            out, err = process.communicate()
        assert (out, process.returncode) == (b"", 1)
        assert b"Unavailable" in err
        assert b"permission denied" in err
    finally:
        folder.chmod(0o700)
    assert open_witness(folder).logs()[0].time_s == NOW_S
