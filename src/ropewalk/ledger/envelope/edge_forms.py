"""Spellings that S4 §3.1 allows at the edge, and the one canonical form they stand for.

An integer timestamp (nanoseconds) stands for RFC 3339 text, base64 and capital hex of payload_hash for lowercase hex.
The signature and the id are of the canonical form, so a spelling at the edge gives no second id to an envelope. RFC
8785 cannot carry today's nanoseconds at all, so no signature over them as JSON could exist.
"""

from __future__ import annotations

import re
from typing import Any, Final

from ropewalk.errors import RopewalkError
from ropewalk.ledger.envelope.fields import decode_base64, format_timestamp

TIMESTAMP_NS_MAX: Final = 2**64 - 1  # S4 §2: uint64, the year 2554
_JSON: Final = re.compile(rb'"timestamp"[ \t\r\n]*:[ \t\r\n]*([1-9][0-9]{16,19})(?=[ \t\r\n]*[,}])')
_CBOR: Final = b"\x69timestamp\x1b"
_HEX: Final = re.compile(r"[0-9A-Fa-f]{64}")
_MARK: Final = b"(integer timestamp)"


def mark_json(raw: bytes) -> tuple[bytes, int] | None:
    """Return JSON text with its one large integer timestamp replaced by a mark, and the number; None without one.

    >>> mark_json(b'{"timestamp": 1730462400000000000}')
    (b'{"timestamp":"(integer timestamp)"}', 1730462400000000000)
    """
    found = list(_JSON.finditer(raw))
    if len(found) != 1 or _MARK in raw:  # any other large integer is invalid
        return None
    start, end = found[0].span()
    return b'%s"timestamp":"%s"%s' % (raw[:start], _MARK, raw[end:]), int(found[0][1])


def mark_cbor(raw: bytes) -> tuple[bytes, int] | None:
    """Return CBOR with its one 64-bit integer timestamp replaced by a mark, as `mark_json` does.

    >>> mark_cbor(bytes.fromhex("a16974696d657374616d701b1803d662692b8000"))[1]
    1730462400000000000
    """
    at = raw.find(_CBOR)
    if at < 0 or raw.find(_CBOR, at + 1) >= 0 or _MARK in raw:
        return None
    end = at + len(_CBOR)
    number = int.from_bytes(raw[end : end + 8], "big")
    return raw[: end - 1] + bytes([0x60 + len(_MARK)]) + _MARK + raw[end + 8 :], number


def unmark(value: Any, ns: int) -> dict[str, Any] | None:
    """Return the value with the number in place of the mark; None unless the mark is the envelope's own timestamp."""
    if not isinstance(value, dict) or value.get("timestamp") != _MARK.decode():
        return None
    return {**value, "timestamp": ns}


def canonical_members(value: Any) -> Any:
    """Return the value with timestamp and payload_hash in their canonical form; the same object if they are already.

    >>> canonical_members({"timestamp": 1730462400000000000, "payload_hash": "AA" * 32})["timestamp"]
    '2024-11-01T12:00:00Z'
    """
    if not isinstance(value, dict):
        return value
    stamp, digest, changed = value.get("timestamp"), value.get("payload_hash"), {}
    if type(stamp) is int and 0 <= stamp <= TIMESTAMP_NS_MAX:
        changed["timestamp"] = format_timestamp(stamp)
    if isinstance(digest, str):
        text = _hex_of(digest)
        if text != digest:
            changed["payload_hash"] = text
    return {**value, **changed} if changed else value


def _hex_of(text: str) -> str:
    if len(text) == 44:
        try:
            return decode_base64(text, "/payload_hash").hex()
        except RopewalkError:
            return text
    return text.lower() if _HEX.fullmatch(text) else text
