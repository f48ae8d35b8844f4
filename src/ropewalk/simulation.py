"""Seeded worlds for reducers and policies: does the same log always give the same state and the same verdicts?

A world is a list of steps drawn from its seed. Each step has its own source of chance, so a failing world is made
small by leaving steps out. Blocks are sealed and verified as in a channel, but in memory, with keys and times from the
seed.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar

from ropewalk.errors import RopewalkError, Unverified
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block.block import GENESIS, Block, seal
from ropewalk.ledger.envelope.envelope import build, parse
from ropewalk.ledger.envelope.fields import format_timestamp
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.keys.statements import KeyAct, key_envelope
from ropewalk.ledger.replay.encoded_state import state_root
from ropewalk.ledger.replay.guard import guarded
from ropewalk.ledger.replay.reducers import Fold, FoldContext, Reducer, State, find_reducer
from ropewalk.ledger.replay.replay import LocalFoldRunner, Replay, Snapshot
from ropewalk.ledger.rules.policy import Policy, parse_policy

CHANNEL: Final = "simulated"
START_NS: Final = 1_730_462_400 * 10**9  # 2024-11-01T12:00:00Z
STEPS: Final = 30
KINDS: Final = (
    "append",
    "again",
    "rotate",
    "clock",
    "restart",
    "snapshot",
    "resume",
    "replay",
    "split",
    "reorder",
)
ODD: Final[tuple[Any, ...]] = (None, True, -1, 1.5, 2**53 - 1, "", "ä\u2028\U0001f600", [], {"": None})
SAMPLES: Final = (
    {"type": "deployment.success", "payload": {"environment": "prod", "service": "web", "version": "1"}},
    {"type": "deployment.removed", "payload": {"environment": "prod", "service": "web"}},
    {"type": "register.set", "payload": {"key": "a", "value": 1}},
    {"type": "register.set", "payload": {"key": "a", "value": [2]}},
    {"type": "register.cleared", "payload": {"key": "a"}},
    {"type": "unknown", "payload": None},
)

Decide = Callable[[dict[str, Any]], Any]
Step = tuple[str, int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What the worlds held. If the last one failed: its seed, the problem, and the few steps that show it."""

    worlds: int
    events: int
    denied: int
    failed_seed: int | None = None
    problem: str | None = None
    story: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.problem is None


def simulate(
    reducer: Fold | Reducer | str = "counts",
    *,
    policy: Policy | Decide | None = None,
    events: Sequence[dict[str, Any]] = SAMPLES,
    seed: int = 0,
    worlds: int = 100,
    strange: bool = False,
    any_order: bool = False,
) -> SimulationResult:
    """Run seeded worlds over a reducer and a policy, up to the first that fails; equal arguments give equal results.

    Worlds draw from `events` (`{"type", "payload"}`). `strange` also offers damaged payloads, which the policy may
    deny. `any_order` requires one state for every order of the events. A policy that is a function gets the envelope's
    value and denies with False or "deny".

    >>> simulate("registers", worlds=3).ok
    True
    """

    def play(steps: Sequence[Step]) -> _World:
        world = _World(_fresh(reducer), policy, events, strange, any_order)
        world.run(steps)
        return world

    total = denied = 0
    for number in range(seed, seed + worlds):
        world = play(steps := draw_steps(number))
        if world.problem is not None:
            few = _smallest(world, steps, play)
            return SimulationResult(number - seed + 1, total, denied, number, few.problem, tuple(few.story))
        total, denied = total + len(world.folded), denied + world.denied
    return SimulationResult(worlds, total, denied)


def _fresh(reducer: Fold | Reducer | str) -> Reducer:
    """Return the reducer; a module that is named is imported again, so that each world begins without its state."""
    if isinstance(reducer, str):
        sys.modules.pop(reducer.partition(":")[0] if ":" in reducer else "", None)
        return find_reducer(reducer)
    return (
        reducer if isinstance(reducer, Reducer) else Reducer(getattr(reducer, "__name__", "reducer"), reducer)
    )


def _smallest(world: _World, steps: Sequence[Step], play: Callable[[Sequence[Step]], _World]) -> _World:
    """Return the world with few steps that fails in the same way; heights may differ."""
    kind = re.sub(r"\d+", "", world.problem or "")
    few = play(minimise(steps, lambda some: re.sub(r"\d+", "", play(some).problem or "") == kind))
    if few.problem is not None:
        return few
    world.story.append("the same steps do not fail again: something keeps state between worlds")
    return world


