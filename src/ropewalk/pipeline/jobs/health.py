"""Health of attestations (S4 §14): how old evidence is, whether policies drift, whether what was attested holds.

Measured per channel, domain and protocol version, over every envelope, one channel a hand; blocks that do not verify
are refused, not measured. Evidence is judged offline, by the roots and pins of a trust file or of the channel's own
evidence.json: each piece as of the time of its block, and the newest that held also as of now. What is counted lies
within a window before now, so that an alert ends when its cause does. The clock is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import orjson

from ropewalk.disk.repository_paths import find_repository
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.report import Status
from ropewalk.ledger.block.block import Block
from ropewalk.ledger.envelope.envelope import build, parse_stored
from ropewalk.ledger.envelope.fields import parse_timestamp
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.evidence.recheck import EvidenceTally
from ropewalk.ledger.proof.trust import Trust, parse_trust
from ropewalk.pipeline.jobs.parallel import spread
from ropewalk.pipeline.source.ledger_logs import ChannelReader, Ledgers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FRESHNESS_S = 24 * 3600  # S4 §14's example of a freshness budget
STALE_AT = 0.8  # of the budget
WINDOW_S = 24 * 3600  # how long a failure or a mismatch is counted after its block
HEALTH_TYPE = "ledger.health"
ANSWERS = (
    "channel string, domain string, protocol_version string, envelopes bigint, attested bigint, "
    "attestation_age_seconds double, policy_hash_mismatch bigint, attestation_chain_valid boolean, stale boolean, "
    "evidence_held bigint, evidence_failed bigint, evidence_unknown bigint, evidence_detail string, "
    "window_seconds double"
)


@dataclass(frozen=True, slots=True)
class Health:
    """Health of one part of a channel. Without evidence there is no age and nothing to be valid.

    `envelopes` and `attested` count the whole channel; `policy_hash_mismatch` and `evidence_*` what was sealed within
    the last `window_seconds`, and the newest evidence that held, as of now, however old it is.
    `attestation_chain_valid` is true only if every piece counted was judged and held, false if one did not, and None if
    one could not be judged or none was counted: unknown is not valid. `evidence_detail` names it and the reason.
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
    window_seconds: float = WINDOW_S

    def to_json(self) -> dict[str, Any]:
        """Return what `pipeline health` prints."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Evidence that held when it was sealed."""

    envelope: Envelope
    where: str
    is_recent: bool


class _Part:
    """What is known so far of one domain and version."""

    def __init__(self) -> None:
        self.envelopes = self.attested = self.mismatches = 0
        self.counts: dict[Status, int] = {"passed": 0, "failed": 0, "not_checked": 0}
        self.first: dict[Status, str] = {}
        self.made_ns: dict[bool, int] = {}  # of the newest evidence, by whether it held
        self.held: dict[str, _Piece] = {}  # the newest that held, by format, in the order of the channel

    def count(self, status: Status, where: str, detail: str) -> None:
        self.counts[status] += 1
        self.first.setdefault(status, f"{where}: {detail}")

    def age_s(self, now_ns: int) -> float | None:
        """Return the age of the newest evidence that held; of the newest at all only where none ever held.

        Evidence that cannot be judged must not make a channel look fresh.
        """
        made_ns = self.made_ns.get(True, self.made_ns.get(False))
        return None if made_ns is None else max(0.0, (now_ns - made_ns) / 1e9)

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
    window_s: float = WINDOW_S,
) -> list[Health]:
    """Measure the health of a channel from its blocks.

    >>> measure("ea.core", [], Trust((), ()), 0)
    []
    """
    judges = EvidenceTally(trust)
    policy_hash = None if trust.policy_hash is None else trust.policy_hash.hex()
    parts: dict[tuple[str, str], _Part] = {}
    for block in blocks:
        sealed_ns = block.header.timestamp_ns
        is_recent = sealed_ns > now_ns - window_s * 1e9
        for index, raw in enumerate(block.envelopes):
            value = orjson.loads(raw)
            part = parts.setdefault((str(value.get("domain")), str(value.get("protocol_version"))), _Part())
            part.envelopes += 1
            tag = value.get("policy_tag")
            if is_recent and isinstance(tag, dict) and tag.get("policy_hash") not in (None, policy_hash):
                part.mismatches += 1
            if "attestation_evidence" in value:
                where = f"block {block.height}, envelope {index}"
                _look(part, parse_stored(raw), where, judges, sealed_ns, is_recent=is_recent)
    return [
        _told(channel, domain, version, part, judges, now_ns, freshness_s, window_s)
        for (domain, version), part in sorted(parts.items())
    ]


