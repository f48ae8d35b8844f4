"""The law of canonical CBOR, read item by item.

This is the slow and exact half of `ropewalk.kernel.cbor`: it names the first fault of some bytes, or proves that
there is none, in memory bounded by the input. The fast half never accepts what this one would refuse.

Two dialects exist, and they differ in three points only: which integers there are, how wide a float is written,
and whether links (tag 42) are allowed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ropewalk.errors import InvalidCbor, InvalidDigest
from ropewalk.kernel.digest import split_cid

DEPTH_MAX = 128  # containers inside containers; the same bound as for JSON
INT_SAFE_MAX = 2**53 - 1  # beyond this a double no longer separates neighbours
FLOAT_UNMISTAKABLE = 1e21  # from here on JCS prints an exponent: no reader takes the number for an integer

_UINT, _NINT, _BYTES, _TEXT, _LIST, _MAP, _TAG, _SIMPLE = range(8)  # major types, compared in this order
_LINK_TAG = 42
_FLOATS = {25: (">e", 2), 26: (">f", 4), 27: (">d", 8)}
_CUT = "ends in the middle of an item"

Refuse: TypeAlias = Callable[[str], InvalidCbor]  # makes the error of the item that is being read


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where two canonical forms differ; `float_width` gives the one width a float may have, or refuses it."""

    name: str
    int_min: int
    int_max: int
    links: bool
    float_width: Callable[[float], int]


def is_safe_integer(number: float) -> bool:
    """Return whether a float is an integer that every reader holds exactly; such floats are written as integers.

    >>> is_safe_integer(1.0), is_safe_integer(-0.0), is_safe_integer(1.5), is_safe_integer(2.0**53)
    (True, True, False, False)
    """
    return -INT_SAFE_MAX <= number <= INT_SAFE_MAX and number.is_integer()


def _dag_float_width(number: float) -> int:
    if not math.isfinite(number):
        raise InvalidCbor(f"{number} has no canonical form", reason="not a finite number")
    if is_safe_integer(number):
        raise InvalidCbor(f"{number!r} is an integer", reason="integer written as a float")
    return 8


def _core_float_width(number: float) -> int:
    _dag_float_width(number)
    if abs(number) < FLOAT_UNMISTAKABLE and number.is_integer():
        raise InvalidCbor(f"{number!r} is beyond ±(2^53−1)", reason="integer out of range")
    for form, width in _FLOATS.values():
        try:
            if struct.unpack(form, struct.pack(form, number))[0] == number:
                return width
        except OverflowError:
            continue  # too large for this width
    return 8


DAG = Dialect("DAG-CBOR", -(2**64), 2**64 - 1, True, _dag_float_width)
CORE = Dialect("CBOR", -INT_SAFE_MAX, INT_SAFE_MAX, False, _core_float_width)


class _Open:
    """A container whose end has not been reached."""

    __slots__ = ("is_map", "last_key", "left")

    def __init__(self, left: int, is_map: bool) -> None:
        self.left = left  # items to come; a key is next in a map when this is even
        self.is_map = is_map
        self.last_key = b""


