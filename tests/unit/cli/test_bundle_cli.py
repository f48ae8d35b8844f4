"""`ropewalk bundle` as an auditor and a writer type it."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest
from tests.unit.cli.conftest import living_in, move_in
from tests.unit.ledger.bundling import pack, signed, tar_of, unpack

from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.note.note import SignatureType, Signer, cosign_head


@pytest.fixture(scope="module")
def three_blocks(tmp_path_factory):
    """A folder with a repository with a channel of three blocks, and its trust file."""
    folder = tmp_path_factory.mktemp("three_blocks")
    ropewalk = living_in(folder)
    assert ropewalk("init", "r.git").code == 0
    assert ropewalk("key", "new", "ada").code == 0
    for number in range(3):
        (folder / "body.json").write_text(json.dumps({"n": number}))
        made = ropewalk(
            "ledger", "envelope", "--repo", "r.git", "--channel", "audit", "--domain", "ops", "--class",
            "Observation", "--type", "disk.full", "--payload", "body.json", "--key", "ada",
        )  # fmt: skip
        assert made.code == 0, made.err
        done = ropewalk(
            "ledger", "append", "--repo", "r.git", "--channel", "audit", "--file", "-", stdin=made.out
        )
        assert done.code == 0, done.err
    assert ropewalk("ledger", "trust", "--repo", "r.git", "--channel", "audit", "-o", "trust.json").code == 0
    return folder


@pytest.fixture
def channel(three_blocks, tmp_path):
    """The repository, in a folder of its own."""
    move_in(three_blocks, tmp_path)
    return "r.git"


def test_export_inspect_verify_and_tamper(ropewalk, channel, tmp_path):
    export = ("bundle", "export", "--repo", channel, "--channel", "audit", "--from", "0", "--to", "2")
    made = ropewalk(*export, "-o", "x.tar.zst", "--json")
    assert made.code == 0, made.err
    assert made.json["kept"] is False and made.json["end_height"] == 2
    assert ropewalk(*export, "-o", "x.tar.zst", "--json").json["kept"] is True
    assert ropewalk(*export, "-o", "y.tar.zst").code == 0
    assert (tmp_path / "x.tar.zst").read_bytes() == (tmp_path / "y.tar.zst").read_bytes()

    seen = ropewalk("bundle", "inspect", "x.tar.zst", "--json")
    assert seen.code == 0
    assert seen.json["manifest"]["channel"] == "audit" and seen.json["verified"] is False
    assert "heights       0–2" in ropewalk("bundle", "inspect", "x.tar.zst").text

    verify = ("bundle", "verify", "x.tar.zst", "--trust", "trust.json")
    good = ropewalk(*verify, "--report", "r.html", "--json")
    assert good.code == 0, good.out
    assert good.json["ok"] is True
    assert [step["name"] for step in good.json["steps"]] == [
        "bundle_signature", "envelope_hashes", "merkle_paths", "block_signatures", "policy_hash",
    ]  # fmt: skip
    assert (good.json["envelopes"], good.json["blocks"]) == (3, 3)
    page = (tmp_path / "r.html").read_text()
    assert "<svg" in page and "ropewalk " in page
    for name in ("x.tar.zst", "trust.json"):
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() in page
    assert "✓ merkle_paths: passed" in ropewalk(*verify, "--deep").text

    whole = ropewalk("verify", "x.tar.zst", "--trust", "trust.json", "--json")
    assert whole.code == 0 and whole.json["entries"] == 3
    alone = ropewalk("verify", "x.tar.zst", "--json")
    assert (alone.code, alone.json["ok"], alone.json["verdict"]) == (5, False, "untrusted")
    assert alone.json["steps"][0]["status"] == "not_checked"
    accepted = ropewalk("verify", "x.tar.zst", "--no-trust", "--json")
    assert (accepted.code, accepted.json["ok"], accepted.json["verdict"]) == (0, True, "untrusted")

    raw = bytearray((tmp_path / "x.tar.zst").read_bytes())
    raw[len(raw) // 2] ^= 1
    (tmp_path / "x.tar.zst").write_bytes(raw)
    bad = ropewalk(*verify, "--json")
    assert bad.code == 5
    assert bad.json["ok"] is False
    assert "✗ bundle_signature" in ropewalk(*verify).text
    assert ropewalk("verify", "x.tar.zst", "--no-trust").code == 5


def test_what_is_no_bundle_exits_8_and_what_is_missing_3(ropewalk, channel, tmp_path):
    (tmp_path / "x").write_bytes(b"hello")
    for command in (("verify", "x", "--trust", "trust.json"), ("inspect", "x")):
        answer = ropewalk("bundle", *command, "--json")
        assert answer.code == 8 and answer.json["code"] == "InvalidInput"
    assert ropewalk("bundle", "verify", "nowhere", "--trust", "trust.json").code == 3
    assert ropewalk("bundle", "verify", "x").code == 2
    export = ("bundle", "export", "--repo", channel, "--channel", "audit", "-o", "x")
    assert ropewalk(*export).code == 4
    assert ropewalk(*export[:-1], "y.tar.zst", "--to", "99").code == 8
    assert ropewalk("bundle", "export", "--repo", channel, "--channel", "none", "-o", "z").code == 3


def test_chunks_are_files_of_their_own_and_are_kept(ropewalk, channel, tmp_path):
    export = ("bundle", "export", "--repo", channel, "--channel", "audit", "--chunk", "2", "-o", "x.tar.zst")
    made = ropewalk(*export, "--json").json["files"]
    names = [f"x.{first:010d}-{last:010d}.tar.zst" for first, last in ((0, 1), (2, 2))]
    assert [each["path"] for each in made] == names
    (tmp_path / names[1]).unlink()
    assert [each["kept"] for each in ropewalk(*export, "--json").json["files"]] == [True, False]
    for name in names:
        assert ropewalk("bundle", "verify", name, "--trust", "trust.json").code == 0


@pytest.fixture
def witnessed(ropewalk, channel, tmp_path):
    """A head of the channel that a witness has seen, and the witness's key."""
    witness = Signer("w.example", SigningKey.generate("ed25519", b"w" * 32), SignatureType.COSIGNATURE)
    note = ropewalk("ledger", "head", "--repo", channel, "--channel", "audit", "--note", "--json").json[
        "note"
    ]
    (tmp_path / "head.note").write_bytes(note.encode())
    (tmp_path / "seen.note").write_bytes(cosign_head(note.encode(), witness, 1_700_000_000))
    (tmp_path / "w.vkey").write_text(f"# our witness\n{witness.verifier.to_text()}\n")
    return witness


