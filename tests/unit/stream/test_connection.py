"""One connection over one window: what is subscribed arrives once, in order, within credit, or a reason does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.kernel.schema import shipped as schema
from ropewalk.stream.core.access import NOBODY, parse_access
from ropewalk.stream.core.connection import Close, Connection
from ropewalk.stream.core.frames import (
    BusEvent,
    Credit,
    ErrorFrame,
    Ping,
    Pong,
    RefUpdate,
    Sub,
    Unsub,
    encode,
)
from ropewalk.stream.core.window import Window, WindowBounds

BASE = 5_000
NEARLY = [
    '{"op":"sub","refs":["refs/gatos/**"]}',
    '{"op":"sub","refs":["refs/gatos/x"],"topics":["a.b","**"],"sinceSeq":0}',
    '{"op":"sub","sinceSeq":5002}',
    '{"op":"sub","sinceSeq":9007199254740991}',
    '{"op":"unsub","refs":["refs/gatos/**"]}',
    '{"op":"credit","credit":9007199254740991}',
    '{"op":"credit","credit":0}',
    '{"kind":"pong","credit":3}',
    '{"kind":"ping"}',
    '{"op":"sub","topics":["' + "é" * 200 + '"]}',
]


@pytest.fixture
def window() -> Window:
    return Window("01HF", BASE)


def opened(window: Window, **options: Any) -> Connection:
    connection = Connection(window, now_ms=options.pop("now_ms", 0), **options)
    assert kinds(said(connection)) == ["ack"]
    return connection


def ended(connection: Connection) -> Close:
    """How it ended."""
    assert connection.closing is not None
    return connection.closing


def asked(kind: str, names: list[str]) -> str:
    """A subscription to refs, or to topics."""
    return encode(Sub(refs=tuple(names)) if kind == "refs" else Sub(topics=tuple(names)))


def said(connection: Connection, now_ms: int = 0) -> list[dict[str, Any]]:
    return [json.loads(text) for text in connection.take(now_ms, 10_000)]


def kinds(frames: list[dict[str, Any]]) -> list[str]:
    return [frame["kind"] for frame in frames]


def seqs(frames: list[dict[str, Any]]) -> list[int]:
    return [frame["seq"] - BASE for frame in frames if "ref" in frame or "topic" in frame]


def move(window: Window, ref: str = "refs/gatos/x", now_ms: int = 0) -> None:
    window.publish(RefUpdate(ref, None, "8b1c"), now_ms)


def post(window: Window, topic: str = "jobs/pending", now_ms: int = 0, **payload: Any) -> None:
    window.publish(BusEvent(topic, payload), now_ms)


def subscribe(connection: Connection, *refs: str, since: int | None = None, now_ms: int = 0) -> None:
    absolute = None if since is None else BASE + since
    connection.receive(encode(Sub(refs, (), absolute)), now_ms)


# S2 §1-§3


def test_the_first_frame_says_which_stream_it_is_and_where_it_stands(window):
    move(window)
    (ack,) = said(Connection(window, now_ms=1_000))
    assert ack == {
        "kind": "ack",
        "stream": "01HF",
        "seq": BASE + 1,
        "credit": 1000,
        "ts": "1970-01-01T00:00:01.000Z",
    }


def test_nothing_comes_before_something_is_asked_for(window):
    connection = opened(window)
    move(window)
    assert said(connection) == []
    assert not connection.has_more


def test_a_ref_and_a_topic_come_as_they_happen(window):
    connection = opened(window)
    connection.receive('{"op":"sub","refs":["refs/gatos/**"],"topics":["gatos.jobs.*"]}', 0)
    move(window, now_ms=1)
    post(window, now_ms=2, id=7)
    update, event = said(connection)
    assert update == {
        "kind": "ref.update",
        "ref": "refs/gatos/x",
        "old": None,
        "new": "8b1c",
        "seq": BASE + 1,
        "ts": "1970-01-01T00:00:00.001Z",
    }
    assert event == {
        "kind": "bus.event",
        "topic": "jobs/pending",
        "payload": {"id": 7},
        "seq": BASE + 2,
        "ts": "1970-01-01T00:00:00.002Z",
    }


def test_subscriptions_add_up_and_unsub_takes_out(window):
    connection = opened(window)
    subscribe(connection, "refs/gatos/a")
    subscribe(connection, "refs/gatos/b")
    for name in "abc":
        move(window, f"refs/gatos/{name}")
    assert [frame["ref"] for frame in said(connection)] == ["refs/gatos/a", "refs/gatos/b"]
    connection.receive(encode(Unsub(refs=("refs/gatos/a", "refs/gatos/never-asked-for"))), 0)
    for name in "abc":
        move(window, f"refs/gatos/{name}")
    assert [frame["ref"] for frame in said(connection)] == ["refs/gatos/b"]


def test_a_ref_two_patterns_match_comes_once(window):
    connection = opened(window)
    subscribe(connection, "refs/gatos/**", "refs/gatos/x")
    move(window)
    assert seqs(said(connection)) == [1]


@pytest.mark.parametrize("kind", ["refs", "topics"])
def test_twenty_patterns_fit_and_the_twenty_first_ends_the_connection(window, kind):
    connection = opened(window)
    names = [f"refs/gatos/n{at}" if kind == "refs" else f"n{at}" for at in range(21)]
    for at in range(0, 20, 10):
        connection.receive(asked(kind, names[at : at + 10]), 0)
    connection.receive(asked(kind, names[:20]), 0)  # the same again are no more
    assert said(connection) == []
    connection.receive(asked(kind, [names[20]]), 0)
    (error,) = said(connection)
    assert error["code"] == "INVALID_SUB"
    assert "21" in error["message"]
    assert ended(connection).code == 1008


@pytest.mark.parametrize(
    "data",
    ["hello", '{"op":"subscribe"}', '{"op":"sub","op":"sub"}', '{"op":"sub","refs":["heads"]}', b"{}"],
    ids=repr,
)
def test_a_protocol_error_closes_with_1008_and_the_last_frame_says_why(window, data):
    connection = opened(window)
    connection.receive(data, 0)
    frames = said(connection)
    assert kinds(frames) == ["error"]
    assert frames[0]["code"] == "INVALID_SUB"
    assert frames[0]["message"]
    assert ended(connection).code == 1008
    assert len(ended(connection).reason.encode()) <= 123
    move(window)
    connection.receive('{"op":"sub","refs":["refs/gatos/**"]}', 0)
    assert said(connection) == []
    assert connection not in window.readers


# S2 §4 and §5


def test_since_seq_sends_what_was_missed_then_what_comes(window):
    for _ in range(5):
        move(window)
    connection = opened(window)
    subscribe(connection, "refs/gatos/**", since=2)
    assert seqs(said(connection)) == [3, 4, 5]
    move(window)
    assert seqs(said(connection)) == [6]


def test_since_seq_where_the_stream_stands_misses_nothing(window):
    move(window)
    connection = opened(window)
    move(window)
    subscribe(connection, "refs/gatos/**", since=1)
    assert seqs(said(connection)) == [2]


@pytest.mark.parametrize(("moves", "kept"), [(3, (1, 3)), (1_200, (201, 1_200))])
def test_nought_asks_for_all_that_is_kept(window, moves, kept):
    for _ in range(moves):
        move(window)
    connection = opened(window)
    connection.receive(encode(Sub(refs=("refs/gatos/**",), since_seq=0)), 0)
    assert seqs(said(connection)) == list(range(kept[0], kept[1] + 1))


def test_beyond_the_window_replay_expired_then_live(window):
    for _ in range(1_200):
        move(window)
    connection = opened(window)
    subscribe(connection, "refs/gatos/**", since=199)
    error, *kept = said(connection)
    assert (error["code"], error["missingSeq"], error["oldestSeq"], error["seq"]) == (
        "REPLAY_EXPIRED",
        BASE + 200,
        BASE + 201,
        BASE + 200,
    )
    assert [frame["seq"] for frame in kept if frame["kind"] == "ref.update"] == [
        *range(BASE + 201, BASE + 1_201)
    ]  # what is still kept is not skipped
    connection.receive('{"op":"credit","credit":10}', 0)
    move(window)
    (frame,) = (each for each in said(connection) if each["kind"] == "ref.update")
    assert "199" not in error["message"]
    assert "200" in error["message"]
    assert frame["seq"] == BASE + 1_201
    assert connection.closing is None


def test_the_whole_window_can_be_caught_up(window):
    for _ in range(1_200):
        move(window)
    connection = opened(window)
    subscribe(connection, "refs/gatos/**", since=200)
    assert seqs(said(connection)) == list(range(201, 1_201))


def test_frames_older_than_ten_minutes_are_not_sent_again(window):
    move(window, now_ms=0)
    move(window, now_ms=500_000)
    connection = opened(window, now_ms=599_999)
    subscribe(connection, "refs/gatos/**", since=0, now_ms=599_999)
    assert seqs(said(connection, 599_999)) == [1, 2]
    late = opened(window, now_ms=600_000)
    subscribe(late, "refs/gatos/**", since=0, now_ms=600_000)
    error, *kept = said(late, 600_000)
    assert (error["code"], error["oldestSeq"]) == ("REPLAY_EXPIRED", BASE + 2)
    assert seqs(kept) == [2]


def test_a_number_of_an_earlier_run_is_told_from_one_of_this():
    earlier = Window("run-1", 1_000)
    for _ in range(50):
        earlier.publish(RefUpdate("refs/gatos/x", None, "8b1c"), 0)
    later = Window("run-2", 2_000)
    for _ in range(100):
        later.publish(RefUpdate("refs/gatos/x", None, "8b1c"), 0)
    connection = Connection(later, now_ms=0)
    connection.receive(encode(Sub(("refs/gatos/**",), (), earlier.seq)), 0)
    _, error, *kept = said(connection)
    assert (error["code"], error["seq"]) == ("REPLAY_EXPIRED", 2_000)
    assert len(kept) == 100


def test_a_number_ahead_of_the_stream_is_expired_and_live_frames_come(window):
    connection = opened(window)
    subscribe(connection, "refs/gatos/**", since=9)
    move(window)
    error, frame = said(connection)
    assert error["code"] == "REPLAY_EXPIRED"
    assert frame["seq"] == BASE + 1


def test_a_later_sub_does_not_make_numbers_fall(window):
    connection = opened(window)
    move(window, "refs/gatos/b")
    subscribe(connection, "refs/gatos/a", since=0)
    move(window, "refs/gatos/a")
    assert seqs(said(connection)) == [2]
    subscribe(connection, "refs/gatos/b", since=0)
    (error,) = said(connection)
    assert (error["code"], error["oldestSeq"]) == ("REPLAY_EXPIRED", BASE + 3)
    assert "open another" in error["message"]
    move(window, "refs/gatos/b")
    assert seqs(said(connection)) == [3]


def test_a_later_sub_may_catch_up_where_nothing_later_was_sent(window):
    connection = opened(window)
    subscribe(connection, "refs/gatos/a")
    move(window, "refs/gatos/b")
    assert said(connection) == []
    subscribe(connection, "refs/gatos/b", since=0)
    assert seqs(said(connection)) == [1]


def test_a_pattern_asked_for_now_brings_nothing_from_before(window):
    connection = opened(window)
    subscribe(connection, "refs/gatos/a")
    move(window, "refs/gatos/b")
    move(window, "refs/gatos/a")
    subscribe(connection, "refs/gatos/b")
    move(window, "refs/gatos/b")
    assert seqs(said(connection)) == [2, 3]


# S2 §6


def test_denied_name_refused_once_others_kept(window):
    access = parse_access({"refs": {"deny": ["refs/gatos/audit/**"]}, "topics": {"deny": ["payroll.**"]}})
    connection = opened(window, access=access)
    sub = Sub(("refs/gatos/audit/x", "refs/gatos/open/**"), ("payroll.*", "jobs.*"))
    connection.receive(encode(sub), 0)
    connection.receive(encode(sub), 0)
    errors = said(connection)
    assert [(error["code"], error.get("ref") or error.get("topic")) for error in errors] == [
        ("POLICY_DENIED", "refs/gatos/audit/x"),
        ("POLICY_DENIED", "payroll.*"),
    ]
    assert all(error["dropped"] for error in errors)
    for ref in ("refs/gatos/audit/x", "refs/gatos/open/x"):
        move(window, ref)
    post(window, "payroll/march")
    post(window)
    assert [frame.get("ref") or frame.get("topic") for frame in said(connection)] == [
        "refs/gatos/open/x",
        "jobs/pending",
    ]
    assert connection.closing is None


def test_who_asks_for_much_learns_once_that_some_of_it_is_withheld(window):
    access = parse_access({"refs": {"deny": ["refs/gatos/audit/**"]}})
    connection = opened(window, access=access)
    subscribe(connection, "refs/gatos/**")
    assert said(connection) == []
    for _ in range(3):
        connection.withhold("ref", "refs/gatos/audit/secret-name")
    (error,) = said(connection)
    assert (error["code"], error["ref"]) == ("POLICY_DENIED", "refs/gatos/**")
    assert "secret-name" not in error["message"]
    assert "dropped" not in error


def test_rules_that_became_stricter_also_hold_for_frames_of_before(window):
    move(window, "refs/gatos/a")
    connection = opened(window)
    connection.set_access(NOBODY)
    subscribe(connection, "refs/gatos/**", since=0)
    assert [frame for frame in said(connection) if frame["kind"] == "ref.update"] == []


def test_a_client_that_tries_a_thousand_forbidden_names_is_turned_away(window):
    connection = opened(window, access=parse_access({"topics": {"allow": []}}))
    for at in range(0, 1_020, 20):
        connection.receive(encode(Sub(topics=tuple(f"n{at + each}" for each in range(20)))), 0)
        said(connection)
    assert ended(connection).code == 1008


# S2 §7


def test_a_ping_comes_every_thirty_seconds(window):
    connection = opened(window)
    assert connection.due_ms == 30_000
    assert said(connection, 29_999) == []
    assert said(connection, 30_000) == [{"kind": "ping"}]
    connection.receive(encode(Pong()), 31_000)
    assert connection.due_ms == 60_000
    assert said(connection, 60_000) == [{"kind": "ping"}]


def test_no_answer_within_ten_seconds_closes_the_connection(window):
    connection = opened(window)
    said(connection, 30_000)
    assert connection.due_ms == 40_000
    assert said(connection, 39_999) == []
    assert connection.closing is None
    said(connection, 40_000)
    assert (ended(connection).code, ended(connection).reason) == (1008, "pong timeout")


def test_other_talk_does_not_stand_for_an_answer(window):
    connection = opened(window)
    said(connection, 30_000)
    subscribe(connection, "refs/gatos/**", now_ms=35_000)
    said(connection, 40_000)
    assert ended(connection).reason == "pong timeout"


def test_a_ping_of_the_client_is_answered(window):
    connection = opened(window)
    connection.receive(encode(Ping()), 0)
    assert said(connection) == [{"kind": "pong"}]


def flood(window: Window, count: int, now_ms: int = 0) -> None:
    for _ in range(count):
        move(window, now_ms=now_ms)


def test_without_an_answer_no_more_than_the_window_is_outstanding():
    window = Window("01HF", BASE, WindowBounds(frames_max=5_000))
    connection = opened(window)
    subscribe(connection, "refs/gatos/**")
    flood(window, 3_000)
    frames = said(connection)
    updates = [frame for frame in frames if frame["kind"] == "ref.update"]
    assert len(updates) == 1_000
    assert [frame.get("credit") for frame in updates[-101:]] == list(range(100, -1, -1))
    assert "credit" not in updates[-102]
    assert frames[-1] == {"kind": "ping", "credit": 0}
    assert said(connection) == []


def test_a_pong_says_that_all_before_the_ping_was_taken():
    window = Window("01HF", BASE, WindowBounds(frames_max=5_000))
    connection = opened(window)
    subscribe(connection, "refs/gatos/**")
    flood(window, 2_500)
    got = seqs(said(connection))
    while connection.has_more:
        connection.receive(encode(Pong()), 0)
        got += seqs(said(connection))
    assert got == list(range(1, 2_501))


def test_a_client_that_counts_its_credit_gets_what_it_grants():
    window = Window("01HF", BASE, WindowBounds(frames_max=5_000))
    connection = opened(window)
    subscribe(connection, "refs/gatos/**")
    flood(window, 2_000)
    said(connection)
    connection.receive(encode(Credit(3)), 0)
    assert len(seqs(said(connection))) == 3
    connection.receive(encode(Pong()), 0)  # the answer to the ping; this client speaks for itself
    assert said(connection) == []
    connection.receive(encode(Pong(2)), 0)
    assert len(seqs(said(connection))) == 2
    connection.receive(encode(Credit(10**9)), 0)
    assert connection.credit == 1_000


def test_stalled_connection_pinged_then_closed():
    window = Window("01HF", BASE, WindowBounds(frames_max=5_000))
    connection = opened(window)
    subscribe(connection, "refs/gatos/**")
    flood(window, 1_500)
    said(connection)
    pings = 0
    for now_ms in range(1_000, 30_000, 1_000):
        pings += said(connection, now_ms).count({"kind": "ping", "credit": 0})
        assert connection.closing is None
    assert pings == 5
    said(connection, 30_000)
    assert ended(connection).code == 1001


def test_who_comes_back_from_a_stall_has_time_to_answer_old_pings():
    window = Window("01HF", BASE, WindowBounds(frames_max=5_000))
    connection = opened(window)
    subscribe(connection, "refs/gatos/**")
    flood(window, 1_500)
    said(connection)
    said(connection, 20_000)
    connection.receive(encode(Credit(100)), 21_000)
    assert len(seqs(said(connection, 21_000))) == 100
    assert connection.closing is None


def test_reader_missing_a_frame_is_closed(window):
    slow, quiet = opened(window), opened(window)
    subscribe(slow, "refs/gatos/**")
    subscribe(quiet, "refs/gatos/other")
    flood(window, 1_000)
    assert slow.closing is None
    move(window, "refs/gatos/other")
    assert (ended(slow).code, ended(slow).reason[:11]) == (1008, "slow reader")
    (error,) = said(slow)
    assert (error["code"], error["missingSeq"]) == ("SLOW_READER", BASE + 1)
    assert quiet.closing is None
    assert seqs(said(quiet)) == [1_001]


def test_answers_nobody_takes_end_the_connection(window):
    connection = Connection(window, now_ms=0)
    for _ in range(300):
        connection.receive(encode(Ping()), 0)
    assert connection.closing is not None
    assert len(said(connection)) <= 258


def test_trouble_with_a_topic_is_told_to_its_readers(window):
    reader, other = opened(window), opened(window)
    reader.receive('{"op":"sub","topics":["jobs.*"]}', 0)
    other.receive('{"op":"sub","topics":["governance"]}', 0)
    for connection in (reader, other):
        connection.warn(ErrorFrame("HISTORY_REWRITTEN", "jobs/pending", topic="jobs/pending"))
    assert [frame["code"] for frame in said(reader)] == ["HISTORY_REWRITTEN"]
    assert said(other) == []


def test_lasting_trouble_reported_to_latecomers(window):
    for code in ("BROKEN_LINK", "HISTORY_REWRITTEN"):
        window.trouble(ErrorFrame(code, "why", topic="jobs/" + code.lower()))
    late = opened(window)
    late.receive('{"op":"sub","topics":["jobs.*"]}', 0)
    assert [frame["code"] for frame in said(late)] == ["BROKEN_LINK", "HISTORY_REWRITTEN"]
    other = opened(window, access=parse_access({"topics": {"deny": ["jobs.*"]}}))
    other.receive('{"op":"sub","topics":["**"]}', 0)
    assert said(other) == []
    for topic in list(window.troubles):
        window.calm(topic)
    post(window)
    later = opened(window)
    later.receive('{"op":"sub","topics":["jobs.*"]}', 0)
    assert said(later) == []


def test_returning_reader_learns_of_rewrite(window):
    post(window)
    window.trouble(ErrorFrame("HISTORY_REWRITTEN", "why", topic="jobs/pending"))
    window.calm("jobs/pending")
    post(window)
    back = opened(window)
    back.receive(encode(Sub((), ("jobs.*",), BASE + 1)), 0)
    assert kinds(said(back)) == ["error", "bus.event"]
    there = opened(window)
    there.receive(encode(Sub((), ("jobs.*",), BASE + 2)), 0)
    assert said(there) == []


def test_troubles_are_remembered_within_bounds(window):
    for n in range(1_000):
        window.trouble(ErrorFrame("BROKEN_LINK", "why", topic=f"jobs/{n}"))
    late = opened(window)
    late.receive('{"op":"sub","topics":["jobs.*"]}', 0)
    told = said(late)
    assert late.closing is None
    assert told[-1]["topic"] == "jobs/999"


@given(st.lists(st.text(max_size=40) | st.binary(max_size=20) | st.sampled_from(NEARLY), max_size=12))
@settings(deadline=None, max_examples=200)
def test_any_client_input_gives_frames_and_reason(messages):
    window = Window("01HF", BASE)
    connection = Connection(window, now_ms=0, access=parse_access({"topics": {"deny": ["a.**"]}}))
    for message in messages:
        move(window)
        connection.receive(message, 0)
        for frame in said(connection):
            schema.validate("api/stream_frame", frame)
        if connection.closing is not None:
            assert ended(connection).code == 1008
            assert 0 < len(ended(connection).reason.encode()) <= 123
