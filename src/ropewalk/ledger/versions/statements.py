"""Version changes (S4 §16): proposed, approved, recorded in a channel.

    {"version":1, "act":"version", "channel", "protocol_version":"1.0.x", "stage", "sunset":"<time>"|null,
     "grace_days":n|null, "documents":{"guide":"<blake3>", "transcript":"<envelope id>", "policies":{channel:hash}}}

`documents` is what the change ships: the migration guide, the rehearsal that the channel holds, and the policies in
force; changes recorded before it was required have none.

A channel records it as a `Command` of type `ledger.version.change` with the act, and a `Result` of type
`ledger.version.changed` with the act and the approvals. The channel's policy decides how many are needed, as with keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

from ropewalk.errors import InvalidEnvelope
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import blake3
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.schema.form import StrictForm
from ropewalk.ledger.block.block import Block
from ropewalk.ledger.envelope.envelope import build, parse_stored
from ropewalk.ledger.envelope.fields import parse_timestamp
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.json_form import members_of
from ropewalk.ledger.keys.approvals import Approval
from ropewalk.ledger.versions.versions import Lifecycle, Stage, parse_range

CHANGE_TYPE: Final = "ledger.version.change"
CHANGED_TYPE: Final = "ledger.version.changed"
DOMAIN: Final = "ropewalk.lifecycle"
_HINT: Final = CHANGED_TYPE.encode()
_MEMBERS: Final = ("act", "channel", "protocol_version", "stage", "sunset", "grace_days")
_FORM: Final = StrictForm("version change", "Make one with `ropewalk ledger lifecycle set --propose F`.")
_wrong = _FORM.wrong


@dataclass(frozen=True, slots=True)
class ShippedDocuments:
    """What a version change ships (S4 §16), by digest."""

    guide: str
    transcript: str
    policies: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form in the act."""
        return members_of(self)


@dataclass(frozen=True, slots=True)
class VersionAct:
    """Moves a version to a stage, with its dates; the channel records it."""

    channel: str
    protocol_version: str
    stage: Stage
    sunset: str | None = None
    grace_days: int | None = None
    documents: ShippedDocuments | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the object that approvers sign."""
        value = {"version": 1, "act": "version", **members_of(self)}
        if self.documents is None:
            del value["documents"]
        return value


def parse_version_act(value: Any) -> VersionAct:
    """Parse an act from a JSON value; reject unknown members.

    >>> act = VersionAct("ops", "1.0.x", "deprecated", "2027-01-01T00:00:00Z", 90)
    >>> parse_version_act(act.to_json()) == act
    True
    """
    expected = "version, act, channel, protocol_version, stage, sunset and grace_days"
    value = _FORM.members(value, _MEMBERS, expected, ("documents",))
    if value["act"] != "version":
        raise _wrong(f"expected {expected}")
    if not isinstance(value["channel"], str) or not isinstance(value["protocol_version"], str):
        raise _wrong("channel and protocol_version must be strings")
    parse_range(value["protocol_version"])
    if value["stage"] not in get_args(Stage):
        raise _wrong(f"stage must be one of {', '.join(get_args(Stage))}")
    sunset, grace = value["sunset"], value["grace_days"]
    if grace is not None and (type(grace) is not int or grace < 0):
        raise _wrong("grace_days must be a number of days or null")
    if sunset is not None:
        try:
            parse_timestamp(sunset if isinstance(sunset, str) else "")
        except InvalidEnvelope as error:
            raise _wrong(f"sunset: {error.detail}") from error
    documents = _parse_documents(value["documents"]) if "documents" in value else None
    return VersionAct(value["channel"], value["protocol_version"], value["stage"], sunset, grace, documents)


def _parse_documents(value: Any) -> ShippedDocuments:
    if not isinstance(value, dict) or value.keys() != {"guide", "transcript", "policies"}:
        raise _wrong("documents must have guide, transcript and policies")
    if not isinstance(value["policies"], dict):
        raise _wrong("policies must name channels and their policy hashes")
    return ShippedDocuments(
        _FORM.digest(value["guide"], "guide"),
        _FORM.digest(value["transcript"], "transcript"),
        {name: _FORM.digest(each, "policies") for name, each in value["policies"].items()},
    )


def version_envelopes(
    act: VersionAct,
    approvals: Sequence[Approval],
    key: SigningKey,
    timestamp: str,
    protocol_version: str = "1.0.0",
) -> tuple[Envelope, Envelope]:
    """Return the recorded form of a change: the decision, and its approvals. The same change is recorded once.

    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> ask, done = version_envelopes(VersionAct("ops", "1.0.x", "maintenance"), (), key, "2024-11-01T12:00:00Z")
    >>> ask.event_class, done.event_class, done.correlation_id == ask.correlation_id
    ('Command', 'Result', True)
    """
    payload, name = act.to_json(), act_name(act)
    ask = build(
        key,
        domain=DOMAIN,
        event_class="Command",
        event_type=CHANGE_TYPE,
        payload=cast(jcs.Json, payload),
        timestamp=timestamp,
        correlation_id=name,
        protocol_version=protocol_version,
    )
    done = build(
        key,
        domain=DOMAIN,
        event_class="Result",
        event_type=CHANGED_TYPE,
        payload=cast(jcs.Json, {**payload, "approvals": [each.to_json() for each in approvals]}),
        timestamp=timestamp,
        parent=ask,
        protocol_version=protocol_version,
    )
    return ask, done


def act_name(act: VersionAct) -> str:
    """Return the correlation id under which a channel records a change: equal changes have equal ids.

    >>> act_name(VersionAct("ops", "1.0.x", "active")) == act_name(VersionAct("ops", "1.0.x", "disabled"))
    False
    """
    return f"version:{blake3(jcs.encode(act.to_json())).hex()[:32]}"


def read_acts(block: Block) -> list[VersionAct]:
    """Return the version changes that a block records: those signed by the key that signed the block.

    Any author may write an envelope of that type; only the channel's own key records a change.
    """
    found = []
    for raw in block.envelopes:
        if _HINT not in raw:
            continue
        envelope = parse_stored(raw)
        recorded = (envelope.event_class, envelope.domain, envelope.event_type) == (
            "Result",
            DOMAIN,
            CHANGED_TYPE,
        )
        payload = envelope.payload
        if not recorded or envelope.public_key != block.record.signer or not isinstance(payload, dict):
            continue
        act = parse_version_act({name: each for name, each in payload.items() if name != "approvals"})
        if act.channel == block.header.channel:
            found.append(act)
    return found


def lifecycle_fault(life: Lifecycle, act: VersionAct) -> str | None:
    """Return how a row of the table differs from the change that a channel recorded last, if it does.

    >>> act = VersionAct("ops", "1.0.x", "maintenance")
    >>> lifecycle_fault(Lifecycle("1.0", "maintenance"), act) is None
    True
    >>> lifecycle_fault(Lifecycle("1.0", "active"), act)
    '1.0.x: stage is active, but channel ops recorded maintenance'
    """
    wanted = {"stage": act.stage, "sunset": act.sunset, "grace_days": act.grace_days}
    for name, said in wanted.items():
        have = getattr(life, name)
        if said is not None and have != said:
            return f"{life.minor}.x: {name} is {have}, but channel {act.channel} recorded {said}"
    return None
