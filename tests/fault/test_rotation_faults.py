"""A rotation is one block: whenever a process dies, the channel has its old key or its new one, and opens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.fault.test_ledger_faults import NthFails
from tests.unit.ledger.making import NODE, observed
from tests.unit.ledger.rotating import CHANNEL, NEXT, make_channel, opened_with, rotation
from tests.waiting import ended

from ropewalk.errors import Conflict, RopewalkError
from ropewalk.ledger.channel.channel import open_channel, verify_blocks
from ropewalk.ledger.proof.trust import Trust

ROOT = Path(__file__).resolve().parents[2]
FIRST = Trust((NODE.public,), ())
ROTATES = """
import sys
from pathlib import Path
from tests.unit.ledger.making import NODE
from tests.unit.ledger.rotating import opened_with, rotation
with opened_with(Path(sys.argv[1]), NODE) as opened:
    print(opened.log.submit(rotation().raw).height, flush=True)
    sys.stdin.read()
"""


@pytest.mark.timeout(120)
def test_rotation_survives_kill_before_next_block(tmp_path):
    make_channel(tmp_path)
    with opened_with(tmp_path, NODE) as opened:
        opened.log.submit(observed(1).raw)
    command = [sys.executable, "-c", ROTATES, str(tmp_path)]
    pipe = subprocess.PIPE
    with ended(subprocess.Popen(command, cwd=ROOT, text=True, stdin=pipe, stdout=pipe)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        process.kill()
        process.wait()
    with pytest.raises(Conflict, match="no available key"):
        opened_with(tmp_path, NODE)
    with opened_with(tmp_path, NEXT) as opened:
        assert opened.log.submit(observed(2).raw).height == 2
    assert verify_blocks(tmp_path, CHANNEL, trust=FIRST, deep=True).ok


def test_rotation_failing_write_leaves_one_key(tmp_path):
    nth = 1
    while True:
        home = tmp_path / str(nth)
        make_channel(home)
        with opened_with(home, NODE) as opened:
            opened.log.submit(observed(1).raw)
        files = NthFails(nth, 1, short=False)
        rotated = False
        try:
            with opened_with(home, NODE, NEXT, disk=files) as opened:
                opened.log.submit(rotation().raw)
                rotated = True
                opened.log.submit(observed(2).raw)
        except RopewalkError:
            pass
        with open_channel(home, CHANNEL) as reading:
            current = reading.key_history().current.key
        assert current == NEXT.public or not rotated
        with opened_with(home, NEXT if current == NEXT.public else NODE) as opened:
            opened.log.submit(observed(3).raw)
        assert verify_blocks(home, CHANNEL, trust=FIRST, deep=True).ok
        if files.calls < nth:
            break
        nth += 1
    assert nth > 4
