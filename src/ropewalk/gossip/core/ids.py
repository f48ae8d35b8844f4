"""Message ids: a clock, then as much of a SHA-256 as fits into twenty bytes.

The two wire profiles differ only in how the clock is written. The code of v0.13 sorts like the numbers it holds;
the code of v0.6 stops doing so at 16,384, which is why nothing here ever compares raw v0.6 keys to find an order.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NewType

from ropewalk.errors import Invalid, RangeExceeded

ProfileName = Literal["v0.6", "v0.13"]
MessageId = NewType("MessageId", str)
Key = NewType("Key", bytes)

KEY_BYTES = 20
IDS_CACHED = 1 << 14  # a message is named again as the parent of the next ones
_ID = re.compile(r"[0-9a-v]{32}")
_DIGITS = "0123456789abcdefghijklmnopqrstuv"
# Ten bits at a time: a table of 1,024 pairs makes an id about as cheap as hashing one.
_PAIRS = [a + b for a in _DIGITS for b in _DIGITS]
_SHIFTS = tuple(range(150, -1, -10))


@lru_cache(IDS_CACHED)
def id_of(key: bytes) -> MessageId:
    """Return the text form of a key: base32hex, lower case, without padding.

    >>> id_of(bytes(20))
    '00000000000000000000000000000000'
    """
    if len(key) != KEY_BYTES:
        raise Invalid(f"a message key has {KEY_BYTES} bytes, not {len(key)}", reason="key length")
    number = int.from_bytes(key, "big")
    return MessageId("".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS]))


def key_of(text: str) -> Key:
    """Return the twenty bytes of an id.

    >>> key_of("0607m7osfe5b5p2adtmau7esd5d17ir1").hex()
    '01807b1f1c7b8ab2e44a6f6caf1ddc695a13cb61'
    """
    if _ID.fullmatch(text) is None:
        raise Invalid(
            f"{text[:40]!r} is not a message id",
            reason="id",
            advice="A message id has 32 characters of 0-9 and a-v.",
        )
    return Key(int(text, 32).to_bytes(KEY_BYTES, "big"))


@dataclass(frozen=True, slots=True)
class ClockCode:
    """How one profile writes the clock at the front of a key.

    >>> CLOCKS["v0.6"].encode(16384).hex(), CLOCKS["v0.13"].encode(16384).hex()
    ('818000', 'c04000')
    """

    clock_max: int
    sorts: bool  # whether raw keys sort by clock
    _encode: Callable[[int], bytes]
    split: Callable[[bytes], tuple[int, int]]  # the clock of a key, and how many bytes it takes there

    def encode(self, clock: int) -> bytes:
        """Return the code of a clock, with which keys begin."""
        if not 0 <= clock <= self.clock_max:
            raise RangeExceeded(f"clock {clock} is outside 0 … {self.clock_max}", clock=clock)
        return self._encode(clock)

    def clock(self, key: bytes) -> int:
        """Return the clock of a key.

        >>> CLOCKS["v0.6"].clock(bytes.fromhex("818000") + bytes(17))
        16384
        """
        return self.split(key)[0]

    def order(self, key: bytes) -> bytes:
        """Return bytes that sort keys by clock, then by hash, in either profile.

        >>> late, early = (CLOCKS["v0.6"].encode(n) + bytes(18) for n in (16384, 256))
        >>> late < early, CLOCKS["v0.6"].order(late) < CLOCKS["v0.6"].order(early)
        (True, False)
        """
        if self.sorts:
            return key
        clock, size = self.split(key)
        return clock.to_bytes(7, "big") + key[size:]

    def from_order(self, order: bytes) -> Key:
        """Return the key that `order` was made from."""
        if self.sorts:
            return Key(order)
        return Key(self.encode(int.from_bytes(order[:7], "big")) + order[7:])


def make_key(code: ClockCode, clock: int, digest: bytes) -> Key:
    """Return the key of a message: its clock, then its digest, cut to twenty bytes.

    >>> make_key(CLOCKS["v0.13"], 1, bytes(32)).hex()
    '0100000000000000000000000000000000000000'
    """
    return Key((code.encode(clock) + digest)[:KEY_BYTES])


def _encode_reverse_varint(clock: int) -> bytes:
    # v0.6: groups of seven bits, most significant first, high bit on all but the last.
    groups = [clock & 0x7F]
    while clock := clock >> 7:
        groups.append(clock & 0x7F | 0x80)
    return bytes(reversed(groups))


def _decode_reverse_varint(key: bytes) -> tuple[int, int]:
    clock = 0
    for size, byte in enumerate(key[:5], start=1):
        clock = clock << 7 | byte & 0x7F
        if byte < 0x80:
            return clock, size
    raise Invalid(f"key {key.hex()} starts with an endless clock", reason="clock code")


def _encode_prefix(clock: int) -> bytes:
    # v0.13: n bytes hold 7n bits; n−1 one-bits and a zero say how many follow, so longer codes sort later.
    if clock < 0x80:
        return bytes((clock,))
    if clock < 0x4000:
        return (0x8000 | clock).to_bytes(2, "big")
    size = -(-clock.bit_length() // 7)
    ones = (1 << size - 1) - 1
    return (ones << 8 * size - size + 1 | clock).to_bytes(size, "big")


def _decode_prefix(key: bytes) -> tuple[int, int]:
    first = key[0] if key else 0
    if first < 0x80:
        return first, 1
    size = 9 - (first ^ 0xFF).bit_length()
    return int.from_bytes(key[:size], "big") & (1 << 7 * size) - 1, size


def _code(
    clock_max: int, sorts: bool, encode: Callable[[int], bytes], decode: Callable[[bytes], tuple[int, int]]
) -> ClockCode:
    @lru_cache(IDS_CACHED)
    def split(key: bytes) -> tuple[int, int]:
        clock, size = decode(key)
        if clock > clock_max or key[:size] != encode(clock):
            raise Invalid(f"key {key.hex()} starts with a clock in a second spelling", reason="clock code")
        return clock, size

    return ClockCode(clock_max, sorts, encode, split)


CLOCKS: dict[ProfileName, ClockCode] = {
    "v0.6": _code(2**31 - 1, False, _encode_reverse_varint, _decode_reverse_varint),
    "v0.13": _code(2**53 - 1, True, _encode_prefix, _decode_prefix),
}
