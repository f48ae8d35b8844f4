"""Live peers in one seeded world: links that break and slow down, partitions, restarts, crashes and a lying peer.

    python -m tests.sim.gossip_live --seed 7         one world again, told step by step
    python -m tests.sim.gossip_live --worlds 1000    many worlds; a failing seed is minimised

A world is a list of steps drawn from the seed (`tests.sim.steps`). Each seed has its own mix of faults. The
peers run the live protocol of `ropewalk.gossip.sync.live` over simulated links.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ropewalk.errors import RopewalkError
from ropewalk.gossip.core.ids import Key, MessageId, id_of
from ropewalk.gossip.core.log import Cursor, GossipLog
from ropewalk.gossip.core.message import SignedMessage, sign
from ropewalk.gossip.core.profiles import V13
from ropewalk.gossip.core.table import TABLES
from ropewalk.gossip.core.verify import verify_log
from ropewalk.gossip.peer.broadcast import PUSHED_MAX
from ropewalk.gossip.sync import wire
from ropewalk.gossip.sync.live import Backoff, LiveSession
from ropewalk.gossip.sync.questions import ChildrenResponse, SyncRequest, SyncResponse, ValuesResponse, answer
from ropewalk.gossip.sync.session import drive, pull
from ropewalk.kernel.keys import SigningKey
from tests.sim.gossip import Crash, Disk
from tests.sim.steps import Step, Tell, draw, run_or_minimise, run_worlds

PEERS = 5
LIAR = 4
STEPS = 250
QUIET_ROUNDS = 60  # of a simulated minute each, after the faults end
IN_FLIGHT_MAX = 8  # frames on a slow link before its sender has to wait
TOPIC = "com.example.live"
SIGNERS = [SigningKey.generate("ed25519", bytes([n + 1] * 32)) for n in range(PEERS)]
LINKS = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (4, 0), (4, 2)]
TRUE = ("append",) * 3 + ("work",) * 8 + ("broadcast",) * 4 + ("pass_time",) * 4
KINDS = (  # those of TRUE happen in every world
    *TRUE, "append_killed", "work_refused", "work_broken", "work_killed", "pull_broken", "lie", "part", "slow_down",
    "restart",
)  # fmt: skip


class Broken(Exception):
    """A connection ended."""


@dataclass
class Peer:
    """One peer: its disk, the process on top, and how far it has passed on what arrived."""

    number: int
    disk: Disk
    log: GossipLog
    cursor: Cursor | None = None
    applied: list[MessageId] = field(default_factory=list)


@dataclass
class Side:
    """One end of a connection: the protocol, and what is on its way to the other end."""

    live: LiveSession
    sent: deque[bytes] = field(default_factory=deque)
    pushed: set[bytes] = field(default_factory=set)
    wants_pull: bool = True


@dataclass
class Link:
    """A pair of peers, connected or waiting for the next attempt."""

    ends: tuple[int, int]
    backoff: Backoff
    retry_s: float = 0.0
    sides: dict[int, Side] | None = None
    slow: bool = False


class World:
    """Peers, links and a clock; each step brings its source of chance."""

    def __init__(self, seed: int, tell: Tell) -> None:
        self.random = random.Random(seed)
        self.tell = tell
        self.now_s = 0.0
        self.honest = True  # the faults are over
        self.lying = False
        self.fault = ""  # of this step
        self.groups = [0] * PEERS
        self.peers = [self._make(number) for number in range(PEERS)]
        self.links = [Link(ends, Backoff(self._chance)) for ends in LINKS]
        self.acknowledged: set[MessageId] = set()
        tell(f"seed {seed}")

    def _make(self, number: int) -> Peer:
        disk = Disk(TABLES)
        peer = Peer(number, disk, GossipLog(disk, TOPIC))
        self._start(peer)
        return peer

    def _start(self, peer: Peer) -> None:
        def apply(id: MessageId, *_: object) -> None:
            peer.applied.append(id)

        peer.log = GossipLog(peer.disk, TOPIC, signer=SIGNERS[peer.number], apply=apply)
        peer.cursor = peer.log.last_arrival()

    # What may happen

    def append(self) -> None:
        peer = self.random.choice(self.peers[:LIAR])
        peer.disk.crash_next = self.fault == "killed"
        try:
            many = self.random.choice((1, 1, 1, 3, PUSHED_MAX + 6))
            stored = peer.log.append_many({"by": peer.number, "n": n} for n in range(many))
        except Crash:
            return self.restart(peer)
        self.acknowledged.update(each.id for each in stored)
        self.tell(f"{self.now_s:.1f} {peer.number} appends {many}")
        return None

    def append_killed(self) -> None:
        self._with("killed", self.append)

    def work_refused(self) -> None:
        self._with("refused", self.work)

    def work_broken(self) -> None:
        self._with("broken", self.work)

    def work_killed(self) -> None:
        self._with("killed", self.work)

    def pull_broken(self) -> None:
        self._with("pull", self.work)

    def _with(self, fault: str, act: Callable[[], None]) -> None:
        self.fault = fault
        act()
        self.fault = ""

    def _chance(self) -> float:
        return self.random.random()

    def lie(self) -> None:
        """Let peer 4 lie from here on."""
        self.lying = True

    def part(self) -> None:
        self.groups = [self.random.randrange(self.random.choice((1, 2, 3))) for _ in range(PEERS)]
        self.tell(f"{self.now_s:.1f} the network is now {self.groups}")

    def slow_down(self) -> None:
        link = self.random.choice(self.links)
        link.slow = not link.slow

    def restart(self, peer: Peer | None = None) -> None:
        peer = peer or self.random.choice(self.peers)
        for link in self.links:
            if peer.number in link.ends:
                self._end(link, "a restart")
        self._start(peer)
        self.tell(f"{self.now_s:.1f} {peer.number} restarts with {len(peer.log)} messages")

    def pass_time(self) -> None:
        self.now_s += self.random.choice((0.01, 0.01, 0.1, 1.0, 20.0))

    def work(self) -> None:
        """Let every link do a little, in random order."""
        for link in self.random.sample(self.links, len(self.links)):
            if self.groups[link.ends[0]] != self.groups[link.ends[1]]:
                self._end(link, "a partition")
            elif link.sides is None:
                self._connect(link)
            else:
                self._work(link, link.sides)

    def _connect(self, link: Link) -> None:
        if self.now_s < link.retry_s:
            return None
        if self.fault == "refused" and self.random.random() < 0.5:
            return self._end(link, "a failed attempt")
        link.sides = {end: self._side(end) for end in link.ends}
        return None

    def _side(self, end: int) -> Side:
        live = LiveSession(
            self.peers[end].log,
            f"peer{end}",
            now_s=self.now_s,
            random=self._chance,
            interval_s=30.0,
            relay=lambda messages: self._offer(end, messages),
        )
        live.open_push()
        return Side(live)

    def _end(self, link: Link, reason: str, *, broken: bool = False) -> None:
        if link.sides is not None:
            self.tell(f"{self.now_s:.1f} {link.ends} ends: {reason}")
            link.sides = None
        link.retry_s = self.now_s + link.backoff.failed(broken=broken)

    def _work(self, link: Link, sides: dict[int, Side]) -> None:
        try:
            for one, two in (link.ends, link.ends[::-1]):
                self._send(one, sides[one], 1 if link.slow else IN_FLIGHT_MAX)
                self._receive(sides[one], two, sides[two])
                if sides[two].wants_pull or sides[two].live.is_due(self.now_s):
                    sides[two].wants_pull = False
                    self._pull(sides[two], two, one)
            link.backoff.succeeded()
        except Broken as error:
            self._end(link, str(error))
        except Crash:
            self.restart(self.peers[link.ends[0]])
            self.restart(self.peers[link.ends[1]])
        except RopewalkError as error:
            assert LIAR in link.ends and self.lying, f"honest peers accuse each other: {error}"
            self._end(link, f"{type(error).__name__}", broken=True)

    def _send(self, number: int, side: Side, room: int) -> None:
        while len(side.sent) < room and (event := side.live.next_event()) is not None:
            if isinstance(event, wire.Insert):
                assert event.key not in side.pushed, "a message was pushed twice over one connection"
                side.pushed.add(event.key)
            if number == LIAR and self.lying and self.random.random() < 0.3:
                event = self._lie()
            side.sent.append(wire.encode_event(event))

    def _lie(self) -> wire.PushEvent:
        made = sign(V13, SIGNERS[LIAR], TOPIC, (), {"lie": self.random.random()})
        match self.random.randrange(3):
            case 0:
                return wire.Insert(made.key[:-1] + bytes([made.key[-1] ^ 1]), made.raw)
            case 1:
                return wire.Insert(made.key, made.raw.replace(made.signature.signature, bytes(64)))
            case _:
                return wire.Update((self.random.randbytes(20),))  # a head that does not exist

    def _receive(self, sender: Side, number: int, side: Side) -> None:
        if self.fault == "broken" and self.random.random() < 0.2:
            raise Broken("the connection broke")
        count = self.random.randint(0, len(sender.sent)) if not self.honest else len(sender.sent)
        frames = [sender.sent.popleft() for _ in range(count)]
        disk = self.peers[number].disk
        disk.crash_next = self.fault == "killed" and self.random.random() < 0.2
        try:
            if frames and side.live.receive(frames):
                side.wants_pull = True
        finally:
            disk.crash_next = False

    def _pull(self, side: Side, number: int, source: int) -> None:
        log = self.peers[source].log
        with log.view() as view:

            def ask(request: SyncRequest) -> SyncResponse:
                if self.fault == "pull" and self.random.random() < 0.3:
                    raise Broken("the connection broke in a pull")
                response = answer(view, V13, request)
                return self._twist(response) if source == LIAR and self.lying else response

            pulled = drive(pull(self.peers[number].log), ask)
        side.live.count_received(pulled.received)

    def _twist(self, response: SyncResponse) -> SyncResponse:
        if self.random.random() < 0.7:
            return response
        match response:
            case ChildrenResponse((first, *rest)):
                return ChildrenResponse((replace(first, hash=self.random.randbytes(16)), *rest))
            case ValuesResponse((first, *rest)):
                return ValuesResponse((first[:-1], *rest))
            case _:
                return response

    def broadcast(self) -> None:
        """Offer what arrived to every connection, as a broadcaster does."""
        for peer in self.peers:
            fresh = list(peer.log.arrivals(peer.cursor))
            if not fresh:
                continue
            peer.cursor = fresh[-1][0]
            if len(fresh) <= PUSHED_MAX:
                self._offer(peer.number, [signed for _, signed in fresh])
                continue
            for live in self._sessions(peer.number):
                live.announce()

    def _offer(self, number: int, messages: list[SignedMessage]) -> None:
        for live in self._sessions(number):
            live.offer(messages)

    def _sessions(self, number: int) -> Iterator[LiveSession]:
        for link in self.links:
            if link.sides is not None and number in link.ends:
                yield link.sides[number].live

    def run(self, steps: Sequence[Step]) -> None:
        self.honest = False
        for step in steps:
            self.random = random.Random(step.seed)
            getattr(self, step.kind)()
        self.honest = True
        self.random = random.Random(0)
        self.groups = [0] * PEERS
        for round_ in range(QUIET_ROUNDS):
            self.now_s += 60.0
            for _ in range(6):
                self.broadcast()
                self.work()
            if len({peer.log.root() for peer in self.peers[:LIAR]}) == 1 and round_ > 1:
                self.tell(f"one root after {round_} quiet minutes")
                return

    # What must hold

    def check(self, deep: bool) -> None:
        """Raise AssertionError for the first promise that is broken."""
        one = self.peers[0].log
        stored = [signed.id for signed in one.iterate()]
        assert self.acknowledged <= set(stored), "an acknowledged message was lost"
        for peer in self.peers[:LIAR]:
            log = peer.log
            assert log.root() == one.root(), f"{peer.number} has another root"
            assert log.heads() == one.heads() and log.pending() == [], f"{peer.number} still waits"
            assert set(peer.applied) >= set(stored), f"{peer.number} stored without apply"
            assert not deep or verify_log(log).ok, f"{peer.number} does not verify"
        for signed in one.iterate():
            assert signed.message.payload.get("by") in range(LIAR), (
                f"a lie was stored: {id_of(Key(signed.key))}"
            )


def steps_of(seed: int) -> list[Step]:
    """Return the steps of a seed."""
    return draw(seed, KINDS, TRUE, STEPS)


def play(seed: int, steps: Sequence[Step], tell: Tell, *, deep: bool) -> int:
    """Live through the steps and check the end; return how many messages were made."""
    world = World(seed, tell)
    world.run(steps)
    world.check(deep)
    return len(world.acknowledged)


def run(seed: int, tell: Tell = lambda _text: None, *, deep: bool = False) -> int:
    """Run one world; if it fails, say which of its steps are enough."""
    return run_or_minimise(seed, steps_of(seed), partial(play, seed, deep=deep), tell)


if __name__ == "__main__":
    sys.exit(run_worlds("Seeded worlds of live peers.", run))
