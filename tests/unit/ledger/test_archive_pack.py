"""The warm tier: closed segments are packed in their place, and nobody who reads them can tell."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from blake3 import blake3
from tests.unit.ledger.archiving import CHANNEL, TRUST, archived, contents, failures
from tests.unit.ledger.making import NODE, NOON_NS, observed, opened

from ropewalk.errors import Damaged, RangeExceeded, Unverified
from ropewalk.kernel import merkle
from ropewalk.ledger.archive.pack import pack_channel
from ropewalk.ledger.archive.restore import restore_channel
from ropewalk.ledger.bundle.files import export_bundle
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.maintenance import rebuild_index, verify_stored
from ropewalk.ledger.channel.segments import packed as segmentpack
from ropewalk.ledger.channel.segments.packed import PackedSegment
from ropewalk.ledger.channel.segments.reader import Segments
from ropewalk.ledger.replay.channel_replay import replay_channel
from ropewalk.ledger.replay.reducers import find_reducer

DAY_NS = 86_400 * 10**9
BLOCKS = 12


def fill(home: Path, start: int = 0, count: int = BLOCKS) -> None:
    """Blocks half a day apart, in segments of a few."""
    for number in range(start, start + count):
        now = NOON_NS + number * DAY_NS // 2
        with opened(home, now_ns=lambda now=now: now, segment_bytes=4000) as ledger:
            ledger.log.submit(observed(number).raw)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    home = tmp_path_factory.mktemp("made")
    fill(home)
    return home


@pytest.fixture
def home(made, tmp_path):
    return shutil.copytree(made, tmp_path / "home")


@pytest.fixture
def small_frames(monkeypatch):
    """Frames of one record, so that a segment has several."""
    monkeypatch.setattr(segmentpack, "FRAME_BYTES", 100)


def names(home):
    return sorted(path.name for path in (home / "ledger" / CHANNEL / "segments").iterdir())


def answers(home, folder):
    """What every reader says of the channel."""
    folder.mkdir()
    with open_channel(home, CHANNEL) as channel:
        export_bundle(channel, NODE, 0, BLOCKS - 1, folder / "x.tar.zst")
        found = {
            "lines": list(channel.lines()),
            "later": list(channel.lines(5)),
            "some": list(channel.lines(3, 7)),
            "places": list(channel.segments.places()),
            "places later": list(channel.segments.places(5)),
            "places from": list(channel.segments.places(5, channel.index.block(5).place)),
            "read": [channel.segments.read(place, height) for height, place in channel.segments.places()],
            "found": [channel.segments.find(height) for height in range(BLOCKS)],
            "proofs": [channel.prove(observed(number).id) for number in range(BLOCKS)],
            "range": channel.prove_range(2, 9),
            "head": (channel.head(), channel.header_head()),
        }
    archived(home, folder / "cold")
    return {
        **found,
        "bundle": (folder / "x.tar.zst").read_bytes(),
        "archives": contents(folder / "cold"),
        "verify": verify_stored(home, CHANNEL, deep=True),
        "replay": replay_channel(home, CHANNEL, find_reducer("counts")),
    }


@pytest.mark.parametrize("anew", [False, True], ids=["old index", "new index"])
def test_every_reader_says_the_same_before_and_after(home, tmp_path, small_frames, anew):
    before = answers(home, tmp_path / "before")
    done = pack_channel(home, CHANNEL)
    assert done.made == done.segments > 2
    if anew:
        assert rebuild_index(home, CHANNEL) == BLOCKS
    after = answers(home, tmp_path / "after")
    assert after == before
    assert before["verify"].ok


def test_only_closed_segments_are_packed_and_their_old_form_goes(home):
    starts = Segments(home / "ledger" / CHANNEL).starts()
    pack_channel(home, CHANNEL)
    assert names(home) == [
        *(f"{start:020d}.seg.zst" for start in starts[:-1]),
        f"{starts[-1]:020d}.seg",
    ]
    assert Segments(home / "ledger" / CHANNEL).starts() == starts


def test_plain_tools_give_the_segment_back(made, home):
    pack_channel(home, CHANNEL)
    for name in names(home)[:-1]:
        packed = (home / "ledger" / CHANNEL / "segments" / name).read_bytes()
        raw = b"".join(zstandard.ZstdDecompressor().read_to_iter(packed, read_size=1 << 20))
        reader = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
        old = (made / "ledger" / CHANNEL / "segments" / name.removesuffix(".zst")).read_bytes()
        assert reader.read() == old
        assert old.startswith(raw)


def test_a_packed_segment_has_a_merkle_manifest(made, home):
    pack_channel(home, CHANNEL)
    segments = Segments(home / "ledger" / CHANNEL)
    with open_channel(made, CHANNEL) as channel:
        hashes = [channel.index.block_hash(height) for height in range(BLOCKS)]
    starts = segments.starts()
    for start, after in pairwise(starts):
        with closing(PackedSegment(segments.path(start).with_suffix(".seg.zst"), start)) as packed:
            value = packed.manifest()
        raw = (made / "ledger" / CHANNEL / "segments" / f"{start:020d}.seg").read_bytes()
        assert value == {
            "version": 1,
            "start_height": start,
            "end_height": after - 1,
            "block_hashes": [each.hex() for each in hashes[start:after]],
            "range_root": merkle.root(hashes[start:after], merkle.RANGE).hex(),
            "blake3": blake3(raw).hexdigest(),
            "bytes": len(raw),
        }


@pytest.mark.parametrize(
    ("options", "hot"), [({}, 12), ({"keep_blocks": 5}, 7), ({"keep_days": 2}, 8), ({"keep_blocks": 99}, 0)]
)
def test_the_last_blocks_or_days_stay_hot(home, options, hot):
    now = NOON_NS + 11 * DAY_NS // 2 + 1
    starts = Segments(home / "ledger" / CHANNEL).starts()
    done = pack_channel(home, CHANNEL, now_ns=lambda: now, **options)
    assert done.hot_from == hot
    assert done.made == sum(after <= hot for after in starts[1:])


def test_doing_it_again_packs_only_what_was_closed_since(home):
    first = pack_channel(home, CHANNEL)
    assert pack_channel(home, CHANNEL).made == 0
    fill(home, BLOCKS, 6)
    again = pack_channel(home, CHANNEL)
    assert again.made > 0
    assert again.segments == first.segments + again.made
    assert verify_stored(home, CHANNEL, deep=True).ok


def test_a_writer_goes_on_while_its_old_segments_are_packed(home):
    with opened(home, now_ns=lambda: NOON_NS + 99 * DAY_NS, segment_bytes=4000) as ledger:
        for number in range(20, 24):
            ledger.log.submit(observed(number).raw)
            pack_channel(home, CHANNEL)
        assert ledger.log.submit(observed(0).raw).replayed
        assert ledger.log.head.height == BLOCKS + 4
    assert verify_stored(home, CHANNEL, deep=True).ok


def test_who_reads_while_a_segment_is_packed_reads_on(home):
    with open_channel(home, CHANNEL) as channel:
        lines = channel.lines()
        first = next(lines)
        pack_channel(home, CHANNEL)
        assert [first, *lines] == list(channel.lines())


def test_a_segment_that_does_not_hold_is_not_packed(home):
    path = home / "ledger" / CHANNEL / "segments" / names(home)[1]
    raw = bytearray(path.read_bytes())
    raw[300] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Unverified):
        pack_channel(home, CHANNEL)
    assert path.read_bytes() == raw
    assert not path.with_suffix(".seg.zst").exists()


def test_every_flipped_byte_of_a_packed_segment_is_noticed_and_located(tmp_path, flip_step):
    with opened(tmp_path, segment_bytes=64) as ledger:  # a segment for every block
        for number in range(3):
            ledger.log.submit(observed(number).raw)
    pack_channel(tmp_path, CHANNEL)
    segments = Segments(tmp_path / "ledger" / CHANNEL)
    path = segments.path(1).with_suffix(".seg.zst")
    good, below = path.read_bytes(), segments.find(0).place
    for at in range(0, len(good), flip_step):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        path.write_bytes(bad)
        with pytest.raises(Damaged) as caught:
            list(segments.scan(below, 1))
        assert (caught.value.fields["height"], caught.value.fields["segment"]) == (1, 1), at
    for size in (0, 10, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:size])
        report = verify_stored(tmp_path, CHANNEL)
        assert report.first_failure is not None and report.first_failure.name == "storage"
        assert [height for height, _ in segments.places()] == [0]  # as far as there are places


def test_a_packed_channel_is_archived_restored_and_goes_on(home, tmp_path):
    pack_channel(home, CHANNEL)
    archived(home, tmp_path / "cold")
    assert failures(tmp_path / "cold") == {}
    restore_channel(tmp_path / "cold", CHANNEL, tmp_path / "back", trust=TRUST)
    fill(home, BLOCKS, 2)
    fill(tmp_path / "back", BLOCKS, 2)
    with open_channel(home, CHANNEL) as ours, open_channel(tmp_path / "back", CHANNEL) as theirs:
        assert list(ours.lines()) == list(theirs.lines())


def test_two_rules_are_one_too_many(home):
    with pytest.raises(RangeExceeded):
        pack_channel(home, CHANNEL, keep_blocks=1, keep_days=1)


def test_the_command_says_what_it_did(ropewalk, made):
    shutil.copytree(made / "ledger", Path("repo.git/ropewalk/ledger"))
    done = ropewalk("ledger", "pack", "--channel", CHANNEL, "--keep-blocks", "5", "--json")
    assert done.code == 0
    assert done.json["made"] == done.json["packed_segments"] > 0
    again = ropewalk("ledger", "pack", "--channel", CHANNEL, "--keep-blocks", "5")
    assert again.out == f"kept  {CHANNEL}  nothing new to pack: {done.json['made']} segments packed\n"
    rest = ropewalk("ledger", "pack", "--channel", CHANNEL)
    assert rest.out.startswith(f"ok  {CHANNEL}  ")
    assert ropewalk("ledger", "verify", "--channel", CHANNEL, "--deep").code == 0
    read = ropewalk("ledger", "read", "--channel", CHANNEL, "--json").out
    assert len(json.loads(read)["blocks"]) == BLOCKS
    assert (
        ropewalk("ledger", "pack", "--channel", CHANNEL, "--keep-blocks", "5", "--keep-days", "1").code == 2
    )


def test_the_pipeline_reads_the_same_rows(ropewalk, made):
    from ropewalk.pipeline import to_arrow

    shutil.copytree(made / "ledger", Path("repo.git/ropewalk/ledger"))
    before = to_arrow("repo.git").to_pylist()
    assert ropewalk("ledger", "pack", "--channel", CHANNEL, "--json").json["made"] > 2
    assert to_arrow("repo.git").to_pylist() == before
    assert len(before) == BLOCKS
