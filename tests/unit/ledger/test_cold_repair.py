"""A channel with cold segments: its tiers are shown, it is written to, and it is repaired."""

from __future__ import annotations

import shutil

import pytest
from tests.unit.ledger.archiving import CHANNEL, TRUST
from tests.unit.ledger.making import NOON_NS, observed, opened
from tests.unit.ledger.test_retain import BLOCKS, everything, home, retain, segment_names

from ropewalk.errors import Damaged, Unavailable
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.damage import find_damage
from ropewalk.ledger.channel.maintenance import verify_stored
from ropewalk.ledger.channel.repair import repair_channel
from ropewalk.ledger.channel.segments.reader import Segments

__all__ = ["home"]  # the fixture


@pytest.fixture
def cold(home, tmp_path):
    """The channel, with most blocks in the cold tier, and a full copy of it from before."""
    shutil.copytree(home, tmp_path / "copy")
    retain(home, tmp_path / "cold")
    return home


def segments(cold):
    return cold / "ledger" / CHANNEL / "segments"


def write_more(cold):
    with opened(cold, segment_bytes=4000, now_ns=lambda: NOON_NS + 200) as ledger:
        ledger.log.submit(observed(77).raw)


def blocks_in(tiers):
    return {name: row["blocks"] for name, row in tiers.items()}


def damage_hot(cold):
    """The oldest hot segment that the archives still have."""
    path = next(path for path in sorted(segments(cold).iterdir()) if path.name.endswith(".seg"))
    raw = bytearray(path.read_bytes())
    raw[200] ^= 1
    path.write_bytes(raw)


def damage_cold_file(cold):
    (segments(cold) / segment_names(cold)[1]).write_bytes(b"{}")


def remove_cold_file(cold):
    (segments(cold) / segment_names(cold)[1]).unlink()


def remove_first_cold_file(cold):
    (segments(cold) / segment_names(cold)[0]).unlink()


def test_tiers_name_blocks_and_locations(cold, tmp_path):
    with open_channel(cold, CHANNEL) as reading:
        tiers, height = reading.segments.tiers(reading.head().height), reading.head().height
    assert sum(blocks_in(tiers).values()) == height and tiers["cold"]["blocks"] > 20
    assert tiers["cold"]["locations"] == [str(tmp_path / "cold")]
    on_disk = sum(path.stat().st_size for path in segments(cold).iterdir())
    assert sum(row["bytes"] for row in tiers.values()) == on_disk
    assert Segments(tmp_path / "none").tiers(0) == {}


def test_unreachable_cold_tier_is_named(cold, tmp_path):
    (tmp_path / "cold").rename(tmp_path / "away")
    words = f"blocks 0–.* are in the cold tier, {tmp_path / 'cold'}, which cannot be read: no archive holds block 0"
    for read in (lambda: everything(cold), lambda: verify_stored(cold, CHANNEL)):
        with pytest.raises(Unavailable, match=words):
            read()
    write_more(cold)  # appends need the hot tier only
    (tmp_path / "away").rename(tmp_path / "cold")
    assert verify_stored(cold, CHANNEL, trust=TRUST, deep=True).ok


@pytest.mark.parametrize("accept_loss", [False, True])
def test_unreachable_blocks_are_never_given_up(cold, tmp_path, accept_loss):
    (tmp_path / "cold").rename(tmp_path / "away")
    before = segment_names(cold)
    with pytest.raises(Unavailable, match="are in the cold tier"):
        repair_channel(cold, CHANNEL, accept_loss=accept_loss)
    assert segment_names(cold) == before and not (segments(cold).parent / "damaged").exists()
    assert find_damage(cold, CHANNEL).problems
    done = repair_channel(cold, CHANNEL, replica=tmp_path / "copy", accept_loss=accept_loss)
    assert done.done and not done.lost and not done.closed
    assert verify_stored(cold, CHANNEL, trust=TRUST, deep=True).ok


@pytest.mark.parametrize(
    "damage",
    [
        damage_hot,
        remove_first_cold_file,
        pytest.param(damage_cold_file, marks=pytest.mark.slow),
        pytest.param(remove_cold_file, marks=pytest.mark.slow),
    ],
)
def test_damage_is_repaired_from_the_cold_tier(cold, damage):
    """Damage, repair, write, verify: without a source the archives of the cold tier are used."""
    before = everything(cold)
    damage(cold)
    with pytest.raises(Damaged) as caught:
        everything(cold)
    assert "ledger repair" in str(caught.value.advice_now)
    done = repair_channel(cold, CHANNEL)
    assert done.done and not done.lost and not done.closed and done.blocks == BLOCKS + 1
    assert everything(cold) == before
    write_more(cold)
    report = verify_stored(cold, CHANNEL, trust=TRUST, deep=True)
    assert report.ok, [step for step in report.steps if step.status == "failed"]
    if damage in (damage_hot, damage_cold_file):  # what lies below stays cold
        assert segment_names(cold)[0].endswith(".seg.cold")


def test_rotten_cache_is_dropped_by_repair(cold):
    before = everything(cold)
    log = Segments(cold / "ledger" / CHANNEL)
    log.find(0)
    path = log.folder / "cache" / log.path(0).name
    raw = bytearray(path.read_bytes())
    raw[300] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Damaged):
        everything(cold)
    assert repair_channel(cold, CHANNEL).damage.problems == ()
    assert everything(cold) == before


@pytest.mark.slow
def test_lost_archive_is_replaced_by_a_replica(cold, tmp_path):
    """One archive of the cold tier is gone; what others hold is kept."""
    before = everything(cold)
    shutil.rmtree(cold / "ledger" / CHANNEL / "cache")
    shutil.rmtree(sorted((tmp_path / "cold" / CHANNEL).iterdir())[0])
    with pytest.raises(Unavailable):
        repair_channel(cold, CHANNEL)
    assert repair_channel(cold, CHANNEL, replica=tmp_path / "copy").done
    assert everything(cold) == before
