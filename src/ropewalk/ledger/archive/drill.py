"""A recovery drill (S4 §13): rebuild a channel from its archives in an empty folder, and compare it with the live one.

<home>/ledger/<channel>/drills/<time>.json    the result of each drill, if the channel is local
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from ropewalk.disk.durable import Disk, file_errors
from ropewalk.errors import NotFound, RopewalkError, Unavailable
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.report import Report, Step
from ropewalk.ledger.archive.files import Watch
from ropewalk.ledger.archive.restore import RestoreResult, restore_channel
from ropewalk.ledger.channel.channel import Channel
from ropewalk.ledger.channel.settings import FOLDER
from ropewalk.ledger.envelope.model import envelope_id
from ropewalk.ledger.proof.proof import Proof, verify_proof
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.replay.channel_replay import replay_channel
from ropewalk.ledger.replay.reducers import Reducer, find_reducer

REDUCER: Final = "counts"
NO_LIVE: Final = "there is no local channel to compare with"


@dataclass(frozen=True, slots=True)
class Drill:
    """The result of a drill: what was rebuilt, its roots, the duration, and every step."""

    channel: str
    started_at: str
    seconds: dict[str, float]
    report: Report
    facts: dict[str, Any]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return self.report.ok

    @property
    def seconds_total(self) -> float:
        return round(sum(self.seconds.values()), 3)

    def to_json(self) -> dict[str, Any]:
        """Return the recorded JSON form."""
        return {
            "version": 1,
            "kind": "drill",
            "ok": self.ok,
            "channel": self.channel,
            "started_at": self.started_at,
            "seconds_total": self.seconds_total,
            "seconds": self.seconds,
            **self.facts,
            **self.report.to_json(),
        }


class _Watch:
    """Measures the duration of each part."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._last = clock, clock()
        self.seconds: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = self._clock()
        self.seconds[name], self._last = round(now - self._last, 3), now


