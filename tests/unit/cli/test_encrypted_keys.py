"""Encrypted key files: one loader, passphrases from files, the environment or a terminal, modes enforced."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_decrypt
from tests.serving import call, serving
from tests.waiting import LIMIT_S

from ropewalk.cli.common import passphrase as source
from ropewalk.cli.common.command import Session
from ropewalk.disk import key_encryption, key_files
from ropewalk.errors import Invalid, InvalidKey, Unavailable
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.keys.rotate import find_keys

SECRET = b"correct horse battery"


@pytest.fixture(autouse=True)
def cheap(monkeypatch):
    """The least cost that is accepted, and nothing opened before."""
    monkeypatch.setattr(key_encryption, "LOG2_N", key_encryption.LOG2_N_MIN)
    monkeypatch.setattr(key_encryption, "_opened", {})
    monkeypatch.setattr(key_encryption, "_source", None)


@pytest.mark.parametrize("alg", ["ed25519", "p256", "secp256k1"])
def test_encrypted_key_signs_as_before(tmp_path, alg):
    made = key_files.make(tmp_path, "ada", alg, bytes(range(32)), SECRET)
    assert (made.protection, stat.S_IMODE((tmp_path / "ada.json").stat().st_mode)) == ("passphrase", 0o600)
    plain = SigningKey.generate(alg, bytes(range(32)))
    assert plain.secret.hex() not in (tmp_path / "ada.json").read_text()
    assert key_files.load_signing(tmp_path, "ada", SECRET) == plain
    assert key_files.load_signing(tmp_path, "ada") == plain  # stays open for the process


def test_encrypted_sealing_key_keeps_its_id(tmp_path):
    before = key_files.make(tmp_path, "vault", "xchacha20poly1305", bytes(range(32)))
    after = key_files.protect(tmp_path, "vault", SECRET)
    assert (after.key_id, after.protection) == (before.key_id, "passphrase")
    assert key_files.load_sealing(tmp_path, "vault", SECRET).secret == bytes(range(32))


def test_encrypted_form_is_the_documented_one(tmp_path):
    """Opened by other libraries, from docs/reference/ledger.md alone."""
    key_files.make(tmp_path, "ada", "ed25519", bytes(range(32)), SECRET)
    document = json.loads((tmp_path / "ada.json").read_bytes())
    sealed, kdf = bytes.fromhex(document.pop("encrypted")), document["kdf"]
    scrypt = Scrypt(bytes.fromhex(kdf["salt"]), 56, 2 ** kdf["log2_n"], kdf["r"], kdf["p"])
    derived = scrypt.derive(SECRET)
    bound = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    opened = crypto_aead_xchacha20poly1305_ietf_decrypt(sealed, bound, derived[32:], derived[:32])
    assert opened == bytes(range(32))


@pytest.mark.parametrize("member", ["public_key", "salt", "encrypted"])
def test_changed_member_does_not_open(tmp_path, member):
    key_files.make(tmp_path, "ada", "ed25519", bytes(range(32)), SECRET)
    document = json.loads((tmp_path / "ada.json").read_bytes())
    held = document["kdf"] if member == "salt" else document
    other = SigningKey.generate("ed25519", bytes(32)).public.raw.hex()
    held[member] = other if member == "public_key" else "0" * len(held[member])
    (tmp_path / "ada.json").write_text(json.dumps(document))
    with pytest.raises(Unavailable, match="passphrase is wrong"):
        key_files.load_signing(tmp_path, "ada", SECRET)


def test_public_key_of_another_secret_is_damaged(tmp_path):
    key_files.make(tmp_path, "ada", "ed25519", bytes(range(32)))
    document = json.loads((tmp_path / "ada.json").read_bytes())
    document["public_key"] = SigningKey.generate("ed25519", bytes(32)).public.raw.hex()
    (tmp_path / "ada.json").write_text(json.dumps(document))
    with pytest.raises(InvalidKey, match="no key file"):
        key_files.load_signing(tmp_path, "ada")


@pytest.mark.parametrize("log2_n", [4, 13, 21, 40, True, "14"])
def test_cost_out_of_bounds_is_refused(tmp_path, log2_n):
    key_files.make(tmp_path, "ada", "ed25519", bytes(range(32)), SECRET)
    document = json.loads((tmp_path / "ada.json").read_bytes())
    document["kdf"]["log2_n"] = log2_n
    (tmp_path / "ada.json").write_text(json.dumps(document))
    with pytest.raises(InvalidKey, match="no key file"):
        key_files.load_signing(tmp_path, "ada", SECRET)


def test_wrong_passphrase_is_not_remembered(tmp_path):
    key_files.make(tmp_path, "ada", "ed25519", bytes(range(32)), SECRET)
    for wrong in (b"", b"correct horse batterz", SECRET + b"\n"):
        with pytest.raises(Unavailable, match="passphrase is wrong"):
            key_files.load_signing(tmp_path, "ada", wrong)
    with pytest.raises(Unavailable, match="needs a passphrase"):
        key_files.load_signing(tmp_path, "ada")
    key_files.load_signing(tmp_path, "ada", SECRET)
    with pytest.raises(Unavailable, match="passphrase is wrong"):  # an open key is still asked for
        key_files.load_signing(tmp_path, "ada", b"correct horse batterz")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644])
def test_key_that_others_read_is_refused(tmp_path, mode):
    key_files.make(tmp_path, "ada", "ed25519", bytes(range(32)))
    (tmp_path / "ada.json").chmod(mode)
    with pytest.raises(Unavailable, match="must be readable by its owner only") as caught:
        key_files.load_signing(tmp_path, "ada")
    assert f"chmod 600 {tmp_path / 'ada.json'}" in str(caught.value.advice_now)
    with pytest.raises(Unavailable):
        key_files.protect(tmp_path, "ada", SECRET)
    assert key_files.read(tmp_path, "ada").public  # its public half may be shown


def test_short_passphrase_is_refused(tmp_path):
    for short in (b"", b"1234567", b"x" * 1025):
        with pytest.raises(Invalid, match="must have 8 to 1024 bytes"):
            key_files.make(tmp_path, "ada", "ed25519", bytes(32), short)
    assert key_files.ls(tmp_path) == []


def test_change_overwrites_the_old_file(tmp_path):
    key_files.make(tmp_path, "ada", "ed25519", bytes(range(32)))
    with (tmp_path / "ada.json").open("rb") as before:
        key_files.protect(tmp_path, "ada", SECRET)
        assert set(before.read()) == {0}
    key_files.protect(tmp_path, "ada", b"another passphrase", SECRET)
    with pytest.raises(Unavailable, match="passphrase is wrong"):
        key_files.load_signing(tmp_path, "ada", SECRET)
    assert key_files.protect(tmp_path, "ada", None, b"another passphrase").protection == "none"
    assert [path.name for path in tmp_path.iterdir()] == ["ada.json"]


def test_locked_key_hides_no_other(tmp_path):
    """A replaced key that cannot be opened is left out; the channel's current key is asked for."""
    from ropewalk.ledger.keys.history import KeyHistory
    from ropewalk.ledger.proof.trust import Trust

    first = key_files.make(tmp_path, "first", "ed25519", bytes(32), SECRET).public
    assert first is not None
    second = key_files.make(tmp_path, "second", "ed25519", b"2" * 32).public
    assert second is not None
    assert [key.public for key in find_keys(KeyHistory(Trust((first, second), ())), tmp_path)] == [second]
    with pytest.raises(Unavailable, match='"first" needs a passphrase'):
        find_keys(KeyHistory(Trust((second, first), ())), tmp_path)


