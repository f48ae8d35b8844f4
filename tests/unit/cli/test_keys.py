"""Keys are made once, shown only from their public side, and never overwritten."""

from __future__ import annotations

import json
import os
import stat

import pytest

from ropewalk.cli import key as key_command
from ropewalk.disk import key_files
from ropewalk.errors import InvalidKey
from ropewalk.kernel.keys import PublicKey


@pytest.mark.parametrize("alg", ["ed25519", "p256", "secp256k1"])
def test_a_new_signing_key_shows_its_did_and_signs(ropewalk, tmp_path, alg):
    made = ropewalk("key", "new", "ada", "--alg", alg, "--json").json
    assert made["alg"] == alg
    public = PublicKey.from_did(made["did"])
    assert public == PublicKey.from_json(made["public"])
    secret = key_files.load_signing(tmp_path / "config" / "keys", "ada")
    public.verify(b"message", secret.sign(b"message"))
    assert ropewalk("key", "show", "ada", "--did").text.strip() == made["did"]
    assert json.loads(ropewalk("key", "show", "ada", "--public").text) == made["public"]


def test_a_sealing_key_has_an_id_and_no_public_side(ropewalk, tmp_path):
    made = ropewalk("key", "new", "vault", "--alg", "xchacha20poly1305", "--json").json
    assert "did" not in made and len(made["key_id"]) == 16
    assert ropewalk("key", "show", "vault", "--did").code == 3
    folder = tmp_path / "config" / "keys"
    assert key_files.load_sealing(folder, "vault").secret
    with pytest.raises(InvalidKey):
        key_files.load_signing(folder, "vault")


def test_a_private_key_is_a_file_of_mode_0600_and_never_printed(ropewalk, tmp_path):
    said = ropewalk("key", "new", "ada").text
    path = tmp_path / "config" / "keys" / "ada.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    secret = json.loads(path.read_text())["secret"]
    shown = [said, ropewalk("key", "ls").text, ropewalk("key", "show", "ada", "--json").text]
    assert not any(secret in text for text in shown)
    assert [p.name for p in path.parent.iterdir()] == ["ada.json"]


def test_a_name_that_is_taken_is_refused_and_the_key_stays(ropewalk, tmp_path):
    ropewalk("key", "new", "ada")
    before = (tmp_path / "config" / "keys" / "ada.json").read_bytes()
    answer = ropewalk("key", "new", "ada", "--json")
    assert (answer.code, answer.json["code"]) == (4, "Conflict")
    assert (tmp_path / "config" / "keys" / "ada.json").read_bytes() == before


@pytest.mark.parametrize("name", ["../evil", "a/b", "", ".hidden", "x" * 65, "a\nb"])
def test_a_name_that_is_no_file_name_is_refused(ropewalk, name):
    assert ropewalk("key", "new", name).code == 8


def test_ls_lists_by_name_and_an_empty_list_says_what_to_do(ropewalk):
    assert "key new" in ropewalk("key", "ls").text
    for name in ("zoe", "ada"):
        ropewalk("key", "new", name)
    assert [each["name"] for each in ropewalk("key", "ls", "--json").json["keys"]] == ["ada", "zoe"]


def test_an_unknown_key_ends_with_3(ropewalk):
    assert ropewalk("key", "show", "nobody").code == 3


DAMAGES = {
    "empty": b"",
    "no members": b"{}",
    "unknown algorithm": b'{"version":1,"alg":"rot13","secret":"00"}',
    "no text": b"\xff",
    "no object": b"[]",
    "nested": b"[" * 100_000,
    "public key cut": b'{"version":1,"alg":"ed25519","secret":"%s","public_key":"00"}' % (b"11" * 32),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_key_file_is_named_and_left_alone(ropewalk, tmp_path, damage):
    folder = tmp_path / "config" / "keys"
    folder.mkdir(parents=True)
    (folder / "ada.json").write_bytes(damage)
    answer = ropewalk("key", "show", "ada")
    assert answer.code == 8
    assert "ada.json" in answer.err
    assert (folder / "ada.json").read_bytes() == damage


def test_a_folder_that_cannot_be_written_is_unavailable(ropewalk, tmp_path):
    (tmp_path / "config").write_text("a file where a folder should be")
    assert ropewalk("key", "new", "ada").code == 7


def test_what_a_crash_left_beside_a_key_is_not_the_key(tmp_path):
    folder = tmp_path / "keys"
    folder.mkdir()
    # As an earlier process of the same number may have left it.
    left = folder / f".ada.json.{os.getpid()}.tmp"
    left.write_bytes(b"half a k")
    assert key_files.make(folder, "ada", "ed25519", bytes(32)).name == "ada"
    assert left.read_bytes() == b"half a k"
    assert [each.name for each in key_files.ls(folder)] == ["ada"]


def test_the_command_offers_what_the_store_knows():
    assert key_command.ALGORITHMS == key_files.ALGORITHMS


def test_a_script_makes_a_key_once_and_keeps_it_after(ropewalk):
    first = ropewalk("key", "new", "ada", "--if-missing", "--json").json
    again = ropewalk("key", "new", "ada", "--if-missing", "--json").json
    assert (first["kept"], again["kept"], first["did"]) == (False, True, again["did"])
    assert ropewalk("key", "new", "ada", "--if-missing").text.endswith("  (it was there already)\n")


def test_key_new_refuses_key_of_other_kind(ropewalk):
    assert ropewalk("key", "new", "ada").code == 0
    answer = ropewalk("key", "new", "ada", "--alg", "p256", "--if-missing")
    assert answer.code == 4 and "must have the algorithm p256, got ed25519" in answer.err
    assert "--if-missing" not in answer.err  # it was given, and does not help
    assert ropewalk("key", "new", "ada").code == 4
