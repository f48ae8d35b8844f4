"""Append-only event logs you can prove: in git, between peers, or as a sealed ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropewalk.node.open import open_repository as open

__version__ = "0.1.0"

__all__ = ["__version__", "open"]

# Public name → where it lives; imported on first use, so that `import ropewalk` loads nothing else.
_LAZY = {"open": ("ropewalk.node.open", "open_repository")}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ropewalk' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _LAZY[name]
    return getattr(import_module(module), attribute)
