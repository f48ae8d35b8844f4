"""Which types the members of an event type have by a JSON Schema: the user's, else the one in a channel's policy."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from ropewalk.errors import Invalid, NotFound, RopewalkError
from ropewalk.kernel import jcs
from ropewalk.pipeline.source.ledger_logs import Ledgers
from ropewalk.pipeline.tables.typed import schema_kinds

SCHEMA_BYTES_MAX: Final = 1 << 20


class DeclaredKinds:
    """Call it with an event type. Policies are read once, and only if typed tables are written."""

    def __init__(self, schemas: Mapping[str, Any], ledgers: Ledgers) -> None:
        self._given = {name: schema_kinds(schema) for name, schema in schemas.items()}
        self._ledgers = ledgers
        self._rules: list[tuple[list[str], dict[str, str]]] | None = None

    def __call__(self, event_type: str) -> dict[str, str]:
        if event_type in self._given:
            return self._given[event_type]
        if self._rules is None:
            self._rules = self._policy_rules()
        found: dict[str, str] = {}
        for patterns, kinds in self._rules:
            if any(fnmatchcase(event_type, pattern) for pattern in patterns):
                found = {**kinds, **found}
        return found

    def _policy_rules(self) -> list[tuple[list[str], dict[str, str]]]:
        rules = []
        for topic in self._ledgers.topics():
            with contextlib.suppress(RopewalkError):  # a damaged channel is reported by its reader
                policy = self._ledgers.channel(topic).policy
                for rule in policy.rules if policy is not None else ():
                    if rule["kind"] == "schema":
                        patterns = (rule.get("when") or {}).get("types") or ["*"]
                        rules.append((list(patterns), schema_kinds(rule["schema"])))
        return rules


def read_schemas(given: Mapping[str, Path]) -> dict[str, Any]:
    """Read JSON Schemas by event type; raise for a file that is none."""
    found = {}
    for event_type, path in given.items():
        try:
            with path.open("rb") as stream:
                raw = stream.read(SCHEMA_BYTES_MAX + 1)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise NotFound(f"there is no file {path}", path=str(path)) from error
        value = jcs.parse(raw, bytes_max=SCHEMA_BYTES_MAX)
        if not isinstance(value, dict) or not isinstance(value.get("properties"), dict):
            raise Invalid(
                f'{path} must be a JSON Schema with "properties"',
                advice='Write {"type": "object", "properties": {"total": {"type": "number"}}}.',
            )
        found[event_type] = value
    return found
