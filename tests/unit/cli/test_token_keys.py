"""Keys in a PKCS#11 token, shown with SoftHSM: the secret never leaves it, and every command signs with it."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.tools import needs
from tests.waiting import LIMIT_S

from ropewalk.disk import key_encryption, key_files, token_keys
from ropewalk.errors import Conflict, InvalidKey, Unavailable

MODULE = next(
    (
        path
        for path in map(
            Path, ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so")
        )
        if path.exists()
    ),
    Path("libsofthsm2.so"),
)
PIN = "4321 four"
needs_token = needs("softhsm2-util")
URI = f"pkcs11:token=rope%20walk;object={{}}?module-path={MODULE}"


@pytest.fixture(scope="module")
def token(tmp_path_factory):
    """An initialised token in a folder; the library reads its configuration once a process."""
    folder = tmp_path_factory.mktemp("token")
    (folder / "objects").mkdir()
    (folder / "softhsm2.conf").write_text(f"directories.tokendir = {folder / 'objects'}\nlog.level = ERROR\n")
    patch = pytest.MonkeyPatch()
    patch.setenv("SOFTHSM2_CONF", str(folder / "softhsm2.conf"))
    words = ("--init-token", "--free", "--label", "rope walk", "--so-pin", "12345678", "--pin", PIN)
    subprocess.run(["softhsm2-util", *words], check=True, capture_output=True, timeout=LIMIT_S)
    (folder / "pin").write_text(f"{PIN}\n")
    (folder / "pin").chmod(0o600)
    yield folder
    patch.undo()


@pytest.fixture(autouse=True)
def pin(monkeypatch):
    """The PIN comes from where passphrases come from; nothing is open."""
    monkeypatch.setattr(key_encryption, "_source", lambda _name: PIN.encode())
    monkeypatch.setattr(token_keys, "_opened", {})


@needs_token
@pytest.mark.parametrize("alg", ["ed25519", "p256", "secp256k1"])
def test_token_key_signs_what_verifiers_accept(token, tmp_path, alg):
    made, found = key_files.make_in_token(tmp_path, "hsm", alg, URI.format(alg))
    assert (made.alg, made.protection, found) == (alg, "token", False)
    key = key_files.load_signing(tmp_path, "hsm")
    assert key.public == made.public
    for number in range(20):  # half of all ECDSA signatures have the higher s
        key.public.verify(b"%d" % number, key.sign(b"%d" % number))
    again, found = key_files.make_in_token(tmp_path, "again", alg, URI.format(alg))
    assert (again.public, found) == (made.public, True)


@needs_token
def test_token_key_gives_no_secret(token, tmp_path):
    key_files.make_in_token(tmp_path, "hsm", "ed25519", URI.format("secretless"))
    key = key_files.load_signing(tmp_path, "hsm")
    for reading in (
        lambda: key.secret,
        lambda: pickle.dumps(key),
        lambda: key_files.load_secret(tmp_path, "hsm"),
    ):
        with pytest.raises(InvalidKey):
            reading()
    with pytest.raises(InvalidKey, match="stays in its token"):
        key_files.protect(tmp_path, "hsm", b"a passphrase")
    assert PIN not in (tmp_path / "hsm.json").read_text() and "secret" not in repr(key)


@needs_token
def test_token_key_signs_from_many_threads(token, tmp_path):
    key_files.make_in_token(tmp_path, "hsm", "ed25519", URI.format("threads"))
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            key = key_files.load_signing(tmp_path, "hsm")
            key.public.verify(b"%d" % number, key.sign(b"%d" % number))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(LIMIT_S)
    assert failed == []


@needs_token
def test_token_with_another_key_is_noticed(token, tmp_path):
    key_files.make_in_token(tmp_path, "one", "ed25519", URI.format("one"))
    key_files.make_in_token(tmp_path, "two", "ed25519", URI.format("two"))
    document = json.loads((tmp_path / "one.json").read_bytes())
    document["pkcs11"] = URI.format("two")
    (tmp_path / "one.json").write_text(json.dumps(document))
    with pytest.raises(Exception, match="equation does not hold"):
        key_files.load_signing(tmp_path, "one").sign(b"message")


@needs_token
def test_token_errors_are_clear(token, tmp_path, monkeypatch):
    key_files.make_in_token(tmp_path, "hsm", "ed25519", URI.format("clear"))
    with pytest.raises(Conflict, match="exists already"):
        key_files.make_in_token(tmp_path, "hsm", "ed25519", URI.format("clear"))
    for uri, why in (
        (URI.format("x").replace("rope%20walk", "other"), "PKCS#11: "),
        (URI.format("x").replace(str(MODULE), "/nowhere.so"), "PKCS#11: "),
    ):
        with pytest.raises(Unavailable, match=why):
            key_files.make_in_token(tmp_path, "new", "ed25519", uri)
    assert [each.name for each in key_files.ls(tmp_path)] == ["hsm"]
    document = json.loads((tmp_path / "hsm.json").read_bytes())
    document["pkcs11"] = URI.format("gone")
    (tmp_path / "hsm.json").write_text(json.dumps(document))
    with pytest.raises(Unavailable, match="no private key 'gone'"):
        key_files.load_signing(tmp_path, "hsm")


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("pkcs11:token=a;object=b", "expected token or serial"),
        ("pkcs11:object=b?module-path=/x", "expected token or serial"),
        ("token=a;object=b?module-path=/x", "expected token or serial"),
        ("pkcs11:token=a;object=b?module-path=/x&pin-value=1234", "the PIN must not be in it"),
        ("pkcs11:token=a;token=b;object=b?module-path=/x", "unknown or repeated 'token'"),
        ("pkcs11:token=a;slot-id=1;object=b?module-path=/x", "unknown or repeated 'slot-id'"),
    ],
)
def test_uri_of_another_form_is_refused(uri, why):
    with pytest.raises(InvalidKey, match=why):
        token_keys.parse_uri(uri)


def test_missing_extra_names_the_install_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pkcs11", None)
    with pytest.raises(Unavailable, match="extra `hsm`"):
        key_files.make_in_token(tmp_path, "hsm", "ed25519", URI.format("x"))


@needs_token
def test_commands_seal_with_a_key_in_a_token(token, ropewalk, tmp_path):
    """A channel is rotated to a key in a token, appended to and verified; a wrong PIN is refused."""
    at = {"SOFTHSM2_CONF": str(token / "softhsm2.conf"), "ROPEWALK_REPO": "r.git"}
    uri = f"{URI.format('commands')}&pin-source=file:{token / 'pin'}"
    assert ropewalk("init", "r.git").code == 0
    made = ropewalk("key", "new", "hsm", "--pkcs11", uri, "--json", env=at)
    assert (made.code, made.json["protection"]) == (0, "token"), made
    assert ropewalk("ledger", "create", "--channel", "ops", env=at).code == 0
    assert ropewalk("ledger", "key", "rotate", "--channel", "ops", "--to", "hsm", env=at).code == 0
    (tmp_path / "body.json").write_text("{}")
    words = ("ledger", "envelope", "--channel", "ops", "--domain", "ops", "--class", "Alert", "--type", "t")
    signed = ropewalk(*words, "--payload", "body.json", "--key", "hsm", env=at)
    done = ropewalk("ledger", "append", "--channel", "ops", "--file", "-", stdin=signed.out, env=at)
    assert done.code == 0, done
    assert ropewalk("ledger", "verify", "--channel", "ops", "--deep", env=at).code == 0
    destroyed = ropewalk("ledger", "key", "destroy", "--channel", "ops", "hsm", env=at)
    assert destroyed.code == 4 and "is in a token" in destroyed.err
    other = {**at, "ROPEWALK_PASSPHRASE": "0000"}
    wrong = ropewalk("key", "new", "other", "--pkcs11", URI.format("other"), env=other)
    assert wrong.code == 7 and "PIN of the token is wrong" in wrong.err and "0000" not in wrong.err
