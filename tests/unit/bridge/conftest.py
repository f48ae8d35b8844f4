"""The fixtures of git logs: a repository with a clock that the test moves."""

from __future__ import annotations

from tests.unit.gitlog.conftest import clock, log, place

__all__ = ["clock", "log", "place"]
