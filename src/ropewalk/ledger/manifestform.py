"""What the manifests of bundles and of archives have in common, read strictly: a refusal says which kind it is of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from ropewalk.errors import Invalid
from ropewalk.kernel.digest import hash_from_hex

__all__ = ["File", "ManifestForm"]


@dataclass(frozen=True, slots=True)
class File:
    """A file beside the manifest: its name, its digest and its size."""

    name: str
    blake3: str
    size: int

    def to_json(self) -> dict[str, Any]:
        """As a manifest lists it."""
        return {"name": self.name, "blake3": self.blake3, "bytes": self.size}


@dataclass(frozen=True, slots=True)
class ManifestForm:
    """How the members of one kind of manifest are read.

    >>> ManifestForm("manifest", "Export it again.").natural({"n": -1}, "n")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: manifest: n is a natural number
    """

    kind: str
    advice: str

    def wrong(self, what: str) -> Invalid:
        """The refusal."""
        return Invalid(f"{self.kind}: {what}", advice=self.advice)

    def items(self, value: dict[str, Any], name: str) -> list[Any]:
        """A member that is a list."""
        if not isinstance(value[name], list):
            raise self.wrong(f"{name} is a list")
        return cast("list[Any]", value[name])

    def natural(self, value: dict[str, Any], name: str) -> int:
        """A member that counts something."""
        if type(value[name]) is not int or value[name] < 0:
            raise self.wrong(f"{name} is a natural number")
        return cast(int, value[name])

    def text(self, value: Any, name: str) -> str:
        """A text of the member of that name."""
        if not isinstance(value, str):
            raise self.wrong(f"{name} holds texts")
        return value

    def digest(self, value: Any, name: str) -> str:
        """A hash of the member of that name."""
        if hash_from_hex(value) is None:
            raise self.wrong(f"{name}: hashes are 64 lower-case hex digits")
        return str(value)

    def file(self, value: Any) -> File:
        """A file as `files` lists it."""
        if not isinstance(value, dict) or value.keys() != {"name", "blake3", "bytes"}:
            raise self.wrong("files have name, blake3 and bytes")
        return File(
            self.text(value["name"], "files"),
            self.digest(value["blake3"], "files"),
            self.natural(value, "bytes"),
        )
