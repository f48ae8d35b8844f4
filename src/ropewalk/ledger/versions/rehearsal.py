"""A rehearsal (S4 §16): a channel replayed through the adapters of two versions, as a signed statement.

    {"version":1, "channel", "from":"1.0.x", "to":"1.1.x", "reducer", "blocks":n, "block_hash", "policy_hash",
     "snapshots":[{"blocks":n, "from_root", "to_root"}…]}

`from` is the version in use, `to` the one that is tried: a higher one, or a lower one for a downgrade. A rehearsal
holds if both roots are equal in every snapshot. It travels as an `Observation` of type `ledger.version.rehearsed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

from ropewalk.kernel import jcs
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.schema.form import StrictForm
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.versions.statements import DOMAIN
from ropewalk.ledger.versions.versions import parse_range

REHEARSED_TYPE: Final = "ledger.version.rehearsed"
SNAPSHOTS_MAX: Final = 17  # sixteen on the way, and the last
_MEMBERS: Final = ("channel", "from", "to", "reducer", "blocks", "block_hash", "policy_hash", "snapshots")
_FORM: Final = StrictForm("rehearsal", "Make one with `ropewalk ledger lifecycle rehearse VERSION`.")


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The roots of a channel's state after some blocks, read by two versions. A snapshot is (blocks, root, root)."""

    channel: str
    source: str
    target: str
    reducer: str
    blocks: int
    block_hash: bytes
    policy_hash: bytes | None
    snapshots: tuple[tuple[int, bytes, bytes], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the payload of its envelope."""
        return {
            "version": 1,
            "channel": self.channel,
            "from": self.source,
            "to": self.target,
            "reducer": self.reducer,
            "blocks": self.blocks,
            "block_hash": self.block_hash.hex(),
            "policy_hash": None if self.policy_hash is None else self.policy_hash.hex(),
            "snapshots": [
                {"blocks": blocks, "from_root": source.hex(), "to_root": target.hex()}
                for blocks, source, target in self.snapshots
            ],
        }

    @property
    def downgrade(self) -> bool:
        return parse_range(self.target) < parse_range(self.source)

    def fault(self) -> str | None:
        """Return why the rehearsal does not hold: where both versions first gave different states."""
        agreed = 0
        for blocks, source, target in self.snapshots:
            if source != target:
                return (
                    f"{self.source} and {self.target} give different states between block {agreed} and {blocks - 1} "
                    f"of channel {self.channel}: {source.hex()[:16]}… and {target.hex()[:16]}…"
                )
            agreed = blocks
        return None if self.snapshots and agreed == self.blocks else "the last snapshot must cover all blocks"


def parse_rehearsal(value: Any) -> Rehearsal:
    """Parse the payload; only the form is checked."""
    value = _FORM.members(value, _MEMBERS, f"version, {', '.join(_MEMBERS)}")
    for name in ("channel", "from", "to", "reducer"):
        _FORM.text(value[name], name)
    parse_range(value["from"])
    parse_range(value["to"])
    snapshots = []
    for each in _FORM.items(value, "snapshots"):
        if not isinstance(each, dict) or each.keys() != {"blocks", "from_root", "to_root"}:
            raise _FORM.wrong("a snapshot must have blocks, from_root and to_root")
        roots = [bytes.fromhex(_FORM.digest(each[name], name)) for name in ("from_root", "to_root")]
        snapshots.append((_FORM.natural(each, "blocks"), roots[0], roots[1]))
    if len(snapshots) > SNAPSHOTS_MAX:
        raise _FORM.wrong(f"at most {SNAPSHOTS_MAX} snapshots are allowed, got {len(snapshots)}")
    policy = value["policy_hash"]
    return Rehearsal(
        value["channel"],
        value["from"],
        value["to"],
        value["reducer"],
        _FORM.natural(value, "blocks"),
        bytes.fromhex(_FORM.digest(value["block_hash"], "block_hash")),
        None if policy is None else hash_from_hex(_FORM.digest(policy, "policy_hash")),
        tuple(snapshots),
    )


def rehearsal_envelope(
    rehearsal: Rehearsal, key: SigningKey, timestamp: str, protocol_version: str = "1.0.0"
) -> Envelope:
    """Return the rehearsal as an envelope, signed by the node that ran it."""
    return build(
        key,
        domain=DOMAIN,
        event_class="Observation",
        event_type=REHEARSED_TYPE,
        payload=cast(jcs.Json, rehearsal.to_json()),
        timestamp=timestamp,
        protocol_version=protocol_version,
    )
