"""A server and a client over a line that breaks: whatever happens in whatever order, nothing is lost in silence."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.stream.core.connection import CONTROL_MAX, Connection, StreamLimits
from ropewalk.stream.core.frames import BusEvent, ErrorFrame
from ropewalk.stream.core.subscriber import Lost, Subscriber
from ropewalk.stream.core.window import Window, WindowBounds

BOUNDS = WindowBounds(frames_max=12, age_ms_max=60_000, bytes_max=4_000)
LIMITS = StreamLimits(outstanding_max=8)


class World:
    """One window, one client that comes back whenever its connection ends, and a line with texts under way."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.runs = 0
        self.published: dict[int, str] = {}  # what the client may see, by number
        self.client = Subscriber(topics=("jobs.*",))
        self.got: list[BusEvent | Lost] = []
        self.begin_server()
        self.connect()
        self.settle()

    def begin_server(self) -> None:
        self.runs += 1
        self.window = Window(f"run-{self.runs}", self.runs * 1_000_000, BOUNDS)

    def connect(self) -> None:
        self.connection = Connection(self.window, now_ms=self.now_ms, limits=LIMITS)
        self.client.connected()
        self.down: deque[str] = deque()
        self.sent_on_this = 0
        self.granted = LIMITS.outstanding_max
        self.last_seq = 0

    # What can happen

    def publish(self, topic: str, size: int, count: int) -> None:
        for _ in range(count):
            kept = self.window.publish(BusEvent(topic, {"text": "x" * size}), self.now_ms)
            if topic.startswith("jobs/"):
                self.published[kept.seq] = topic

    def serve(self, limit: int) -> None:
        """The server writes some frames."""
        for text in self.connection.take(self.now_ms, limit):
            self.down.append(text)
            self.check_frame(json.loads(text))

    def deliver(self, count: int) -> None:
        """Some texts arrive; the client reads, consumes and answers."""
        for _ in range(min(count, len(self.down))):
            for item in self.client.receive(self.down.popleft()):
                if isinstance(item, BusEvent | Lost):
                    self.got.append(item)
                if isinstance(item, BusEvent):
                    self.client.consumed(1)
                assert not isinstance(item, ErrorFrame) or item.code == "SLOW_READER", item
            self.answer()

    def answer(self) -> None:
        for text in self.client.outgoing():
            said = json.loads(text)
            self.granted += said.get("credit", 0)
            if said == {"kind": "pong"}:
                self.granted = 10**9  # it counts by pings; the test of one connection holds that rule
            self.connection.receive(text, self.now_ms)

    def cut(self) -> None:
        """The line breaks: what was under way is gone."""
        self.connection.leave()
        self.connect()

    def restart(self) -> None:
        self.begin_server()
        self.connect()

    def wait(self, ms: int) -> None:
        self.now_ms += ms

    # What must hold

    def check_frame(self, frame: dict[str, Any]) -> None:
        if frame["kind"] != "bus.event":
            return
        assert frame["seq"] > self.last_seq, "a number fell"
        assert self.published.get(frame["seq"]) == frame["topic"], "a frame nobody asked for"
        self.last_seq = frame["seq"]
        self.sent_on_this += 1
        assert self.sent_on_this <= self.granted, "more than the window is outstanding"

    def check(self) -> None:
        assert len(self.window) <= BOUNDS.frames_max
        assert len(self.connection._control) <= CONTROL_MAX + 1
        assert 0 <= self.connection.credit <= LIMITS.outstanding_max
        if self.connection.closing is not None:
            assert self.connection not in self.window.readers

    def settle(self) -> None:
        """Let everybody finish."""
        for _ in range(200):
            self.serve(100)
            if not self.down:
                if self.connection.closing is None:
                    return
                self.cut()
            self.deliver(100)
        raise AssertionError("they never finish")


actions = st.one_of(
    st.tuples(
        st.just("publish"),
        st.sampled_from(["jobs/a", "jobs/b", "other"]),
        st.sampled_from([0, 900]),
        st.integers(1, 14),
    ),
    st.tuples(st.just("serve"), st.integers(1, 10)),
    st.tuples(st.just("deliver"), st.integers(1, 10)),
    st.tuples(st.just("cut")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("wait"), st.sampled_from([1, 1_000, 9_000, 31_000])),
)


@given(st.lists(actions, max_size=80))
@settings(deadline=None, max_examples=300)
def test_every_frame_arrives_once_and_in_order_or_is_said_to_be_lost(done):
    lived(done)


def lived(done: list[tuple[Any, ...]]) -> World:
    """Return the world after these actions; every frame was delivered once and in order, or reported as lost."""
    world = World()
    start = world.window.base
    for name, *arguments in done:
        getattr(world, name)(*arguments)
        world.check()
    world.settle()
    world.check()

    at = start
    wanted = sorted(world.published)
    for item in world.got:
        if isinstance(item, Lost):
            assert item.seq >= at or item.reason == "restarted"
            at = max(at, item.seq)
            continue
        assert item.seq > at, "twice, or out of order"
        between = [seq for seq in wanted if at < seq < item.seq]
        assert not between, f"{between} were lost in silence"
        at = item.seq
    assert not [seq for seq in wanted if seq > at], "the last ones never came"
    return world
