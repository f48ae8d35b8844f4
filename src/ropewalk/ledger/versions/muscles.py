"""Muscles (S4 §16): programs over a channel that declare which versions they support, published with evidence.

    {"version":1, "name", "muscle_version", "min_version":"1.0.x", "max_version":"1.1.x", "evidence":{…}}

`muscle publish` records a `Command` with the manifest as payload and its evidence as the envelope's evidence, so that
it is bound to the manifest, and a `Result` with the roots of the compatibility test. Only the channel's own key records
a muscle. The last version published under a name is the active one, until it is retired.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from ropewalk.errors import Denied
from ropewalk.kernel.schema.form import StrictForm
from ropewalk.ledger.block.block import Block
from ropewalk.ledger.channel.segments.reader import Segments
from ropewalk.ledger.channel.settings import FOLDER, channels
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.versions.statements import DOMAIN
from ropewalk.ledger.versions.versions import Lifecycle, parse_minor, parse_range

MANIFEST_BYTES_MAX: Final = 1 << 20  # mostly evidence
PUBLISH_TYPE: Final = "ledger.muscle.publish"
PUBLISHED_TYPE: Final = "ledger.muscle.published"
RETIRE_TYPE: Final = "ledger.muscle.retire"
RETIRED_TYPE: Final = "ledger.muscle.retired"
_HINT: Final = b'"event_type":"ledger.muscle.'
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_MEMBERS: Final = ("name", "muscle_version", "min_version", "max_version")
_FORM: Final = StrictForm("muscle manifest", "See `ropewalk ledger muscle publish --help`.")


@dataclass(frozen=True, slots=True)
class Muscle:
    """A manifest without its evidence."""

    name: str
    muscle_version: str
    min_version: str
    max_version: str

    def to_json(self) -> dict[str, Any]:
        """Return the payload that evidence must be bound to."""
        return {"version": 1, **{name: getattr(self, name) for name in _MEMBERS}}

    def supports(self, minor: str) -> bool:
        return parse_range(self.min_version) <= parse_minor(minor) <= parse_range(self.max_version)

    @property
    def correlation_id(self) -> str:
        """The id under which a channel records it, once; hardware evidence binds it too."""
        return f"muscle:{self.name}:{self.muscle_version}"


def parse_muscle(value: Any) -> tuple[Muscle, dict[str, Any] | None]:
    """Return a muscle and the evidence in its manifest, if there is any.

    >>> parse_muscle({"version": 1, "name": "tally", "muscle_version": "7", "min_version": "1.1.x",
    ...               "max_version": "1.0.x"})
    Traceback (most recent call last):
    ropewalk.errors.Invalid: muscle manifest: min_version must not be above max_version, got 1.1.x and 1.0.x
    """
    value = _FORM.members(value, _MEMBERS, f"version, {', '.join(_MEMBERS)} and evidence", ("evidence",))
    for name in _MEMBERS:
        _FORM.text(value[name], name)
    for name in ("name", "muscle_version"):
        if _NAME.fullmatch(value[name]) is None:
            raise _FORM.wrong(f"{name} must match {_NAME.pattern}, got {value[name][:80]!r}")
    low, high = value["min_version"], value["max_version"]
    if parse_range(low) > parse_range(high):
        raise _FORM.wrong(f"min_version must not be above max_version, got {low} and {high}")
    evidence = value.get("evidence")
    if evidence is not None and not isinstance(evidence, dict):
        raise _FORM.wrong("evidence must be an object")
    return Muscle(*(value[name] for name in _MEMBERS)), evidence


def active_muscles(home: Path, channel: str) -> dict[str, tuple[Muscle, int]]:
    """Return the active muscles of a channel by name, with the height that records each."""
    found: dict[str, tuple[Muscle, int]] = {}
    for height, envelope in _recorded(home, channel):
        payload = cast("dict[str, Any]", envelope.payload)
        muscle, _ = parse_muscle({name: payload.get(name) for name in ("version", *_MEMBERS)})
        if envelope.event_type == PUBLISHED_TYPE:
            found[muscle.name] = muscle, height
        elif envelope.event_type == RETIRED_TYPE and found.get(muscle.name, (None,))[0] == muscle:
            del found[muscle.name]
    return found


def _recorded(home: Path, channel: str) -> Iterator[tuple[int, Envelope]]:
    for record in Segments(home / FOLDER / channel).scan():
        if not any(_HINT in raw for raw in record.lines[1:]):
            continue
        block = Block.from_lines(record.lines)
        for raw in block.envelopes:
            if _HINT in raw:
                envelope = parse_stored(raw)
                if (envelope.event_class, envelope.domain) == ("Result", DOMAIN) and (
                    envelope.public_key == block.record.signer
                ):
                    yield record.height, envelope


def check_no_muscle_left(home: Path, table: Iterable[Lifecycle], version: str) -> None:
    """Raise if an active muscle would be left without a version once `version` is deprecated or disabled."""
    left = [life.minor for life in table if life.stage in ("active", "maintenance")]
    for channel in channels(home):
        for muscle, height in active_muscles(home, channel).values():
            if muscle.supports(version) and not any(map(muscle.supports, left)):
                raise Denied(
                    f"muscle {muscle.name} {muscle.muscle_version} (channel {channel}, block {height}) supports only "
                    f"{muscle.min_version} to {muscle.max_version}; without {version}.x no version is left for it",
                    advice="Publish a version of it that supports another one, or retire it: `ropewalk ledger muscle`.",
                )
