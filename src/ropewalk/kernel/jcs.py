"""Canonical JSON: one value, one sequence of bytes (RFC 8785), and a parser that takes nothing else on trust.

Everything gitlog and ledger hash or sign passes through here, so two rules hold without exception:
what `encode` writes, `parse` reads back to an equal value; and what `parse` accepts has exactly one canonical form.

Numbers follow the ledger's settled rule. A number whose value is integral, beyond ±(2^53−1) and below 1e21 is refused
however it is written, because its canonical form would be an integer that readers round. From 1e21 upwards
the canonical form has an exponent and is plainly a double; an integer of that size (a Python int, or digits only) must
be one exactly, so that no digit is ever lost in silence.
`parse_foreign` and `encode_foreign` lift these bounds for journals of other software: every number is a double,
as in ECMAScript.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

import orjson
import rfc8785

from ropewalk.errors import InvalidJson
from ropewalk.kernel.json_check import DEPTH_MAX as DEPTH_MAX
from ropewalk.kernel.json_check import INTEGER_MAX as INTEGER_MAX
from ropewalk.kernel.json_check import ITEMS_MAX as ITEMS_MAX
from ropewalk.kernel.json_check import check_size, first_fault, pointer, shown

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_EXPONENT_FROM: Final = 1e21  # ECMAScript prints from here on with an exponent

# Datetimes, dataclasses and subclasses go to the exact path instead of being written in some way of orjson's own.
_PLAIN: Final = (
    orjson.OPT_STRICT_INTEGER
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
)
_SORTED: Final = _PLAIN | orjson.OPT_SORT_KEYS

_ASTRAL_LEADS: Final = (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4")
_has_long_digits = re.compile(rb"[0-9]{21}").search


def encode(value: object) -> bytes:
    """Return the canonical bytes of a value.

    A tuple is written as an array; subclasses of str, int, float, list and dict as what they extend. Anything else,
    also a plain Enum, a UUID or a datetime, is refused: how to write it is the caller's decision.

    >>> encode({"b": [1.0, -0.0, 1e21], "a": "é"}).decode()
    '{"a":"é","b":[1,0,1e+21]}'
    >>> encode(2**53)
    Traceback (most recent call last):
    ropewalk.errors.InvalidJson: 9007199254740992: integer beyond ±(2^53−1)
    """
    return _encode_fast(value)[0] or _encode_exact(value, _strict)


def encode_foreign(value: object) -> bytes:
    """Return the canonical bytes of a value whose numbers are doubles, as ECMAScript prints them.

    >>> encode_foreign([2**53 + 1, 1e20])
    b'[9007199254740992,100000000000000000000]'
    """
    return _encode_fast(value)[0] or _encode_exact(value, _foreign)


def parse(raw: bytes, *, bytes_max: int | None = None) -> Json:
    """Return the value of strict JSON: RFC 8259 in UTF-8, unique keys, numbers and nesting within our bounds.

    Give `bytes_max` for every document of a remote peer: its size and its number of items are checked before
    it is parsed, and `TooLarge` is raised. Integral numbers come back as int, so that `1.0` and `1` are the same value
    here as in their canonical form.

    >>> parse(b' {"a": 1.0, "b": [true, null]} ')
    {'a': 1, 'b': [True, None]}
    >>> parse(b'{"a":1,"a":2}')
    Traceback (most recent call last):
    ropewalk.errors.InvalidJson: duplicate key "a" at byte 7
    """
    if bytes_max is not None:
        check_size(raw, bytes_max)
    return _read(raw, _STRICT)[0]


def parse_foreign(raw: bytes) -> Json:
    """Parse with every number as a double, as ECMAScript reads it; large integers are rounded.

    >>> parse_foreign(b'[9007199254740993, 1]')
    [9007199254740992.0, 1]
    """
    return _read(raw, _FOREIGN)[0]


def read_foreign(raw: bytes) -> tuple[Json, bytes]:
    """Return what `parse_foreign` does, with the canonical bytes of the value.

    >>> read_foreign(b'{"a": 2.0}')
    ({'a': 2}, b'{"a":2}')
    """
    return _read(raw, _FOREIGN)


def parse_canonical(raw: bytes, *, bytes_max: int | None = None) -> Json:
    """Parse bytes that must already be the canonical ones.

    >>> parse_canonical(b'{"a":1}')
    {'a': 1}
    >>> parse_canonical(b'{"a": 1}')
    Traceback (most recent call last):
    ropewalk.errors.InvalidJson: not canonical at byte 5: found " ", RFC 8785 writes "1"
    """
    if bytes_max is not None:
        check_size(raw, bytes_max)
    value, canonical = _read(raw, _STRICT)
    if canonical != raw:
        _refuse_layout(raw, canonical)
    return value


def canonicalise(raw: bytes) -> bytes:
    """Return the canonical bytes of strict JSON text; the same as `encode(parse(raw))`.

    >>> canonicalise(b'{"b": 1.50, "a": "\\\\u00e9"}').decode()
    '{"a":"é","b":1.5}'
    """
    return _read(raw, _STRICT)[1]


# --- writing ---
#
# orjson writes canonical bytes except in four places. Its bytes are returned only when none of these can occur:
#
# 1. Types. orjson also writes UUIDs, enums and ready-made fragments. Both walks below admit the JSON types and tuple,
#    by exact type. Keys: orjson itself refuses all but exact str.
# 2. Numbers. orjson writes 1.0, -0.0 and 1e16 its own way, and NaN as null. Both walks leave a float alone only if it
#    is not integral and its magnitude is in [1e-4, 2^53); there both print the shortest digits that round-trip,
#    without an exponent. `_is_plain` gives up at any other; `_respelt` puts an int or a ready text in its place.
#    Integers are plain digits in both; OPT_STRICT_INTEGER refuses those beyond ±(2^53−1).
# 3. Key order. orjson sorts by UTF-8 bytes, which is code point order; RFC 8785 by UTF-16 units. The orders differ
#    only where a character above U+FFFF (a pair of D800–DFFF; UTF-8 lead byte F0–F4) meets one of U+E000–U+FFFF
#    (lead byte EE or EF). If the bytes do not hold both kinds, the orders agree.
# 4. Depth. The walks carry the room that is left. They go down before they go across, so that a value which contains
#    itself ends them after DEPTH_MAX steps.
#
# Strings need no guard: both escape `"`, `\` and U+0000–U+001F only, with the same short forms and lower-case hex,
# and orjson raises on lone surrogates.
#
# What is left, and everything that will be refused, goes through `_encode_exact`, which reports where and why.


def _encode_fast(value: object) -> tuple[bytes | None, bool]:
    """Return canonical bytes where they are cheap to prove so, and whether every number was written unchanged.

    No bytes say nothing about the value.
    """
    try:
        as_it_stands = _is_plain((value,), DEPTH_MAX)
        out = orjson.dumps(value if as_it_stands else _respelt(value, DEPTH_MAX), option=_SORTED)
    except (TypeError, _Refused):
        return None, False
    return (out, as_it_stands) if is_in_code_point_order(out) else (None, False)


def is_in_code_point_order(out: bytes) -> bool:
    """Tell whether sorting the keys of this JSON by code points surely gives the order of RFC 8785.

    >>> is_in_code_point_order('{"😀":1,"z":2}'.encode()), is_in_code_point_order('{"😀":1,"\\uff5a":2}'.encode())
    (True, False)
    """
    return out.isascii() or not (
        (b"\xee" in out or b"\xef" in out) and any(lead in out for lead in _ASTRAL_LEADS)
    )


def _is_plain(items: Iterable[Any], room: int) -> bool:
    """Tell whether orjson writes every item canonically, up to key order. The common case, tried first."""
    for item in items:
        kind = type(item)
        if kind is str or kind is int or item is None or kind is bool:
            continue
        if kind is dict:
            if not room or not _is_plain(item.values(), room - 1):
                return False
        elif kind is list or kind is tuple:
            if not room or not _is_plain(item, room - 1):
                return False
        elif kind is not float or item.is_integer() or not (1e-4 <= item < 2**53 or -(2**53) < item <= -1e-4):
            return False
    return True


def _respelt(value: Any, room: int) -> Any:
    """Return the value with each double as something that orjson writes canonically; copy only what must change."""
    kind = type(value)
    if kind is float:
        return _double_strict(value)
    if kind is str or kind is int or value is None or kind is bool:
        return value
    if not room or not (kind is dict or kind is list or kind is tuple):
        raise _Refused("not plain", "not plain")
    changed = value
    for key, item in value.items() if kind is dict else enumerate(value):
        inner = type(item)
        if inner is str or inner is int or item is None or inner is bool:
            continue
        if inner is float:
            respelt = _double(item) if -INTEGER_MAX <= item <= INTEGER_MAX else _double_strict(item)
        else:
            respelt = _respelt(item, room - 1)
        if respelt is not item:
            if changed is value:
                changed = dict(value) if kind is dict else list(value)
            changed[key] = respelt
    return changed


class _Refused(Exception):
    """A value without canonical form; the way to it is collected while the walk unwinds."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.way: list[str] = []

    def error(self) -> InvalidJson:
        where = pointer(reversed(self.way))
        detail = f"{self.detail} at {shown(where)}" if where else self.detail
        return InvalidJson(detail, where=where, reason=self.reason)


