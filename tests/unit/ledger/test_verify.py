"""Verification of a whole channel: every flipped byte is found and located; pieces join to the whole."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import reduce
from pathlib import Path

import pytest
from tests.unit.ledger.making import ADA, NODE, NOON_NS, chain_of_blocks, command, observed, opened

from ropewalk.errors import BrokenLink, Damaged
from ropewalk.kernel import jcs
from ropewalk.kernel.entry import join
from ropewalk.ledger.block.block import GENESIS, Block, check_link, seal
from ropewalk.ledger.bundle.files import export_bundle
from ropewalk.ledger.channel.channel import Channel, open_channel, verify_blocks
from ropewalk.ledger.channel.damage import find_damage
from ropewalk.ledger.channel.losses import KnownHead, note_known
from ropewalk.ledger.channel.maintenance import verify_stored
from ropewalk.ledger.channel.repair import repair_channel
from ropewalk.ledger.channel.segments.format import record_head
from ropewalk.ledger.channel.segments.reader import Segments
from ropewalk.ledger.ingest.ports import IngestLimits
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.proof.verify import BlockSpan, Found, check_block, check_channel, to_report
from ropewalk.ledger.transparency.publish import publish_tiles

BLOCKS = chain_of_blocks(7)
TRUST = Trust((NODE.public,), ())


def stored(blocks: list[Block]) -> list[Found]:
    return [(block.height, block.lines()) for block in blocks]


def resealed(block: Block, envelopes: list[bytes] | None = None, **changes) -> Block:
    """The block sealed again with other contents: only what the rules say can be wrong with it then."""
    header = block.header
    options = {
        "channel": header.channel,
        "height": header.height,
        "prev_block_hash": header.prev_block_hash,
        "timestamp_ns": header.timestamp_ns,
        **changes,
    }
    return seal(NODE, envelopes=envelopes or list(block.envelopes), **options)


def test_a_sound_channel_passes_every_step():
    span = check_channel(stored(BLOCKS), trust=TRUST)
    assert (span.fault, span.blocks, span.envelopes) == (None, 7, 21)
    report = to_report(span, deep=True, trust=TRUST)
    assert report.ok
    assert {step.name: step.status for step in report.steps}["policy_hash"] == "not_checked"


def test_what_was_not_looked_at_is_said():
    report = to_report(check_channel(stored(BLOCKS), deep=False), deep=False)
    assert {step.name: step.status for step in report.steps}["envelopes"] == "not_checked"


def test_spans_join_to_the_same_whole_however_the_channel_is_cut():
    alone = [check_block(block.lines(), block.height, trust=TRUST) for block in BLOCKS]
    whole = reduce(join, alone, BlockSpan())
    assert whole.fault is None and whole.blocks == 7
    chance = random.Random(4)
    for _ in range(50):
        parts: list[BlockSpan] = list(alone)
        while len(parts) > 1:
            at = chance.randrange(len(parts) - 1)
            parts[at : at + 2] = [join(parts[at], parts[at + 1])]
        assert parts[0] == whole


def test_a_missing_doubled_swapped_or_foreign_block_is_a_broken_link():
    one = BLOCKS
    foreign = chain_of_blocks(7, per_block=2)
    for blocks, height in (
        ([*one[:3], *one[4:]], 3),
        ([*one[:3], one[2], *one[3:]], 3),
        ([one[0], one[2], one[1], *one[3:]], 1),
        ([*one[:3], *foreign[3:]], 3),
    ):
        fault = check_channel(stored(blocks)).fault
        assert fault is not None and (fault.step, fault.height) == ("links", height)


def test_a_channel_must_begin_with_its_first_block():
    fault = check_channel(stored(BLOCKS[2:])).fault
    assert fault is not None and fault.step == "links"


def test_time_must_not_go_back():
    late = resealed(BLOCKS[0], timestamp_ns=NOON_NS + 100)
    early = resealed(BLOCKS[1], prev_block_hash=late.hash, timestamp_ns=NOON_NS)
    fault = check_channel(stored([late, early])).fault
    assert fault is not None and (fault.step, fault.height) == ("links", 1) and "earlier" in fault.detail


def test_a_stranger_s_seal_is_named():
    fault = check_channel(stored(BLOCKS), trust=Trust((ADA.public,), ())).fault
    assert fault is not None and (fault.step, fault.height) == ("block_signatures", 0)


def test_a_bad_envelope_under_a_good_seal_is_named_with_its_index():
    forged = jcs.encode({**observed(5).value, "payload": {"n": 6}})
    block = resealed(BLOCKS[0], [observed(1).raw, forged, observed(3).raw])
    assert check_channel(stored([block]), deep=False).fault is None
    fault = check_channel(stored([block])).fault
    assert fault is not None and (fault.step, fault.height, fault.index) == ("envelopes", 0, 1)


def test_replays_across_blocks_are_found_in_depth():
    first = resealed(BLOCKS[0], [command("c-1").raw])
    second = resealed(BLOCKS[1], [command("c-1", payload=2).raw], prev_block_hash=first.hash)
    fault = check_channel(stored([first, second])).fault
    assert fault is not None and (fault.height, fault.index) == (1, 0) and "rule 8" in fault.detail


def test_the_policy_hash_is_compared_where_one_is_pinned():
    fault = check_channel(stored(BLOCKS), trust=Trust((NODE.public,), (), bytes(32))).fault
    assert fault is not None and fault.step == "policy_hash"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with opened(tmp_path, limits=IngestLimits(block_envelopes=2)) as ledger:
        ledger.log.submit_many(observed(i).raw for i in range(5))
    return tmp_path


def overwrite(path: Path, offset: int, piece: bytes) -> None:
    """Bytes in the place of others. To write the whole file anew is to wait for the disk, each time."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(piece)


