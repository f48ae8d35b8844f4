"""ML-DSA-44 cosignatures (C2SP tlog-cosignature, type 6): what is signed, what is refused, and a stored one."""

from __future__ import annotations

import sys
from base64 import b64decode
from pathlib import Path

import pytest
from cryptography.hazmat.backends.openssl.backend import Backend
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PublicKey

from ropewalk.disk import key_files
from ropewalk.errors import InvalidKey, InvalidNote, SigInvalid, Unavailable
from ropewalk.kernel.digest import sha256
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.note.key import SignatureType, Signer, Verifier
from ropewalk.kernel.note.ml_dsa import MlDsaPublicKey, MlDsaSigningKey
from ropewalk.kernel.note.note import SignedHead, cosign_head, open_head, sign_head, sign_note

STORED = Path(__file__).with_name("ml_dsa_44.note")  # signed once; FIPS 204 signatures differ each time
LOG = Signer("log.example", SigningKey.generate("ed25519", bytes(32)))
WITNESS = Signer("w.example", MlDsaSigningKey(b"w" * 32), SignatureType.ML_DSA_44)
HEAD = SignedHead("log.example", 7, bytes(range(32)))
TIME_S = 1_700_000_000


def by_hand(name: bytes, origin: bytes, time_s: int, size: int, root: bytes) -> bytes:
    """The structure of the specification, written down field by field."""
    message = b"subtree/v1\n\x00" + len(name).to_bytes(1, "big") + name + time_s.to_bytes(8, "big")
    message += len(origin).to_bytes(1, "big") + origin + (0).to_bytes(8, "big") + size.to_bytes(8, "big")
    return message + root


def cosigned(head: SignedHead = HEAD, witness: Signer = WITNESS) -> bytes:
    return cosign_head(sign_head(head, LOG), witness, TIME_S)


@pytest.mark.parametrize("raw", [cosigned(), STORED.read_bytes()], ids=["made now", "stored"])
def test_ml_dsa_cosignature_is_that_of_c2sp(raw):
    _, note = open_head(raw, LOG.verifier, [WITNESS.verifier])
    found = note.signed_by(WITNESS.verifier)
    assert found is not None and found.time_s == TIME_S
    line = raw.decode().splitlines()[-1].split(" ")
    whole, public = b64decode(line[2]), WITNESS.key.public.raw
    assert (line[1], whole[:4]) == ("w.example", sha256(b"w.example\n\x06" + public)[:4])
    message = by_hand(b"w.example", b"log.example", TIME_S, 7, HEAD.root)
    assert whole[4:12] == TIME_S.to_bytes(8, "big")
    MLDSA44PublicKey.from_public_bytes(public).verify(whole[12:], message)


@pytest.mark.parametrize(
    "change",
    [
        {"size": 8},
        {"root": bytes(32)},
        {"origin": "log.example2"},
    ],
    ids=str,
)
def test_ml_dsa_cosignature_binds_the_head(change):
    fields = {"origin": HEAD.origin, "size": HEAD.size, "root": HEAD.root, **change}
    other = SignedHead(**fields).to_text()
    signature = WITNESS.cosign(HEAD.to_text(), TIME_S)
    assert WITNESS.verifier.verify(HEAD.to_text(), signature) == TIME_S
    assert WITNESS.verifier.verify(HEAD.to_text() + "more\n", signature) == TIME_S  # the log signs extensions
    with pytest.raises(SigInvalid):
        WITNESS.verifier.verify(other, signature)


def test_ml_dsa_cosignature_binds_name_and_time():
    text, signature = HEAD.to_text(), WITNESS.cosign(HEAD.to_text(), TIME_S)
    renamed = Verifier("v.example", WITNESS.verifier.key, SignatureType.ML_DSA_44)
    later = (TIME_S + 1).to_bytes(8, "big") + signature[8:]
    for verifier, raw in (
        (renamed, signature),
        (WITNESS.verifier, later),
        (WITNESS.verifier, signature[:-1]),
        (WITNESS.verifier, signature + b"\0"),
        (WITNESS.verifier, signature[:-1] + bytes([signature[-1] ^ 1])),
        (
            WITNESS.verifier,
            bytes(8) + WITNESS.key.sign(by_hand(b"w.example", b"log.example", 0, 7, HEAD.root)),
        ),
    ):
        with pytest.raises(SigInvalid):
            verifier.verify(text, raw)
    far = SignedHead("l" * 300, 7, HEAD.root).to_text()
    for odd in ("no head\n", HEAD.to_text().replace("\n7\n", "\n07\n"), far):
        for raw in (signature, b"junk"):
            with pytest.raises(SigInvalid):
                WITNESS.verifier.verify(odd, raw)


def test_ml_dsa_keys_keep_their_text_form_and_place(tmp_path):
    text = WITNESS.verifier.to_text()
    assert Verifier.from_text(text) == WITNESS.verifier and text.split("+")[2].startswith("B")
    assert Signer.from_secret_text(WITNESS.to_secret_text()).verifier == WITNESS.verifier
    with pytest.raises(InvalidKey, match="makes cosignatures"):
        sign_note("hello\n", WITNESS)
    for key, kind in ((WITNESS.key, SignatureType.COSIGNATURE), (LOG.key, SignatureType.ML_DSA_44)):
        with pytest.raises(InvalidKey, match="notes are signed with"):
            Signer("x", key, kind)
    for wrong in (lambda: MlDsaPublicKey(bytes(32)), lambda: MlDsaSigningKey(bytes(31)).public):
        with pytest.raises(InvalidKey):
            wrong()
    with pytest.raises(InvalidKey, match="255 bytes"):
        Signer("w" * 256, WITNESS.key, SignatureType.ML_DSA_44)
    with pytest.raises(InvalidNote, match="255 bytes"):
        WITNESS.cosign(SignedHead("l" * 256, 7, HEAD.root).to_text(), TIME_S)
    made = key_files.make(tmp_path, "w", "ml-dsa-44", b"w" * 32)
    assert made.public is None and key_files.ls(tmp_path) == [made]
    assert key_files.load_cosigning(tmp_path, "w") == WITNESS.key
    with pytest.raises(InvalidKey, match="signs nothing else"):
        key_files.load_signing(tmp_path, "w")
    assert "7777" not in repr(WITNESS.key)
    key_files.protect(tmp_path, "w", b"four words at least")
    assert key_files.read(tmp_path, "w").protection == "passphrase"


@pytest.mark.parametrize("lacks", ["module", "backend"])
def test_ml_dsa_missing_is_unavailable(monkeypatch, lacks):
    signature = WITNESS.cosign(HEAD.to_text(), TIME_S)
    if lacks == "module":
        monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.mldsa", None)
    else:
        monkeypatch.setattr(Backend, "mldsa_supported", lambda self: False)
    for act in (
        lambda: WITNESS.verifier.verify(HEAD.to_text(), signature),
        lambda: MlDsaSigningKey(b"w" * 32).public,
        lambda: MlDsaSigningKey(b"w" * 32).sign(b"rope"),
    ):
        with pytest.raises(Unavailable, match="no ML-DSA-44"):
            act()
