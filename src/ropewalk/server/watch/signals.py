"""The signals of S4 §14 for one channel, kept as the channel grows: a round costs what is new, not what there is.

Each piece of evidence is judged as of its block, once; the newest that held is judged again as of now. Failures and
mismatches count within a window, so that an alert ends when its cause does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ropewalk.errors import BrokenLink
from ropewalk.ledger.block.block import Block
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.envelope.fields import parse_timestamp
from ropewalk.ledger.evidence.recheck import EvidenceTally
from ropewalk.ledger.proof.trust import Trust

STALE_AT = 0.8  # of the freshness budget
WINDOW_S = 86_400.0
EVENTS_MAX = 1_000  # failures of one part that are kept; one is enough for an alert


@dataclass(frozen=True, slots=True)
class Signal:
    """One part of a channel: its labels and its figures. None where there is no evidence to speak of."""

    channel: str
    domain: str
    protocol_version: str
    attestation_age_seconds: float | None
    attestation_stale: bool | None
    attestation_chain_valid: bool | None
    evidence_failed: int
    evidence_unknown: int
    policy_hash_mismatch: int
    detail: str | None = None

    @property
    def labels(self) -> tuple[str, str, str]:
        """The labels of S4 §14."""
        return self.channel, self.domain, self.protocol_version

    def to_json(self) -> dict[str, Any]:
        """Return the signal as `watch status` prints it."""
        return asdict(self)


class ChannelSignals:
    """What is known of one channel. `to_json` and `from_json` carry it over a restart."""

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        found = state or {}
        self.height: int = found.get("height", 0)  # blocks that were looked at
        self.head: str = found.get("head", "")
        self._parts: dict[str, dict[str, Any]] = found.get("parts", {})

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {"height": self.height, "head": self.head, "parts": self._parts}

    def follow(self, blocks: Iterable[Block], trust: Trust, judges: EvidenceTally, now_ns: int) -> None:
        """Look at the next blocks. A block that does not name the one before it is `BrokenLink`."""
        policy = None if trust.policy_hash is None else trust.policy_hash.hex()
        for block in blocks:
            if self.head and block.header.prev_block_hash.hex() != self.head:
                raise BrokenLink(
                    f"block {block.height} does not name the block before it", height=block.height
                )
            for index, raw in enumerate(block.envelopes):
                self._look(raw, f"block {block.height}, envelope {index}", block, policy, judges)
            self.height, self.head = block.height + 1, block.hash.hex()
            self._forget(now_ns)

    def _look(self, raw: bytes, where: str, block: Block, policy: str | None, judges: EvidenceTally) -> None:
        envelope = parse_stored(raw)
        value, sealed_ns = envelope.value, block.header.timestamp_ns
        part = self._parts.setdefault(
            f"{value['domain']}\n{value['protocol_version']}",
            {"mismatches": [], "failed": [], "unknown": [], "passed": [], "made": {}, "held": {}},
        )
        tag = value.get("policy_tag")
        if isinstance(tag, dict) and tag.get("policy_hash") not in (None, policy):
            part["mismatches"].append([sealed_ns, f"{where}: names another policy"])
        if "attestation_evidence" not in value:
            return
        status, detail = judges.judge(envelope, sealed_ns)
        name = {"passed": "passed", "failed": "failed"}.get(status, "unknown")
        part[name].append([sealed_ns, f"{where}: {detail}"])
        # An author may date evidence ahead; it is no younger than the block that holds it.
        made_ns = min(parse_timestamp(envelope.timestamp), sealed_ns)
        held = "held" if status == "passed" else "other"
        part["made"][held] = max(part["made"].get(held, made_ns), made_ns)
        if status == "passed":
            kind = value["attestation_evidence"]["format"]
            part["held"].pop(kind, None)  # the newest of each format, in the order of the channel
            part["held"][kind] = {"raw": raw.decode(), "where": where, "sealed_ns": sealed_ns}

    def _forget(self, now_ns: int) -> None:
        floor = now_ns - int(WINDOW_S * 1e9)
        for part in self._parts.values():
            for name in ("mismatches", "failed", "unknown", "passed"):
                part[name] = [each for each in part[name] if each[0] > floor][-EVENTS_MAX:]

    def measure(self, channel: str, judges: EvidenceTally, now_ns: int, freshness_s: float) -> list[Signal]:
        """Return the signals as of now."""
        self._forget(now_ns)
        return [
            self._signal(channel, name, part, judges, now_ns, freshness_s)
            for name, part in sorted(self._parts.items())
        ]

    def _signal(
        self,
        channel: str,
        name: str,
        part: dict[str, Any],
        judges: EvidenceTally,
        now_ns: int,
        freshness_s: float,
    ) -> Signal:
        domain, _, version = name.partition("\n")
        failed, unknown = list(part["failed"]), list(part["unknown"])
        newest = next(reversed(part["held"].values()), None)
        for piece in part["held"].values():
            if piece is not newest and piece["sealed_ns"] <= now_ns - int(WINDOW_S * 1e9):
                continue
            status, detail = judges.judge(parse_stored(piece["raw"].encode()), now_ns)
            if status != "passed":
                (failed if status == "failed" else unknown).append(
                    [now_ns, f"{piece['where']}: no longer: {detail}"]
                )
        made_ns = part["made"].get("held", part["made"].get("other"))
        age = None if made_ns is None else max(0.0, (now_ns - made_ns) / 1e9)
        valid = False if failed else True if part["held"] and not unknown else None
        first = next((each[1] for each in (*failed, *part["mismatches"], *unknown)), None)
        return Signal(
            channel,
            domain,
            version,
            age,
            None if age is None else age >= STALE_AT * freshness_s,
            None if age is None else valid,
            len(failed),
            len(unknown),
            len(part["mismatches"]),
            first,
        )
