"""Ed25519 and two ECDSA curves with plain integers, from their definitions: slow, plain, and able to misbehave."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import count

# ---- Ed25519 from RFC 8032 ----

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
ROOT_OF_MINUS_ONE = pow(2, (P - 1) // 4, P)

Point = tuple[int, int, int, int]  # X, Y, Z, T: x = X/Z, y = Y/Z, xy = T/Z
NEUTRAL: Point = (0, 1, 1, 0)


def add(first: Point, second: Point) -> Point:
    a = (first[1] - first[0]) * (second[1] - second[0]) % P
    b = (first[1] + first[0]) * (second[1] + second[0]) % P
    c = 2 * first[3] * second[3] * D % P
    d = 2 * first[2] * second[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(factor: int, point: Point) -> Point:
    total = NEUTRAL
    while factor:
        if factor & 1:
            total = add(total, point)
        point = add(point, point)
        factor >>= 1
    return total


def root_x(y: int) -> int | None:
    """An x of the point with this y, if there is one."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    for candidate in (x, x * ROOT_OF_MINUS_ONE % P):
        if candidate * candidate % P == square:
            return candidate
    return None


def point_of(y: int, odd: bool) -> Point:
    x = root_x(y)
    assert x is not None
    x = x if x & 1 == odd else -x % P
    return x, y, 1, x * y % P


def encode(point: Point) -> bytes:
    inverse = pow(point[2], -1, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return spell(y, x & 1)


def spell(y: int, sign: int) -> bytes:
    """The 32 bytes that claim this y and sign, canonical or not."""
    return (y | sign << 255).to_bytes(32, "little")


BASE = point_of(4 * pow(5, -1, P) % P, False)


def order_eight() -> Point:
    """A point of order 8, as it happens the first one found among the smallest y."""
    for y in count(2):
        if root_x(y) is not None:
            point = times(L, point_of(y, False))
            if encode(times(4, point)) != encode(NEUTRAL):
                return point
    raise AssertionError


EIGHT = order_eight()
SMALL = [times(i, EIGHT) for i in range(8)]  # all points of small order


def challenge(r: bytes, key: bytes, message: bytes) -> int:
    return int.from_bytes(hashlib.sha512(r + key + message).digest(), "little") % L


def secret_number(label: str) -> int:
    return int.from_bytes(hashlib.sha512(label.encode()).digest(), "little") % L


def little(number: int) -> bytes:
    return number.to_bytes(32, "little")


# ---- ECDSA from SEC 1 ----

Affine = tuple[int, int] | None


@dataclass(frozen=True)
class Curve:
    """y² = x³ + ax + b modulo p, base point g of order n."""

    name: str
    p: int
    a: int
    b: int
    n: int
    g: tuple[int, int]

    def add(self, first: Affine, second: Affine) -> Affine:
        if first is None or second is None:
            return first or second
        (x1, y1), (x2, y2) = first, second
        if x1 == x2 and (y1 + y2) % self.p == 0:
            return None
        slope = (
            (3 * x1 * x1 + self.a) * pow(2 * y1, -1, self.p)
            if first == second
            else (y2 - y1) * pow(x2 - x1, -1, self.p)
        )
        x = (slope * slope - x1 - x2) % self.p
        return x, (slope * (x1 - x) - y1) % self.p

    def times(self, factor: int) -> tuple[int, int]:
        total: Affine = None
        point: Affine = self.g
        while factor:
            if factor & 1:
                total = self.add(total, point)
            point = self.add(point, point)
            factor >>= 1
        assert total is not None
        return total

    def key(self, d: int) -> bytes:
        x, y = self.times(d)
        return bytes((2 + (y & 1),)) + x.to_bytes(32, "big")

    def square(self, x: int) -> bool:
        return pow(x**3 + self.a * x + self.b, (self.p - 1) // 2, self.p) == 1


P256 = Curve(
    "p256",
    2**256 - 2**224 + 2**192 + 2**96 - 1,
    -3,
    0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B,
    0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
    (
        0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
        0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
    ),
)
SECP256K1 = Curve(
    "secp256k1",
    2**256 - 2**32 - 977,
    0,
    7,
    0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141,
    (
        0x79BE667EF9DCBBAC55A06295CE870B07029BFCDB2DCE28D959F2815B16F81798,
        0x483ADA7726A3C4655DA4FBFC0E1108A8FD17B448A68554199C47D08FFB10D4B8,
    ),
)


def hashed(message: bytes) -> int:
    return int.from_bytes(hashlib.sha256(message).digest(), "big")


def pair(r: int, s: int) -> bytes:
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def uncompressed(curve: Curve, d: int) -> bytes:
    x, y = curve.times(d)
    return b"\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")


def off_curve(curve: Curve) -> bytes:
    x = next(x for x in count(1) if not curve.square(x))
    return b"\x02" + x.to_bytes(32, "big")