def test_an_anchored_bundle_shows_that_a_witness_had_seen_its_blocks(ropewalk, channel, witnessed, tmp_path):
    export = ("bundle", "export", "--repo", channel, "--channel", "audit", "--to", "1")
    made = ropewalk(*export, "-o", "x.tar.zst", "--anchor", "seen.note", "--anchor", "head.note")
    assert made.code == 0, made.err
    assert ropewalk(*export, "-o", "y.tar.zst", "--anchor", "head.note", "--anchor", "seen.note").code == 0
    assert (tmp_path / "x.tar.zst").read_bytes() == (tmp_path / "y.tar.zst").read_bytes()
    assert (
        "anchor        ropewalk.invalid/audit at 3, signed by"
        in ropewalk("bundle", "inspect", "x.tar.zst").text
    )

    verify = ("bundle", "verify", "x.tar.zst", "--trust", "trust.json")
    assert "own key alone (and 1 more)" in ropewalk(*verify).text
    good = ropewalk(*verify, "--witness", "w.vkey", "--report", "r.html", "--json")
    assert good.code == 0, good.out
    step = good.json["steps"][5]
    assert (step["name"], step["status"]) == ("anchors", "passed")
    assert "seen by w.example on 2023-11-14" in step["detail"]
    assert {each["status"] for each in step["anchors"]} == {"passed", "not_checked"}
    assert "<h2>Anchors</h2>" in (tmp_path / "r.html").read_text()

    trusting = (
        "ledger",
        "trust",
        "--repo",
        channel,
        "--channel",
        "audit",
        "--witness",
        "w.vkey",
        "-o",
        "w.json",
    )
    assert ropewalk(*trusting).code == 0
    whole = ropewalk("verify", "x.tar.zst", "--trust", "w.json", "--json")
    assert whole.code == 0 and whole.json["steps"][5]["status"] == "passed"
    alone = ropewalk("verify", "x.tar.zst", "--no-trust", "--json")
    assert alone.code == 0 and alone.json["steps"][5]["status"] == "not_checked"
    plain = ropewalk(*export, "-o", "plain.tar.zst")
    assert plain.code == 0
    none = ropewalk("bundle", "verify", "plain.tar.zst", "--trust", "w.json").text
    assert "– anchors: not_checked – the bundle has no anchors" in none