def test_every_flipped_byte_of_a_stored_channel_is_detected_and_located(home, flip_step):
    (path,) = (home / "ledger/ea.core/segments").iterdir()
    raw = path.read_bytes()
    places = [record.place for record in Segments(home / "ledger/ea.core").scan()]
    for position in range(0, len(raw), flip_step):
        overwrite(path, position, bytes([raw[position] ^ 0x01]))
        report = verify_blocks(home, "ea.core")
        overwrite(path, position, raw[position : position + 1])
        failure = report.first_failure
        assert failure is not None, f"byte {position} went unnoticed"
        height = next((h for h, place in enumerate(places) if position < place.end), 0)
        assert failure.fields["height"] == height
    assert verify_blocks(home, "ea.core", deep=True).ok


def test_flipped_bytes_found_despite_checksums(home, flip_step):
    (path,) = (home / "ledger/ea.core/segments").iterdir()
    raw = path.read_bytes()
    for record in list(Segments(home / "ledger/ea.core").scan()):
        start, end = record.place.offset, record.place.end
        body = raw[start + 64 : end]
        for position in range(0, len(body.rstrip(b"\n")), flip_step):
            flipped = body[:position] + bytes([body[position] ^ 0x01]) + body[position + 1 :]
            overwrite(path, start, record_head(record.height, flipped) + flipped)
            failure = verify_blocks(home, "ea.core").first_failure
            assert failure is not None, f"block {record.height}, byte {position} went unnoticed"
            assert failure.fields["height"] in (record.height, record.height + 1)
        overwrite(path, start, raw[start:end])
    assert path.read_bytes() == raw


def put_another_log(home: Path, *files: str) -> Path:
    """Put the log of another channel, of seven blocks, in the folder of ea.core; return that folder."""
    with opened(home, "ea.two", limits=IngestLimits(block_envelopes=1)) as ledger:
        ledger.log.submit_many(observed(i).raw for i in range(20, 27))
    ours, theirs = (home / "ledger" / name for name in ("ea.core", "ea.two"))
    for name in ("segments", "index"):
        shutil.rmtree(ours / name)
        shutil.copytree(theirs / name, ours / name)
    for name in files:
        shutil.copy(theirs / name, ours / name)
    return ours


