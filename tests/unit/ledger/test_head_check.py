"""A checkpoint that somebody published: every step of it, and what each of them refuses."""

from __future__ import annotations

import os
import shutil
from base64 import b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.ledger.heading import LOG, NOW_S, ORIGIN, WITNESS, SmallLog
from tests.unit.ledger.making import NODE

from ropewalk.errors import Damaged, InvalidNote, NotFound, RangeExceeded
from ropewalk.kernel import merkle
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.note.ml_dsa import MlDsaSigningKey
from ropewalk.kernel.note.note import SignatureType, SignedHead, Signer, Verifier, cosign_head, sign_head
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.transparency.head_check import HeadTrust, TreeSource, verify_head
from ropewalk.ledger.transparency.heads import tile_source, tile_tree
from ropewalk.ledger.transparency.tile_tree import TileTree, check_tiles
from ropewalk.ledger.transparency.tiles import Tile, hash_tile, tile_path

BY_KEY = HeadTrust(keys=(LOG.verifier,))
SECOND = Signer("other.example", SigningKey.generate("ed25519", b"v" * 32), SignatureType.COSIGNATURE)


def statuses(report):
    return {step.name: step.status for step in report.steps}


def detail(report, name):
    return next(step.detail for step in report.steps if step.name == name)


def look(raw, trust=BY_KEY, **options):
    return verify_head(raw, trust, **options)


def named(*witnesses, threshold=None, **options):
    keys = tuple(witness.verifier for witness in witnesses)
    return HeadTrust(keys=(LOG.verifier,), witnesses=keys, threshold=threshold, **options)


@pytest.mark.parametrize(
    "raw", [b"", b"no note", b"a\n1\n", b"a\n1\nx\n\n\xe2\x80\x94 a AAAAAAA=\n", b"\xff\n\n"]
)
def test_what_is_no_note_is_refused_as_input(raw):
    with pytest.raises(InvalidNote):
        look(raw)


def test_the_log_has_signed_or_not():
    log = SmallLog(4)
    assert statuses(look(log.head()))["log_signature"] == "passed"
    without = look(log.head(), HeadTrust())
    assert without.verdict == "untrusted" and not without.ok
    assert statuses(without)["log_signature"] == "not_checked"
    assert "no key of the log was given" in detail(without, "log_signature")


def test_a_signature_over_something_else_fails():
    raw = SmallLog(4).head()
    other = raw.replace(b"\n4\n", b"\n5\n")
    assert "does not hold" in detail(look(other), "log_signature")
    assert not look(other).ok


def test_another_origin_fails():
    log = SmallLog(4)
    foreign = Signer("log.example/other", LOG.key)
    raw = log.head(signer=foreign, origin="log.example/other")
    assert (
        detail(look(raw), "log_signature")
        == 'head of "log.example/other", where "log.example/ops" was expected'
    )
    assert not look(raw).ok


def test_an_origin_may_differ_from_the_name_of_the_key_if_it_is_said():
    raw = SmallLog(4).head(origin="a database tree")
    assert not look(raw).ok
    assert look(raw, HeadTrust(keys=(LOG.verifier,), origin="a database tree")).ok
    assert not look(SmallLog(4).head(), HeadTrust(keys=(LOG.verifier,), origin="a database tree")).ok


def test_an_unknown_key_fails_and_so_does_another_key_of_the_same_name():
    raw = SmallLog(4).head(signer=Signer(ORIGIN, NODE))
    assert "another key of that name" in detail(look(raw), "log_signature")
    stranger = SmallLog(4).head(signer=Signer("stranger", NODE))
    assert "not signed by the log" in detail(look(stranger), "log_signature")


def test_a_truncated_signature_fails():
    from ropewalk.kernel.multiformats import base64_encode

    head = SignedHead(ORIGIN, 4, SmallLog(4).tree.root())
    short = LOG.verifier.key_id + LOG.sign(head.to_text())[:40]
    raw = f"{head.to_text()}\n\N{EM DASH} {ORIGIN} {base64_encode(short)}\n".encode()
    assert "not of the kind" in detail(look(raw), "log_signature")


def test_a_trust_file_names_the_key_that_seals_blocks():
    assert isinstance(LOG.key, SigningKey)
    trust = HeadTrust.of(Trust((LOG.key.public,), ()))
    assert statuses(look(SmallLog(4).head(), trust))["log_signature"] == "passed"
    assert not look(SmallLog(4).head(), HeadTrust.of(Trust((NODE.public,), ()))).ok


