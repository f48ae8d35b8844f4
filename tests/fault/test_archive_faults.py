"""Archives under bad conditions: a failing disk, a killed process. An archive is whole or not there, never a lie."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fault.failing import Countdown, FailingDisk
from tests.unit.ledger.archiving import CHANNEL, TRUST, archived, contents, failures, filled
from tests.unit.ledger.making import NODE, NOON_NS
from tests.waiting import ended

from ropewalk.errors import Unavailable
from ropewalk.ledger.archive.files import archive_folders
from ropewalk.ledger.archive.pack import pack_channel
from ropewalk.ledger.archive.restore import restore_channel
from ropewalk.ledger.archive.retain import retain_channel
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.segments.reader import Segments
from ropewalk.ledger.channel.settings import channels

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return filled(tmp_path_factory.mktemp("home"), 5)


def test_whichever_call_fails_there_are_whole_archives_or_none(home, tmp_path):
    archived(home, tmp_path / "good", before=2)
    archived(home, tmp_path / "good")
    good = contents(tmp_path / "good")
    for at in range(1, 100):
        cold, call = tmp_path / f"cold{at}", Countdown(at)
        archived(home, cold, before=2)
        before = contents(cold)
        try:
            archived(home, cold, disk=FailingDisk(call))
        except Unavailable as error:
            assert "the disk is full" in error.detail
        else:
            assert call.left > 0
            break
        # After the rename the archive stands, although its folder could not be synced any more.
        assert contents(cold) in (before, good)
        assert failures(cold) == {}
        archived(home, cold)
        assert contents(cold) == good
    else:
        pytest.fail("it never came to an end")
    assert at > 10


def test_whichever_call_fails_a_channel_is_restored_whole_or_not_at_all(home, tmp_path):
    archived(home, tmp_path / "cold")
    for at in range(1, 100):
        back, call = tmp_path / f"back{at}", Countdown(at)
        try:
            restore_channel(tmp_path / "cold", CHANNEL, back, trust=TRUST, disk=FailingDisk(call))
        except Unavailable:
            if not channels(back):
                assert contents(back) == {}
                restore_channel(tmp_path / "cold", CHANNEL, back, trust=TRUST)
        else:
            assert call.left > 0
            break
        with open_channel(back, CHANNEL) as channel:
            assert channel.head().height == 5
    else:
        pytest.fail("it never came to an end")
    assert at > 10


@pytest.fixture(scope="module")
def segmented(tmp_path_factory):
    """A channel of several segments, two of them closed."""
    folder = filled(tmp_path_factory.mktemp("segmented"), 5, segment_bytes=2000)
    assert len(Segments(folder / "ledger" / CHANNEL).starts()) == 3
    return folder


def stored_lines(home):
    with open_channel(home, CHANNEL) as channel:
        return list(channel.lines())


def test_failing_call_leaves_one_segment_form(segmented, tmp_path):
    good = stored_lines(segmented)
    for at in range(1, 100):
        home, call = shutil.copytree(segmented, tmp_path / f"home{at}"), Countdown(at)
        try:
            pack_channel(home, CHANNEL, disk=FailingDisk(call))
        except Unavailable as error:
            assert "the disk is full" in error.detail
        else:
            assert call.left > 0
            break
        assert stored_lines(home) == good
        assert pack_channel(home, CHANNEL).segments == 2
        assert stored_lines(home) == good
        assert len(list((home / "ledger" / CHANNEL / "segments").iterdir())) == 3
    else:
        pytest.fail("it never came to an end")
    assert at > 10


# One interpreter, and a child of it for every moment: it does what it is told and is killed at its n-th call.
KILLED = """
import os, signal, sys
from pathlib import Path
from tests.unit.ledger.archiving import CHANNEL, TRUST, archived
from ropewalk.ledger.archive.pack import pack_channel
from ropewalk.ledger.archive.restore import restore_channel
from ropewalk.disk.durable import Disk

left = 0

class Doomed(Disk):
    pass

def call():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

for name in ("write", "fsync", "rename", "unlink"):
    def doomed(self, *arguments, _whole=getattr(Disk, name)):
        call()
        _whole(self, *arguments)
        call()
    setattr(Doomed, name, doomed)

