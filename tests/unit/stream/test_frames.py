"""Frames: what is sent fits the schema, and what a client sends is held to it."""

from __future__ import annotations

import json
import re

import pytest

from ropewalk.errors import Invalid, RopewalkError
from ropewalk.kernel.schema import shipped as schema
from ropewalk.stream.core.frames import (
    Ack,
    BusEvent,
    Credit,
    ErrorFrame,
    Ping,
    Pong,
    RefUpdate,
    Sub,
    Unsub,
    encode,
    parse_client,
    parse_server,
    relayed,
)

TS = "2026-01-02T03:04:05.678Z"
CLIENT = [
    Sub(("refs/gatos/**",), ("jobs.*",), 1000),
    Sub(),
    Unsub(("refs/gatos/**",)),
    Credit(5),
    Ping(0),
    Pong(),
    Pong(7),
]
SERVER = [
    Ack("01HF", 77, 1000, TS),
    RefUpdate("refs/gatos/x", None, "8b1c", 9, TS),
    RefUpdate("refs/gatos/x", "8b1c", None, 9, TS, 3, 9, 100),
    BusEvent("jobs/pending", {"id": 7}, 10, TS, {"ulid": "01HF", "type": "t"}),
    BusEvent("jobs", {"id": 7}, 10, TS, None, 3, 10, 0),
    BusEvent("jobs", {"seq_origin": 3}, 10, TS),
    Ping(),
    Ping(0),
    Pong(),
    ErrorFrame("POLICY_DENIED", "no", ref="refs/gatos/x"),
    ErrorFrame("POLICY_DENIED", "no", topic="payroll", dropped=True),
    ErrorFrame("REPLAY_EXPIRED", "gone", 1, 5, 9),
]


@pytest.mark.parametrize("frame", CLIENT, ids=repr)
def test_a_frame_of_a_client_fits_the_schema_and_reads_back(frame):
    schema.validate("api/stream_frame", json.loads(encode(frame)))
    assert parse_client(encode(frame)) == frame


@pytest.mark.parametrize("frame", SERVER, ids=repr)
def test_a_frame_of_a_server_fits_the_schema_and_reads_back(frame):
    schema.validate("api/stream_frame", json.loads(encode(frame)))
    assert parse_server(encode(frame)) == frame


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "JSON"),
        ("hello", "expected"),
        ('{"op":"sub"', "expected"),
        ('{"op":"sub","op":"unsub"}', "duplicate key"),
        ("[]", 'is not of type "object"'),
        ("{}", "has op"),
        ('{"op":"subscribe"}', "/op"),
        ('{"op":"sub","filter":"x"}', "/filter"),
        ('{"op":"sub","refs":"refs/x"}', "/refs"),
        ('{"op":"sub","sinceSeq":-1}', "/sinceSeq"),
        ('{"op":"sub","sinceSeq":1.5}', "/sinceSeq"),
        ('{"op":"sub","sinceSeq":9007199254740993}', "integer beyond"),
        ('{"op":"credit"}', "credit"),
        ('{"op":"credit","credit":-5}', "/credit"),
        ('{"kind":"ack"}', "/kind"),
        ('{"op":"sub","topics":["\\ud800"]}', "surrogate"),
        (b'{"op":"sub"}', "binary"),
        ('{"op":"sub","refs":["' + "x" * 70_000 + '"]}', "bytes; at most"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_frame_of_a_client_is_refused_with_a_reason(data, reason):
    with pytest.raises(Invalid, match=re.escape(reason)):
        parse_client(data)


@pytest.mark.parametrize(
    "data",
    [
        "",
        "[]",
        b"{}",
        '{"kind":"ref.update"}',
        '{"kind":"ref.update","ref":"r","old":5,"new":null,"seq":1,"ts":""}',
        '{"kind":"bus.event","topic":"t","payload":[],"seq":1,"ts":""}',
        '{"kind":"bus.event","topic":"t","payload":{},"seq":-1,"ts":""}',
        '{"kind":"bus.event","topic":"t","payload":{},"seq":true,"ts":""}',
        '{"kind":"error"}',
        '{"kind":"ack","seq":1.5}',
    ],
)
def test_what_is_no_frame_of_a_server_is_refused(data):
    with pytest.raises(RopewalkError):
        parse_server(data)


def test_a_client_takes_an_ack_that_says_nothing():
    assert parse_server('{"kind":"ack"}') == Ack(None, None, None, "")


def test_numbers_a_client_may_not_append_still_travel():
    frame = BusEvent("imported", {"big": 2.0**60}, 1, TS)
    assert parse_server(encode(frame)) == frame


def test_over_two_proxies_the_origin_keeps_its_number():
    once = relayed(BusEvent("jobs", {"id": 7}, 9, TS), 123)
    twice = relayed(once, 45)
    assert (twice.seq, twice.seq_proxy, twice.seq_origin) == (45, 45, 9)
    schema.validate("api/stream_frame", json.loads(encode(twice)))


def test_origin_seq_travels_inside_the_payload():
    sent = encode(relayed(BusEvent("jobs", {"id": 7}, 9, TS), 123))
    assert json.loads(sent)["payload"] == {"id": 7, "seq_origin": 9}
    assert "seq_origin" not in json.loads(sent)
    read = parse_server(sent)
    assert isinstance(read, BusEvent)
    assert (read.payload, read.seq_origin) == ({"id": 7}, 9)


def test_application_seq_origin_is_not_the_proxys():
    assert BusEvent("jobs", {"seq_origin": 5}, 9, TS).seq_origin is None
