"""A proxy between an origin and its clients, without sockets: numbers, credit, catching up, and what is told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import Invalid, RangeExceeded, RopewalkError, Usage
from ropewalk.kernel.schema import shipped as schema
from ropewalk.stream.core.access import parse_access
from ropewalk.stream.core.connection import Connection, StreamLimits
from ropewalk.stream.core.frames import BusEvent, Credit, RefUpdate, Sub, Unsub, encode, parse_server
from ropewalk.stream.core.window import PROXY_BOUNDS, Window, WindowBounds
from ropewalk.stream.proxy.client import ATTEMPTS_MAX, FETCH_MS, CatchUp, ProxyConnection
from ropewalk.stream.proxy.proxy import HOPS_MAX, MISS_TOPIC, MISSES_MAX, Proxy

ORIGIN_BASE = 7_000
PROXY_BASE = 50_000
TS = "2026-01-02T03:04:05.000Z"


class Hop:
    """An origin and a proxy with a line between them that delivers when told to."""

    def __init__(
        self, *, origin_bounds: WindowBounds | None = None, limits: StreamLimits | None = None, **options: Any
    ) -> None:
        self.origin = Window("origin-1", ORIGIN_BASE, origin_bounds or WindowBounds())
        self.limits = limits or StreamLimits()
        self.now_ms = 0
        self.proxy = Proxy("proxy-1", PROXY_BASE, limits=self.limits, **options)
        self.link()

    def link(self) -> None:
        """A new connection of the proxy to the origin."""
        self.upstream = Connection(self.origin, now_ms=self.now_ms, limits=self.limits)
        self.proxy.connected()
        self.flow()

    def flow(self) -> None:
        """Let both sides send what they have, as long as the proxy reads."""
        moved = True
        while moved:
            moved = False
            for text in self.proxy.outgoing():
                self.upstream.receive(text, self.now_ms)
                moved = True
            while self.proxy.reading:
                texts = self.upstream.take(self.now_ms, 1)
                if not texts:
                    break
                for text in texts:
                    self.proxy.receive(text, self.now_ms)
                    moved = True

    def restart(self) -> None:
        """The origin dies and another run of it begins."""
        self.origin = Window("origin-2", ORIGIN_BASE * 2)
        self.link()

    def move(self, *names: str) -> None:
        for name in names:
            self.origin.publish(RefUpdate(f"refs/gatos/{name}", None, "8b1c"), self.now_ms)
            self.flow()

    def client(self, *refs: str, since: int | None = None) -> ProxyConnection:
        connection = self.proxy.connect(self.now_ms)
        if refs:
            subscribe(connection, *refs, since=since)
            self.flow()
        return connection

    def fetch(self, catch_up: CatchUp, *, limit: int = 10_000) -> None:
        """Give a catch-up a connection of its own, to its end."""
        side = Connection(self.origin, now_ms=self.now_ms, limits=self.limits)
        catch_up.connected()
        for _ in range(limit):
            for text in catch_up.outgoing():
                side.receive(text, self.now_ms)
            texts = side.take(self.now_ms, 1) if catch_up.reading else []
            for text in texts:
                catch_up.receive(text, self.now_ms)
            if catch_up.ended or not (texts or catch_up._wanted):
                return


def subscribe(connection: Connection, *refs: str, since: int | None = None, now_ms: int = 0) -> None:
    connection.receive(encode(Sub(refs, (), None if since is None else PROXY_BASE + since)), now_ms)


def said(connection: Connection, now_ms: int = 0) -> list[dict[str, Any]]:
    frames = [json.loads(text) for text in connection.take(now_ms, 10_000)]
    for frame in frames:
        schema.validate("api/stream_frame", frame)
    return frames


def numbers(frames: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [
        (frame["seq"] - PROXY_BASE, frame["seq_origin"] - ORIGIN_BASE) for frame in frames if "ref" in frame
    ]


def errors(frames: list[dict[str, Any]]) -> list[str]:
    return [frame["code"] for frame in frames if frame["kind"] == "error"]


# Numbers (federation §1)


def test_frame_carries_proxy_and_origin_numbers():
    hop = Hop()
    client = hop.proxy.connect(0)
    client.receive('{"op":"sub","refs":["refs/**"],"topics":["**"]}', 0)
    hop.move("x")
    hop.origin.publish(BusEvent("jobs/pending", {"id": 7}, about={"ulid": "01HF"}), 0)
    hop.flow()
    _, update, event = said(client)
    assert (update["seq"], update["seq_proxy"], update["seq_origin"]) == (50_001, 50_001, 7_001)
    assert (event["seq"], event["seq_proxy"], event["payload"]) == (
        50_002,
        50_002,
        {"id": 7, "seq_origin": 7_002},
    )
    assert event["ulid"] == "01HF"


@pytest.mark.parametrize("own", [3, "three", None, {"a": 1}])
def test_proxy_keeps_a_payload_member_seq_origin(own):
    hop = Hop()
    second = Proxy("proxy-2", 90_000)
    client, last = hop.proxy.connect(0), second.connect(0)
    for each in (client, last):
        each.receive('{"op":"sub","topics":["**"]}', 0)
    hop.origin.publish(BusEvent("jobs", {"id": 7, "seq_origin": own}), 0)
    hop.flow()
    texts = client.take(0)
    for text in texts:
        second.receive(text, 0)
    for frame in (json.loads(texts[-1]), said(last)[-1]):
        schema.validate("api/stream_frame", frame)
        assert frame["payload"] == {"id": 7, "seq_origin": own}
        assert frame["seq_origin"] == 7_001
        read = parse_server(json.dumps(frame))
        assert isinstance(read, BusEvent)
        assert (read.payload, read.seq_origin) == ({"id": 7, "seq_origin": own}, 7_001)


def test_proxy_denies_only_what_was_denied():
    hop = Hop()
    hop.upstream = Connection(
        hop.origin, now_ms=0, access=parse_access({"refs": {"deny": ["refs/gatos/secret/**"]}})
    )
    hop.proxy.connected()
    hop.flow()
    allowed, broad, exact = (hop.client(name) for name in ("refs/gatos/x", "refs/**", "refs/gatos/secret/y"))
    assert errors(said(exact)) == ["POLICY_DENIED"]  # the upstream was asked for it by name
    hop.upstream.withhold("ref", "refs/gatos/secret/z")  # something hidden happens that ** matches
    hop.move("x")
    hop.flow()
    (denied,) = (frame for frame in said(broad) if frame["kind"] == "error")
    assert (denied["code"], denied["ref"], denied.get("dropped")) == ("POLICY_DENIED", "refs/**", None)
    frames = said(allowed)
    assert errors(frames) == []
    assert len(numbers(frames)) == 1
    later = hop.client("refs/gatos/x")
    assert errors(said(later)) == []


def test_over_two_proxies_the_number_inside_stays_that_of_the_origin():
    hop = Hop()
    second = Proxy("proxy-2", 90_000)
    between = hop.proxy.connect(0)
    client = second.connect(0)
    for text in between.take(0):
        second.receive(text, 0)
    for text in second.outgoing():
        between.receive(text, 0)
    subscribe(client, "refs/**")
    hop.move("x")
    for text in between.take(0):
        second.receive(text, 0)
    (frame,) = [frame for frame in said(client) if frame["kind"] == "ref.update"]
    assert (frame["seq"], frame["seq_origin"]) == (90_001, 7_001)
    assert second.via == ("proxy-1", "origin-1")


def test_ack_names_the_streams_behind_the_proxy():
    ack = said(Hop().client())[0]
    assert (ack["stream"], ack["seq"], ack["via"]) == ("proxy-1", PROXY_BASE, ["origin-1"])


def test_two_clients_share_one_subscription():
    hop = Hop()
    one, two = hop.client("refs/gatos/**"), hop.client("refs/gatos/x")
    hop.move("x", "y", "x")
    assert numbers(said(one)) == [(1, 1), (2, 2), (3, 3)]
    assert numbers(said(two)) == [(1, 1), (3, 3)]
    assert hop.upstream.sent == 3


# Which patterns go upstream


def test_without_patterns_of_its_own_a_proxy_carries_everything():
    hop = Hop()
    assert hop.proxy.carried.texts("ref") == ("refs/**",)
    hop.move("x")
    assert numbers(said(hop.client("refs/gatos/x", since=0))) == [(1, 1)]


def test_new_pattern_asked_upstream_with_its_start():
    hop = Hop(refs=("refs/gatos/a/**",))
    client = hop.client("refs/gatos/b/*", "refs/gatos/a/x")
    hop.move("b/x", "c/x", "a/x")
    frames = said(client)
    assert errors(frames) == ["REPLAY_EXPIRED"]
    assert "refs/gatos/b/* from here on" in frames[1]["message"]
    assert [frame["ref"] for frame in frames if "ref" in frame] == ["refs/gatos/b/x", "refs/gatos/a/x"]
    assert hop.proxy.carried.texts("ref") == ("refs/gatos/a/**", "refs/gatos/b/*")


def test_second_client_of_pattern_asks_nothing():
    hop = Hop(topics=("jobs",))
    hop.client("refs/gatos/b/*")
    second = hop.client("refs/gatos/b/x")
    hop.move("b/x")
    assert errors(frames := said(second)) == []
    assert numbers(frames) == [(1, 1)]
    assert len(hop.proxy.carried.texts("ref")) == 1


def test_history_before_pattern_is_expired():
    hop = Hop(refs=("refs/gatos/a/**",))
    hop.move("a/1", "a/2")
    hop.client("refs/gatos/b/*")
    client = hop.client("refs/gatos/b/x", since=1)
    assert "only since" in said(client)[1]["message"]


def test_pattern_lost_with_its_link_is_asked_again():
    hop = Hop(refs=("refs/gatos/a/**",))
    client = hop.proxy.connect(0)
    subscribe(client, "refs/gatos/b/*")
    hop.link()  # what was to be said on the old one is gone
    hop.move("b/x")
    assert errors(frames := said(client)) == ["REPLAY_EXPIRED"]
    assert [frame["ref"] for frame in frames if "ref" in frame] == ["refs/gatos/b/x"]


def test_a_client_does_not_wait_for_a_pattern_it_has_taken_back():
    hop = Hop(refs=("refs/gatos/a/**",))
    client = hop.proxy.connect(0)
    subscribe(client, "refs/gatos/a/*", "refs/gatos/b/*")
    client.receive(encode(Unsub(("refs/gatos/b/*",))), 0)
    hop.proxy.connected()  # whatever was asked, no answer comes
    hop.proxy.window.relay(RefUpdate("refs/gatos/a/x", None, "8b1c", 1, TS), 0)
    assert [frame["ref"] for frame in said(client) if "ref" in frame] == ["refs/gatos/a/x"]


def test_pattern_over_upstream_limit_refused_alone():
    hop = Hop(refs=tuple(f"refs/gatos/{at}" for at in range(19)))
    first = hop.client("refs/gatos/last")
    second = hop.client("refs/gatos/too-many", "refs/gatos/3")
    hop.move("last", "too-many", "3")
    assert [frame["ref"] for frame in said(first) if "new" in frame] == ["refs/gatos/last"]
    frames = said(second)
    assert errors(frames) == ["PROXY_FULL"]
    assert [frame["ref"] for frame in frames if "new" in frame] == ["refs/gatos/3"]
    assert second.closing is None


def test_a_pattern_nobody_wants_any_more_makes_room():
    hop = Hop(refs=tuple(f"refs/gatos/{at}" for at in range(19)))
    first = hop.client("refs/gatos/last")
    first.receive(encode(Unsub(("refs/gatos/last",))), 0)
    assert errors(said(hop.client("refs/gatos/newer"))) == ["REPLAY_EXPIRED"]
    assert "refs/gatos/newer" in hop.proxy.carried.texts("ref")
    assert {key[1] for key in hop.upstream._subscriptions} == set(hop.proxy.carried.texts("ref"))


def test_a_pattern_nobody_wants_stays_as_long_as_its_frames_are_kept():
    hop = Hop(topics=("jobs",))
    hop.client("refs/gatos/x").leave()
    hop.proxy.tick(PROXY_BOUNDS.age_ms_max - 1)
    assert hop.proxy.carried.texts("ref") == ("refs/gatos/x",)
    hop.proxy.tick(PROXY_BOUNDS.age_ms_max)
    hop.flow()
    assert hop.proxy.carried.texts("ref") == ()
    assert ("ref", "refs/gatos/x") not in hop.upstream._subscriptions


def test_more_patterns_than_an_upstream_takes_are_refused_at_once():
    with pytest.raises(RangeExceeded, match="more than 20 topic patterns"):
        Proxy("proxy-1", topics=tuple(f"t{at}" for at in range(21)))


def test_upstream_denial_reported_also_later():
    hop = Hop(refs=("refs/gatos/secret/**",))
    hop.upstream = Connection(
        hop.origin, now_ms=0, access=parse_access({"refs": {"deny": ["refs/gatos/secret/**"]}})
    )
    hop.proxy.connected()
    early = hop.client("refs/gatos/secret/x")
    assert errors(said(early)) == ["POLICY_DENIED"]
    assert errors(said(hop.client("refs/gatos/secret/y"))) == ["POLICY_DENIED"]
    assert errors(said(hop.client("refs/gatos/open"))) == ["REPLAY_EXPIRED"]


def test_trouble_with_a_topic_is_passed_on():
    hop = Hop()
    client = hop.proxy.connect(0)
    client.receive('{"op":"sub","topics":["jobs.*"]}', 0)
    assert hop.proxy.receive('{"kind":"error","code":"HISTORY","message":"torn","topic":"jobs/a"}', 0) == []
    assert errors(said(client)) == ["HISTORY"]
    (link,) = hop.proxy.receive('{"kind":"error","code":"INVALID_SUB","message":"no"}', 0)
    assert link.code == "INVALID_SUB"


# Credit (federation §1)


SMALL = StreamLimits(outstanding_max=10)


def test_the_upstream_gets_no_credit_for_what_no_client_has_taken():
    hop = Hop(limits=SMALL)
    client = hop.client("refs/**")
    hop.move(*"abcdefghijklmnopqrst")
    assert (hop.upstream.sent, hop.upstream.credit, hop.proxy.reading) == (10, 0, False)
    assert len(numbers(said(client))) == 10  # taken: the buffer is drained, credit goes upstream
    hop.flow()
    assert (hop.upstream.sent, hop.proxy.reading) == (20, False)


def test_one_slow_client_does_not_hold_up_another():
    hop = Hop(limits=SMALL)
    slow, fast = hop.client("refs/**"), hop.client("refs/**")
    got = []
    for at in range(100):
        hop.move(f"n{at}")
        got += numbers(said(fast))
        fast.receive(encode(Credit(1)), 0)
    assert [number for number, _ in got] == list(range(1, 101))
    assert hop.upstream.sent == 100
    assert len(numbers(said(slow))) == 10  # its own credit, no more
    assert slow.has_more


def test_slow_client_reported_overrun_can_return():
    hop = Hop(limits=SMALL, bounds=WindowBounds(frames_max=20))
    slow, fast = hop.client("refs/**"), hop.client("refs/**")
    for at in range(40):
        hop.move(f"n{at}")
        said(fast)
        fast.receive(encode(Credit(1)), 0)
    assert errors(said(slow)) == ["SLOW_READER"]
    assert slow.closing is not None
    assert slow.closing.code == 1008
    assert len(hop.proxy.window) == 20


def test_stalled_client_pinged_with_zero_credit():
    hop = Hop(limits=SMALL)
    client = hop.client("refs/**")
    hop.move(*"abcdefghijkl")
    assert said(client)[-1] == {"kind": "ping", "credit": 0}
    assert said(client, 4_999) == []
    client.receive('{"kind":"ping"}', 5_000)
    assert {"kind": "ping", "credit": 0} in said(client, 5_000)
    assert {"kind": "ping", "credit": 0} in said(client, 10_000)


def test_closed_stalled_link_loses_nothing():
    hop = Hop(limits=SMALL)
    client = hop.client("refs/**")
    hop.move(*"abcdefghijklmnopqrstuvwxyz")
    hop.now_ms = 30_000
    hop.upstream.take(30_000)
    assert hop.upstream.closing is not None
    assert hop.upstream.closing.code == 1001
    got = numbers(said(client))
    assert hop.proxy.reading
    hop.link()
    while client.has_more or hop.upstream.has_more:
        client.receive(encode(Credit(5)), hop.now_ms)
        got += numbers(said(client, hop.now_ms))
        hop.flow()
    assert got == [(at, at) for at in range(1, 27)]


def test_frames_of_an_old_link_earn_no_credit_on_a_new_one():
    hop = Hop(limits=SMALL)
    client = hop.client("refs/**")
    hop.move(*"abcdefgh")
    hop.link()
    said(client)
    hop.flow()
    assert hop.upstream.credit == 10


def test_while_nobody_is_subscribed_the_window_is_filled_all_the_same():
    hop = Hop(limits=SMALL)
    hop.client()
    for at in range(50):
        hop.move(f"n{at}")
    assert (hop.upstream.sent, len(hop.proxy.window)) == (50, 50)


def test_the_last_subscriber_leaving_lets_the_link_go_on():
    hop = Hop(limits=SMALL)
    client = hop.client("refs/**")
    hop.move(*"abcdefghijklmnopqrst")
    assert not hop.proxy.reading
    client.leave()
    hop.flow()
    assert (hop.upstream.sent, hop.proxy.reading) == (20, True)


# Catching up (federation §2)


def test_replay_hit_answered_from_the_window():
    hop = Hop()
    hop.move(*"abcde")
    client = hop.client("refs/**", since=2)
    assert numbers(said(client)) == [(3, 3), (4, 4), (5, 5)]
    assert hop.proxy.catch_ups == []


def test_replay_miss_fetched_from_origin():
    hop = Hop(bounds=WindowBounds(frames_max=3))
    hop.origin.publish(RefUpdate("refs/other", None, "8b1c"), 0)  # so that the numbers are not in step
    hop.proxy.carried.named("ref", "refs/**")
    hop.move(*"abcdefgh")
    client = hop.client("refs/gatos/**", since=2)
    (catch_up,) = hop.proxy.catch_ups
    assert catch_up.outgoing() == []
    hop.fetch(catch_up)
    assert numbers(said(client)) == [(at, at) for at in range(3, 10)]
    assert catch_up.ended
    hop.move("i")
    assert numbers(said(client)) == [(10, 10)]
    assert not hop.proxy.misses


def test_the_origin_is_asked_by_its_own_number():
    hop = Hop(bounds=WindowBounds(frames_max=2), refs=("refs/gatos/**",))
    for _ in range(5):
        hop.origin.publish(BusEvent("noise", {}), 0)
    hop.move(*"abcd")  # 6 to 9 at the origin, 1 to 4 at the proxy
    client = hop.client("refs/gatos/**", since=1)
    (catch_up,) = hop.proxy.catch_ups
    catch_up.connected()
    catch_up.receive(encode_ack("origin-1"), 0)
    (sub,) = catch_up.outgoing()
    assert json.loads(sub)["sinceSeq"] == ORIGIN_BASE + 6
    hop.fetch(catch_up)
    assert numbers(said(client)) == [(2, 7), (3, 8), (4, 9)]


def test_too_many_patterns_are_refused_before_anything_is_looked_up():
    hop = Hop(bounds=WindowBounds(frames_max=2))
    hop.move(*"abcde")
    client = hop.client(*(f"refs/gatos/{at}" for at in range(41)), since=1)
    assert errors(said(client)) == ["INVALID_SUB"]
    assert client.closing is not None
    assert client.closing.code == 1008
    assert hop.proxy.catch_ups == []


def test_replay_of_unwanted_gap_asks_nothing():
    hop = Hop(bounds=WindowBounds(frames_max=2))
    hop.move("x", "x", "x", "y", "x")
    client = hop.client("refs/gatos/y", since=1)
    assert numbers(said(client)) == [(4, 4)]
    assert hop.proxy.catch_ups == []


def test_replay_missing_at_origin_is_reported():
    hop = Hop(bounds=WindowBounds(frames_max=3), origin_bounds=WindowBounds(frames_max=2))
    hop.move(*"abcdefgh")
    client = hop.client("refs/gatos/**", since=1)
    hop.fetch(hop.proxy.catch_ups[0])
    _, error, *frames = said(client)
    assert (error["code"], error["missingSeq"], error["oldestSeq"]) == ("REPLAY_EXPIRED", 50_002, 50_006)
    assert "Read the refs and topics themselves" in error["message"]
    assert frames == []
    hop.move("i")
    assert numbers(said(client)) == [(10, 9)]  # the miss has a number, too
    (miss,) = hop.proxy.misses
    assert miss.missing_seq == 50_002


def test_a_miss_is_published_to_who_subscribed_to_it():
    hop = Hop(bounds=WindowBounds(frames_max=3), origin_bounds=WindowBounds(frames_max=2))
    ops = hop.proxy.connect(0)
    ops.receive(encode(Sub((), ("stream.replay.*",))), 0)
    hop.move(*"abcdefgh")
    hop.client("refs/gatos/**", since=1)
    hop.fetch(hop.proxy.catch_ups[0])
    event = said(ops)[-1]
    assert event["topic"] == MISS_TOPIC
    assert event["payload"]["missingSeq"] == 50_002


def test_misses_over_sixty_a_minute_are_counted():
    hop = Hop()
    for _ in range(MISSES_MAX + 30):
        hop.client("refs/**", since=-1)
    assert len(hop.proxy.window) == MISSES_MAX
    hop.now_ms = 60_000
    hop.client("refs/**", since=-1).leave()
    subscribe(hop.proxy.connect(60_000), "refs/**", since=-1, now_ms=60_000)
    assert max(miss.untold for miss in hop.proxy.misses) >= 30


def test_frames_the_origin_passes_over_are_told_to_be_missing():
    hop = Hop(bounds=WindowBounds(frames_max=2))
    hop.move(*"abcde")
    client = hop.client("refs/**", since=0 + 1)
    (catch_up,) = hop.proxy.catch_ups
    catch_up.connected()
    catch_up.receive(encode_ack("origin-1"), 0)
    catch_up.receive(encode(RefUpdate("refs/gatos/c", None, "8b1c", ORIGIN_BASE + 3, TS)), 0)
    assert [frame.get("missingSeq") for frame in said(client) if frame["kind"] == "error"] == [50_002]


def test_another_run_of_the_origin_cannot_answer_for_the_old_one():
    hop = Hop(bounds=WindowBounds(frames_max=2))
    hop.move(*"abcde")
    client = hop.client("refs/**", since=1)
    (catch_up,) = hop.proxy.catch_ups
    catch_up.connected()
    catch_up.receive(encode_ack("origin-2"), 0)
    assert errors(said(client)) == ["REPLAY_EXPIRED"]


def test_catch_up_resumes_then_gives_up():
    hop = Hop(bounds=WindowBounds(frames_max=2))
    hop.move(*"abcde")
    client = hop.client("refs/**", since=0 + 1)
    (catch_up,) = hop.proxy.catch_ups
    catch_up.connected()
    catch_up.receive(encode_ack("origin-1"), 0)
    catch_up.receive(encode(RefUpdate("refs/gatos/b", None, "8b1c", ORIGIN_BASE + 2, TS)), 0)
    catch_up.dropped(0)
    hop.fetch(catch_up)
    assert numbers(said(client)) == [(2, 2), (3, 3), (4, 4), (5, 5)]

    late = hop.client("refs/**", since=2)
    catch_up = hop.proxy.catch_ups[-1]
    for _ in range(ATTEMPTS_MAX):
        catch_up.dropped(0)
    assert errors(said(late)) == ["REPLAY_EXPIRED"]


def test_a_catch_up_the_upstream_does_not_answer_ends_in_a_miss():
    hop = Hop(bounds=WindowBounds(frames_max=2))
    hop.move(*"abcde")
    client = hop.client("refs/**", since=1)
    hop.proxy.tick(FETCH_MS - 1)
    assert errors(said(client)) == []
    hop.proxy.tick(FETCH_MS)
    assert errors(said(client)) == ["REPLAY_EXPIRED"]
    assert hop.proxy.catch_ups == []


def test_a_catch_up_gives_the_upstream_credit_as_the_client_takes():
    hop = Hop(bounds=WindowBounds(frames_max=2), limits=SMALL)
    hop.move(*(f"n{at}" for at in range(60)))
    client = hop.client("refs/**", since=1)
    (catch_up,) = hop.proxy.catch_ups
    hop.fetch(catch_up, limit=200)
    assert len(catch_up.ready) == 10  # as far as credit goes
    assert len(numbers(said(client))) == 10


def test_frames_dropped_in_catch_up_are_fetched():
    hop = Hop(bounds=WindowBounds(frames_max=2))
    hop.move(*"abcde")
    client = hop.client("refs/**", since=1)
    hop.move(*"fgh")
    hop.fetch(hop.proxy.catch_ups[0])
    assert numbers(said(client)) == [(at, at) for at in range(2, 9)]


def test_notices_dropped_in_catch_up_are_sent():
    hop = Hop(bounds=WindowBounds(frames_max=2))
    hop.move(*"abcde")
    client = hop.client("refs/**", since=1)
    client.receive('{"op":"sub","topics":["**"]}', 0)
    hop.proxy.missed(7, "somebody else", 0)
    hop.move(*"fgh")
    hop.fetch(hop.proxy.catch_ups[0])
    (error,) = [frame for frame in said(client) if frame["kind"] == "error"]
    assert error["missingSeq"] == 50_002
    hop.move("i")
    assert [number for number, _ in numbers(said(client))] == [hop.proxy.window.seq - PROXY_BASE]


def test_a_proxy_keeps_ten_thousand_frames_or_fifteen_minutes():
    window = Proxy("proxy-1").window
    for at in range(10_050):
        window.relay(RefUpdate("refs/gatos/x", None, "8b1c", at + 1, TS), 0)
    assert len(window) == 10_000
    window.relay(RefUpdate("refs/gatos/x", None, "8b1c", 10_051, TS), 899_999)
    assert len(window) == 10_000
    window.prune(900_000)
    assert len(window) == 1


def test_a_client_that_goes_away_ends_its_catch_up():
    hop = Hop(bounds=WindowBounds(frames_max=2))
    hop.move(*"abcde")
    client = hop.client("refs/**", since=1)
    (catch_up,) = hop.proxy.catch_ups
    client.leave()
    assert catch_up.ended


# Gaps


def test_origin_restart_reported_in_place():
    hop = Hop()
    client = hop.client("refs/**")
    hop.move("a", "b")
    hop.restart()
    hop.move("c")
    frames = said(client)[1:]
    assert [frame.get("ref", frame.get("code")) for frame in frames] == [
        "refs/gatos/a",
        "refs/gatos/b",
        "REPLAY_EXPIRED",
        "refs/gatos/c",
    ]
    assert (frames[2]["missingSeq"], frames[2]["seq"]) == (50_003, 50_003)
    assert "began anew" in frames[2]["message"]
    assert client.credit == 997  # a notice costs none
    assert errors(said(hop.client("refs/**", since=1))) == ["REPLAY_EXPIRED"]
    assert errors(said(hop.client("refs/**", since=3))) == []


@pytest.mark.parametrize("later", ["", "efgh"])
def test_frames_before_restart_are_not_asked_for(later):
    hop = Hop(bounds=WindowBounds(frames_max=3))
    hop.move(*"abcd")
    hop.restart()
    hop.move(*later)
    told = errors(said(hop.client("refs/**", since=1)))
    assert set(told) == {"REPLAY_EXPIRED"}  # what was dropped, then the restart if it is still in the window
    assert hop.proxy.catch_ups == []


def test_upstream_missing_frames_is_recorded():
    hop = Hop(origin_bounds=WindowBounds(frames_max=2))
    client = hop.client("refs/**")
    hop.upstream.leave()
    for name in "abcde":
        hop.origin.publish(RefUpdate(f"refs/gatos/{name}", None, "8b1c"), 0)
    hop.link()
    assert errors(said(client)) == ["REPLAY_EXPIRED"]
    assert hop.proxy.misses[0].reason == "the upstream no longer keeps them"


def test_a_short_break_of_the_link_loses_nothing():
    hop = Hop()
    client = hop.client("refs/**")
    hop.move("a")
    for name in "bc":
        hop.origin.publish(RefUpdate(f"refs/gatos/{name}", None, "8b1c"), 0)
    hop.link()
    assert numbers(said(client)) == [(1, 1), (2, 2), (3, 3)]


def test_who_subscribed_before_the_upstream_was_reached_is_told():
    proxy = Proxy("proxy-1", PROXY_BASE)
    client = proxy.connect(0)
    subscribe(client, "refs/**")
    proxy.connected()
    proxy.receive(encode_ack("origin-1"), 0)
    assert errors(said(client)) == ["REPLAY_EXPIRED"]


# Loops and depth


def test_a_proxy_of_itself_is_refused():
    proxy = Proxy("proxy-1")
    with pytest.raises(Usage, match="a loop: proxy-1 leads back here"):
        proxy.receive(encode_ack("proxy-1"), 0)


def test_a_longer_loop_is_refused():
    with pytest.raises(Usage, match="proxy-2 → proxy-1"):
        Proxy("proxy-1").receive(encode_ack("proxy-2", ["proxy-1", "origin"]), 0)


def test_a_chain_that_is_too_long_is_refused():
    via = [f"p{at}" for at in range(HOPS_MAX)]
    Proxy("proxy-1").receive(encode_ack("p", via[1:]), 0)
    with pytest.raises(Usage, match="at most 8 may"):
        Proxy("proxy-1").receive(encode_ack("p", via), 0)


@pytest.mark.parametrize("text", ['{"kind":"ping"}', "[]", "{", '"ack"'])
def test_an_upstream_that_does_not_begin_with_ack_is_refused(text):
    with pytest.raises(Invalid):
        Proxy("proxy-1").receive(text, 0)


@pytest.mark.parametrize(
    "ack",
    [
        {"kind": "ack", "stream": "s" * 129},
        {"kind": "ack", "stream": "s", "via": ["v" * 129]},
        {"kind": "ack", "stream": ["s"], "seq": 1},
        {"kind": "ack", "stream": "s", "seq": "1"},
    ],
    ids=str,
)
def test_an_ack_that_no_sound_server_sends_is_refused(ack):
    with pytest.raises(Invalid):
        Proxy("proxy-1").receive(json.dumps(ack), 0)


def test_greedy_upstream_read_only_to_our_limit():
    proxy = Proxy("proxy-1", limits=SMALL)
    subscribe(proxy.connect(0), "refs/**")
    proxy.receive(json.dumps({"kind": "ack", "stream": "s", "seq": 0, "credit": 10**9}), 0)
    for at in range(10):
        assert proxy.reading
        proxy.receive(encode(RefUpdate("refs/gatos/x", None, "8b1c", at + 1, TS)), 0)
    assert not proxy.reading


def test_an_upstream_that_knows_only_the_frames_s2_shows_is_followed():
    proxy = Proxy("proxy-1", PROXY_BASE)
    proxy.receive('{"kind":"ack"}', 0)
    assert json.loads(proxy.outgoing()[0]) == {"op": "sub", "refs": ["refs/**"], "topics": ["**"]}
    client = proxy.connect(0)
    subscribe(client, "refs/**")
    proxy.receive(encode(RefUpdate("refs/gatos/x", None, "8b1c", 5, TS)), 0)
    assert [frame["seq_origin"] for frame in said(client) if "ref" in frame] == [5]


members: Any = st.dictionaries(
    st.sampled_from(
        ["kind", "stream", "seq", "ref", "old", "new", "ts", "topic", "payload", "credit", "code", "via"]
    ),
    st.one_of(
        st.sampled_from(
            ["ack", "ref.update", "bus.event", "ping", "pong", "error", "REPLAY_EXPIRED", "POLICY_DENIED"]
        ),
        st.none(),
        st.integers(-5, 10**17),
        st.text(max_size=8),
        st.lists(st.text(max_size=3), max_size=2),
        st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    ),
)


@given(
    st.lists(st.one_of(members.map(json.dumps), st.text(max_size=30), st.binary(max_size=10)), max_size=12)
)
@settings(deadline=None, max_examples=200)
def test_any_upstream_input_gives_sound_frames(texts):
    proxy = Proxy("proxy-1", PROXY_BASE)
    proxy.receive(encode_ack("origin-1"), 0)
    client = proxy.connect(0)
    client.receive('{"op":"sub","refs":["refs/**"],"topics":["**"]}', 0)
    for text in texts:
        try:
            proxy.receive(text, 0)
        except RopewalkError:
            proxy.connected()
            proxy.receive(encode_ack("origin-1"), 0)
    for sent in client.take(0, 1_000):
        assert json.loads(sent)["kind"] in {"ack", "ref.update", "bus.event", "error", "ping"}


def encode_ack(stream: str, via: list[str] | None = None) -> str:
    ack: dict[str, Any] = {"kind": "ack", "stream": stream, "seq": ORIGIN_BASE + 100, "credit": 1000}
    return json.dumps(ack if via is None else {**ack, "via": via})


# What the guide shows (federation §3)


def test_the_guide_draws_the_proxy_credit_a_hit_and_a_miss():
    guide = (Path(__file__).parents[3] / "docs" / "guide" / "live-stream.md").read_text(encoding="utf-8")
    (diagram,) = [
        part for part in guide.split("```") if part.startswith("mermaid") and "Federated Stream" in part
    ]
    people = re.findall(r"participant (\w+)", diagram)
    assert people == ["Client", "Proxy", "Stream"]
    assert re.search(r"Client->>Proxy: credit\n\s+Proxy->>Stream: credit", diagram)
    assert re.findall(r"\balt (.+)", diagram) == ["Replay hit", "Replay expired"]
    assert diagram.count("\n    end\n") == 2
