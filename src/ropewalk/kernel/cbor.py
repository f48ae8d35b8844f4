"""Canonical CBOR: deterministic CBOR for the ledger's wire form, DAG-CBOR for gossip.

One value has one encoding, and any other bytes are refused: an id made from bytes must not have two spellings.

    encode, decode           RFC 8949 §4.2 over the JSON model and byte strings; floats in their shortest width
    dag_encode, dag_decode   what `@ipld/dag-cbor` writes; floats in 64 bits, 64-bit integers, and links

Both are length-first sorted, definite, shortest-head CBOR, and both write an integral float as an integer.
libipld does the work where a guard proves its result right; `cborform.check` and cbor2 do the rest. The guards
exist because libipld (3.5) takes byte strings that resemble a CID for links, keeps `1.0` a float, accepts long
heads and 32-bit floats, and reserves memory for any length the input claims.
"""

from __future__ import annotations

import re
import struct
import sys
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias, cast

import cbor2
import libipld

from ropewalk.errors import InvalidCbor, InvalidDigest
from ropewalk.kernel.cbor_check import CORE, DAG, Dialect, check, is_safe_integer
from ropewalk.kernel.cbor_check import DEPTH_MAX as DEPTH_MAX
from ropewalk.kernel.digest import cid_text, parse_cid, split_cid

Cbor: TypeAlias = "bool | int | float | str | bytes | list[Cbor] | dict[str, Cbor] | None"
Dag: TypeAlias = "bool | int | float | str | bytes | Link | list[Dag] | dict[str, Dag] | None"

_ipld_encode = libipld.encode_dag_cbor
_ipld_decode = libipld.decode_dag_cbor

_CONTAINERS = (dict, list)
_SCALARS = frozenset({str, int, float, bool, bytes, type(None)})
_IPLD_REFUSES = (ValueError, RecursionError, InvalidDigest)
_CBOR2_REFUSES = (cbor2.CBORError, ValueError, TypeError, InvalidCbor, InvalidDigest)
_LINK = b"\xd8\x2a"  # the head of tag 42: no link is written without it
_FLOAT64 = b"\xfb"  # the head of a 64-bit float; never part of UTF-8
# The head of a float that may be a safe integer: zero, or an exponent that means 1 ≤ |x| < 2^53. Below 2^45 the last
# byte of an integer is zero, which spares most fractions a closer look.
_FLOAT64_INTEGRAL = re.compile(
    rb"\xfb(?=(?:[\x3f\xbf][\xf0-\xff]|[\x40\x41\xc0\xc1].|[\x42\xc2][\x00-\xbf]).{5}\x00"
    rb"|(?:[\x42\xc2][\xc0-\xff]|[\x43\xc3][\x00-\x3f]).{6}|[\x00\x80]\x00{7})",
    re.DOTALL,
)
# The head of an integer beyond ±(2^53−1); a negative one is written as -1 - n, hence the second part.
_INT64_UNSAFE = re.compile(rb"[\x1b\x3b](?:[\x01-\xff]|\x00[\x20-\xff])|\x3b\x00\x1f\xff{6}")
_HEADS_CONTAINER = bytes(range(0x80, 0xC0))
_HEADS_LARGE = bytes.fromhex("999a9bb9babb")  # containers that claim more than 255 items
_RECURSION_MAX = 5_000  # of the interpreter, which libraries raise
_NESTING_MAX = 512  # levels libipld may descend, at 600 bytes of stack each
_CLAIMS_MAX = 1 << 20  # items libipld may reserve room for beyond what is really there
_WHERE_SHOWN_MAX = 200  # characters; remote peers choose the keys on the way
_TAGS_KNOWN_TO_CBOR2 = (*range(42), *range(43, 264), 1004, 43000, 55799)


@dataclass(frozen=True, slots=True)
class Link:
    """A link to other content: a CID in binary form, version 0 or 1.

    >>> link = Link.parse("bafyreigbtj4x7ip5legnfznufuopl4sg4knzc2cof6duas4b3q2fy6swua")
    >>> link.cid.hex()[:8], link.text()[:8]
    ('01711220', 'bafyreig')
    """

    cid: bytes

    def __post_init__(self) -> None:
        split_cid(self.cid)

    def text(self) -> str:
        """Return the CID as people write it."""
        return cid_text(self.cid)

    @classmethod
    def parse(cls, text: str) -> Link:
        return cls(parse_cid(text))


