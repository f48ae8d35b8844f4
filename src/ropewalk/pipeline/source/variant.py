"""JSON values in Spark's VARIANT form: a dictionary of keys, and the value that refers to it. Pure.

Spark can parse JSON text itself, but the worker holds the parsed value already, and a source that hands out VARIANT
needs no second step at the reader.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

_NULL, _TRUE, _FALSE = b"\x00", b"\x04", b"\x08"
_INT8, _INT16, _INT32, _INT64, _DOUBLE, _LONG_TEXT = 3 << 2, 4 << 2, 5 << 2, 6 << 2, 7 << 2, 16 << 2
_OBJECT, _ARRAY = 2, 3
SHORT_TEXT_MAX = 63
_SHORT_TEXT = tuple(bytes((1 | size << 2,)) for size in range(SHORT_TEXT_MAX + 1))
_double = struct.Struct("<Bd").pack


def encode(value: Any) -> tuple[bytes, bytes]:
    """Return the value and its dictionary, in that order.

    >>> encode({"a": 1})
    (b'\\x02\\x01\\x00\\x00\\x02\\x0c\\x01', b'\\x01\\x01\\x00\\x01a')
    """
    keys: dict[str, int] = {}
    body = _value(value, keys)
    return body, _dictionary(tuple(keys))


@lru_cache(1024)  # events of one kind have one set of keys
def _dictionary(keys: tuple[str, ...]) -> bytes:
    names = [key.encode("utf-8", "surrogatepass") for key in keys]
    offsets = list(accumulate(map(len, names), initial=0))
    size = _width(max(offsets[-1], len(names)))
    head = 1 | (size - 1) << 6
    return bytes((head,)) + len(names).to_bytes(size, "little") + _numbers(offsets, size) + b"".join(names)


def _value(value: Any, keys: dict[str, int]) -> bytes:
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogatepass")
        size = len(raw)
        if size <= SHORT_TEXT_MAX:
            return _SHORT_TEXT[size] + raw
        return bytes((_LONG_TEXT,)) + size.to_bytes(4, "little") + raw
    if isinstance(value, dict):
        return _object(value, keys)
    if value is None:
        return _NULL
    if value is True:
        return _TRUE
    if value is False:
        return _FALSE
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return _double(_DOUBLE, value)
    return _compound(_ARRAY, [_value(each, keys) for each in value], None)


def _object(value: dict[str, Any], keys: dict[str, int]) -> bytes:
    names = _ordered(tuple(value))
    ids = [keys.setdefault(name, len(keys)) for name in names]
    parts = []
    for name in names:
        each = value[name]
        if type(each) is str and len(each) <= SHORT_TEXT_MAX and each.isascii():  # most of what events hold
            parts.append(_SHORT_TEXT[len(each)] + each.encode())
        else:
            parts.append(_value(each, keys))
    offsets = list(accumulate(map(len, parts), initial=0))
    if offsets[-1] < 256 and len(keys) < 256:
        return b"".join((bytes((_OBJECT, len(parts), *ids, *offsets)), *parts))
    return _compound(_OBJECT, parts, ids)


def _integer(value: int) -> bytes:
    if -128 <= value < 128:
        return bytes((_INT8, value & 0xFF))
    if -32768 <= value < 32768:
        return bytes((_INT16,)) + value.to_bytes(2, "little", signed=True)
    if -(2**31) <= value < 2**31:
        return bytes((_INT32,)) + value.to_bytes(4, "little", signed=True)
    if -(2**63) <= value < 2**63:
        return bytes((_INT64,)) + value.to_bytes(8, "little", signed=True)
    return _double(_DOUBLE, float(value))


@lru_cache(1024)
def _ordered(names: tuple[str, ...]) -> tuple[str, ...]:
    # Readers search fields by name, in the order of Java's strings, which is the order of UTF-16.
    return tuple(sorted(names, key=None if all(map(str.isascii, names)) else _utf16))


def _compound(kind: int, parts: Sequence[bytes], ids: Sequence[int] | None) -> bytes:
    offsets = list(accumulate(map(len, parts), initial=0))
    width = _width(offsets[-1])
    large = len(parts) > 255
    count = len(parts).to_bytes(4 if large else 1, "little")
    if ids is None:
        head = kind | (width - 1) << 2 | large << 4
        return bytes((head,)) + count + _numbers(offsets, width) + b"".join(parts)
    id_width = _width(max(ids, default=0))
    head = kind | (width - 1) << 2 | (id_width - 1) << 4 | large << 6
    return b"".join((bytes((head,)), count, _numbers(ids, id_width), _numbers(offsets, width), *parts))


def _numbers(numbers: Sequence[int], width: int) -> bytes:
    if width == 1:
        return bytes(numbers)
    return b"".join([number.to_bytes(width, "little") for number in numbers])


def _width(number: int) -> int:
    return 1 if number < 256 else -(-number.bit_length() // 8)


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")
