"""ULIDs: 48 bits of milliseconds and 80 bits of chance, as 26 characters that sort like their number.

`next_ulid` follows S0 §5: it only ever goes up, also when the clock goes back. Text order is number order, so most
of the work is done on the text itself: a new ULID in an old millisecond is the old one with its last character
moved on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import NewType, TypeGuard, cast

from ropewalk.errors import InvalidUlid, OutOfOrder

Ulid = NewType("Ulid", str)
"""A ULID in its only spelling: 26 upper-case characters, the first at most 7."""

TIME_MS_MAX = (1 << 48) - 1  # the year 10889
RANDOMNESS_MAX = (1 << 80) - 1
ENTROPY_BYTES = 10

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PATTERN = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_matches = _PATTERN.fullmatch
_PAIRS = tuple(a + b for a in _ALPHABET for b in _ALPHABET)  # ten bits at a time: half the steps of five
_SUCCESSOR = dict(pairwise(_ALPHABET))
_VALUES = {char: value for value, char in enumerate(_ALPHABET)}
_TO_BASE32HEX = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")  # what int(…, 32) reads


def is_ulid(text: object) -> TypeGuard[Ulid]:
    """Return whether this is a ULID in its strict spelling.

    >>> is_ulid("01HF4Y9Q1SM8Q7K9DK2R4V5CXD"), is_ulid("01hf4y9q1sm8q7k9dk2r4v5cxd"), is_ulid(7)
    (True, False, False)
    """
    return isinstance(text, str) and _matches(text) is not None


def parse(text: str) -> Ulid:
    """Return the text as a ULID, if it is one: no lower case, no I, L, O or U, no more than 128 bits.

    >>> parse("01HF4Y9Q1SM8Q7K9DK2R4V5CXD")
    '01HF4Y9Q1SM8Q7K9DK2R4V5CXD'
    """
    if is_ulid(text):
        return text
    raise InvalidUlid(f"ULID {_shown(text)}: {_fault(text)}", text=_shown(text), reason=_fault(text))


def make(time_ms: int, randomness: int | bytes) -> Ulid:
    """Return the ULID of a moment and 80 bits of chance.

    >>> make(1469922850259, bytes(10))
    '01ARZ3NDEK0000000000000000'
    """
    return Ulid(_time_text(time_ms) + _randomness_text(randomness))


def time_ms(ulid: Ulid) -> int:
    """Return the milliseconds since 1970 that a ULID carries.

    >>> time_ms(parse("01ARZ3NDEK0000000000000000"))
    1469922850259
    """
    return int(ulid[:10].translate(_TO_BASE32HEX), 32)


def randomness(ulid: Ulid) -> int:
    """Return the 80 bits of chance that a ULID carries.

    >>> randomness(parse("01ARZ3NDEK0000000000000010"))
    32
    """
    return int(ulid[10:].translate(_TO_BASE32HEX), 32)


def to_bytes(ulid: Ulid) -> bytes:
    """Return the 16 bytes of a ULID, big endian: they sort as the text does.

    >>> to_bytes(parse("01ARZ3NDEK0000000000000010")).hex()
    '01563e3ab5d300000000000000000020'
    """
    return int(ulid.translate(_TO_BASE32HEX), 32).to_bytes(16, "big")


def all_to_bytes(ulids: Iterable[Ulid]) -> list[bytes]:
    """Convert many at once, as `to_bytes` does one: those of a millisecond mostly differ in their last character only.

    >>> [raw.hex()[-4:] for raw in all_to_bytes(next_ulids(None, 0, bytes(10), 3))]
    ['0000', '0001', '0002']
    """
    stem, number = "", 0
    many = []
    for ulid in ulids:
        if ulid[:25] != stem:
            stem = ulid[:25]
            number = int(stem.translate(_TO_BASE32HEX), 32) << 5
        many.append((number | _VALUES[ulid[25]]).to_bytes(16, "big"))
    return many


def from_bytes(raw: bytes) -> Ulid:
    """Return the ULID of 16 bytes.

    >>> from_bytes(bytes.fromhex("01563e3ab5d300000000000000000020"))
    '01ARZ3NDEK0000000000000010'
    """
    if len(raw) != 16:
        raise InvalidUlid(f"a ULID has 16 bytes, not {len(raw)}", reason="length")
    return make(int.from_bytes(raw[:6], "big"), raw[6:])


def next_ulid(last: Ulid | None, now_ms: int, entropy: bytes) -> Ulid:
    """Return a ULID above `last`: at `now_ms` if the clock has moved on, else one higher in the last millisecond.

    A clock that stops or runs backwards never lowers a ULID. When the last millisecond has no higher
    ULID left, that is `OutOfOrder` (S0: TemporalOrder).

    >>> first = next_ulid(None, 1469922850259, bytes(10))
    >>> second = next_ulid(first, 1469922850000, bytes(10))
    >>> first, second
    ('01ARZ3NDEK0000000000000000', '01ARZ3NDEK0000000000000001')
    """
    if last is None:
        return make(now_ms, entropy)
    time_text = _time_text(now_ms if now_ms > 0 else 0)  # before 1970 is only a clock that runs backwards far
    if time_text > last:
        return Ulid(time_text + _randomness_text(entropy))
    higher = _SUCCESSOR.get(last[25])
    return Ulid(last[:25] + higher) if higher is not None else _carried(last, 1)


def next_ulids(last: Ulid | None, now_ms: int, entropy: bytes, count: int) -> list[Ulid]:
    """Return as many ULIDs as asked, each above the one before: what `next_ulid` gives within one millisecond.

    >>> next_ulids(None, 1469922850259, bytes(10), 2)
    ['01ARZ3NDEK0000000000000000', '01ARZ3NDEK0000000000000001']
    """
    if count < 1:
        return []
    first = next_ulid(last, now_ms, entropy)
    _carried(first, count - 1)  # all or none: the last one must exist before the first is given out
    ulids: list[str] = [first]
    while len(ulids) < count:
        ulid = ulids[-1]
        stem, here = ulid[:25], _ALPHABET.index(ulid[25])
        ulids += [stem + char for char in _ALPHABET[here + 1 : here + 1 + count - len(ulids)]]
        if len(ulids) < count:
            ulids.append(_carried(Ulid(ulids[-1]), 1))
    return cast(list[Ulid], ulids)


def _carried(ulid: Ulid, steps: int) -> Ulid:
    value = randomness(ulid) + steps
    if value > RANDOMNESS_MAX:
        raise OutOfOrder(
            f"ULID {ulid}: its millisecond has no {steps} higher ULIDs left",
            advice="Wait until the clock has passed the last ULID's millisecond.",
            ulid=ulid,
            reason="randomness overflow",
        )
    return Ulid(ulid[:10] + _randomness_text(value))


def _time_text(value: int) -> str:
    return _time_stem(value >> 10) + _PAIRS[value & 1023]


@lru_cache(maxsize=16)  # all but the last two characters stay the same for a second
def _time_stem(value: int) -> str:
    if not 0 <= value <= TIME_MS_MAX >> 10:
        raise InvalidUlid(f"time near {value << 10} ms: outside 0 … 2^48−1", reason="time range")
    return (
        f"{_PAIRS[value >> 30]}{_PAIRS[value >> 20 & 1023]}{_PAIRS[value >> 10 & 1023]}{_PAIRS[value & 1023]}"
    )


def _randomness_text(value: int | bytes) -> str:
    if isinstance(value, bytes):
        if len(value) != ENTROPY_BYTES:
            raise InvalidUlid(
                f"entropy has {len(value)} bytes; a ULID takes {ENTROPY_BYTES}", reason="entropy"
            )
        value = int.from_bytes(value, "big")
    elif not 0 <= value <= RANDOMNESS_MAX:
        raise InvalidUlid(f"randomness {value}: outside 0 … 2^80−1", reason="randomness range")
    # Two halves of 40 bits: shifts of small numbers are cheaper.
    high, low = value >> 40, value & 0xFFFFFFFFFF
    pairs = _PAIRS
    return (
        f"{pairs[high >> 30]}{pairs[high >> 20 & 1023]}{pairs[high >> 10 & 1023]}{pairs[high & 1023]}"
        f"{pairs[low >> 30]}{pairs[low >> 20 & 1023]}{pairs[low >> 10 & 1023]}{pairs[low & 1023]}"
    )


def _shown(text: object) -> str:
    return repr(text)[:80]


def _fault(text: object) -> str:
    if not isinstance(text, str):
        return "not a text"
    if len(text) != 26:
        return f"{len(text)} characters instead of 26"
    for position, char in enumerate(text):
        if char not in _ALPHABET:
            return f"{char!r} at {position} is not in the alphabet"
    return "first character above 7: more than 128 bits"