def test_witnesses_are_counted_against_the_threshold():
    raw = cosign_head(SmallLog(4).head(), WITNESS, NOW_S)
    assert statuses(look(raw, named(WITNESS, SECOND)))["witnesses"] == "passed"
    assert statuses(look(raw, named(WITNESS, SECOND, threshold=1)))["witnesses"] == "passed"
    assert statuses(look(raw, named(WITNESS, SECOND, threshold=2)))["witnesses"] == "failed"
    both = cosign_head(raw, SECOND, NOW_S)
    assert statuses(look(both, named(WITNESS, SECOND, threshold=2)))["witnesses"] == "passed"
    assert "2023-11-14 22:13:20 UTC" in detail(look(both, named(WITNESS)), "witnesses")


def test_missing_witness_fails_only_with_threshold():
    raw = SmallLog(4).head()
    assert statuses(look(raw, named(WITNESS)))["witnesses"] == "not_checked"
    assert statuses(look(raw, named(WITNESS, threshold=1)))["witnesses"] == "failed"
    assert statuses(look(raw, named(threshold=1)))["witnesses"] == "failed"
    assert statuses(look(raw, named(threshold=0)))["witnesses"] == "not_checked"


def test_a_witness_counts_once_under_two_names_and_the_log_not_at_all():
    alias = Signer("alias.example", WITNESS.key, SignatureType.COSIGNATURE)
    itself = Signer("itself.example", LOG.key, SignatureType.COSIGNATURE)
    raw = SmallLog(4).head()
    for signer in (WITNESS, alias, itself):
        raw = cosign_head(raw, signer, NOW_S)
    report = look(raw, named(WITNESS, alias, itself, threshold=2))
    assert statuses(report)["witnesses"] == "failed"
    assert detail(report, "witnesses").startswith("1 of 1 named")


def test_two_keys_of_one_name_are_one_witness():
    newer = Signer(WITNESS.name, MlDsaSigningKey(b"w" * 32), SignatureType.ML_DSA_44)
    raw = cosign_head(cosign_head(SmallLog(4).head(), newer, NOW_S), WITNESS, NOW_S)
    report = look(raw, named(WITNESS, newer, threshold=2))
    assert statuses(report)["witnesses"] == "failed"
    assert detail(report, "witnesses").startswith("1 of 1 named")
    both = cosign_head(raw, SECOND, NOW_S)
    assert statuses(look(both, named(WITNESS, newer, SECOND, threshold=2)))["witnesses"] == "passed"
    assert "3 must have signed" in detail(look(both, named(WITNESS, newer, SECOND, threshold=3)), "witnesses")


def test_junk_of_a_witness_is_a_failed_step():
    newer = Signer("w.example", MlDsaSigningKey(b"w" * 32), SignatureType.ML_DSA_44)
    origin = "l" * 300
    log = Signer(origin, LOG.key)
    line = b"\xe2\x80\x94 w.example " + b64encode(newer.verifier.key_id + b"junk") + b"\n"
    trust = HeadTrust(keys=(log.verifier,), witnesses=(newer.verifier,), threshold=1)
    report = look(SmallLog(4).head(4, log, origin) + line, trust)
    assert statuses(report)["log_signature"] == "passed" and statuses(report)["witnesses"] == "failed"


def test_a_cosignature_over_another_head_fails():
    log = SmallLog(5)
    line = cosign_head(log.head(5), WITNESS, NOW_S).splitlines(keepends=True)[-1]
    assert statuses(look(log.head(4) + line, named(WITNESS)))["witnesses"] == "failed"


@pytest.mark.parametrize("size", [1, 5, 255, 256, 257, 600])
def test_published_tiles_lead_to_the_root(tmp_path, size):
    log = SmallLog(size)
    folder = log.publish(tmp_path / "public")
    report = look(log.head(), source=tile_source(folder, size))
    assert (report.ok, report.entries) == (True, 1)
    deep = look(log.head(), source=tile_source(folder, size, deep=True))
    assert (deep.ok, deep.entries) == (True, size)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 600), st.integers(0, 600))
def test_a_tree_of_tiles_gives_the_roots_and_proofs_of_the_tree(one, other):
    old, new = sorted((one, other))
    tree = WIDE.tree
    tiles = TileTree(new, lambda tile: hash_tile(tree, tile))
    assert tiles.root() == tree.root(new)
    assert tiles.root(old) == tree.root(old)
    assert tiles.consistency(old) == tree.consistency(old, new)
    if old < new:
        assert tiles.inclusion(old) == tree.inclusion(old, new)


WIDE = SmallLog(600)


