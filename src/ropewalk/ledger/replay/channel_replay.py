"""Replay a stored channel: blocks from disk, snapshots to a companion channel, divergence to an alert.

<home>/ledger/<channel>.snapshots/              the companion channel: signed `ledger.checkpoint` envelopes and alerts
<home>/ledger/<channel>.snapshots/states/…      the states they name, by root; disposable, checked when used
<home>/ledger/<channel>.snapshots/diverged/…    files that reproduce a divergence
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropewalk.disk.durable import file_errors, sync
from ropewalk.errors import NotFound, RangeExceeded, Unverified
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import blake3
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block.block import GENESIS, Block
from ropewalk.ledger.bundle.files import export_blocks
from ropewalk.ledger.channel.channel import Channel, OpenLog, open_log
from ropewalk.ledger.channel.settings import FOLDER, create_channel
from ropewalk.ledger.evidence.recheck import EvidenceTally
from ropewalk.ledger.keys.history import KeyHistory
from ropewalk.ledger.keys.rotate import find_keys
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.replay.reducers import Reducer
from ropewalk.ledger.replay.replay import (
    Replay,
    ReplayDivergence,
    Snapshot,
    alert_of,
    companion,
    snapshot_envelope,
)
from ropewalk.ledger.replay.runner import open_fold_runner
from ropewalk.ledger.replay.snapshots import RefusedSnapshot, read_snapshots, resume_newest
from ropewalk.ledger.rules.policy import Policy
from ropewalk.ledger.versions.lifecycle import version_to_write

Lines = Iterable[tuple[int, list[bytes]]]


@dataclass(slots=True)
class ReplayResult:
    """The result of a replay."""

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
    refused: list[RefusedSnapshot] = field(default_factory=list)
    block_hash: bytes = GENESIS

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `ledger replay` prints."""
        return {
            "channel": self.channel,
            "reducer": self.reducer,
            "height": self.height,
            "blocks": self.blocks,
            "envelopes": self.envelopes,
            "block_hash": self.block_hash.hex(),
            "state_root": self.state_root.hex(),
            "policy_hash": None if self.policy_hash is None else self.policy_hash.hex(),
            "from_snapshot": self.started_from,
            "snapshots": self.snapshots,
            "compared": self.compared,
            "refused": [each.to_json() for each in self.refused],
            "state": self.state,
        }


def replay_channel(
    home: Path,
    channel: str,
    reducer: Reducer,
    *,
    key: SigningKey | None = None,
    until: int | None = None,
    snapshot_every: int | None = None,
    from_snapshot: bool = False,
    unsafe_no_guard: bool = False,
    watch: Callable[[Lines], Lines] | None = None,
    verified: range = range(0),
    trust: Trust | None = None,
) -> ReplayResult:
    """Fold a channel up to a height. With a `key`, snapshots are signed and stored; recorded ones are always compared.

    A `trust` file replaces the channel's own settings: signers, policy and evidence.

    A reducer that is not built in runs under the guard, with a fixed hash seed (`runner`). `unsafe_no_guard` runs it
    in this process, where it may read the clock, randomness or the network and give another state each time.

    `verified` are heights whose signatures and envelopes the caller has just verified; all others are verified here.
    """
    with Channel(home, channel) as reading:
        settings, last = reading.settings, _last_height(reading, until)
        _check_policy(trust, settings.policy, channel)
        place = open_fold_runner(reducer, unsafe_no_guard=unsafe_no_guard)
        replay = Replay(
            reducer, channel, key_history=_key_history(reading, trust), policy=settings.policy, folding=place
        )
        snapshots, refused = _snapshots(home, channel)
        keep = _SnapshotStore(home, channel, settings.key, key)
        started = None
        try:
            if from_snapshot:
                started, broken = resume_newest(
                    replay, snapshots, last=last, state_of=keep.read, block_at=reading.index.block_hash
                )
                refused += broken
            out = ReplayResult(channel, reducer.name, -1, 0, 0, b"", None, None, started, refused=refused)
            folding = _ReplayRun(reading, replay, keep, out, snapshots, trust)
            found: Lines = reading.lines(replay.height + 1, last) if last > replay.height else ()
            for height, lines in watch(found) if watch is not None else found:
                folding.take(height, lines, verified=height in verified)
                if snapshot_every is not None and (height + 1) % snapshot_every == 0:
                    folding.snapshot()
            out.state, out.state_root = replay.state, replay.root()
        finally:
            place.close()
            keep.close()
    out.height, out.block_hash, out.envelopes = replay.height, replay.block_hash, replay.envelopes
    policy = replay.policy_at(replay.height)
    out.policy_hash = None if policy is None else policy.hash
    return out


def _key_history(reading: Channel, trust: Trust | None) -> KeyHistory:
    """Return the key history: the keys of the channel, as far as a trust file leads to them."""
    key_history = KeyHistory(trust or reading.settings.trust(), policy=reading.settings.policy)
    key_history.follow(reading.key_proofs())
    return key_history


def _last_height(reading: Channel, until: int | None) -> int:
    size = reading.head().height
    last = size - 1 if until is None else until
    if last >= size:
        raise RangeExceeded(f"block {last} of a channel of {size} blocks", height=last, size=size)
    return last


