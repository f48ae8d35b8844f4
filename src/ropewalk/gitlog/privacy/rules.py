"""Privacy rules of a policy: which members of a payload are removed or replaced by a pointer, before hashing.

`select` is a path below the payload: names joined by dots, `*` for any one name or index, `**` for any number of them,
and `*` and `?` within a name as in file names. `user.email`, `cards[*].number`, `**.ssn`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from ropewalk.errors import Denied, Invalid, InvalidJson
from ropewalk.gitlog.core.envelope import Event
from ropewalk.gitlog.privacy.pointer import entropy_bits, is_pointer
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import ContentId, content_id
from ropewalk.kernel.json_check import pointer
from ropewalk.kernel.schema import shipped as schema

SCHEMA = "policy/governance_policy"
RULES_MAX = 1_000
PARTS_MAX = 32


@dataclass(frozen=True, slots=True)
class PrivacyClass:
    """How values of one class are shown: whether the digest of the plaintext may be public."""

    min_entropy_bits: int = 0
    publish_plaintext_digest: bool = True
    require_ciphertext_digest: bool = False

    def is_low_entropy(self, plaintext: bytes) -> bool:
        """Return whether a pointer to these bytes must leave their digest out."""
        return not self.publish_plaintext_digest or entropy_bits(plaintext) < self.min_entropy_bits


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: which members, and what becomes of them."""

    select: str
    parts: tuple[str, ...]
    action: Literal["redact", "pointerize"]
    privacy_class: PrivacyClass
    capability: str | None
    location: str | None


@dataclass(frozen=True, slots=True)
class PrivacyPolicy:
    """The privacy rules of a policy document; `version` is its content id, and is bound into what is sealed."""

    rules: tuple[Rule, ...]
    version: ContentId


@dataclass(frozen=True, slots=True)
class PrivacyOutcome:
    """A payload with its rules applied: which paths were removed, which became pointers."""

    payload: dict[str, Any]
    redacted: tuple[str, ...]
    pointerized: tuple[str, ...]


Sealer = Callable[[bytes, Rule, bool], Mapping[str, Any]]
"""Seals bytes for a rule and returns the pointer; the flag means that their digest must stay private."""


def parse_policy(raw: bytes) -> PrivacyPolicy:
    """Return a policy from its JSON document.

    >>> parse_policy(b'{"privacy":{"rules":[{"select":"user.email","action":"redact"}]}}').rules[0].parts
    ('user', 'email')
    """
    document = jcs.parse(raw)
    schema.validate(SCHEMA, document)
    assert isinstance(document, dict)
    privacy: Any = document.get("privacy", {})
    classes = {name: PrivacyClass(**fields) for name, fields in privacy.get("classes", {}).items()}
    found = privacy.get("rules", [])
    if len(found) > RULES_MAX:
        raise Invalid(f"the policy has {len(found)} rules; at most {RULES_MAX} are applied")
    rules = tuple(_rule(at, each, classes) for at, each in enumerate(found))
    return PrivacyPolicy(rules, content_id(jcs.encode(document)))


def apply_policy(policy: PrivacyPolicy, payload: Mapping[str, Any], sealer: Sealer | None) -> PrivacyOutcome:
    """Return the payload as it may be recorded. Without a sealer, a member that must become a pointer is refused.

    >>> policy = parse_policy(b'{"privacy":{"rules":[{"select":"user.*mail","action":"redact"}]}}')
    >>> apply_policy(policy, {"user": {"email": "a@b", "name": "Ada"}}, None)
    PrivacyOutcome(payload={'user': {'name': 'Ada'}}, redacted=('/user/email',), pointerized=())
    """
    made: dict[str, Any] = {name: _as_recorded(inner) for name, inner in payload.items()}
    redacted: list[str] = []
    pointerized: list[str] = []
    for rule, above, path in _described(policy, made):
        name, where = path[-1], pointer(path)
        if rule.action == "redact":
            del above[name]
            redacted.append(where)
        elif is_pointer(above[name]):
            _check_class(rule, above[name], where)
        else:
            if sealer is None:
                raise Denied(
                    f"the payload holds private data at {where}, which the policy wants behind a pointer",
                    advice="Make the key the rule names, or seal it yourself with `ropewalk pointer seal`.",
                    where=where,
                    select=rule.select,
                )
            plaintext = jcs.encode(above[name])
            above[name] = dict(sealer(plaintext, rule, rule.privacy_class.is_low_entropy(plaintext)))
            pointerized.append(where)
    return PrivacyOutcome(made, tuple(sorted(redacted)), tuple(sorted(pointerized)))


