"""Sealing: what was sealed opens for the same key, nonce and context, and for nothing else."""

from __future__ import annotations

import pytest

from ropewalk.errors import InvalidKey, SigInvalid
from ropewalk.kernel.seal import SealingKey, hkdf_sha256

KEY = SealingKey(bytes(range(0x80, 0xA0)))
NONCE = bytes(range(0x40, 0x58))
AAD = bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
TEXT = (
    b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, "
    b"sunscreen would be it."
)


def test_sealing_equals_the_published_xchacha20poly1305_vector():
    # draft-irtf-cfrg-xchacha-03, appendix A.3.1
    sealed = KEY.seal(NONCE, TEXT, AAD)
    assert sealed[:16].hex() == "bd6d179d3e83d43b9576579493c0e939"
    assert sealed[-16:].hex() == "c0875924c1c7987947deafd8780acf49"
    assert KEY.open(NONCE, sealed, AAD) == TEXT


def test_empty_text_and_context_can_be_sealed():
    sealed = KEY.seal(NONCE, b"", b"")
    assert len(sealed) == 16
    assert KEY.open(NONCE, sealed, b"") == b""


@pytest.mark.parametrize("position", [0, 50, -1])
def test_changed_bytes_do_not_open(position):
    sealed = bytearray(KEY.seal(NONCE, TEXT, AAD))
    sealed[position] ^= 1
    with pytest.raises(SigInvalid):
        KEY.open(NONCE, bytes(sealed), AAD)


def test_other_key_nonce_or_context_does_not_open():
    sealed = KEY.seal(NONCE, TEXT, AAD)
    for key, nonce, aad in (
        (SealingKey(bytes(32)), NONCE, AAD),
        (KEY, bytes(24), AAD),
        (KEY, NONCE, AAD + b"!"),
        (KEY, NONCE, b""),
    ):
        with pytest.raises(SigInvalid):
            key.open(nonce, sealed, aad)


@pytest.mark.parametrize("sealed", [b"", b"short", bytes(15), bytes(16)])
def test_what_was_never_sealed_does_not_open(sealed):
    with pytest.raises(SigInvalid):
        KEY.open(NONCE, sealed, AAD)


@pytest.mark.parametrize("length", [0, 12, 23, 25])
def test_nonces_have_24_bytes(length):
    with pytest.raises(InvalidKey):
        KEY.seal(bytes(length), TEXT, AAD)
    with pytest.raises(InvalidKey):
        KEY.open(bytes(length), TEXT, AAD)


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(33), "0" * 32])
def test_sealing_keys_have_32_bytes(secret):
    with pytest.raises(InvalidKey):
        SealingKey(secret)


def test_repr_never_shows_the_secret():
    assert repr(KEY) == "SealingKey()"


def test_hkdf_equals_rfc_5869():
    # RFC 5869, test cases 1 and 3
    secret = b"\x0b" * 22
    first = hkdf_sha256(secret, bytes.fromhex("f0f1f2f3f4f5f6f7f8f9"), 42, bytes(range(13)))
    assert first.hex().startswith("3cb25f25faacd57a90434f64d0362f2a")
    third = hkdf_sha256(secret, b"", 42)
    assert third.hex().startswith("8da4e775a563c18f715f802a063c5a31")
