"""Archives in a folder that somebody else can write into: nothing outside it is touched, and nobody is held up."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.unit.ledger.archiving import CHANNEL, TRUST, archived, failures, filled, folders, forged, writable
from tests.unit.ledger.making import NODE, observed, opened
from tests.unit.ledger.rotating import NEXT, Chain, rotation

from ropewalk.errors import RangeExceeded
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import blake3
from ropewalk.ledger.archive.check import verify_archives
from ropewalk.ledger.archive.files import PARTIAL
from ropewalk.ledger.archive.manifest import BLOCKS, KEY_PROOFS, MANIFEST, SIGNATURE, sign_manifest
from ropewalk.ledger.archive.restore import restore_channel
from ropewalk.ledger.keys.history import KeyProof


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A channel of four blocks, archived in two ranges; nobody writes into it."""
    folder = tmp_path_factory.mktemp("kept")
    home = filled(folder / "home", 4)
    for before in (2, 4):
        archived(home, folder / "cold", before=before)
    return folder


def test_a_link_in_place_of_an_archive_on_its_way_costs_nobody_a_file(tmp_path):
    home, cold, theirs = filled(tmp_path / "home", 2), tmp_path / "cold", tmp_path / "theirs"
    archived(home, cold, before=1)
    theirs.mkdir()
    (theirs / "precious").write_text("kept")
    (cold / CHANNEL / PARTIAL).symlink_to(theirs)
    assert archived(home, cold).blocks == 2
    assert [path.name for path in theirs.iterdir()] == ["precious"]
    assert failures(cold) == {}


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo])
def test_what_lies_in_the_way_of_an_archive_is_taken_away(tmp_path, make):
    home, cold = filled(tmp_path / "home", 2), tmp_path / "cold"
    archived(home, cold, before=1)
    make(cold / CHANNEL / PARTIAL)
    assert archived(home, cold).blocks == 2


def test_a_file_with_a_hole_of_a_terabyte_is_refused_unread(kept, tmp_path):
    cold = writable(kept / "cold", tmp_path / "cold")
    os.truncate(folders(cold)[0] / BLOCKS, 1 << 40)
    assert f"{BLOCKS} is larger" in failures(cold)["files"]["detail"]


def test_blocks_that_pack_very_well_come_back(tmp_path):
    """A range of 64 MiB that packs to a two-thousandth is no bomb: it is what somebody wrote."""
    letters = "a" * 900_000
    with opened(tmp_path / "home") as ledger:
        for number in range(76):
            ledger.log.submit(observed(payload={"n": number, "text": letters}).raw)
    (made, *_) = archived(tmp_path / "home", tmp_path / "cold").made
    assert made.size > 64 << 20 and made.size > 1000 * made.packed
    assert failures(tmp_path / "cold") == {}
    assert restore_channel(tmp_path / "cold", CHANNEL, tmp_path / "new", trust=TRUST).blocks == 76


def test_archives_of_other_channel_are_not_taken(kept, tmp_path):
    cold = writable(kept / "cold", tmp_path / "cold")
    (cold / CHANNEL).rename(cold / "payroll")
    assert f'belongs to channel "{CHANNEL}", expected "payroll"' in failures(cold)["manifests"]["detail"]
    steps = {step.name: step for step in verify_archives(cold / "payroll", trust=TRUST).steps}
    assert steps["manifests"].status == "passed"  # a folder may be copied under any name
    assert f"channel {CHANNEL}, blocks 0 to 3" in steps["manifests"].detail


def test_statements_of_another_channel_name_no_signer(kept, tmp_path):
    """A key that followed in another channel of the same signer must not sign archives of this one."""
    cold = writable(kept / "cold", tmp_path / "cold")
    chain = Chain("ea.other")
    said = KeyProof.of(chain.add(NODE, rotation(channel="ea.other")))
    assert said is not None
    raw = jcs.encode([said.to_json()])
    one = folders(cold)[0]
    (one / KEY_PROOFS).write_bytes(raw)
    manifest = json.loads((one / MANIFEST).read_bytes())
    listed = [*manifest["files"], {"name": KEY_PROOFS, "blake3": blake3(raw).hex(), "bytes": len(raw)}]
    forged(one, files=listed, signer=NEXT.public.to_json())
    (one / SIGNATURE).write_bytes(sign_manifest((one / MANIFEST).read_bytes(), NEXT))
    found = failures(cold)
    assert "not trusted to seal this channel" in found["signatures"]["detail"]
    assert "a statement of another channel" in found["files"]["detail"]


def test_archives_that_lost_their_end_say_how_far_they_reach(kept, tmp_path):
    cold = writable(kept / "cold", tmp_path / "cold")
    shutil.rmtree(folders(cold)[1])
    (step,) = (each for each in verify_archives(cold, trust=TRUST).steps if each.name == "manifests")
    assert step.detail == f"1 archives of channel {CHANNEL}, blocks 0 to 1"
    assert restore_channel(cold, CHANNEL, tmp_path / "new", trust=TRUST).blocks == 2


@pytest.mark.parametrize("days", [float("inf"), float("nan"), 1e300, -1.0])
def test_days_that_nobody_can_count_are_refused(kept, tmp_path, days):
    with pytest.raises(RangeExceeded):
        archived(kept / "home", tmp_path / "cold", keep_days=days)
    assert not (tmp_path / "cold").exists()
