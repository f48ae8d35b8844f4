"""A channel served to coroutines."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.unit.ledger.making import command, observed, opened

from ropewalk.errors import DigestMismatch, InvalidJson, Replayed
from ropewalk.kernel import jcs
from ropewalk.ledger.ticket import Receipt, Ticket
from ropewalk.node.ledger import verify_blocks
from ropewalk.node.served import ServedLog
from ropewalk.stores.segmentwriter import Files


def test_coroutines_share_blocks_and_get_their_own_answers(tmp_path):
    async def main(log) -> list[object]:
        async with ServedLog(log) as served:

            async def work(start: int) -> list[Receipt]:
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
        assert [type(each) for each in outcomes] == [InvalidJson, DigestMismatch, Receipt, Replayed]
        assert ledger.log.head.envelopes == 321 and ledger.log.head.height < 160
    assert verify_blocks(tmp_path, "ea.core", deep=True).ok


def test_a_caller_who_goes_away_does_not_disturb_the_others(tmp_path):
    async def main(log) -> Receipt:
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
    async def main(log) -> list[Receipt]:
        asked = [command(f"c-{i}") for i in range(30)]
        answered = [observed(i, event_class="Result", parent=each) for i, each in enumerate(asked)]
        async with ServedLog(log) as served:
            return await asyncio.gather(*(served.submit(each.raw) for each in (*asked, *answered)))

    with opened(tmp_path) as ledger:
        receipts = asyncio.run(main(ledger.log))
        places = [(receipt.height, receipt.index) for receipt in receipts]
        assert places == sorted(places) and len(set(places)) == 60
    assert verify_blocks(tmp_path, "ea.core", deep=True).ok


def test_a_batch_that_is_cancelled_before_it_began_leaves_nobody_waiting(tmp_path):
    async def main(log) -> Receipt:
        async with ServedLog(log) as served:
            gone = asyncio.create_task(served.submit(observed(1).raw))
            while not served._under_way:
                await asyncio.sleep(0)
            for each in served._under_way:
                each.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
            return await served.submit(observed(2).raw)

    with opened(tmp_path) as ledger:
        assert not asyncio.run(main(ledger.log)).replayed


def test_what_was_taken_in_is_written_though_the_loop_is_torn_down(tmp_path, monkeypatch):
    async def main(log) -> None:
        async with ServedLog(log) as served:
            task = asyncio.create_task(served.submit(observed(1).raw))
            await asyncio.to_thread(judging.wait, 120)
            for each in (task, *served._under_way):
                each.cancel()
            cancelled.set()

    judging, cancelled = threading.Event(), threading.Event()
    with opened(tmp_path) as ledger:
        place_many = ledger.log.place_many

        def place_late(raws: list[bytes]) -> list[Ticket]:
            judging.set()
            cancelled.wait(120)
            placed: list[Ticket] = place_many(raws)
            return placed

        monkeypatch.setattr(ledger.log, "place_many", place_late)
        asyncio.run(main(ledger.log))
        assert ledger.log.submit(observed(1).raw).replayed


def test_what_was_placed_is_written_though_its_batch_is_cancelled_in_line_for_the_writer(tmp_path):
    class Slow(Files):
        writing, go_on = threading.Event(), threading.Event()
        armed = False

        def sync(self, fd):
            if self.armed:
                self.writing.set()
                self.go_on.wait(120)
            super().sync(fd)

    async def main(log) -> None:
        async with ServedLog(log) as served:
            callers = [asyncio.create_task(served.submit(observed(1).raw))]
            await asyncio.to_thread(files.writing.wait, 120)
            callers.append(asyncio.create_task(served.submit(observed(2).raw)))
            while not log._forming:  # until the second batch is placed; then it gets in line
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)
            for each in served._under_way:
                each.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
            files.go_on.set()

    files = Slow()
    with opened(tmp_path, files=files) as ledger:
        files.armed = True
        asyncio.run(main(ledger.log))
        assert ledger.log.head.envelopes == 2
        assert ledger.log.submit(observed(2).raw).replayed