_NumberForm: TypeAlias = Callable[[int | float], object]


def _encode_exact(value: object, form: _NumberForm) -> bytes:
    """Return canonical bytes by a copy that leaves orjson nothing to decide: key order and number text are given."""
    try:
        return orjson.dumps(_copy(value, form, DEPTH_MAX), option=_PLAIN)
    except _Refused as refused:
        raise refused.error() from None


def _copy(value: object, form: _NumberForm, room: int) -> object:
    if value is None or type(value) is bool:
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (int, float)):
        return form(value)
    if not isinstance(value, (dict, list, tuple)):
        raise _Refused("not JSON", f"{type(value).__qualname__} is not a JSON type")
    if not room:
        raise _Refused("nested too deep", f"nested deeper than {DEPTH_MAX}")
    if isinstance(value, dict):
        return _copy_object(value, form, room - 1)
    return _copy_array(value, form, room - 1)


def _copy_array(items: Iterable[object], form: _NumberForm, room: int) -> list[object]:
    copies: list[object] = []
    for item in items:
        try:
            copies.append(_copy(item, form, room))
        except _Refused as refused:
            refused.way.append(str(len(copies)))
            raise
    return copies


def _copy_object(members: dict[object, object], form: _NumberForm, room: int) -> dict[str, object]:
    copies: dict[str, object] = {}
    for key, item in sorted(((_key(key), item) for key, item in members.items()), key=_utf16_key):
        if key in copies:  # two keys of a str subclass that differ in Python only
            raise _Refused("duplicate key", f"duplicate key {shown(key)}")
        try:
            copies[key] = _copy(item, form, room)
        except _Refused as refused:
            refused.way.append(key)
            raise
    return copies


