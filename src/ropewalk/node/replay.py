"""Replaying a stored channel: blocks from disk, snapshots to a companion channel, divergence to an alert.

<home>/ledger/<channel>.snapshots/              the companion channel: signed `ledger.checkpoint` envelopes and alerts
<home>/ledger/<channel>.snapshots/states/…      the states they name, by root; disposable, checked when used
<home>/ledger/<channel>.snapshots/diverged/…    what is needed to see a divergence again
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from ropewalk.errors import NotFound, RangeExceeded, Unverified
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import blake3
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block import Block, check_contents, check_signature
from ropewalk.ledger.envelope import parse_stored
from ropewalk.ledger.reducers import REDUCERS, Reducer
from ropewalk.ledger.replay import (
    SNAPSHOT_TYPE,
    Divergence,
    Replay,
    Snapshot,
    alert_of,
    companion,
    parse_snapshot,
    snapshot_envelope,
)
from ropewalk.ledger.rules import Context, rule_1_canonical_hash, rule_2_signature_scope
from ropewalk.node.bundle import export_blocks
from ropewalk.node.guard import guarded
from ropewalk.node.ledger import FOLDER, Channel, OpenLog, create_channel, open_log
from ropewalk.stores.durable import unavailable

__all__ = ["Replayed", "find_reducer", "recorded_snapshots", "replay_channel"]

Lines = Iterable[tuple[int, list[bytes]]]


@dataclass(slots=True)
class Replayed:
    """What a replay came to."""

    channel: str
    reducer: str
    height: int
    blocks: int
    envelopes: int
    state_root: bytes
    state: Any
    policy_hash: bytes | None
    started_from: int | None = None
    snapshots: list[str] = field(default_factory=list)
    compared: int = 0

    def to_json(self) -> dict[str, Any]:
        """As `ledger replay` prints it."""
        return {
            "channel": self.channel,
            "reducer": self.reducer,
            "height": self.height,
            "blocks": self.blocks,
            "envelopes": self.envelopes,
            "state_root": self.state_root.hex(),
            "policy_hash": None if self.policy_hash is None else self.policy_hash.hex(),
            "from_snapshot": self.started_from,
            "snapshots": self.snapshots,
            "compared": self.compared,
            "state": self.state,
        }


def find_reducer(name: str) -> Reducer:
    """A reducer that ships, or `module:function`; a function's attribute `initial` is the state it starts from."""
    if name in REDUCERS:
        return REDUCERS[name]
    module, _, attribute = name.partition(":")
    try:
        fold = getattr(import_module(module), attribute) if attribute else None
    except (ImportError, AttributeError) as error:
        raise NotFound(f'no reducer "{name}": {error}', name=name) from error
    if not callable(fold):
        raise NotFound(
            f'no reducer "{name}"', name=name, advice=f"One of {', '.join(REDUCERS)}, or module:function."
        )
    initial = jcs.encode(getattr(fold, "initial", {}))
    return Reducer(name, fold, lambda: jcs.parse(initial))


def replay_channel(
    home: Path,
    channel: str,
    reducer: Reducer,
    *,
    key: SigningKey | None = None,
    until: int | None = None,
    snapshot_every: int | None = None,
    from_snapshot: bool = False,
    guard: bool = False,
    watch: Callable[[Lines], Lines] | None = None,
) -> Replayed:
    """Fold a channel up to a height. With a `key`, snapshots are signed and kept; recorded ones are always compared."""
    with Channel(home, channel) as reading:
        settings = reading.settings
        size = reading.head().height
        last = size - 1 if until is None else until
        if last >= size:
            raise RangeExceeded(f"block {last} of a channel of {size} blocks", height=last, size=size)
        replay = Replay(
            guarded(reducer) if guard else reducer,
            channel,
            signers=(settings.signer,),
            policy=settings.policy,
        )
        recorded = {
            each.height: each
            for each in recorded_snapshots(home, channel)
            if each.evaluator == replay.evaluator
        }
        keep = _Keeper(home, channel, settings.key, key)
        started = _start(reading, replay, recorded, keep, last) if from_snapshot else None
        agreed, kept = started, keep.read(replay.root()) if started is not None else None
        out = Replayed(channel, reducer.name, -1, 0, 0, b"", None, None, started)
        try:
            found: Lines = reading.lines(replay.height + 1, last) if last > replay.height else ()
            for height, lines in watch(found) if watch is not None else found:
                replay.feed(lines)
                out.blocks += 1
                if height in recorded:
                    out.compared += 1
                    wrong = replay.compare(recorded[height], agreed)
                    if wrong is not None:
                        raise keep.diverged(reading, wrong, replay, kept)
                    agreed, kept = height, jcs.encode(replay.state)
                if snapshot_every is not None and (height + 1) % snapshot_every == 0:
                    out.snapshots.append(keep.snapshot(replay))
                    agreed, kept = height, jcs.encode(replay.state)
        finally:
            keep.close()
    out.height, out.envelopes, out.state, out.state_root = (
        replay.height,
        replay.envelopes,
        replay.state,
        replay.root(),
    )
    out.policy_hash = None if settings.policy is None else settings.policy.hash
    return out


