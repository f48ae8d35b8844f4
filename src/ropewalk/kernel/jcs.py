"""Canonical JSON: one value, one sequence of bytes (RFC 8785), and a parser that takes nothing else on trust.

Everything gitlog and ledger hash or sign passes through here, so two rules hold without exception:
what `encode` writes, `parse` reads back to the same value; and what `parse` accepts has exactly one canonical form.

Numbers follow the ledger's settled rule. A number whose value is integral, beyond ±(2^53−1) and below 1e21 is refused
however it is written, because its canonical form would be an integer that readers round. From 1e21 upwards
the canonical form has an exponent and is plainly a double. Python integers are held to ±(2^53−1) at any size.
`parse_foreign` and `encode_foreign` lift that rule for journals written elsewhere: every number is a double,
as in ECMAScript.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final, NoReturn, TypeAlias

import orjson
import rfc8785

from ropewalk.errors import InvalidJson

__all__ = [
    "DEPTH_MAX",
    "INTEGER_MAX",
    "Json",
    "canonicalise",
    "encode",
    "encode_foreign",
    "parse",
    "parse_canonical",
    "parse_foreign",
]

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

DEPTH_MAX: Final = 128  # containers around the innermost value; below orjson's own limits of 254 and 1024
INTEGER_MAX: Final = 2**53 - 1  # beyond it neighbouring integers share one double

_EXPONENT_FROM: Final = 1e21  # ECMAScript prints from here on with an exponent

# Datetimes, dataclasses and subclasses go to the exact path instead of being written in some way of orjson's own.
_PLAIN: Final = (
    orjson.OPT_STRICT_INTEGER
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
)
_SORTED: Final = _PLAIN | orjson.OPT_SORT_KEYS

_has_astral = re.compile(rb"[\xf0-\xf4]").search
_has_above_surrogates = re.compile(rb"[\xee\xef]").search


def encode(value: Json) -> bytes:
    """The canonical bytes of a value.

    A tuple is written as an array; subclasses of str, int, float, list and dict as what they extend. Anything else,
    also a plain Enum, a UUID or a datetime, is refused: how to write it is the caller's decision.

    >>> encode({"b": [1.0, -0.0, 1e21], "a": "é"}).decode()
    '{"a":"é","b":[1,0,1e+21]}'
    >>> encode(2**53)
    Traceback (most recent call last):
    ropewalk.errors.InvalidJson: 9007199254740992: integer beyond ±(2^53−1)
    """
    fast = _encode_fast(value)
    return fast if fast is not None else _encode_exact(value, _strict_number)


def encode_foreign(value: Json) -> bytes:
    """The canonical bytes of a value whose numbers are doubles, as ECMAScript prints them.

    >>> encode_foreign([2**53 + 1, 1e20])
    b'[9007199254740992,100000000000000000000]'
    """
    fast = _encode_fast(value)
    return fast if fast is not None else _encode_exact(value, _foreign_number)


def parse(raw: bytes) -> Json:
    """The value of strict JSON: RFC 8259 in UTF-8, unique keys, numbers and nesting within the bounds of this module.

    Integral numbers come back as int, so that `1.0` and `1` are the same value here as in their canonical form.

    >>> parse(b' {"a": 1.0, "b": [true, null]} ')
    {'a': 1, 'b': [True, None]}
    >>> parse(b'{"a":1,"a":2}')
    Traceback (most recent call last):
    ropewalk.errors.InvalidJson: duplicate key "a" at byte 7
    """
    return _read(raw, foreign=False)[0]


def parse_foreign(raw: bytes) -> Json:
    """As `parse`, but every number is a double, as ECMAScript reads it; large integers are rounded.

    >>> parse_foreign(b'[9007199254740993, 1]')
    [9007199254740992.0, 1]
    """
    return _read(raw, foreign=True)[0]


def parse_canonical(raw: bytes) -> Json:
    """As `parse`, but the bytes must already be the canonical ones.

    >>> parse_canonical(b'{"a":1}')
    {'a': 1}
    >>> parse_canonical(b'{"a": 1}')
    Traceback (most recent call last):
    ropewalk.errors.InvalidJson: not canonical at byte 5: found " ", RFC 8785 writes "1"
    """
    value, canonical = _read(raw, foreign=False)
    if canonical != raw:
        _refuse_layout(raw, canonical)
    return value


def canonicalise(raw: bytes) -> bytes:
    """The canonical bytes of strict JSON text; the same as `encode(parse(raw))`.

    >>> canonicalise(b'{"b": 1.50, "a": "\\\\u00e9"}').decode()
    '{"a":"é","b":1.5}'
    """
    return _read(raw, foreign=False)[1]


# --- writing --------------------------------------------------------------------------------------------------------
#
# orjson writes canonical bytes except in four places. `_encode_fast` returns its bytes only when none can occur:
#
# 1. Types. orjson also writes UUIDs, enums and ready-made fragments. The walk admits the seven JSON types and tuple,
#    by exact type. (Keys: orjson itself refuses all but str.)
# 2. Numbers. orjson writes 1.0, -0.0 and 1e16 its own way, and NaN as null. The walk admits a float only if it is not
#    integral and in [1e-4, 1e16); there both print the shortest digits
#    that round-trip, positionally. Integers are decimal digits in both; OPT_STRICT_INTEGER refuses those beyond 2^53−1.
# 3. Key order. orjson sorts by UTF-8 bytes, which is code point order; RFC 8785 by UTF-16 units. The orders differ
#    only where a character above U+FFFF (a surrogate pair, D800–DFFF; UTF-8 lead byte F0–F4) meets one in
#    U+E000–U+FFFF (lead byte EE or EF). If the bytes do not hold both kinds, the orders agree.
# 4. Depth. The walk goes level by level and gives up below level 128.
#
# Strings need no guard: both escape ", \ and U+0000–U+001F only, with the same short forms and lower-case \u00xx, and
# orjson raises on lone surrogates.


def _encode_fast(value: Json) -> bytes | None:
    """Canonical bytes if they are cheap to prove so, else None; None says nothing about the value."""
    if not _is_plain(value):
        return None
    try:
        out = orjson.dumps(value, option=_SORTED)
    except TypeError:
        return None
    if out.isascii() or not (_has_astral(out) and _has_above_surrogates(out)):
        return out
    return None


def _is_plain(value: object) -> bool:
    level: list[object] = [[value]]
    for _ in range(DEPTH_MAX + 1):
        below: list[object] = []
        for container in level:
            for item in container.values() if type(container) is dict else container:  # type: ignore[attr-defined]
                kind = type(item)
                if kind is str or kind is int or item is None or kind is bool:
                    continue
                if kind is dict or kind is list or kind is tuple:
                    below.append(item)
                elif kind is float:
                    if item.is_integer() or not (1e-4 <= item < 1e16 or -1e16 < item <= -1e-4):
                        return False
                else:
                    return False
        if not below:
            return True
        level = below
    return False


class _Fault(Exception):
    """A value that has no canonical form; the way to it is collected while the walk unwinds."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.way: list[str] = []

    def pointer(self) -> str:
        return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in reversed(self.way))


