"""Parsers of gossip, and of the connections that carry it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from ropewalk.errors import Invalid
from ropewalk.gossip.core import dag_json, message
from ropewalk.gossip.core.ids import id_of, key_of
from ropewalk.gossip.core.profiles import PROFILES
from ropewalk.gossip.peer import multistream, yamux
from ropewalk.gossip.sync import wire
from ropewalk.gossip.sync.discovery import LEARNED_MAX, AddressBook, Pattern
from ropewalk.gossip.sync.questions import (
    ChildrenRequest,
    ChildrenResponse,
    NodeRequest,
    RootRequest,
    RootResponse,
    ValuesRequest,
    ValuesResponse,
)
from ropewalk.kernel.prolly.node import Node
from tests.fuzz.offering import Parser, as_text
from tests.unit.ledger.making import ADA

__all__ = ["PARSERS"]

TOPIC = "com.example.fuzz"


def _message(profile: str) -> Callable[[bytes], None]:
    def take(raw: bytes) -> None:
        found = message.decode(PROFILES[profile], TOPIC, raw)  # type: ignore[index]
        again = message.assemble(PROFILES[profile], found.signature, found.message)  # type: ignore[index]
        assert again.raw == raw
        assert key_of(found.id) == found.key

    return take


def _message_id(raw: bytes) -> None:
    assert id_of(key_of(as_text(raw))) == as_text(raw)


def _dag_json(raw: bytes) -> None:
    value = dag_json.parse(raw)
    encoded = dag_json.encode(value)
    assert dag_json.encode(dag_json.parse(encoded)) == encoded


def _request(profile: Any) -> Callable[[bytes], None]:
    def take(raw: bytes) -> None:
        found = wire.decode_request(raw, profile)
        assert wire.decode_request(wire.encode_request(found), profile) == found

    return take


def _response(profile: Any) -> Callable[[bytes], None]:
    def take(raw: bytes) -> None:
        found = wire.decode_response(raw, profile)
        assert wire.decode_response(wire.encode_response(found, profile), profile) == found

    return take


def _event(raw: bytes) -> None:
    found = wire.decode_event(raw)
    assert wire.decode_event(wire.encode_event(found)) == found


def _addresses(raw: bytes) -> None:
    own, others = wire.decode_addresses(raw, 4, 64)
    assert len(own) <= 4
    assert len(others) <= 64
    book = AddressBook(patterns=["*.example.org:7447"])
    with contextlib.suppress(Invalid):
        book.hear("peer", raw)
    assert len(book.learned()) <= LEARNED_MAX


def _pattern(raw: bytes) -> None:
    found = Pattern.parse(as_text(raw))
    assert found.network is not None or found.covers(found.name.replace("*", "a", 1), found.port)


def _frames(raw: bytes) -> None:
    """However a stream is cut, the frames are the same."""
    whole = wire.FrameCutter(1000).receive(raw)
    cut = wire.FrameCutter(1000)
    half = len(raw) // 2
    assert cut.receive(raw[:half]) + cut.receive(raw[half:]) == whole


def _yamux(raw: bytes) -> None:
    session = yamux.YamuxSession(client=False)
    session.receive(raw)
    session.data_to_send()


def _multistream(raw: bytes) -> None:
    for side in (multistream.Dialer("/chat"), multistream.ProtocolListener(["/echo", "/chat"])):
        side.receive(raw)
        side.data_to_send()


def _yamux_sample() -> bytes:
    session = yamux.YamuxSession(client=True)
    session.send(session.open(), b"hello")
    session.ping(7)
    return session.data_to_send()


def _requests() -> tuple[bytes, ...]:
    asked = (
        RootRequest(),
        NodeRequest(1, bytes(20)),
        ChildrenRequest(2, bytes(20)),
        ValuesRequest((bytes(20),)),
    )
    return tuple(wire.encode_request(each) for each in asked)


def _responses(profile: Any) -> tuple[bytes, ...]:
    leaf = Node(1, bytes(20), bytes(16))
    said = (RootResponse(leaf), ChildrenResponse((leaf, leaf)), ValuesResponse((b"x", b"yy")))
    return tuple(wire.encode_response(each, profile) for each in said)


def _catalogue() -> tuple[Parser, ...]:
    messages = {
        name: message.sign(profile, ADA, TOPIC, (), {"a": [1, b"2"]}).raw
        for name, profile in PROFILES.items()
    }
    listed = [
        ("message_v0.6", _message("v0.6"), (messages["v0.6"],)),
        ("message_v0.13", _message("v0.13"), (messages["v0.13"],)),
        ("message_id", _message_id, (id_of(bytes(20)).encode(),)),
        ("dag_json", _dag_json, (b'{"a":{"/":{"bytes":"AQ"}},"b":[1,null]}',)),
        ("wire_request_v0.6", _request("v0.6"), _requests()),
        ("wire_request_v0.13", _request("v0.13"), _requests()),
        ("wire_response_v0.6", _response("v0.6"), _responses("v0.6")),
        ("wire_response_v0.13", _response("v0.13"), _responses("v0.13")),
        ("wire_event", _event, (wire.encode_event(wire.Insert(bytes(20), messages["v0.6"])),)),
        ("wire_addresses", _addresses, (wire.encode_addresses(["ws://a.example.org:1"], ["wss://[::1]:2"]),)),
        ("address_pattern", _pattern, (b"*.example.org:7447", b"10.0.0.0/8:1", b"[2001:db8::]:65535")),
        ("frames", _frames, (wire.frame(b"abc") + wire.frame(b"") + b"\x85",)),
        ("yamux", _yamux, (_yamux_sample(),)),
        ("multistream", _multistream, (multistream.Dialer("/chat").data_to_send(),)),
    ]
    return tuple(Parser(name, take, samples) for name, take, samples in listed)


PARSERS = _catalogue()