def test_bundle_names_unfit_anchors_before_writing(ropewalk, channel, witnessed, tmp_path):
    export = ("bundle", "export", "--repo", channel, "--channel", "audit", "-o", "x.tar.zst", "--json")
    lines = (tmp_path / "head.note").read_text().splitlines()
    other = "B" if lines[2].startswith("A") else "A"
    wrong = {
        "garbage": ("hello", 8),
        "other": ("\n".join(["ropewalk.invalid/other", *lines[1:]]) + "\n", 8),
        "changed": ("\n".join([*lines[:2], f"{other}{lines[2][1:]}", *lines[3:]]) + "\n", 5),
        "larger": ("\n".join([lines[0], "4", *lines[2:]]) + "\n", 8),
    }
    for name, (text, code) in wrong.items():
        (tmp_path / name).write_text(text)
        answer = ropewalk(*export, "--anchor", "seen.note", "--anchor", name)
        assert answer.code == code and answer.json["detail"].startswith(f"{name}: "), answer.out
    assert ropewalk(*export, "--anchor", "nowhere").code == 3
    assert not (tmp_path / "x.tar.zst").exists()
    old = ropewalk("bundle", "export", "--repo", channel, "--channel", "audit", "-o", "x.tar.zst")
    assert old.code == 0
    verify = ("bundle", "verify", "x.tar.zst", "--trust", "trust.json", "--witness")
    assert ropewalk(*verify, "garbage").code == 8


def test_what_a_bundle_says_of_itself_steers_neither_terminal_nor_page(ropewalk, channel, tmp_path):
    path = tmp_path / "x.tar.zst"
    assert ropewalk("bundle", "export", "--repo", channel, "--channel", "audit", "-o", "x.tar.zst").code == 0
    steering = "\x07\u202etiduA"
    pack(path, tar_of(signed(unpack(path), channel=steering, created_at=steering)))
    shown = ropewalk("bundle", "inspect", "x.tar.zst")
    assert shown.code == 0 and r"channel       \x07\u202etiduA" in shown.text
    wrong = ropewalk("bundle", "verify", "x.tar.zst", "--trust", "trust.json", "--report", "r.html")
    assert wrong.code == 5
    page = (tmp_path / "r.html").read_text()
    assert "tiduA" in page
    for text in (shown.text, wrong.text, page):
        assert all(each.isprintable() or each == "\n" for each in text)


def test_bundle_must_be_of_the_named_channel(ropewalk, channel):
    assert ropewalk("bundle", "export", "--repo", channel, "--channel", "audit", "-o", "x.tar.zst").code == 0
    verify = ("bundle", "verify", "x.tar.zst", "--trust", "trust.json", "--json", "--channel")
    assert ropewalk(*verify, "audit").code == 0
    refused = ropewalk(*verify, "other")
    assert refused.code == 5 and refused.json["steps"][-1]["name"] == "channel"


def test_a_bundle_is_not_written_to_a_file_called_dash(ropewalk, channel, tmp_path):
    answer = ropewalk("bundle", "export", "--repo", channel, "--channel", "audit", "-o", "-")
    assert answer.code == 2 and not (tmp_path / "-").exists()


def test_a_copy_signs_bundles_with_a_key_of_its_own_and_says_so(ropewalk, channel, tmp_path):
    assert ropewalk("init", "copy.git").code == 0
    shutil.copytree(
        tmp_path / channel / "ropewalk" / "ledger" / "audit",
        tmp_path / "copy.git" / "ropewalk" / "ledger" / "audit",
    )
    made = ropewalk("bundle", "export", "--repo", "copy.git", "--channel", "audit", "-o", "x.tar.zst")
    own = ropewalk("key", "show", "node", "--repo", "copy.git", "--did").text.strip()
    assert made.code == 0 and f"signed by {own}" in made.err and "bundle_signers" in made.err
    at_home = ropewalk("bundle", "export", "--repo", channel, "--channel", "audit", "-o", "y.tar.zst")
    assert at_home.code == 0 and "signed by" not in at_home.err
    verify = ("bundle", "verify", "x.tar.zst", "--deep", "--trust")
    assert ropewalk(*verify, "trust.json").code == 5
    trust = json.loads((tmp_path / "trust.json").read_text())
    shown = ropewalk("key", "show", "node", "--repo", "copy.git", "--public").json
    (tmp_path / "wider.json").write_text(json.dumps({**trust, "bundle_signers": [shown]}))
    assert ropewalk(*verify, "wider.json").code == 0