def test_passphrase_leaves_the_environment(monkeypatch):
    monkeypatch.setenv("ROPEWALK_PASSPHRASE", "correct horse battery")
    monkeypatch.setattr(source, "_given", "")
    source.take_from_environment()
    assert "ROPEWALK_PASSPHRASE" not in os.environ
    assert source.current_passphrase(Session(), "ada") == SECRET


@pytest.mark.parametrize("raw", [b"", b"\n", b"two\nlines\n", b"x" * 1025])
def test_passphrase_file_has_one_line(tmp_path, raw):
    path = tmp_path / "pass"
    path.write_bytes(raw)
    path.chmod(0o600)
    with pytest.raises(Invalid, match="must have one line"):
        source.read_passphrase(str(path))
    path.write_bytes(b"correct horse battery\r\n")
    assert source.read_passphrase(str(path)) == SECRET
    path.chmod(0o640)
    with pytest.raises(Unavailable, match="owner only"):
        source.read_passphrase(str(path))


def test_credential_of_systemd_is_read(tmp_path, monkeypatch):
    """Its access list shows as the group's right to read; in other folders that is refused."""
    path = tmp_path / "passphrase"
    path.write_bytes(SECRET)
    path.chmod(0o440)
    with pytest.raises(Unavailable, match="owner only"):
        source.read_passphrase(str(path))
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert source.read_passphrase(str(path)) == SECRET
    for mode in (0o444, 0o460):
        path.chmod(mode)
        with pytest.raises(Unavailable, match="owner only"):
            source.read_passphrase(str(path))


