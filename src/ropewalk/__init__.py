"""Append-only event logs you can prove: in git, between peers, or as a sealed ledger."""

__version__ = "0.1.0"

__all__ = ["__version__"]