def dag_encode(value: object) -> bytes:
    """Return the DAG-CBOR of a value.

    >>> dag_encode({"topic": "a", "clock": 1.0}).hex()
    'a265636c6f636b0165746f7069636161'
    """
    return _encode(value, DAG)


def dag_decode(raw: bytes) -> Dag:
    """Return the value of canonical DAG-CBOR; every other spelling is refused.

    >>> dag_decode(bytes.fromhex("a265636c6f636b0165746f7069636161"))
    {'clock': 1, 'topic': 'a'}
    >>> dag_decode(bytes.fromhex("1817"))
    Traceback (most recent call last):
    ...
    ropewalk.errors.InvalidCbor: DAG-CBOR byte 0: head is longer than necessary
    """
    return cast(Dag, _decode(raw, DAG))


def encode(value: object) -> bytes:
    """Return the deterministic CBOR of a value of the JSON model, byte strings included.

    >>> encode({"b": 1.5, "a": [1.0, None]}).hex()
    'a261618201f66162f93e00'
    """
    return _encode(value, CORE)


def decode(raw: bytes) -> Cbor:
    """Return the value of deterministic CBOR; every other spelling is refused.

    >>> decode(bytes.fromhex("a261618201f66162f93e00"))
    {'a': [1, None], 'b': 1.5}
    >>> decode(bytes.fromhex("f93c00"))
    Traceback (most recent call last):
    ...
    ropewalk.errors.InvalidCbor: CBOR byte 0: integer written as a float
    """
    return cast(Cbor, _decode(raw, CORE))


def _encode(value: object, dialect: Dialect) -> bytes:
    if sys.getrecursionlimit() <= _RECURSION_MAX:  # libipld recurses as deep as the interpreter allows
        try:
            raw: bytes = _ipld_encode(value)
        except (ValueError, RecursionError):
            pass  # links, and everything that is wrong: the slow path separates them
        else:
            if _LINK not in raw and _agrees(raw, value, dialect) and _is_shallow(raw, value):
                return raw
    return cbor2.dumps(_settle(value, dialect), canonical=dialect is CORE)


def _decode(raw: bytes, dialect: Dialect) -> object:
    if _is_tame(raw):
        try:
            value = _ipld_decode(raw)
            if _ipld_encode(value) == raw and _agrees(raw, value, dialect) and _is_shallow(raw, value):
                if _LINK not in raw:
                    return value
                if dialect.links:
                    return _with_links(value)
        except _IPLD_REFUSES:
            pass
    try:
        value = _read(raw)
        if _encode(value, dialect) == raw:
            return value
    except _CBOR2_REFUSES:
        pass
    raise _fault(raw, dialect)


def _agrees(raw: bytes, value: object, dialect: Dialect) -> bool:
    """Return whether a dialect writes the numbers of a value as libipld did, in `raw`."""
    if dialect is CORE:
        return (_FLOAT64 not in raw and _INT64_UNSAFE.search(raw) is None) or _has_core_numbers(value)
    return _FLOAT64 not in raw or not _has_integral_float(raw)


def _read(raw: bytes) -> object:
    """Return what cbor2 makes of `raw`. It takes many spellings, but memory follows the input and depth is bounded."""
    return cbor2.loads(
        raw,
        tag_hook=_link_of_tag,
        semantic_decoders=_REFUSE_TAGS,
        max_depth=DEPTH_MAX,
        allow_indefinite=False,
        allow_duplicate_keys=False,
        strict_hashable_types=True,
    )


def _fault(raw: bytes, dialect: Dialect) -> InvalidCbor:
    """Return what is wrong with bytes that are not canonical, and where."""
    try:
        check(raw, dialect)
    except InvalidCbor as error:
        return error
    return InvalidCbor(f"{dialect.name}: not canonical", reason="not canonical")


def _has_integral_float(raw: bytes) -> bool:
    """Return whether `raw` may hold a float that must be an integer; also true for bytes that only look so."""
    return any(
        is_safe_integer(struct.unpack_from(">d", raw, found.end())[0])
        for found in _FLOAT64_INTEGRAL.finditer(raw)
    )


def _has_core_numbers(value: Any) -> bool:
    """Return whether a value has no floats and no unsafe integers; texts and byte strings may only look like them."""
    todo = [value]
    for item in todo:
        if isinstance(item, list):
            todo.extend(item)
        elif isinstance(item, dict):
            todo.extend(item.values())
        elif isinstance(item, float) or (isinstance(item, int) and not CORE.int_min <= item <= CORE.int_max):
            return False
    return True


