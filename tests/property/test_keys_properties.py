"""No changed signature, message or key verifies, and every key survives its texts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import InvalidKey, SigInvalid
from ropewalk.kernel.keys import ALGORITHMS, PublicKey, SigningKey

MOST = settings(max_examples=60, deadline=None)
keys = st.builds(SigningKey.generate, st.sampled_from(ALGORITHMS), st.binary(min_size=32, max_size=32))
messages = st.binary(max_size=200)


@MOST
@given(keys, messages, st.integers(0, 511))
def test_no_signature_with_a_flipped_bit_verifies(key, message, bit):
    changed = int.from_bytes(key.sign(message), "big") ^ 1 << bit
    with pytest.raises(SigInvalid):
        key.public.verify(message, changed.to_bytes(64, "big"))


@MOST
@given(keys, messages, messages)
def test_no_other_message_verifies(key, message, other):
    signature = key.sign(message)
    key.public.verify(message, signature)
    if other != message:
        with pytest.raises(SigInvalid):
            key.public.verify(other, signature)


@MOST
@given(keys, messages, st.data())
def test_no_key_with_a_flipped_bit_verifies(key, message, data):
    raw = key.public.raw
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    changed = (int.from_bytes(raw, "big") ^ 1 << bit).to_bytes(len(raw), "big")
    with pytest.raises((SigInvalid, InvalidKey)):
        PublicKey(key.alg, changed).verify(message, key.sign(message))


@MOST
@given(keys, messages, st.binary(min_size=64, max_size=64))
def test_random_bytes_are_no_signature(key, message, signature):
    with pytest.raises(SigInvalid):
        key.public.verify(message, signature)


@MOST
@given(keys)
def test_a_key_survives_did_key_and_json(key):
    assert PublicKey.from_did(key.public.did()) == key.public
    assert PublicKey.from_json(key.public.to_json()) == key.public


@MOST
@given(st.text(max_size=120))
def test_any_text_is_a_key_or_an_invalid_key(text):
    for prefix in ("", "did:key:z", "did:key:z6Mk"):
        try:
            key = PublicKey.from_did(prefix + text)
        except InvalidKey:
            continue
        assert key.did() == prefix + text


@MOST
@given(st.sampled_from(ALGORITHMS), st.binary(min_size=30, max_size=35))
def test_any_bytes_are_a_key_that_can_be_asked_or_no_key(alg, raw):
    try:
        key = PublicKey(alg, raw)
    except InvalidKey:
        return
    with pytest.raises(SigInvalid):  # never a foreign error: the libraries agree that the point exists
        key.verify(b"rope", b"\x05" * 64)
