"""Composition and lifetimes: engines wired to stores, with a clock, chance, and an end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropewalk.node.open import open_repository
    from ropewalk.node.repository import Repository

__all__ = ["Repository", "open_repository"]

# Public name → where it lives; on first use, so that a gossip command does not pay for git (PEP 562).
_LAZY = {
    "Repository": ("ropewalk.node.repository", "Repository"),
    "open_repository": ("ropewalk.node.open", "open_repository"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ropewalk.node' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _LAZY[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
