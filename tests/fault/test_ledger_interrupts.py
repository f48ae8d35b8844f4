"""A channel whose threads are interrupted, whose process forks or ends, and that is closed under those who submit."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings

import pytest
from tests.unit.ledger.making import NOON_NS, chain_of_blocks, observed, opened
from tests.waiting import LIMIT_S, Crew, until

from ropewalk.disk.durable import Disk
from ropewalk.errors import RopewalkError, Unavailable, Usage
from ropewalk.kernel import group_commit
from ropewalk.kernel.group_commit import Waiter
from ropewalk.ledger.channel.channel import open_channel, verify_blocks
from ropewalk.ledger.ingest import log as log_module
from ropewalk.ledger.ingest import sealer as sealing_module
from ropewalk.ledger.ingest.log import ChannelWriter
from ropewalk.ledger.ingest.ports import IngestLimits
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.rules.rules import judge


class Interrupted(Disk):
    """Files whose n-th call is interrupted: before it does anything, halfway, or when it is done."""

    def __init__(self, number: int, when: str) -> None:
        self.number, self.when, self.calls = number, when, 0

    def write_some(self, fd, raw):
        if not self._is_due():
            return super().write_some(fd, raw)
        if self.when != "before":
            super().write_some(fd, raw[: len(raw) // 2] if self.when == "halfway" else raw)
        raise KeyboardInterrupt

    def fsync(self, fd):
        due = self._is_due()
        if not due or self.when == "after":
            super().fsync(fd)
        if due:
            raise KeyboardInterrupt

    def _is_due(self) -> bool:
        self.calls += 1
        return self.calls == self.number


@pytest.mark.parametrize("when", ["before", "halfway", "after"])
@pytest.mark.parametrize("number", range(1, 12))
def test_interrupted_disk_calls_keep_receipts(tmp_path, number, when):
    with opened(tmp_path) as ledger:
        ledger.log.submit(observed(99).raw)  # a segment without a block is begun anew when it is opened
    disk = Interrupted(number, when)
    receipts: list[LedgerReceipt] = []
    with opened(tmp_path, disk=disk) as ledger:
        for start in range(0, 18, 3):
            try:
                outcomes = ledger.log.submit_many(observed(start + i).raw for i in range(3))
            except KeyboardInterrupt:
                continue
            assert all(isinstance(each, LedgerReceipt) for each in outcomes)
            receipts += outcomes
    assert len(receipts) >= 15
    assert verify_blocks(tmp_path, "ea.core", deep=True).ok
    with open_channel(tmp_path, "ea.core") as channel:
        blocks = list(channel.blocks())
        for receipt in receipts:
            assert blocks[receipt.height].hash == receipt.block_hash
            assert channel.prove(receipt.envelope_id).envelope.id == receipt.envelope_id
    stored = [raw for block in blocks for raw in block.envelopes]
    assert len(set(stored)) == len(stored)


def test_interrupted_leader_answers_submitters(tmp_path):
    writing, all_came = threading.Event(), threading.Event()

    class Held(Disk):
        armed = False

        def fsync(self, fd):
            super().fsync(fd)
            if self.armed:
                self.armed = False
                writing.set()
                all_came.wait(LIMIT_S)
                raise KeyboardInterrupt

    disk = Held()
    with opened(tmp_path, disk=disk) as ledger, Crew(8) as pool:
        log = ledger.log
        disk.armed = True
        first = pool.submit(log.submit, observed(0).raw)
        assert writing.wait(LIMIT_S)  # those who come from now on are in the next round
        others = [pool.submit(log.submit, observed(1 + i).raw) for i in range(6)]
        until(lambda: len(log._commit.arrivals) == 6)
        all_came.set()
        with pytest.raises(KeyboardInterrupt):
            first.result(LIMIT_S)
        assert {type(each.result(LIMIT_S)) for each in others} == {LedgerReceipt}
        assert log.submit(observed(0).raw).replayed  # it was on disk when its thread was interrupted


def test_an_index_that_is_interrupted_stops_the_channel_and_says_so(tmp_path, monkeypatch):
    with opened(tmp_path) as ledger:

        def add(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(ledger.index, "add", add)
        with pytest.raises(KeyboardInterrupt):
            ledger.log.submit(observed(0).raw)
        monkeypatch.undo()
        with pytest.raises(Unavailable, match="was interrupted while a block was written") as refused:
            ledger.log.submit(observed(1).raw)
        assert "Open the channel again" in (refused.value.advice_now or "")
    with opened(tmp_path) as ledger:
        assert ledger.log.submit(observed(0).raw).replayed


def test_nothing_is_built_on_a_block_whose_insertion_was_interrupted(tmp_path, monkeypatch):
    (block,) = chain_of_blocks(1)
    with opened(tmp_path) as ledger:

        def add(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(ledger.index, "add", add)
        with pytest.raises(KeyboardInterrupt):
            ledger.log.insert(block)
        monkeypatch.undo()
        with pytest.raises(Unavailable, match="was interrupted while a block was written"):
            ledger.log.submit(observed(1).raw)
    assert verify_blocks(tmp_path, "ea.core", deep=True).ok
    with opened(tmp_path) as ledger:
        assert ledger.log.head.height == 1


def test_interrupted_leader_hides_no_parent(tmp_path, monkeypatch):
    with opened(tmp_path, limits=IngestLimits(block_envelopes=2)) as ledger, Crew(1) as pool:
        log = ledger.log
        monkeypatch.setattr(log_module, "BATCH_MAX", 3)

        def publish(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(log._sealer, "_publish", publish)
        with pytest.raises(KeyboardInterrupt):
            log.submit_many(observed(i).raw for i in range(5))  # a block is written, another one has begun
        monkeypatch.undo()
        with pytest.raises(Unavailable, match="was interrupted while a block"):
            pool.submit(log.submit, observed(9).raw).result(LIMIT_S)
    assert verify_blocks(tmp_path, "ea.core", deep=True).ok
    with opened(tmp_path) as ledger:
        assert ledger.log.submit(observed(0).raw).replayed


def test_forgetting_that_is_interrupted_keeps_nobody_asleep(tmp_path, monkeypatch):
    with opened(tmp_path, limits=IngestLimits(block_envelopes=2)) as ledger:
        log = ledger.log
        monkeypatch.setattr(log_module, "BATCH_MAX", 3)

        def drop(_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(log.history, "drop", drop)
        with pytest.raises(KeyboardInterrupt):
            log.submit_many(observed(i).raw for i in range(5))
        monkeypatch.undo()
        with Crew(1) as pool:
            assert pool.submit(log.submit, observed(0).raw).result(LIMIT_S).replayed


def test_a_call_that_got_lost_keeps_nobody_asleep(monkeypatch):
    monkeypatch.setattr(group_commit, "POLL_S", 0.01)
    waiter = Waiter()
    waiter.wait()  # nobody calls
    waiter.wake()
    waiter.wait()


def test_in_a_forked_child_the_channel_is_closed_whoever_was_writing(tmp_path):
    inside, go = threading.Event(), threading.Event()

    class Slow(Disk):
        armed = False

        def fsync(self, fd):
            if self.armed:
                inside.set()
                go.wait(LIMIT_S)
            super().fsync(fd)

    disk = Slow()
    with opened(tmp_path, disk=disk) as ledger, Crew(1) as pool:
        disk.armed = True
        writing = pool.submit(ledger.log.submit, observed(0).raw)
        assert inside.wait(LIMIT_S)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that this is dangerous is why it is tested
            child = os.fork()
        if child == 0:
            code = 1
            try:
                ledger.log.submit(observed(1).raw)
            except Unavailable:
                ledger.close()  # and this waits for nobody either
                code = 0
            finally:
                os._exit(code)
        done = threading.Thread(target=lambda: codes.append(os.waitpid(child, 0)[1]))
        codes: list[int] = []
        done.start()
        done.join(LIMIT_S)
        if not codes:
            os.kill(child, 9)
        done.join()
        go.set()
        assert writing.result(LIMIT_S).height == 0
        assert codes == [0]
        assert ledger.log.submit(observed(2).raw).height == 1


def test_close_during_submits_answers_everyone(tmp_path):
    ledger = opened(tmp_path, limits=IngestLimits(block_envelopes=7))
    accepted: list[LedgerReceipt] = []
    busy = threading.Semaphore(0)

    def submit(start: int) -> BaseException:
        for i in range(0, 100_000, 20):
            try:
                outcomes = ledger.log.submit_many(observed(start + i + k).raw for k in range(20))
            except RopewalkError as error:
                return error
            accepted.extend(each for each in outcomes if isinstance(each, LedgerReceipt))
            busy.release()
        raise AssertionError("nobody closed it")

    with Crew(6) as pool:
        running = [pool.submit(submit, 100_000 * number) for number in range(6)]
        try:
            for _ in range(12):
                assert busy.acquire(timeout=LIMIT_S)
        finally:
            ledger.close()
        assert {type(each.result(LIMIT_S)) for each in running} == {Unavailable}
    assert verify_blocks(tmp_path, "ea.core").ok
    with open_channel(tmp_path, "ea.core") as channel:
        hashes = [block.hash for block in channel.blocks()]
    assert all(hashes[each.height] == each.block_hash for each in accepted)


def test_a_judge_that_fails_at_one_envelope_fails_that_one_alone(tmp_path, monkeypatch):
    bad = observed(5)

    def failing(envelope, *arguments):
        if envelope.id == bad.id:
            raise ValueError("a mistake")
        return judge(envelope, *arguments)

    monkeypatch.setattr(sealing_module, "judge", failing)
    with opened(tmp_path) as ledger:
        outcomes = ledger.log.submit_many(observed(i).raw for i in range(10))
        assert [type(each) for each in outcomes] == [LedgerReceipt] * 5 + [Unavailable] + [LedgerReceipt] * 4
        assert isinstance(outcomes[5].__cause__, ValueError)
        assert [each.index for each in outcomes if isinstance(each, LedgerReceipt)] == list(range(9))


def test_submit_within_a_round_is_refused(tmp_path):
    logs: list[ChannelWriter] = []
    heard: list[RopewalkError] = []

    def now_ns() -> int:
        if logs:
            try:
                logs.pop().submit(observed(1).raw)
            except RopewalkError as error:
                heard.append(error)
        return NOON_NS

    with opened(tmp_path, now_ns=now_ns) as ledger:
        logs.append(ledger.log)
        assert ledger.log.submit(observed(0).raw).index == 0
        assert [type(each) for each in heard] == [Usage]
        assert "from within a commit round" in str(heard[0])
        assert ledger.log.submit(observed(2).raw).height == 1
        assert ledger.log.head.envelopes == 2  # what was refused is not taken later either


def test_what_an_interrupted_list_left_keeps_no_block_out(tmp_path, monkeypatch):
    (block,) = chain_of_blocks(1)
    with opened(tmp_path) as ledger:
        monkeypatch.setattr(log_module, "BATCH_MAX", 1)

        def gate() -> frozenset[str]:
            raise KeyboardInterrupt

        monkeypatch.setattr(ledger.log, "_minors", gate)
        with pytest.raises(KeyboardInterrupt):
            ledger.log.submit_many(observed(i).raw for i in range(5))
        monkeypatch.undo()
        ledger.log.insert(block)
        assert ledger.log.submit(observed(99).raw).height == 1
        assert ledger.log.head.envelopes == len(block.envelopes) + 1


ENDING = """
import sys, threading
from pathlib import Path
from tests.unit.ledger.making import observed, opened

ledger = opened(Path(sys.argv[1]))

def work():
    threading.main_thread().join()  # the interpreter lets nobody begin a thread any more
    outcomes = ledger.log.submit_many(observed(i).raw for i in range(40))
    print(sum(type(each).__name__ == "LedgerReceipt" for each in outcomes))
    ledger.close()

threading.Thread(target=work).start()
"""


def test_a_thread_that_outlives_the_main_one_still_submits(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ENDING, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("40", 0), done.stderr