def _utf16_key(member: tuple[str, object]) -> bytes:
    return member[0].encode("utf-16-be")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise _Refused("not JSON", f"key {shown(key)} is not a string")
    return _text(key)


def _text(text: str) -> str:
    plain = str.__str__(text)  # its characters, also of a subclass that overrides `__str__`
    try:
        plain.encode("utf-8")
    except UnicodeEncodeError as error:
        lone = f"lone surrogate U+{ord(plain[error.start]):04X} in a string"
        raise _Refused("lone surrogate", lone) from None
    return plain


def _strict(number: int | float) -> object:
    if isinstance(number, int):
        plain = int.__int__(number)
        if abs(plain) <= INTEGER_MAX:
            return plain
        if not _is_exact(plain):
            raise _Refused("big integer", f"{shown(plain)}: integer beyond ±(2^53−1)")
        return _double(float(plain))
    return _double_strict(float.__float__(number))


def _double_strict(number: float) -> object:
    if INTEGER_MAX < abs(number) < _EXPONENT_FROM:
        raise _Refused("big integer", f"{number!r}: integer beyond ±(2^53−1)")
    return _double(number)


def _is_exact(number: int) -> bool:
    """Return whether an integer beyond ±(2^53−1) may be written as the double it equals."""
    try:
        double = float(number)
    except OverflowError:
        return False
    return abs(double) >= _EXPONENT_FROM and int(double) == number


def _foreign(number: int | float) -> object:
    try:
        return _double(float(int.__int__(number)) if isinstance(number, int) else float.__float__(number))
    except OverflowError:
        raise _Refused("not finite", f"{shown(number)} is beyond the range of a double") from None


