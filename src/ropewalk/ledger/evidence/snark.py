"""Groth16 proofs as evidence (`snark.v1`), over BLS12-381 and BN254, in the JSON form of snarkjs.

    report = {"system":"groth16", "curve":"bls12381"|"bn128", "vk_sha256":"<hex>",
              "public_inputs":["<decimal>"…], "proof":{snarkjs}}

A verification key is pinned by the SHA-256 of its canonical JSON. Public inputs 0 and 1 are the high and low 128 bits
of the digest that the proof is about: the payload_hash of an envelope, or the merkle_root of a block header. Every
point is checked here to be on its curve, and by the library to be in its subgroup; the point at infinity is refused,
because a key with it would leave a public input unbound.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from ropewalk.errors import Invalid, RopewalkError, Unavailable, Unverified
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import sha256
from ropewalk.kernel.report import Status

KEY_BYTES_MAX: Final = 256 << 10
INPUTS_MAX: Final = 64  # each costs a multiplication on the curve
KEYS_CACHED_MAX: Final = 16
_DECIMAL: Final = re.compile(r"0|[1-9][0-9]{0,120}")
_MEMBERS: Final = {"system", "curve", "vk_sha256", "public_inputs", "proof"}
_NEEDS: Final = 'Run: pip install ".[snark]"'

G1 = tuple[int, int]
G2 = tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Curve:
    """A pairing-friendly curve: its field, its order, b, and b of its twist."""

    p: int
    r: int
    b: int
    twist: tuple[int, int]

    def g1(self, value: Any) -> G1:
        """Return a point of G1 that is on the curve; raise `Unverified` for any other, also for infinity."""
        x, y, z = self._numbers(value, 3)
        if z != 1 or (y * y - x**3 - self.b) % self.p:
            raise Unverified("a point must be affine and on its curve")
        return x, y

    def g2(self, value: Any) -> G2:
        """Return a point of G2 that is on the twist, as `g1` does."""
        if not isinstance(value, list) or len(value) != 3:
            raise Unverified("a point must have three coordinates")
        x, y, z = (self._numbers(each, 2) for each in value)
        cube = self._times(self._times(x, x), x)
        square = self._times(y, y)
        if z != [1, 0] or any((s - c - t) % self.p for s, c, t in zip(square, cube, self.twist, strict=True)):
            raise Unverified("a point must be affine and on its curve")
        return (x[0], x[1]), (y[0], y[1])

    def _times(self, one: list[int], other: list[int]) -> list[int]:
        (a, b), (c, d) = one, other
        return [(a * c - b * d) % self.p, (a * d + b * c) % self.p]

    def _numbers(self, value: Any, count: int) -> list[int]:
        if not isinstance(value, list) or len(value) != count:
            raise Unverified("a point must have three coordinates")
        return [_number(each, self.p) for each in value]


BN128_P: Final = 21888242871839275222246405745257275088696311157297823662689037894645226208583
_INVERSE_82: Final = pow(82, -1, BN128_P)  # the twist of BN254 is 3 / (9 + u), and (9 + u)(9 - u) = 82
CURVES: Final = {
    "bn128": Curve(
        BN128_P,
        21888242871839275222246405745257275088548364400416034343698204186575808495617,
        3,
        (27 * _INVERSE_82 % BN128_P, -3 * _INVERSE_82 % BN128_P),
    ),
    "bls12381": Curve(
        0x1A0111EA397FE69A4B1BA7B6434BACD764774B84F38512BF6730D2A0F6B0F6241EABFFFEB153FFFFB9FEFFFFFFFFAAAB,
        0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001,
        4,
        (4, 4),
    ),
}


@dataclass(frozen=True, slots=True)
class Groth16Key:
    """A verification key, its points on their curve."""

    curve: str
    alpha: G1
    beta: G2
    gamma: G2
    delta: G2
    ic: tuple[G1, ...]


def key_text(raw: bytes) -> str:
    """Return a verification key of snarkjs as canonical JSON; raise `Invalid` if it is none."""
    value = jcs.parse(raw, bytes_max=KEY_BYTES_MAX)
    text = jcs.encode(value).decode()
    parse_key(text)
    return text


def key_digest(text: str) -> str:
    """Return the digest that names a verification key: SHA-256 of its canonical JSON.

    >>> key_digest("{}")[:16]
    '44136fa355b3678a'
    """
    return sha256(text.encode()).hex()


@lru_cache(KEYS_CACHED_MAX)
def parse_key(text: str) -> Groth16Key:
    """Parse a verification key and check its points.

    >>> parse_key("{}")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: verification key: expected protocol groth16 over bn128 or bls12381, as snarkjs exports it
    """
    value = jcs.parse(text.encode(), bytes_max=KEY_BYTES_MAX)
    if not isinstance(value, dict) or value.get("protocol") != "groth16" or value.get("curve") not in CURVES:
        raise Invalid(
            "verification key: expected protocol groth16 over bn128 or bls12381, as snarkjs exports it"
        )
    name, points = str(value["curve"]), value.get("IC")
    if not isinstance(points, list) or not 3 <= len(points) <= INPUTS_MAX + 1:
        raise Invalid(f"verification key: between 2 and {INPUTS_MAX} public inputs are expected")
    curve = CURVES[name]
    try:
        beta, gamma, delta = (curve.g2(value.get(each)) for each in ("vk_beta_2", "vk_gamma_2", "vk_delta_2"))
        return Groth16Key(
            name, curve.g1(value.get("vk_alpha_1")), beta, gamma, delta, tuple(map(curve.g1, points))
        )
    except Unverified as error:
        raise Invalid(f"verification key: {error.detail}") from error


def halves(digest: bytes) -> list[str]:
    """Return the two public inputs that bind a proof to a digest of 32 bytes.

    >>> halves(bytes(15) + b"\\1" + bytes(15) + b"\\2")
    ['1', '2']
    """
    return [str(int.from_bytes(digest[:16], "big")), str(int.from_bytes(digest[16:], "big"))]


def is_bound(report: Any, digest: bytes) -> bool:
    """Return whether the first two public inputs of a report are this digest."""
    inputs = report.get("public_inputs") if isinstance(report, dict) else None
    return isinstance(inputs, list) and inputs[:2] == halves(digest)


def check_snark(report: dict[str, Any], digest: bytes, keys: Mapping[str, str]) -> tuple[Status, str]:
    """Verify a proof about a digest under a pinned key; raise `Unverified` if it does not hold.

    `keys` are canonical key texts by digest. A proof under another key is *not checked*.
    """
    if report.keys() - {"freshness"} != _MEMBERS or not isinstance(report["curve"], str):
        raise Unverified("a report must have system, curve, vk_sha256, public_inputs and proof")
    if not is_bound(report, digest):
        raise Unverified("public inputs 0 and 1 must be the two halves of the digest")
    if report["system"] != "groth16" or report["curve"] not in CURVES:
        return "not_checked", "only groth16 over bn128 and bls12381 is known"
    text = keys.get(str(report["vk_sha256"]))
    if text is None:
        return "not_checked", f"verification key {str(report['vk_sha256'])[:16]}… is not pinned"
    key, curve = parse_key(text), CURVES[report["curve"]]
    if key.curve != report["curve"]:
        raise Unverified(f"the verification key is over {key.curve}")
    if len(report["public_inputs"]) != len(key.ic) - 1:
        raise Unverified(f"{len(key.ic) - 1} public inputs are expected, got {len(report['public_inputs'])}")
    inputs = [_number(each, curve.r) for each in report["public_inputs"]]
    proof = report["proof"]
    if not isinstance(proof, dict):
        raise Unverified("a proof must have pi_a, pi_b and pi_c")
    points = curve.g1(proof.get("pi_a")), curve.g2(proof.get("pi_b")), curve.g1(proof.get("pi_c"))
    holds = _holds_bls12381 if key.curve == "bls12381" else _holds_bn128
    if not holds(key, inputs, *points):
        raise Unverified("the proof does not hold for these public inputs")
    return "passed", f"groth16 over {key.curve}, verification key {str(report['vk_sha256'])[:16]}…"


def check_header_proof(value: Any, merkle_root: bytes, keys: Mapping[str, str]) -> tuple[Status, str]:
    """Judge the integrity_proof of a block header: `{"type":"snark","proof":report}` about its merkle_root."""
    if not isinstance(value, dict) or value.keys() != {"type", "proof"}:
        return "not_checked", "integrity_proof: its form is not known"
    if value["type"] != "snark" or not isinstance(value["proof"], dict):
        return "not_checked", f"integrity_proof: {str(value['type'])[:20]} proofs are not checked"
    try:
        return check_snark(value["proof"], merkle_root, keys)
    except Unavailable:
        raise
    except RopewalkError as error:
        return "failed", f"integrity_proof: {error.detail}"


def _number(text: Any, below: int) -> int:
    """Return a number in its one decimal spelling; one not below the bound would be a second name of another."""
    if not isinstance(text, str) or _DECIMAL.fullmatch(text) is None or (number := int(text)) >= below:
        raise Unverified("numbers must be decimal texts below the order of their field")
    return number


def _holds_bls12381(key: Groth16Key, inputs: list[int], a: G1, b: G2, c: G1) -> bool:
    try:
        ark: Any = import_module("py_arkworks_bls12381")
    except ImportError as error:
        raise Unavailable("proofs over BLS12-381 need py-arkworks-bls12381", advice=_NEEDS) from error

    def g1(point: G1) -> Any:
        return ark.G1Point.from_xy_bytes_be(b"".join(each.to_bytes(48, "big") for each in point))

    def g2(point: G2) -> Any:
        return ark.G2Point.from_xy_bytes_be(b"".join(n.to_bytes(48, "big") for each in point for n in each))

    try:  # the library refuses points outside the subgroup
        total = g1(key.ic[0])
        for number, point in zip(inputs, key.ic[1:], strict=True):
            total += g1(point) * ark.Scalar.from_be_bytes(number.to_bytes(32, "big"))
        left = [-g1(a), g1(key.alpha), total, g1(c)]
        return bool(ark.GT.pairing_check(left, [g2(b), g2(key.beta), g2(key.gamma), g2(key.delta)]))
    except ValueError as error:
        raise Unverified(f"a point is not in its subgroup: {error}"[:200]) from error


def load_bn128() -> Any:
    """Return the arithmetic of BN254. py-ecc allows the whole process 100,000 levels; deep values would end it."""
    limit = sys.getrecursionlimit()
    try:
        return import_module("py_ecc.optimized_bn128")
    except ImportError as error:
        raise Unavailable("proofs over BN254 need py-ecc", advice=_NEEDS) from error
    finally:
        sys.setrecursionlimit(limit)


def _holds_bn128(key: Groth16Key, inputs: list[int], a: G1, b: G2, c: G1) -> bool:
    bn = load_bn128()

    def g1(point: G1) -> Any:  # its cofactor is 1: a point on the curve is in the group
        return (bn.FQ(point[0]), bn.FQ(point[1]), bn.FQ(1))

    def g2(point: G2) -> Any:
        made = (bn.FQ2(point[0]), bn.FQ2(point[1]), bn.FQ2.one())
        if not bn.is_inf(bn.multiply(made, bn.curve_order)):
            raise Unverified("a point is not in its subgroup")
        return made

    total = g1(key.ic[0])
    for number, point in zip(inputs, key.ic[1:], strict=True):
        total = bn.add(total, bn.multiply(g1(point), number))
    pairs = [(bn.neg(g1(a)), b), (g1(key.alpha), key.beta), (total, key.gamma), (g1(c), key.delta)]
    product = bn.FQ12.one()
    for one, other in pairs:
        product *= bn.pairing(g2(other), one, final_exponentiate=False)
    return bool(bn.final_exponentiate(product) == bn.FQ12.one())
