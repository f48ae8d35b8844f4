"""What travels is what the JavaScript packages wrote, both ways, and nothing unbounded gets in."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import Invalid, RopewalkError, TooLarge
from ropewalk.gossip.core.ids import ProfileName
from ropewalk.gossip.sync.questions import (
    VALUES_MAX,
    AbortResponse,
    ChildrenRequest,
    ChildrenResponse,
    NodeRequest,
    NodeResponse,
    RootRequest,
    RootResponse,
    ValuesRequest,
    ValuesResponse,
)
from ropewalk.gossip.sync.wire import (
    FrameCutter,
    Insert,
    Update,
    decode_event,
    decode_request,
    decode_response,
    encode_event,
    encode_request,
    encode_response,
    frame,
)
from ropewalk.kernel.prolly.checks import CHILDREN_MAX
from ropewalk.kernel.prolly.node import ANCHOR, Node

KEY, HASH = bytes(range(20)), bytes(range(16))


def plain(value: Any) -> Any:
    """A DAG-JSON value with its bytes as bytes."""
    if isinstance(value, dict):
        inner = value.get("/")
        if isinstance(inner, dict):
            text = inner["bytes"]
            return base64.b64decode(text + "=" * (-len(text) % 4))
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def node(value: dict[str, Any]) -> Node:
    return Node(value["level"], value.get("key", b""), value["hash"], value.get("value"))


def message(value: dict[str, Any], kind: str) -> Any:
    ((name, inner),) = value.items()
    match kind, name:
        case "Request", "getRoot":
            return RootRequest()
        case "Request", "getNode":
            return NodeRequest(inner["level"], inner.get("key", b""))
        case "Request", "getChildren":
            return ChildrenRequest(inner["level"], inner.get("key", b""))
        case "Request", "getValues":
            return ValuesRequest(tuple(inner["keys"]))
        case "Response", "getRoot":
            return RootResponse(node(inner["root"]))
        case "Response", "getNode":
            return NodeResponse(node(inner["node"]) if "node" in inner else None)
        case "Response", "getChildren":
            return ChildrenResponse(tuple(map(node, inner["children"])))
        case "Response", "getValues":
            return ValuesResponse(tuple(inner["values"]))
        case "Response", "abort":
            return AbortResponse(inner["cooldown"])
        case "Event", "insert":
            return Insert(inner["key"], inner["value"])
        case "Event", "update":
            return Update(tuple(inner["heads"]))
    raise AssertionError((kind, name))


def both_ways(kind: str, profile: ProfileName, value: Any, raw: bytes) -> None:
    if kind == "Request":
        assert encode_request(value) == raw
        assert decode_request(raw, profile) == value
    elif kind == "Response":
        assert encode_response(value, profile) == raw
        assert decode_response(raw, profile) == value
    else:
        assert encode_event(value) == raw
        assert decode_event(raw) == value


def test_every_recorded_protobuf_sample_both_ways(vector):
    samples: list[tuple[ProfileName, list[Any]]] = [
        ("v0.13", vector("v0.13-protobuf")["samples"]),
        ("v0.6", vector("v0.6-sync")["protobuf_samples"]),
    ]
    for profile, cases in samples:
        assert len(cases) > 8
        for case in cases:
            value = message(plain(case["value"]), case["kind"])
            both_ways(case["kind"], profile, value, bytes.fromhex(case["hex"]))


def test_the_recorded_v06_session_both_ways(vector):
    frames = vector("v0.6-sync")["frames"]
    raws = {
        side: b"".join(bytes.fromhex(each["hex"]) for each in frames if each["dir"] == side)
        for side in ("client->server", "server->client")
    }
    requests = FrameCutter(1 << 20).receive(raws["client->server"])
    responses = FrameCutter(1 << 20).receive(raws["server->client"])
    assert len(requests) == len(responses) > 3
    for raw in requests:
        assert encode_request(decode_request(raw, "v0.6")) == raw
    for raw in responses:
        assert encode_response(decode_response(raw, "v0.6"), "v0.6") == raw
    assert b"".join(map(frame, requests)) == raws["client->server"]


def test_the_recorded_websocket_session_both_ways(vector):
    streams: dict[tuple[str, int], bytes] = {}
    for each in vector("v0.13-websocket")["frames"]:
        raw = bytes.fromhex(each["hex"])
        if raw[1] == 0:
            place = each["dir"], int.from_bytes(raw[4:8], "big")
            streams[place] = streams.get(place, b"") + raw[12:]
    seen = 0
    for (side, stream), raw in streams.items():
        line = raw.index(b"\n", raw.index(b"/canvas")) + 1
        for each in FrameCutter(1 << 20).receive(raw[line:]):
            seen += 1
            if stream == 1:
                assert encode_event(decode_event(each)) == each
            elif (side == "c->s") == (stream % 2 == 1):
                assert encode_request(decode_request(each, "v0.13")) == each
            else:
                assert encode_response(decode_response(each, "v0.13"), "v0.13") == each
    assert seen == 21


keys = st.binary(min_size=20, max_size=20)
nodes = st.builds(Node, st.integers(0, 255), keys | st.just(ANCHOR), st.binary(min_size=16, max_size=16))
anything = st.one_of(
    st.tuples(
        st.just("Request"),
        st.just(RootRequest())
        | st.builds(NodeRequest, st.integers(0, 255), keys | st.just(b""))
        | st.builds(ChildrenRequest, st.integers(0, 255), keys | st.just(b""))
        | st.builds(ValuesRequest, st.lists(keys, max_size=5).map(tuple)),
    ),
    st.tuples(
        st.just("Response"),
        st.builds(RootResponse, nodes)
        | st.builds(NodeResponse, nodes | st.none())
        | st.builds(ChildrenResponse, st.lists(nodes, max_size=5).map(tuple))
        | st.builds(ValuesResponse, st.lists(st.binary(max_size=300), max_size=5).map(tuple))
        | st.builds(AbortResponse, st.integers(0, 2**32 - 1)),
    ),
    st.tuples(
        st.just("Event"),
        st.builds(Insert, keys, st.binary(max_size=300)) | st.builds(Update, st.lists(keys).map(tuple)),
    ),
)


@given(anything)
@settings(max_examples=200, deadline=None)
def test_whatever_is_said_is_understood(said: tuple[str, Any]):
    kind, value = said
    if kind == "Request":
        assert decode_request(encode_request(value), "v0.13") == value
    elif kind == "Response":
        assert decode_response(encode_response(value, "v0.13"), "v0.13") == value
    else:
        assert decode_event(encode_event(value)) == value


@given(st.lists(st.binary(max_size=400), max_size=6), st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_frames_come_out_whole_however_they_are_cut(raws: list[bytes], size: int):
    stream = b"".join(map(frame, raws))
    frames = FrameCutter(1000)
    found = [each for at in range(0, len(stream), size) for each in frames.receive(stream[at : at + size])]
    assert found == raws
    assert frames.held == 0


def test_a_length_beyond_the_limit_is_refused_before_its_bytes_come():
    with pytest.raises(TooLarge):
        FrameCutter(100).receive(b"\x65")
    with pytest.raises(TooLarge):
        FrameCutter(1 << 20).receive(b"\xff\xff\xff\xff\x0f")
    with pytest.raises(Invalid):
        FrameCutter(1 << 20).receive(b"\xff\xff\xff\xff\xff\xff")


@pytest.mark.parametrize(
    "raw",
    [
        b"",  # says nothing
        b"\x0a\x00\x12\x00",  # says two things
        b"\x08\x01",  # a number for a message
        b"\x0a\x05",  # longer than it is
        b"\x0b\x00",  # a group
        b"\x02\x00",  # field zero
        b"\x2a\x00",  # no such request
        b"\x12\x03\x08\x80\x02",  # level 256
        b"\x12\x05\x12\x03abc",  # a key of three bytes
        b"\x12\x02\x10\x01",  # a number for a key
        b"\xff" * 11,
    ],
)
def test_malformed_requests_are_refused(raw: bytes):
    with pytest.raises(Invalid):
        decode_request(raw, "v0.13")


def test_each_profile_knows_its_own_messages():
    with pytest.raises(Invalid):
        decode_request(encode_request(ValuesRequest((KEY,))), "v0.6")
    for response in (ValuesResponse((b"x",)), AbortResponse(1)):
        with pytest.raises(Invalid):
            decode_response(encode_response(response, "v0.13"), "v0.6")
    leaf = Node(0, KEY, HASH, b"value")
    assert decode_response(encode_response(NodeResponse(leaf), "v0.6"), "v0.6") == NodeResponse(leaf)
    assert decode_response(encode_response(NodeResponse(leaf), "v0.13"), "v0.13") == NodeResponse(
        Node(0, KEY, HASH)
    )


def test_malformed_responses_and_events_are_refused():
    for raw in (
        b"\x0a\x00",
        b"\x0a\x02\x0a\x00",
        b"\x12\x06\x0a\x04\x1a\x02ab",
        b"\x32\x00",
        b"\x2a\x06\x08" + b"\xff" * 5,
    ):
        with pytest.raises(Invalid):
            decode_response(raw, "v0.13")
    inner = Node(1, KEY, HASH, b"value")
    with pytest.raises(Invalid):
        decode_response(encode_response(NodeResponse(inner), "v0.6"), "v0.6")
    for raw in (b"\x0a\x00", b"\x12\x03\x0a\x01x", b"\x1a\x00"):
        with pytest.raises(Invalid):
            decode_event(raw)


def test_fields_of_later_versions_are_skipped():
    more = b"\x38\x01" + b"\x42\x03abc" + b"\x49" + bytes(8) + b"\x4d" + bytes(4)
    inner = b"\x08\x02" + more
    assert decode_request(b"\x1a" + bytes([len(inner)]) + inner, "v0.13") == ChildrenRequest(2, ANCHOR)


def test_lists_are_bounded():
    with pytest.raises(TooLarge):
        decode_request(encode_request(ValuesRequest((KEY,) * (VALUES_MAX + 1))), "v0.13")
    with pytest.raises(TooLarge):
        decode_response(encode_response(ValuesResponse((b"",) * (VALUES_MAX + 1)), "v0.13"), "v0.13")
    many = ChildrenResponse((Node(0, KEY, HASH),) * (CHILDREN_MAX + 1))
    with pytest.raises(TooLarge):
        decode_response(encode_response(many, "v0.13"), "v0.13")


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_no_bytes_do_more_than_raise(raw: bytes):
    for read in (
        lambda: decode_request(raw, "v0.13"),
        lambda: decode_response(raw, "v0.6"),
        lambda: decode_event(raw),
    ):
        try:
            read()
        except RopewalkError as error:
            assert error.exit_code == 8


def test_the_widest_node_fits_an_answer_that_npm_takes():
    nodes = ChildrenResponse((Node(0, KEY, HASH),) * CHILDREN_MAX)
    raw = encode_response(nodes, "v0.13")
    assert len(raw) < 4 << 20
    assert decode_response(raw, "v0.13") == nodes
