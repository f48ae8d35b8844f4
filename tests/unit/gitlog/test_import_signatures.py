"""Verdicts on SSH signatures: the same on every machine, with or without ssh-keygen."""

from __future__ import annotations

import hashlib
import struct
from base64 import b64decode, b64encode
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.gitlog.journals import ADA, Journal, message, trailer

from ropewalk.gitlog.compat.ssh_signatures import judge, parse_allowed_signers, split_signature
from ropewalk.gitlog.compat.transfer import import_from_compat
from ropewalk.gitlog.core.objects import (
    EMPTY_TREE,
    FILE,
    Commit,
    TreeEntry,
    encode_commit,
    encode_tree,
    object_id,
)


def packed(*parts: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def number(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big")


class Ed25519:
    def __init__(self) -> None:
        self._key = ed25519.Ed25519PrivateKey.from_private_bytes(b"k" * 32)
        self.name = b"ssh-ed25519"
        raw = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public = packed(self.name, raw)

    def sign(self, message: bytes) -> bytes:
        return packed(self.name, self._key.sign(message))


class Ecdsa:
    def __init__(self, curve, hash_name, name: bytes) -> None:
        self._key, self._hash = ec.derive_private_key(7, curve), hash_name
        self.name = b"ecdsa-sha2-" + name
        point = self._key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        self.public = packed(self.name, name, point)

    def sign(self, message: bytes) -> bytes:
        r, s = decode_dss_signature(self._key.sign(message, ec.ECDSA(self._hash)))
        return packed(self.name, packed(number(r), number(s)))


class Rsa:
    def __init__(self, bits: int = 2048, kind: bytes = b"rsa-sha2-512") -> None:
        self._key, self._kind = rsa.generate_private_key(65537, bits), kind
        numbers = self._key.public_key().public_numbers()
        self.public = packed(b"ssh-rsa", number(numbers.e), number(numbers.n))

    def sign(self, message: bytes) -> bytes:
        hash_ = {
            b"rsa-sha2-512": hashes.SHA512(),
            b"rsa-sha2-256": hashes.SHA256(),
            b"ssh-rsa": hashes.SHA1(),
        }
        return packed(self._kind, self._key.sign(message, padding.PKCS1v15(), hash_[self._kind]))


class Touched:
    """A security key: it signs the hash of what it is asked to, its application, and whether somebody touched it."""

    def __init__(self, inner: Ed25519 | Ecdsa, name: bytes, touched: int = 1) -> None:
        self._inner, self._seen, self.name = inner, bytes([touched, 0, 0, 0, 9]), name
        fields = inner.public[4 + len(inner.name) :]
        self.public = packed(name) + fields + packed(b"ssh:")

    def sign(self, message: bytes) -> bytes:
        asked = hashlib.sha256(b"ssh:").digest() + self._seen + hashlib.sha256(message).digest()
        mark = self._inner.sign(asked)[4 + len(self._inner.name) :]
        return packed(self.name) + mark + self._seen


def touched_ed25519(touched: int = 1) -> Touched:
    return Touched(Ed25519(), b"sk-ssh-ed25519@openssh.com", touched)


def touched_p256(touched: int = 1) -> Touched:
    p256 = Ecdsa(ec.SECP256R1(), hashes.SHA256(), b"nistp256")
    return Touched(p256, b"sk-ecdsa-sha2-nistp256@openssh.com", touched)


class Changed:
    """A key whose signatures, or whose own bytes, are changed after the fact."""

    def __init__(self, key, sign=lambda raw: raw, public=lambda raw: raw) -> None:
        self._key, self._sign, self.public = key, sign, public(key.public)

    def sign(self, message: bytes) -> Any:
        return self._sign(self._key.sign(message))


def armored(key, body: bytes, *, namespace: bytes = b"git", hash_name: bytes = b"sha512") -> bytes:
    digest = hashlib.new(hash_name.decode(), body).digest() if hash_name != b"sha1" else b""
    signed = b"SSHSIG" + packed(namespace, b"", hash_name, digest)
    blob = b"SSHSIG" + struct.pack(">I", 1) + packed(key.public, namespace, b"", hash_name, key.sign(signed))
    text = b64encode(blob)
    lines = [text[at : at + 70] for at in range(0, len(text), 70)]
    return b"\n".join((b"-----BEGIN SSH SIGNATURE-----", *lines, b"-----END SSH SIGNATURE-----"))


def signed_commit(key, **form) -> bytes:
    bare = Commit(EMPTY_TREE, (), ADA, ADA, b"hello\n")
    signature = armored(key, encode_commit(bare), **form)
    return encode_commit(Commit(EMPTY_TREE, (), ADA, ADA, b"hello\n", (("gpgsig", signature),)))


def roster_of(key, options: str = "") -> str:
    reader = key.public[4:]
    kind = reader[: struct.unpack(">I", key.public[:4])[0]].decode()
    return f"ada@example.test {options}{kind} {b64encode(key.public).decode()} a comment\n"


KEYS: dict[str, Any] = {
    "ed25519": Ed25519,
    "p256": lambda: Ecdsa(ec.SECP256R1(), hashes.SHA256(), b"nistp256"),
    "p384": lambda: Ecdsa(ec.SECP384R1(), hashes.SHA384(), b"nistp384"),
    "p521": lambda: Ecdsa(ec.SECP521R1(), hashes.SHA512(), b"nistp521"),
    "rsa512": Rsa,
    "rsa256": lambda: Rsa(kind=b"rsa-sha2-256"),
    "touched ed25519": touched_ed25519,
    "touched p256": touched_p256,
}


@pytest.mark.parametrize("name", KEYS)
def test_signature_good_untrusted_or_bad(name):
    key = KEYS[name]()
    raw = signed_commit(key)
    roster = parse_allowed_signers("# who may sign\n\n" + roster_of(key))
    assert judge(raw, roster, ADA.time_s) == "good"
    assert judge(raw, (), ADA.time_s) == judge(raw, None, ADA.time_s) == "untrusted"
    assert judge(raw.replace(b"hello", b"hellO"), roster, ADA.time_s) == "bad"


def test_no_signature_is_none():
    assert judge(encode_commit(Commit(EMPTY_TREE, (), ADA, ADA, b"x")), None, 0) == "none"


@pytest.mark.parametrize("kind", [b"PGP SIGNATURE", b"SIGNED MESSAGE"])
def test_other_signatures_are_unsupported(kind):
    text = b"-----BEGIN %s-----\n\nabc\n-----END %s-----" % (kind, kind)
    raw = encode_commit(Commit(EMPTY_TREE, (), ADA, ADA, b"x", (("gpgsig", text),)))
    assert judge(raw, None, 0) == "unsupported"


def test_sha1_signatures_and_short_rsa_keys_are_unsupported():
    assert judge(signed_commit(Rsa(kind=b"ssh-rsa")), None, 0) == "unsupported"
    assert judge(signed_commit(Rsa(bits=1024)), None, 0) == "unsupported"


def test_a_signature_made_for_something_else_is_bad():
    assert judge(signed_commit(Ed25519(), namespace=b"file"), None, 0) == "bad"


@pytest.mark.parametrize("made", [touched_ed25519, touched_p256])
def test_a_security_key_nobody_touched_signs_nothing(made):
    assert judge(signed_commit(made(touched=0)), None, 0) == "bad"
    assert judge(signed_commit(made(touched=4)), None, 0) == "bad"


@pytest.mark.parametrize("name", [name for name in KEYS if not name.startswith("rsa")])
def test_a_signature_that_names_another_kind_than_its_key_is_bad(name):
    key = KEYS[name]()
    renamed = Changed(key, lambda raw: packed(b"ssh-dss") + raw[4 + len(key.name) :])
    assert judge(signed_commit(renamed), None, 0) == "bad"


@pytest.mark.parametrize("name", KEYS)
def test_bytes_behind_a_key_or_its_signature_are_bad(name):
    key = KEYS[name]()
    assert judge(signed_commit(Changed(key, sign=lambda raw: raw + b"\0")), None, 0) == "bad"
    assert judge(signed_commit(Changed(key, public=lambda raw: raw + b"\0")), None, 0) == "bad"


def test_bytes_behind_the_two_numbers_of_an_ecdsa_signature_are_bad():
    key = KEYS["p256"]()
    longer = Changed(key, lambda raw: packed(key.name, raw[8 + len(key.name) :] + b"\0"))
    assert judge(signed_commit(longer), None, 0) == "bad"


def test_a_curve_or_a_hash_that_is_not_judged_here_is_unsupported():
    p256 = KEYS["p256"]()
    curve = Changed(p256, public=lambda raw: raw.replace(packed(b"nistp256"), packed(b"nistp192")))
    assert judge(signed_commit(curve), None, 0) == "unsupported"
    assert judge(signed_commit(Ed25519(), hash_name=b"sha384"), None, 0) == "unsupported"


@pytest.mark.parametrize(
    "change",
    [
        lambda blob: b"SSHSIH" + blob[6:],
        lambda blob: blob[:9] + b"\2" + blob[10:],
        lambda blob: blob + b"\0",
        lambda blob: blob[:-1],
    ],
)
def test_another_form_of_the_signature_around_the_same_bytes_is_bad(change):
    _, signature = split_signature(signed_commit(Ed25519()))
    assert signature is not None
    lines = signature.split(b"\n")
    again = b"\n".join((lines[0], b64encode(change(b64decode(b"".join(lines[1:-1])))), lines[-1]))
    commit = Commit(EMPTY_TREE, (), ADA, ADA, b"hello\n", (("gpgsig", again),))
    assert judge(encode_commit(commit), None, 0) == "bad"


def test_garbage_is_bad():
    for body in (b"", b"!!!!", b"U1NIU0lH", b64encode(b"SSHSIG" + struct.pack(">I", 2))):
        text = b"-----BEGIN SSH SIGNATURE-----\n%s\n-----END SSH SIGNATURE-----" % body
        assert (
            judge(encode_commit(Commit(EMPTY_TREE, (), ADA, ADA, b"x", (("gpgsig", text),))), None, 0)
            == "bad"
        )


@given(st.binary(max_size=200))
def test_no_bytes_break_the_judge(raw):
    text = b"-----BEGIN SSH SIGNATURE-----\n%s\n-----END SSH SIGNATURE-----" % b64encode(
        b"SSHSIG\0\0\0\1" + raw
    )
    commit = encode_commit(Commit(EMPTY_TREE, (), ADA, ADA, b"x", (("gpgsig", text),)))
    assert judge(commit, None, 0) in ("bad", "unsupported")


@pytest.mark.parametrize("flip", range(0, 64, 7))
def test_one_changed_bit_of_the_signature_is_bad(flip):
    raw = signed_commit(Ed25519())
    body, signature = split_signature(raw)
    assert signature is not None
    lines = signature.split(b"\n")
    blob = bytearray(b64decode(b"".join(lines[1:-1])))
    blob[len(blob) - 1 - flip] ^= 1
    made = b"\n ".join((lines[0], b64encode(bytes(blob)), lines[-1]))
    head, _, text = body.partition(b"\n\n")
    assert judge(head + b"\ngpgsig " + made + b"\n\n" + text, None, 0) == "bad"


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ('namespaces="git" ', "good"),
        ('namespaces="file,g*" ', "good"),
        ('namespaces="file" ', "untrusted"),
        ('valid-after="20200101",valid-before="20300101" ', "good"),
        ('valid-before="20200101000000Z" ', "untrusted"),
        ('valid-after="203001010000" ', "untrusted"),
        ("cert-authority ", "untrusted"),
        ('namespaces="!file,g?t" ', "good"),
        ('namespaces="*,!git" ', "untrusted"),
        ('namespaces="g[i]t" ', "untrusted"),
        ('Valid-Before="20300101z",valid-after="202001010000UTC" ', "good"),
    ],
)
def test_what_a_roster_says_of_a_key_counts(options, verdict):
    key = Ed25519()
    assert judge(signed_commit(key), parse_allowed_signers(roster_of(key, options)), ADA.time_s) == verdict


