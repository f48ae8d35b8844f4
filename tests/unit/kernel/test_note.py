"""Notes say who signed what; heads say what a log was, by the log's own word."""

from __future__ import annotations

import traceback
from dataclasses import replace

import pytest

from ropewalk.errors import InvalidKey, InvalidNote, SigInvalid, TooLarge
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.merkle import SHA256, MerkleTree, verify_consistency
from ropewalk.kernel.note import note as notes
from ropewalk.kernel.note.key import is_key_name
from ropewalk.kernel.note.note import (
    SignatureType,
    SignedHead,
    Signer,
    Verifier,
    cosign_head,
    open_head,
    open_note,
    sign_head,
    sign_note,
)


def signer(name: str, seed: int, kind: SignatureType = SignatureType.ED25519) -> Signer:
    return Signer(name, SigningKey.generate("ed25519", bytes([seed]) * 32), kind)


LOG = signer("example.com/log", 1)
OTHER = signer("example.com/other", 2)
WITNESSES = [signer(f"witness.example/w{i}", 10 + i, SignatureType.COSIGNATURE) for i in range(3)]
HEAD = SignedHead("example.com/log", 7, bytes(range(32)))
RAW = sign_head(HEAD, LOG)


def test_a_head_travels_as_a_note_and_back():
    head, note = open_head(RAW, LOG.verifier)
    assert head == HEAD
    assert note.text == HEAD.to_text()
    assert note.signed_by(LOG.verifier) is not None
    assert note.signed_by(OTHER.verifier) is None


def test_witnesses_add_their_lines_and_their_times():
    raw = RAW
    for place, witness in enumerate(WITNESSES):
        raw = cosign_head(raw, witness, 1_700_000_000 + place)
    assert raw.startswith(RAW)
    head, note = open_head(raw, LOG.verifier, [each.verifier for each in WITNESSES])
    assert head == HEAD
    times = [found.time_s for each in WITNESSES if (found := note.signed_by(each.verifier))]
    assert times == [1_700_000_000, 1_700_000_001, 1_700_000_002]


def test_witnesses_alone_do_not_make_a_head():
    raw = cosign_head(sign_head(HEAD, OTHER), WITNESSES[0], 7)
    with pytest.raises(SigInvalid, match="not signed by its log"):
        open_head(raw, LOG.verifier, [WITNESSES[0].verifier])


def test_a_key_does_not_vouch_for_another_log():
    raw = sign_head(SignedHead("example.com/other", 7, bytes(32)), LOG)
    with pytest.raises(SigInvalid, match="was expected"):
        open_head(raw, LOG.verifier)


def test_a_note_that_is_no_head_is_refused_as_one():
    with pytest.raises(InvalidNote, match="three lines"):
        open_head(sign_note("hello\n", LOG), LOG.verifier)
    with pytest.raises(InvalidNote, match="three lines"):
        cosign_head(sign_note("hello\n", LOG), WITNESSES[0], 7)


def test_each_kind_of_key_signs_in_its_own_way_only():
    with pytest.raises(InvalidKey, match="cosignatures"):
        sign_note("hello\n", WITNESSES[0])
    with pytest.raises(InvalidKey, match="plain signatures"):
        cosign_head(RAW, LOG, 7)


@pytest.mark.parametrize("time_s", [-1, 2**63])
def test_a_cosignature_has_a_time_that_fits(time_s):
    with pytest.raises(InvalidNote, match="no time"):
        cosign_head(RAW, WITNESSES[0], time_s)


def test_heads_of_a_growing_log_are_signed_and_proved_consistent():
    tree = MerkleTree(hasher=SHA256)
    seen = []
    for batch in (3, 4, 9):
        tree.extend(SHA256.leaf(bytes([i])) for i in range(tree.size, tree.size + batch))
        raw = sign_head(SignedHead(LOG.name, tree.size, tree.root()), LOG)
        seen.append(open_head(raw, LOG.verifier)[0])
    old, *_, new = seen
    verify_consistency(old.size, new.size, tree.consistency(old.size), old.root, new.root, SHA256)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("origin", ""),
        ("origin", "two\nlines"),
        ("origin", "tab\t"),
        ("origin", "\ud800"),
        ("size", -1),
        ("size", 2**63),
        ("root", bytes(31)),
        ("extensions", ("",)),
        ("extensions", ("a\nb",)),
    ],
)
def test_a_head_that_could_not_be_read_back_cannot_be_made(field, value):
    with pytest.raises(InvalidNote):
        replace(HEAD, **{field: value})


