"""Fields that later versions add to the sixteen of S4 §3 (S4 §8, schema evolution).

A minor version may add optional fields: absent by default, and older readers do without them. A required field needs a
new major version, which both sides must negotiate; its adapter reads `legacy` in envelopes of older major versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ropewalk.errors import Invalid, InvalidEnvelope
from ropewalk.kernel import jcs
from ropewalk.kernel.schema.declared import declare
from ropewalk.ledger.envelope.fields import FIELDS, SCHEMA
from ropewalk.ledger.versions.versions import parse_minor


@dataclass(frozen=True, slots=True)
class AddedField:
    """A field, the minor version (as "1.2") that added it, and its JSON Schema."""

    name: str
    since: str
    schema: dict[str, Any] = field(default_factory=dict)
    required: bool = False
    legacy: Any = None


class Formats:
    """The added fields of all versions.

    >>> Formats((AddedField("tenant", "1.2", required=True),))
    Traceback (most recent call last):
    ropewalk.errors.Invalid: field "tenant" of 1.2: a required field needs a new major version, which peers negotiate
    """

    def __init__(self, fields: Sequence[AddedField] = ()) -> None:
        self.fields = tuple(fields)
        self.names = frozenset(each.name for each in fields)
        for each in fields:
            here, (major, minor) = f'field "{each.name}" of {each.since}', parse_minor(each.since)
            if each.name in FIELDS:
                raise Invalid(f"{here}: every version has this field")
            if each.required and (minor or major < 2):
                raise Invalid(f"{here}: a required field needs a new major version, which peers negotiate")
            if not each.required and each.legacy is not None:
                raise Invalid(f"{here}: an optional field must be absent by default")

    def of(self, minor: str) -> dict[str, AddedField]:
        """Return the added fields of a minor version: its own, and those of earlier minors of its major version."""
        at = parse_minor(minor)
        return {
            each.name: each
            for each in self.fields
            if parse_minor(each.since)[0] == at[0] and parse_minor(each.since) <= at
        }

    def split(self, value: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return an envelope's value without null optionals, and its sixteen fields; raise if an added one is wrong."""
        version = value.get("protocol_version")
        try:
            known = self.of(str(version).rpartition(".")[0])
        except Invalid:
            return value, value  # the schema of the sixteen reports it
        for name, each in known.items():
            if value.get(name) is None:
                if each.required:
                    raise InvalidEnvelope(
                        f"{name} is required since {each.since}", where=f"/{name}", schema=SCHEMA
                    )
                continue
            fault = declare(jcs.encode(each.schema)).fault(value[name])
            if fault is not None:
                raise InvalidEnvelope(f"{name}: {fault}", where=f"/{name}", schema=SCHEMA)
        if any(name in value and value[name] is None for name in known):
            value = {name: each for name, each in value.items() if each is not None or name not in known}
        return value, {name: each for name, each in value.items() if name not in known}


FORMATS = Formats()
"""The fields that versions of this software add: none so far."""
