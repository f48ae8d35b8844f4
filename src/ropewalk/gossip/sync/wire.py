"""Sync and push on the wire: protobuf messages, each after its length, in both profiles.

The messages are few and flat, so their codec is written out here. Decoding is bounded: a length that could not be
honest is refused before a byte of it is kept. As protobuf asks, fields that are not known are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ropewalk.errors import Invalid, TooLarge
from ropewalk.gossip.core.ids import KEY_BYTES, ProfileName
from ropewalk.gossip.core.message import MESSAGE_BYTES_MAX
from ropewalk.gossip.sync.questions import (
    VALUES_MAX,
    AbortResponse,
    ChildrenRequest,
    ChildrenResponse,
    NodeRequest,
    NodeResponse,
    RootRequest,
    RootResponse,
    SyncRequest,
    SyncResponse,
    ValuesRequest,
    ValuesResponse,
)
from ropewalk.kernel.prolly.checks import CHILDREN_MAX
from ropewalk.kernel.prolly.node import ANCHOR, HASH_BYTES, Node

REQUEST_BYTES_MAX = 128 << 10  # 4096 keys with their heads
EVENT_BYTES_MAX = MESSAGE_BYTES_MAX + 1024  # one message, or the heads of a log
RESPONSE_BYTES_MAX = 64 << 20  # sixteen of the largest messages; leaves of v0.6 travel with their values
HEADS_MAX = 100_000  # in one update
ADDRESSES_BYTES_MAX = 16 << 10  # of one exchange
LEVEL_MAX = 255


@dataclass(frozen=True, slots=True)
class Insert:
    """Push: a message, and the key it was sent under."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Update:
    """Push: the heads of the sender."""

    heads: tuple[bytes, ...]


PushEvent = Insert | Update


# Frames


def frame(raw: bytes) -> bytes:
    """Return bytes prefixed with their length.

    >>> frame(b"abc")
    b'\\x03abc'
    """
    return _varint(len(raw)) + raw


