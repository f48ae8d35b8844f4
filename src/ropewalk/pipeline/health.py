"""Health of attestations (S4 §14): how old evidence is, whether policies drift, whether chains held.

Measured per channel, domain and protocol version, over every envelope, one channel a hand. The clock is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import orjson

from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.binding import check_binding
from ropewalk.ledger.block import Block
from ropewalk.ledger.envelope import Envelope, build, parse_stored, parse_timestamp
from ropewalk.pipeline.ledgers import Ledgers
from ropewalk.pipeline.spread import spread
from ropewalk.stores.place import find_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FRESHNESS_S", "HEALTH_TYPE", "STALE_AT", "Health", "measure", "measure_channels", "observation"]

FRESHNESS_S = 24 * 3600  # S4 §14's example of a freshness budget
STALE_AT = 0.8  # of the budget
HEALTH_TYPE = "ledger.health"
ANSWERS = (
    "channel string, domain string, protocol_version string, envelopes bigint, attested bigint, "
    "attestation_age_seconds double, policy_hash_mismatch bigint, attestation_chain_valid boolean, stale boolean"
)


@dataclass(frozen=True, slots=True)
class Health:
    """How one part of a channel stands. Without evidence there is no age and nothing to be valid."""

    channel: str
    domain: str
    protocol_version: str
    envelopes: int
    attested: int
    attestation_age_seconds: float | None
    policy_hash_mismatch: int
    attestation_chain_valid: bool | None
    stale: bool

    def to_json(self) -> dict[str, Any]:
        """As `pipeline health` prints it."""
        return asdict(self)


def measure(
    channel: str,
    raws: Iterable[bytes],
    policy_hash: str | None,
    now_ns: int,
    freshness_s: float = FRESHNESS_S,
) -> list[Health]:
    """The health of a channel from its envelopes.

    >>> measure("ea.core", [], None, 0)
    []
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for raw in raws:
        value = orjson.loads(raw)
        key = (str(value.get("domain")), str(value.get("protocol_version")))
        part = found.setdefault(
            key, {"envelopes": 0, "attested": 0, "newest": None, "mismatches": 0, "valid": None}
        )
        part["envelopes"] += 1
        tag = value.get("policy_tag")
        if isinstance(tag, dict) and tag.get("policy_hash") not in (None, policy_hash):
            part["mismatches"] += 1
        if "attestation_evidence" in value:
            envelope = parse_stored(raw)
            part["attested"] += 1
            part["newest"] = max(part["newest"] or 0, parse_timestamp(envelope.timestamp))
            status, _ = check_binding(envelope)
            if status != "not_checked":
                part["valid"] = (part["valid"] is not False) and status == "passed"
    out = []
    for (domain, version), part in sorted(found.items()):
        age = None if part["newest"] is None else max(0.0, (now_ns - part["newest"]) / 1e9)
        out.append(
            Health(
                channel,
                domain,
                version,
                part["envelopes"],
                part["attested"],
                age,
                part["mismatches"],
                part["valid"],
                age is not None and age >= STALE_AT * freshness_s,
            )
        )
    return out


def measure_channels(
    spark: SparkSession,
    source: Path,
    now_ns: int,
    *,
    channels: str | None = None,
    freshness_s: float = FRESHNESS_S,
) -> list[Health]:
    """The health of channels, one channel a hand."""
    place = find_place(source)
    wanted = Ledgers(place).topics() if channels is None else [name.strip() for name in channels.split(",")]
    git_dir = place.git_dir

    def work(row: dict[str, Any]) -> list[dict[str, Any]]:
        found = Ledgers(find_place(git_dir)).channel(row["channel"])
        raws = (
            raw
            for height, place in found.segments.places()
            for raw in Block.from_lines(found.segments.read(place, height).lines).envelopes
        )
        policy = None if found.policy is None else found.policy.hash.hex()
        return [asdict(each) for each in measure(found.name, raws, policy, now_ns, freshness_s)]

    rows = [{"channel": channel} for channel in wanted]
    told = spread(spark, rows, "channel string", work, ANSWERS)
    return sorted((Health(**row) for row in told), key=lambda h: (h.channel, h.domain, h.protocol_version))


def observation(health: Health, key: SigningKey, now_ns: int) -> Envelope:
    """The measures as an `Observation` envelope, to be appended to a channel or sent on."""
    moment = datetime.fromtimestamp(now_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return build(
        key,
        domain="ropewalk.health",
        event_class="Observation",
        event_type=HEALTH_TYPE,
        payload=cast(jcs.Json, health.to_json()),
        timestamp=f"{moment}.{now_ns % 10**9:09d}Z",
    )
