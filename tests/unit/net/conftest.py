"""The fixtures of the gossip engine: tables of both kinds, and the recorded sessions."""

from __future__ import annotations

from tests.unit.gossip.conftest import make_table, vector

__all__ = ["make_table", "vector"]