def run_drill(
    source: Path,
    channel: str,
    live: Path | None = None,
    *,
    trust: Trust | None = None,
    deep: bool = False,
    watch: Watch | None = None,
    now_ns: Callable[[], int] = time.time_ns,
    clock: Callable[[], float] = time.monotonic,
) -> Drill:
    """Rebuild a channel from its archives in a temporary folder, which is removed afterwards; change nothing else.

    Roots, a few proofs and the state of a replay are computed there. If `live` has the channel, every block must be
    the same.
    """
    started = datetime.fromtimestamp(now_ns() / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    laps, facts = _Watch(clock), dict[str, Any]()
    trust = trust if trust is not None else _live_trust(live, channel)
    with tempfile.TemporaryDirectory(prefix="ropewalk-drill-") as folder:
        home = Path(folder)
        try:
            restored = restore_channel(source, channel, home, trust=trust, deep=deep, watch=watch)
        except (NotFound, Unavailable):
            raise  # this is not a result about the archives
        except RopewalkError as error:
            laps.lap("restore")
            step = Step("rebuilt", "failed", error.detail, dict(error.fields))
            return Drill(channel, started, laps.seconds, Report.of([step], entries=0, blocks=0), facts)
        laps.lap("restore")
        steps = [Step("rebuilt", "passed", f"{restored.blocks} blocks from {restored.archives} archives")]
        steps += restored.report.steps
        with Channel(home, channel) as rebuilt:
            facts |= _roots(rebuilt, restored.blocks)
            laps.lap("index")
            steps += _prove(rebuilt, restored, trust or rebuilt.trust())
            laps.lap("proofs")
            reducer = find_reducer(REDUCER)
            facts["state_root"] = _state(home, channel, restored.blocks, reducer)
            laps.lap("replay")
            steps += _compare(rebuilt, restored, live, facts)
            laps.lap("compare")
    report = Report(tuple(steps), dict(restored.report.counts))
    return Drill(channel, started, laps.seconds, report, facts)


def _live_trust(live: Path | None, channel: str) -> Trust | None:
    """Return the trust of the live channel; None without one, or if it cannot be read."""
    if live is None:
        return None
    try:
        with Channel(live, channel) as there:
            return there.trust()
    except RopewalkError:
        return None  # the comparison reports what is wrong


def record_drill(drill: Drill, path: Path) -> Path:
    """Write the result; in a folder, under the time of the drill."""
    with file_errors(f"record of the drill {path}"):
        if path.is_dir():
            path /= f"{drill.started_at.replace(':', '')}.json"
        Disk().replace(path, jcs.encode(drill.to_json()))
    return path


def _roots(channel: Channel, size: int) -> dict[str, Any]:
    """Return last block and the roots of both trees of a channel at a size."""
    outer, headers = merkle.Frontier(merkle.RANGE), merkle.Frontier(merkle.SHA256)
    last = b""
    for last, leaf in channel.index.tree_leaves(0, size):
        outer.append(last)
        headers.append(leaf)
    return {"block_hash": last.hex(), "outer_root": outer.root().hex(), "header_root": headers.root().hex()}


def _state(home: Path, channel: str, size: int, reducer: Reducer) -> str:
    """Return the root of the state after a replay; the blocks are already verified."""
    done = replay_channel(home, channel, reducer, until=size - 1, verified=range(size))
    return done.state_root.hex()


def _sample(channel: Channel, size: int) -> list[bytes]:
    """Return the ids of the first and the last envelope of the first, the middle and the last block."""
    found: list[bytes] = []
    for height in sorted({0, size // 2, size - 1}):
        lines = channel.segments.read(channel.index.block(height).place, height).lines
        found += dict.fromkeys(map(envelope_id, (lines[1], lines[-1])))
    return found


def _prove(channel: Channel, restored: RestoreResult, trust: Trust) -> list[Step]:
    """Prove a few envelopes from the rebuilt channel, as an external verifier would."""
    found = _sample(channel, restored.blocks)
    for name in found:
        report = verify_proof(channel.prove(name), trust)
        if report.first_failure is not None:
            return [Step("proofs", "failed", f"{name.hex()}: {report.first_failure.detail}")]
    return [Step("proofs", "passed", f"{len(found)} envelopes proved")]


def _compare(
    rebuilt: Channel, restored: RestoreResult, live: Path | None, facts: dict[str, Any]
) -> list[Step]:
    """Compare the rebuilt channel with the live one: blocks, roots, proofs, the state of a replay."""
    name, size = restored.channel, restored.blocks
    names = ("live_blocks", "live_roots", "live_proofs", "live_replay")
    if live is None or not (live / FOLDER / name / "channel.json").exists():
        return [Step.optional(each, NO_LIVE) for each in names]
    try:
        with Channel(live, name) as there:
            known = there.head().height
            facts["live_blocks"] = known
            if known < size:
                why = f"the live channel has {known} blocks, its archives {size}"
                return [Step(names[0], "failed", why)]
            pairs = zip_longest(rebuilt.lines(0, size - 1), there.lines(0, size - 1))
            differ = next((height for height, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
            if differ is not None:
                return [Step(names[0], "failed", f"block {differ} differs", {"height": differ})]
            steps = [
                Step(names[0], "passed", f"{size} blocks, byte for byte; {known - size} are not archived")
            ]
            roots = _roots(there, size)
            wrong = [each for each in roots if roots[each] != facts[each]]
            steps.append(_same(names[1], wrong, "last block, outer root and header root"))
            sample = _sample(rebuilt, size)
            wrong = [each.hex() for each in sample if rebuilt.prove(each) != _prove_below(there, each, size)]
            steps.append(_same(names[2], wrong, "proofs"))
        state = _state(live, name, size, find_reducer(REDUCER))
        steps.append(_same(names[3], [] if state == facts["state_root"] else [state], f"state of {REDUCER}"))
        return steps
    except RopewalkError as error:
        return [Step(names[0], "failed", f"the live channel cannot be read: {error.detail}")]


def _prove_below(channel: Channel, envelope_id: bytes, size: int) -> Proof:
    """Return the proof of an envelope with the key statements of the first `size` blocks, the ones in archives."""
    proof = channel.prove(envelope_id)
    return replace(proof, keys=tuple(each for each in proof.keys if each.record.header.height < size))


def _same(name: str, wrong: list[str], what: str) -> Step:
    if wrong:
        return Step(name, "failed", f"{what}: {', '.join(wrong)} differ")
    return Step(name, "passed", f"the same {what}")
