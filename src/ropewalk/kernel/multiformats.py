"""Varints, base58btc, base32 and base64: spellings of bytes, strict in both directions.

CIDs and did:key are made of the first three, signatures in JSON of the last. Each decoder accepts exactly the spelling
its encoder gives, because a second spelling of one name would be a second name.
"""

from __future__ import annotations

import base64
import binascii

from ropewalk.errors import InvalidDigest

VARINT_BYTES_MAX = 9  # the multiformats limit: 63 bits
BASE58_CHARS_MAX = 256  # keys and CIDs need about 50; decoding costs the square of the length

_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE58_VALUE = {char: value for value, char in enumerate(_BASE58)}


def _refused(detail: str, *, reason: str) -> InvalidDigest:
    return InvalidDigest(
        detail, advice="Copy it again from its source: it has exactly one spelling.", reason=reason
    )


def varint_encode(value: int) -> bytes:
    """Return an unsigned varint: seven bits a byte, least significant first.

    >>> varint_encode(0xED).hex()
    'ed01'
    """
    if not 0 <= value < 1 << 63:
        raise _refused(f"varint {value}: outside 0 … 2^63−1", reason="varint range")
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_decode(raw: bytes, start: int = 0) -> tuple[int, int]:
    """Return the varint that begins at `start`, and where it ends; a longer spelling than needed is refused.

    >>> varint_decode(bytes.fromhex("8024"))
    (4608, 2)
    """
    value = 0
    for count, byte in enumerate(raw[start : start + VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            if byte == 0 and count > 0:
                raise _refused(f"varint at byte {start}: not minimal", reason="varint not minimal")
            return value, start + count + 1
    raise _refused(f"varint at byte {start}: no end within {VARINT_BYTES_MAX} bytes", reason="varint end")


def base58_encode(raw: bytes) -> str:
    """Return base58 with the Bitcoin alphabet; a leading zero byte is written as `1`.

    >>> base58_encode(b"hello world")
    'StV1DL6CwTryKyV'
    """
    zeros = len(raw) - len(raw.lstrip(b"\0"))
    number = int.from_bytes(raw, "big")
    chars = []
    while number:
        number, rest = divmod(number, 58)
        chars.append(_BASE58[rest])
    return "1" * zeros + "".join(reversed(chars))


def base58_decode(text: str) -> bytes:
    """Return the bytes that `base58_encode` wrote as `text`.

    >>> base58_decode("StV1DL6CwTryKyV")
    b'hello world'
    """
    if len(text) > BASE58_CHARS_MAX:
        raise _refused(
            f"base58 text has {len(text)} characters; at most {BASE58_CHARS_MAX}", reason="too long"
        )
    number = 0
    for position, char in enumerate(text):
        value = _BASE58_VALUE.get(char)
        if value is None:
            raise _refused(f"base58: {char!r} at {position} is not in the alphabet", reason="alphabet")
        number = number * 58 + value
    zeros = len(text) - len(text.lstrip("1"))
    return b"\0" * zeros + number.to_bytes((number.bit_length() + 7) // 8, "big")


def base32_encode(raw: bytes) -> str:
    """Return RFC 4648 base32, lower case, without padding.

    >>> base32_encode(b"rope")
    'ojxxazi'
    """
    return base64.b32encode(raw).decode("ascii").rstrip("=").lower()


def base32_decode(text: str) -> bytes:
    """Return the bytes that `base32_encode` wrote as `text`; upper case, padding and stray bits are refused.

    >>> base32_decode("ojxxazi")
    b'rope'
    """
    try:
        raw = base64.b32decode(text.upper() + "=" * (-len(text) % 8))
    except (binascii.Error, ValueError) as error:
        raise _refused(f"base32 {text[:80]!r}: {error}", reason="alphabet") from error
    if base32_encode(raw) != text:
        raise _refused(f"base32 {text[:80]!r}: not the canonical spelling", reason="spelling")
    return raw


def base64_encode(raw: bytes) -> str:
    """Return RFC 4648 base64, padded.

    >>> base64_encode(b"rope")
    'cm9wZQ=='
    """
    return binascii.b2a_base64(raw, newline=False).decode("ascii")


def base64_decode(text: str) -> bytes:
    """Return the bytes that `base64_encode` wrote as `text`; missing padding, spaces and stray bits are refused.

    >>> base64_decode("cm9wZQ==")
    b'rope'
    """
    try:
        raw = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise _refused(f"base64 {text[:80]!r}: {error}", reason="alphabet") from error
    if base64_encode(raw) != text:
        raise _refused(f"base64 {text[:80]!r}: not the canonical spelling", reason="spelling")
    return raw
