"""Strict parsing shared by the manifests of bundles and archives; errors name the kind of manifest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from ropewalk.errors import Invalid, InvalidKey
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.schema.form import StrictForm

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
    """A file listed in a manifest: its name, digest and size."""

    name: str
    blake3: str
    size: int

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form in a manifest."""
        return {"name": self.name, "blake3": self.blake3, "bytes": self.size}


class ManifestForm(StrictForm):
    """Reads the members of one kind of manifest."""

    __slots__ = ()

    def file(self, value: Any) -> File:
        """Parse a file of the list `files`."""
        if not isinstance(value, dict) or value.keys() != {"name", "blake3", "bytes"}:
            raise self.wrong("files must have name, blake3 and bytes")
        return File(
            self.text(value["name"], "files"),
            self.digest(value["blake3"], "files"),
            self.natural(value, "bytes"),
        )
