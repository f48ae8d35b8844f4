"""Keys: one verdict on every machine, one text for one key, and no secret in sight."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from tests.folding import fold

from ropewalk import errors
from ropewalk.errors import InvalidKey, SigInvalid
from ropewalk.kernel import signatures
from ropewalk.kernel.keys import (
    ALGORITHMS,
    PublicKey,
    Signature,
    SigningKey,
    identity_digest,
    sign_digest,
    verify_digest,
)

VECTORS = Path(__file__).parents[3] / "vectors"
MESSAGE = b"a strand of the rope"


def cases(path):
    stored = json.loads((VECTORS / path).read_text(encoding="utf-8"))
    return [pytest.param(case, id=case["name"]) for case in stored["cases"]]


def judge(case, act):
    """Run `act`; a case with an error must end in exactly that one."""
    if "error" not in case:
        return act()
    with pytest.raises(getattr(errors, case["error"])) as caught:
        act()
    assert type(caught.value).__name__ == case["error"]
    return None


def verify(given, alg="ed25519"):
    key = PublicKey(given.get("alg", alg), bytes.fromhex(given["public_key"]))
    key.verify(bytes.fromhex(given["message"]), bytes.fromhex(given["signature"]))


@pytest.fixture(params=ALGORITHMS)
def key(request):
    return SigningKey.generate(request.param, b"entropy of thirty-two bytes here")


# ---- vectors ----


@fold("case", cases("keys/ed25519_edge_cases.json"))
def test_ed25519_verdict_is_the_strict_one(case):
    judge(case, lambda: verify(case["input"]))


@pytest.mark.parametrize("case", cases("keys/ed25519_edge_cases.json")[:4])
def test_ed25519_signs_as_rfc_8032_prints(case):
    given = case["input"]
    key = SigningKey("ed25519", bytes.fromhex(given["secret"]))
    assert key.public.raw.hex() == given["public_key"]
    assert key.sign(bytes.fromhex(given["message"])).hex() == given["signature"]


@fold("case", cases("keys/ed25519_public_keys.json"))
def test_ed25519_keys_are_judged_when_they_are_read(case):
    judge(case, lambda: PublicKey("ed25519", bytes.fromhex(case["input"])))


@pytest.mark.parametrize("case", cases("keys/ecdsa_high_s.json"))
def test_ecdsa_takes_only_low_s_in_range(case):
    judge(case, lambda: verify(case["input"]))


@pytest.mark.parametrize("case", cases("keys/ecdsa_deterministic.json"))
def test_ecdsa_signs_the_same_bytes_everywhere(case):
    given, expect = case["input"], case["expect"]
    key = SigningKey(given["alg"], bytes.fromhex(given["secret"]))
    assert key.public.raw.hex() == expect["public_key"]
    assert key.sign(bytes.fromhex(given["message"])).hex() == expect["signature"]


@fold("case", cases("keys/wrong_lengths.json"))
def test_wrong_forms_are_no_keys(case):
    given = case["input"]

    def act():
        if "secret" in given:
            SigningKey(given["alg"], bytes.fromhex(given["secret"]))
        elif "signature" in given:
            verify(given)
        else:
            PublicKey(given["alg"], bytes.fromhex(given["public_key"]))

    judge(case, act)


@pytest.mark.parametrize("case", cases("keys/did_key.json"))
def test_did_key_has_one_text_per_key(case):
    if "error" in case:
        judge(case, lambda: PublicKey.from_did(case["input"]))
    else:
        key = SigningKey(case["input"]["alg"], bytes.fromhex(case["input"]["secret"])).public
        assert key.did() == case["expect"]
        assert PublicKey.from_did(case["expect"]) == key


@pytest.mark.parametrize("case", cases("keys/identity.json"))
def test_identity_digest_covers_type_and_key(case):
    given = case["input"]
    assert identity_digest(given["identity_type"], bytes.fromhex(given["public_key"])).hex() == case["expect"]


@pytest.mark.parametrize("case", cases("keys/key_json.json"))
def test_key_json_is_hex_when_written(case):
    key = judge(case, lambda: PublicKey.from_json(case["input"]))
    if key is not None:
        assert key.to_json() == case["expect"]


def gossip_messages(kind):
    stored = json.loads((VECTORS / "gossiplog" / "v0.6-messages.json").read_text(encoding="utf-8"))
    return [message for message in stored["messages"] if message["type"] == kind]


def test_secp256k1_over_a_digest_equals_what_gossiplog_signs():
    messages = gossip_messages("secp256k1")
    assert messages
    for message in messages:
        key = SigningKey("secp256k1", bytes.fromhex(message["private_key"]))
        digest, signature = bytes.fromhex(message["cid_bytes"])[:32], bytes.fromhex(message["signature"])
        assert sign_digest(key, digest) == signature
        verify_digest(PublicKey.from_did(message["public_key"]), digest, signature)
        stored = bytes.fromhex(message["signed_message_cbor"])
        assert key.public.to_multicodec() in stored


def test_ed25519_equals_what_gossiplog_signs():
    messages = gossip_messages("ed25519")
    assert messages
    for message in messages:
        key = SigningKey("ed25519", bytes.fromhex(message["private_key"]))
        assert key.sign(bytes.fromhex(message["cid_bytes"])).hex() == message["signature"]


# ---- behaviour ----


def test_what_a_key_signs_its_public_key_verifies(key):
    for message in (b"", b"\0", MESSAGE, bytes(100_000)):
        signature = key.sign(message)
        assert len(signature) == 64
        key.public.verify(message, signature)


def test_signing_needs_no_chance(key):
    again = SigningKey(key.alg, key.secret)
    assert key.sign(MESSAGE) == again.sign(MESSAGE)
    assert key == again
    assert hash(key) == hash(again)


def test_another_key_of_the_algorithm_does_not_verify(key):
    other = SigningKey.generate(key.alg, b"another entropy of 32 bytes here")
    with pytest.raises(SigInvalid):
        other.public.verify(MESSAGE, key.sign(MESSAGE))


def test_ecdsa_signatures_of_our_own_are_always_low():
    for alg in ("p256", "secp256k1"):
        key = SigningKey.generate(alg, bytes(range(32)))
        order = signatures.SCHEMES[alg].order
        assert order is not None
        for i in range(20):
            assert int.from_bytes(key.sign(bytes([i]))[32:], "big") <= order // 2


def test_repr_never_shows_a_secret(key):
    shown = repr(key) + str(key) + f"{key}"
    assert key.secret.hex() not in shown
    assert repr(key.secret) not in shown


def test_keys_cross_process_borders(key):
    restored = pickle.loads(pickle.dumps(key))
    assert restored == key
    restored.public.verify(MESSAGE, restored.sign(MESSAGE))
    assert pickle.loads(pickle.dumps(key.public)) == key.public


@pytest.mark.parametrize("alg", ["p256", "secp256k1"])
@pytest.mark.parametrize("entropy", [bytes(32), b"\xff" * 32])
def test_entropy_outside_the_order_still_gives_a_key(alg, entropy):
    key = SigningKey.generate(alg, entropy)
    key.public.verify(MESSAGE, key.sign(MESSAGE))
    assert key == SigningKey.generate(alg, entropy)


@pytest.mark.parametrize("alg", [*ALGORITHMS, "rsa"])
def test_short_entropy_gives_no_key(alg):
    with pytest.raises(InvalidKey):
        SigningKey.generate(alg, bytes(31))


def test_multicodec_and_json_give_the_key_back(key):
    public = key.public
    assert PublicKey.from_multicodec(public.to_multicodec()) == public
    assert PublicKey.from_json(public.to_json()) == public
    assert public.identity() == identity_digest(public.alg, public.raw)


@pytest.mark.parametrize("raw", [b"", b"\xed", b"\xed\x81\x00" + bytes(32), b"\xff" * 12])
def test_bad_multicodec_is_an_invalid_key(raw):
    with pytest.raises(InvalidKey):
        PublicKey.from_multicodec(raw)


def test_a_key_must_be_bytes():
    with pytest.raises(InvalidKey):
        PublicKey("ed25519", bytearray(32))  # type: ignore[arg-type]
    with pytest.raises(InvalidKey):
        SigningKey("ed25519", "0" * 32)  # type: ignore[arg-type]
    with pytest.raises(InvalidKey):
        PublicKey.from_did(7)  # type: ignore[arg-type]


def test_only_secp256k1_signs_a_ready_digest(key):
    digest = b"d" * 32
    if key.alg == "secp256k1":
        signature = sign_digest(key, digest)
        verify_digest(key.public, digest, signature)
        with pytest.raises(SigInvalid):
            verify_digest(key.public, b"e" * 32, signature)
        with pytest.raises(InvalidKey):
            verify_digest(key.public, digest, signature[:63])
        for wrong in (b"", digest[:31], digest + b"!"):
            with pytest.raises(InvalidKey):
                sign_digest(key, wrong)
            with pytest.raises(InvalidKey):
                verify_digest(key.public, wrong, signature)
    else:
        with pytest.raises(InvalidKey):
            sign_digest(key, digest)
        with pytest.raises(InvalidKey):
            verify_digest(key.public, digest, bytes(64))


def test_identity_types_cannot_smuggle_the_separator():
    with pytest.raises(InvalidKey):
        identity_digest("ed25519\0", b"x")


def test_signature_json_gives_the_signature_back(key):
    signature = Signature(key.alg, key.sign(MESSAGE))
    assert Signature.from_json(signature.to_json()) == signature


@pytest.mark.parametrize(
    "value",
    [
        {"alg": "ed25519", "sig": "AAAA"},
        {"alg": "ed25519", "sig": "A" * 86},
        {"alg": "ed25519", "sig": "A" * 85 + "B=="},
        {"alg": "ed25519", "sig": "0" * 128},
        {"alg": "ed25519", "sig": "A" * 86 + "==\n"},
        {"alg": "ed25519", "sig": "é" * 88},
        {"alg": "rsa", "sig": "A" * 86 + "=="},
        {"alg": "ed25519", "sig": "A" * 86 + "==", "more": 1},
        {"alg": ["ed25519"], "sig": "A" * 86 + "=="},
        "ed25519",
    ],
)
def test_signature_json_has_one_spelling(value):
    with pytest.raises(InvalidKey):
        Signature.from_json(value)


def test_the_library_is_asked_whether_it_multiplies_by_the_cofactor(monkeypatch):
    # A libsodium that accepted the probe would disagree with other machines; then nothing is verified at all.
    import nacl.bindings

    signatures._sodium.cache_clear()
    monkeypatch.setattr(nacl.bindings, "crypto_sign_open", lambda signed, key: signed[64:])
    try:
        with pytest.raises(errors.Unavailable):
            SigningKey.generate("ed25519", bytes(32)).public.verify(MESSAGE, b"\x05" * 64)
    finally:
        signatures._sodium.cache_clear()


def test_p256_never_signs_with_randomness_of_the_library(monkeypatch):
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec

    def old_openssl(*_args, **_more):
        raise UnsupportedAlgorithm("deterministic signing")

    monkeypatch.setattr(ec, "ECDSA", old_openssl)
    with pytest.raises(errors.Unavailable):
        SigningKey.generate("p256", bytes(range(32)))


def test_the_probe_is_the_vector_that_needs_the_cofactor():
    key, message, signature = map(bytes.fromhex, signatures._ED_PROBE)
    with pytest.raises(SigInvalid) as caught:
        PublicKey("ed25519", key).verify(message, signature)
    assert caught.value.fields["reason"] == "equation"


def test_importing_keys_loads_no_library():
    program = (
        "import sys, ropewalk.kernel.keys;"
        "print(sorted({'nacl', 'coincurve', 'cryptography'} & {name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_forgeries_are_real_where_a_lax_verifier_takes_them():
    # OpenSSL asks only for the equation and S below L; what it takes and we refuse is what the rule is for.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    taken = set()
    for param in cases("keys/ed25519_edge_cases.json"):
        (case,) = param.values
        given = {name: bytes.fromhex(text) for name, text in case["input"].items()}
        try:
            Ed25519PublicKey.from_public_bytes(given["public_key"]).verify(
                given["signature"], given["message"]
            )
        except InvalidSignature:
            assert "error" in case
        else:
            taken.add(case["name"])
    assert {f"small_r_{i}" for i in range(8)} <= taken
    assert {f"small_key_{i}_t8" for i in range(8)} <= taken
    assert {f"small_key_{i}_t8_zero_s" for i in range(8)} <= taken
    assert {
        "small_key_y_p",
        "small_key_y_p_plus_1_signed",
        "small_key_mixed_r",
        "mixed_key_and_r_cancel",
    } <= taken
    assert not {name for name in taken if "cofactor" in name}


FORM_FAULTS = {
    "ed25519_edge_cases.json": (
        "small_r_",
        "canonical_r_",
        "s_plus_l",
        "s_far_above_l",
        "s_equals_l",
        "s_all_ones",
    ),
    "ecdsa_high_s.json": ("_high_s", "_is_half_plus_1", "_zero", "_is_n", "_all_ones"),
}


@pytest.mark.parametrize(
    "case",
    [
        case
        for file, parts in FORM_FAULTS.items()
        for case in cases(f"keys/{file}")
        if any(part in str(case.id) for part in parts) and "key" not in str(case.id)
    ],
)
def test_malformed_signature_is_refused_first(case, monkeypatch):
    """Else a library that grows laxer would change verdicts: here it takes everything it is asked about."""
    monkeypatch.setattr(signatures, "_sodium", lambda: (lambda _signed, _key: b"", ValueError))
    monkeypatch.setattr(signatures, "_p256_key", lambda _raw: (lambda *_: None, None, ValueError))
    monkeypatch.setattr(signatures, "_secp256k1_key", lambda _raw: lambda *_: True)
    with pytest.raises(SigInvalid) as caught:
        verify(case["input"])
    assert caught.value.fields["reason"] in ("R", "S", "range", "high s")


def test_a_coordinate_equal_to_the_prime_is_a_second_spelling_of_zero():
    prime = 2**256 - 2**224 + 2**192 + 2**96 - 1  # P-256 has points with x = 0, so only the spelling is wrong
    assert PublicKey("p256", b"\x02" + bytes(32))
    with pytest.raises(InvalidKey, match="non-canonical"):
        PublicKey("p256", b"\x02" + prime.to_bytes(32, "big"))