class FrameCutter:
    """Cuts a stream of bytes into frames of at most `limit` bytes.

    >>> frames = FrameCutter(100)
    >>> frames.receive(b"\\x03ab"), frames.receive(b"c\\x00")
    ([], [b'abc', b''])
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    @property
    def held(self) -> int:
        """How many bytes of an unfinished frame are held."""
        return len(self._buffer)

    def receive(self, data: bytes) -> list[bytes]:
        """Take bytes and return the frames they complete; a length beyond the limit raises at once."""
        self._buffer += data
        frames: list[bytes] = []
        at = 0
        while True:
            size = shift = 0
            body = at
            while True:
                if body == len(self._buffer):
                    del self._buffer[:at]
                    return frames
                byte = self._buffer[body]
                size |= (byte & 0x7F) << shift
                body, shift = body + 1, shift + 7
                if byte < 0x80:
                    break
                if shift > 28:
                    raise Invalid("a frame's length must have at most five bytes", reason="frame")
            if size > self._limit:
                raise TooLarge(
                    f"a frame must have at most {self._limit} bytes, got {size}", size=size, limit=self._limit
                )
            if len(self._buffer) - body < size:
                del self._buffer[:at]
                return frames
            frames.append(bytes(self._buffer[body : body + size]))
            at = body + size


# Protobuf: varints (type 0) and bytes (type 2) are all that these messages use.


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _bytes(number: int, raw: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + _varint(len(raw)) + raw


def _number(number: int, value: int) -> bytes:
    return bytes((number << 3,)) + _varint(value) if value else b""  # proto3 leaves zeros out


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(raw):
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            break
    raise Invalid("a protobuf number does not end", reason="protobuf")


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message in their order: numbers as int, everything with a length as bytes."""
    at = 0
    while at < len(raw):
        tag, at = _read_varint(raw, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise Invalid("a protobuf field without a number", reason="protobuf")
        if kind == 0:
            value, at = _read_varint(raw, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _read_varint(raw, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise Invalid(f"protobuf wire type {kind} is not used here", reason="protobuf")
        if size > len(raw) - at:
            raise Invalid("a protobuf field is longer than its message", reason="protobuf")
        if kind == 2:
            yield number, raw[at : at + size]
        at += size


def _only(raw: bytes, what: str) -> tuple[int, bytes]:
    """Return the one field of a oneof."""
    found = list(_fields(raw))
    if len(found) != 1 or not isinstance(found[0][1], bytes):
        raise Invalid(f"{what} must have exactly one field, got {len(found)}", reason="protobuf")
    return found[0][0], found[0][1]


def _as_bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise Invalid("field must be bytes, got a number", reason="protobuf")
    return value


def _as_level(value: int | bytes) -> int:
    if not isinstance(value, int) or value > LEVEL_MAX:
        raise Invalid(f"level must be at most {LEVEL_MAX}", reason="level")
    return value


def _as_key(value: int | bytes) -> bytes:
    key = _as_bytes(value)
    if len(key) not in (0, KEY_BYTES):  # empty and absent both mean the anchor
        raise Invalid(f"a key must have {KEY_BYTES} bytes or none, got {len(key)}", reason="key length")
    return key


def _repeated(raw: bytes, number: int, limit: int, what: str) -> Iterator[bytes]:
    count = 0
    for found, value in _fields(raw):
        if found == number:
            count += 1
            if count > limit:
                raise TooLarge(f"more than {limit} {what} at once", limit=limit)
            yield _as_bytes(value)


# Nodes


def _encode_node(node: Node, profile: ProfileName) -> bytes:
    parts = [_number(1, node.level)]
    if node.key != ANCHOR:
        parts.append(_bytes(2, node.key))
    parts.append(_bytes(3, node.hash))
    if profile == "v0.6" and node.value is not None:
        parts.append(_bytes(4, node.value))
    return b"".join(parts)


def _decode_node(raw: bytes, profile: ProfileName) -> Node:
    level, key, hash_, value = 0, ANCHOR, b"", None
    for number, field in _fields(raw):
        if number == 1:
            level = _as_level(field)
        elif number == 2:
            key = _as_key(field)
        elif number == 3:
            hash_ = _as_bytes(field)
        elif number == 4 and profile == "v0.6":
            value = _as_bytes(field)
    if len(hash_) != HASH_BYTES:
        raise Invalid(f"a node's hash must have {HASH_BYTES} bytes, got {len(hash_)}", reason="hash length")
    if value and (level > 0 or key == ANCHOR):
        raise Invalid("only leaves may carry a value", reason="value")
    if level > 0 or key == ANCHOR:
        value = None
    return Node(level, key, hash_, value)


def _encode_place(level: int, key: bytes) -> bytes:
    return _number(1, level) + (b"" if key == ANCHOR else _bytes(2, key))


def _decode_place(raw: bytes) -> tuple[int, bytes]:
    level, key = 0, ANCHOR
    for number, field in _fields(raw):
        if number == 1:
            level = _as_level(field)
        elif number == 2:
            key = _as_key(field)
    return level, key


# Requests and responses


def encode_request(request: SyncRequest) -> bytes:
    """Encode a request.

    >>> encode_request(ChildrenRequest(2, b"")).hex()
    '1a020802'
    """
    match request:
        case RootRequest():
            return _bytes(1, b"")
        case NodeRequest(level, key):
            return _bytes(2, _encode_place(level, key))
        case ChildrenRequest(level, key):
            return _bytes(3, _encode_place(level, key))
        case ValuesRequest(keys):
            return _bytes(4, b"".join([_bytes(1, key) for key in keys]))


def decode_request(raw: bytes, profile: ProfileName) -> SyncRequest:
    """Decode a request; `get_values` exists in v0.13 only.

    >>> decode_request(bytes.fromhex("0a00"), "v0.6")
    RootRequest()
    """
    number, inner = _only(raw, "a request")
    if number == 1:
        return RootRequest()
    if number == 2:
        return NodeRequest(*_decode_place(inner))
    if number == 3:
        return ChildrenRequest(*_decode_place(inner))
    if number == 4 and profile == "v0.13":
        return ValuesRequest(tuple([_as_key(key) for key in _repeated(inner, 1, VALUES_MAX, "keys")]))
    raise Invalid(f"request {number} is unknown in {profile}", reason="request")


def encode_response(response: SyncResponse, profile: ProfileName) -> bytes:
    """Encode a response; in v0.6 leaves carry their values.

    >>> encode_response(NodeResponse(None), "v0.13").hex()
    '1200'
    """
    match response:
        case RootResponse(node):
            return _bytes(1, _bytes(1, _encode_node(node, profile)))
        case NodeResponse(None):
            return _bytes(2, b"")
        case NodeResponse(Node() as node):
            return _bytes(2, _bytes(1, _encode_node(node, profile)))
        case ChildrenResponse(nodes):
            return _bytes(3, b"".join([_bytes(1, _encode_node(node, profile)) for node in nodes]))
        case ValuesResponse(values):
            return _bytes(4, b"".join([_bytes(1, value) for value in values]))
        case AbortResponse(cooldown):
            return _bytes(5, _number(1, cooldown))
    raise AssertionError(response)


def decode_response(raw: bytes, profile: ProfileName) -> SyncResponse:
    """Decode a response; nothing in it is verified yet.

    >>> decode_response(bytes.fromhex("2a00"), "v0.13")
    AbortResponse(cooldown=0)
    """
    number, inner = _only(raw, "a response")
    if number == 3:
        nodes = _repeated(inner, 1, CHILDREN_MAX, "nodes")
        return ChildrenResponse(tuple([_decode_node(node, profile) for node in nodes]))
    if number == 4 and profile == "v0.13":
        return ValuesResponse(tuple(_repeated(inner, 1, VALUES_MAX, "values")))
    if number == 5 and profile == "v0.13":
        cooldown = dict(_fields(inner)).get(1, 0)
        if not isinstance(cooldown, int) or cooldown >> 32:
            raise Invalid("cooldown must be a 32-bit number", reason="cooldown")
        return AbortResponse(cooldown)
    if number not in (1, 2):
        raise Invalid(f"response {number} is unknown in {profile}", reason="response")
    nodes = _repeated(inner, 1, 1, "nodes")
    node = next((_decode_node(each, profile) for each in nodes), None)
    if number == 2:
        return NodeResponse(node)
    if node is None:
        raise Invalid("a root response must hold a node", reason="root")
    return RootResponse(node)


# Push


def encode_event(event: PushEvent) -> bytes:
    """Encode a push event.

    >>> encode_event(Update(())).hex()
    '1200'
    """
    match event:
        case Insert(key, value):
            return _bytes(1, _bytes(1, key) + _bytes(2, value))
        case Update(heads):
            return _bytes(2, b"".join([_bytes(1, head) for head in heads]))


def decode_event(raw: bytes) -> PushEvent:
    """Decode a push event.

    >>> decode_event(bytes.fromhex("1200"))
    Update(heads=())
    """
    number, inner = _only(raw, "an event")
    if number == 2:
        return Update(tuple(_check_keys(_repeated(inner, 1, HEADS_MAX, "heads"))))
    if number != 1:
        raise Invalid(f"event {number} is unknown", reason="event")
    fields = {field: _as_bytes(value) for field, value in _fields(inner) if field in (1, 2)}
    (key,) = _check_keys([fields.get(1, b"")])
    return Insert(key, fields.get(2, b""))


def _check_keys(keys: Iterable[bytes]) -> Iterator[bytes]:
    for key in keys:
        if len(key) != KEY_BYTES:
            raise Invalid(f"a key must have {KEY_BYTES} bytes, got {len(key)}", reason="key length")
        yield key


# Addresses (ropewalk only)


def encode_addresses(own: Iterable[str], others: Iterable[str]) -> bytes:
    """Encode an exchange of addresses.

    >>> encode_addresses(["a"], ["b"]).hex()
    '0a0161120162'
    """
    return b"".join(_bytes(n, url.encode()) for n, urls in ((1, own), (2, others)) for url in urls)


def decode_addresses(raw: bytes, own_max: int, others_max: int) -> tuple[list[str], list[str]]:
    """Decode an exchange of addresses: the sender's own, and others that it knows."""
    own, others = _repeated(raw, 1, own_max, "addresses"), _repeated(raw, 2, others_max, "addresses")
    return [each.decode("ascii", "replace") for each in own], [
        each.decode("ascii", "replace") for each in others
    ]
