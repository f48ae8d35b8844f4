"""An origin, a proxy and clients over lines that break: whatever happens, nothing is lost in silence."""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.stream.core.connection import Connection, StreamLimits
from ropewalk.stream.core.frames import BusEvent, ErrorFrame
from ropewalk.stream.core.subscriber import Lost, Subscriber
from ropewalk.stream.core.window import Window, WindowBounds
from ropewalk.stream.proxy.client import CatchUp
from ropewalk.stream.proxy.proxy import MISS_TOPIC, Proxy

ORIGIN_BOUNDS = WindowBounds(frames_max=14, age_ms_max=120_000)
PROXY_BOUNDS = WindowBounds(frames_max=9, age_ms_max=60_000)
PLACES_MAX = 40
LIMITS = StreamLimits(outstanding_max=5)
TOPICS = ("jobs/a", "jobs/b", "other")


class Line:
    """One connection to a server: what the server wrote and nobody has read yet."""

    def __init__(self, server: Connection) -> None:
        self.server = server
        self.down: deque[str] = deque()

    def write(self, now_ms: int, limit: int) -> bool:
        texts = self.server.take(now_ms, limit)
        self.down.extend(texts)
        return bool(texts)

    @property
    def over(self) -> bool:
        return self.server.closing is not None and not self.down and not self.server._control


class Client:
    """A client that reads its line, at its own pace, and comes back when it ends."""

    def __init__(self, world: World, pattern: str) -> None:
        self.world = world
        self.pattern = pattern
        self.subscriber = Subscriber(topics=(pattern,))
        self.got: list[int | Lost] = []
        self.connect()

    def connect(self) -> None:
        self.line = Line(self.world.proxy.connect(self.world.now_ms))
        self.subscriber.connected()
        self.last_seq = 0

    def cut(self) -> None:
        self.line.server.leave()
        self.connect()

    def read(self, count: int) -> bool:
        done = False
        for _ in range(min(count, len(self.line.down))):
            done = True
            for item in self.subscriber.receive(self.line.down.popleft()):
                if isinstance(item, BusEvent):
                    assert item.seq > self.last_seq, "the numbers of the proxy fell"
                    self.last_seq = item.seq
                    self.subscriber.consumed(1)
                    if item.topic != MISS_TOPIC:
                        assert item.seq_origin is not None
                        self.got.append(item.payload["n"])
                elif isinstance(item, Lost):
                    self.got.append(item)
                else:
                    assert isinstance(item, ErrorFrame)
                    assert item.code == "SLOW_READER", item
            for text in self.subscriber.outgoing():
                self.line.server.receive(text, self.world.now_ms)
        return done


