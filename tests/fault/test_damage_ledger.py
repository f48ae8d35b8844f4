"""Damage a channel, then write to it, then verify it: no receipted entry disappears or is replaced without an error.

Every file of a channel is damaged in every way that disks and people know. A new process then appends; it refuses, or
what it adds is verified together with all that was receipted before. What can be repaired is; what is lost is shown.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.conftest import Answer, living_in, move_in
from tests.unit.ledger.making import observed

from ropewalk.ledger.channel.segments.format import ALIGN, record_head
from ropewalk.ledger.channel.segments.reader import Segments

BLOCKS = 4
AUDIT = "log.git/ropewalk/ledger/audit"
Spoil = Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class Site:
    """A repository with a channel of four receipted blocks, a replica, an archive, and the command to run there."""

    path: Path
    receipts: list[dict[str, Any]]

    @property
    def folder(self) -> Path:
        return self.path / AUDIT

    @property
    def segment(self) -> Path:
        (found,) = (self.folder / "segments").glob("*.seg")
        return found

    def run(self, *arguments: str) -> Answer:
        return living_in(self.path)(*arguments, env={"ROPEWALK_REPO": str(self.path / "log.git")})

    def append(self, number: int, channel: str = "audit") -> Answer:
        name = self.path / f"{number}.json"
        name.write_bytes(observed(number).raw)
        return self.run("ledger", "append", "--channel", channel, "--file", str(name), "--json")

    def verify(self, channel: str = "audit") -> Answer:
        return self.run("ledger", "verify", "--channel", channel, "--deep", "--json")

    def stored(self) -> dict[tuple[int, int], tuple[str, str]]:
        """Every envelope by its place, with the hash of its block."""
        answer = self.run("ledger", "read", "--channel", "audit", "--json")
        return {
            (block["height"], index): (block["block_hash"], json.dumps(envelope, sort_keys=True))
            for block in answer.json["blocks"]
            for index, envelope in enumerate(block["envelopes"])
        }

    def still_has(self, receipts: list[dict[str, Any]]) -> bool:
        found = self.stored()
        return all(found[each["height"], each["index"]][0] == each["block_hash"] for each in receipts)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("made")
    site = Site(folder, [])
    assert site.run("init", "log.git").code == 0
    for number in range(BLOCKS):
        site.receipts.append(site.append(number).json)
    assert site.verify().code == 0
    shutil.copytree(folder / "log.git", folder / "copy.git")
    assert site.run("ledger", "archive", "--channel", "audit", "--to", "cold").code == 0
    (site.folder / "known.json").unlink()  # else it would vouch beside what each test leaves
    shutil.copytree(site.folder / "index", folder / "index-now")
    return site


@pytest.fixture
def site(made: Site, tmp_path: Path) -> Site:
    move_in(made.path, tmp_path)
    return Site(tmp_path, made.receipts)


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x10
    path.write_bytes(raw)


def last_record(site: Site) -> int:
    return site.segment.read_bytes().rindex(b"RWB1")


SEGMENT: dict[str, Callable[[Site], object]] = {
    "one byte cut": lambda s: s.segment.write_bytes(s.segment.read_bytes()[:-1]),
    "cut between blocks": lambda s: s.segment.write_bytes(s.segment.read_bytes()[: last_record(s)]),
    "tail of zeros": lambda s: s.segment.write_bytes(s.segment.read_bytes()[:-200] + bytes(200)),
    "last block zeros": lambda s: s.segment.write_bytes(
        s.segment.read_bytes()[: last_record(s)] + bytes(len(s.segment.read_bytes()) - last_record(s))
    ),
    "empty": lambda s: s.segment.write_bytes(b""),
    "deleted": lambda s: s.segment.unlink(),
    "folder deleted": lambda s: shutil.rmtree(s.folder / "segments"),
    "flip in last block": lambda s: flip(s.segment, last_record(s) + 200),
    "flip in last header": lambda s: flip(s.segment, last_record(s) + 20),
}


def no_index_nor_mark(site: Site) -> None:
    shutil.rmtree(site.folder / "index")
    (site.folder / "receipted").unlink()


BESIDE: dict[str, Callable[[Site], object]] = {
    "": lambda _: None,
    "index deleted": lambda s: shutil.rmtree(s.folder / "index"),
    "index read": lambda s: s.run("ledger", "head", "--channel", "audit"),
    "mark deleted": lambda s: (s.folder / "receipted").unlink(),
    "mark flipped": lambda s: flip(s.folder / "receipted", 15),
    "index and mark deleted": no_index_nor_mark,
}
CASES = [(damage, "") for damage in SEGMENT] + [
    (damage, beside)
    for damage in ("one byte cut", "cut between blocks", "deleted")
    for beside in BESIDE
    if beside
]


@pytest.mark.parametrize(("damage", "beside"), CASES)
def test_append_refuses_damaged_segment(site: Site, damage: str, beside: str) -> None:
    """Finding T1: the writer sealed a used height again, and verify was green."""
    if damage == "cut between blocks" and beside == "index and mark deleted":
        site.run(
            "ledger", "head", "--channel", "audit", "--note", "--host", "example.org"
        )  # a head was signed
    SEGMENT[damage](site)
    BESIDE[beside](site)
    before = {path: path.read_bytes() for path in (site.folder / "segments").glob("*")}
    for _ in range(2):
        answer = site.append(9)
        assert answer.code == 5, answer
        assert "ledger repair --channel audit" in answer.json["advice"]
    assert {path: path.read_bytes() for path in (site.folder / "segments").glob("*")} == before
    report = site.verify()
    (receipts,) = [step for step in report.json["steps"] if step["name"] == "receipts"]
    assert receipts["status"] == "failed" and report.code == 5
    site.run("ledger", "reindex", "--channel", "audit")  # the index it makes vouches for nothing
    assert site.append(9).code == 5
    shown = site.run("ledger", "repair", "--channel", "audit", "--json")
    assert shown.code == 5 and not shown.json["done"], shown
    if beside in ("", "index read", "index deleted"):
        assert shown.json["lost"][-1]["block_hash"] == site.receipts[-1]["block_hash"]
    if beside in ("", "index read"):
        assert shown.json["lost"][-1]["envelopes"] == [site.receipts[-1]["envelope_id"]]
    repaired = site.run("ledger", "repair", "--channel", "audit", "--from-replica", "copy.git", "--json")
    if beside in ("mark deleted", "mark flipped", "index and mark deleted") and repaired.code:
        repaired = site.run(  # nothing says that there was no fifth block: a person must
            "ledger", "repair", "--channel", "audit", "--from-replica", "copy.git", "--accept-loss", "--json"
        )
    assert repaired.code == 0 and repaired.json["blocks"] == BLOCKS and not repaired.json["closed"], repaired
    assert site.append(9).json["height"] == BLOCKS
    assert site.verify().code == 0
    assert site.still_has(site.receipts)


def test_append_after_flip_in_old_block(site: Site) -> None:
    """Old blocks are not read again to append; verify stays red until a repair, and nothing is replaced."""
    second = site.segment.read_bytes().index(b"RWB1", 200)
    flip(site.segment, second + 300)
    assert site.verify().code == 5
    added = site.append(9)
    assert added.code == 0 and added.json["height"] == BLOCKS
    assert site.verify().code == 5
    assert site.run("ledger", "repair", "--channel", "audit").code == 5
    repaired = site.run("ledger", "repair", "--channel", "audit", "--from-archive", "cold", "--json")
    assert repaired.code == 0 and repaired.json["blocks"] == BLOCKS + 1, repaired
    assert site.verify().code == 0
    assert site.still_has([*site.receipts, added.json])


def flip_everywhere(folder: Path) -> None:
    for path in folder.iterdir():
        for at in range(0, path.stat().st_size, 997):
            flip(path, at)


def put_older_index(site: Site) -> None:
    site.append(8)
    shutil.rmtree(site.folder / "index")
    shutil.copytree(site.path / "index-now", site.folder / "index")


INDEX: dict[str, Callable[[Site], object]] = {
    "deleted": lambda s: shutil.rmtree(s.folder / "index"),
    "emptied": lambda s: [path.write_bytes(b"") for path in (s.folder / "index").iterdir()],
    "flipped": lambda s: flip_everywhere(s.folder / "index"),
    "older": put_older_index,
}


@pytest.mark.parametrize("damage", INDEX)
def test_append_survives_damaged_index(site: Site, damage: str) -> None:
    INDEX[damage](site)
    again = site.append(1)
    assert again.code == 0 and again.json["replayed"], again  # not sealed twice
    added = site.append(9)
    assert added.code == 0 and added.json["height"] == BLOCKS + (damage == "older")
    assert site.verify().code == 0
    assert site.still_has([*site.receipts, added.json])


MARK: dict[str, Callable[[Path], object]] = {
    "deleted": lambda mark: mark.unlink(),
    "emptied": lambda mark: mark.write_bytes(b""),
    "flipped": lambda mark: flip(mark, 15),
}


@pytest.mark.parametrize("damage", MARK)
def test_lost_mark_needs_a_person(site: Site, damage: str) -> None:
    """Nothing else here says how many blocks were receipted: an index may have been built again since."""
    MARK[damage](site.folder / "receipted")
    for _ in range(2):
        assert site.append(9).code == 5
        assert site.verify().code == 5
        assert site.run("ledger", "reindex", "--channel", "audit").code == 0
    shown = site.run("ledger", "repair", "--channel", "audit", "--json")
    assert shown.code == 5 and not shown.json["receipted_known"] and not shown.json["lost"]
    answer = site.run("ledger", "repair", "--channel", "audit", "--accept-loss", "--json")
    assert answer.code == 0 and not answer.json["closed"]
    assert site.append(9).json["height"] == BLOCKS
    assert site.verify().code == 0 and site.still_has(site.receipts)


@pytest.mark.parametrize("by", ["archive", "note", "tiles"])
def test_published_head_outlives_mark_and_index(site: Site, by: str) -> None:
    """Also where log, mark and index are older copies, a height that was archived or signed is never sealed again."""
    kept = {path: path.read_bytes() for path in (site.segment, site.folder / "receipted")}
    assert site.append(8).json["height"] == BLOCKS
    published = {
        "archive": ("ledger", "archive", "--channel", "audit", "--to", "cold"),
        "note": ("ledger", "head", "--channel", "audit", "--note", "--host", "example.org"),
        "tiles": ("ledger", "tiles", "--channel", "audit", "--host", "example.org", "-o", "tiles"),
    }[by]
    assert site.run(*published).code == 0
    for path, raw in kept.items():
        path.write_bytes(raw)
    shutil.rmtree(site.folder / "index")
    for _ in range(2):
        assert site.append(9).code == 5
        assert site.verify().code == 5
    shown = site.run("ledger", "repair", "--channel", "audit", "--json").json
    assert (shown["whole_blocks"], shown["receipted_blocks"]) == (BLOCKS, BLOCKS + 1)


def test_repair_from_archive_then_append(site: Site) -> None:
    SEGMENT["deleted"](site)
    answer = site.run("ledger", "repair", "--channel", "audit", "--from-archive", "cold", "--json")
    assert answer.code == 0 and answer.json["blocks"] == BLOCKS, answer
    assert site.append(9).json["height"] == BLOCKS
    assert site.verify().code == 0 and site.still_has(site.receipts)


def test_accepted_loss_closes_the_channel(site: Site) -> None:
    """The heights that were lost are never sealed again, and verify is never green again, until they are back."""
    whole = site.segment.read_bytes()
    SEGMENT["one byte cut"](site)
    answer = site.run("ledger", "repair", "--channel", "audit", "--accept-loss", "--json")
    assert answer.code == 0 and answer.json["closed"], answer
    assert [each["envelopes"] for each in answer.json["lost"]] == [[site.receipts[-1]["envelope_id"]]]
    (kept,) = (site.folder / "damaged").iterdir()
    assert (kept / "segments" / site.segment.name).read_bytes() == whole[:-1]
    assert site.run("ledger", "head", "--channel", "audit", "--json").json["height"] == BLOCKS - 2
    refused = site.append(9)
    assert refused.code == 5 and "audit is closed" in refused.json["detail"]
    assert site.verify().code == 5
    for name in ("repairs.json", "known.json"):  # without them the mark still says that a block is missing
        (site.folder / name).unlink(missing_ok=True)
    assert site.append(9).code == 5
    assert site.verify().code == 5
    answer = site.run("ledger", "repair", "--channel", "audit", "--from-replica", "copy.git", "--json")
    assert answer.code == 0 and not answer.json["closed"], answer
    assert site.append(9).json["height"] == BLOCKS
    assert site.verify().code == 0 and site.still_has(site.receipts)


def test_repair_refuses_source_with_other_history(site: Site) -> None:
    """A replica that was forked is no repair: the receipts name another block."""
    copy = Site(site.path, site.receipts)
    (site.path / "copy.git/ropewalk/ledger/audit/receipted").unlink()
    shutil.rmtree(site.path / "copy.git/ropewalk/ledger/audit/index")
    segment = next((site.path / "copy.git/ropewalk/ledger/audit/segments").glob("*.seg"))
    segment.write_bytes(segment.read_bytes()[: last_record(copy)])
    (site.path / "copy.git/ropewalk/ledger/audit/lock").unlink()
    forked = living_in(site.path)
    (site.path / "f.json").write_bytes(observed(77).raw)
    env = {"ROPEWALK_REPO": str(site.path / "copy.git")}
    assert forked("ledger", "repair", "--channel", "audit", "--accept-loss", env=env).code == 0
    assert forked("ledger", "append", "--channel", "audit", "--file", "f.json", env=env).code == 0
    SEGMENT["one byte cut"](site)
    shutil.rmtree(site.folder / "index")  # only the mark says which block it was
    answer = site.run("ledger", "repair", "--channel", "audit", "--from-replica", "copy.git", "--json")
    assert answer.code == 5 and answer.json["code"] == "Forked", answer
    assert site.append(9).code == 5


def test_repair_refuses_unverified_replica(site: Site) -> None:
    """A replica whose checksums fit is verified all the same: its seals must hold."""
    copied = Segments(site.path / "copy.git/ropewalk/ledger/audit")
    record = copied.find(1)
    body = site.segment.read_bytes()[record.place.offset + ALIGN : record.place.end]
    bent = body.replace(b'"n":1', b'"n":7')
    path = copied.path(0)
    raw = path.read_bytes()
    path.write_bytes(raw[: record.place.offset] + record_head(1, bent) + bent + raw[record.place.end :])
    flip(site.segment, record.place.offset + 300)
    answer = site.run("ledger", "repair", "--channel", "audit", "--from-replica", "copy.git", "--json")
    assert answer.code == 5 and "block 1" in answer.json["detail"], answer
    assert not (site.folder / "damaged").exists() and not (site.folder / "repairing").exists()


@pytest.mark.parametrize("name", ["archive.manifest.json", "archive.manifest.sig", "blocks.seg.zst"])
def test_repair_refuses_damaged_archive(site: Site, name: str) -> None:
    (path,) = (site.path / "cold").rglob(name)
    flip(path, 40)
    SEGMENT["deleted"](site)
    answer = site.run("ledger", "repair", "--channel", "audit", "--from-archive", "cold", "--json")
    assert answer.json["detail"], answer  # what is wrong with the archive, not only what is lost
    assert answer.code in (5, 8) and not (site.folder / "repairing").exists(), answer
    assert site.append(9).code == 5


@pytest.mark.parametrize("name", ["archive.manifest.json", "archive.manifest.sig", "blocks.seg.zst"])
def test_damaged_archive_leaves_channel_alone(site: Site, name: str) -> None:
    (path,) = (site.path / "cold").rglob(name)
    flip(path, 40)
    assert site.run("verify", "cold").code in (5, 8)
    assert site.run(
        "ledger", "restore", "--from", "cold", "--channel", "audit", "--to-repo", "b.git"
    ).code in (5, 8)
    assert site.append(9).json["height"] == BLOCKS
    assert site.verify().code == 0 and site.still_has(site.receipts)


SETTINGS: dict[str, tuple[Callable[[Site], object], tuple[int, ...]]] = {
    "channel.json missing": (lambda s: (s.folder / "channel.json").unlink(), (5,)),
    "channel.json empty": (lambda s: (s.folder / "channel.json").write_bytes(b""), (5,)),
    "channel.json of another key": (
        lambda s: (s.folder / "channel.json").write_bytes(
            (s.folder / "channel.json").read_bytes().replace(b'"policy_hash":null', b'"policy_hash":"00"')
        ),
        (5,),
    ),
    "evidence.json rubbish": (lambda s: (s.folder / "evidence.json").write_bytes(b"{"), (5, 8)),
    "lifecycle.json rubbish": (lambda s: (s.folder.parent / "lifecycle.json").write_bytes(b"{"), (5, 8)),
    "keys.json rubbish": (lambda s: (s.folder / "keys.json").write_bytes(b"{"), (5,)),
    "known.json rubbish": (lambda s: (s.folder / "known.json").write_bytes(b"{"), (5,)),
    "repairs.json rubbish": (lambda s: (s.folder / "repairs.json").write_bytes(b"{"), (5,)),
    "key file missing": (lambda s: (s.path / "log.git/ropewalk/keys/node.json").unlink(), (3, 4)),
    "key file rubbish": (lambda s: (s.path / "log.git/ropewalk/keys/node.json").write_bytes(b"{"), (5, 8)),
}


@pytest.mark.parametrize("damage", SETTINGS)
def test_append_refuses_damaged_settings(site: Site, damage: str) -> None:
    spoil, codes = SETTINGS[damage]
    before = site.segment.read_bytes()
    spoil(site)
    answer = site.append(9)
    assert answer.code in codes, answer
    assert site.segment.read_bytes() == before
    assert answer.json["advice"]


def test_append_refuses_lost_key_statements(site: Site) -> None:
    """Without keys.json a key that has given way sealed again, and no verifier accepted the block."""
    assert site.run("key", "new", "second").code == 0
    turned = site.run("ledger", "key", "rotate", "--channel", "audit", "--to", "second", "--json")
    assert turned.code == 0, turned
    for spoil in (
        lambda: (site.folder / "keys.json").unlink(),
        lambda: (site.folder / "keys.json").write_bytes(b'{"version":1,"heights":[1]}'),
    ):
        spoil()
        answer = site.append(9)
        assert answer.code == 5 and "ledger reindex" in answer.json["advice"], answer
        assert site.run("ledger", "reindex", "--channel", "audit").code == 0
    assert site.append(9).json["height"] == BLOCKS + 1
    assert site.verify().code == 0 and site.still_has(site.receipts)


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_append_refuses_damaged_policy(site: Site, damage: str) -> None:
    policy = site.run("ledger", "policy", "show")
    (site.path / "strict.json").write_bytes(policy.out)
    made = site.run("ledger", "create", "--channel", "ruled", "--policy", "strict.json")
    assert made.code == 0, made
    path = site.folder.parent / "ruled/policy.json"
    path.unlink() if damage == "missing" else path.write_bytes(path.read_bytes().replace(b"deny", b"audit"))
    assert site.append(9, "ruled").code == 5
    assert site.verify("ruled").code == 5
