"""Anchors: a bundle's blocks lie under a signed head, and what that is worth depends on who signed it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from functools import partial

import pytest
import zstandard
from tests.unit.ledger.bundling import TRUST, failed, pack, signed, statuses, tar_of, unpack, verdict
from tests.unit.ledger.making import ADA, NODE, P256, chain_of_blocks, observed, opened

from ropewalk.errors import (
    Damaged,
    DigestMismatch,
    Invalid,
    InvalidKey,
    InvalidNote,
    RangeExceeded,
    RopewalkError,
    SigInvalid,
    TooLarge,
)
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.note.note import SignatureType, SignedHead, Signer, cosign_head, sign_head
from ropewalk.kernel.schema import shipped as schema
from ropewalk.ledger.bundle.anchors import ANCHOR_NOTE_MAX, ANCHORS_MAX, BundleAnchor, parse_anchor
from ropewalk.ledger.bundle.check import BundleVerifier
from ropewalk.ledger.bundle.files import (
    chunk_ranges,
    export_blocks,
    export_bundle,
    inspect_bundle,
    verify_bundle,
)
from ropewalk.ledger.bundle.format import HEADERS, MANIFEST, BundleBuilder
from ropewalk.ledger.bundle.head_proofs import AnchorCollector
from ropewalk.ledger.bundle.html_report import render_report
from ropewalk.ledger.bundle.manifest import parse_manifest
from ropewalk.ledger.channel.channel import open_channel, open_log
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.proof.proof import head_signer, signed_head
from ropewalk.ledger.proof.trust import parse_trust, parse_witnesses

BLOCKS = 7
SEEN_S = 1_700_000_000
WITNESS = Signer("witness.example", SigningKey.generate("ed25519", b"w" * 32), SignatureType.COSIGNATURE)
WATCHED = replace(TRUST, witnesses=(WITNESS.verifier,))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("anchored")
    with opened(home) as ledger:
        for number in range(BLOCKS):
            ledger.log.submit(observed(number).raw)
    return home


@pytest.fixture
def channel(home):
    with open_channel(home, "ea.core") as channel:
        yield channel


def root_at(channel, size):
    return merkle.root((leaf for _, leaf in channel.index.tree_leaves(0, size)), merkle.SHA256)


def head(channel, size=BLOCKS, key=NODE, host="log.example"):
    return signed_head(host, "ea.core", size, root_at(channel, size), key)


def seen(note, witness=WITNESS, time_s=SEEN_S):
    return cosign_head(note, witness, time_s)


def anchored(channel, path, start, end, *notes):
    anchoring = AnchorCollector(channel)
    for note in notes:
        anchoring.add(note)
    export_bundle(channel, NODE, start, end, path, anchors=anchoring)
    return path


def step(path, trust=TRUST, **options):
    (found,) = [each for each in verdict(path, trust, **options).steps if each.name == "anchors"]
    return found


def lie(path, change):
    """The bundle with changed anchors, signed again by who holds its key."""
    members = unpack(path)
    anchors = json.loads(members[MANIFEST])["anchors"]
    pack(path, tar_of(signed(members, anchors=change(anchors))))


# --- what holds ---


@pytest.mark.parametrize(
    ("start", "end", "size"),
    [(0, 0, 1), (0, 0, 7), (0, 6, 7), (2, 4, 5), (2, 4, 6), (2, 4, 7), (6, 6, 7), (3, 3, 4), (1, 5, 7)],
)
def test_any_range_is_led_to_any_head_above_it(channel, tmp_path, start, end, size):
    note = seen(head(channel, size))
    path = anchored(channel, tmp_path / "x.tar.zst", start, end, note)
    report = verdict(path, WATCHED)
    assert report.ok and [each.name for each in report.steps][5] == "anchors"
    found = report.steps[5]
    assert found.status == "passed"
    assert f"blocks {start}–{end} under log.example/ea.core at {size}" in found.detail
    assert "seen by witness.example on 2023-11-14 22:13:20 UTC" in found.detail
    manifest, _ = inspect_bundle(path)
    assert [each.note for each in manifest.anchors] == [note], "the exact bytes of the note"
    schema.validate("ledger/bundle_manifest", json.loads(manifest.to_bytes()))


def test_without_anchors_nothing_changes(channel, tmp_path):
    plain, empty = tmp_path / "plain.tar.zst", tmp_path / "empty.tar.zst"
    export_bundle(channel, NODE, 0, 4, plain)
    anchored(channel, empty, 0, 4)
    assert plain.read_bytes() == empty.read_bytes()
    assert b"anchors" not in unpack(plain)[MANIFEST]
    assert "anchors" not in statuses(verdict(plain))
    found = step(plain, WATCHED)
    assert (found.status, found.detail) == ("not_checked", "the bundle has no anchors")


def test_the_order_in_which_anchors_are_given_does_not_matter(channel, tmp_path):
    notes = [head(channel, 7), seen(head(channel, 5)), head(channel, 5), head(channel, 6, host="a.example")]
    one = anchored(channel, tmp_path / "one.tar.zst", 1, 3, *notes)
    two = anchored(channel, tmp_path / "two.tar.zst", 1, 3, *reversed(notes), notes[0])
    assert one.read_bytes() == two.read_bytes()
    assert len(inspect_bundle(one)[0].anchors) == len(notes)
    assert verdict(one, WATCHED).ok


def test_anchors_do_not_keep_an_export_from_being_resumed(channel, tmp_path):
    anchoring, other = AnchorCollector(channel), AnchorCollector(channel)
    anchoring.add(head(channel, 6))
    other.add(seen(head(channel, 6)))
    path = tmp_path / "x.tar.zst"
    export = partial(export_bundle, channel, NODE, 0, 4, path)
    assert not export(anchors=anchoring).kept
    whole = path.read_bytes()
    assert export(anchors=anchoring).kept
    assert export().kept, "who asks for none loses none"
    path.write_bytes(whole[: len(whole) // 2])
    assert not export(anchors=anchoring).kept
    assert path.read_bytes() == whole
    assert not export(anchors=other).kept, "other anchors are another bundle"
    assert path.read_bytes() != whole and step(path, WATCHED).status == "passed"
    path.unlink()
    assert not export().kept
    assert not export(anchors=anchoring).kept
    assert path.read_bytes() == whole


def test_every_chunk_is_led_to_the_head_by_itself(channel, tmp_path):
    anchoring = AnchorCollector(channel)
    anchoring.add(seen(head(channel, 7)))
    for start, end in chunk_ranges(0, 6, 3):
        path = tmp_path / f"{start}.tar.zst"
        export_bundle(channel, NODE, start, end, path, anchors=anchoring)
        assert step(path, WATCHED).status == "passed"


# --- who signed ---


def test_the_channel_s_own_key_passes_and_is_said_to_be_alone(channel, tmp_path):
    path = anchored(channel, tmp_path / "x.tar.zst", 0, 2, head(channel))
    found = step(path)
    assert found.status == "passed" and found.detail.endswith("signed by the channel's own key alone")
    (told,) = found.fields["anchors"]
    assert (told["origin"], told["size"], told["root"]) == (
        "log.example/ea.core", BLOCKS, root_at(channel, BLOCKS).hex(),
    )  # fmt: skip
    assert [each["kind"] for each in told["signers"]] == ["channel"]


def test_once_witnesses_are_named_one_of_them_must_have_signed(channel, tmp_path):
    path = anchored(channel, tmp_path / "x.tar.zst", 0, 2, head(channel))
    found = step(path, WATCHED)
    assert found.status == "not_checked" and "no witness that is trusted" in found.detail
    assert verdict(path, WATCHED).verdict == "partly"
    assert verdict(path, WATCHED, threshold=0).ok


def test_a_witness_alone_is_enough(channel, tmp_path):
    note = seen(head(channel, key=ADA))  # nobody knows the key the log signed with
    path = anchored(channel, tmp_path / "x.tar.zst", 2, 4, note)
    found = step(path, WATCHED)
    assert found.status == "passed" and "seen by witness.example" in found.detail
    assert [each["kind"] for each in found.fields["anchors"][0]["signers"]] == ["witness", "unknown"]


def test_an_outside_log_that_signs_plainly_counts_as_a_witness(channel, tmp_path):
    mirror = Signer("mirror.example/ea.core", ADA)
    note = sign_head(SignedHead("mirror.example/ea.core", 6, root_at(channel, 6)), mirror)
    path = anchored(channel, tmp_path / "x.tar.zst", 2, 4, note)
    assert step(path).status == "not_checked"
    found = step(path, replace(TRUST, witnesses=(mirror.verifier,)))
    assert found.status == "passed" and found.detail.endswith("signed by mirror.example/ea.core")


def test_a_stranger_s_signature_proves_nothing_and_that_is_said(channel, tmp_path):
    path = anchored(channel, tmp_path / "x.tar.zst", 0, 2, head(channel, key=ADA))
    found = step(path)
    assert found.status == "not_checked"
    assert 'without a trusted signature: "log.example/ea.core"' in found.detail
    assert verdict(path).ok


def test_the_operator_is_no_witness_under_another_name(channel, tmp_path):
    alias = Signer("independent.example", NODE, SignatureType.COSIGNATURE)
    path = anchored(channel, tmp_path / "x.tar.zst", 0, 2, seen(head(channel), alias))
    found = step(path, replace(TRUST, witnesses=(alias.verifier,)))
    assert found.status == "not_checked" and "no witness that is trusted" in found.detail
    assert "witness" not in [each["kind"] for each in found.fields["anchors"][0]["signers"]]


def test_one_trusted_head_is_enough_and_the_others_are_told_apart(channel, tmp_path):
    notes = [seen(head(channel, 6)), head(channel, 7, key=ADA)]
    path = anchored(channel, tmp_path / "x.tar.zst", 0, 2, *notes)
    found = step(path, WATCHED)
    assert found.status == "passed" and found.detail.endswith("1 more without a trusted signature")
    assert [each["status"] for each in found.fields["anchors"]] == ["passed", "not_checked"]


def test_anchors_threshold_too_few_witnesses_fails(channel, tmp_path):
    plain, own, watched = (tmp_path / f"{name}.tar.zst" for name in ("plain", "own", "watched"))
    export_bundle(channel, NODE, 0, 4, plain)
    anchored(channel, own, 0, 4, head(channel))
    anchored(channel, watched, 0, 4, seen(head(channel)))
    for path, trust, why in (
        (
            plain,
            WATCHED,
            "the bundle has no anchors; 0 of 1 witnesses named have signed, and 1 must have signed",
        ),
        (plain, TRUST, "no witness is named, and 1 must have signed"),
        (own, WATCHED, "0 of 1 witnesses named have signed, and 1 must have signed"),
        (own, TRUST, "no witness is named, and 1 must have signed"),
        (watched, TRUST, "no witness is named, and 1 must have signed"),
    ):
        assert verdict(path, trust).verdict == ("partly" if trust is WATCHED else "passed")
        assert verdict(path, trust, threshold=0).ok
        report = verdict(path, trust, threshold=1)
        assert failed(report) == {"anchors"} and not report.ok
        assert why in step(path, trust, threshold=1).detail
    found = step(watched, WATCHED, threshold=1)
    assert (found.status, found.fields["threshold"]) == ("passed", 1)
    assert step(watched, WATCHED, threshold=2).status == "failed"


def test_witnesses_count_once_each_under_one_head_or_several(channel, tmp_path):
    second = Signer("second.example", SigningKey.generate("ed25519", b"v" * 32), SignatureType.COSIGNATURE)
    alias = Signer("alias.example", WITNESS.key, SignatureType.COSIGNATURE)
    operator = Signer("operator.example", NODE, SignatureType.COSIGNATURE)
    named = tuple(each.verifier for each in (WITNESS, second, alias, operator))
    trust = replace(TRUST, witnesses=named)
    several = anchored(
        channel, tmp_path / "several.tar.zst", 0, 4, seen(head(channel, 6)), seen(head(channel), second)
    )
    assert step(several, trust, threshold=2).status == "passed"
    assert "2 of 2 witnesses named" in step(several, trust, threshold=3).detail
    note = seen(seen(seen(head(channel)), alias), operator)
    once = anchored(channel, tmp_path / "once.tar.zst", 0, 4, note)
    assert step(once, trust, threshold=1).status == "passed"
    assert "1 of 2 witnesses named" in step(once, trust, threshold=2).detail
    newer = Signer(WITNESS.name, second.key, SignatureType.COSIGNATURE)
    both = anchored(channel, tmp_path / "both.tar.zst", 0, 4, seen(seen(head(channel)), newer))
    trust = replace(TRUST, witnesses=(WITNESS.verifier, newer.verifier))
    assert "1 of 1 witnesses named" in step(both, trust, threshold=2).detail


def test_a_threshold_is_not_met_by_what_could_not_be_read(channel, tmp_path):
    path = anchored(channel, tmp_path / "x.tar.zst", 0, 4, seen(head(channel)))
    raw = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    pack(path, raw[: raw.index(HEADERS.encode() + b"\0") + 700])
    assert step(path, WATCHED).status == "not_checked"
    found = step(path, WATCHED, threshold=1)
    assert (found.status, "1 must have signed" in found.detail) == ("failed", True)


def test_a_time_beyond_the_calendar_is_only_a_number(channel, tmp_path):
    note = seen(head(channel), time_s=2**63 - 1)
    path = anchored(channel, tmp_path / "x.tar.zst", 0, 2, note)
    assert f"in second {2**63 - 1}" in step(path, WATCHED).detail
    found = verify_bundle(path, WATCHED)
    assert render_report(
        found.report, found.manifest, found.exhibits, WATCHED, source="x", anchors=found.anchors
    )


def test_a_stranger_s_name_steers_no_terminal(channel, tmp_path):
    steering = Signer("\x9b31m\u202ex.example", ADA, SignatureType.COSIGNATURE)
    path = anchored(channel, tmp_path / "x.tar.zst", 0, 2, seen(head(channel, key=ADA), steering))
    lie(path, lambda anchors: [*anchors, {**anchors[0], "note": "\x7f\n\x9b\n\n— x AAAAAAA=\n"}])
    manifest, _ = inspect_bundle(path)
    said = [step(path).detail, *(each.explain() for each in manifest.anchors)]
    said += [each["detail"] for each in step(path).fields["anchors"]]
    assert all(each.isprintable() for each in said)
    assert "x.example" in manifest.anchors[0].explain()


# --- what does not hold ---


def test_a_head_of_another_tree_fails_whoever_signed_it(channel, tmp_path):
    path = anchored(channel, tmp_path / "x.tar.zst", 2, 4, seen(head(channel)))
    for size, root in ((BLOCKS, bytes(32)), (BLOCKS, root_at(channel, 6)), (4, root_at(channel, 4))):
        other = seen(signed_head("log.example", "ea.core", size, root, NODE)).decode()
        lie(path, lambda anchors, other=other: [{**anchors[0], "note": other}])
        assert failed(verdict(path, WATCHED)) == {"anchors"}


@pytest.mark.parametrize("side", ["left", "right"])
def test_every_hash_of_the_proof_is_needed_and_right(channel, tmp_path, side):
    path = anchored(channel, tmp_path / "x.tar.zst", 3, 3, seen(head(channel)))
    whole = path.read_bytes()
    hashes = json.loads(unpack(path)[MANIFEST])["anchors"][0][side]
    assert hashes
    for at in range(len(hashes)):
        other = f"{int(hashes[at][0], 16) ^ 1:x}{hashes[at][1:]}"
        for wrong in (
            [*hashes[:at], other, *hashes[at + 1 :]],
            [*hashes[:at], *hashes[at + 1 :]],
            [*hashes, hashes[at]],
        ):
            path.write_bytes(whole)
            lie(path, lambda anchors, wrong=wrong: [{**anchors[0], side: wrong}])
            assert failed(verdict(path, WATCHED)) == {"anchors"}


@pytest.mark.parametrize("line", [-1, -2], ids=["witness", "log"])
def test_a_trusted_signature_that_is_wrong_fails(channel, tmp_path, line):
    path = anchored(channel, tmp_path / "x.tar.zst", 2, 4, seen(head(channel)))

    def change(anchors):
        lines = anchors[0]["note"].splitlines()
        at = lines[line].rindex(" ") + 20
        lines[line] = lines[line][:at] + ("B" if lines[line][at] == "A" else "A") + lines[line][at + 1 :]
        return [{**anchors[0], "note": "\n".join(lines) + "\n"}]

    lie(path, change)
    report = verdict(path, WATCHED)
    assert failed(report) == {"anchors"} and "does not hold" in report.steps[5].detail


def test_one_wrong_anchor_fails_beside_a_right_one(channel, tmp_path):
    path = anchored(channel, tmp_path / "x.tar.zst", 2, 4, seen(head(channel, 6)), head(channel, 7, key=ADA))
    lie(path, lambda anchors: [anchors[0], {**anchors[1], "left": anchors[1]["left"][:-1]}])
    report = verdict(path, WATCHED)
    assert failed(report) == {"anchors"}
    assert [each["status"] for each in report.steps[5].fields["anchors"]] == ["passed", "failed"]


def test_a_head_of_another_channel_and_what_is_no_head_fail(channel, tmp_path):
    path = anchored(channel, tmp_path / "x.tar.zst", 2, 4, head(channel))
    elsewhere = signed_head("log.example", "other", BLOCKS, root_at(channel, BLOCKS), NODE).decode()
    for note in (elsewhere, "hello", "", "hello\n\n— x AAAAAAA=\n", "\u2028"):
        lie(path, lambda anchors, note=note: [{**anchors[0], "note": note}])
        report = verdict(path)
        assert failed(report) == {"anchors"}, note
        page = render_report(report, None, (), TRUST, source="x", anchors=verify_bundle(path, TRUST).anchors)
        assert "<h2>Anchors</h2>" in page


def test_headers_of_another_history_do_not_lead_to_the_head(channel, tmp_path):
    """The operator seals another history and carries the witnessed head of the first."""
    path = anchored(channel, tmp_path / "x.tar.zst", 0, 2, seen(head(channel)))
    kept = json.loads(unpack(path)[MANIFEST])["anchors"]
    export_blocks(chain_of_blocks(3), NODE, path)
    pack(path, tar_of(signed(unpack(path), anchors=kept)))
    assert failed(verdict(path, WATCHED)) == {"anchors"}


def test_an_anchor_added_or_taken_away_breaks_the_bundle_s_signature(channel, tmp_path):
    path = anchored(channel, tmp_path / "x.tar.zst", 0, 2, head(channel))
    members = unpack(path)
    manifest = json.loads(members[MANIFEST])
    plain = {name: each for name, each in manifest.items() if name != "anchors"}
    twice = {**manifest, "anchors": manifest["anchors"] * 2}
    for other in (plain, twice):
        pack(path, tar_of({**members, MANIFEST: jcs.encode(other)}))
        assert failed(verdict(path)) == {"bundle_signature"}


def test_a_missing_header_leaves_anchors_unchecked(channel, tmp_path):
    path = anchored(channel, tmp_path / "x.tar.zst", 0, 2, head(channel))
    members = unpack(path)
    pack(path, tar_of(signed({**members, HEADERS: b"".join(members[HEADERS].splitlines(True)[:2])})))
    report = verdict(path)
    assert "block_signatures" in failed(report)
    assert statuses(report)["anchors"] == "not_checked"


def test_a_cut_bundle_does_not_pass_its_anchors_without_its_headers(channel, tmp_path):
    path = anchored(channel, tmp_path / "x.tar.zst", 0, 2, head(channel))
    raw = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    report = verdict(pack(path, raw[: raw.index(HEADERS.encode() + b"\0") + 700]))
    assert statuses(report)["anchors"] == "not_checked" and not report.ok


def test_no_flipped_byte_of_an_anchored_bundle_passes(channel, tmp_path):
    path = anchored(channel, tmp_path / "x.tar.zst", 1, 1, seen(head(channel, 3)))
    members = unpack(path)
    raw = members[MANIFEST]
    from_, to = raw.index(b'"anchors"'), raw.index(b'"block_hashes"')
    for at in range(from_, to):
        changed = {**members, MANIFEST: raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]}
        assert "bundle_signature" in failed(verdict(pack(path, tar_of(changed)), WATCHED)), at
        with contextlib.suppress(RopewalkError):  # or it is no manifest any more
            parse_manifest(changed[MANIFEST])
            # Also where the holder of the bundle's key has flipped it: what was vouched for is not this.
            again = signed(members, anchors=json.loads(changed[MANIFEST])["anchors"])
            assert step(pack(path, tar_of(again)), WATCHED).status != "passed" or _only_the_log_s_line(
                at, raw
            )
    archive = tar_of(members)
    for at in range(0, len(archive), 37):
        verifier = BundleVerifier(WATCHED)
        with contextlib.suppress(Invalid, Damaged):
            verifier.feed(archive[:at] + bytes([archive[at] ^ 1]) + archive[at + 1 :])
            assert not verifier.report().ok or archive[at] in b"0 \0", at


def _only_the_log_s_line(at, raw):
    """Whether a byte stands in the name or key id of the log's line: then only that line is a stranger's."""
    start = raw.index(b"\\n\\n") + 4
    return start <= at < raw.index(b"witness.example")


# --- what is refused at export ---


def refused(channel, note, error, words):
    anchoring = AnchorCollector(channel)
    with pytest.raises(error, match=words):
        anchoring.add(note)
    assert anchoring.over(0, BLOCKS - 1) == ()


def test_notes_that_are_not_of_this_channel_are_refused(channel):
    root = root_at(channel, BLOCKS)
    refused(channel, b"hello", InvalidNote, "note")
    refused(channel, b"\xff", InvalidNote, "UTF-8")
    refused(channel, head(channel)[:-1], InvalidNote, "does not end")
    refused(channel, signed_head("x", "other", BLOCKS, root, NODE), InvalidNote, "x/other")
    refused(channel, signed_head("x", "not-ea.core", BLOCKS, root, NODE), InvalidNote, "not-ea.core")
    refused(channel, signed_head("x", "ea.core", BLOCKS, bytes(32), NODE), DigestMismatch, "root")
    refused(channel, signed_head("x", "ea.core", BLOCKS - 1, root, NODE), DigestMismatch, "root")
    refused(channel, signed_head("x", "ea.core", BLOCKS + 1, root, NODE), RangeExceeded, "has only 7")
    refused(channel, signed_head("x", "ea.core", 0, root, NODE), RangeExceeded, "0 blocks")
    refused(channel, head(channel) + b"x" * ANCHOR_NOTE_MAX, TooLarge, "bytes")


def test_note_must_be_signed_by_the_named_key(channel):
    text, line = head(channel).decode().rstrip("\n").rsplit("\n", 1)
    signature = head(channel, BLOCKS - 1).decode().rstrip("\n").rsplit("\n", 1)[1]
    assert line != signature
    refused(channel, f"{text}\n{signature}\n".encode(), SigInvalid, "does not hold")


def test_a_head_must_be_above_the_range(channel, tmp_path):
    with pytest.raises(RangeExceeded, match="does not cover block 4"):
        anchored(channel, tmp_path / "x.tar.zst", 2, 4, head(channel, 4))
    assert not list(tmp_path.iterdir()), "nothing was written"
    anchored(channel, tmp_path / "x.tar.zst", 2, 4, head(channel, 5))


def test_a_bundle_takes_a_bounded_number_of_anchors(channel, tmp_path):
    notes = [head(channel, host=f"{number}.example") for number in range(ANCHORS_MAX + 1)]
    path = anchored(channel, tmp_path / "x.tar.zst", 0, 2, *notes[:-1])
    assert step(path).detail.endswith(f"(and {ANCHORS_MAX - 1} more)")
    with pytest.raises(TooLarge):
        anchored(channel, tmp_path / "y.tar.zst", 0, 2, *notes)


def test_gathering_takes_no_anchor_that_does_not_hold(channel):
    good = AnchorCollector(channel)
    good.add(head(channel))
    gathering = BundleBuilder()
    for block in channel.blocks(2, 4):
        gathering.add(block)
    assert gathering.finish(NODE, anchors=good.over(2, 4)).anchors
    for start, end in ((1, 3), (2, 3), (3, 4)):
        with pytest.raises(RopewalkError):
            gathering.finish(NODE, anchors=good.over(start, end))


@pytest.mark.parametrize(
    "anchors",
    [
        [],
        {},
        "x",
        [1],
        [{}],
        [{"note": 1, "left": [], "right": []}],
        [{"note": "x", "left": ["0"], "right": []}],
        [{"note": "x", "left": {}, "right": []}],
        [{"note": "x", "left": ["00" * 32] * 65, "right": []}],
        [{"note": "x", "left": [], "right": [], "more": 1}],
        [{"note": "x" * (ANCHOR_NOTE_MAX + 1), "left": [], "right": []}],
        [{"note": "x", "left": [], "right": []}] * (ANCHORS_MAX + 1),
    ],
    ids=range(12),
)
def test_manifests_with_anchors_of_another_form_are_refused(channel, tmp_path, anchors):
    path = anchored(channel, tmp_path / "x.tar.zst", 0, 0, head(channel))
    manifest = json.loads(unpack(path)[MANIFEST])
    assert parse_manifest(jcs.encode(manifest)).to_bytes() == jcs.encode(manifest)
    with pytest.raises(Invalid):
        parse_manifest(jcs.encode({**manifest, "anchors": anchors}))


def test_an_anchor_comes_out_as_it_went_in():
    note = "é\n\n— x AAAA\n"
    value = {"note": note, "left": ["ab" * 32], "right": ["cd" * 32, "ef" * 32]}
    assert parse_anchor(value).to_json() == value
    assert parse_anchor(value) == BundleAnchor(
        note.encode(), merkle.RangeProof((b"\xab" * 32,), (b"\xcd" * 32, b"\xef" * 32))
    )


# --- channels and trust ---


def test_a_channel_whose_key_signs_no_notes_is_anchored_by_others(tmp_path):
    create_channel(tmp_path, "ea.core", "node", P256.public)
    with open_log(tmp_path, "ea.core", P256, now_ns=lambda: 1_730_462_400 * 10**9) as ledger:
        ledger.log.submit(observed(1).raw)
    with open_channel(tmp_path, "ea.core") as channel:
        anchoring = AnchorCollector(channel)
        anchoring.add(head(channel, 1, key=ADA))
        path = tmp_path / "x.tar.zst"
        export_bundle(channel, P256, 0, 0, path, anchors=anchoring)
        trust = channel.settings.trust()
    assert step(path, trust).status == "not_checked"
    mirror = head_signer("log.example", "ea.core", ADA).verifier
    assert step(path, replace(trust, witnesses=(mirror,))).status == "passed"


def test_trust_files_name_witnesses():
    raw = WATCHED.to_bytes()
    assert parse_trust(raw) == WATCHED
    assert b"witnesses" not in TRUST.to_bytes(), "files that name none are as they were"
    schema.validate("ledger/trust", json.loads(raw))
    assert any(WITNESS.verifier.to_text() in line for line in WATCHED.explain())
    wrongs: list[object] = ["x", [1], ["x"], [WITNESS.verifier.to_text() + "A"], {}]
    for wrong in wrongs:
        with pytest.raises(Invalid, match="trust file"):
            parse_trust(jcs.encode({**json.loads(raw), "witnesses": wrong}))


def test_witness_files_hold_keys_one_a_line():
    text = WITNESS.verifier.to_text()
    assert parse_witnesses(f"# ours\n\n  {text}\r\n{text}".encode()) == (WITNESS.verifier,) * 2
    for wrong in (b"", b"# nobody\n", b"\xff", b"witness", text.encode() + b"\nx\n"):
        with pytest.raises(InvalidKey):
            parse_witnesses(wrong)


def test_the_page_tells_of_anchors_and_of_who_signed(channel, tmp_path):
    stranger = Signer("<b>stranger", ADA, SignatureType.COSIGNATURE)
    path = anchored(channel, tmp_path / "x.tar.zst", 0, 2, seen(seen(head(channel)), stranger))
    found = verify_bundle(path, WATCHED)
    page = render_report(
        found.report, found.manifest, found.exhibits, WATCHED, source="x", anchors=found.anchors
    )
    assert "<h2>Anchors</h2>" in page and root_at(channel, BLOCKS).hex() in page
    assert "a trusted witness" in page and "the channel&#x27;s own key" in page
    assert "unknown: ignored" in page and "2023-11-14" in page
    assert "<b>" not in page and "&lt;b&gt;stranger" in page