class World:
    """Everything, and the time."""

    def __init__(self, carried: tuple[str, ...]) -> None:
        self.now_ms = 0
        self.origins = self.proxies = 0
        self.published: list[str] = []  # the topic of every message, in order
        self.carried = carried
        self.fetches: dict[CatchUp, Line] = {}
        self.begin_origin()
        self.begin_proxy()
        self.clients = [Client(self, "jobs.*"), Client(self, "**"), Client(self, "jobs.b")]
        self.settle()
        self.starts = [len(client.got) for client in self.clients]
        self.start = len(self.published)

    def begin_origin(self) -> None:
        self.origins += 1
        self.origin = Window(f"origin-{self.origins}", self.origins * 1_000_000, ORIGIN_BOUNDS)

    def begin_proxy(self) -> None:
        self.proxies += 1
        self.proxy = Proxy(
            f"proxy-{self.proxies}",
            self.proxies * 1_000_000_000,
            topics=self.carried,
            bounds=PROXY_BOUNDS,
            places_max=PLACES_MAX,
            limits=LIMITS,
        )
        self.fetches.clear()
        self.link()

    def link(self) -> None:
        self.line = Line(Connection(self.origin, now_ms=self.now_ms, limits=LIMITS))
        self.proxy.connected()

    # What can happen

    def publish(self, topic: str) -> None:
        self.origin.publish(BusEvent(topic, {"n": len(self.published)}), self.now_ms)
        self.published.append(topic)

    def up(self, count: int) -> bool:
        """The origin writes, the proxy reads and answers."""
        done = self.line.write(self.now_ms, count)
        for _ in range(count):
            if not self.proxy.reading or not self.line.down:
                break
            self.proxy.receive(self.line.down.popleft(), self.now_ms)
            done = True
        for text in self.proxy.outgoing():
            self.line.server.receive(text, self.now_ms)
            done = True
        return done

    def down(self, at: int, count: int) -> bool:
        """The proxy writes to a client, which reads some and answers."""
        client = self.clients[at]
        wrote = client.line.write(self.now_ms, count)
        return client.read(count) or wrote

    def fetch(self, count: int) -> bool:
        """Catch-ups go on, each on a line of its own."""
        done = False
        for catch_up in list(self.proxy.catch_ups):
            if catch_up.ended:
                continue
            if catch_up not in self.fetches:
                self.fetches[catch_up] = Line(Connection(self.origin, now_ms=self.now_ms, limits=LIMITS))
                catch_up.connected()
            line = self.fetches[catch_up]
            done |= line.write(self.now_ms, count)
            for _ in range(count):
                if not catch_up.reading or not line.down:
                    break
                catch_up.receive(line.down.popleft(), self.now_ms)
                done = True
            for text in catch_up.outgoing():
                line.server.receive(text, self.now_ms)
                done = True
            if line.over:
                self.cut_fetch(catch_up)
                done = True
        return done

    def cut_fetches(self) -> None:
        for catch_up in list(self.fetches):
            self.cut_fetch(catch_up)

    def cut_fetch(self, catch_up: CatchUp) -> None:
        self.fetches.pop(catch_up).server.leave()
        catch_up.dropped(self.now_ms)

    def cut_link(self) -> None:
        self.line.server.leave()
        self.link()

    def cut_client(self, at: int) -> None:
        self.clients[at].cut()

    def restart_origin(self) -> None:
        self.begin_origin()
        self.cut_link()
        self.cut_fetches()

    def restart_proxy(self) -> None:
        self.line.server.leave()
        self.begin_proxy()
        self.up(100)  # it listens once it is linked
        for client in self.clients:
            client.connect()

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.proxy.tick(self.now_ms)

    # What must hold

    def check(self) -> None:
        assert len(self.proxy.window) <= PROXY_BOUNDS.frames_max
        assert len(self.proxy.window._places) <= PLACES_MAX
        assert len(self.proxy._owed) <= LIMITS.outstanding_max
        for catch_up in self.proxy.catch_ups:
            assert len(catch_up.ready) <= LIMITS.outstanding_max
        for client in self.clients:
            assert 0 <= client.line.server.credit <= LIMITS.outstanding_max

    def settle(self) -> None:
        """Let everybody finish; time passes where nothing else does."""
        quiet = 0
        for _ in range(2_000):
            done = self.up(100)
            for at, client in enumerate(self.clients):
                if client.line.over:
                    client.cut()
                    done = True
                done |= self.down(at, 100)
            done |= self.fetch(100)
            if self.line.over and self.proxy.reading:
                self.link()
                done = True
            quiet = 0 if done else quiet + 1
            if quiet > 1:
                if not self.proxy.catch_ups and self.proxy.reading and not self._anything_left():
                    return
                self.wait(5_000)
                quiet = 0
        raise AssertionError("they never finish")

    def _anything_left(self) -> bool:
        return self.line.server.has_more or any(client.line.server.has_more for client in self.clients)

    def check_client(self, at: int) -> None:
        client = self.clients[at]
        matching = {
            "jobs.*": {"jobs/a", "jobs/b"},
            "**": set(TOPICS),
            "jobs.b": {"jobs/b"},
        }[client.pattern]
        wanted = [n for n, topic in enumerate(self.published) if n >= self.start and topic in matching]
        last, whole = self.start - 1, True
        for item in client.got[self.starts[at] :]:
            if isinstance(item, Lost):
                whole = False
                continue
            assert item > last, "twice, or out of order"
            skipped = [n for n in wanted if last < n < item]
            assert not whole or not skipped, f"{skipped} are missing, and nobody said so"
            last, whole = item, True
        left = [n for n in wanted if n > last]
        assert not whole or not left, f"{left} never came, and nobody said so"


actions = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from(TOPICS)),
    st.tuples(st.just("publish"), st.sampled_from(TOPICS)),
    st.tuples(st.just("up"), st.integers(1, 12)),
    st.tuples(st.just("down"), st.integers(0, 2), st.integers(1, 12)),
    st.tuples(st.just("fetch"), st.integers(1, 6)),
    st.tuples(st.just("cut_link")),
    st.tuples(st.just("cut_client"), st.integers(0, 2)),
    st.tuples(st.just("cut_fetches")),
    st.tuples(st.just("restart_origin")),
    st.tuples(st.just("restart_proxy")),
    st.tuples(st.just("wait"), st.sampled_from([1, 1_000, 9_000, 31_000])),
)


def lived(carried: tuple[str, ...], done: list[tuple[Any, ...]]) -> World:
    world = World(carried)
    for name, *arguments in done:
        getattr(world, name)(*arguments)
        world.check()
    world.settle()
    for topic in TOPICS:  # after all this, it works
        world.publish(topic)
        world.settle()
    world.check()
    for at in range(3):
        world.check_client(at)
        assert world.clients[at].got[-1] == len(world.published) - (2 if at == 0 or at == 2 else 1)
    return world


@given(st.lists(actions, max_size=70))
@settings(deadline=None, max_examples=200)
def test_proxy_delivers_once_in_order_or_says_lost(done):
    lived((), done)


@given(st.lists(actions, max_size=50))
@settings(deadline=None, max_examples=80)
def test_so_it_is_where_patterns_are_asked_of_the_upstream_one_by_one(done):
    lived(("jobs.a",), done)


def test_a_catch_up_from_the_origin_happens_in_such_worlds():
    done: list[tuple[Any, ...]] = [("publish", "jobs/a"), ("up", 10), ("down", 0, 10)]
    done += [step for _ in range(12) for step in (("publish", "jobs/a"), ("up", 10), ("down", 1, 10))]
    world = World(())
    for name, *arguments in done:
        getattr(world, name)(*arguments)
    world.cut_client(0)
    world.down(0, 10)
    world.down(0, 10)
    assert world.proxy.catch_ups
    world.settle()
    assert [item for item in world.clients[0].got if isinstance(item, Lost)] == []
    world.check_client(0)