def _encode_exact(value: Json, number: Callable[[int | float], object]) -> bytes:
    """Canonical bytes by way of a copy that leaves orjson nothing to decide."""
    try:
        return orjson.dumps(_copy(value, number, DEPTH_MAX), option=_PLAIN)
    except _Fault as fault:
        where = fault.pointer()
        detail = f"{fault.detail} at {where}" if where else fault.detail
        raise InvalidJson(detail, where=where, reason=fault.reason) from None


def _copy(value: object, number: Callable[[int | float], object], room: int) -> object:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, dict | list | tuple):
        if not room:
            raise _Fault("nested too deep", f"nested deeper than {DEPTH_MAX}")
        if isinstance(value, dict):
            return _copy_object(value, number, room - 1)
        return _copy_array(value, number, room - 1)
    raise _Fault("not JSON", f"{kind.__qualname__} is not a JSON type")


def _copy_array(
    items: list[object] | tuple[object, ...], number: Callable[[int | float], object], room: int
) -> list[object]:
    copies: list[object] = []
    for item in items:
        try:
            copies.append(_copy(item, number, room))
        except _Fault as fault:
            fault.way.append(str(len(copies)))
            raise
    return copies


def _copy_object(
    members: dict[object, object], number: Callable[[int | float], object], room: int
) -> dict[str, object]:
    pairs = sorted(((_key(key), item) for key, item in members.items()), key=_utf16_of_first)
    copies: dict[str, object] = {}
    for key, item in pairs:
        if key in copies:  # two keys of a str subclass that only Python tells apart
            raise _Fault("duplicate key", f"duplicate key {_shown(key)}")
        try:
            copies[key] = _copy(item, number, room)
        except _Fault as fault:
            fault.way.append(key)
            raise
    return copies


def _utf16_of_first(pair: tuple[str, object]) -> bytes:
    return pair[0].encode("utf-16-be")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise _Fault("key is not a string", f"key {_shown(key)} is not a string")
    return _text(key)


def _text(text: str) -> str:
    text = str.__str__(text)  # the characters, also of a str that says otherwise about itself
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        lone = ord(text[error.start])
        raise _Fault("lone surrogate", f"lone surrogate U+{lone:04X} in a string") from None
    return text


