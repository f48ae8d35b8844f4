"""Ingest: what is accepted stands, what is refused leaves no trace, receipts are true."""

from __future__ import annotations

import itertools
import shutil
import sys
import threading
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, ClassVar

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from tests.unit.ledger.making import ADA, NODE, NOON_NS, P256, command, observed, opened, resigned
from tests.waiting import LIMIT_S, Crew, together, until

from ropewalk.disk.durable import Disk
from ropewalk.errors import (
    BrokenLink,
    Damaged,
    Forked,
    InvalidEnvelope,
    InvalidJson,
    Replayed,
    RopewalkError,
    Unavailable,
)
from ropewalk.kernel import jcs
from ropewalk.ledger.block.block import GENESIS, check_contents, check_link, check_signature, seal
from ropewalk.ledger.block.index_keys import derive
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.index.index import LedgerIndex
from ropewalk.ledger.envelope.envelope import parse
from ropewalk.ledger.envelope.model import Envelope, signature_preimage
from ropewalk.ledger.ingest import sealer
from ropewalk.ledger.ingest.ports import IngestLimits
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.rules.policy import STRICT


def test_a_receipt_says_where_the_envelope_stands(tmp_path):
    with opened(tmp_path) as ledger:
        receipts = [ledger.log.submit(observed(i).raw) for i in range(5)]
    with open_channel(tmp_path, "ea.core") as channel:
        blocks = list(channel.blocks())
        for receipt in receipts:
            block = blocks[receipt.height]
            assert block.hash == receipt.block_hash
            assert parse(block.envelopes[receipt.index]).id == receipt.envelope_id
        below = None
        for block in blocks:
            check_signature(block.record, [NODE.public])
            check_contents(block)
            check_link(below, block.header)
            below = block.header


def test_many_from_one_thread_share_blocks_and_syncs(tmp_path):
    class Counting(Disk):
        syncs = 0

        def fsync(self, fd):
            self.syncs += 1
            super().fsync(fd)

    disk = Counting()
    with opened(tmp_path, disk=disk) as ledger:
        before = disk.syncs
        outcomes = ledger.log.submit_many(observed(i).raw for i in range(500))
        assert all(isinstance(each, LedgerReceipt) for each in outcomes)
        assert ledger.log.head.height == 1 and ledger.log.head.envelopes == 500
        assert disk.syncs - before <= 4  # the segment, and its three folders once


def test_concurrent_submissions_all_stand_once_and_share_blocks(tmp_path):
    envelopes = [observed(i) for i in range(256)]
    with opened(tmp_path) as ledger, Crew(32) as pool:
        receipts = pool.map(lambda e: ledger.log.submit(e.raw), envelopes)
        assert [r.envelope_id for r in receipts] == [e.id for e in envelopes]
        assert len({(r.height, r.index) for r in receipts}) == 256
        assert ledger.log.head.height < 256
    with open_channel(tmp_path, "ea.core") as channel:
        assert channel.head().envelopes == 256


