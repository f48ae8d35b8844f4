"""What a granted proposal does, by the functions that the commands of the same purpose call.

Each effect can tell whether it is in place, so that an execution that was interrupted is neither lost nor done twice.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ropewalk.bridge.governance.policy import POLICY_BYTES_MAX, parse_governance
from ropewalk.disk.durable import read_file
from ropewalk.errors import Conflict, Invalid, NotFound, RopewalkError
from ropewalk.gitlog.consumers.consumers import reset_cursor
from ropewalk.gitlog.consumers.cursor import find_cursor
from ropewalk.gitlog.core.layout import consumer_ref
from ropewalk.gitlog.privacy.apply import policy_file
from ropewalk.gitlog.privacy.rules import parse_policy
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.gitlog.store.object_store import GitStore
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import ContentId, content_id
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.channel.channel import Channel
from ropewalk.ledger.channel.settings import channels
from ropewalk.ledger.keys.approvals import Approval, require_approvals
from ropewalk.ledger.keys.failover import rotate_policy
from ropewalk.ledger.keys.policies import require_policy_approvals
from ropewalk.ledger.keys.rotate import execute_act, follow_with_snapshots
from ropewalk.ledger.keys.statements import parse_act
from ropewalk.ledger.replay.replay import companion
from ropewalk.ledger.rules.policy import parse_policy as parse_channel_policy
from ropewalk.ledger.versions.change import change_version, check_change
from ropewalk.ledger.versions.lifecycle import check_move, read_lifecycle
from ropewalk.ledger.versions.statements import lifecycle_fault, parse_version_act

WRITER_WAIT_S = 30.0
Keys = Sequence[SigningKey]


class Effect(ABC):
    """One change of a repository."""

    act: dict[str, Any] | None = None  # what approvers of the ledger sign, if the ledger is changed

    @abstractmethod
    def check(self) -> None:
        """Raise if it makes no sense now."""

    def check_ready(self, approvals: Sequence[Approval], keys: Keys) -> None:  # noqa: ARG002
        """Raise if it would be refused now: a key that it needs is missing, or an approval of the ledger."""
        self.check()

    def before(self) -> Any:
        """Return what the log records before the effect begins, so that it can be told from one that was made."""
        return None

    @abstractmethod
    def done(self, before: Any) -> dict[str, Any] | None:
        """Return the result if the effect is in place, None if it was not made."""

    @abstractmethod
    def carry_out(self, approvals: Sequence[Approval], keys: Keys) -> dict[str, Any]:
        """Make the change and return its result."""


class ConsumerReset(Effect):
    """Moves a consumer group to an event, or to the beginning."""

    def __init__(self, git: GitRepository, group: str, ns: str, to: str) -> None:
        self._git, self._group, self._ns, self._to = git, group, ns, to

    def check(self) -> None:
        reset_cursor(self._git, self._group, self._ns, self._to, dry_run=True)

    def before(self) -> str | None:
        return self._git.store.head(consumer_ref(self._group, self._ns))

    def done(self, before: Any) -> dict[str, Any] | None:
        if self.before() == before:
            return None
        found = find_cursor(self._git.store, self._group, self._ns)
        if (found.ulid if found is not None else "beginning") == self._to:
            return {"ref": consumer_ref(self._group, self._ns), "ulid": found.ulid if found else None}
        raise Conflict(
            f"group {self._group} has moved since the execution began; it is unknown whether it was reset before",
            advice="Look at `ropewalk consumer ls`, and propose again if the group must still be moved.",
        )

    def carry_out(self, _approvals: Sequence[Approval], _keys: Keys) -> dict[str, Any]:
        change = reset_cursor(self._git, self._group, self._ns, self._to)
        return {"ref": change["ref"], "ulid": change["ulid"]}


class KeyRotation(Effect):
    """Replaces the signing key of a ledger channel."""

    def __init__(self, git: GitRepository, act: Any) -> None:
        self._home, self._act = git.store.place.home, parse_act(act)
        if self._act.act != "rotate":
            raise Invalid(f'act must be "rotate", got {self._act.act!r}')
        self.act = self._act.to_json()

    def check(self) -> None:
        with Channel(self._home, self._act.channel) as reading:
            current = reading.key_history().current.key
        if current.identity() != self._act.key:
            raise Conflict(f"channel {self._act.channel} is signed by another key than the proposal replaces")

    def check_ready(self, approvals: Sequence[Approval], keys: Keys) -> None:
        self.check()
        with Channel(self._home, self._act.channel) as reading:
            current, policy = reading.key_history().current.key, reading.policy
        if policy is not None:
            require_approvals(self._act.to_json(), approvals, policy.controls)
        for public in (current, self._act.new_key):
            if all(key.public != public for key in keys):
                raise NotFound(
                    f"the key {public.did() if public else ''} is not available here",
                    advice="Execute the proposal on the machine that has the old and the new key.",
                )

    def done(self, _before: Any) -> dict[str, Any] | None:
        beside = companion(self._act.channel)  # its snapshots are sealed by the same key
        names = [self._act.channel, *([beside] if beside in channels(self._home) else [])]
        return self._result() if all(map(self._rotated, names)) else None

    def _rotated(self, channel: str) -> bool:
        with Channel(self._home, channel) as reading:
            history = reading.key_history()
        validity = history.find(self._act.key)
        if validity is None:
            return channel != self._act.channel  # sealed by another key from the beginning
        return validity.successor == self._act.new_key

    def carry_out(self, approvals: Sequence[Approval], keys: Keys) -> dict[str, Any]:
        if not self._rotated(self._act.channel):  # else the companion channel alone was left
            execute_act(self._home, self._act, keys, approvals=approvals, wait_s=WRITER_WAIT_S)
        follow_with_snapshots(self._home, self._act.channel, keys, wait_s=WRITER_WAIT_S)
        return self._result()

    def _result(self) -> dict[str, Any]:
        assert self._act.new_key is not None
        return {"channel": self._act.channel, "key": self._act.new_key.did()}


class LifecycleChange(Effect):
    """Moves an envelope version to another stage, recorded in a channel."""

    def __init__(self, git: GitRepository, act: Any) -> None:
        self._home, self._act = git.store.place.home, parse_version_act(act)
        self.act = self._act.to_json()

    def check(self) -> None:
        said = self._act
        check_move(
            self._home, said.protocol_version, said.stage, sunset=said.sunset, grace_days=said.grace_days
        )

    def check_ready(self, approvals: Sequence[Approval], keys: Keys) -> None:
        check_change(self._home, self._act, approvals)
        if not self._sealing(keys):
            raise NotFound(f"no key of channel {self._act.channel} is available here")

    def done(self, _before: Any) -> dict[str, Any] | None:
        for life in read_lifecycle(self._home):
            if f"{life.minor}.x" == self._act.protocol_version and life.recorded is not None:
                same = life.recorded[0] == self._act.channel and lifecycle_fault(life, self._act) is None
                return {"channel": life.recorded[0], "height": life.recorded[1]} if same else None
        return None

    def carry_out(self, approvals: Sequence[Approval], keys: Keys) -> dict[str, Any]:
        sealing = self._sealing(keys)
        _, height = change_version(self._home, self._act, sealing, approvals, wait_s=WRITER_WAIT_S)
        return {"channel": self._act.channel, "height": height}

    def _sealing(self, keys: Keys) -> list[SigningKey]:
        """Return those of the keys that the channel knows."""
        with Channel(self._home, self._act.channel) as reading:
            history = reading.key_history()
        return [key for key in keys if history.validity(key.public) is not None]


class PolicyRotation(Effect):
    """Gives a ledger channel another policy."""

    def __init__(self, git: GitRepository, act: Any, policy: Any) -> None:
        self._home, self._act = git.store.place.home, parse_act(act)
        self._new = parse_channel_policy(jcs.encode(policy))
        if self._act.act != "policy" or self._act.new_hash != self._new.hash:
            raise Invalid(
                "act must be one of `ledger policy rotate --propose`, for the policy that is proposed"
            )
        self.act = self._act.to_json()

    def check(self) -> None:
        with Channel(self._home, self._act.channel) as reading:
            key, policy = reading.key_history().current.key, reading.policy
        if (key.identity(), policy and policy.hash) != (self._act.key, self._act.old_hash):
            raise Conflict(
                f"channel {self._act.channel} has another key or policy than the proposal names",
                advice="Make a new proposal.",
            )

    def check_ready(self, approvals: Sequence[Approval], keys: Keys) -> None:
        self.check()
        with Channel(self._home, self._act.channel) as reading:
            require_policy_approvals(self._act, reading.policy, approvals)
        self._sealing(keys)

    def before(self) -> int:
        with Channel(self._home, self._act.channel) as reading:
            return reading.head().height

    def done(self, before: Any) -> dict[str, Any] | None:
        with Channel(self._home, self._act.channel) as reading:
            height = reading.key_history().policies.height_of(self._new.hash)
        begun = height is not None and isinstance(before, int) and height >= before
        return self._result() if begun else None

    def carry_out(self, approvals: Sequence[Approval], keys: Keys) -> dict[str, Any]:
        sealing = self._sealing(keys)
        rotate_policy(self._home, self._act, self._new, sealing, approvals=approvals, wait_s=WRITER_WAIT_S)
        return self._result()

    def _sealing(self, keys: Keys) -> list[SigningKey]:
        found = [key for key in keys if key.public.identity() == self._act.key]
        if not found:
            raise NotFound(
                f"the key of channel {self._act.channel} is not available here",
                advice="Execute the proposal on the machine that has the key.",
            )
        return found

    def _result(self) -> dict[str, Any]:
        return {"channel": self._act.channel, "policy_hash": self._new.hash.hex()}


class PolicyChange(Effect):
    """Replaces the repository's policy. The old one is kept: proposals that it decided stay readable."""

    def __init__(self, git: GitRepository, policy: Any) -> None:
        self._store, self._raw = git.store, jcs.encode(policy)
        parse_policy(self._raw)
        self._version = parse_governance(self._raw).version

    def check(self) -> None:
        if self.before() == self._version:
            raise Conflict("the proposed policy is in force already")

    def before(self) -> ContentId:
        return content_id(jcs.encode(jcs.parse(read_file(policy_file(self._store.place), POLICY_BYTES_MAX))))

    def done(self, before: Any) -> dict[str, Any] | None:
        current = self.before()
        return {"policy": current} if current == self._version != before else None

    def carry_out(self, _approvals: Sequence[Approval], _keys: Keys) -> dict[str, Any]:
        keep_policy(self._store)
        self._store.disk.replace(policy_file(self._store.place), self._raw + b"\n", mode=0o600)
        return {"policy": self._version}