@pytest.mark.parametrize(
    "options",
    [
        'valid-before="2030010"',
        'valid-before="20301301"',
        "valid-before=20300101",
        "namespaces",
        "namespaces=git",
        "namespaces='git'",
        'namespaces="git",',
        'namespaces="git",namespaces="file"',
        'only-on-sundays="yes"',
    ],
)
def test_a_key_whose_limits_cannot_be_read_does_not_count_at_all(options):
    key = Ed25519()
    assert (
        judge(signed_commit(key), parse_allowed_signers(roster_of(key, options + " ")), ADA.time_s)
        == "untrusted"
    )


@pytest.mark.parametrize(
    ("listed", "verdict", "said"), [(True, "good", 0), (False, "untrusted", 1), (None, "untrusted", 1)]
)
def test_an_import_judges_by_the_trust_tree_the_entry_names(log, listed, verdict, said):
    key = Ed25519()
    roster = (roster_of(key) if listed else "").encode()
    blob = object_id("blob", roster)
    tree = encode_tree([TreeEntry(FILE, "allowed_signers", blob)])
    trust = encode_commit(Commit(object_id("tree", tree), (), ADA, ADA, b"trust"))
    objects = [(blob, "blob", roster), (object_id("tree", tree), "tree", tree)]
    if listed is not None:
        with log.store.put([*objects, (object_id("commit", trust), "commit", trust)]):
            pass
    text = message(trailer(trust_oid=object_id("commit", trust)))
    bare = encode_commit(Commit(EMPTY_TREE, (), ADA, ADA, text))
    Journal(log.store).add(text, author=ADA, extra=(("gpgsig", armored(key, bare)),))
    report = import_from_compat(log)
    (event,) = log.events("prod")
    assert event.payload["source"]["signature"] == verdict and len(report.problems) == said