def test_blocks_close_at_their_limits(tmp_path):
    with opened(tmp_path, limits=IngestLimits(block_envelopes=3)) as ledger:
        outcomes = ledger.log.submit_many(observed(i).raw for i in range(8))
        assert [(r.height, r.index) for r in outcomes] == [(i // 3, i % 3) for i in range(8)]
    size = len(observed(0).raw)
    with opened(tmp_path, "other", limits=IngestLimits(block_bytes=2 * size + 1)) as ledger:
        outcomes = ledger.log.submit_many(observed(i).raw for i in range(6))
        assert [r.height for r in outcomes] == [0, 0, 1, 1, 2, 2]


def test_the_same_bytes_again_give_the_first_receipt(tmp_path):
    with opened(tmp_path) as ledger:
        first = ledger.log.submit(command("c-1").raw)
        again = ledger.log.submit(command("c-1").raw)
        assert again == LedgerReceipt(first.envelope_id, 0, 0, first.block_hash, replayed=True)
    with opened(tmp_path) as ledger:  # also through the index on disk
        assert ledger.log.submit(command("c-1").raw).replayed
        assert ledger.log.head.envelopes == 1


def test_the_same_bytes_twice_in_one_block_stand_once(tmp_path):
    with opened(tmp_path) as ledger:
        first, again = ledger.log.submit_many([observed(1).raw, observed(1).raw])
        assert (first.replayed, again.replayed) == (False, True)
        assert (again.height, again.index) == (0, 0)
        assert ledger.log.head.envelopes == 1


def test_second_command_refused_over_whole_history(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.log.submit(command("c-1").raw)
    with opened(tmp_path) as ledger:
        for i in range(3):
            ledger.log.submit(observed(i).raw)
        with pytest.raises(Replayed) as caught:
            ledger.log.submit(command("c-1", payload={"other": 1}).raw)
        assert caught.value.exit_code == 4
        assert [f["status"] for f in caught.value.fields["rules"]][-1] == "failed"


def test_two_commands_with_one_id_in_one_block_are_one(tmp_path):
    with opened(tmp_path) as ledger:
        outcomes = ledger.log.submit_many([command("c").raw, command("c", payload=2).raw])
        assert isinstance(outcomes[0], LedgerReceipt) and isinstance(outcomes[1], Replayed)


def test_a_result_may_share_a_block_with_its_command_if_it_comes_after(tmp_path):
    ask = command("c-9")
    done = observed(event_class="Result", event_type="test.done", parent=ask)
    with opened(tmp_path) as ledger:
        refused, accepted = ledger.log.submit_many([done.raw, ask.raw])
        assert isinstance(refused, BrokenLink) and isinstance(accepted, LedgerReceipt)
        assert isinstance(ledger.log.submit(done.raw), LedgerReceipt)


def test_one_statement_signed_twice_is_refused(tmp_path):
    value = dict(observed(1, P256).value)
    secret = ec.derive_private_key(int.from_bytes(P256.secret, "big"), ec.SECP256R1())
    r, s = decode_dss_signature(secret.sign(signature_preimage(value), ec.ECDSA(hashes.SHA256())))
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    s = min(s, order - s)
    sig = b64encode(r.to_bytes(32, "big") + s.to_bytes(32, "big")).decode()
    other = {**value, "signature": {**value["signature"], "sig": sig}}
    with opened(tmp_path) as ledger:
        ledger.log.submit(jcs.encode(value))
        with pytest.raises(Replayed, match="with another signature"):
            ledger.log.submit(jcs.encode(other))


def test_alerts_repeat_only_where_their_policy_tag_allows(tmp_path):
    alert: dict[str, Any] = {"event_class": "Alert", "correlation_id": "a-1"}
    tag = {"policy_hash": STRICT.hash.hex(), "decision": "allow"}
    with opened(tmp_path, policy=STRICT) as ledger:
        ledger.log.submit(observed(**alert).raw)
        with pytest.raises(Replayed):
            ledger.log.submit(observed(2, **alert).raw)
        assert isinstance(ledger.log.submit(observed(3, policy_tag=tag, **alert).raw), LedgerReceipt)


def test_an_envelope_from_the_far_future_is_refused(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.log.submit(observed(1, timestamp="2024-11-01T12:05:00Z").raw)
        with pytest.raises(InvalidEnvelope, match="in the future"):
            ledger.log.submit(observed(2, timestamp="2024-11-01T12:05:00.000000001Z").raw)


def test_block_times_never_go_back_even_if_the_clock_does(tmp_path):
    clock = [NOON_NS]
    with opened(tmp_path, now_ns=lambda: clock[0]) as ledger:
        for i, ahead in enumerate((0, -(10**9), 5)):
            clock[0] = NOON_NS + ahead
            ledger.log.submit(observed(i).raw)
    with open_channel(tmp_path, "ea.core") as channel:
        assert [b.header.timestamp_ns - NOON_NS for b in channel.blocks()] == [0, 0, 5]


def test_a_refusal_does_not_disturb_those_beside_it(tmp_path):
    broken = dict(observed(1).value, payload={"n": 2})
    with opened(tmp_path) as ledger:
        outcomes = ledger.log.submit_many([observed(1).raw, jcs.encode(broken), b"{", observed(3).raw])
    assert [isinstance(each, LedgerReceipt) for each in outcomes] == [True, False, False, True]
    assert [each.exit_code for each in outcomes if isinstance(each, RopewalkError)] == [5, 8]


def test_the_channel_grows_across_openings_and_segments(tmp_path):
    for i in range(6):
        with opened(tmp_path, segment_bytes=2000) as ledger:
            receipt = ledger.log.submit(observed(i).raw)
            assert receipt.height == i
    with open_channel(tmp_path, "ea.core") as channel:
        assert [b.height for b in channel.blocks(2, 4)] == [2, 3, 4]
        assert len(channel.segments.starts()) > 1


def test_a_deleted_index_is_built_again(tmp_path):
    with opened(tmp_path) as ledger:
        ids = [ledger.log.submit(command(f"c-{i}").raw).envelope_id for i in range(10)]
    shutil.rmtree(tmp_path / "ledger/ea.core/index")
    with opened(tmp_path) as ledger:
        assert ledger.log.submit(command("c-3").raw).replayed
        with pytest.raises(Replayed):
            ledger.log.submit(command("c-4", payload=1).raw)
    with open_channel(tmp_path, "ea.core") as channel:
        assert all(channel.envelope(name).id == name for name in ids)


@pytest.mark.parametrize("damage", [b"", b"\0" * 4096, b"junk" * 5000])
def test_a_zero_length_or_foreign_index_file_is_replaced(tmp_path, damage):
    with opened(tmp_path) as ledger:
        ledger.log.submit(command("c-1").raw)
    (tmp_path / "ledger/ea.core/index/current").write_bytes(damage)
    with opened(tmp_path) as ledger:
        assert ledger.log.submit(command("c-1").raw).replayed


def test_an_index_of_another_log_is_not_believed(tmp_path):
    for name, count in (("one", 3), ("two", 5)):
        with opened(tmp_path, name) as ledger:
            for i in range(count):
                ledger.log.submit(observed(i + 10 * count).raw)
    shutil.rmtree(tmp_path / "ledger/one/index")
    shutil.copytree(tmp_path / "ledger/two/index", tmp_path / "ledger/one/index")
    with open_channel(tmp_path, "one") as channel:
        assert channel.head().envelopes == 3


def test_full_disk_acknowledges_nothing(tmp_path):
    class Moody(Disk):
        full = False

        def write_some(self, fd, raw):
            if self.full:
                raise OSError(28, "No space left on device")
            return super().write_some(fd, raw)

    disk = Moody()
    with opened(tmp_path, disk=disk) as ledger:
        ledger.log.submit(observed(1).raw)
        disk.full = True
        outcomes = ledger.log.submit_many([observed(2).raw, observed(3).raw])
        assert all(isinstance(each, Unavailable) for each in outcomes)
        disk.full = False
        assert ledger.log.submit(observed(2).raw).height == 1
    with open_channel(tmp_path, "ea.core") as channel:
        assert channel.head().envelopes == 2


def test_everyone_who_waits_hears_of_a_failed_sync(tmp_path):
    class NoSync(Disk):
        failing = False

        def fsync(self, fd):
            if self.failing:
                raise OSError(5, "Input/output error")
            super().fsync(fd)

    disk = NoSync()
    with opened(tmp_path, disk=disk) as ledger, Crew(16) as pool:
        disk.failing = True
        errors = pool.map(lambda i: _outcome(ledger, observed(i)), range(64))
        assert all(isinstance(error, Unavailable) for error in errors)


def _outcome(ledger, envelope: Envelope) -> LedgerReceipt | Exception:
    try:
        receipt: LedgerReceipt = ledger.log.submit(envelope.raw)
        return receipt
    except Exception as error:
        return error


def test_an_index_that_cannot_be_stored_costs_nobody_a_receipt(tmp_path, monkeypatch):
    monkeypatch.setattr("ropewalk.ledger.channel.index.index.FLUSH_ENVELOPES", 10)
    envelopes = [observed(i) for i in range(64)]
    with opened(tmp_path) as ledger, Crew(16) as pool:
        with monkeypatch.context() as full:
            full.setattr(ledger.index, "_write", _raise(OSError(28, "No space left on device")))
            outcomes = pool.map(lambda each: _outcome(ledger, each), envelopes)
            assert {type(each) for each in outcomes} == {LedgerReceipt}
            assert ledger.log.submit(envelopes[0].raw).replayed
        assert ledger.log.submit(observed(64).raw).height == ledger.log.head.height - 1
    with open_channel(tmp_path, "ea.core") as channel:
        assert channel.head().envelopes == 65
        assert all(channel.prove(each.id).envelope.id == each.id for each in envelopes)


def test_index_failure_releases_all_waiters(tmp_path, monkeypatch):
    with opened(tmp_path) as ledger, Crew(16) as pool:
        monkeypatch.setattr(ledger.index, "add", _raise(RuntimeError("a mistake of ours")))
        outcomes = pool.map(lambda i: _outcome(ledger, observed(i)), range(64))
        assert not any(isinstance(each, LedgerReceipt) for each in outcomes)
        monkeypatch.undo()
    with opened(tmp_path) as ledger:  # what reached the disk stands, and is known to stand
        assert {type(each) for each in ledger.log.submit_many(observed(i).raw for i in range(64))} == {
            LedgerReceipt
        }
        assert ledger.log.head.envelopes == 64


def test_nobody_waits_for_ever_at_a_gate_that_cannot_be_read(tmp_path, monkeypatch):
    with opened(tmp_path) as ledger, Crew(8) as pool:
        log = ledger.log
        reached, others = threading.Event(), threading.Event()

        def gate() -> frozenset[str]:
            reached.set()
            others.wait(LIMIT_S)
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(log, "_minors", gate)
        waiting = [pool.submit(_outcome, ledger, observed(0))]
        assert reached.wait(LIMIT_S)  # it is judged alone, the others together after it
        waiting += [pool.submit(_outcome, ledger, observed(1 + i)) for i in range(7)]
        until(lambda: len(log._commit.arrivals) == 7)
        others.set()
        assert all(isinstance(each.result(LIMIT_S), (PermissionError, Unavailable)) for each in waiting)
        monkeypatch.undo()
        assert log.submit(observed(9).raw).height == 0


def test_threads_that_open_a_channel_at_once_do_not_hold_one_another_up(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.log.submit_many(observed(i).raw for i in range(5))

    def look() -> None:
        with open_channel(tmp_path, "ea.core") as channel:
            assert channel.head().height == 1

    for _ in range(20):
        shutil.rmtree(tmp_path / "ledger/ea.core/index")  # each of them makes it anew
        together(*[look] * 4)


def test_a_channel_that_cannot_be_opened_is_not_held(tmp_path):
    opened(tmp_path).close()
    table = tmp_path / "ledger/lifecycle.json"
    table.write_text("no table")
    with pytest.raises(Damaged) as refused:
        opened(tmp_path)
    table.unlink()
    with opened(tmp_path) as ledger:  # though the refusal, and all it knows, is still here
        assert ledger.log.submit(observed(1).raw).height == 0
    assert refused.value.fields["reason"] == "lifecycle"


def test_a_writer_whose_index_is_thrown_away_takes_every_block_in_once(tmp_path, monkeypatch):
    with opened(tmp_path, limits=IngestLimits(block_envelopes=1)) as ledger:
        ledger.log.submit_many(observed(i).raw for i in range(5))
        ledger.index.flush()
        shutil.rmtree(tmp_path / "ledger/ea.core/index")
        monkeypatch.setattr(ledger.index, "_flush_at", 1)  # in the middle of what is written together
        ledger.log.submit_many(observed(i).raw for i in range(5, 10))
        assert ledger.index.state.height == ledger.log.head.height == 10
    with open_channel(tmp_path, "ea.core") as channel:
        assert [channel.prove(observed(i).id).height for i in range(10)] == list(range(10))


def test_opening_reader_keeps_what_writer_stores(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.log.submit(observed(1).raw)

        class Slow(LedgerIndex):
            def _matches_log(self):
                ledger.index.flush()
                return super()._matches_log()

        reader = Slow(ledger.channel.segments, derive)
        assert reader.rebuilt_from is None
        reader.catch_up()
        assert reader.state.height == 1
        reader.close()


def _raise(error: Exception) -> Callable[..., Any]:
    def act(*_arguments: Any) -> Any:
        raise error

    return act


def test_inserted_block_taken_fork_kept_both_sides(tmp_path):
    mine = [observed(i).raw for i in range(2)]
    first = seal(
        NODE, channel="ea.core", height=0, prev_block_hash=GENESIS, envelopes=mine, timestamp_ns=NOON_NS
    )
    other = seal(
        NODE, channel="ea.core", height=0, prev_block_hash=GENESIS, envelopes=mine[:1], timestamp_ns=NOON_NS
    )
    with opened(tmp_path) as ledger:
        ledger.log.insert(first)
        ledger.log.insert(first)  # known already: nothing happens
        assert ledger.log.head.height == 1
        with pytest.raises(Forked) as caught:
            ledger.log.insert(other)
        assert caught.value.fields["ours"] == first.hash.hex()
        assert caught.value.fields["theirs"] == other.hash.hex()
    (kept,) = (tmp_path / "ledger/ea.core/evidence").iterdir()
    sides: Any = jcs.parse(kept.read_bytes())
    assert jcs.encode(sides["ours"]) == first.record.raw and jcs.encode(sides["theirs"]) == other.record.raw


def test_interrupted_insertion_gives_useful_advice(tmp_path, monkeypatch):
    first = seal(
        NODE,
        channel="ea.core",
        height=0,
        prev_block_hash=GENESIS,
        envelopes=[observed(0).raw],
        timestamp_ns=NOON_NS,
    )

    def interrupted(*_):
        raise KeyboardInterrupt

    with opened(tmp_path) as ledger:
        with monkeypatch.context() as broken:
            broken.setattr(LedgerIndex, "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ledger.log.insert(first)
        for again in (lambda: ledger.log.insert(first), lambda: ledger.log.submit(observed(1).raw)):
            with pytest.raises(Unavailable) as caught:
                again()
            assert caught.value.advice_now == "Open the channel again."
    with opened(tmp_path) as ledger:
        ledger.log.insert(first)  # it stood on disk all the while
        assert ledger.log.submit(observed(1).raw).height == 1


def interrupted_at(number: int, path: str) -> Callable[..., Any]:
    """A trace that interrupts this thread before the line of a file that is the so-manieth to run."""
    left = itertools.count(number, -1)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != path:
            return None
        if event == "line" and next(left) == 1:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    return trace


def test_interrupted_leader_leaves_no_waiter(tmp_path, monkeypatch):
    monkeypatch.setattr("ropewalk.kernel.group_commit.POLL_S", 0.05)
    tracing = sys.gettrace()
    for number in itertools.count(1):
        home = tmp_path / str(number)
        with opened(home) as ledger, Crew(1) as pool:
            log = ledger.log
            with log._commit._lock:  # so that the other one cannot lead, and waits beside us
                beside = pool.submit(log.submit, observed(1).raw)
                until(partial(bool, log._commit.arrivals))
            sys.settrace(interrupted_at(number, sealer.__file__))
            try:
                log.submit(observed(0).raw)
                ended = True
            except KeyboardInterrupt:
                ended = False
            except Unavailable:  # the other one led after all, and nobody was interrupted here
                ended = False
            finally:
                sys.settrace(tracing)
            error = beside.exception(LIMIT_S)
            assert error is None or isinstance(error, Unavailable)
        with opened(home) as ledger:  # and what has a receipt stands
            again = ledger.log.submit(observed(1).raw)
            assert error is not None or again == replace(beside.result(), replayed=True)
        shutil.rmtree(home)
        if ended and number > 50:
            break


def test_threads_that_mix_both_ways_in_do_not_wait_for_ever(tmp_path):
    with opened(tmp_path) as ledger, Crew(8) as pool:

        def bulk(start: int) -> int:
            return sum(
                isinstance(each, LedgerReceipt)
                for each in ledger.log.submit_many(observed(start + i).raw for i in range(40))
            )

        singles = [pool.submit(ledger.log.submit, observed(10_000 + i).raw) for i in range(100)]
        bulks = [pool.submit(bulk, 1000 * i) for i in range(4)]
        assert [f.result(LIMIT_S) for f in bulks] == [40] * 4
        assert all(isinstance(f.result(LIMIT_S), LedgerReceipt) for f in singles)
        assert ledger.log.head.envelopes == 260


def test_a_long_list_is_written_as_it_is_judged_in_full_blocks(tmp_path):
    class Watching(Disk):
        held: ClassVar[list[int]] = []

        def fsync(self, fd):
            if log is not None:
                self.held.append(len(log._commit.arrivals))
            super().fsync(fd)

    log = None
    with opened(tmp_path, disk=Watching(), limits=IngestLimits(block_envelopes=100)) as ledger:
        log = ledger.log
        outcomes = log.submit_many(observed(i).raw for i in range(750))
        assert [(r.height, r.index) for r in outcomes] == [(i // 100, i % 100) for i in range(750)]
    assert Watching.held[0] > 0  # some were durable before the last were looked at


def test_broken_off_list_keeps_what_was_placed(tmp_path, monkeypatch):
    with opened(tmp_path) as ledger:
        log = ledger.log
        monkeypatch.setattr("ropewalk.ledger.ingest.log.BATCH_MAX", 10)
        gate = iter([frozenset({"1.0"})])  # open for the first ten only
        monkeypatch.setattr(log, "_minors", lambda: next(gate))
        with pytest.raises(StopIteration):
            log.submit_many(observed(i).raw for i in range(30))
        assert log.head.envelopes == 10
        monkeypatch.undo()
        assert log.submit(observed(99).raw).height == 1
        assert log.head.envelopes == 11


def test_a_chain_that_differs_from_its_ancestors_is_refused(tmp_path):
    ask = command("c-1")
    step = observed(1, parent=ask)
    with opened(tmp_path) as ledger:
        ledger.log.submit_many([ask.raw, step.raw])
        grandchild = observed(2, parent=step)
        assert isinstance(ledger.log.submit(grandchild.raw), LedgerReceipt)
        value = dict(grandchild.value, causality_chain=[step.hex_id, "c-1"])
        with pytest.raises(BrokenLink, match="differs from that of ancestor"):
            ledger.log.submit(resigned(value, ADA))
        value = dict(grandchild.value, causality_chain=[step.hex_id, ask.hex_id, "c-1"])
        with pytest.raises(BrokenLink):
            ledger.log.submit(resigned(value, ADA))


def test_nobody_is_overlooked_while_a_list_is_refused_beside_them(tmp_path):
    with opened(tmp_path) as ledger:

        def refused() -> None:
            for _ in range(60):
                assert isinstance(ledger.log.submit_many([b"{", b"}"])[0], InvalidJson)

        def accepted(start: int) -> None:
            for i in range(20):
                ledger.log.submit(observed(start + i).raw)

        together(refused, *(partial(accepted, start * 100) for start in range(6)))
        assert ledger.log.head.envelopes == 120
