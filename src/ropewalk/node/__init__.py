"""Composition and lifetimes: engines wired to stores, with a clock, chance, and an end."""

from __future__ import annotations

from ropewalk.node.open import open_repository
from ropewalk.node.open import open_repository as open
from ropewalk.node.repository import Repository

__all__ = ["Repository", "open", "open_repository"]