def _is_tame(raw: bytes) -> bool:
    """Return whether libipld can read `raw` with little stack and memory: heads that nest or claim much are few.

    Counting is sound because every head is a byte of `raw`; texts and byte strings only make the count too high.
    """
    return len(raw) <= _NESTING_MAX or (
        _count(raw, _HEADS_CONTAINER) <= _NESTING_MAX and _count(raw, _HEADS_LARGE) * len(raw) <= _CLAIMS_MAX
    )


def _is_shallow(raw: bytes, value: Any) -> bool:
    """Return whether a value, encoded as `raw`, nests within the bound; every level costs a head."""
    if (
        len(raw) <= DEPTH_MAX
        or _count(raw, _HEADS_CONTAINER) <= DEPTH_MAX
        or not isinstance(value, _CONTAINERS)
    ):
        return True
    level = [value]
    for _ in range(DEPTH_MAX):
        inside = chain.from_iterable(item.values() if isinstance(item, dict) else item for item in level)
        level = [item for item in inside if type(item) not in _SCALARS and isinstance(item, _CONTAINERS)]
        if not level:
            return True
    return False


def _count(raw: bytes, heads: bytes) -> int:
    """Return how many bytes of `raw` are, or by chance look like, one of these heads."""
    return len(raw) - len(raw.translate(None, heads))


def _with_links(value: Any) -> Dag:
    """Put links where libipld gave bytes; right only for a value that libipld encodes back to where it came from."""
    if isinstance(value, bytes):
        return Link(value) if _ipld_encode(value)[:2] == _LINK else value
    if isinstance(value, list):
        return [_with_links(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_links(item) for key, item in value.items()}
    return cast(Dag, value)


def _link_of_tag(tag: cbor2.CBORTag, _immutable: bool) -> Link:
    if tag.tag != 42 or not isinstance(tag.value, bytes) or tag.value[:1] != b"\0":
        raise ValueError("not a link")
    return Link(tag.value[1:])


def _refuse_tag(_value: object, _immutable: bool) -> object:
    raise ValueError("not a link")


_REFUSE_TAGS = dict.fromkeys(_TAGS_KNOWN_TO_CBOR2, _refuse_tag)  # dates, decimals, patterns: none is ours


# The steps to a value, innermost first. They become text only when something is wrong: a long key above many items
# would else be copied once for each.
_Way: TypeAlias = "tuple[_Way, str | int] | None"


def _settle(value: Any, dialect: Dialect, way: _Way = None, depth: int = 0) -> Any:
    """Return what cbor2 writes canonically: sorted, numbers reduced, links as tags; refuse what has no form."""

    def refuse(reason: str) -> InvalidCbor:
        where = _pointer(way)
        place = f" at {where[:_WHERE_SHOWN_MAX]}" if where else ""
        return InvalidCbor(f"{dialect.name} value{place}: {reason}", where=where, reason=reason)

    if value is None or isinstance(value, (bool, bytes)):
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise refuse("text holds a lone surrogate") from None
        return value
    if isinstance(value, float):
        if is_safe_integer(value):
            return int(value)
        try:
            dialect.float_width(value)
        except InvalidCbor as error:
            raise refuse(error.fields["reason"]) from None
        return value
    if isinstance(value, int):
        if not dialect.int_min <= value <= dialect.int_max:
            raise refuse("integer out of range")
        return int(value)
    if isinstance(value, Link) and dialect.links:
        return cbor2.CBORTag(42, b"\0" + value.cid)
    if not isinstance(value, _CONTAINERS):
        raise refuse(f"{type(value).__name__} has no canonical form")
    if depth == DEPTH_MAX:
        raise refuse(f"nested deeper than {DEPTH_MAX}")
    if isinstance(value, list):
        return [_settle(item, dialect, (way, index), depth + 1) for index, item in enumerate(value)]
    settled = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise refuse(f"map key {key!r:.80} is not text")
        settled[key] = _settle(item, dialect, (way, key), depth + 1)
    try:
        return dict(sorted(settled.items(), key=_key_order))
    except UnicodeEncodeError:
        raise refuse("map key holds a lone surrogate") from None


def _pointer(way: _Way) -> str:
    steps: list[str] = []
    while way is not None:
        way, step = way
        steps.append(f"/{step}")
    return "".join(reversed(steps))


def _key_order(pair: tuple[str, Any]) -> tuple[int, bytes]:
    key = pair[0].encode()
    return len(key), key
