"""Versions of the envelope format (S4 §8, §16): ranges, the highest common one, and lifecycles.

A minor version moves preview → active → maintenance → deprecated → disabled. The stage decides what is accepted:

    preview      only if its flag is set
    active       always
    maintenance  always
    deprecated   until its sunset; after that read-only for a grace time
    disabled     nothing
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

from ropewalk.errors import Invalid
from ropewalk.kernel import jcs
from ropewalk.ledger.envelope.fields import NANOS, parse_timestamp

Stage = Literal["preview", "active", "maintenance", "deprecated", "disabled"]
Access = Literal["write", "read", "none"]
LIFECYCLE_BYTES_MAX: Final = 1 << 20
NOTICE_DAYS: Final = (30, 14, 7)
DAY_NS: Final = 86_400 * NANOS
_ORDER: Final = get_args(Stage)
_RANGE = re.compile(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\.x")
_VERSION = re.compile(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """Lifecycle stage of one minor version."""

    minor: str
    stage: Stage
    sunset: str | None = None
    grace_days: int = 90
    recorded: tuple[str, int] | None = None  # channel and height at which the change was sealed

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form in the table."""
        row: dict[str, Any] = {
            "version": f"{self.minor}.x",
            "stage": self.stage,
            "sunset": self.sunset,
            "grace_days": self.grace_days,
        }
        if self.recorded is not None:
            row["recorded"] = {"channel": self.recorded[0], "height": self.recorded[1]}
        return row

    def moved_to(self, stage: Stage, sunset: str | None = None) -> Lifecycle:
        """Return the version at a later stage; stages only move forward."""
        if _ORDER.index(stage) <= _ORDER.index(self.stage):
            raise Invalid(f"version {self.minor}.x is {self.stage}; it cannot become {stage}")
        return Lifecycle(self.minor, stage, sunset or self.sunset, self.grace_days)


LIFECYCLE: Final = (Lifecycle("1.0", "active"), Lifecycle("1.1", "active"))
"""The versions this code supports."""


def parse_range(text: str) -> tuple[int, int]:
    """Return major and minor of a range.

    >>> parse_range("1.1.x")
    (1, 1)
    """
    found = _RANGE.fullmatch(text)
    if found is None:
        raise Invalid(f"version range {text[:40]!r}: expected a form like 1.0.x")
    return int(found[1]), int(found[2])


def parse_minor(text: str) -> tuple[int, int]:
    """Return major and minor of a minor version.

    >>> parse_minor("1.10")
    (1, 10)
    """
    return parse_range(f"{text}.x")


def version_of(text: str) -> tuple[int, int, int]:
    """Return major, minor and patch of a version.

    >>> version_of("1.0.3")
    (1, 0, 3)
    """
    found = _VERSION.fullmatch(text)
    if found is None:
        raise Invalid(f"version {text[:40]!r}: expected a form like 1.0.0")
    return int(found[1]), int(found[2]), int(found[3])


def highest_common(ours: Iterable[str], theirs: Iterable[str]) -> str | None:
    """Return the highest range both sides support (S4 §8).

    >>> highest_common(["1.0.x", "1.1.x"], ["1.0.x", "1.1.x", "1.10.x"])
    '1.1.x'
    >>> highest_common(["1.0.x"], ["2.0.x"]) is None
    True
    """
    common = {parse_range(text) for text in ours} & {parse_range(text) for text in theirs}
    return f"{max(common)[0]}.{max(common)[1]}.x" if common else None


def newest_version(ranges: Iterable[str]) -> str:
    """Return the first version of the highest range; the first version ever if there is none.

    >>> newest_version(["1.0.x", "1.10.x", "1.9.x"])
    '1.10.0'
    """
    major, minor = max(map(parse_range, ranges), default=(1, 0))
    return f"{major}.{minor}.0"


def access(
    minor: str, at_ns: int, table: Sequence[Lifecycle] = LIFECYCLE, previews: Iterable[str] = ()
) -> tuple[Access, str]:
    """Return the access a version has at a time, and the reason.

    >>> access("1.0", 0)
    ('write', '1.0.x is active')
    >>> access("9.0", 0)
    ('none', '9.0.x is not known')
    """
    life = next((each for each in table if each.minor == minor), None)
    if life is None:
        return "none", f"{minor}.x is not known"
    said = f"{minor}.x is {life.stage}"
    if life.stage == "disabled":
        return "none", said
    if life.stage == "preview":
        return ("write", said) if minor in set(previews) else ("none", f"{said} and its flag is not set")
    if life.stage != "deprecated" or life.sunset is None or at_ns < parse_timestamp(life.sunset):
        return "write", said
    if at_ns < parse_timestamp(life.sunset) + life.grace_days * DAY_NS:
        return "read", f"{said} and its sunset was {life.sunset}"
    return "none", f"{said} and its grace time is over"


