"""A channel, its replicas and its witnesses in one seeded world, with lines that break and an origin that lies.

    python -m tests.sim.ledger_world --seed 7        one world again, told step by step
    python -m tests.sim.ledger_world --worlds 100    many worlds; a failing seed is minimised

A world is a list of steps drawn from the seed (`tests.sim.steps`). Each seed has its own mix of faults.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropewalk.errors import Replayed, RopewalkError, Unavailable
from ropewalk.kernel import merkle
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block.block import Block, seal
from ropewalk.ledger.channel.channel import Channel, OpenReplica, open_channel, open_log
from ropewalk.ledger.channel.maintenance import verify_stored
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.envelope.model import envelope_id
from ropewalk.ledger.keys.failover import propose_policy, rotate_policy
from ropewalk.ledger.proof.proof import head_signer, signed_head
from ropewalk.ledger.remote.replica import pull_channel
from ropewalk.ledger.rules.policy import EVALUATOR, Policy, parse_policy
from ropewalk.ledger.transparency.head_fork import HeadFork
from ropewalk.ledger.transparency.witness import (
    WatchedLog,
    WitnessRequest,
    accept_head,
    parse_watched,
    watch_log,
)
from ropewalk.server.watch.config import WatchConfig
from ropewalk.server.watch.rounds import Watch
from ropewalk.server.watch.schedules import Schedules
from tests.fault.failing import Countdown, FailingDisk
from tests.sim.ledger_line import Line
from tests.sim.power.run import MEMORY
from tests.sim.steps import Step, Tell, draw, run_or_minimise, run_worlds
from tests.unit.ledger.making import NODE, NOON_NS, observed
from tests.unit.ledger.rotating import NEXT, rotation

CHANNEL, ORIGIN = "ea.core", "log.example"
REPLICAS = WITNESSES = 2
STEPS = 40
HEADS = SigningKey.generate("ed25519", b"heads" + bytes(27))
KINDS = (
    "append",
    "again",
    "rotate",
    "policy",
    "pull",
    "cut",
    "stale",
    "lie",
    "cosign",
    "cosign_lie",
    "restart_witness",
    "full",
    "clock",
    "watch",
)
HOOK = "https://hook.example"
TRUE = ("append", "pull", "cosign")  # these happen in every world


class World:
    """An origin, replicas and witnesses; `acknowledged` is what clients have receipts for."""

    def __init__(self, folder: Path, tell: Tell) -> None:
        self.origin, self.tell = folder / "origin", tell
        self.replicas = [folder / f"replica-{number}" for number in range(REPLICAS)]
        verifier = head_signer(ORIGIN, CHANNEL, HEADS).verifier
        self.witnesses: list[WatchedLog] = [watch_log(None, verifier) for _ in range(WITNESSES)]
        self.signed: list[tuple[int, bytes]] = []
        self.acknowledged: list[str] = []
        self.keys = [NODE]
        self.numbers, self.policies, self.now_ns = 0, 0, NOON_NS
        create_channel(self.origin, CHANNEL, "node", NODE.public, None)
        self.append(random.Random(0))

    # What may happen

    def append(self, chance: random.Random, **options: Any) -> None:
        envelopes = [observed(self.numbers + n) for n in range(chance.choice((1, 1, 2, 5)))]
        self.numbers += len(envelopes)
        with self._open(**options) as ledger:
            for envelope, outcome in zip(
                envelopes, ledger.log.submit_many(each.raw for each in envelopes), strict=True
            ):
                if not isinstance(outcome, RopewalkError):
                    self.acknowledged.append(outcome.envelope_id.hex())
                    assert outcome.envelope_id == envelope.id, "a receipt for another envelope"

    def full(self, chance: random.Random) -> None:
        """Append on a disk of which one call fails."""
        try:
            self.append(chance, disk=FailingDisk(Countdown(chance.randrange(1, 12))))
        except (Unavailable, OSError) as error:
            self.tell(f"  refused: {error}")

    def again(self, chance: random.Random) -> None:
        """A client sends an envelope again that it has a receipt for."""
        with self._open() as ledger:
            try:
                ledger.log.submit(observed(chance.randrange(self.numbers)).raw)
            except Replayed:
                return
            with open_channel(self.origin, CHANNEL) as channel:
                found = _ids(channel)
        assert len(set(found)) == len(found), "an envelope was sealed twice"

    def clock(self, chance: random.Random) -> None:
        self.now_ns += chance.choice((-(10**9), 10**6, 3600 * 10**9))

    def rotate(self, _chance: random.Random) -> None:
        if self.keys == [NODE]:
            with self._open() as ledger:
                self.acknowledged.append(ledger.log.submit(rotation().raw).envelope_id.hex())
            self.keys = [NEXT]

    def policy(self, _chance: random.Random) -> None:
        """The policy of the channel changes while everything else goes on."""
        self.policies += 1
        rule = {"id": "r", "name": "r", "version": self.policies, "kind": "correlation", "decision": "audit"}
        new = parse_policy(Policy("p", (rule,), EVALUATOR, {}).to_bytes())
        act = propose_policy(self.origin, CHANNEL, new, now_ns=self._now)
        sealed = rotate_policy(self.origin, act, new, self.keys, now_ns=self._now)
        self.acknowledged.append(sealed.envelope_id.hex())

    def watch(self, chance: random.Random) -> None:
        """Archives, packing and drills that are due, then a round of alerts to an endpoint that may be away."""

        def send(_url: str, alert: Any) -> None:
            if chance.random() < 0.4:
                raise Unavailable("the endpoint is away")
            self.tell(f"  {alert['labels']['alertname']}")

        parts: dict[str, Any] = {
            "channel_keys": lambda _channel: [*self.keys, NODE],
            "signing_key": lambda _name: NODE,
        }
        config = WatchConfig(
            archive=str(self.origin.parent / "archive"), keep_days=1e-9, drills_s=7_200.0, webhooks=(HOOK,)
        )
        watched = self.origin, config
        for act in Schedules(*watched, **parts, now_ns=self._now, chance=chance.random).run_due():
            self.tell(f"  {act.partition(' in ')[0]}")
        found = Watch(*watched, **parts, now_ns=self._now, send=send).round()
        for alert in found.firing:
            assert alert["name"] == "LifetimeEnds", f"an alert without a cause: {alert}"  # of the old key
            assert alert["sent_to"] or found.failures, f"an alert was neither sent nor kept: {alert}"

    def pull(self, chance: random.Random) -> None:
        self._pull(chance.choice(self.replicas), Line(self.origin, CHANNEL))

    def cut(self, chance: random.Random) -> None:
        self._pull(chance.choice(self.replicas), Line(self.origin, CHANNEL, breaks=chance.randrange(4)))

    def stale(self, chance: random.Random) -> None:
        """A replica pulls from a server that shows an old state."""
        self._pull(
            chance.choice(self.replicas),
            Line(self.origin, CHANNEL, shown=chance.randrange(1, self._height() + 1)),
        )

    def lie(self, chance: random.Random) -> None:
        """The key of the origin signs another block at a height that was sealed; a replica is shown that history."""
        with tempfile.TemporaryDirectory(dir=self.origin.parent) as folder:
            self._fork(Path(folder), chance.randrange(self._height()))
            replica = chance.choice(self.replicas)
            before = self._blocks(replica)
            self._pull(replica, Line(Path(folder), CHANNEL))
            after = self._blocks(replica)
            assert after[: len(before)] == before, "a lie changed the history of a replica"
            if after != self._blocks(self.origin)[: len(after)]:  # it had not seen that height
                self.replicas[self.replicas.index(replica)] = replica.with_name(f"{replica.name}-new")

    def cosign(self, chance: random.Random) -> None:
        with open_channel(self.origin, CHANNEL) as channel:
            leaves = [leaf for _, leaf in channel.index.tree_leaves(0, channel.head().height)]
        shown = leaves[: chance.randrange(1, len(leaves) + 1)]
        self._cosign(chance.randrange(WITNESSES), shown, tiles=chance.random() < 0.5)

    def cosign_lie(self, chance: random.Random) -> None:
        with open_channel(self.origin, CHANNEL) as channel:
            leaves = [leaf for _, leaf in channel.index.tree_leaves(0, channel.head().height)]
        at = chance.randrange(len(leaves))
        forked = [*leaves[:at], *(bytes([255]) + leaf[1:] for leaf in leaves[at:]), bytes(32)]
        number = chance.randrange(WITNESSES)
        if self.witnesses[number].head.size > at:
            taken = self._cosign(number, forked, tiles=chance.random() < 0.5)
            assert not isinstance(taken, WatchedLog), "a witness signed a fork"
            assert isinstance(taken, HeadFork), "a witness keeps no evidence of a fork"

    def restart_witness(self, chance: random.Random) -> None:
        """A witness goes on from its file."""
        number = chance.randrange(WITNESSES)
        self.witnesses[number] = parse_watched(self.witnesses[number].to_bytes())

    # How it is done

    def _open(self, **options: Any) -> Any:
        return open_log(self.origin, CHANNEL, self.keys[-1], now_ns=self._now, **options)

    def _now(self) -> int:
        return self.now_ns

    def _height(self) -> int:
        with open_channel(self.origin, CHANNEL) as channel:
            return channel.head().height

    def _pull(self, replica: Path, line: Line) -> None:
        try:
            pull_channel(line, replica, CHANNEL)  # type: ignore[arg-type]
        except RopewalkError as error:  # what it pulled must be the channel in the end
            self.tell(f"  {type(error).__name__}: {error.detail}")

    def _fork(self, home: Path, height: int) -> None:
        blocks = self._blocks(self.origin)
        policy_hash = Block.from_lines(blocks[height][1]).header.policy_hash
        del blocks[height:]
        create_channel(home, CHANNEL, "node", NODE.public, None)
        sealed = [Block.from_lines(lines) for _, lines in blocks]
        key = NODE if self.keys == [NODE] else NEXT
        rotated = any(envelope_id(raw) == rotation().id for block in sealed for raw in block.envelopes)
        other = seal(
            key if rotated else NODE,
            channel=CHANNEL,
            height=height,
            prev_block_hash=sealed[-1].hash if sealed else bytes(32),
            envelopes=[observed(10**6 + height).raw],
            policy_hash=policy_hash,
            timestamp_ns=self.now_ns + 10**12,
        )
        with OpenReplica(Channel(home, CHANNEL), wait_s=0) as copy:
            for block in (*sealed, other):
                copy.log.insert(block)

    def _blocks(self, home: Path) -> list[tuple[int, list[bytes]]]:
        if not (home / "ledger" / CHANNEL / "channel.json").exists():
            return []
        with open_channel(home, CHANNEL) as channel:
            return list(channel.lines())

    def _cosign(self, number: int, leaves: Sequence[bytes], *, tiles: bool) -> WatchedLog | HeadFork | None:
        """Show a head to a witness, with a proof or with the published tiles; return what it made of it."""
        witness, tree = self.witnesses[number], merkle.MerkleTree(leaves, merkle.SHA256)
        old = witness.head.size
        try:
            proof = tree.consistency(old, tree.size) if 0 < old <= tree.size else ()
            note = signed_head(ORIGIN, CHANNEL, tree.size, tree.root(), HEADS)
            shown = WitnessRequest(note, None, ()) if tiles else WitnessRequest(note, old, tuple(proof))
            taken = accept_head(
                witness, shown, self.now_ns // 10**9, tree if tiles and old <= tree.size else None
            )
        except RopewalkError as error:
            self.tell(f"  {type(error).__name__}: {error.detail}")
            return None
        if isinstance(taken, HeadFork):
            self.tell("  a fork, kept as evidence")
            return taken
        assert taken.head.size >= witness.head.size, "a witness went back"
        assert taken.time_s >= witness.time_s, "a witness signed at an earlier time"
        self.witnesses[number] = taken
        self.signed.append((tree.size, tree.root()))
        return taken

    # What must hold

    def check(self) -> None:
        for replica in self.replicas:
            self._pull(replica, Line(self.origin, CHANNEL))
        whole = self._blocks(self.origin)
        for replica in self.replicas:
            assert self._blocks(replica) == whole, f"{replica.name} is not the channel"
        with open_channel(self.origin, CHANNEL) as channel:
            found = _ids(channel)
            leaves = [leaf for _, leaf in channel.index.tree_leaves(0, channel.head().height)]
        assert len(set(found)) == len(found), "an envelope is there twice"
        assert [each for each in found if each in set(self.acknowledged)] == self.acknowledged, (
            "receipts do not hold"
        )
        tree = merkle.MerkleTree(leaves, merkle.SHA256)
        assert all(tree.root(size) == root for size, root in self.signed), "a witness signed another history"
        for home in (self.origin, *self.replicas):
            assert verify_stored(home, CHANNEL, deep=True).ok, f"{home.name} does not verify"


def _ids(channel: Channel) -> list[str]:
    return [envelope_id(raw).hex() for block in channel.blocks() for raw in block.envelopes]


def steps_of(seed: int) -> list[Step]:
    """Return the steps of a seed."""
    return draw(seed, KINDS, TRUE, STEPS)


def play(steps: Sequence[Step], tell: Tell = lambda _text: None) -> int:
    """Live through the steps and check the end; return how many envelopes were acknowledged."""
    with tempfile.TemporaryDirectory(prefix="ropewalk-world-", dir=MEMORY) as folder:
        world = World(Path(folder), tell)
        for step in steps:
            tell(step.kind)
            getattr(world, step.kind)(random.Random(step.seed))
        world.check()
        return len(world.acknowledged)


def run(seed: int, tell: Tell = lambda _text: None, *, deep: bool = False) -> int:
    """Run one world; if it fails, say which of its steps are enough."""
    return run_or_minimise(seed, steps_of(seed), play, tell)


if __name__ == "__main__":
    sys.exit(run_worlds("Seeded worlds of a channel, its replicas and its witnesses.", run))
