"""Mailboxes and kill −9: of the sender at every step of putting in, of either side in the middle of a stream."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.forking import Popen
from tests.unit.cli.conftest import living_in
from tests.unit.ledger.making import observed
from tests.waiting import LIMIT_S, ended, until

from ropewalk.ledger.channel.channel import open_channel, verify_blocks
from ropewalk.ledger.envelope.envelope import parse, to_cbor
from ropewalk.ledger.mailbox.ring import RingWriter
from ropewalk.ledger.mailbox.shared_memory import map_ring

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(400)


class House:
    """A folder with a repository and a mailbox, and processes that are ended after the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.box = folder, folder / "log.git" / "ropewalk", folder / "box"
        self._running: list[subprocess.Popen[str]] = []
        run = living_in(folder)
        assert run("init", "log.git").code == 0
        assert run("--repo", "log.git", "ledger", "create", "--channel", "audit").code == 0

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = Popen[str](
            ["ledger", *arguments],
            cwd=self.folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder),
                "LANG": "C.UTF-8",
                "ROPEWALK_REPO": "log.git",
            },
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._running.append(process)
        return process

    def serve(self, *more: str) -> subprocess.Popen[str]:
        process = self.start("mailbox", "serve", "box", "--channel", "audit", *more)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["url"] == f"mailbox:{self.box}"
        return process

    def send(self) -> subprocess.Popen[str]:
        return self.start("send", "mailbox:box", "--channel", "audit", "--file", "-", "--jsonl", "--json")

    def stored(self) -> list[bytes]:
        with open_channel(self.home, "audit") as channel:
            return [raw for block in channel.blocks() for raw in block.envelopes]

    def rings(self) -> list[Path]:
        return sorted(self.box.glob("*.ring"))

    def close(self) -> None:
        for process in self._running:
            with process:
                process.kill()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    found = House(tmp_path)
    yield found
    found.close()


def lines(raws: list[bytes]) -> str:
    return "".join(raw.decode() + "\n" for raw in raws)


def test_a_sender_killed_at_any_line_of_putting_in_leaves_nothing_torn(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.fault.mailbox_writer", str(tmp_path / "ring")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    *killed, last = found
    assert len(killed) > 10 and last == [0, 1, True]
    assert all(code == -signal.SIGKILL and whole for code, _, whole in killed)
    there = [count for _, count, _ in killed]
    assert there == sorted(there) and there[0] == 0 and there[-1] == 1


def test_a_host_killed_in_the_middle_loses_nothing_and_doubles_nothing(house):
    raws = [observed(i).raw for i in range(1_200)]
    host = house.serve("--slots", "32", "--slot-bytes", "4096")
    sender = house.send()
    assert sender.stdin is not None and sender.stdout is not None
    with ended(sender):
        sender.stdin.write(lines(raws[:600]))
        sender.stdin.flush()
        answers = [sender.stdout.readline()]  # some stand, others lie in the ring
        host.kill()
        host.wait()
        house.serve("--slots", "32", "--slot-bytes", "4096")
        sender.stdin.write(lines(raws[600:]))
        sender.stdin.close()
        answers += sender.stdout.readlines()
        assert sender.wait(LIMIT_S) == 0
    receipts = [json.loads(answer) for answer in answers]
    assert [receipt["envelope_id"] for receipt in receipts] == [parse(raw).hex_id for raw in raws]
    places = [(receipt["height"], receipt["index"]) for receipt in receipts]
    assert len(set(places)) == len(raws)
    assert house.stored() == raws
    assert verify_blocks(house.home, "audit", deep=True).ok
    until(lambda: house.rings() == [])


def test_a_sender_killed_in_the_middle_leaves_whole_envelopes_in_order(house):
    raws = [observed(i).raw for i in range(600)]
    house.serve("--slots", "32", "--slot-bytes", "4096")
    sender = house.send()
    assert sender.stdin is not None and sender.stdout is not None
    with ended(sender):
        sender.stdin.write(lines(raws))
        sender.stdin.flush()
        answered = [json.loads(sender.stdout.readline())]
        sender.kill()
        answered += [json.loads(line) for line in sender.stdout.readlines() if line.endswith("\n")]
    until(lambda: house.rings() == [])
    stored = house.stored()
    assert stored == raws[: len(stored)] and len(stored) >= len(answered)
    assert verify_blocks(house.home, "audit", deep=True).ok


def test_mailbox_next_host_seals_leftover_slots(house):
    host = house.serve()
    sender = house.send()
    assert sender.stdin is not None and sender.stdout is not None
    sender.stdin.write(lines([observed(0).raw]))
    sender.stdin.flush()
    assert json.loads(sender.stdout.readline())["height"] == 0
    (path,) = house.rings()
    host.send_signal(signal.SIGSTOP)  # it comes to nothing more
    ring = map_ring(path)
    writer = RingWriter(ring.ring)
    for number in (1, 2):
        writer.put(to_cbor(observed(number)))
    ring.close()
    sender.kill()
    host.kill()
    sender.wait()
    host.wait()
    assert house.stored() == [observed(0).raw] and house.rings() == [path]
    house.serve()
    assert house.stored() == [observed(number).raw for number in range(3)] and house.rings() == []
