"""Publish and retire muscles: fresh evidence and a compatibility test come first, then the channel records it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from ropewalk.errors import Conflict, Denied, NotFound, RopewalkError, Unverified
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.channel.channel import OpenLog, current_policy, open_log
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.envelope.fields import format_timestamp
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.evidence.settings import read_evidence
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.replay.reducers import Reducer
from ropewalk.ledger.versions import versions
from ropewalk.ledger.versions.lifecycle import read_lifecycle, version_to_write
from ropewalk.ledger.versions.muscles import (
    PUBLISH_TYPE,
    PUBLISHED_TYPE,
    RETIRE_TYPE,
    RETIRED_TYPE,
    Muscle,
    active_muscles,
)
from ropewalk.ledger.versions.rehearse import Lines, replay_versions
from ropewalk.ledger.versions.statements import DOMAIN

Clock = Callable[[], int]


def publish_muscle(
    home: Path,
    channel: str,
    muscle: Muscle,
    evidence: dict[str, Any] | None,
    keys: Sequence[SigningKey],
    reducer: Reducer,
    *,
    now_ns: Clock = time.time_ns,
    wait_s: float = 0.0,
    watch: Callable[[Lines], Lines] | None = None,
) -> tuple[LedgerReceipt, dict[str, Any]]:
    """Test a muscle with every version it supports, verify its evidence, and record it; return receipt and test."""
    known = active_muscles(home, channel).get(muscle.name)
    if known is not None and known[0].muscle_version == muscle.muscle_version:
        raise Conflict(
            f"muscle {muscle.name} {muscle.muscle_version} is already published in channel {channel}, block {known[1]}",
            advice="Give the new one another muscle_version.",
        )
    ask = _command(home, channel, keys[0], PUBLISH_TYPE, muscle, muscle.correlation_id, now_ns, evidence)
    _check_fresh(home, channel, ask, now_ns())
    tested = _test(home, channel, muscle, reducer, watch)
    payload = {**muscle.to_json(), "tested": tested}
    with open_log(home, channel, keys[0], also=keys[1:], now_ns=now_ns, wait_s=wait_s) as opened:
        return _record(opened, keys[0], ask, PUBLISHED_TYPE, payload), tested


def retire_muscle(
    home: Path,
    channel: str,
    name: str,
    keys: Sequence[SigningKey],
    *,
    now_ns: Clock = time.time_ns,
    wait_s: float = 0.0,
) -> tuple[LedgerReceipt, Muscle]:
    """Record that the active version of a muscle is no longer used."""
    known = active_muscles(home, channel).get(name)
    if known is None:
        raise NotFound(
            f"channel {channel} has no active muscle {name[:80]}", advice="See `ropewalk ledger muscle ls`."
        )
    muscle = known[0]
    ask = _command(
        home, channel, keys[0], RETIRE_TYPE, muscle, f"retire-{muscle.correlation_id}:{known[1]}", now_ns
    )
    with open_log(home, channel, keys[0], also=keys[1:], now_ns=now_ns, wait_s=wait_s) as opened:
        return _record(opened, keys[0], ask, RETIRED_TYPE, muscle.to_json()), muscle


def _command(
    home: Path,
    channel: str,
    key: SigningKey,
    event_type: str,
    muscle: Muscle,
    correlation_id: str,
    now_ns: Clock,
    evidence: dict[str, Any] | None = None,
) -> Envelope:
    return build(
        key,
        domain=DOMAIN,
        event_class="Command",
        event_type=event_type,
        payload=cast(jcs.Json, muscle.to_json()),
        timestamp=format_timestamp(now_ns()),
        correlation_id=correlation_id,
        evidence=evidence,
        protocol_version=version_to_write(home, current_policy(home, channel), now_ns()),
    )


def _record(
    opened: OpenLog, key: SigningKey, ask: Envelope, event_type: str, payload: dict[str, Any]
) -> LedgerReceipt:
    """Seal the Command and its Result; only the key that signs the block records a muscle."""
    if key.public != opened.log.key_history.current.key:
        raise Conflict(
            "the channel's signing key is being replaced", advice="Try again when the new key is valid."
        )
    done = build(
        key,
        domain=DOMAIN,
        event_class="Result",
        event_type=event_type,
        payload=cast(jcs.Json, payload),
        timestamp=ask.timestamp,
        parent=ask,
        protocol_version=ask.protocol_version,
    )
    for outcome in (outcomes := opened.log.submit_many((ask.raw, done.raw))):
        if isinstance(outcome, RopewalkError):
            raise outcome
    return cast(LedgerReceipt, outcomes[-1])


def _check_fresh(home: Path, channel: str, ask: Envelope, now_ns: int) -> None:
    """Raise unless the evidence is bound to the manifest, valid, and no older than the channel allows."""
    from ropewalk.ledger.evidence.trust import EvidenceTrust
    from ropewalk.ledger.evidence.verify import check_evidence

    evidence, settings = ask.value.get("attestation_evidence"), read_evidence(home, channel)
    if evidence is None:
        raise Denied(
            "a muscle needs evidence",
            advice="Make it with `ropewalk ledger evidence provenance --payload MANIFEST`, then use --evidence.",
        )
    if settings is None or settings.pins.max_age_s is None:
        raise Denied(
            f"channel {channel} limits no age of evidence, so none can be fresh",
            advice=f"Set it: `ropewalk ledger evidence set --channel {channel} --key K --builder B --max-age SECONDS`.",
        )
    if evidence["format"] == "snark.v1":
        raise Denied("a proof has no date, so it cannot be fresh", advice="Use slsa.v1 or a hardware report.")
    status, detail = check_evidence(ask, EvidenceTrust.of(settings.roots, settings.pins), now_ns)
    if status != "passed":
        raise Unverified(f"the evidence of muscle {ask.correlation_id} does not hold: {detail}")


def _test(
    home: Path, channel: str, muscle: Muscle, reducer: Reducer, watch: Callable[[Lines], Lines] | None
) -> dict[str, Any]:
    """Replay the channel with every version that the muscle supports; raise unless all give the same state."""
    known = {life.minor for life in versions.LIFECYCLE}
    lives = [life for life in read_lifecycle(home) if life.minor in known and muscle.supports(life.minor)]
    minors = [life.minor for life in lives if life.stage != "disabled"]
    if not any(life.stage in ("preview", "active", "maintenance") for life in lives):
        raise Denied(
            f"no version from {muscle.min_version} to {muscle.max_version} is in use here",
            advice="See `ropewalk ledger lifecycle show`.",
        )
    blocks, block_hash, roots = replay_versions(home, channel, minors, reducer, watch=watch)
    last = dict(zip((f"{minor}.x" for minor in minors), (root.hex() for root in roots[-1][1]), strict=True))
    if len(set(last.values())) != 1:
        raise Unverified(
            f"reducer {reducer.name} gives different states with the versions of muscle {muscle.name}",
            roots=last,
        )
    return {"reducer": reducer.name, "blocks": blocks, "block_hash": block_hash.hex(), "roots": last}
