"""The JSON form of a dataclass, from its fields: for results that commands print, and for documents in files."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


def members_of(value: Any, **names: str) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON members, in their order; `names` are members named unlike their field.

    Bytes become hex, tuples lists, paths strings; a value with `to_json` has that form.

    >>> from ropewalk.kernel.proofs import RangeProof
    >>> members_of(RangeProof((bytes([1]),), ()), left="below")
    {'below': ['01'], 'right': []}
    """
    return {names.get(each.name, each.name): _plain(getattr(value, each.name)) for each in fields(value)}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "to_json"):
        return value.to_json()
    return str(value) if hasattr(value, "__fspath__") else value