def _check_class(rule: Rule, pointer: Mapping[str, Any], where: str) -> None:
    """Refuse a pointer the caller made that shows more, or less, than the class of its rule asks for (S0 §8)."""
    privacy_class = rule.privacy_class
    if not privacy_class.publish_plaintext_digest and "digest" in pointer:
        reason = "shows the digest of its plaintext, which the rule keeps private"
    elif privacy_class.require_ciphertext_digest and "ciphertext_digest" not in pointer:
        reason = "has no ciphertext_digest, which the rule asks for"
    else:
        return
    raise Denied(
        f"the pointer at {where} {reason}",
        advice="Give the value itself and let the rule seal it, or seal it with `ropewalk pointer seal --low-entropy`.",
        where=where,
        select=rule.select,
    )


def _as_recorded(value: Any, depth: int = 1) -> Any:
    """Return a copy in the form canonical JSON gives it, so that the rules see what will be read: a tuple is a list."""
    if depth > jcs.DEPTH_MAX:
        raise InvalidJson(f"the payload is nested deeper than {jcs.DEPTH_MAX} levels, or holds itself")
    if isinstance(value, dict):
        return {name: _as_recorded(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_as_recorded(inner, depth + 1) for inner in value]
    return value


def is_private(policy: PrivacyPolicy, value: object) -> bool:
    """Tell whether a rule would change any value here: remove a part, or replace it by a pointer.

    >>> policy = parse_policy(b'{"privacy":{"rules":[{"select":"**.email","action":"redact"}]}}')
    >>> is_private(policy, [{"email": "ada@example.test"}]), is_private(policy, {"name": "Ada"})
    (True, False)
    """
    return any(
        rule.action == "redact" or not is_pointer(_at(value, path))
        for rule in policy.rules
        for path in _select(value, rule.parts)
    )


def keep_private(policy: PrivacyPolicy, payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the public part of a payload: what the rules call private is left out, pointers stay.

    What we record went through the rules before; this is for what was there before them, or came from other software.

    >>> policy = parse_policy(b'{"privacy":{"rules":[{"select":"**.email","action":"pointerize"}]}}')
    >>> keep_private(policy, {"user": {"email": "ada@example.test", "name": "Ada"}})
    {'user': {'name': 'Ada'}}
    """
    if not is_private(policy, payload):
        return payload
    made: dict[str, Any] = deepcopy(dict(payload))
    for rule, above, path in _described(policy, made):
        if rule.action == "redact" or not is_pointer(above[path[-1]]):
            del above[path[-1]]
    return made


def public_event(policy: PrivacyPolicy | None, event: Event) -> Event:
    """Return an event as readers over the network see it, without what the rules call private in its payload."""
    payload = event.envelope.get("payload") if policy is not None and policy.rules else None
    if policy is None or not isinstance(payload, Mapping) or not is_private(policy, payload):
        return event
    envelope = {**event.envelope, "payload": keep_private(policy, payload)}
    return replace(event, raw=jcs.encode_foreign(envelope), withheld=True)


def _rule(at: int, fields: Mapping[str, Any], classes: Mapping[str, PrivacyClass]) -> Rule:
    text = fields["select"]
    parts = tuple(re.sub(r"\[([^\]]*)\]", r".\1", text).lstrip(".").split("."))
    if not all(parts) or len(parts) > PARTS_MAX:
        raise Invalid(
            f"privacy rule {at}: select {text[:60]!r} is no path of 1 to {PARTS_MAX} names", rule=at
        )
    name = fields.get("class")
    if name is not None and name not in classes:
        raise Invalid(f"privacy rule {at}: there is no class {name!r}", rule=at)
    return Rule(
        text,
        parts,
        fields["action"],
        classes[name] if name is not None else PrivacyClass(),
        fields.get("capability"),
        fields.get("location"),
    )


def _described(policy: PrivacyPolicy, payload: Any) -> Iterator[tuple[Rule, Any, tuple[str | int, ...]]]:
    """Yield each place that a rule describes: the rule, what holds the place, its path; the caller may take it out."""
    for rule in policy.rules:
        # Last places first: taking one out of a list moves those behind it.
        for path in sorted(set(_select(payload, rule.parts)), key=_order, reverse=True):
            above = _at(payload, path[:-1])
            if above is not None:  # else it went with something above it
                yield rule, above, path


def _select(
    value: Any, parts: tuple[str, ...], path: tuple[str | int, ...] = ()
) -> Iterator[tuple[str | int, ...]]:
    """Yield every path below a value that the parts describe. What is behind a pointer is not looked into."""
    if not parts:
        if path:
            yield path
        return
    if parts[0] == "**":
        yield from _select(value, parts[1:], path)
    for name, inner in _members(value):
        if parts[0] == "**":
            yield from _select(inner, parts, (*path, name))
        elif fnmatchcase(str(name), parts[0]):
            yield from _select(inner, parts[1:], (*path, name))


def _members(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, dict) and not is_pointer(value):
        yield from list(value.items())
    elif isinstance(value, list):
        yield from enumerate(value)


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for name in path:
        try:
            value = value[name]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _order(path: tuple[str | int, ...]) -> tuple[tuple[int, int, str], ...]:
    return tuple((1, name, "") if isinstance(name, int) else (0, 0, name) for name in path)