def test_a_taller_tree_of_tiles_reads_few_of_them():
    size = 70_000
    tree = merkle.MerkleTree((number.to_bytes(32, "big") for number in range(size)), merkle.SHA256)
    asked: list[Tile] = []

    def read(tile: Tile) -> bytes:
        asked.append(tile)
        return hash_tile(tree, tile)

    tiles = TileTree(size, read)
    assert tiles.root() == tree.root()
    assert tiles.consistency(513) == tree.consistency(513)
    assert len(asked) == len(set(asked)) <= 8
    with pytest.raises(RangeExceeded):
        tiles.node(0, size + 256)


def test_a_log_that_dropped_its_partial_tiles_still_proves_older_heads(tmp_path):
    log = SmallLog(300)
    folder = log.publish(tmp_path / "public")
    assert not (folder / "tile/0/000.p").exists()
    assert tile_tree(folder, 200).root() == log.tree.root(200)
    assert tile_tree(folder, 290).root() == log.tree.root(290)


def put_a_pipe(file):
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    ("path", "act", "says"),
    [
        ("tile/0/001.p/44", lambda file: file.unlink(), "no file"),
        ("tile/0/001.p/44", lambda file: file.write_bytes(file.read_bytes()[:-1]), "44 hashes take 1408"),
        ("tile/0/001.p/44", lambda file: file.write_bytes(file.read_bytes() + b"x"), "44 hashes take 1408"),
        ("tile/0/001.p/44", lambda file: file.write_bytes(bytes(44 * 32)), "not to the root"),
        ("tile/0/001.p/44", put_a_pipe, "no file"),  # reading it would never end
        ("tile/0/001.p/44", lambda file: (file.unlink(), file.mkdir()), "no file"),
        ("tile/1/000.p/1", lambda file: file.write_bytes(bytes(32)), "not to the root"),
    ],
)
def test_a_tile_that_is_missing_or_damaged_fails_the_tree(tmp_path, path, act, says):
    log = SmallLog(300)
    folder = log.publish(tmp_path / "public")
    act(folder / path)
    report = look(log.head(), source=tile_source(folder, 300))
    assert statuses(report)["tree"] == "failed"
    assert says in detail(report, "tree")


@pytest.mark.parametrize(
    ("path", "act", "says"),
    [
        ("tile/0/000", lambda raw: bytes(32) + raw[32:], "tile/0/000 leads to"),
        ("tile/entries/000", lambda raw: raw[:-1], "cut off"),
        ("tile/entries/000", lambda raw: raw[:5] + b"9" + raw[6:], "entry 1 is not the one"),
        ("tile/entries/001.p/44", lambda raw: raw[5:], "43 entries, not 44"),
        ("tile/entries/001.p/44", lambda raw: raw + b"\0\1x", "45 entries, not 44"),
        ("tile/entries/000", lambda raw: raw + b"\0\1x", "257 entries, not 256"),
    ],
)
def test_only_a_deep_look_sees_damage_beside_the_edge_and_names_it(tmp_path, path, act, says):
    log = SmallLog(300)
    folder = log.publish(tmp_path / "public")
    (folder / path).write_bytes(act((folder / path).read_bytes()))
    assert look(log.head(), source=tile_source(folder, 300)).ok
    report = look(log.head(), source=tile_source(folder, 300, deep=True))
    assert statuses(report)["tree"] == "failed"
    assert says in detail(report, "tree")


def test_a_deep_look_at_an_older_head_finds_its_entries_in_wider_tiles(tmp_path):
    log = SmallLog(5)
    folder = SmallLog(9).publish(tmp_path / "public")
    (folder / "tile/0/000.p/\u0667").touch()  # seven in other digits: no name of a tile
    assert look(log.head(), source=tile_source(folder, 5, deep=True)).ok
    entries = folder / "tile/entries/000.p/9"
    entries.write_bytes(entries.read_bytes().replace(b"\0\0014", b"\0\001x"))
    report = look(log.head(), source=tile_source(folder, 5, deep=True))
    assert "entry 4 is not the one" in detail(report, "tree")


def test_a_log_that_claims_more_than_there_is_costs_no_time(tmp_path):
    size, asked = 2**62, []

    def read(tile):
        asked.append(tile)
        return bytes(tile.width * 32)

    root = TileTree(size, read).root()
    for tile in asked:  # all that the root is made of, and nothing else
        path = tmp_path / tile_path(tile)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(tile.width * 32))
    raw = sign_head(SignedHead(ORIGIN, size, root), LOG)
    assert look(raw, source=tile_source(tmp_path, size)).ok
    report = look(raw, source=tile_source(tmp_path, size, deep=True))
    assert "no file" in detail(report, "tree")


