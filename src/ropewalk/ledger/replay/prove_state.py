"""Prove one member of the state of a stored channel, at a snapshot."""

from __future__ import annotations

from pathlib import Path

from ropewalk.errors import NotFound, RopewalkError
from ropewalk.ledger.channel.channel import Channel, open_channel
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.proof.proof import Proof
from ropewalk.ledger.replay.channel_replay import recorded_snapshots, replay_channel
from ropewalk.ledger.replay.reducers import Reducer
from ropewalk.ledger.replay.replay import Snapshot, companion, parse_snapshot
from ropewalk.ledger.replay.state_map import Key, StateMap, value_at
from ropewalk.ledger.replay.state_proof import StateProof
from ropewalk.ledger.rules.policy import EVALUATOR


def prove_state(
    home: Path, channel: str, reducer: Reducer, key: Key, height: int | None = None
) -> StateProof:
    """Replay a channel up to a snapshot (the last one, or the one at `height`) and prove one member of its state."""
    found = _find_snapshot(home, channel, reducer, height)
    done = replay_channel(home, channel, reducer, until=found.height, from_snapshot=True)
    of_state = StateMap(done.state)
    with open_channel(home, companion(channel)) as reading:
        proof = _prove_snapshot(reading, found)
    return StateProof(
        channel, found.height, reducer.name, key, value_at(done.state, key), of_state.prove(key), proof
    )


def _find_snapshot(home: Path, channel: str, reducer: Reducer, height: int | None) -> Snapshot:
    evaluator = f"{EVALUATOR} {reducer.name}"
    usable = [
        each
        for each in recorded_snapshots(home, channel)
        if each.evaluator == evaluator and each.state_map_root is not None and height in (None, each.height)
    ]
    if not usable:
        open_channel(home, channel).close()  # raises for a name that is no channel
        at = "" if height is None else f" at height {height}"
        raise NotFound(
            f"channel {channel} has no snapshot of reducer {reducer.name}{at} that proves single keys",
            advice=f"Make one: ropewalk ledger replay --channel {channel} --reducer {reducer.name} --snapshot-every N",
        )
    return max(usable, key=lambda each: each.height)


def _prove_snapshot(reading: Channel, wanted: Snapshot) -> Proof:
    for block in reading.blocks():
        for raw in block.envelopes:
            proof_of = _id_of_snapshot(raw, wanted)
            if proof_of is not None:
                return reading.prove(proof_of)
    raise NotFound(f"the snapshot at height {wanted.height} is gone")


def _id_of_snapshot(raw: bytes, wanted: Snapshot) -> bytes | None:
    envelope = parse_stored(raw)
    try:
        return envelope.id if parse_snapshot(envelope) == wanted else None
    except RopewalkError:
        return None
