"""Cases for keys and signatures, made with plain integers by code that shares nothing with the product.

An attacker's signatures cannot be had from a signing library: it will not sign with a point of small order, nor give
a high s. So the curves are written out in `_curves`, and every case is built from them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from itertools import count
from typing import Any

from blake3 import blake3

from vectors.generate import HOME
from vectors.generate._curves import (
    BASE,
    EIGHT,
    NEUTRAL,
    P256,
    SECP256K1,
    SMALL,
    Curve,
    L,
    P,
    Point,
    add,
    challenge,
    encode,
    hashed,
    little,
    off_curve,
    pair,
    root_x,
    secret_number,
    spell,
    times,
    uncompressed,
)

Case = dict[str, Any]


def message_where(r: bytes, key: bytes, remainder: int) -> bytes:
    """A message whose challenge leaves this remainder modulo 8, so that points of order 8 go away or stay."""
    for i in count():
        message = f"message {i}".encode()
        if challenge(r, key, message) % 8 == remainder:
            return message
    raise AssertionError


def triple(key: bytes, message: bytes, signature: bytes) -> Case:
    return {"public_key": key.hex(), "message": message.hex(), "signature": signature.hex()}


def case(name: str, why: str, given: Case, error: str | None = None) -> Case:
    return {"name": name, "why": why, "input": given, **({"error": error} if error else {"expect": "holds"})}


def rfc8032() -> list[Case]:
    """RFC 8032 §7.1, signed again from the seeds by the definition in §5.1.6."""
    abc = hashlib.sha512(b"abc").hexdigest()
    seeds = {
        "test_1": ("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60", ""),
        "test_2": ("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb", "72"),
        "test_3": ("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7", "af82"),
        "test_sha_abc": ("833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42", abc),
    }
    cases = []
    for name, (seed, text) in seeds.items():
        message = bytes.fromhex(text)
        expanded = hashlib.sha512(bytes.fromhex(seed)).digest()
        a = int.from_bytes(expanded[:32], "little") & (1 << 254) - 8 | 1 << 254
        r = int.from_bytes(hashlib.sha512(expanded[32:] + message).digest(), "little") % L
        key, commitment = encode(times(a, BASE)), encode(times(r, BASE))
        signature = commitment + little((r + challenge(commitment, key, message) * a) % L)
        cases.append(
            case(f"rfc8032_{name}", "RFC 8032 §7.1", {"secret": seed, **triple(key, message, signature)})
        )
    return cases


def ed25519_edge_cases() -> Case:
    a, r = secret_number("ropewalk vectors: a"), secret_number("ropewalk vectors: r")
    honest, commitment = times(a, BASE), times(r, BASE)
    key, r_bytes, message = encode(honest), encode(commitment), b"a strand of the rope"
    s = (r + challenge(r_bytes, key, message) * a) % L
    signature = r_bytes + little(s)
    mixed = encode(add(honest, EIGHT))
    cases = rfc8032()

    def refuse(
        name: str, why: str, public: bytes, text: bytes, made: bytes, error: str = "SigInvalid"
    ) -> None:
        cases.append(case(name, why, triple(public, text, made), error))

    cases.append(case("honest", "an ordinary key and signature", triple(key, message, signature)))
    refuse("other_message", "one bit of the message", key, b"b" + message[1:], signature)
    refuse("other_key", "somebody else's key", encode(times(a + 1, BASE)), message, signature)
    refuse("zero_signature", "64 zero bytes: R would be a point of order 4", key, message, bytes(64))
    refuse("r_and_s_swapped", "S before R", key, message, little(s) + r_bytes)

    # S: any S + iL satisfies the equation.
    refuse("s_plus_l", "S + L: the same equation, another signature", key, message, r_bytes + little(s + L))
    most = (2**256 - 1 - s) // L
    refuse("s_far_above_l", "the highest S + iL of 32 bytes", key, message, r_bytes + little(s + most * L))
    refuse("s_equals_l", "S = L, where 0 would be meant", key, message, r_bytes + little(L))
    refuse("s_all_ones", "S = 2^256 − 1", key, message, r_bytes + b"\xff" * 32)

    # Small parts: with and without the cofactor the verdicts differ. The rule is: without.
    text = message_where(r_bytes, mixed, 0)
    cases.append(
        case(
            "mixed_key_equation_holds",
            "A = aB + T8, but the challenge is a multiple of 8: holds with and without the cofactor",
            triple(mixed, text, r_bytes + little((r + challenge(r_bytes, mixed, text) * a) % L)),
        )
    )
    text = message_where(r_bytes, mixed, 3)
    refuse(
        "mixed_key_needs_cofactor",
        "A = aB + T8: holds only when multiplied by 8",
        mixed,
        text,
        r_bytes + little((r + challenge(r_bytes, mixed, text) * a) % L),
    )
    r_mixed = encode(add(commitment, EIGHT))
    refuse(
        "mixed_r_needs_cofactor",
        "R = rB + T8: holds only when multiplied by 8",
        key,
        message,
        r_mixed + little((r + challenge(r_mixed, key, message) * a) % L),
    )
    text = message_where(r_mixed, mixed, 7)
    cases.append(
        case(
            "mixed_key_and_r_cancel",
            "A = aB + T8, R = rB + T8, challenge 7 modulo 8: the small parts cancel",
            triple(mixed, text, r_mixed + little((r + challenge(r_mixed, mixed, text) * a) % L)),
        )
    )
    text = message_where(r_mixed, mixed, 2)
    refuse(
        "mixed_key_and_r_need_cofactor",
        "the same, challenge 2 modulo 8: holds only when multiplied by 8",
        mixed,
        text,
        r_mixed + little((r + challenge(r_mixed, mixed, text) * a) % L),
    )

    # R of small order: the equation holds, and nobody honest makes it (dalek verify_strict and libsodium agree).
    for i, point in enumerate(SMALL):
        small = encode(point)
        text = message_where(small, mixed, -i % 8)
        refuse(
            f"small_r_{i}",
            f"R = {i}·T8, S = ka, A mixed so that the equation holds without the cofactor",
            mixed,
            text,
            small + little(challenge(small, mixed, text) * a % L),
        )
    neutral = encode(NEUTRAL)
    for name, spelled in {
        "y_is_p_plus_1": spell(P + 1, 0),
        "y_is_p_plus_1_signed": spell(P + 1, 1),
        "y_is_1_signed": spell(1, 1),
    }.items():
        for over, covered in {"as_sent": spelled, "reduced": neutral}.items():
            refuse(
                f"non_canonical_r_{name}_{over}",
                f"R = neutral element, {name}; the challenge is over R {over}",
                key,
                message,
                spelled + little(challenge(covered, key, message) * a % L),
            )
    for y in range(P + 2, 2**255):
        refuse(
            f"non_canonical_r_p_plus_{y - P}",
            "y of R not below p; nobody knows an S for it, but it must fall at the encoding",
            key,
            message,
            spell(y, 0) + little(s),
        )
    not_a_point = next(y for y in count(2) if root_x(y) is None)
    refuse("r_is_no_point", "no x for this y", key, message, spell(not_a_point, 0) + little(s))

    # A of small order: one signature fits many messages. Each of these satisfies the equation.
    for name, spelled in small_spellings().items():
        text = message_where(r_bytes, spelled, 0)
        refuse(
            f"small_key_{name}", "any S = r, R = rB fits", spelled, text, r_bytes + little(r), "InvalidKey"
        )
        text = message_where(neutral, spelled, 0)
        refuse(
            f"small_key_{name}_zero_s",
            "S = 0, R = neutral element",
            spelled,
            text,
            neutral + bytes(32),
            "InvalidKey",
        )
    refuse(
        "small_key_mixed_r",
        "A = T8, R = rB − kT8: holds without the cofactor",
        encode(EIGHT),
        *small_key_mixed_r(commitment, r),
        "InvalidKey",
    )
    return {
        "name": "ed25519_edge_cases",
        "why": "Verifiers disagree on these; ours must not. A and R canonical and not of small order, S below L, "
        "equation without cofactor. All values hex. InvalidKey: the public key itself is refused.",
        "cases": cases,
    }


def small_key_mixed_r(commitment: Point, r: int) -> tuple[bytes, bytes]:
    key = encode(EIGHT)
    for i in count():
        text = f"message {i}".encode()
        for part in range(1, 8):
            mixed = encode(add(commitment, SMALL[part]))
            if (challenge(mixed, key, text) + part) % 8 == 0:
                return text, mixed + little(r)
    raise AssertionError


def small_spellings() -> dict[str, bytes]:
    """All 14 encodings that decode to a point of small order."""
    return {f"{i}_t8": encode(point) for i, point in enumerate(SMALL)} | {
        "y_1_signed": spell(1, 1),
        "y_p_minus_1_signed": spell(P - 1, 1),
        "y_p": spell(P, 0),
        "y_p_signed": spell(P, 1),
        "y_p_plus_1": spell(P + 1, 0),
        "y_p_plus_1_signed": spell(P + 1, 1),
    }


def ed25519_public_keys() -> Case:
    a = secret_number("ropewalk vectors: a")
    good = {
        "honest": ("a key of prime order", times(a, BASE)),
        "mixed_order": (
            "aB + T8: odd, but it cannot sign for another message than its owner's",
            add(times(a, BASE), EIGHT),
        ),
        "base_point": ("the secret 1; unwise, but a key", BASE),
    }
    cases: list[Case] = [
        {"name": name, "why": why, "input": encode(point).hex(), "expect": "usable"}
        for name, (why, point) in good.items()
    ]

    def refuse(name: str, why: str, raw: bytes) -> None:
        cases.append({"name": name, "why": why, "input": raw.hex(), "error": "InvalidKey"})

    for name, spelled in small_spellings().items():
        refuse(f"small_{name}", "small order", spelled)
    for y in range(P + 2, 2**255):
        for sign in (0, 1):
            refuse(f"y_p_plus_{y - P}_sign_{sign}", "y not below p", spell(y, sign))
    for y in [y for y in range(2, 20) if root_x(y) is None][:4]:
        refuse(f"y_{y}_no_point", "no x for this y", spell(y, 0))
    cases += [
        {
            "name": f"y_{y}_lowest_points",
            "why": "small y is no fault",
            "input": spell(y, 0).hex(),
            "expect": "usable",
        }
        for y in [y for y in range(2, 20) if root_x(y) is not None][:4]
    ]
    for length in (0, 31, 33, 64):
        refuse(f"length_{length}", "32 bytes or nothing", encode(BASE).ljust(length, b"\x01")[:length])
    return {
        "name": "ed25519_public_keys",
        "why": "A key is refused when it is read: y below p, a point of the curve, not of small order. Hex.",
        "cases": cases,
    }


def ecdsa_high_s() -> Case:
    cases: list[Case] = []
    message = b"a strand of the rope"
    for curve in (P256, SECP256K1):
        n, half = curve.n, curve.n // 2
        d = secret_number(f"ropewalk vectors: {curve.name} d") % n
        k = secret_number(f"ropewalk vectors: {curve.name} k") % n
        r = curve.times(k)[0] % n
        s = pow(k, -1, n) * (hashed(message) + r * d) % n
        low, high = min(s, n - s), max(s, n - s)
        key = curve.key(d)

        def given(made: bytes, public: bytes, curve: Curve = curve) -> Case:
            return {"alg": curve.name, **triple(public, message, made)}

        def refuse(name: str, why: str, made: bytes, public: bytes, curve: Curve = curve) -> None:
            cases.append(case(f"{curve.name}_{name}", why, given(made, public), "SigInvalid"))

        cases.append(case(f"{curve.name}_low_s", "an ordinary signature", given(pair(r, low), key)))
        refuse("high_s", "n − s satisfies the equation too", pair(r, high), key)
        # A key made to fit, so that s stands exactly at the border.
        for name, border in (("s_is_half", half), ("s_is_half_plus_1", half + 1)):
            fit = (border * k - hashed(message)) * pow(r, -1, n) % n
            if border == half:
                cases.append(
                    case(
                        f"{curve.name}_{name}", "the highest s there is", given(pair(r, half), curve.key(fit))
                    )
                )
            else:
                refuse(
                    name,
                    "the lowest s that is high; it satisfies the equation",
                    pair(r, border),
                    curve.key(fit),
                )
        refuse("r_zero", "r = 0", pair(0, low), key)
        refuse("s_zero", "s = 0", pair(r, 0), key)
        refuse("both_zero", "64 zero bytes", bytes(64), key)
        refuse("r_is_n", "r = n", pair(n, low), key)
        refuse("s_is_n", "s = n", pair(r, n), key)
        refuse("all_ones", "64 bytes of ff", b"\xff" * 64, key)
        refuse("s_r_swapped", "s before r", pair(low, min(r, n - r)), key)
        refuse("other_r", "r + 1", pair(r + 1, low), key)
        refuse("negated_key", "the point with the other y", pair(r, low), bytes((5 - key[0],)) + key[1:])
    return {
        "name": "ecdsa_high_s",
        "why": "n − s verifies wherever s does, so one statement would have two ids: only s ≤ n/2 holds, and r and s "
        "lie in 1 … n−1. Signatures are r ‖ s over SHA-256 of the message. All values hex.",
        "cases": cases,
    }


def ecdsa_deterministic() -> Case:
    """RFC 6979 by its §3.2, with s made low."""

    def nonce(curve: Curve, d: int, digest: bytes) -> int:
        seed = d.to_bytes(32, "big") + (int.from_bytes(digest, "big") % curve.n).to_bytes(32, "big")
        v, key = b"\x01" * 32, bytes(32)
        for step in (b"\x00", b"\x01"):
            key = hmac.digest(key, v + step + seed, "sha256")
            v = hmac.digest(key, v, "sha256")
        while True:
            v = hmac.digest(key, v, "sha256")
            k = int.from_bytes(v, "big")
            if 0 < k < curve.n:
                return k
            key = hmac.digest(key, v + b"\x00", "sha256")
            v = hmac.digest(key, v, "sha256")

    rfc = 0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721  # RFC 6979 §A.2.5
    cases: list[Case] = []
    for curve in (P256, SECP256K1):
        for message in (b"sample", b"test", b"", b"a strand of the rope"):
            digest = hashlib.sha256(message).digest()
            k = nonce(curve, rfc, digest)
            r = curve.times(k)[0] % curve.n
            s = pow(k, -1, curve.n) * (int.from_bytes(digest, "big") + r * rfc) % curve.n
            cases.append(
                {
                    "name": f"{curve.name}_{message.decode() or 'empty'}".replace(" ", "_"),
                    "input": {"alg": curve.name, "secret": f"{rfc:064x}", "message": message.hex()},
                    "expect": {
                        "public_key": curve.key(rfc).hex(),
                        "signature": pair(r, min(s, curve.n - s)).hex(),
                    },
                }
            )
    return {
        "name": "ecdsa_deterministic",
        "why": "The nonce comes from RFC 6979, so that signing needs no randomness and always gives the same bytes; "
        "s is then made low. For p256 the key is the one of RFC 6979 §A.2.5. All values hex.",
        "cases": cases,
    }


# ---- did:key, lengths, digests ----

BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def base58(raw: bytes) -> str:
    number, text = int.from_bytes(raw, "big"), ""
    while number:
        number, rest = divmod(number, 58)
        text = BASE58[rest] + text
    return "1" * (len(raw) - len(raw.lstrip(b"\0"))) + text


def did_key() -> Case:
    cases: list[Case] = []
    seen = set()
    for profile in ("v0.6", "v0.13"):
        known = json.loads((HOME / "gossiplog" / f"{profile}-keys.json").read_text(encoding="utf-8"))
        for entry in known["keys"]:
            if entry["did"] not in seen:
                seen.add(entry["did"])
                given = {"alg": entry["type"], "secret": entry["private_key"]}
                cases.append(
                    {
                        "name": f"gossiplog_{profile}_{entry['type']}_{len(seen)}",
                        "why": "made by the JavaScript packages",
                        "input": given,
                        "expect": entry["did"],
                    }
                )
    d = secret_number("ropewalk vectors: p256 d") % P256.n
    key = P256.key(d)
    prefix = bytes.fromhex("8024")
    cases.append(
        {
            "name": "p256",
            "why": "multicodec 0x1200",
            "input": {"alg": "p256", "secret": f"{d:064x}"},
            "expect": "did:key:z" + base58(prefix + key),
        }
    )
    good = base58(b"\xed\x01" + encode(BASE))
    bad = {
        "no_prefix": ("not a did:key", "z" + good),
        "other_method": ("another method", "did:web:z" + good),
        "upper_case_scheme": ("the scheme is lower case", "DID:KEY:z" + good),
        "base16_multibase": ("f is hex; did:key is base58btc", "did:key:fed01" + encode(BASE).hex()),
        "no_key": ("nothing after z", "did:key:z"),
        "zero_in_base58": ("0 is not in the alphabet", "did:key:z0" + good),
        "capital_i": ("I is not in the alphabet", "did:key:z" + good[:-1] + "I"),
        "fragment": ("a DID URL is not a DID", f"did:key:z{good}#z{good}"),
        "trailing_newline": ("a line is not a DID", f"did:key:z{good}\n"),
        "leading_one": ("a zero byte before the key", "did:key:z1" + good),
        "long_varint": ("0xed spelt in three bytes", "did:key:z" + base58(b"\xed\x81\x00" + encode(BASE))),
        "endless_varint": ("ten bytes with the high bit", "did:key:z" + base58(b"\xff" * 10 + encode(BASE))),
        "unknown_codec": (
            "X25519 agrees, it does not sign",
            "did:key:z" + base58(b"\xec\x01" + encode(BASE)),
        ),
        "ed25519_31_bytes": ("a byte short", "did:key:z" + base58(b"\xed\x01" + encode(BASE)[:31])),
        "ed25519_33_bytes": ("a byte long", "did:key:z" + base58(b"\xed\x01" + encode(BASE) + b"\0")),
        "ed25519_small_order": ("the neutral element", "did:key:z" + base58(b"\xed\x01" + encode(NEUTRAL))),
        "p256_uncompressed": ("65 bytes", "did:key:z" + base58(prefix + uncompressed(P256, d))),
        "p256_not_on_curve": ("no y for this x", "did:key:z" + base58(prefix + off_curve(P256))),
        "secp256k1_as_p256": ("key of another curve", "did:key:z" + base58(prefix + foreign_x())),
        "very_long": ("bounded before it is decoded", "did:key:z" + "z" * 1_000),
    }
    cases += [
        {"name": name, "why": why, "input": text, "error": "InvalidKey"} for name, (why, text) in bad.items()
    ]
    return {
        "name": "did_key",
        "why": "did:key both ways. A secret gives the text; the text gives the key. A text that would not be written "
        "is refused when it is read.",
        "cases": cases,
    }


def foreign_x() -> bytes:
    """A key of secp256k1 whose x is no x of P-256."""
    return next(
        key for key in map(SECP256K1.key, count(1)) if not P256.square(int.from_bytes(key[1:], "big"))
    )


def wrong_lengths() -> Case:
    message = b"a strand of the rope".hex()
    one = {"ed25519": encode(BASE), "p256": P256.key(1), "secp256k1": SECP256K1.key(1)}
    cases: list[Case] = []

    def refuse(name: str, why: str, given: Case) -> None:
        cases.append({"name": name, "why": why, "input": given, "error": "InvalidKey"})

    for alg, key in one.items():
        for length in (0, 1, 63, 65, 71, 128):
            refuse(
                f"{alg}_signature_{length}",
                "64 bytes or nothing",
                {"alg": alg, "public_key": key.hex(), "message": message, "signature": "01" * length},
            )
        for length in (0, 31, 32, 33, 64, 65):
            if length != len(key):
                raw = key.ljust(length, b"\x01")[:length]
                refuse(
                    f"{alg}_key_{length}",
                    f"{len(key)} bytes or nothing",
                    {"alg": alg, "public_key": raw.hex()},
                )
        for length in (0, 31, 33, 64):
            refuse(f"{alg}_secret_{length}", "32 bytes or nothing", {"alg": alg, "secret": "01" * length})
    for curve in (P256, SECP256K1):
        refuse(f"{curve.name}_secret_zero", "0 is no secret", {"alg": curve.name, "secret": "00" * 32})
        refuse(f"{curve.name}_secret_n", "n is no secret", {"alg": curve.name, "secret": f"{curve.n:064x}"})
        x = curve.times(1)[0].to_bytes(32, "big").hex()
        for first in ("00", "01", "04", "06"):
            refuse(
                f"{curve.name}_key_first_{first}", "02 or 03", {"alg": curve.name, "public_key": first + x}
            )
        refuse(
            f"{curve.name}_key_uncompressed",
            "compressed only",
            {"alg": curve.name, "public_key": uncompressed(curve, 1).hex()},
        )
        refuse(
            f"{curve.name}_key_hybrid",
            "compressed only",
            {"alg": curve.name, "public_key": "06" + uncompressed(curve, 2).hex()[2:]},
        )
        refuse(
            f"{curve.name}_key_off_curve", "no y", {"alg": curve.name, "public_key": off_curve(curve).hex()}
        )
        high = next(x for x in range(curve.p + 1, 2**256) if curve.square(x - curve.p))
        refuse(
            f"{curve.name}_key_x_above_p",
            "x not below p",
            {"alg": curve.name, "public_key": f"02{high:064x}"},
        )
    refuse("unknown_algorithm", "no such algorithm", {"alg": "rsa", "public_key": "01" * 32})
    return {
        "name": "wrong_lengths",
        "why": "Keys, secrets and signatures have one length and one form; everything else is no key. All values hex.",
        "cases": cases,
    }


def identity() -> Case:
    cases = []
    for kind, key in (
        ("ed25519", encode(BASE)),
        ("p256", P256.key(1)),
        ("secp256k1", SECP256K1.key(1)),
        ("attested-domain", encode(BASE)),
    ):
        raw = b"ea:identity:v1" + kind.encode() + b"\0" + key
        cases.append(
            {
                "name": kind.replace("-", "_"),
                "input": {"identity_type": kind, "public_key": key.hex()},
                "expect": blake3(raw).hexdigest(),
            }
        )
    return {
        "name": "identity",
        "why": "BLAKE3 of the tag ea:identity:v1, the type, a zero byte and the raw key: the same bytes under another "
        "type are another identity. Hex.",
        "cases": cases,
    }


def key_json() -> Case:
    key = encode(times(secret_number("ropewalk vectors: a"), BASE))
    point = P256.key(secret_number("ropewalk vectors: p256 d") % P256.n)
    text = base64.b64encode(key).decode()
    good = {
        "hex": ("as we write it", "ed25519", key.hex(), key),
        "base64": ("padded base64 is read", "ed25519", text, key),
        "p256_hex": ("as we write it", "p256", point.hex(), point),
        "p256_base64": ("33 bytes need no padding", "p256", base64.b64encode(point).decode(), point),
    }
    cases: list[Case] = [
        {
            "name": name,
            "why": why,
            "input": {"identity_type": kind, "public_key": written},
            "expect": {"identity_type": kind, "public_key": raw.hex()},
        }
        for name, (why, kind, written, raw) in good.items()
    ]
    stray = text[:-2] + chr(ord(text[-2]) + 1) + "="
    bad: dict[str, tuple[str, object]] = {
        "upper_hex": ("hex is lower case", {"identity_type": "ed25519", "public_key": key.hex().upper()}),
        "unpadded": ("padding is part of it", {"identity_type": "ed25519", "public_key": text.rstrip("=")}),
        "url_alphabet": (
            "the standard alphabet",
            {"identity_type": "ed25519", "public_key": base64.urlsafe_b64encode(b"\xff" * 32).decode()},
        ),
        "stray_bits": (
            "bits after the last byte are zero",
            {"identity_type": "ed25519", "public_key": stray},
        ),
        "spaces": ("no white space", {"identity_type": "ed25519", "public_key": text + "\n"}),
        "prefix": ("no 0x", {"identity_type": "ed25519", "public_key": "0x" + key.hex()}),
        "extra_member": (
            "exactly two members",
            {"identity_type": "ed25519", "public_key": key.hex(), "label": "x"},
        ),
        "no_type": ("exactly two members", {"public_key": key.hex()}),
        "number": ("texts", {"identity_type": "ed25519", "public_key": 7}),
        "attested_domain": (
            "names no algorithm; the ledger knows what to do",
            {"identity_type": "attested-domain", "public_key": key.hex()},
        ),
        "list": ("an object", [key.hex()]),
    }
    cases += [
        {"name": name, "why": why, "input": given, "error": "InvalidKey"}
        for name, (why, given) in bad.items()
    ]
    return {
        "name": "key_json",
        "why": "A public key in JSON: hex when written, padded canonical base64 accepted when read.",
        "cases": cases,
    }


def generate() -> dict[str, object]:
    return {
        "keys/did_key.json": did_key(),
        "keys/ecdsa_deterministic.json": ecdsa_deterministic(),
        "keys/ecdsa_high_s.json": ecdsa_high_s(),
        "keys/ed25519_edge_cases.json": ed25519_edge_cases(),
        "keys/ed25519_public_keys.json": ed25519_public_keys(),
        "keys/identity.json": identity(),
        "keys/key_json.json": key_json(),
        "keys/wrong_lengths.json": wrong_lengths(),
    }