def test_log_of_another_channel_is_refused(home, tmp_path):
    """One key may seal several channels: nothing but the name in the blocks tells their logs apart."""
    put_another_log(home, "receipted")
    for deep in (False, True):
        for report in (
            verify_blocks(home, "ea.core", deep=deep),
            verify_stored(home, "ea.core", deep=deep),
            verify_stored(home, "ea.core", trust=Trust((NODE.public,), ()), deep=deep),
        ):
            failure = report.first_failure
            assert failure is not None and 'got "ea.two"' in failure.detail
    with pytest.raises(Damaged, match="blocks are of channel"):
        opened(home)
    with open_channel(home, "ea.core") as reading, pytest.raises(Damaged, match="blocks are of channel"):
        publish_tiles(reading, NODE, "log.example", tmp_path / "tiles")
    assert not (tmp_path / "tiles" / "checkpoint").exists()
    serve: list[Callable[[Channel], object]] = [
        lambda reading: reading.prove_range(0, 1),
        lambda reading: reading.prove_consistency(1, 2),
        lambda reading: export_bundle(reading, NODE, 0, 1, tmp_path / "bundle"),
    ]
    for each in serve:
        with open_channel(home, "ea.core") as reading, pytest.raises(Damaged, match="blocks are of channel"):
            each(reading)
    assert any("ea.two" in each for each in find_damage(home, "ea.core").problems)
    assert verify_stored(home, "ea.two", deep=True).ok


def test_log_of_another_channel_is_repaired(home, tmp_path):
    shutil.copytree(home, tmp_path / "copy")
    ours = put_another_log(home, "receipted")
    with open_channel(home, "ea.two") as reading:
        last = reading.index.block_hash(6)
    note_known(ours, KnownHead(7, last.hex(), "a signed head"))
    foreign = {path.name: path.read_bytes() for path in (ours / "segments").iterdir()}
    assert not repair_channel(
        home, "ea.core", replica=tmp_path / "copy"
    ).done  # its mark is lost: was there more?
    done = repair_channel(home, "ea.core", replica=tmp_path / "copy", accept_loss=True)
    assert done.done and done.blocks == 3 and not done.closed and done.kept is not None
    assert 'of channel "ea.two", from block 0 on; a repair keeps them' in done.damage.problems[0]
    assert {path.name: path.read_bytes() for path in (done.kept / "segments").iterdir()} == foreign
    assert verify_stored(home, "ea.core", deep=True).ok
    with opened(home) as ledger:
        assert ledger.log.submit(observed(7).raw).height == 3


def test_repair_keeps_the_mark_of_a_replaced_log(home, tmp_path):
    """The mark names three blocks of this channel: a copy that has fewer does not open it for writing."""
    shutil.copytree(home, tmp_path / "copy")
    with opened(home) as ledger:
        ledger.log.submit(observed(6).raw)
    put_another_log(home)
    found = repair_channel(home, "ea.core", replica=tmp_path / "copy")
    assert not found.done and found.blocks == 3 and found.damage.receipted == 4
    assert repair_channel(home, "ea.core", replica=tmp_path / "copy", accept_loss=True).closed


@pytest.mark.parametrize("name", ["known.json", "keys.json", "repairs.json"])
def test_deeply_nested_file_is_damage_and_no_crash(home, name):
    (home / "ledger" / "ea.core" / name).write_bytes(b"[" * 100_000)
    with pytest.raises(Damaged):
        opened(home)
    report = verify_stored(home, "ea.core")
    assert report.first_failure is not None


def test_a_reader_sees_what_is_whole_and_a_report_names_the_damage(home):
    (path,) = (home / "ledger/ea.core/segments").iterdir()
    raw = path.read_bytes()
    path.write_bytes(raw[:-100])
    seen = []
    with open_channel(home, "ea.core") as channel, pytest.raises(Damaged):
        seen += [b.height for b in channel.blocks(0, 1)]
        seen += [b.height for b in channel.blocks(2)]
    assert seen == [0, 1]
    failure = verify_blocks(home, "ea.core", deep=True).first_failure
    assert failure is not None and (failure.name, failure.fields["height"]) == ("storage", 2)


def test_genesis_stands_on_zeros():
    assert BLOCKS[0].header.prev_block_hash == GENESIS == bytes(32)
    other = seal(
        NODE,
        channel="ea.core",
        height=0,
        prev_block_hash=b"\1" * 32,
        envelopes=BLOCKS[0].envelopes,
        timestamp_ns=NOON_NS,
    )
    with pytest.raises(BrokenLink):
        check_link(None, other.header)
    assert check_channel([(0, other.lines())], trust=Trust((NODE.public,), ())).fault is not None
