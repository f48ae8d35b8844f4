"""Streams within a stream: windows hold, and what breaks the protocol is cut off before it costs anything."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import Invalid, TooLarge, Unavailable
from ropewalk.gossip.peer.yamux import (
    CONTROL_BYTES_MAX,
    OWN_STREAMS_MAX,
    WINDOW_BYTES,
    Closed,
    Event,
    Finished,
    Opened,
    Received,
    Reset,
    Writable,
    YamuxLimits,
    YamuxSession,
)

VECTOR = Path(__file__).parents[3] / "vectors" / "gossiplog" / "v0.13-websocket.json"
DATA, WINDOW, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8


def header(kind: int, flags: int, stream: int, length: int, version: int = 0) -> bytes:
    return struct.pack(">BBHII", version, kind, flags, stream, length)


def pair() -> tuple[YamuxSession, YamuxSession]:
    return YamuxSession(client=True), YamuxSession(client=False)


def carry(one: YamuxSession, two: YamuxSession) -> list[Event]:
    events: list[Event] = []
    while data := one.data_to_send():
        events += two.receive(data)
    return events


def test_both_sides_of_the_recorded_session_are_understood():
    frames = json.loads(VECTOR.read_text())["frames"]
    for direction, client in (("s->c", True), ("c->s", False)):
        # Whoever records hears both sides; each of ours begins the streams the recorded one began.
        session = YamuxSession(client=client)
        opened: dict[int, bytes] = {}
        for frame in frames:
            raw = bytes.fromhex(frame["hex"])
            if frame["dir"] != direction:
                if raw[1] == WINDOW and raw[3] & SYN:
                    opened[session.open()] = b""
                continue
            for event in session.receive(raw):
                match event:
                    case Opened(stream):
                        opened[stream] = b""
                    case Received(stream, data):
                        opened[stream] += data
                        session.consumed(stream, len(data))
                    case _:
                        pass
        assert set(opened) == {1, 2, 3}
        assert opened[2].startswith(b"\x13/multistream/1.0.0\n#/canvas/v1/com.example.shared/sync\n")


def test_streams_carry_bytes_both_ways_and_end():
    here, there = pair()
    stream = here.open()
    here.send(stream, b"question")
    here.finish(stream)
    assert carry(here, there) == [Opened(1), Received(1, b"question"), Finished(1)]
    there.send(1, b"answer")
    there.finish(1)
    assert carry(there, here) == [Received(1, b"answer"), Finished(1)]
    assert not here.knows(1)
    assert not there.knows(1)
    assert there.open() == 2


def test_nobody_sends_more_than_the_window_and_reading_opens_it_again():
    here, there = pair()
    stream = here.open()
    here.send(stream, bytes(3 * WINDOW_BYTES))
    received = sum(len(event.data) for event in carry(here, there) if isinstance(event, Received))
    assert received == WINDOW_BYTES
    assert here.waiting(stream) == 2 * WINDOW_BYTES
    assert here.data_to_send() == b""
    there.consumed(stream, WINDOW_BYTES)
    assert Writable(stream) in carry(there, here)
    received = sum(len(event.data) for event in carry(here, there) if isinstance(event, Received))
    assert received == WINDOW_BYTES


def test_streams_take_turns():
    here, there = pair()
    first, second = here.open(), here.open()
    here.send(first, bytes(200_000))
    here.send(second, b"short")
    events = there.receive(here.data_to_send(limit=100))
    assert Received(second, b"short") in events


@given(st.lists(st.binary(max_size=3000), max_size=8), st.integers(1, 5000))
@settings(max_examples=60, deadline=None)
def test_any_slicing_of_the_bytes_means_the_same(chunks: list[bytes], size: int):
    here, there = pair()
    stream = here.open()
    for chunk in chunks:
        here.send(stream, chunk)
    here.finish(stream)
    raw = here.data_to_send(limit=1 << 30)
    events = [event for at in range(0, len(raw), size) for event in there.receive(raw[at : at + size])]
    assert b"".join(event.data for event in events if isinstance(event, Received)) == b"".join(chunks)
    assert events[-1] == Finished(stream)


def test_a_ping_is_answered_with_its_value():
    here, there = pair()
    here.ping(7)
    assert carry(here, there) == []
    assert there.data_to_send() == header(PING, ACK, 0, 7)


def test_a_goodbye_ends_new_streams():
    here, there = pair()
    there.go_away(2)
    assert carry(there, here) == [Closed(2)]
    with pytest.raises(Unavailable):
        here.open()


def test_a_reset_stream_is_gone_and_late_frames_for_it_are_ignored():
    here, there = pair()
    stream = here.open()
    carry(here, there)
    there.reset(stream)
    here.send(stream, b"late")
    late = here.data_to_send()
    assert carry(there, here) == [Reset(stream)]
    assert there.receive(late) == []
    with pytest.raises(Unavailable):
        here.send(stream, b"more")


def test_streams_beyond_the_limit_are_refused_one_by_one():
    session = YamuxSession(client=False, limits=YamuxLimits(streams=2))
    events = session.receive(b"".join(header(WINDOW, SYN, stream, 0) for stream in (1, 3, 5, 7)))
    assert events == [Opened(1), Opened(3)]
    assert session.data_to_send().endswith(header(WINDOW, RST, 5, 0) + header(WINDOW, RST, 7, 0))


def test_our_own_streams_are_bounded_too():
    session = YamuxSession(client=True)
    for _ in range(OWN_STREAMS_MAX):
        session.open()
    with pytest.raises(Unavailable, match="ends none"):
        session.open()


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (header(DATA, 0, 1, 0, version=1), Invalid),
        (header(4, 0, 1, 0), Invalid),
        (header(DATA, 16, 1, 0), Invalid),
        (b"GET / HTTP/1.1\r\n", Invalid),
        (header(DATA, SYN, 0, 0), Invalid),
        (header(WINDOW, SYN, 2, 0), Invalid),  # an even stream belongs to the server
        (header(WINDOW, SYN, 1, 0) * 2, Invalid),
        (header(WINDOW, 0, 9, 0), Invalid),  # nobody began it
        (header(DATA, SYN, 1, 0xFFFFFFFF), TooLarge),
        (header(DATA, SYN, 1, WINDOW_BYTES + 1), TooLarge),
        (header(DATA, SYN, 1, WINDOW_BYTES) + bytes(WINDOW_BYTES) + header(DATA, 0, 1, 1) + b"x", Invalid),
        (header(DATA, SYN | FIN, 1, 0) + header(DATA, 0, 1, 1) + b"x", Invalid),
    ],
)
def test_what_breaks_the_protocol_is_refused(raw: bytes, error: type[Exception]):
    with pytest.raises(error):
        YamuxSession(client=False).receive(raw)


def test_pings_from_a_peer_that_does_not_read_do_not_pile_up():
    session = YamuxSession(client=False)
    with pytest.raises(TooLarge, match="answers"):
        for _ in range(CONTROL_BYTES_MAX):
            session.receive(header(PING, SYN, 0, 1) * 100)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_bytes_do_more_than_raise(raw: bytes):
    session = YamuxSession(client=False)
    try:
        session.receive(raw)
    except (Invalid, TooLarge):
        return