class _ReplayRun:
    """A running replay: each block is checked and folded, then compared with the snapshot recorded at its height."""

    def __init__(
        self,
        reading: Channel,
        replay: Replay,
        keep: _SnapshotStore,
        out: ReplayResult,
        snapshots: Iterable[Snapshot],
        trust: Trust | None,
    ) -> None:
        self._reading, self._replay, self._keep, self._out = reading, replay, keep, out
        self._recorded = {each.height: each for each in snapshots if each.evaluator == replay.evaluator}
        self._evidence = EvidenceTally(trust) if trust is not None and trust.judges_evidence else None
        # The last height at which the state was known to be right, and that state: the start of a divergence.
        self._agreed = out.started_from
        self._kept = keep.read(replay.root()) if out.started_from is not None else None

    def take(self, height: int, lines: list[bytes], *, verified: bool) -> None:
        """Fold the next block; raise if it is invalid or the state differs from the recorded one."""
        if self._evidence is not None:
            self._evidence.look_into(height, lines)
            self._evidence.require()
        if verified:
            self._replay.follow(lines)
        else:
            self._replay.feed(lines)
        self._out.blocks += 1
        if height in self._recorded:
            self._out.compared += 1
            wrong = self._replay.compare(self._recorded[height], self._agreed)
            if wrong is not None:
                raise self._keep.diverged(self._reading, wrong, self._replay, self._kept)
            self._agree(height)

    def snapshot(self) -> None:
        """Sign and store the current state."""
        self._out.snapshots.append(self._keep.snapshot(self._replay))
        self._agree(self._replay.height)

    def _agree(self, height: int) -> None:
        self._agreed, self._kept = height, self._replay.encoded.raw


def _check_policy(trust: Trust | None, policy: Policy | None, channel: str) -> None:
    """Raise unless the stored policy is the one a trust file pins."""
    have = policy.hash if policy is not None else None
    if trust is not None and trust.policy_hash is not None and trust.policy_hash != have:
        raise Unverified(
            f"channel {channel}: the trust file pins policy {trust.policy_hash.hex()[:16]}…, the channel has "
            f"{have.hex()[:16] + '…' if have is not None else 'none'}",
            expected=trust.policy_hash.hex(),
            got=None if have is None else have.hex(),
        )


def replay_signing(
    home: Path, channel: str, reducer: Reducer, *, node_keys: Path, user_keys: Path, **options: Any
) -> ReplayResult:
    """Run `replay_channel` with the channel's own key, found by name; without it snapshots are checked, not signed."""
    with Channel(home, channel) as reading:
        key_history = reading.key_history()
    found = [
        key for key in find_keys(key_history, node_keys, user_keys) if key.public == key_history.current.key
    ]
    if not found and options.get("snapshot_every") is not None:
        raise NotFound(
            f"the signing key of channel {channel} is not available: {key_history.current.key.did()}",
            advice="Snapshots need it; a replay without snapshots needs no key.",
        )
    # A replica has none: replay needs no key, only snapshots do.
    return replay_channel(home, channel, reducer, key=found[0] if found else None, **options)


def recorded_snapshots(home: Path, channel: str) -> list[Snapshot]:
    """Return the snapshots on the companion channel that are signed by its key."""
    return _snapshots(home, channel)[0]


def _snapshots(home: Path, channel: str) -> tuple[list[Snapshot], list[RefusedSnapshot]]:
    try:
        reading = Channel(home, companion(channel))
    except NotFound:
        return [], []
    with reading, Channel(home, channel) as main:
        # The channel defines which keys are valid, not a companion that anyone could have written.
        return read_snapshots(
            channel, [validity.key for validity in main.key_history().validities], reading.lines()
        )


class _SnapshotStore:
    """Stores snapshots, states and divergences."""

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
        """Store the state, then sign for it: an envelope never names a state that is not stored."""
        made = snapshot_envelope(replay.snapshot(), self._signing(), replay.now_ns, self._version())
        path = self._folder / "states" / f"{replay.root().hex()}.json"
        log = self._open()
        if not path.exists():
            _write(path, replay.encoded.raw)
        log.log.submit(made.raw)
        return made.hex_id

    def diverged(
        self, reading: Channel, wrong: ReplayDivergence, replay: Replay, kept: bytes | None
    ) -> Unverified:
        """Store the reproduction of a divergence, append an alert, and raise."""
        error = Unverified(
            f"replay of {wrong.channel} by {wrong.evaluator} diverges at height {wrong.height}: "
            f"recorded {wrong.expected.hex()[:16]}…, computed {wrong.got.hex()[:16]}…",
            **wrong.to_json(),
            advice="The reducer changed, or it is not pure.",
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
        alert = alert_of(wrong, self._key, replay.now_ns, where, self._version())
        self._open().log.submit(alert.raw)
        error.fields.update(alert=alert.hex_id, folder=str(folder))
        return error

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _version(self) -> str:
        return version_to_write(self._home, None, time.time_ns())

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
    with file_errors(f"state {path.name}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as stream:
            stream.write(raw)
            stream.flush()
            sync(stream.fileno())
        beside.replace(path)
