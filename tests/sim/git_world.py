"""A git log in one seeded world: writers, a consumer, a mirror, a bridge through a broker; clock and disk fail.

    python -m tests.sim.git_world --seed 7        one world again, told step by step
    python -m tests.sim.git_world --worlds 100    many worlds; a failing seed is minimised

Every part is a new object in every step that restarts it, as after a kill. The broker is a double at the port
`bridge.brokers.port.Broker`: it keeps a list, and fails when it is told to.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ropewalk.bridge.brokers.forms import ULID
from ropewalk.bridge.brokers.loops import Publisher, Subscriber, find_log
from ropewalk.bridge.brokers.port import Incoming, Moved, Outgoing
from ropewalk.bridge.mirror import Mirror
from ropewalk.bridge.progress import Progress
from ropewalk.disk.repository_paths import make_repository
from ropewalk.errors import RopewalkError, Unavailable
from ropewalk.gitlog.consumers.consumers import cursors
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import MESSAGES
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.gitlog.store.rollup import roll_up
from ropewalk.repository_check import verify_gitlogs
from tests.fault.failing import Countdown, FailingDisk
from tests.sim.power.run import MEMORY
from tests.sim.steps import Step, Tell, draw, run_or_minimise, run_worlds

TOPIC, COPY, GROUP = "jobs", "copies", "workers"
START_MS = 1_730_462_400_000
STEPS = 40
KINDS = (
    "append",
    "again",
    "read",
    "consume",
    "consume_killed",
    "mirror",
    "mirror_full",
    "publish",
    "publish_cut",
    "publish_other",
    "foreign",
    "take",
    "take_full",
    "lose_progress",
    "full",
    "clock",
    "roll_up",
    "restart",
)
TRUE = ("append", "read", "consume", "mirror", "publish", "take")  # these happen in every world


class WorldBroker:
    """A double of a broker: one stream in memory. `breaks` is how many messages of a batch it still takes."""

    stream, mark = "world", "00000000"

    def __init__(self) -> None:
        self.messages: list[Outgoing] = []
        self.breaks: int | None = None

    async def last(self) -> str:
        return str(len(self.messages))

    async def publish(self, batch: Sequence[Outgoing], expected: str) -> str:
        if expected != await self.last():
            raise Moved
        cut, self.breaks = self.breaks, None
        self.messages += batch if cut is None else batch[:cut]
        if cut is not None:
            raise Unavailable("the broker went away")
        return await self.last()

    async def fetch(self, after: str, limit: int, wait_s: float) -> Sequence[Incoming]:
        start = int(after)
        return [
            Incoming(str(number), each.body, each.headers, number)
            for number, each in enumerate(self.messages[start : start + limit], start + 1)
        ]

    async def close(self) -> None:
        pass


class World:
    """A repository with a log, its copies near and far, and what its clients saw."""

    def __init__(self, folder: Path, chance: random.Random, runner: asyncio.Runner, tell: Tell) -> None:
        self.here, self.there = (make_repository(folder / name)[0].git_dir for name in ("a.git", "b.git"))
        self.tell, self._runner, self._entropy = tell, runner, chance.randbytes
        self.now_ms = START_MS
        self.numbers = 0
        self.acknowledged: list[str] = []
        self.seen: list[str] = []  # by the last read
        self.handled: list[str] = []  # by the consumer, in order, with repetitions
        self.broker = WorldBroker()
        self._close_publisher = contextlib.ExitStack()
        self._publisher: Publisher | None = None
        self.append(random.Random(0))

    @contextlib.contextmanager
    def opened(self, path: Path | None = None, full: random.Random | None = None) -> Iterator[GitRepository]:
        """Open a repository as a new process would; with `full`, one of its next calls to the disk fails."""
        disk = FailingDisk(Countdown(full.randrange(1, 25))) if full is not None else None
        with open_repository(
            path or self.here, now_ms=lambda: self.now_ms, entropy=self._entropy, disk=disk
        ) as log:
            yield log

    # What may happen

    def append(self, chance: random.Random, full: random.Random | None = None) -> None:
        drafts = []
        for _ in range(chance.choice((1, 1, 2, 6))):
            drafts.append(Draft({"type": "t", "payload": {"n": self.numbers}}))
            self.numbers += 1
        with self.opened(full=full) as log:
            for outcome in log.append_all(TOPIC, drafts, layout=MESSAGES):
                if not isinstance(outcome, RopewalkError):
                    self.acknowledged.append(outcome.ulid)
                elif full is None:
                    raise outcome

    def full(self, chance: random.Random) -> None:
        with self._failing():
            self.append(chance, full=chance)

    def again(self, chance: random.Random) -> None:
        """A client that missed its receipt appends an event again, under the ULID it chose."""
        with self.opened() as log:
            ulid = chance.choice(self.acknowledged)
            event = next(each for each in log.events(TOPIC, layout=MESSAGES) if each.ulid == ulid)
            document = {"type": "t", "payload": event.payload, "ulid": ulid}
            assert log.append(TOPIC, document, layout=MESSAGES).commit == event.commit, "appended twice"

    def read(self, _chance: random.Random) -> None:
        with self.opened() as log:
            found: list[str] = [each.ulid for each in log.events(TOPIC, layout=MESSAGES)]
        assert found[: len(self.seen)] == self.seen, "a reader saw history change"
        assert set(self.acknowledged) <= set(found), "an acknowledged event is not visible"
        self.seen = found

    def consume(self, chance: random.Random) -> None:
        with self.opened() as log:
            with log.consume(GROUP, TOPIC, chance.randint(1, 9), layout=MESSAGES) as events:
                self.handled += [each.ulid for each in events]
            self._check_cursor(log)

    def consume_killed(self, chance: random.Random) -> None:
        """The consumer dies before its cursor moves: what it handled comes again."""
        with self.opened() as log:
            before = cursors(log)
            with (
                contextlib.suppress(InterruptedError),
                log.consume(GROUP, TOPIC, chance.randint(1, 9), layout=MESSAGES) as events,
            ):
                self.handled += [each.ulid for each in events]
                raise InterruptedError
            assert cursors(log) == before, "the cursor moved although the consumer died"

    def mirror(self, _chance: random.Random) -> None:
        with self.opened() as log:
            Mirror(log, f"topic:{TOPIC}", f"topic:{COPY}").catch_up()

    def mirror_full(self, chance: random.Random) -> None:
        with self._failing(), self.opened(full=chance) as log:
            Mirror(log, f"topic:{TOPIC}", f"topic:{COPY}").catch_up()

    def publish(self, _chance: random.Random) -> None:
        if self._publisher is None:
            log = self._close_publisher.enter_context(self.opened())
            self._publisher = self._bridge(log, "world", "a" * 32)
        self._run(self._publisher.step())

    def publish_other(self, _chance: random.Random) -> None:
        """The bridge of a clone publishes the same events, and the first one finds that the stream has moved."""
        with self.opened() as log:
            self._run(self._bridge(log, "clone", "c" * 32).step())

    def publish_cut(self, chance: random.Random) -> None:
        """The broker goes away in a batch, and sometimes the bridge with it."""
        self.broker.breaks = chance.randrange(5)
        with contextlib.suppress(Unavailable):
            self.publish(chance)
        self.broker.breaks = None
        if chance.random() < 0.5:
            self.restart(chance)

    def foreign(self, _chance: random.Random) -> None:
        """Another program publishes to the stream, and the bridge finds that it has moved."""
        self.broker.messages.append(Outgoing("other", b'{"n":0}', {}))

    def take(self, _chance: random.Random, full: random.Random | None = None) -> None:
        """The other repository takes the stream in, in a new process."""
        with self.opened(self.there, full) as other:
            log = find_log(other, f"messages/{TOPIC}")
            progress = Progress.of(other, "nats", "world", log.name)
            self._run(Subscriber(log, self.broker, progress, origin="b" * 32).step(0))

    def take_full(self, chance: random.Random) -> None:
        with self._failing():
            self.take(chance, full=chance)

    def lose_progress(self, chance: random.Random) -> None:
        """The records of bridges are lost: they save time and decide nothing."""
        self.restart(chance)
        for place in (self.here, self.there):
            for path in sorted(place.glob("ropewalk/bridges/*/progress.json")):
                path.unlink()

    def clock(self, chance: random.Random) -> None:
        self.now_ms += chance.choice((-60_000, 1, 3_600_000))

    def roll_up(self, _chance: random.Random) -> None:
        with self.opened() as log:
            roll_up(log.store.pack_folder, log.store.place.home / "locks", log.store.disk, at_most=2)

    def restart(self, _chance: random.Random) -> None:
        self._publisher = None
        self._close_publisher.close()

    # How it is done

    def _bridge(self, repository: GitRepository, name: str, origin: str) -> Publisher:
        log = find_log(repository, f"messages/{TOPIC}")
        return Publisher(log, self.broker, Progress.of(repository, "nats", log.name, name), origin=origin)

    def _run(self, step: Any) -> None:
        async def settled() -> None:
            await step
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*others)  # what is read ahead is read now: a seed replays exactly

        self._runner.run(settled())

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except (RopewalkError, OSError) as error:
            self.tell(f"  refused: {type(error).__name__}")

    # What must hold

    def check(self) -> None:
        self.now_ms += 7_200_000
        self.restart(random.Random(0))
        with self.opened(self.here) as log:
            log.append(TOPIC, {"type": "t", "payload": {"n": -1}}, layout=MESSAGES)  # the log still grows
        self.read(random.Random(0))
        assert [each for each in self.seen if each in set(self.acknowledged)] == self.acknowledged, (
            "acknowledged events are not there once and in order"
        )
        with self.opened() as log:
            self._check_consumer(log)
            Mirror(log, f"topic:{TOPIC}", f"topic:{COPY}").catch_up()
            assert [each.ulid for each in log.events(COPY, layout=MESSAGES)] == self.seen, (
                "the mirror is not its source"
            )
            assert verify_gitlogs(log.store, deep=True).ok, "the log does not verify"
        for _ in range(3):
            self.publish(random.Random(0))
            self.take(random.Random(0))
        published = [each.headers[ULID] for each in self.broker.messages if ULID in each.headers]
        assert published == self.seen, "the stream does not hold every event once"
        with self.opened(self.there) as other:
            found = [each.payload for each in other.events(TOPIC, layout=MESSAGES)]
            assert len(found) == len(self.broker.messages), "the other log does not hold every message once"
            assert verify_gitlogs(other.store, deep=True).ok, "the other log does not verify"

    def _check_cursor(self, log: GitRepository) -> None:
        for cursor in cursors(log):
            assert cursor.ulid in self.handled, "the cursor is ahead of what was handled"

    def _check_consumer(self, log: GitRepository) -> None:
        first_times = list(dict.fromkeys(self.handled))
        assert first_times == self.seen[: len(first_times)], "the consumer passed events over"
        self._check_cursor(log)
        with log.consume(GROUP, TOPIC, 10_000, layout=MESSAGES) as events:
            rest: list[str] = [each.ulid for each in events]
        assert list(dict.fromkeys([*self.handled, *rest])) == self.seen, "events are lost to the consumer"


def steps_of(seed: int) -> list[Step]:
    """Return the steps of a seed."""
    return draw(seed, KINDS, TRUE, STEPS)


def play(steps: Sequence[Step], tell: Tell = lambda _text: None) -> int:
    """Live through the steps and check the end; return how many events were acknowledged."""
    with (
        tempfile.TemporaryDirectory(prefix="ropewalk-world-", dir=MEMORY) as folder,
        asyncio.Runner() as runner,
    ):
        world = World(Path(folder), random.Random(1), runner, tell)
        try:
            for step in steps:
                tell(step.kind)
                getattr(world, step.kind)(random.Random(step.seed))
            world.check()
        finally:
            world.restart(random.Random(0))
        return len(world.acknowledged)


def run(seed: int, tell: Tell = lambda _text: None, *, deep: bool = False) -> int:
    """Run one world; if it fails, say which of its steps are enough."""
    return run_or_minimise(seed, steps_of(seed), play, tell)


if __name__ == "__main__":
    sys.exit(run_worlds("Seeded worlds of a git log, its consumers and its bridges.", run))