def check(raw: bytes, dialect: Dialect) -> None:
    """Read every item of `raw` and refuse the first that is not canonical.

    >>> check(bytes.fromhex("a2616101626262f6"), CORE)
    >>> check(bytes.fromhex("a2616201616102"), CORE)
    Traceback (most recent call last):
    ...
    ropewalk.errors.InvalidCbor: CBOR byte 4: map keys are not in order
    """
    end = len(raw)
    at = start = 0
    owed = 1  # items promised by the heads read so far; each takes a byte, so a head cannot promise much
    stack: list[_Open] = []

    def refuse(reason: str) -> InvalidCbor:
        return InvalidCbor(f"{dialect.name} byte {start}: {reason}", position=start, reason=reason)

    while owed:
        start = at
        if at == end:
            raise refuse(_CUT)
        major, info = raw[at] >> 5, raw[at] & 31
        at += 1
        argument = info
        if info >= 24 and (major != _SIMPLE or info == 24):
            argument, at = _long_head(raw, at, info, refuse)
        top = stack[-1] if stack else None
        if top is not None and top.is_map and top.left % 2 == 0:
            if major != _TEXT:
                raise refuse("map key is not text")
            # With its head, so that shorter keys come first; for text this is the order of both dialects.
            key = raw[start : at + argument]
            if key <= top.last_key:
                raise refuse("duplicate map key" if key == top.last_key else "map keys are not in order")
            top.last_key = key

        if major <= _NINT:
            if not dialect.int_min <= (argument if major == _UINT else -1 - argument) <= dialect.int_max:
                raise refuse("integer out of range")
        elif major <= _TEXT:
            text = raw[at : at + argument]
            at += argument
            if at > end:
                raise refuse(_CUT)
            if major == _TEXT:
                try:
                    text.decode()
                except UnicodeDecodeError:
                    raise refuse("text is not UTF-8") from None
        elif major <= _MAP:
            items = argument * (2 if major == _MAP else 1)
            owed += items
            if owed - 1 > end - at:
                raise refuse(_CUT)
            if len(stack) == DEPTH_MAX:
                raise refuse(f"nested deeper than {DEPTH_MAX}")
            if items:
                stack.append(_Open(items, major == _MAP))
                owed -= 1
                continue
        elif major == _TAG:
            if argument != _LINK_TAG or not dialect.links:
                raise refuse(f"tag {argument}")
            at = _check_link(raw, at, refuse)
        elif not 20 <= info <= 22:  # false, true and null say nothing more
            at = _check_float(raw, at, info, dialect, refuse)

        owed -= 1
        while stack:
            stack[-1].left -= 1
            if stack[-1].left:
                break
            stack.pop()
    start = at
    if at != end:
        raise refuse("bytes after the end")


def _long_head(raw: bytes, at: int, info: int, refuse: Refuse) -> tuple[int, int]:
    """Return the argument of a head that goes on behind its first byte, and where it ends."""
    if info > 27:
        raise refuse("indefinite length" if info == 31 else "reserved head")
    width = 1 << (info - 24)
    argument = int.from_bytes(raw[at : at + width], "big")
    at += width
    if at > len(raw):
        raise refuse(_CUT)
    if argument < (24 if width == 1 else 1 << (width * 4)):
        raise refuse("head is longer than necessary")
    return argument, at


def _check_float(raw: bytes, at: int, info: int, dialect: Dialect, refuse: Refuse) -> int:
    """Refuse a float of another width than its dialect allows, and other simple values; return where it ends."""
    if info not in _FLOATS:
        raise refuse(
            "undefined" if info == 23 else "break without a beginning" if info == 31 else "simple value"
        )
    form, width = _FLOATS[info]
    if at + width > len(raw):
        raise refuse(_CUT)
    try:
        allowed = dialect.float_width(struct.unpack_from(form, raw, at)[0])
    except InvalidCbor as error:
        raise refuse(error.fields["reason"]) from None
    if width != allowed:
        raise refuse(f"float of {width * 8} bits must have {allowed * 8}")
    return at + width


def _check_link(raw: bytes, at: int, refuse: Refuse) -> int:
    """Return a link is a byte string that holds a zero byte and a CID; returns where it ends."""
    if at == len(raw):
        raise refuse(_CUT)
    if raw[at] == 0x58:  # CIDs in use have 34 or 36 bytes
        size, at = int.from_bytes(raw[at + 1 : at + 2], "big"), at + 2
        if size < 24:
            raise refuse("head is longer than necessary")
    else:
        size, at = raw[at] - 0x40, at + 1
        if not 0 <= size < 24:
            raise refuse("link without a CID")
    cid = raw[at : at + size]
    if len(cid) < size:
        raise refuse(_CUT)
    try:
        if cid[:1] != b"\0":
            raise InvalidDigest("a CID inside CBOR starts with a zero byte")
        split_cid(cid[1:])
    except InvalidDigest:
        raise refuse("link without a CID") from None
    return at + size
