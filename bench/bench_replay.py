"""Replay beside a plain loop over parsed dictionaries, with the same reducer inlined as anybody would write it.

Verifying is not in the first comparison, because the peer does none: events are verified already on both sides. The
second row is the whole replay, bytes to root, beside the bare cost of parsing and verifying signatures.

The others fold events that each add three leaves to the state, with snapshots that prove single keys; the peer makes
the same snapshots without the root of the state map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bench.harness import Contestant, Result, compare
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block.block import GENESIS, seal
from ropewalk.ledger.envelope.envelope import build, parse_stored
from ropewalk.ledger.keys.history import KeyHistory
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.replay.reducers import REDUCERS, FoldContext
from ropewalk.ledger.replay.replay import Replay, Snapshot, snapshot_envelope

__all__ = ["run"]

PER_BLOCK = 500
ROUNDS = 3
STATUSES = ("success", "success", "failure", "finalize")
GROWING = 10_000  # events, each with a new key
SNAPSHOTS = (
    (500, 20),
    (500, 5),
    (500, 1),
    (50, 1),
)  # events in a block, blocks from one snapshot to the next


def run(quick: bool) -> list[Result]:
    """A million events; with `quick`, fifty thousand. Distinct events are few, so that memory is not the contest."""
    count = 50_000 if quick else 1_000_000
    key = SigningKey.generate("ed25519", bytes(range(32)))
    distinct = 2_000 if quick else 10_000
    events = [_event(number) for number in range(distinct)]
    runs = [events[at : at + PER_BLOCK] for at in range(0, distinct, PER_BLOCK)]

    def ours_fold() -> int:
        replay = Replay(REDUCERS["deployments"], "bench")
        for height in range(count // PER_BLOCK):
            replay.fold(runs[height % len(runs)], FoldContext("bench", height, height))
        replay.root()
        return count

    def peer_fold() -> int:
        state: dict[tuple[str, str], Any] = {}
        for height in range(count // PER_BLOCK):
            for event in runs[height % len(runs)]:
                kind, payload = event["event_type"], event["payload"]
                if kind in ("deployment.success", "deployment.finalize"):
                    state[payload["environment"], payload["service"]] = {
                        "since": event["timestamp"],
                        "height": height,
                        "version": payload["version"],
                    }
        return count

    few = 2_000 if quick else 20_000
    blocks = _sealed(key, [_envelope(key, _event(number)) for number in range(few)], PER_BLOCK)

    def ours_whole() -> int:
        replay = Replay(REDUCERS["deployments"], "bench", key_history=KeyHistory(Trust((key.public,), ())))
        for lines in blocks:
            replay.feed(lines)
        replay.root()
        return few

    def peer_whole() -> int:
        for lines in blocks:
            for raw in lines[1:]:
                envelope = parse_stored(raw)
                envelope.public_key.verify(envelope.preimage, envelope.signature_bytes)
        return few

    return [
        *compare(
            "replay: deployments",
            Contestant("ropewalk", ours_fold),
            [Contestant("plain loop", peer_fold)],
            target=0.5,
            rounds=ROUNDS,
            unit="events",
            note="events verified and parsed before, on both sides",
        ),
        *compare(
            "replay: verify and fold",
            Contestant("ropewalk", ours_whole),
            [Contestant("parse and verify", peer_whole)],
            target=None,
            rounds=ROUNDS,
            unit="events",
            note="from stored bytes to the root",
        ),
        *_snapshots(key),
    ]


def _snapshots(key: SigningKey) -> list[Result]:
    raws = [_envelope(key, _register(number)) for number in range(GROWING)]
    found = []
    for per_block, every in SNAPSHOTS:
        blocks = _sealed(key, raws, per_block)
        found += compare(
            f"replay: {len(blocks) // every} × snapshot of a growing state",
            Contestant("ropewalk", _replay_with(key, blocks, every, Replay.snapshot)),
            [Contestant("without state maps", _replay_with(key, blocks, every, _without_map))],
            target=0.667,
            rounds=ROUNDS,
            unit="events",
            note=f"blocks of {per_block} events, each with a new key",
        )
    return found


def _replay_with(
    key: SigningKey, blocks: Sequence[Sequence[bytes]], every: int, snapshot: Callable[[Replay], Snapshot]
) -> Callable[[], int]:
    def act() -> int:
        replay = Replay(REDUCERS["registers"], "bench", key_history=KeyHistory(Trust((key.public,), ())))
        for height, lines in enumerate(blocks, 1):
            replay.feed(lines)
            if height % every == 0:
                snapshot_envelope(snapshot(replay), key, replay.now_ns)
        return replay.envelopes

    return act


def _without_map(replay: Replay) -> Snapshot:
    return Snapshot(
        replay.channel, replay.height, replay.block_hash, replay.root(), None, None, replay.evaluator
    )


def _sealed(key: SigningKey, raws: Sequence[bytes], per_block: int) -> list[list[bytes]]:
    blocks, below = [], GENESIS
    for height, start in enumerate(range(0, len(raws), per_block)):
        block = seal(
            key,
            channel="bench",
            height=height,
            prev_block_hash=below,
            envelopes=raws[start : start + per_block],
            timestamp_ns=height,
        )
        blocks.append(block.lines())
        below = block.hash
    return blocks


def _event(number: int) -> dict[str, Any]:
    return {
        "event_class": "Observation",
        "event_type": f"deployment.{STATUSES[number % 4]}",
        "timestamp": "2024-11-01T12:00:00Z",
        "payload": {
            "environment": ("prod", "stage", "test")[number % 3],
            "service": f"service-{number % 97}",
            "version": str(number),
        },
    }


def _register(number: int) -> dict[str, Any]:
    key = f"key-{number * 7_919 % GROWING:07d}"  # new keys fall between old ones
    return {
        "event_type": "register.set",
        "timestamp": "2024-11-01T12:00:00Z",
        "payload": {"key": key, "value": number},
    }


def _envelope(key: SigningKey, event: dict[str, Any]) -> bytes:
    payload: jcs.Json = event["payload"]
    return build(
        key,
        domain="bench",
        event_class="Observation",
        event_type=event["event_type"],
        payload=payload,
        timestamp=event["timestamp"],
    ).raw
