"""A channel served to coroutines."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.unit.ledger.making import command, observed, opened
from tests.waiting import LIMIT_S, aside, soon

from ropewalk.disk.durable import Disk
from ropewalk.errors import DigestMismatch, InvalidEnvelope, InvalidJson, Replayed, Unavailable, Usage
from ropewalk.kernel import jcs
from ropewalk.ledger.channel.channel import verify_blocks
from ropewalk.ledger.ingest.async_log import ServedLog
from ropewalk.ledger.ingest.ticket import LedgerReceipt


def test_coroutines_share_blocks_and_get_their_own_answers(tmp_path):
    async def main(log) -> list[object]:
        async with ServedLog(log) as served:

            async def work(start: int) -> list[LedgerReceipt]:
                return [await served.submit(observed(start * 100 + i).raw) for i in range(8)]

            good = asyncio.gather(*(work(start) for start in range(40)))
            bad = asyncio.gather(
                served.submit(b"{"),
                served.submit(jcs.encode({**observed(1).value, "payload": 0})),
                served.submit(command("c").raw),
                served.submit(command("c", payload=2).raw),
                return_exceptions=True,
            )
            receipts = [receipt for part in await good for receipt in part]
            assert len({(r.height, r.index) for r in receipts}) == 320
            return list(await bad)

    with opened(tmp_path) as ledger:
        outcomes = asyncio.run(main(ledger.log))
        assert [type(each) for each in outcomes] == [InvalidJson, DigestMismatch, LedgerReceipt, Replayed]
        assert ledger.log.head.envelopes == 321 and ledger.log.head.height < 160
    assert verify_blocks(tmp_path, "ea.core", deep=True).ok


def test_a_caller_who_goes_away_does_not_disturb_the_others(tmp_path):
    async def main(log) -> LedgerReceipt:
        async with ServedLog(log) as served:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(served.submit(observed(1).raw), timeout=0)
            gone = asyncio.create_task(served.submit(observed(2).raw))
            await asyncio.sleep(0)
            gone.cancel()
            return await served.submit(observed(3).raw)

    with opened(tmp_path) as ledger:
        assert asyncio.run(main(ledger.log)).height >= 0


def test_what_is_submitted_first_is_judged_first_also_across_batches(tmp_path):
    async def main(log) -> list[LedgerReceipt]:
        asked = [command(f"c-{i}") for i in range(30)]
        answered = [observed(i, event_class="Result", parent=each) for i, each in enumerate(asked)]
        async with ServedLog(log) as served:
            return await asyncio.gather(*(served.submit(each.raw) for each in (*asked, *answered)))

    with opened(tmp_path) as ledger:
        receipts = asyncio.run(main(ledger.log))
        places = [(receipt.height, receipt.index) for receipt in receipts]
        assert places == sorted(places) and len(set(places)) == 60
    assert verify_blocks(tmp_path, "ea.core", deep=True).ok


def test_a_wrong_argument_harms_no_other_caller(tmp_path):
    async def main(log) -> list[object]:
        async with ServedLog(log) as served:
            wrong: Any = "text"
            given = (observed(1).raw, wrong, observed(2).raw)
            return list(await asyncio.gather(*map(served.submit, given), return_exceptions=True))

    with opened(tmp_path) as ledger:
        assert [type(each) for each in asyncio.run(main(ledger.log))] == [
            LedgerReceipt,
            InvalidEnvelope,
            LedgerReceipt,
        ]


def test_batch_failure_is_reported_to_all(tmp_path, monkeypatch):
    async def main(log) -> tuple[list[object], LedgerReceipt]:
        async with ServedLog(log) as served:
            with monkeypatch.context() as patch:
                patch.setattr(log, "submit_many", lambda raws: 1 // 0)
                lost = await asyncio.gather(
                    *(served.submit(observed(i).raw) for i in range(3)), return_exceptions=True
                )
            return list(lost), await served.submit(observed(9).raw)

    with opened(tmp_path) as ledger:
        lost, receipt = asyncio.run(main(ledger.log))
        assert [type(each) for each in lost] == [ZeroDivisionError] * 3
        assert not receipt.replayed


def test_the_end_waits_for_all_who_came_and_refuses_who_comes_later(tmp_path):
    async def main(log) -> tuple[LedgerReceipt, object]:
        async with ServedLog(log) as served:
            early = asyncio.create_task(served.submit(observed(1).raw))
            await asyncio.sleep(0)
        assert early.done()
        for late in (2, 3):  # whoever comes after the first who was refused is not left waiting either
            with pytest.raises(Unavailable, match="no longer served"):
                await served.submit(observed(late).raw)
        return await early, served

    with opened(tmp_path) as ledger:
        assert not asyncio.run(main(ledger.log))[0].replayed
        assert ledger.log.head.envelopes == 1


def test_accepted_batch_written_after_loop_ends(tmp_path):
    class Slow(Disk):
        writing, go_on = threading.Event(), threading.Event()
        armed = False

        def fsync(self, fd):
            if self.armed:
                self.writing.set()
                self.go_on.wait(LIMIT_S)
            super().fsync(fd)

    async def main(served) -> None:
        asyncio.get_running_loop().create_task(served.submit(observed(1).raw))  # nobody will wait for it
        await aside(disk.writing.wait, LIMIT_S)

    disk = Slow()
    with opened(tmp_path, disk=disk) as ledger:
        disk.armed = True
        served = ServedLog(ledger.log)
        asyncio.run(main(served))  # the loop is closed while the block is being written
        disk.go_on.set()
        served._thread.shutdown()
        assert ledger.log.submit(observed(1).raw).replayed


def test_an_end_that_is_cancelled_leaves_nobody_waiting(tmp_path):
    async def main(log) -> list[object]:
        served = ServedLog(log)
        callers: list[asyncio.Task[LedgerReceipt]] = []

        async def serve() -> None:
            async with served:
                callers.append(asyncio.create_task(served.submit(observed(1).raw)))
                await aside(judging.wait, LIMIT_S)
                callers.append(asyncio.create_task(served.submit(observed(2).raw)))
                await asyncio.sleep(0)

        serving = asyncio.create_task(serve())
        await soon(lambda: len(callers) == 2)
        serving.cancel()
        go_on.set()
        await asyncio.gather(serving, return_exceptions=True)
        return list(await asyncio.wait_for(asyncio.gather(*callers, return_exceptions=True), LIMIT_S))

    judging, go_on = threading.Event(), threading.Event()
    with opened(tmp_path) as ledger:
        submit_many = ledger.log.submit_many

        def late(raws: list[bytes]) -> object:
            judging.set()
            go_on.wait(LIMIT_S)
            return submit_many(raws)

        ledger.log.submit_many = late
        first, second = asyncio.run(main(ledger.log))
    assert isinstance(first, LedgerReceipt) and isinstance(second, LedgerReceipt | Unavailable)


def test_another_event_loop_is_refused_and_not_left_waiting(tmp_path):
    async def leave(served: ServedLog) -> None:
        waiting = asyncio.create_task(served.submit(observed(1).raw))
        await asyncio.sleep(0)
        waiting.cancel()

    async def again(served: ServedLog) -> None:
        async with served:
            with pytest.raises(Usage, match="another event loop"):
                await served.submit(observed(2).raw)

    with opened(tmp_path) as ledger:
        served = ServedLog(ledger.log)
        asyncio.run(leave(served))
        asyncio.run(again(served))


def test_an_error_no_future_takes_leaves_nobody_waiting(tmp_path, monkeypatch):
    async def main(log) -> LedgerReceipt:
        async with ServedLog(log) as served:
            with monkeypatch.context() as patch:
                patch.setattr(log, "submit_many", lambda raws: next(iter(())))
                with pytest.raises(RuntimeError, match="StopIteration"):
                    await served.submit(observed(1).raw)
            return await served.submit(observed(2).raw)

    with opened(tmp_path) as ledger:
        assert not asyncio.run(main(ledger.log)).replayed
