"""Strict reading of small JSON documents: exactly the members named, version 1, errors that name the document."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from ropewalk.errors import Invalid
from ropewalk.kernel.digest import hash_from_hex


@dataclass(frozen=True, slots=True)
class StrictForm:
    """One kind of document: what errors call it, and what they advise.

    >>> StrictForm("manifest", "Export it again.").natural({"n": -1}, "n")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: manifest: n must be a natural number
    """

    kind: str
    advice: str | None = None
    error: type[Invalid] = Invalid

    def wrong(self, what: str) -> Invalid:
        return self.error(f"{self.kind}: {what}", advice=self.advice)

    def members(
        self, value: Any, names: Iterable[str], expected: str, optional: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Return an object of version 1 that has exactly these members, and maybe the optional ones."""
        if not isinstance(value, dict) or value.keys() - set(optional) != {"version", *names}:
            raise self.wrong(f"expected {expected}")
        if value["version"] != 1 or type(value["version"]) is not int:
            raise self.wrong(f"version {value['version']!r:.20} is unknown; expected 1")
        return cast("dict[str, Any]", value)

    def items(self, value: dict[str, Any], name: str) -> list[Any]:
        if not isinstance(value[name], list):
            raise self.wrong(f"{name} must be a list")
        return cast("list[Any]", value[name])

    def natural(self, value: dict[str, Any], name: str) -> int:
        if type(value[name]) is not int or value[name] < 0:
            raise self.wrong(f"{name} must be a natural number")
        return cast(int, value[name])

    def text(self, value: Any, name: str) -> str:
        """Return a string of the named member."""
        if not isinstance(value, str):
            raise self.wrong(f"{name} must hold strings")
        return value

    def digest(self, value: Any, name: str) -> str:
        """Return a hash of the named member."""
        if hash_from_hex(value) is None:
            raise self.wrong(f"{name}: hashes must be 64 lowercase hex digits")
        return str(value)