def draw_steps(seed: int) -> list[Step]:
    """Return the steps of a world; each seed has its own mix of kinds.

    >>> draw_steps(7) == draw_steps(7), draw_steps(7) == draw_steps(8)
    (True, False)
    """
    chance = random.Random(f"ropewalk {seed}")  # noqa: S311 - a seed must be enough to draw the same world again
    kinds = ["append", *(kind for kind in KINDS if chance.random() < 0.7)]
    return [(chance.choice(kinds), chance.randrange(2**32)) for _ in range(STEPS)]


def minimise(steps: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Leave out steps that the failure does not need: halves, then quarters, then single ones.

    >>> minimise("abcdefg", lambda left: {"b", "f"} <= set(left))
    ['b', 'f']
    """
    left, size = list(steps), max(1, len(steps) // 2)
    while True:
        at = 0
        while at < len(left):
            shorter = left[:at] + left[at + size :]
            if fails(shorter):
                left = shorter
            else:
                at += size
        if size == 1:
            return left
        size //= 2


class _StoringRunner(LocalFoldRunner):
    """Folds the events of a block one by one, each from a state that was stored and read back."""

    def fold(self, events: Sequence[dict[str, Any]], moment: FoldContext) -> None:
        for event in events:
            super().fold([event], moment)
            self.begin(jcs.parse(jcs.encode(self.state())))


class _World:
    """A channel in memory, its live state, and everything that must agree with it."""

    def __init__(
        self,
        reducer: Reducer,
        policy: Policy | Decide | None,
        events: Sequence[dict[str, Any]],
        strange: bool,
        any_order: bool,
    ) -> None:
        self._reducer, self._events, self._strange, self._any_order = reducer, events, strange, any_order
        self._checked, self._policy = _checked(reducer), policy if isinstance(policy, Policy) else None
        self._decide = policy if callable(policy) else None
        self._now_ns, self._rotations = START_NS, 0
        self._blocks: list[Block] = []
        self._snapshots: list[tuple[Snapshot, bytes]] = []
        self._verdicts: list[tuple[bytes, Any]] = []
        self._sent: list[tuple[str, Any]] = []
        self._live = self._begin()
        self.folded: list[tuple[bytes, FoldContext]] = []
        self.denied, self.story = 0, list[str]()
        self.problem: str | None = None

    def run(self, steps: Sequence[Step]) -> None:
        """Play the steps, then check everything once more; the first problem ends the world."""
        try:
            for kind, seed in (*steps, ("replay", 0), ("split", 0), ("reorder", 0), ("judge", 0)):
                getattr(self, f"_{kind}")(random.Random(seed))  # noqa: S311
            for snapshot in self._snapshots:
                self._fold_rest(*snapshot)
        except RopewalkError as error:
            self.problem = error.detail

    # Steps

    def _append(self, chance: random.Random) -> None:
        drafts = [self._draft(chance) for _ in range(chance.choice((1, 1, 2, 5)))]
        self._sent += drafts
        self._seal([self._envelope(*draft) for draft in drafts])

    def _again(self, chance: random.Random) -> None:
        """Send an event again in a new envelope, as a client does whose answer was lost."""
        if self._sent:
            self._seal([self._envelope(*chance.choice(self._sent))])

    def _rotate(self, _chance: random.Random) -> None:
        old, new, now = _key(self._rotations), _key(self._rotations + 1), format_timestamp(self._now_ns)
        act = KeyAct("rotate", CHANNEL, old.public.identity(), now, now, new.public)
        self._seal([key_envelope(act, old, now, new_key=new)], ruled=False)
        self._rotations += 1

    def _clock(self, chance: random.Random) -> None:
        self._now_ns += chance.choice((0, 10**9, 86_400 * 10**9))

    def _restart(self, _chance: random.Random) -> None:
        self.story.append("restart")
        snapshot, state = self._live.snapshot(), self._live.encoded.raw
        self._live = self._begin()
        self._live.resume(snapshot, jcs.parse(state))

    def _snapshot(self, _chance: random.Random) -> None:
        self.story.append(f"snapshot at {self._live.height}")
        self._snapshots.append((self._live.snapshot(), self._live.encoded.raw))

    def _resume(self, chance: random.Random) -> None:
        if self._snapshots:
            self._fold_rest(*chance.choice(self._snapshots))

    def _replay(self, _chance: random.Random) -> None:
        self._fold_all(self._begin(), "a replay from the first block")

    def _split(self, _chance: random.Random) -> None:
        self._fold_all(self._begin(_StoringRunner), "a replay that stores the state after each event")

    def _reorder(self, chance: random.Random) -> None:
        if self._any_order:
            runner = LocalFoldRunner(self._checked)
            for raw, moment in chance.sample(self.folded, len(self.folded)):
                runner.fold([dict(parse(raw).value)], moment)
            self._compare(state_root(runner.state()), "a fold of the same events in another order")

    def _judge(self, _chance: random.Random) -> None:
        """Decide about every event again, backwards, with the policy as its file has it."""
        again = None if self._policy is None else parse_policy(self._policy.to_bytes())
        for raw, verdict in reversed(self._verdicts):
            if (now := self._verdict(raw, again)) != verdict:
                raise Unverified(f"policy: {now!r} for an envelope whose verdict was {verdict!r}")

    # What must hold

    def _fold_rest(self, snapshot: Snapshot, state: bytes) -> None:
        replay = self._begin()
        replay.resume(snapshot, jcs.parse(state))
        self._fold_all(replay, f"a replay from the snapshot at {snapshot.height}")

    def _fold_all(self, replay: Replay, what: str) -> None:
        for block in self._blocks[replay.height + 1 :]:
            replay.follow(block.lines())  # the live replay has verified it
        self._compare(replay.root(), what)

    def _compare(self, root: bytes, what: str) -> None:
        if root != self._live.root():
            self.story.append(f"{what}: state root {root.hex()[:16]}, live {self._live.root().hex()[:16]}")
            raise Unverified(f"reducer {self._reducer.name}: {what} gives another state than the live fold")

    def _begin(self, runner: type[LocalFoldRunner] = LocalFoldRunner) -> Replay:
        return Replay(self._reducer, CHANNEL, policy=self._policy, folding=runner(self._checked))

    def _draft(self, chance: random.Random) -> tuple[str, Any]:
        event = chance.choice(self._events)
        payload = event["payload"]
        if self._strange and chance.random() < 0.3:
            member = chance.choice(sorted(payload)) if isinstance(payload, dict) and payload else None
            others = (
                {name: value for name, value in (payload or {}).items() if name != member} if member else {}
            )
            odd = chance.choice(ODD)
            payload = chance.choice((odd, others, {**others, member: odd})) if member else odd
        return event["type"], payload

    def _envelope(self, name: str, payload: Any) -> Envelope:
        self._now_ns += 1  # equal events are different envelopes
        return build(
            _key(2**32),
            domain=CHANNEL,
            event_class="Observation",
            event_type=name,
            payload=payload,
            timestamp=format_timestamp(self._now_ns),
        )

    def _seal(self, envelopes: list[Envelope], *, ruled: bool = True) -> None:
        taken = [each for each in envelopes if not ruled or self._allows(each)]
        self.denied += len(envelopes) - len(taken)
        if taken:
            block = seal(
                _key(self._rotations),
                channel=CHANNEL,
                height=len(self._blocks),
                prev_block_hash=self._blocks[-1].hash if self._blocks else GENESIS,
                envelopes=[each.raw for each in taken],
                timestamp_ns=self._now_ns,
                policy_hash=None if self._policy is None else self._policy.hash,
            )
            said = (f"{each.event_type} {jcs.encode(each.payload).decode()[:60]}" for each in taken)
            self.story.append(f"block {block.height}: {', '.join(said)}")
            self._live.feed(block.lines())
            self._blocks.append(block)
            moment = FoldContext(CHANNEL, block.height, block.header.timestamp_ns)
            self.folded += [(each.raw, moment) for each in taken]

    def _allows(self, envelope: Envelope) -> bool:
        verdict = self._verdict(envelope.raw, self._policy)
        self._verdicts.append((envelope.raw, verdict))
        outcome = verdict["decision"] if self._policy is not None else verdict
        return outcome is not False and outcome != "deny"

    def _verdict(self, raw: bytes, policy: Policy | None) -> Any:
        if policy is not None:
            return policy.decide(parse(raw)).to_json()
        decide = self._decide
        if decide is None:
            return True
        runner = LocalFoldRunner(_checked(Reducer("policy", lambda _state, event, _moment: decide(event))))
        runner.fold([dict(parse(raw).value)], FoldContext(CHANNEL, 0, 0))
        return runner.state()


@cache
def _key(number: int) -> SigningKey:
    return SigningKey.generate("ed25519", number.to_bytes(32, "big"))


def _checked(reducer: Reducer) -> Reducer:
    """Return the reducer under the guard; it must not change its event, and must return JSON."""
    fold = guarded(reducer).fold

    def checked(state: State, event: dict[str, Any], moment: FoldContext) -> State:
        before = jcs.encode(event)
        result = fold(state, event, moment)
        if jcs.encode(event) != before:
            raise Unverified(f"reducer {reducer.name} must not change its event ({event['event_type']})")
        try:
            jcs.encode(result)
        except RopewalkError as error:
            raise Unverified(f"reducer {reducer.name} must return JSON: {error.detail}") from error
        return result

    return Reducer(reducer.name, checked, reducer.initial)
