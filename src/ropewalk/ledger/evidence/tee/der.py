"""A small DER parser for vendor extensions of certificates: elements, numbers, texts. Nothing is recursive.

Lengths are definite and minimal, as DER requires, so each value has one encoding. A level is parsed only on request:
the caller sets the depth, never the bytes.
"""

from __future__ import annotations

from typing import Final

from ropewalk.errors import Invalid

INTEGER: Final = 0x02
OCTET_STRING: Final = 0x04
OBJECT_ID: Final = 0x06
IA5_STRING: Final = 0x16
SEQUENCE: Final = 0x30
ELEMENTS_MAX: Final = 64  # the widest extension known, Intel's, has 18 in a row


def parse_elements(raw: bytes) -> list[tuple[int, bytes]]:
    """Return the elements that stand in a row, each as its tag and content.

    >>> parse_elements(bytes.fromhex("020105160141"))
    [(2, b'\\x05'), (22, b'A')]
    """
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(raw):
        if len(found) == ELEMENTS_MAX:
            raise _wrong(f"more than {ELEMENTS_MAX} elements in a row")
        tag, start, end = _head(raw, at)
        found.append((tag, raw[start:end]))
        at = end
    return found


def parse_element(raw: bytes, tag: int) -> bytes:
    """Return the content of the one element that the bytes are, of this tag.

    >>> parse_element(b"\\x02\\x01\\x05", INTEGER)
    b'\\x05'
    """
    found = parse_elements(raw)
    if len(found) != 1 or found[0][0] != tag:
        raise _wrong(f"one element of tag {tag:#04x} is expected")
    return found[0][1]


def to_number(content: bytes, most: int) -> int:
    """Return the number between 0 and `most` that an INTEGER holds.

    >>> to_number(b"\\x00\\xff", 255)
    255
    """
    padded = len(content) > 1 and content[0] == 0 and content[1] < 0x80
    if not content or content[0] >= 0x80 or padded or len(content) > 9:
        raise _wrong("a number is not spelt as DER does, or is negative")
    number = int.from_bytes(content, "big")
    if number > most:
        raise _wrong(f"a number is {number}; at most {most}")
    return number


def _head(raw: bytes, at: int) -> tuple[int, int, int]:
    """Tag of the element at a place, where its content starts and where it ends."""
    if len(raw) < at + 2:
        raise _wrong("an element is cut off")
    tag, length, start = raw[at], raw[at + 1], at + 2
    if tag & 0x1F == 0x1F:
        raise _wrong("a tag of several bytes")
    if length >= 0x80:
        count = length - 0x80
        if not 1 <= count <= 4 or len(raw) < start + count:
            raise _wrong("a length that is indefinite, too large or cut off")
        length = int.from_bytes(raw[start : start + count], "big")
        start += count
        if length < 0x80 or length.bit_length() <= 8 * (count - 1):
            raise _wrong("a length is not spelt as DER does")
    if len(raw) < start + length:
        raise _wrong("an element is cut off")
    return tag, start, start + length


def _wrong(what: str) -> Invalid:
    return Invalid(f"DER: {what}")