def _double(number: float) -> object:
    """Return a double in a form that orjson cannot but write canonically."""
    size = abs(number)
    if size <= INTEGER_MAX:
        if number.is_integer():
            return int(number)
        if size >= 1e-4:
            return number
    if 1e-6 <= size < _EXPONENT_FROM:
        return orjson.Fragment(rfc8785.dumps(number))
    if not size < math.inf:
        raise _Refused("not finite", f"{number!r} is not finite")
    # Here Python and ECMAScript both write an exponent after the same digits; Python's has two digits at least.
    return orjson.Fragment(repr(number).replace("e-0", "e-"))


# --- reading ---
#
# orjson.loads checks grammar, UTF-8, surrogates, byte order marks, trailing bytes and the range of numbers at full
# speed, but it keeps the last of two equal keys and knows no bound of ours. Writing the value again finds the rest:
#
# 1. Numbers and nesting out of bounds have no canonical form: writing refuses them. One thing is lost by then, the
#    digits of an integer from 1e21 upwards, so 21 digits in a row are a reason to doubt.
# 2. If the written bytes equal the text, the text was canonical, hence without duplicate keys.
# 3. Otherwise colons are counted. Each member has one, and strings hold as many before as after, unless
#    one was escaped (\u003a). A member that was dropped leaves the text with more colons than the written bytes.
#
# Only when one of these fails is the text read slowly, which decides, and reports what is wrong and where.


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What numbers are: which may stand in a text, how they are written, and what they become in Python."""

    allows: Callable[[bytes, float], bool]
    form: _NumberForm
    reduced: Callable[[Json, bytes], Json]


def _allows_strict(digits: bytes, number: float) -> bool:
    if abs(number) <= INTEGER_MAX:
        return True
    if digits.lstrip(b"-").isdigit():
        return _is_exact(int(digits))
    return abs(number) >= _EXPONENT_FROM


def _allows_foreign(_digits: bytes, _number: float) -> bool:
    return True


def _reduced_strict(_value: Json, canonical: bytes) -> Json:
    value: Json = orjson.loads(canonical)  # in canonical bytes integral numbers are integers already
    return value


def _reduced_foreign(value: Json, _canonical: bytes) -> Json:
    return _copy(value, _one_number, DEPTH_MAX)  # type: ignore[return-value]


def _one_number(number: int | float) -> int | float:
    """Return one Python number for one double: int within ±(2^53−1), else float."""
    double = float(number)
    return int(double) if double.is_integer() and abs(double) <= INTEGER_MAX else double


_STRICT: Final = _Numbers(_allows_strict, _strict, _reduced_strict)
_FOREIGN: Final = _Numbers(_allows_foreign, _foreign, _reduced_foreign)


def _read(raw: bytes, numbers: _Numbers) -> tuple[Json, bytes]:
    """Return the value of a text, and its canonical bytes."""
    try:
        value: Json = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        _refuse(raw, numbers, error.msg)
    canonical, as_it_stands = _encode_fast(value)
    try:
        canonical = canonical or _encode_exact(value, numbers.form)
    except InvalidJson as error:
        _refuse(raw, numbers, error.detail)
    doubt = False
    if not as_it_stands:
        value = numbers.reduced(value, canonical)
        doubt = _has_long_digits(raw) is not None
    if canonical != raw and (doubt or raw.count(b":") != canonical.count(b":") or b"\\u003" in raw):
        fault = first_fault(raw, numbers.allows)
        if fault is not None:
            raise fault
    return value, canonical


def _refuse(raw: bytes, numbers: _Numbers, otherwise: str) -> NoReturn:
    # Two readers that disagree mean a defect in one of them; the text is refused all the same.
    fault = first_fault(raw, numbers.allows) or InvalidJson(
        otherwise, position=0, reason="refused by the parser"
    )
    raise fault from None


def _refuse_layout(raw: bytes, canonical: bytes) -> NoReturn:
    pairs = enumerate(zip(raw, canonical, strict=False))
    at = next((at for at, (found, wanted) in pairs if found != wanted), min(len(raw), len(canonical)))
    found, wanted = _character(raw, at), _character(canonical, at)
    detail = f"not canonical at byte {at}: found {found}, RFC 8785 writes {wanted}"
    raise InvalidJson(detail, position=at, reason="not canonical")


def _character(raw: bytes, at: int) -> str:
    return shown(raw[at : at + 1].decode("ascii", "backslashreplace")) if at < len(raw) else "the end"
