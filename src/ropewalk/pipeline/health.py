"""Health of attestations (S4 §14): how old evidence is, whether policies drift, whether what was attested holds.

Measured per channel, domain and protocol version, over every envelope, one channel a hand; blocks that do not verify
are refused, not measured. Evidence is judged offline, by the roots and pins of a trust file or of the channel's own
evidence.json: each piece as of the time of its block, and the newest one also as of now. The clock is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import orjson

from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.report import Status
from ropewalk.ledger.block import Block, Header, check_contents, check_link
from ropewalk.ledger.envelope import Envelope, build, parse_stored, parse_timestamp
from ropewalk.ledger.evidencecheck import EvidenceTally
from ropewalk.ledger.trust import Trust, parse_trust
from ropewalk.pipeline.ledgers import Channel, Ledgers
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
    "attestation_age_seconds double, policy_hash_mismatch bigint, attestation_chain_valid boolean, stale boolean, "
    "evidence_held bigint, evidence_failed bigint, evidence_unknown bigint, evidence_detail string"
)


@dataclass(frozen=True, slots=True)
class Health:
    """How one part of a channel stands. Without evidence there is no age and nothing to be valid.

    `attestation_chain_valid` is true only if every piece of evidence was judged and held, false if one did not, and
    None as long as one could not be judged: unknown is not valid. `evidence_detail` says which, and why.
    """

    channel: str
    domain: str
    protocol_version: str
    envelopes: int
    attested: int
    attestation_age_seconds: float | None
    policy_hash_mismatch: int
    attestation_chain_valid: bool | None
    stale: bool
    evidence_held: int = 0
    evidence_failed: int = 0
    evidence_unknown: int = 0
    evidence_detail: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As `pipeline health` prints it."""
        return asdict(self)


class _Part:
    """What is known so far of one domain and version."""

    def __init__(self) -> None:
        self.envelopes = self.attested = self.mismatches = 0
        self.counts: dict[Status, int] = {"passed": 0, "failed": 0, "not_checked": 0}
        self.first: dict[Status, str] = {}
        self.newest: tuple[int, Envelope, str, Status] | None = None

    def count(self, status: Status, where: str, detail: str) -> None:
        self.counts[status] += 1
        self.first.setdefault(status, f"{where}: {detail}")

    @property
    def valid(self) -> bool | None:
        if self.counts["failed"]:
            return False
        return True if self.counts["passed"] and not self.counts["not_checked"] else None


def measure(
    channel: str,
    blocks: Iterable[Block],
    trust: Trust,
    now_ns: int,
    freshness_s: float = FRESHNESS_S,
) -> list[Health]:
    """The health of a channel from its blocks.

    >>> measure("ea.core", [], Trust((), ()), 0)
    []
    """
    judges = EvidenceTally(trust)
    policy_hash = None if trust.policy_hash is None else trust.policy_hash.hex()
    parts: dict[tuple[str, str], _Part] = {}
    for block in blocks:
        for index, raw in enumerate(block.envelopes):
            value = orjson.loads(raw)
            part = parts.setdefault((str(value.get("domain")), str(value.get("protocol_version"))), _Part())
            part.envelopes += 1
            tag = value.get("policy_tag")
            if isinstance(tag, dict) and tag.get("policy_hash") not in (None, policy_hash):
                part.mismatches += 1
            if "attestation_evidence" in value:
                where = f"block {block.height}, envelope {index}"
                _look(part, parse_stored(raw), where, judges, block.header.timestamp_ns)
    return [
        _told(channel, domain, version, part, judges, now_ns, freshness_s)
        for (domain, version), part in sorted(parts.items())
    ]


def _look(part: _Part, envelope: Envelope, where: str, judges: EvidenceTally, at_ns: int) -> None:
    part.attested += 1
    status, detail = judges.judge(envelope, at_ns)
    part.count(status, where, detail)
    made_ns = parse_timestamp(envelope.timestamp)
    if part.newest is None or made_ns >= part.newest[0]:
        part.newest = made_ns, envelope, where, status


def _told(
    channel: str,
    domain: str,
    version: str,
    part: _Part,
    judges: EvidenceTally,
    now_ns: int,
    freshness_s: float,
) -> Health:
    age = None
    if part.newest is not None:
        made_ns, envelope, where, status = part.newest
        age = max(0.0, (now_ns - made_ns) / 1e9)
        now, detail = judges.judge(envelope, now_ns)
        if status == "passed" and now == "failed":  # a certificate or a report has run out since
            part.counts["passed"] -= 1
            part.count("failed", where, f"no longer: {detail}")
    return Health(
        channel,
        domain,
        version,
        part.envelopes,
        part.attested,
        age,
        part.mismatches,
        part.valid,
        age is not None and age >= STALE_AT * freshness_s,
        part.counts["passed"],
        part.counts["failed"],
        part.counts["not_checked"],
        part.first.get("failed") or part.first.get("not_checked"),
    )


def measure_channels(
    spark: SparkSession,
    source: Path,
    now_ns: int,
    *,
    channels: str | None = None,
    freshness_s: float = FRESHNESS_S,
    trust: Trust | None = None,
) -> list[Health]:
    """The health of channels, one channel a hand. Evidence is judged by `trust`, else by what each channel says."""
    place = find_place(source)
    wanted = Ledgers(place).topics() if channels is None else [name.strip() for name in channels.split(",")]
    git_dir = place.git_dir
    given = None if trust is None else trust.to_bytes()

    def work(row: dict[str, Any]) -> list[dict[str, Any]]:
        found = Ledgers(find_place(git_dir)).channel(row["channel"])
        believed = _trust_of(found) if given is None else _narrowed(found, parse_trust(given))
        told = measure(found.name, _verified(found), believed, now_ns, freshness_s)
        return [asdict(each) for each in told]

    rows = [{"channel": channel} for channel in wanted]
    told = spread(spark, rows, "channel string", work, ANSWERS)
    return sorted((Health(**row) for row in told), key=lambda h: (h.channel, h.domain, h.protocol_version))


def _verified(channel: Channel) -> Iterable[Block]:
    """A channel's blocks, each sealed by its key and standing on the one before."""
    below: Header | None = None
    for height, place in channel.segments.places():
        block = Block.from_lines(channel.segments.read(place, height).lines)
        check_link(below, block.header)
        channel.seals.check(block.record)
        check_contents(block)
        below = block.header
        yield block


def _trust_of(channel: Channel) -> Trust:
    """The channel's own trust, with what its evidence.json says about evidence."""
    try:
        raw = (channel.segments.folder / "evidence.json").read_bytes()
    except FileNotFoundError:
        return channel.trust
    from ropewalk.ledger.evidencetrust import parse_evidence_settings

    settings = parse_evidence_settings(raw)
    return replace(channel.trust, roots=settings.roots, evidence=settings.pins)


def _narrowed(channel: Channel, trust: Trust) -> Trust:
    """Whoever brings a trust file says what evidence must lead to; the policy is the channel's."""
    return replace(channel.trust, roots=trust.roots, evidence=trust.evidence)


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
