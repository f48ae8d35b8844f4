"""Five peers in one seeded world: partitions, loss, duplication, reordering, lost sessions and restarts.

    python -m tests.sim.gossip --seed 7         one world again, told step by step
    python -m tests.sim.gossip --worlds 1000    many worlds; a failing seed is minimised

A world is a list of steps drawn from the seed (`tests.sim.steps`). Each seed has its own mix of faults. The checkers
only look at what peers hold.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from ropewalk.disk.memory_tables import MemoryTables
from ropewalk.gossip.core.ids import Key, MessageId
from ropewalk.gossip.core.log import Cursor, GossipLog
from ropewalk.gossip.core.message import SignedMessage, sign
from ropewalk.gossip.core.profiles import PROFILES
from ropewalk.gossip.core.table import TABLES, Transaction
from ropewalk.gossip.core.verify import verify_log
from ropewalk.gossip.core.writing import Batch
from ropewalk.gossip.sync.questions import AbortResponse, SyncRequest, SyncResponse, answer
from ropewalk.gossip.sync.session import PullResult, pull, pull_from
from ropewalk.kernel.keys import SigningKey
from tests.sim.steps import Step, Tell, draw, run_or_minimise, run_worlds

PEERS = 5
STEPS = 200
TOPIC = "com.example.sim"
SIGNERS = [SigningKey.generate("ed25519", bytes([n + 1] * 32)) for n in range(PEERS)]
ROUNDS_MAX = 4 * PEERS  # of pulling round a ring after the faults end; two are enough if all is well
TRUE = ("append",) * 3 + ("deliver",) * 8 + ("open_session",) * 2 + ("step_session",) * 8 + ("read",) * 2
KINDS = (  # those of TRUE happen in every world
    *TRUE, "append_killed", "lose", "lose", "double", "lose_session", "abort_session", "kill_session", "part", "restart"
)  # fmt: skip


class Crash(Exception):
    """The process dies in the middle of a transaction."""


class Disk(MemoryTables):
    """Tables that outlive their process, which may die just before a commit."""

    crash_next = False

    def transact(self, body):
        def dying(change: Transaction) -> object:
            result = body(change)
            if self.crash_next:
                self.crash_next = False
                raise Crash
            return result

        return super().transact(dying)


@dataclass
class Session:
    """A pull under way: its machine, the question it waits to ask, and the moment of the source it asks."""

    target: int
    source: int
    machine: Generator[SyncRequest, SyncResponse, PullResult]
    request: SyncRequest
    ask: Callable[[SyncRequest], SyncResponse]
    stack: ExitStack


@dataclass
class Peer:
    """One peer: what is on its disk, the process on top, and a reader that follows arrivals."""

    number: int
    disk: Disk
    log: GossipLog
    applied: list[MessageId] = field(default_factory=list)
    read: list[MessageId] = field(default_factory=list)
    cursor: Cursor | None = None


class World:
    """Peers and a network; each step brings its source of chance."""

    def __init__(self, seed: int, tell: Tell) -> None:
        self.random = random.Random(seed)
        self.tell = tell
        self.profile = PROFILES["v0.6" if seed % 2 else "v0.13"]
        ground = self._ground() if seed % 4 == 1 else None  # v0.6 where raw keys stop sorting
        self.peers = [self._make(number, ground) for number in range(PEERS)]
        self.groups = [0] * PEERS
        self.mail: list[tuple[int, int, bytes]] = []
        self.sessions: list[Session] = []
        self.acknowledged: set[MessageId] = set()
        tell(f"seed {seed}, profile {self.profile.name}{', from clock 16380 on' if ground else ''}")

    def _ground(self) -> SignedMessage:
        below = Key((self.profile.code.encode(16_379) + bytes(20))[:20])
        return sign(self.profile, SIGNERS[0], TOPIC, (below,), "ground")

    def _make(self, number: int, ground: SignedMessage | None) -> Peer:
        disk = Disk(TABLES)
        peer = Peer(number, disk, GossipLog(disk, TOPIC, profile=self.profile.name))
        self._start(peer)
        if ground is not None:
            peer.disk.transact(lambda change: _put(change, peer.log, ground))
        return peer

    def _start(self, peer: Peer) -> None:
        def apply(id: MessageId, *_: object) -> None:
            peer.applied.append(id)

        peer.log = GossipLog(peer.disk, TOPIC, signer=SIGNERS[peer.number], apply=apply)

    def linked(self, one: int, two: int) -> bool:
        return self.groups[one] == self.groups[two]

    # What may happen

    def append(self, *, killed: bool = False) -> None:
        peer = self.random.choice(self.peers)
        peer.disk.crash_next = killed
        try:
            stored = peer.log.append({"by": peer.number, "n": self.random.randrange(1000)})
        except Crash:
            self.tell(f"{peer.number} dies while appending")
            return self._start(peer)
        self.acknowledged.add(stored.id)
        self.tell(f"{peer.number} appends {stored.id} at clock {stored.message.clock}")
        raw = peer.log.get(stored.id)
        assert raw is not None
        for other in range(PEERS):
            if other != peer.number:
                self.mail.append((peer.number, other, raw.raw))
        return None

    def append_killed(self) -> None:
        self.append(killed=True)

    def lose(self) -> None:
        if self.mail:
            self.mail.pop(self.random.randrange(len(self.mail)))

    def double(self) -> None:
        if self.mail:
            self.mail.append(self.random.choice(self.mail))

    def deliver(self) -> None:
        if not self.mail:
            return
        sender, to, raw = self.mail.pop(self.random.randrange(len(self.mail)))  # any order
        if not self.linked(sender, to):
            return
        outcome = self.peers[to].log.insert(raw)
        self.tell(f"{to} gets {outcome.id} from {sender}: {outcome.status}")

    def open_session(self) -> None:
        target, source = self.random.sample(range(PEERS), 2)
        if not self.linked(target, source) or len(self.sessions) > 6:
            return
        stack = ExitStack()
        log = self.peers[source].log
        view = stack.enter_context(log.view())
        machine = pull(self.peers[target].log)
        self.sessions.append(
            Session(target, source, machine, next(machine), lambda q: answer(view, log.profile, q), stack)
        )

    def lose_session(self) -> None:
        self.step_session("lost")

    def abort_session(self) -> None:
        self.step_session("aborted")

    def kill_session(self) -> None:
        self.step_session("killed")

    def step_session(self, fate: str = "") -> None:
        if not self.sessions:
            return None
        session = self.random.choice(self.sessions)
        if fate == "lost" or not self.linked(session.target, session.source):
            self.tell(f"the session {session.target} ← {session.source} is lost")
            return self._end(session)
        response = AbortResponse(0) if fate == "aborted" else session.ask(session.request)
        target = self.peers[session.target]
        target.disk.crash_next = fate == "killed"
        try:
            session.request = session.machine.send(response)
        except StopIteration as end:
            self.tell(f"{session.target} pulled {end.value.received} from {session.source}")
            return self._end(session)
        except Crash:
            self.tell(f"{session.target} dies in the middle of a sync")
            self._end(session)
            self._start(target)
        finally:
            target.disk.crash_next = False
        return None

    def _end(self, session: Session) -> None:
        session.machine.close()
        session.stack.close()
        self.sessions.remove(session)

    def part(self) -> None:
        self.groups = [self.random.randrange(self.random.choice((1, 2, 3))) for _ in range(PEERS)]
        self.tell(f"the network is now {self.groups}")

    def restart(self) -> None:
        peer = self.random.choice(self.peers)
        for session in [one for one in self.sessions if peer.number in (one.target, one.source)]:
            self._end(session)
        self._start(peer)
        self.tell(f"{peer.number} restarts with {len(peer.log)} messages")

    def read(self) -> None:
        peer = self.random.choice(self.peers)
        for cursor, signed in peer.log.arrivals(peer.cursor):
            peer.cursor = cursor
            peer.read.append(signed.id)
            if self.random.random() < 0.2:
                return  # readers stop anywhere and go on from their cursor

    def run(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self.random = random.Random(step.seed)
            getattr(self, step.kind)()
        for session in list(self.sessions):
            self._end(session)
        for round_ in range(ROUNDS_MAX):
            roots = {peer.log.root() for peer in self.peers}
            if len(roots) == 1:
                self.tell(f"one root after {round_} quiet rounds")
                return
            for number in range(PEERS):
                pull_from(self.peers[number].log, self.peers[(number + 1) % PEERS].log)

    # What must hold

    def check(self, deep: bool) -> None:
        """Raise AssertionError for the first promise that is broken."""
        one = self.peers[0].log
        stored = [signed.id for signed in one.iterate()]
        assert self.acknowledged <= set(stored), "an acknowledged message was lost"
        for peer in self.peers:
            log = peer.log
            assert log.root() == one.root(), f"{peer.number} has another root"
            assert log.heads() == one.heads(), f"{peer.number} has other heads"
            assert [signed.id for signed in log.iterate()] == stored, f"{peer.number} has another order"
            assert log.pending() == [], f"{peer.number} still waits"
            for cursor, signed in log.arrivals(peer.cursor):
                peer.cursor = cursor
                peer.read.append(signed.id)
            assert sorted(peer.read) == sorted(stored), (
                f"the reader of {peer.number} missed or doubled something"
            )
            assert set(peer.applied) | {stored[0]} >= set(stored), f"{peer.number} stored without apply"
            if deep:
                report = verify_log(log)
                failed = {step.name for step in report.steps if step.status == "failed"}
                ground = stored and one.get(stored[0]).message.payload == "ground"  # type: ignore[union-attr]
                assert failed <= ({"parents", "arrivals"} if ground else set()), report


def _put(change: Transaction, log: GossipLog, signed: SignedMessage) -> None:
    batch = Batch(change, log)
    batch.store(signed)
    batch.finish()


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
    sys.exit(run_worlds("Seeded worlds of five peers.", run))
