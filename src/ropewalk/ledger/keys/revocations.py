"""Keys with dates in trust files: validity times and revocations.

{"identity_type", "public_key", "since":"<time>", "until":"<time>"}     both optional
{"key":{identity}|"<did:key>"|"<fingerprint>", "since":"<time>", "reason":"<text>"}
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ropewalk.errors import Invalid, InvalidEnvelope
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.envelope.fields import parse_timestamp
from ropewalk.ledger.evidence.allowed import parse_identities
from ropewalk.ledger.json_form import members_of

REVOCATIONS_BYTES_MAX = 4 << 20  # ten thousand keys
Limits = dict[PublicKey, tuple[int, int | None]]
"""Validity times of keys in nanoseconds; a key without limits is absent."""


@dataclass(frozen=True, slots=True)
class Revocation:
    """A key, by its fingerprint, that is not trusted since a date."""

    key: bytes
    since: str
    reason: str = ""

    @property
    def since_ns(self) -> int:
        """The date in nanoseconds."""
        return parse_timestamp(self.since)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form in files."""
        return members_of(self)


def parse_revocations(value: Any, wrong: Callable[[str], Invalid] = Invalid) -> tuple[Revocation, ...]:
    """Parse revoked keys from a JSON list; `wrong` makes the error of the containing file.

    >>> parse_revocations([{"key": "ab" * 32, "since": "2024-11-01T12:00:00Z"}])[0].since
    '2024-11-01T12:00:00Z'
    """
    if not isinstance(value, list):
        raise wrong("revocations must be a list")
    found = []
    for each in value:
        if not isinstance(each, dict) or not {"key", "since"} <= each.keys() <= {"key", "since", "reason"}:
            raise wrong("revocations must have key, since and optionally reason")
        key, since, reason = each["key"], each["since"], each.get("reason", "")
        fingerprint = hash_from_hex(key) if isinstance(key, str) else None
        if fingerprint is None:
            fingerprint = parse_identities([key], "revocations", wrong)[0].identity()
        if not isinstance(since, str) or not isinstance(reason, str):
            raise wrong("since and reason of a revocation must be strings")
        _time(since, "revocations", wrong)
        found.append(Revocation(fingerprint, since, reason))
    return tuple(found)


def parse_revocation_list(raw: bytes) -> tuple[Revocation, ...]:
    """Parse a file with a list of revoked keys.

    >>> parse_revocation_list(b"[]")
    ()
    """
    return parse_revocations(jcs.parse(raw, bytes_max=REVOCATIONS_BYTES_MAX))


def parse_dated_identities(
    value: Any, name: str, wrong: Callable[[str], Invalid]
) -> tuple[tuple[PublicKey, ...], Limits]:
    """Parse identities with optional validity times."""
    if not isinstance(value, list):
        raise wrong(f"{name} must be a list of identities")
    bare = [
        {k: v for k, v in each.items() if k not in ("since", "until")} if isinstance(each, dict) else each
        for each in value
    ]
    keys, limits = parse_identities(bare, name, wrong), Limits()
    for key, each in zip(keys, value, strict=True):
        if isinstance(each, dict) and each.keys() & {"since", "until"}:
            since_ns = _time(each["since"], name, wrong) if "since" in each else 0
            limits[key] = since_ns, _time(each["until"], name, wrong) if "until" in each else None
    return keys, limits


def _time(text: Any, name: str, wrong: Callable[[str], Invalid]) -> int:
    try:
        return parse_timestamp(text if isinstance(text, str) else "")
    except InvalidEnvelope as error:
        raise wrong(f"{name}: {error.detail}") from error