def _strict_number(value: int | float) -> object:
    if isinstance(value, int):
        exact = int.__int__(value)
        if abs(exact) > INTEGER_MAX:
            raise _Fault("big integer", f"{_shown(exact)}: integer beyond ±(2^53−1)")
        return exact
    double = float.__float__(value)
    if INTEGER_MAX < abs(double) < _EXPONENT_FROM:
        raise _Fault("big integer", f"{double!r}: integer beyond ±(2^53−1)")
    return _double(double)


def _foreign_number(value: int | float) -> object:
    try:
        return _double(float(value))
    except OverflowError:
        raise _Fault("not finite", f"{_shown(value)} is beyond the range of a double") from None


def _double(value: float) -> object:
    """The double as something orjson cannot but write canonically."""
    if not math.isfinite(value):
        raise _Fault("not finite", f"{value!r} is not finite")
    if value.is_integer() and abs(value) <= INTEGER_MAX:
        return int(value)
    return orjson.Fragment(rfc8785.dumps(value))


def _shown(value: object) -> str:
    """At most a line of what was found, for a message."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return f"an integer of {value.bit_length()} bits"
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 60 else text[:59] + "…"


# --- reading --------------------------------------------------------------------------------------------------------
#
# orjson.loads checks the grammar, UTF-8, surrogates, a byte order mark, trailing bytes and finite numbers, at full
# speed, but keeps the last of two equal keys and knows no bound of ours. Writing the value again finds the rest:
#
# 1. Numbers and depth out of bounds have no canonical form, so writing refuses them.
# 2. If the written bytes equal the input, the input was canonical, hence without duplicates.
# 3. Otherwise compare the number of colons. Each member has one of its own, and those inside strings are the same in
#    input and output as long as none is escaped (\u003a). A dropped duplicate leaves the input with more.
#
# Only when one of these speaks against the input does the scanner below read it slowly, to say where and what.


def _read(raw: bytes, *, foreign: bool) -> tuple[Json, bytes]:
    """The value and its canonical bytes."""
    if type(raw) is not bytes:
        raw = memoryview(raw).tobytes()
    try:
        value: Json = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        _refuse(raw, foreign, error.msg)
    canonical = _encode_fast(value)
    if canonical is None:
        try:
            canonical = _encode_exact(value, _foreign_number if foreign else _strict_number)
        except InvalidJson as error:
            _refuse(raw, foreign, error.detail)
        value = _copy(value, _reduced, DEPTH_MAX)  # type: ignore[assignment]
    if canonical != raw and (raw.count(b":") != canonical.count(b":") or b"\\u003" in raw):
        fault = _first_fault(raw, foreign)
        if fault is not None:
            raise fault
    return value, canonical


def _reduced(value: int | float) -> int | float:
    """The one Python number for a value: int where it is exact in both worlds, else float."""
    if isinstance(value, int):
        return value if abs(value) <= INTEGER_MAX else float(value)
    return int(value) if value.is_integer() and abs(value) <= INTEGER_MAX else value


def _refuse(raw: bytes, foreign: bool, otherwise: str) -> NoReturn:
    fault = _first_fault(raw, foreign)
    if fault is None:  # the scanner and orjson disagree: refuse, for one of them must be wrong
        raise InvalidJson(otherwise, position=0, reason="refused by the parser")
    raise fault


def _refuse_layout(raw: bytes, canonical: bytes) -> NoReturn:
    pairs = enumerate(zip(raw, canonical, strict=False))
    same = next((at for at, (found, wanted) in pairs if found != wanted), min(len(raw), len(canonical)))
    found_text = (
        _shown(raw[same : same + 1].decode("ascii", "backslashreplace")) if same < len(raw) else "the end"
    )
    wanted_text = (
        _shown(canonical[same : same + 1].decode("ascii", "backslashreplace"))
        if same < len(canonical)
        else "the end"
    )
    raise InvalidJson(
        f"not canonical at byte {same}: found {found_text}, RFC 8785 writes {wanted_text}",
        position=same,
        reason="not canonical",
    )


_spaces = re.compile(rb"[ \t\n\r]*").match
_string = re.compile(rb'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*').match
_number = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?").match
_escape = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)")
_not_a_number = re.compile(rb"NaN|-?Infinity").match
_BOM: Final = b"\xef\xbb\xbf"


def _first_fault(raw: bytes, foreign: bool) -> InvalidJson | None:
    """Read slowly and exactly; the first thing that is wrong, or None. It is the authority where orjson is in doubt."""
    try:
        _scan(raw, foreign)
    except InvalidJson as fault:
        return fault
    return None


def _wrong(reason: str, position: int, detail: str | None = None) -> InvalidJson:
    return InvalidJson(f"{detail or reason} at byte {position}", position=position, reason=reason)


def _scan(raw: bytes, foreign: bool) -> None:
    if raw.startswith(_BOM):
        raise _wrong("byte order mark", 0)
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _wrong("bad UTF-8", error.start, f"bad UTF-8 (byte 0x{raw[error.start]:02x})") from None
    open_keys: list[set[str] | None] = []  # one per open container: the keys seen so far, None for an array
    at = _skip(raw, 0)
    if at == len(raw):
        raise _wrong("unexpected end", at, "no JSON value")
    while True:
        # A value starts here.
        opener = raw[at : at + 1]
        if opener in (b"{", b"["):
            if len(open_keys) == DEPTH_MAX:
                raise _wrong("nested too deep", at, f"nested deeper than {DEPTH_MAX}")
            open_keys.append(set() if opener == b"{" else None)
            at = _skip(raw, at + 1)
            if raw[at : at + 1] != (b"}" if opener == b"{" else b"]"):
                at = _member(raw, at, open_keys[-1])
                continue
            open_keys.pop()
            at = _skip(raw, at + 1)
        else:
            at = _skip(raw, _scalar(raw, at, foreign))
        # A value ended here: close what closes, then go on to the next one.
        while open_keys:
            keys = open_keys[-1]
            follower = raw[at : at + 1]
            if follower == b",":
                at = _member(raw, _skip(raw, at + 1), keys)
                break
            if follower != (b"]" if keys is None else b"}"):
                raise _unexpected(raw, at, '"," or "]"' if keys is None else '"," or "}"')
            open_keys.pop()
            at = _skip(raw, at + 1)
        else:
            break
    if at != len(raw):
        raise _wrong("trailing bytes", at, f"{len(raw) - at} trailing bytes after the value")


def _skip(raw: bytes, at: int) -> int:
    spaces = _spaces(raw, at)
    assert spaces is not None
    return spaces.end()


def _member(raw: bytes, at: int, keys: set[str] | None) -> int:
    """Past the key and colon if the container is an object; where its next value starts."""
    if keys is None:
        return at
    if raw[at : at + 1] != b'"':
        raise _unexpected(raw, at, "a key")
    end = _text_end(raw, at)
    key: str = orjson.loads(raw[at:end])
    if key in keys:
        raise _wrong("duplicate key", at, f"duplicate key {_shown(key)}")
    keys.add(key)
    at = _skip(raw, end)
    if raw[at : at + 1] != b":":
        raise _unexpected(raw, at, '":"')
    return _skip(raw, at + 1)


def _scalar(raw: bytes, at: int, foreign: bool) -> int:
    if raw[at : at + 1] == b'"':
        return _text_end(raw, at)
    for word in (b"true", b"false", b"null"):
        if raw.startswith(word, at):
            return at + len(word)
    if found := _not_a_number(raw, at):
        raise _wrong("not finite", at, f"{found.group().decode()} is not JSON")
    number = _number(raw, at)
    if number is None:
        raise _unexpected(raw, at, "a value")
    if raw[number.end() : number.end() + 1] in _NUMBER_TAILS:
        raise _wrong("bad number", at)
    value = float(number.group())
    shown = _shown(number.group().decode())[1:-1]
    if math.isinf(value):
        raise _wrong("not finite", at, f"{shown} is beyond the range of a double")
    if not foreign and INTEGER_MAX < abs(value) < _EXPONENT_FROM:
        raise _wrong("big integer", at, f"{shown}: integer beyond ±(2^53−1)")
    return number.end()


_NUMBER_TAILS: Final = frozenset(bytes([byte]) for byte in b"0123456789.eE+-")


def _text_end(raw: bytes, at: int) -> int:
    """Past the closing quote of the string that opens at `at`."""
    text = _string(raw, at)
    assert text is not None
    end = text.end()
    stopper = raw[end : end + 1]
    if not stopper:
        raise _wrong("unexpected end", end, "unexpected end inside a string")
    if stopper == b"\\":
        raise _wrong("bad escape", end)
    if stopper != b'"':
        raise _wrong("control character", end, f"control character 0x{stopper[0]:02x} in a string")
    half: int | None = None  # where a high surrogate waits for its other half
    for escape in _escape.finditer(raw, at, end):
        code = int(escape.group(1), 16) if escape.group(1) else 0
        paired = half is not None and half + 6 == escape.start()
        if 0xDC00 <= code < 0xE000 and paired:
            half = None
            continue
        if half is not None:
            break
        if 0xDC00 <= code < 0xE000:
            half = escape.start()
            break
        if 0xD800 <= code < 0xDC00:
            half = escape.start()
    if half is not None:
        raise _wrong("lone surrogate", half, f"lone surrogate {raw[half : half + 6].decode()}")
    return end + 1


def _unexpected(raw: bytes, at: int, wanted: str) -> InvalidJson:
    if at >= len(raw):
        return _wrong("unexpected end", at, f"unexpected end, expected {wanted}")
    found = _shown(raw[at : at + 4].decode("utf-8", "ignore")[:1])
    return _wrong("unexpected byte", at, f"unexpected {found}, expected {wanted}")