def kept_policies(home: Path) -> Path:
    """Return the folder of the policies that have decided about proposals, one file each, named by content id."""
    return home / "governance" / "policies"


def keep_policy(store: GitStore) -> None:
    """Keep the policy in force, so that what it decides can be read once it is replaced."""
    raw = read_file(policy_file(store.place), POLICY_BYTES_MAX)
    folder, version = kept_policies(store.place.home), content_id(jcs.encode(jcs.parse(raw)))
    store.disk.make_directories(folder)
    path = folder / f"{version.partition(':')[2]}.json"
    if not path.exists():
        store.disk.replace(path, raw, mode=0o600)


_KINDS: Mapping[str, tuple[Any, frozenset[str]]] = {
    "consumer.reset": (ConsumerReset, frozenset(("group", "ns", "to"))),
    "key.rotate": (KeyRotation, frozenset(("act",))),
    "lifecycle.change": (LifecycleChange, frozenset(("act",))),
    "policy.change": (PolicyChange, frozenset(("policy",))),
    "policy.rotate": (PolicyRotation, frozenset(("act", "policy"))),
}


def parse_effect(git: GitRepository, value: Mapping[str, Any]) -> Effect:
    """Return the effect that a proposal describes; raise `Invalid` for members that it does not have."""
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise Invalid(f"kind of an effect must be one of {', '.join(_KINDS)}, got {kind!r:.60}")
    make, names = _KINDS[kind]
    if value.keys() != {"kind", *names}:
        raise Invalid(
            f"an effect of kind {kind} must have kind and {', '.join(sorted(names))}, and nothing else"
        )
    if kind == "consumer.reset" and not all(isinstance(value[name], str) for name in names):
        raise Invalid("group, ns and to must be strings")
    found: Effect = make(git, **{name: value[name] for name in names})
    return found


def reset_effect(git: GitRepository, group: str, ns: str, to: str) -> dict[str, Any]:
    """Return the effect of a reset. `to` is a ULID, a commit, `beginning` or `now`, which means the event of now."""
    change = reset_cursor(git, group, ns, to, dry_run=True)
    return {"kind": "consumer.reset", "group": group, "ns": ns, "to": change["ulid"] or "beginning"}


def ledger_approvals(act: dict[str, Any] | None, events: Sequence[Mapping[str, Any]]) -> tuple[Approval, ...]:
    """Return the approvals of a ledger act that came with the votes; invalid ones do not count."""
    found = []
    for each in events if act is not None else ():
        with contextlib.suppress(RopewalkError):
            approval = Approval.from_json(each.get("act_approval"))
            approval.check(act or {})
            found.append(approval)
    return tuple(found)