for line in sys.stdin:
    act, calls, home, cold = line.split()
    child = os.fork()
    if child == 0:
        left = int(calls)
        if act == "archive":
            archived(Path(home), Path(cold), disk=Doomed())
        elif act == "pack":
            pack_channel(Path(home), CHANNEL, disk=Doomed())
        else:
            restore_channel(Path(cold), CHANNEL, Path(home), trust=TRUST, disk=Doomed())
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def killer():
    command = [sys.executable, "-c", KILLED]
    with ended(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT),
        limit_s=900,  # all tests of this module share it
    ) as process:

        def run(act: str, calls: int, home: Path, cold: Path) -> int:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(f"{act} {calls} {home} {cold}\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield run


def test_killed_at_any_moment_an_archive_is_whole_or_not_there(home, tmp_path, killer):
    archived(home, tmp_path / "good")
    good, cold, deaths = contents(tmp_path / "good"), tmp_path / "cold", 0
    for calls in range(1, 100):
        if killer("archive", calls, home, cold) == 0:
            break
        deaths += 1
        found = archive_folders(cold / CHANNEL)
        if found:
            assert contents(cold) == good
            assert failures(cold) == {}
            for path in (cold / CHANNEL).rglob("*"):
                path.unlink() if path.is_file() else None
            found[0].path.rmdir()  # so that the next one is killed, too
    else:
        pytest.fail("it never came to an end")
    assert deaths > 15
    assert contents(cold) == good, "what the killed ones left behind is cleared away"


def test_killed_at_any_moment_a_restore_can_be_done_again(home, tmp_path, killer):
    archived(home, tmp_path / "cold")
    deaths = 0
    for calls in range(1, 100):
        back = tmp_path / f"back{calls}"
        code = killer("restore", calls, back, tmp_path / "cold")
        if code == 0:
            break
        assert code == -signal.SIGKILL
        deaths += 1
        if not channels(back):
            restore_channel(tmp_path / "cold", CHANNEL, back, trust=TRUST)
        assert not (back / "restoring" / CHANNEL).exists()
        with open_channel(back, CHANNEL) as channel:
            assert channel.head().height == 5
    else:
        pytest.fail("it never came to an end")
    assert deaths > 3


def test_killed_at_any_moment_a_packed_channel_reads_the_same(segmented, tmp_path, killer):
    good = stored_lines(segmented)
    for calls in range(1, 100):
        home = shutil.copytree(segmented, tmp_path / f"home{calls}")
        code = killer("pack", calls, home, tmp_path)
        assert stored_lines(home) == good
        assert pack_channel(home, CHANNEL).segments == 2
        assert stored_lines(home) == good
        assert len(list((home / "ledger" / CHANNEL / "segments").iterdir())) == 3
        if code == 0:
            break
        assert code == -signal.SIGKILL
    else:
        pytest.fail("it never came to an end")
    assert calls > 20


def test_retain_failing_at_any_call_loses_no_block(segmented, tmp_path):
    def blocks(home):
        with open_channel(home, CHANNEL) as channel:
            return [lines for _, lines in channel.lines(0, 4)]

    whole = blocks(segmented)
    cold = str(tmp_path / "cold")
    archived(segmented, Path(cold))
    options = {"keep_blocks": 1, "summary": False, "now_ns": lambda: NOON_NS + 99}
    for at in range(1, 60):
        home, call = tmp_path / f"home{at}", Countdown(at)
        shutil.copytree(segmented, home)
        try:
            done = retain_channel(
                home,
                CHANNEL,
                lambda: (NODE,),
                cold,
                disk=FailingDisk(call),
                **options,  # type: ignore[arg-type]
            )
        except Unavailable:
            assert blocks(home) == whole
            done = retain_channel(home, CHANNEL, lambda: (NODE,), cold, **options)  # type: ignore[arg-type]
            assert blocks(home) == whole
        else:
            assert call.left > 0
            break
    else:
        pytest.fail("it never came to an end")
    assert at > 4 and done.dropped > 0
    assert [path.suffix for path in (home / "ledger" / CHANNEL / "segments").iterdir()].count(
        ".cold"
    ) == done.dropped
