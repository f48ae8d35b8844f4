"""What may stand in a bundle: limits of its members, one line of a proofs file, and reading only the manifest."""

from __future__ import annotations

from typing import Final

from ropewalk.errors import Invalid, TooLarge
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.keys import Signature
from ropewalk.ledger.block import BLOCK_BYTES_MAX, BLOCK_ENVELOPES_MAX, HEADER_BYTES_MAX
from ropewalk.ledger.bundle import HEADERS, MANIFEST, SIGNATURE
from ropewalk.ledger.bundlemanifest import Manifest, parse_manifest
from ropewalk.ledger.tar import Member, TarReader

__all__ = ["HEADER_LINE_MAX", "ManifestReader", "check_member", "no_bundle", "parse_proof_line"]

MANIFEST_BYTES_MAX: Final = 64 << 20
SIGNATURE_BYTES_MAX: Final = 1 << 10
BLOCK_MEMBER_MAX: Final = BLOCK_BYTES_MAX + BLOCK_ENVELOPES_MAX
PROOF_MEMBER_MAX: Final = BLOCK_ENVELOPES_MAX * 1200  # thirteen hashes and an id a line
HEADER_LINE_MAX: Final = HEADER_BYTES_MAX + (1 << 10)


class ManifestReader:
    """Reads manifest and signature of an archive that is fed to it, and nothing beyond."""

    def __init__(self) -> None:
        self._tar = TarReader()
        self._name = ""
        self._members: dict[str, bytearray] = {}
        self.done = False

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the archive; `done` says when there is enough."""
        for event in self._tar.feed(chunk):
            if isinstance(event, Member):
                self._name = event.name
                if self._name != (MANIFEST, SIGNATURE)[min(len(self._members), 1)]:
                    raise no_bundle(f"it begins with {self._name}")
                if event.size > MANIFEST_BYTES_MAX:
                    raise TooLarge(f"{self._name} of {event.size} bytes", limit=MANIFEST_BYTES_MAX)
                self._members[self._name] = bytearray()
            elif event:
                self._members[self._name] += event
            elif self._name == SIGNATURE:
                self.done = True
                return

    def manifest(self) -> tuple[Manifest, Signature, int]:
        """What the bundle says about itself, its signature, and the manifest's size. Nothing is verified."""
        if not self.done:
            raise no_bundle("it ends before its manifest does")
        raw = bytes(self._members[MANIFEST])
        return (
            parse_manifest(raw),
            Signature.from_json(jcs.parse(bytes(self._members[SIGNATURE]))),
            len(raw),
        )


def check_member(name: str, size: int) -> None:
    """Raise if a member is larger than anything of its kind can be.

    >>> check_member("headers.jsonl", 1 << 40)
    """
    if name == HEADERS:
        return  # read line by line, and each line has its limit
    whole = {MANIFEST: MANIFEST_BYTES_MAX, SIGNATURE: SIGNATURE_BYTES_MAX}
    limit = whole.get(name, PROOF_MEMBER_MAX if name.startswith("proofs/") else BLOCK_MEMBER_MAX)
    if size > limit:
        raise TooLarge(f"member {name} of {size} bytes; at most {limit}", size=size, limit=limit, name=name)


def parse_proof_line(raw: bytes) -> tuple[bytes, int, tuple[bytes, ...]]:
    """Envelope id, index and path of one line; form only."""
    value = jcs.parse_canonical(raw)
    if not isinstance(value, dict) or value.keys() != {"envelope_id", "index", "path"}:
        raise Invalid("a proof has envelope_id, index and path")
    index, path = value["index"], value["path"]
    if type(index) is not int or not isinstance(path, list) or len(path) > 64:
        raise Invalid("index is a number and path a short list of hashes")
    hashes = [_hash(each) for each in (value["envelope_id"], *path)]
    return hashes[0], index, tuple(hashes[1:])


def _hash(text: jcs.Json) -> bytes:
    raw = hash_from_hex(text)
    if raw is None:
        raise Invalid("hashes are 64 lower-case hex digits")
    return raw


def no_bundle(why: str) -> Invalid:
    """The refusal of something that is no bundle at all."""
    return Invalid(f"this is no bundle: {why}", advice="Make one with `ropewalk bundle export`.")