def writable_minors(
    at_ns: int, table: Sequence[Lifecycle] = LIFECYCLE, previews: Iterable[str] = ()
) -> frozenset[str]:
    """Return the minor versions that rule 4 accepts at ingest.

    >>> sorted(writable_minors(0))
    ['1.0', '1.1']
    """
    flags = tuple(previews)
    return frozenset(each.minor for each in table if access(each.minor, at_ns, table, flags)[0] == "write")


def gate(
    at_ns: int,
    table: Sequence[Lifecycle] = LIFECYCLE,
    allowed: Iterable[str] | None = None,
    *,
    rehearsed: frozenset[str] | None = None,
) -> frozenset[str]:
    """Return what rule 4 accepts at a time: versions whose lifecycle allows it, narrowed by a policy if it names any.

    A policy that names a version opts into its preview. Versions this code cannot read are never accepted. With
    `rehearsed`, only the oldest version and those are accepted.

    >>> table = (Lifecycle("1.0", "active"), Lifecycle("1.1", "preview"))
    >>> sorted(gate(0, table)), sorted(gate(0, table, ["1.1.x"]))
    (['1.0'], ['1.1'])
    """
    named = None if allowed is None else {".".join(map(str, parse_range(text))) for text in allowed}
    open_now = writable_minors(at_ns, table, named or ()) & {life.minor for life in LIFECYCLE}
    if rehearsed is not None:
        open_now &= {LIFECYCLE[0].minor, *rehearsed}
    return open_now if named is None else open_now & named


def due_notices(at_ns: int, table: Sequence[Lifecycle] = LIFECYCLE) -> list[dict[str, Any]]:
    """Return payloads of the alerts that are due before a sunset: the nearest of 30, 14 and 7 days.

    >>> soon = [Lifecycle("1.0", "deprecated", "1970-01-11T00:00:00Z")]
    >>> due_notices(0, soon)
    [{'version': '1.0.x', 'sunset': '1970-01-11T00:00:00Z', 'days': 14}]
    """
    out: list[dict[str, Any]] = []
    for life in table:
        if life.sunset is None or life.stage == "disabled":
            continue
        left = parse_timestamp(life.sunset) - at_ns
        due = [days for days in NOTICE_DAYS if 0 < left <= days * DAY_NS]
        if due:
            out.append({"version": f"{life.minor}.x", "sunset": life.sunset, "days": min(due)})
    return out


def _recorded(value: Any) -> tuple[str, int] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or value.keys() != {"channel", "height"}:
        raise Invalid("recorded must have channel and height")
    channel, height = value["channel"], value["height"]
    if not isinstance(channel, str) or type(height) is not int or height < 0:
        raise Invalid("recorded must have a channel name and a height")
    return channel, height


def encode_lifecycle(table: Sequence[Lifecycle]) -> bytes:
    """Return the bytes of the table's file.

    >>> parse_lifecycle(encode_lifecycle(LIFECYCLE)) == LIFECYCLE
    True
    """
    rows: list[Any] = [life.to_json() for life in table]
    return jcs.encode(rows)


def parse_lifecycle(raw: bytes) -> tuple[Lifecycle, ...]:
    """Parse a table from JSON: `[{"version":"1.0.x","stage":…,"sunset":…,"grace_days":…}]`.

    >>> parse_lifecycle(b'[{"version":"1.0.x","stage":"active"}]')[0].stage
    'active'
    """
    value = jcs.parse(raw, bytes_max=LIFECYCLE_BYTES_MAX)
    if not isinstance(value, list):
        raise Invalid("a version table must be a list")
    out: list[Lifecycle] = []
    for each in value:
        known = {"version", "stage", "sunset", "grace_days", "recorded"}
        if not isinstance(each, dict) or each.keys() - known:
            raise Invalid("a version must have version, stage, sunset, grace_days and optionally recorded")
        major, minor = parse_range(str(each.get("version")))
        stage, sunset, grace = each.get("stage"), each.get("sunset"), each.get("grace_days", 90)
        if stage not in _ORDER:
            raise Invalid(f"stage {str(stage)[:40]!r} is not one of {', '.join(_ORDER)}")
        if type(grace) is not int or grace < 0:
            raise Invalid("grace_days must be a number of days")
        if sunset is not None:
            parse_timestamp(str(sunset))
        if stage == "deprecated" and sunset is None:
            raise Invalid(f"{major}.{minor}.x is deprecated and needs a sunset")
        life = Lifecycle(
            f"{major}.{minor}",
            cast(Stage, stage),
            cast("str | None", sunset),
            grace,
            _recorded(each.get("recorded")),
        )
        if any(other.minor == life.minor for other in out):
            raise Invalid(f"{life.minor}.x is listed twice")
        out.append(life)
    return tuple(out)
