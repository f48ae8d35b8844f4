"""One subscription over several connections, as its owner sees it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ropewalk.errors import RopewalkError
from ropewalk.stream.core.frames import Ack, BusEvent, ErrorFrame, Ping, encode
from ropewalk.stream.core.subscriber import Lost, Subscriber

TS = "2026-01-02T03:04:05.678Z"


def begun(stream: str = "01HF", seq: int = 100, credit: int = 1_000, **options) -> Subscriber:
    subscriber = Subscriber(topics=("jobs",), **options)
    assert subscriber.receive(encode(Ack(stream, seq, credit, TS))) == []
    return subscriber


def event(seq: int) -> str:
    return encode(BusEvent("jobs", {}, seq, TS))


def said(subscriber: Subscriber) -> list[dict[str, Any]]:
    return [json.loads(text) for text in subscriber.outgoing()]


def test_it_asks_from_where_the_stream_stood_when_it_came():
    assert said(begun()) == [{"op": "sub", "refs": [], "topics": ["jobs"], "sinceSeq": 100}]


def test_it_asks_from_where_its_owner_says():
    assert said(begun(since_seq=7))[0]["sinceSeq"] == 7


def test_frames_that_come_twice_are_handed_out_once():
    subscriber = begun()
    handed = [subscriber.receive(event(seq)) for seq in (101, 102, 101, 102, 103)]
    assert [len(items) for items in handed] == [1, 1, 0, 0, 1]
    assert (subscriber.seq, subscriber.duplicates) == (103, 2)


def test_a_new_connection_goes_on_where_the_last_one_ended():
    subscriber = begun()
    subscriber.receive(event(105))
    subscriber.connected()
    assert subscriber.receive(encode(Ack("01HF", 120, 1_000, TS))) == []
    assert said(subscriber)[0]["sinceSeq"] == 105


def test_restarted_server_reported_and_followed():
    subscriber = begun()
    subscriber.receive(event(105))
    subscriber.connected()
    (lost,) = subscriber.receive(encode(Ack("other", 40, 1_000, TS)))
    assert isinstance(lost, Lost)
    assert (lost.reason, lost.since_seq, lost.seq) == ("restarted", 105, 40)
    assert said(subscriber)[0]["sinceSeq"] == 40
    assert subscriber.receive(event(41)), "numbers may be lower than before"


def test_what_expired_is_told_with_the_place_from_which_all_comes():
    subscriber = begun(since_seq=7)
    (lost,) = subscriber.receive(encode(ErrorFrame("REPLAY_EXPIRED", "gone", 8, 50, 110)))
    assert isinstance(lost, Lost)
    assert (lost.reason, lost.since_seq, lost.seq) == ("expired", 7, 110)
    assert subscriber.seq == 110


def test_credit_given_by_quarter_windows():
    subscriber = begun(credit=8)
    said(subscriber)
    subscriber.consumed(1)
    assert said(subscriber) == []
    subscriber.consumed(1)
    assert said(subscriber) == [{"op": "credit", "credit": 2}]


def test_a_pong_carries_what_was_consumed_since():
    subscriber = begun()
    said(subscriber)
    subscriber.receive(encode(Ping(0)))
    subscriber.consumed(3)
    subscriber.receive(encode(Ping(0)))
    assert said(subscriber) == [{"kind": "pong", "credit": 0}, {"kind": "pong", "credit": 3}]


def test_a_server_that_knows_only_the_frames_of_s2_is_spoken_to_in_them():
    subscriber = Subscriber(topics=("jobs",))
    assert subscriber.receive('{"kind":"ack"}') == []
    assert said(subscriber) == [{"op": "sub", "refs": [], "topics": ["jobs"]}]
    for seq in range(1, 600):
        assert len(subscriber.receive(event(seq))) == 1
        subscriber.consumed(1)
    subscriber.receive('{"kind":"ping"}')
    assert said(subscriber) == [{"kind": "pong"}]
    subscriber.connected()
    assert subscriber.receive('{"kind":"ack"}') == []
    assert said(subscriber) == [{"op": "sub", "refs": [], "topics": ["jobs"], "sinceSeq": 599}]


def test_other_errors_are_handed_on():
    error = ErrorFrame("POLICY_DENIED", "no", topic="jobs")
    assert begun().receive(encode(error)) == [error]


def test_what_is_no_frame_is_an_error_and_an_unknown_kind_is_none():
    with pytest.raises(RopewalkError):
        begun().receive("hello")
    assert begun().receive('{"kind":"weather"}') == []
