"""What the manifests of bundles and of archives have in common, read strictly: a refusal says which kind it is of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, cast

from ropewalk.errors import Invalid, InvalidKey
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.keys import PublicKey

# Canonical members are sorted, so every manifest ends with these three. They are read without parsing the rest.
_TAIL: Final = re.compile(
    rb'"signer":(\{"identity_type":"[a-z0-9]{1,16}","public_key":"[A-Za-z0-9+/=]{1,128}"\})'
    rb',"start_height":[0-9]{1,16},"version":1\}\Z'
)
_TAIL_BYTES: Final = 512


def claimed_signer(raw: bytes) -> PublicKey:
    """Return the key that a manifest names as its signer, from its last bytes alone: nothing else is parsed.

    A signature can thus be checked before the manifest is. `Invalid` if no canonical manifest ends like this.

    >>> claimed_signer(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: manifest must end with "signer", "start_height" and "version"
    """
    found = _TAIL.search(raw, max(0, len(raw) - _TAIL_BYTES))
    if found is None:
        raise Invalid('manifest must end with "signer", "start_height" and "version"')
    try:
        return PublicKey.from_json(jcs.parse(found[1]))
    except InvalidKey as error:
        raise Invalid(f"manifest: signer: {error.detail}") from error


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
