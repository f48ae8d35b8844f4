"""The slow, exact reader of JSON text: it builds nothing and reports where the first fault is.

`jcs` accepts text at full speed and comes here only when something speaks against it, so this module is written to be
believed rather than to be fast. It is not recursive: a million open brackets are one fault at byte 128.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Final

import orjson

from ropewalk.errors import InvalidJson, TooLarge
from ropewalk.kernel.terminal_text import printable

DEPTH_MAX: Final = 128  # containers around the innermost value; below orjson's own limits of 254 and 1024
INTEGER_MAX: Final = 2**53 - 1  # beyond it neighbouring integers share one double

_BOM: Final = b"\xef\xbb\xbf"
ITEMS_MAX: Final = 1 << 20  # members, elements and containers; parsed, each costs up to a hundred bytes
_SHOWN_MAX: Final = 60  # a message stays on one line

_spaces = re.compile(rb"[ \t\n\r]*").match
_string = re.compile(rb'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*').match
_escapes = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)").finditer
_number = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?").match
_number_goes_on = re.compile(rb"[0-9.eE+-]").match
_not_a_number = re.compile(rb"NaN|-?Infinity").match
_word = re.compile(rb"true|false|null").match


def first_fault(raw: bytes, allows: Callable[[bytes, float], bool]) -> InvalidJson | None:
    """Return the first reason to refuse the text, or None; `allows` judges each finite number by digits and value.

    >>> first_fault(b'{"a": [1, 2}', lambda digits, number: True)
    InvalidJson('unexpected "}", expected "," or "]" at byte 11')
    >>> first_fault(b"[1, 2]", lambda digits, number: True) is None
    True
    """
    try:
        _scan(raw, allows)
    except InvalidJson as fault:
        return fault
    return None


def check_size(raw: bytes, bytes_max: int, items_max: int = ITEMS_MAX) -> None:
    """Raise `TooLarge` for a text that would cost too much memory to parse. Nothing is parsed.

    Commas and brackets are counted, also those inside strings: a text of a few bytes each item becomes twenty times as
    large in memory, so its size alone is no bound.

    >>> check_size(b"[1,2]", bytes_max=4)
    Traceback (most recent call last):
    ropewalk.errors.TooLarge: document has 5 bytes, expected at most 4
    >>> check_size(b"[1,2]", bytes_max=5, items_max=1)
    Traceback (most recent call last):
    ropewalk.errors.TooLarge: document has more than 1 items
    """
    if len(raw) > bytes_max:
        raise TooLarge(
            f"document has {len(raw)} bytes, expected at most {bytes_max}", size=len(raw), limit=bytes_max
        )
    if len(raw) > items_max and sum(map(raw.count, (b",", b"[", b"{"))) > items_max:
        raise TooLarge(f"document has more than {items_max} items", limit=items_max)


def shown(value: object) -> str:
    """Return what was found, in a form that is safe to print, at most a line.

    >>> shown("tab\\t"), shown(10**50)
    ('"tab\\\\t"', 'an integer of 167 bits')
    """
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str):
        text = f'"{printable(value)}"' if len(value) <= _SHOWN_MAX else f'"{printable(value[:_SHOWN_MAX])}'
    else:
        text = repr(value)
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"


def pointer(way: Iterable[str | int]) -> str:
    """Return a way through a document as a JSON pointer (RFC 6901).

    >>> pointer(["a/b", 0])
    '/a~1b/0'
    """
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in way)


def _scan(raw: bytes, allows: Callable[[bytes, float], bool]) -> None:
    _check_encoding(raw)
    keys_open: list[set[str] | None] = []  # for each open container its keys so far, None for an array
    at = _skip(raw, 0)
    if at == len(raw):
        raise _fault("unexpected end", at, "no JSON value")
    while True:
        # A value starts here.
        opener = raw[at : at + 1]
        if opener == b"{" or opener == b"[":
            if len(keys_open) == DEPTH_MAX:
                raise _fault("nested too deep", at, f"nested deeper than {DEPTH_MAX}")
            keys_open.append(set() if opener == b"{" else None)
            at = _skip(raw, at + 1)
            if raw[at : at + 1] != _closer(keys_open[-1]):
                at = _value_start(raw, at, keys_open[-1])
                continue
        else:
            at = _skip(raw, _scalar_end(raw, at, allows))
        # A value, or an empty container, ends here: close what closes, then find the next value.
        while keys_open:
            if raw[at : at + 1] == b",":
                at = _value_start(raw, _skip(raw, at + 1), keys_open[-1])
                break
            closer = _closer(keys_open.pop())
            if raw[at : at + 1] != closer:
                raise _unexpected(raw, at, f'"," or "{closer.decode()}"')
            at = _skip(raw, at + 1)
        else:
            break
    if at != len(raw):
        raise _fault("trailing bytes", at, f"{len(raw) - at} more bytes after the value")


def _check_encoding(raw: bytes) -> None:
    if raw.startswith(_BOM):
        raise _fault("byte order mark", 0)
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _fault("bad UTF-8", error.start, f"bad UTF-8 (0x{raw[error.start]:02x})") from None


def _skip(raw: bytes, at: int) -> int:
    spaces = _spaces(raw, at)
    assert spaces is not None
    return spaces.end()


def _closer(keys: set[str] | None) -> bytes:
    return b"]" if keys is None else b"}"


def _value_start(raw: bytes, at: int, keys: set[str] | None) -> int:
    """Return where the value of the next element or member starts; in an object this is past its key."""
    if keys is None:
        return at
    if raw[at : at + 1] != b'"':
        raise _unexpected(raw, at, "a key")
    end = _string_end(raw, at)
    key: str = orjson.loads(raw[at:end])
    if key in keys:
        raise _fault("duplicate key", at, f"duplicate key {shown(key)}")
    keys.add(key)
    at = _skip(raw, end)
    if raw[at : at + 1] != b":":
        raise _unexpected(raw, at, '":"')
    return _skip(raw, at + 1)


def _scalar_end(raw: bytes, at: int, allows: Callable[[bytes, float], bool]) -> int:
    if raw[at : at + 1] == b'"':
        return _string_end(raw, at)
    if word := _word(raw, at):
        return word.end()
    if name := _not_a_number(raw, at):
        raise _fault("not finite", at, f"{name.group().decode()} is no JSON number")
    number = _number(raw, at)
    if number is None or _number_goes_on(raw, number.end()):
        if number is None and raw[at : at + 1] not in (b"-", b"+", b"."):
            raise _unexpected(raw, at, "a value")
        raise _fault("bad number", at)
    value = float(number.group())
    if math.isinf(value):
        raise _fault("not finite", at, f"{_unquoted(number.group())} is beyond the range of a double")
    if not allows(number.group(), value):
        raise _fault("big integer", at, f"{_unquoted(number.group())}: integer beyond ±(2^53−1)")
    return number.end()


def _unquoted(digits: bytes) -> str:
    return shown(digits.decode()).strip('"')


def _string_end(raw: bytes, at: int) -> int:
    """Return the place past the closing quote of the string that opens at `at`."""
    body = _string(raw, at)
    assert body is not None
    end = body.end()
    stopper = raw[end : end + 1]
    if not stopper:
        raise _fault("unexpected end", end, "unexpected end inside a string")
    if stopper == b"\\":
        raise _fault("bad escape", end)
    if stopper != b'"':
        raise _fault("control character", end, f"control character 0x{stopper[0]:02x} in a string")
    lone = _lone_surrogate(raw, at, end)
    if lone is not None:
        raise _fault("lone surrogate", lone, f"lone surrogate {raw[lone : lone + 6].decode()}")
    return end + 1


def _lone_surrogate(raw: bytes, start: int, end: int) -> int | None:
    """Return where a surrogate escape has no other half directly after it."""
    high_at: int | None = None
    for escape in _escapes(raw, start, end):
        code = int(escape.group(1) or b"0", 16)
        is_low = 0xDC00 <= code <= 0xDFFF
        if high_at is not None:
            if not is_low or escape.start() != high_at + 6:
                return high_at
            high_at = None
        elif is_low:
            return escape.start()
        elif 0xD800 <= code <= 0xDBFF:
            high_at = escape.start()
    return high_at


def _unexpected(raw: bytes, at: int, wanted: str) -> InvalidJson:
    if at >= len(raw):
        return _fault("unexpected end", at, f"unexpected end, expected {wanted}")
    found = raw[at : at + 4].decode("utf-8", "ignore")[:1]
    return _fault("unexpected character", at, f"unexpected {shown(found)}, expected {wanted}")


def _fault(reason: str, position: int, detail: str | None = None) -> InvalidJson:
    return InvalidJson(f"{detail or reason} at byte {position}", position=position, reason=reason)