@pytest.mark.parametrize("channels", [(), ("ops",)])
def test_service_without_passphrase_does_not_start(log, tmp_path, channels):
    for name in channels:
        assert log("ledger", "create", "--channel", name).code == 0
    key_files.protect(tmp_path / "log.git" / "ropewalk" / "keys", "node", SECRET)
    for service in (("serve", "--port", "0"), ("ledger", "serve", "--port", "0"), ("watch", "--once")):
        refused = log(*service)
        assert (refused.code, refused.out) == (7, b""), service
        assert 'key "node" needs a passphrase' in refused.err
    wrong = log("serve", "--port", "0", env_more={"ROPEWALK_PASSPHRASE": "correct horse"})
    assert wrong.code == 7 and "passphrase is wrong" in wrong.err


def test_witness_without_passphrase_does_not_start(log, tmp_path):
    assert log("key", "new", "watcher").code == 0
    assert log("witness", "init", "watch", "--name", "w.example", "--key", "watcher").code == 0
    (path,) = tmp_path.rglob("watcher.json")
    key_files.protect(path.parent, "watcher", SECRET)
    refused = log("witness", "serve", "watch", "--port", "0")
    assert (refused.code, refused.out) == (7, b"") and 'key "watcher" needs a passphrase' in refused.err


def test_channel_without_its_key_stops_no_service(log, tmp_path):
    for name in ("ops", "audit"):
        assert log("ledger", "create", "--channel", name).code == 0
    key_files.protect(tmp_path / "log.git" / "ropewalk" / "keys", "node", SECRET)
    (tmp_path / "log.git" / "ropewalk" / "ledger" / "audit" / "channel.json").write_bytes(b"{}")
    watched = log("watch", "--once", env_more={"ROPEWALK_PASSPHRASE": SECRET.decode()})
    assert "channel audit cannot be written" in watched.err and "passphrase" not in watched.err


@pytest.mark.slow
def test_serve_seals_with_a_credential(tmp_path):
    """As under systemd: the passphrase is a credential, opened before the ready line."""
    credentials = tmp_path / "credentials"
    credentials.mkdir(mode=0o700)
    (credentials / "passphrase").write_bytes(SECRET)
    (credentials / "passphrase").chmod(0o440)
    given = {
        "CREDENTIALS_DIRECTORY": str(credentials),
        "ROPEWALK_PASSPHRASE_FILE": f"{credentials}/passphrase",
    }
    assert call(tmp_path, "init", "log.git").returncode == 0
    key_files.protect(tmp_path / "log.git" / "ropewalk" / "keys", "node", SECRET)
    call(tmp_path, "key", "new", "ada")
    made = call(
        tmp_path, "ledger", "envelope", "--channel", "ops", "--domain", "ops", "--class", "Observation",
        "--type", "t", "--payload", "-", "--key", "ada", stdin=b"{}",
    )  # fmt: skip
    with serving(tmp_path, env=given) as server:
        (credentials / "passphrase").unlink()
        answer = server("POST", "/channels/ops/envelopes", json.loads(made.stdout))
        assert answer.status == 201, answer


