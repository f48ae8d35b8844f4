"""A channel has one writer at a time: whoever stands in line gets in, also before a server that is never idle."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.unit.ledger.making import NODE, observed
from tests.unit.ledger.rotating import NEXT
from tests.waiting import LIMIT_S, Crew, aside, soon, until

from ropewalk.errors import Conflict, Unavailable
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.channel.channel import Channel, OpenLog, open_channel, open_log, verify_blocks
from ropewalk.ledger.channel.segments.writer import has_waiters, hold_lock
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.envelope.fields import format_timestamp
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.keys.rotate import open_sealing, rotate_key
from ropewalk.ledger.keys.statements import KeyAct, key_envelope
from ropewalk.ledger.remote import writer_lease
from ropewalk.ledger.remote.client import LedgerClient
from ropewalk.ledger.remote.server import LedgerServer

pytestmark = pytest.mark.timeout(300)
CHANNEL = "audit"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    create_channel(tmp_path, CHANNEL, "node", NODE.public)
    return tmp_path


def test_who_stands_in_line_can_be_seen_and_nobody_else(home):
    folder = Channel(home, CHANNEL).folder
    assert not has_waiters(folder) and not has_waiters(folder / "nowhere")
    with Crew(1) as crew:
        with open_log(home, CHANNEL, NODE):
            assert not has_waiters(folder)
            with pytest.raises(Unavailable), open_log(home, CHANNEL, NODE):  # does not wait
                pass
            assert not has_waiters(folder)
            waiting = crew.submit(lambda: open_log(home, CHANNEL, NODE, wait_s=LIMIT_S))
            until(lambda: has_waiters(folder))
        with waiting.result(LIMIT_S):
            assert not has_waiters(folder)


def test_waiting_writer_gets_its_turn_under_load(home, monkeypatch):
    monkeypatch.setattr(writer_lease, "TURN_S", 0.05)

    def append_here() -> LedgerReceipt:
        with open_log(home, CHANNEL, NODE, wait_s=LIMIT_S) as opened:
            receipt: LedgerReceipt = opened.log.submit(observed(-1).raw)
            return receipt

    async def main() -> int:
        sent, enough = 0, asyncio.Event()
        # A door that never closes by itself within this test.
        async with LedgerServer(home, lambda _: [NODE], linger_s=LIMIT_S) as server:

            async def stream(start: int) -> None:
                nonlocal sent
                async with LedgerClient(server.url, CHANNEL) as remote:
                    while not enough.is_set():
                        await remote.submit(observed(start + sent).raw)
                        sent += 1

            streams = [asyncio.create_task(stream(start)) for start in (0, 10**6)]
            await soon(lambda: sent > 3)
            await aside(append_here)
            before = sent
            await soon(lambda: sent > before + 3)  # and they go on
            enough.set()
            await asyncio.gather(*streams)
        return sent

    sent = asyncio.run(main())
    with open_channel(home, CHANNEL) as reading:
        stands = [raw for block in reading.blocks() for raw in block.envelopes]
    assert len(stands) == len(set(stands)) == sent + 1 and observed(-1).raw in stands
    assert verify_blocks(home, CHANNEL, deep=True).ok


def _rotate_in(opened: OpenLog) -> None:
    now = format_timestamp(time.time_ns())
    act = KeyAct("rotate", CHANNEL, NODE.public.identity(), now, now, NEXT.public)
    opened.log.submit(key_envelope(act, NODE, now, new_key=NEXT).raw)


def test_rotation_while_waiting_loses_no_envelope(home):
    folder = Channel(home, CHANNEL).folder

    def keys() -> list[SigningKey]:
        with open_channel(home, CHANNEL) as reading:
            return [NEXT, NODE] if reading.key_history().current.key == NEXT.public else [NODE]

    async def main() -> LedgerReceipt:
        async with (
            LedgerServer(home, lambda _: keys()) as server,
            LedgerClient(server.url, CHANNEL) as remote,
        ):
            with open_log(home, CHANNEL, NODE, also=[NEXT]) as opened:
                sending = asyncio.create_task(remote.submit(observed(1).raw))
                await soon(lambda: has_waiters(folder))
                await aside(_rotate_in, opened)
            return await asyncio.wait_for(sending, LIMIT_S)

    receipt = asyncio.run(main())
    assert receipt.height == 1
    with open_channel(home, CHANNEL) as reading:
        assert [block.record.signer for block in reading.blocks()] == [NODE.public, NEXT.public]


def test_foreign_keys_are_refused_not_retried(home):
    rotate_key(home, CHANNEL, NODE, NEXT)
    asked = []

    def keys() -> list[SigningKey]:
        asked.append(1)
        return [NODE]

    with pytest.raises(Conflict, match="no available key"):
        open_sealing(home, CHANNEL, keys)
    assert len(asked) == 2
    with hold_lock(Channel(home, CHANNEL).folder), pytest.raises(Unavailable):
        open_sealing(home, CHANNEL, lambda: [NEXT])