def _look(
    part: _Part, envelope: Envelope, where: str, judges: EvidenceTally, sealed_ns: int, *, is_recent: bool
) -> None:
    part.attested += 1
    status, detail = judges.judge(envelope, sealed_ns)
    if is_recent:
        part.count(status, where, detail)
    # An author may date evidence ahead; it is no younger than the block that holds it.
    made_ns = min(parse_timestamp(envelope.timestamp), sealed_ns)
    held = status == "passed"
    part.made_ns[held] = max(part.made_ns.get(held, made_ns), made_ns)
    if held:
        kind = envelope.value["attestation_evidence"]["format"]
        part.held.pop(kind, None)
        part.held[kind] = _Piece(envelope, where, is_recent)


def _hold_now(part: _Part, judges: EvidenceTally, now_ns: int) -> None:
    """Judge the newest pieces that held again: a certificate or a report may have run out, or been revoked, since.

    Of every format the newest within the window, and the newest of all: a piece in another format hides none of them.
    """
    newest = next(reversed(part.held.values()), None)
    for piece in part.held.values():
        if not (piece.is_recent or piece is newest):
            continue
        status, detail = judges.judge(piece.envelope, now_ns)
        if piece.is_recent:
            part.counts["passed"] -= 1
        part.count(status, piece.where, detail if status == "passed" else f"no longer: {detail}")


def _told(
    channel: str,
    domain: str,
    version: str,
    part: _Part,
    judges: EvidenceTally,
    now_ns: int,
    freshness_s: float,
    window_s: float,
) -> Health:
    _hold_now(part, judges, now_ns)
    age = part.age_s(now_ns)
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
        window_s,
    )


def measure_channels(
    spark: SparkSession,
    source: Path,
    now_ns: int,
    *,
    channels: str | None = None,
    freshness_s: float = FRESHNESS_S,
    window_s: float = WINDOW_S,
    trust: Trust | None = None,
) -> list[Health]:
    """Return the health of channels, one task each. `trust` judges evidence, else each channel's settings."""
    place = find_repository(source)
    wanted = Ledgers(place).topics() if channels is None else [name.strip() for name in channels.split(",")]
    git_dir = place.git_dir
    given = None if trust is None else trust.to_bytes()

    def work(row: dict[str, Any]) -> list[dict[str, Any]]:
        found = Ledgers(find_repository(git_dir)).channel(row["channel"])
        believed = found.trust if given is None else _narrowed(found, parse_trust(given))
        told = measure(found.name, found.blocks(), believed, now_ns, freshness_s, window_s)
        return [asdict(each) for each in told]

    rows = [{"channel": channel} for channel in wanted]
    told = spread(spark, rows, "channel string", work, ANSWERS)
    return sorted((Health(**row) for row in told), key=lambda h: (h.channel, h.domain, h.protocol_version))


def _narrowed(channel: ChannelReader, trust: Trust) -> Trust:
    """Return the trust to judge evidence by: roots of the given trust file, and the channel's policy."""
    return replace(channel.trust, roots=trust.roots, evidence=trust.evidence)


def observation(health: Health, key: SigningKey, now_ns: int) -> Envelope:
    """Return the measures as an `Observation` envelope, to be appended to a channel or sent on."""
    moment = datetime.fromtimestamp(now_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return build(
        key,
        domain="ropewalk.health",
        event_class="Observation",
        event_type=HEALTH_TYPE,
        payload=cast(jcs.Json, health.to_json()),
        timestamp=f"{moment}.{now_ns % 10**9:09d}Z",
    )