def recorded_snapshots(home: Path, channel: str) -> list[Snapshot]:
    """The snapshots on the companion channel, each with its block's seal and its own signature checked."""
    try:
        reading = Channel(home, companion(channel))
    except NotFound:
        return []
    found = []
    with reading:
        signer = reading.settings.signer
        for block in reading.blocks():
            check_signature(block.record, (signer,))
            check_contents(block)
            for raw in block.envelopes:
                envelope = parse_stored(raw)
                if envelope.event_type != SNAPSHOT_TYPE:
                    continue
                rules = (rule_1_canonical_hash, rule_2_signature_scope)
                if envelope.public_key != signer or any(
                    rule(envelope, Context()).status != "passed" for rule in rules
                ):
                    raise Unverified(f"snapshot {envelope.hex_id} is not signed by the channel's key")
                found.append(parse_snapshot(envelope))
    return found


def _start(
    reading: Channel, replay: Replay, recorded: dict[int, Snapshot], keep: _Keeper, last: int
) -> int | None:
    """Resume from the highest recorded snapshot whose state is still here; None if there is none."""
    for height in sorted(recorded, reverse=True):
        snapshot = recorded[height]
        raw = keep.read(snapshot.state_root)
        if height > last or raw is None:
            continue
        if reading.index.block_hash(height) != snapshot.block_hash:
            raise Unverified(f"the snapshot at {height} stands on another block than the channel's")
        replay.resume(snapshot, jcs.parse_canonical(raw))
        return height
    return None


class _Keeper:
    """Where snapshots, states and divergences go."""

    def __init__(self, home: Path, channel: str, key_name: str, key: SigningKey | None) -> None:
        self._home, self._channel, self._key_name, self._key = home, channel, key_name, key
        self._folder = home / FOLDER / companion(channel)
        self._log: OpenLog | None = None

    def read(self, root: bytes) -> bytes | None:
        try:
            return (self._folder / "states" / f"{root.hex()}.json").read_bytes()
        except FileNotFoundError:
            return None

    def snapshot(self, replay: Replay) -> str:
        """Keep the state, then sign for it: an envelope never names a state that is not there."""
        made = snapshot_envelope(replay.snapshot(), self._signing(), replay.now_ns)
        path = self._folder / "states" / f"{replay.root().hex()}.json"
        log = self._open()
        if not path.exists():
            _write(path, jcs.encode(replay.state))
        log.log.submit(made.raw)
        return made.hex_id

    def diverged(self, reading: Channel, wrong: Divergence, replay: Replay, kept: bytes | None) -> Unverified:
        """Keep what reproduces it, raise the alarm, and say so."""
        error = Unverified(
            f"replay of {wrong.channel} by {wrong.evaluator} diverges at height {wrong.height}: "
            f"recorded {wrong.expected.hex()[:16]}…, computed {wrong.got.hex()[:16]}…",
            **wrong.to_json(),
            advice="The reducer changed, or it is not pure; run again with --guard.",
        )
        if self._key is None:
            return error
        folder = self._folder / "diverged" / f"{wrong.height}-{wrong.got.hex()[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
        blocks: Iterable[Block] = reading.blocks(wrong.start, wrong.height)
        export_blocks(blocks, self._key, folder / "blocks.tar.zst")
        policy = reading.settings.policy
        if policy is not None:
            _write(folder / "policy.json", policy.to_bytes())
        inputs: dict[str, Any] = {
            "version": 1,
            "reducer": replay.reducer.name,
            "evaluator": wrong.evaluator,
            "agreed_height": wrong.agreed,
            "state": None if kept is None else jcs.parse(kept),
        }
        _write(folder / "inputs.json", jcs.encode(inputs))
        digest = blake3((folder / "blocks.tar.zst").read_bytes()).hex()
        where = {"bundle": f"diverged/{folder.name}/blocks.tar.zst", "blake3": digest}
        alert = alert_of(wrong, self._key, replay.now_ns, where)
        self._open().log.submit(alert.raw)
        error.fields.update(alert=alert.hex_id, folder=str(folder))
        return error

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _signing(self) -> SigningKey:
        if self._key is None:
            raise NotFound("snapshots need the channel's key")
        return self._key

    def _open(self) -> OpenLog:
        if self._log is None:
            key, name = self._signing(), companion(self._channel)
            if not (self._folder / "channel.json").exists():
                create_channel(self._home, name, self._key_name, key.public)
            self._log = open_log(self._home, name, key, wait_s=30.0)
        return self._log


def _write(path: Path, raw: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as stream:
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    except OSError as error:
        raise unavailable(error, f"state {path.name}") from error