def test_two_known_keys_with_one_id_are_refused_not_guessed(monkeypatch):
    monkeypatch.setattr(Verifier, "key_id", property(lambda self: b"same"))
    with pytest.raises(InvalidKey, match="share the id"):
        open_note(RAW, [LOG.verifier, replace(OTHER.verifier, name=LOG.name)])


def test_the_same_known_key_may_be_given_twice():
    assert len(open_note(RAW, [LOG.verifier, LOG.verifier]).verified) == 1


def test_a_secret_shows_neither_in_repr_nor_in_errors():
    secret = LOG.to_secret_text()
    encoded = secret.rpartition("+")[2]
    assert encoded not in repr(LOG)
    spoilt = [secret[:-1], secret + "A", secret.lower(), secret.replace(encoded, "!" + encoded)]
    for broken in spoilt:
        with pytest.raises(InvalidKey) as refusal:
            Signer.from_secret_text(broken)
        shown = "".join(traceback.format_exception(refusal.value, chain=True)) + str(refusal.value.fields)
        assert encoded[4:-4] not in shown


@pytest.mark.parametrize("verifier", [LOG.verifier, WITNESSES[0].verifier], ids=["plain", "witness"])
def test_a_key_with_any_character_left_out_is_refused(verifier):
    text = verifier.to_text()
    assert Verifier.from_text(text) == verifier
    for place in range(len(text)):
        with pytest.raises(InvalidKey):
            Verifier.from_text(text[:place] + text[place + 1 :])


def test_signers_travel_as_text():
    for each in (LOG, *WITNESSES):
        assert Signer.from_secret_text(each.to_secret_text()) == each


def test_only_ed25519_keys_sign_notes():
    with pytest.raises(InvalidKey, match="not p256"):
        Signer("example.com/log", SigningKey.generate("p256", bytes([1]) * 32))


@pytest.mark.parametrize("name", ["", " ", "a b", "a+b", "a\u2028b", "a\u00a0b", "a\x00b", "\ud800"])
def test_names_that_would_break_a_line_are_refused(name):
    assert not is_key_name(name)
    with pytest.raises(InvalidKey):
        signer(name, 1)


def test_limits_hold_exactly():
    at_most = notes.SIGNATURES_MAX
    assert len(open_note(sign_note("x\n", *[LOG] * at_most), [LOG.verifier]).verified) == 1
    with pytest.raises(TooLarge):
        sign_note("x\n", *[LOG] * (at_most + 1))
    line = sign_note("x\n", LOG).partition(b"\n\n")[2]
    room = notes.NOTE_BYTES_MAX - len(line) - 2
    assert len(sign_note("x" * room + "\n", LOG)) == notes.NOTE_BYTES_MAX
    with pytest.raises(TooLarge):
        sign_note("x" * (room + 1) + "\n", LOG)


def test_a_witness_is_not_asked_to_make_an_unreadable_note():
    full = sign_head(HEAD, *[LOG] * notes.SIGNATURES_MAX)
    with pytest.raises(TooLarge):
        cosign_head(full, WITNESSES[0], 7)


def test_a_public_key_s_text_is_no_secret_and_the_other_way_round():
    secret, public = LOG.to_secret_text(), LOG.verifier.to_text()
    with pytest.raises(InvalidKey, match="starts with"):
        Signer.from_secret_text(secret.removeprefix("PRIVATE+KEY+"))
    with pytest.raises(InvalidKey):
        Signer.from_secret_text(public)
    with pytest.raises(InvalidKey):
        Verifier.from_text(secret)
