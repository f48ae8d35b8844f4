"""Versions of envelopes that do not exist in the product: 1.1 with an optional field, 2.0 with a required one."""

from __future__ import annotations

import pytest

from ropewalk.ledger.envelope import formats
from ropewalk.ledger.envelope.formats import AddedField, Formats
from ropewalk.ledger.rules import verdict
from ropewalk.ledger.versions import lifecycle, versions
from ropewalk.ledger.versions.versions import Lifecycle

EVOLVED = Formats(
    (
        AddedField("priority", "1.1", {"type": "integer", "minimum": 0}),
        AddedField("priority", "2.0", {"type": "integer", "minimum": 0}),
        AddedField("tenant", "2.0", {"type": "string", "minLength": 1}, required=True, legacy="default"),
    )
)


def evolve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process know 1.1 and 2.0 with their fields; 2.0 is a preview, as a new version is."""
    table = (Lifecycle("1.0", "active"), Lifecycle("1.1", "active"), Lifecycle("2.0", "preview"))
    monkeypatch.setattr(formats, "FORMATS", EVOLVED)
    for module in (versions, lifecycle):
        monkeypatch.setattr(module, "LIFECYCLE", table)
    monkeypatch.setattr(verdict, "SUPPORTED_MINORS", frozenset(life.minor for life in table))