def test_commands_sign_with_an_encrypted_key(ropewalk, tmp_path):
    (tmp_path / "pass").write_text("correct horse battery\n")
    (tmp_path / "pass").chmod(0o600)
    assert ropewalk("init", "r.git").code == 0
    opened = {"ROPEWALK_REPO": "r.git", "ROPEWALK_PASSPHRASE_FILE": "pass"}
    key_files.protect(tmp_path / "r.git" / "ropewalk" / "keys", "node", SECRET)
    (tmp_path / "body.json").write_text("{}")
    envelope = (
        "ledger",
        "envelope",
        "--domain",
        "ops",
        "--class",
        "Observation",
        "--type",
        "t",
        "--key",
        "node",
    )
    words = (*envelope, "--channel", "ops", "--payload", "body.json")
    closed = ropewalk(*words, env={"ROPEWALK_REPO": "r.git"})
    assert (closed.code, closed.out) == (7, b"")
    assert 'key "node" needs a passphrase' in closed.err
    signed = ropewalk(*words, "--passphrase-file", "pass", env={"ROPEWALK_REPO": "r.git"})
    assert signed.code == 0
    wrong = {"ROPEWALK_REPO": "r.git", "ROPEWALK_PASSPHRASE": "correct horse"}
    refused = ropewalk("ledger", "append", "--channel", "ops", "--file", "-", stdin=signed.out, env=wrong)
    assert refused.code == 7
    assert "passphrase is wrong" in refused.err and "correct horse" not in refused.err
    done = ropewalk("ledger", "append", "--channel", "ops", "--file", "-", stdin=signed.out, env=opened)
    assert done.code == 0


@pytest.mark.slow
def test_encrypt_changes_and_decrypt_removes(ropewalk, tmp_path):
    for name, text in (("pass", "correct horse battery"), ("next", "another passphrase")):
        (tmp_path / name).write_text(f"{text}\n")
        (tmp_path / name).chmod(0o600)
    made = ropewalk("key", "new", "ada", "--encrypt", "--passphrase-file", "pass", "--json")
    assert (made.code, made.json["protection"]) == (0, "passphrase")
    opened = {"ROPEWALK_PASSPHRASE_FILE": "pass"}
    assert ropewalk("key", "encrypt", "ada", "--new-passphrase-file", "next", env=opened).code == 0
    assert ropewalk("key", "decrypt", "ada", env=opened).code == 7
    plain = ropewalk("key", "decrypt", "ada", "--passphrase-file", "next", "--json")
    assert plain.json["did"] == made.json["did"]
    assert "protection" not in plain.json


@pytest.mark.slow
def test_terminal_asks_and_does_not_echo(tmp_path):
    """A real terminal: the passphrase is asked twice for a new key, and never shown."""
    command = Path(sys.executable).with_name("ropewalk")
    leader, follower = pty.openpty()
    environment = {**os.environ, "ROPEWALK_CONFIG": str(tmp_path), "LANG": "C.UTF-8"}
    started = subprocess.Popen(
        [command, "key", "new", "ada", "--encrypt"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment,
        start_new_session=True,
    )
    os.close(follower)
    shown = b""
    try:
        for asked in (b"New passphrase", b"Repeat for confirmation"):
            while asked not in shown:
                shown += os.read(leader, 4096)
            os.write(leader, SECRET + b"\n")
        assert started.wait(LIMIT_S) == 0
    finally:
        started.kill()
        started.wait(LIMIT_S)
        os.close(leader)
    assert SECRET not in shown
    assert key_files.load_signing(tmp_path / "keys", "ada", SECRET)