def test_damage_in_the_tiles_is_told_from_tiles_that_are_missing(tmp_path):
    log = SmallLog(300)
    folder = log.publish(tmp_path / "public")
    (folder / "tile/entries/000").unlink()
    source = tile_source(folder, 300, deep=True)
    assert source.look is not None
    with pytest.raises(NotFound):
        source.look(SignedHead(ORIGIN, 300, log.tree.root()))
    with pytest.raises(Damaged):
        check_tiles(300, bytes(32), lambda tile: hash_tile(log.tree, tile))


@pytest.mark.parametrize(("old", "new"), [(0, 4), (3, 4), (4, 4), (4, 300), (256, 300), (255, 257)])
def test_a_head_extends_an_older_one(tmp_path, old, new):
    log = SmallLog(new)
    folder = log.publish(tmp_path / "public")
    report = look(log.head(), source=tile_source(folder, new), old=log.head(old))
    assert statuses(report) == {
        "checkpoint": "passed",
        "log_signature": "passed",
        "witnesses": "not_checked",
        "tree": "passed",
        "old_signature": "passed",
        "consistency": "passed",
    }


@pytest.mark.parametrize(("old", "turn"), [(3, 0), (3, 2), (4, 3), (256, 255), (260, 256)])
def test_another_history_is_called_that(tmp_path, old, turn):
    new = SmallLog(300, turn)
    folder = new.publish(tmp_path / "public")
    report = look(new.head(), source=tile_source(folder, 300), old=SmallLog(old).head())
    assert statuses(report)["consistency"] == "failed"
    assert "two histories" in detail(report, "consistency")


def test_one_size_with_two_roots_needs_no_tiles():
    report = look(SmallLog(4).head(), old=SmallLog(4, 2).head())
    assert "one size, 4, with two roots" in detail(report, "consistency")


def test_an_older_head_that_is_larger_of_another_log_or_unsigned_fails():
    log = SmallLog(5)
    assert "has 5 leaves" in detail(look(log.head(4), old=log.head(5)), "consistency")
    other = log.head(4, Signer("elsewhere", LOG.key), "elsewhere")
    assert "is of" in detail(look(log.head(5), old=other), "consistency")
    forged = log.head(4, Signer(ORIGIN, NODE))
    assert statuses(look(log.head(5), old=forged))["old_signature"] == "failed"


def test_without_tiles_consistency_is_not_checked():
    log = SmallLog(5)
    assert statuses(look(log.head(5), old=log.head(4)))["consistency"] == "not_checked"


def test_an_empty_log_has_one_root():
    assert look(SmallLog(0).head(), old=SmallLog(0).head()).ok
    lie = sign_head(SignedHead(ORIGIN, 0, bytes(32)), LOG)
    assert not look(lie, old=lie).ok


def test_a_tree_too_small_for_the_head_fails():
    log = SmallLog(4)
    report = look(log.head(), source=TreeSource("a copy", SmallLog(3).tree))
    assert "not yet 4" in detail(report, "tree")


def test_an_empty_folder_is_no_proof(tmp_path):
    folder = SmallLog(4).publish(tmp_path / "public")
    shutil.rmtree(folder / "tile")
    assert not look(SmallLog(4).head(), source=tile_source(folder, 4)).ok


# Two heads of Go's checksum database, years apart, as it published them.
GO_KEY = "sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"
GO_OLD = """go.sum database tree
15081221
BoMMe1wd25Tco0mYGROkyqxHZWx+hcSCtMV315Lu6Lg=

\N{EM DASH} sum.golang.org Az3grilD7vQqTrv66jRgKM84Y80KTprrSt4bKmiOPxgmS5ZVBTeCl6dUvjYnN13R+C8j0jGY1WnUADGMkok3U0m2Zgo=
"""
GO_NEW = """go.sum database tree
63096908
8lHrQPRYe4KT4WQ9/Qk8/taKnD6IRHbFgfN7vQE2Y54=

\N{EM DASH} sum.golang.org Az3gri/oVBN1jAhNZ/iS+W31psFAWRT20/GyrhpU6taFwulQGetBkH5S7wpGXdS935jiIGiUUAXBVHzT/P6fYhqAmAk=
"""


def test_heads_of_a_public_log_verify():
    trust = HeadTrust(keys=(Verifier.from_text(GO_KEY),), origin="go.sum database tree")
    report = look(GO_NEW.encode(), trust, old=GO_OLD.encode())
    assert statuses(report) == {
        "checkpoint": "passed",
        "log_signature": "passed",
        "witnesses": "not_checked",
        "old_signature": "passed",
        "consistency": "not_checked",
    }
    assert not look(GO_NEW.replace("63096908", "63096909").encode(), trust).ok
