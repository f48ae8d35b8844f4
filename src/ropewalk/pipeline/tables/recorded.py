"""Damage that keeps logs from being read further, as manifests record it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ropewalk.pipeline.tables.staging import Staged
from ropewalk.pipeline.tables.warehouse import Manifest


def faults_in(manifests: Iterable[Manifest]) -> set[tuple[str, str, str]]:
    """Return the damage that is recorded already, by log and entry."""
    return {
        (fault["engine"], fault["topic"], fault["entry_id"]) for each in manifests for fault in each.faults
    }


def new_faults(staged: Iterable[Staged]) -> list[dict[str, str]]:
    """Return the damage in what was just written: rows that have no position in their log."""
    return [
        {"engine": each.log.engine, "topic": each.log.topic, "entry_id": entry}
        for each in staged
        for entry in each.faults
    ]
