"""JSON values in Spark's VARIANT form: a dictionary of keys, and the value that refers to it. Pure.

Spark can parse JSON text itself, but the worker holds the parsed value already, and a source that hands out VARIANT
needs no second step at the reader.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

__all__ = ["encode"]

_NULL, _TRUE, _FALSE = b"\x00", b"\x04", b"\x08"
_INT8, _INT16, _INT32, _INT64, _DOUBLE, _LONG_TEXT = 3 << 2, 4 << 2, 5 << 2, 6 << 2, 7 << 2, 16 << 2
_OBJECT, _ARRAY = 2, 3
SHORT_TEXT_MAX = 63
_double = struct.Struct("<Bd").pack


def encode(value: Any) -> tuple[bytes, bytes]:
    """The value and its dictionary, in that order.

    >>> encode({"a": 1})
    (b'\\x02\\x01\\x00\\x00\\x02\\x0c\\x01', b'\\x01\\x01\\x00\\x01a')
    """
    keys: dict[str, int] = {}
    body = _value(value, keys)
    return body, _dictionary(list(keys))


def _dictionary(keys: Sequence[str]) -> bytes:
    names = [key.encode("utf-8", "surrogatepass") for key in keys]
    total = sum(map(len, names))
    size = _width(max(total, len(names)))
    offsets, at = [0], 0
    for name in names:
        at += len(name)
        offsets.append(at)
    head = 1 | (size - 1) << 6
    return bytes((head,)) + len(names).to_bytes(size, "little") + _numbers(offsets, size) + b"".join(names)


def _value(value: Any, keys: dict[str, int]) -> bytes:
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogatepass")
        if len(raw) <= SHORT_TEXT_MAX:
            return bytes((1 | len(raw) << 2,)) + raw
        return bytes((_LONG_TEXT,)) + len(raw).to_bytes(4, "little") + raw
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
    if isinstance(value, dict):
        return _object(value, keys)
    return _array(value, keys)


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


def _object(value: dict[str, Any], keys: dict[str, int]) -> bytes:
    # Readers search fields by name, in the order of Java's strings, which is the order of UTF-16.
    names = sorted(value) if all(map(str.isascii, value)) else sorted(value, key=_utf16)
    ids = [keys.setdefault(name, len(keys)) for name in names]
    parts = [_value(value[name], keys) for name in names]
    return _compound(_OBJECT, parts, ids)


def _array(value: Sequence[Any], keys: dict[str, int]) -> bytes:
    return _compound(_ARRAY, [_value(each, keys) for each in value], None)


def _compound(kind: int, parts: Sequence[bytes], ids: Sequence[int] | None) -> bytes:
    offsets, at = [0], 0
    for part in parts:
        at += len(part)
        offsets.append(at)
    width = _width(at)
    large = len(parts) > 255
    count = len(parts).to_bytes(4 if large else 1, "little")
    if ids is None:
        head = kind | (width - 1) << 2 | large << 4
        return bytes((head,)) + count + _numbers(offsets, width) + b"".join(parts)
    id_width = _width(max(ids, default=0))
    head = kind | (width - 1) << 2 | (id_width - 1) << 4 | large << 6
    return bytes((head,)) + count + _numbers(ids, id_width) + _numbers(offsets, width) + b"".join(parts)


def _numbers(numbers: Sequence[int], width: int) -> bytes:
    if width == 1:
        return bytes(numbers)
    return b"".join([number.to_bytes(width, "little") for number in numbers])


def _width(number: int) -> int:
    return max(1, -(-number.bit_length() // 8))


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")
