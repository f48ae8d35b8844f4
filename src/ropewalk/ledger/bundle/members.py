"""Members of a bundle: their limits, one line of a proofs file, and reading only the manifest."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from ropewalk.errors import Invalid, RopewalkError, TooLarge
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import Tag, hash_from_hex
from ropewalk.kernel.json_check import check_size
from ropewalk.kernel.keys import PublicKey, Signature
from ropewalk.ledger.block.block import BLOCK_BYTES_MAX, BLOCK_ENVELOPES_MAX, HEADER_BYTES_MAX
from ropewalk.ledger.bundle.format import HEADERS, MANIFEST, SIGNATURE
from ropewalk.ledger.bundle.manifest import BundleManifest, parse_manifest
from ropewalk.ledger.bundle.manifest_fields import claimed_signer
from ropewalk.ledger.bundle.tar import Member, TarReader

# For a signer that the verifier names: a hundred thousand blocks take 36 MiB.
MANIFEST_BYTES_MAX: Final = 64 << 20
MANIFEST_UNKNOWN_BYTES_MAX: Final = 16 << 20  # for any other signer with a valid signature
MANIFEST_UNSIGNED_BYTES_MAX: Final = 1 << 20  # without a valid signature: read only to report further faults
MANIFEST_RATIO_MAX: Final = (
    32  # manifests are mostly digests: they compress to a quarter, never to a thirtieth
)
MANIFEST_ITEM_BYTES_MIN: Final = 16  # on average; a digest in hex alone has 64
MANIFEST_ITEMS_FREE: Final = 16_384
SIGNATURE_BYTES_MAX: Final = 1 << 10
BLOCK_MEMBER_MAX: Final = BLOCK_BYTES_MAX + BLOCK_ENVELOPES_MAX
CBOR_MEMBER_MAX: Final = 3 * BLOCK_BYTES_MAX  # a short decimal fraction takes nine bytes
PROOF_MEMBER_MAX: Final = BLOCK_ENVELOPES_MAX * 1200  # thirteen hashes and an id per line
PROOF_LINE_MAX: Final = 8 << 10  # 64 hashes and an id
HEADER_LINE_MAX: Final = HEADER_BYTES_MAX + (1 << 10)


@dataclass(frozen=True, slots=True)
class OpenedManifest:
    """A manifest, and why its signature is invalid; both None if the bytes were not parsed."""

    manifest: BundleManifest | None
    refused: str = ""


def open_manifest(
    raw: bytes, signature: bytes | None, named: Collection[PublicKey] = (), *, anybody: bool = False
) -> OpenedManifest:
    """Check the signature of a manifest, then its size, and parse it only then.

    `named` are the keys that may sign bundles. A manifest of another key may still be needed, because it lists the
    keys that lead to it; it is parsed within a smaller limit, and an unsigned one within the smallest. With `anybody`
    the limit of a named signer applies to every signer.
    """
    signer = claimed_signer(raw)
    refused, limit = "", MANIFEST_BYTES_MAX if signer in named or anybody else MANIFEST_UNKNOWN_BYTES_MAX
    try:
        if signature is None:
            raise Invalid(f"{SIGNATURE} is missing")
        found = Signature.from_json(jcs.parse(signature, bytes_max=SIGNATURE_BYTES_MAX))
        if found.alg != signer.alg:
            raise Invalid(f"{found.alg} signature of a {signer.alg} key")
        signer.verify(Tag.BUNDLE + raw, found.raw)
    except RopewalkError as error:
        refused, limit = error.detail, MANIFEST_UNSIGNED_BYTES_MAX
    if len(raw) > limit:
        return OpenedManifest(
            None,
            f"{refused + '; ' if refused else ''}a manifest of {len(raw)} bytes by {signer.did()} is not parsed; "
            f"at most {limit} unless the trust file names its signer",
        )
    check_size(raw, limit, MANIFEST_ITEMS_FREE + len(raw) // MANIFEST_ITEM_BYTES_MIN)
    return OpenedManifest(parse_manifest(raw), refused)


class ManifestReader:
    """Reads manifest and signature of an archive, and nothing beyond."""

    def __init__(self, packed: int | None = None) -> None:
        """Start reading.

        `packed` is the size of the file on disk, which bounds the manifest.
        """
        self._tar = TarReader()
        self._packed = packed
        self._name = ""
        self._members: dict[str, bytearray] = {}
        self.done = False

    def feed(self, chunk: bytes) -> None:
        """Process the next bytes of the archive; `done` is set when there is enough."""
        for event in self._tar.feed(chunk):
            if isinstance(event, Member):
                self._name = event.name
                if self._name != (MANIFEST, SIGNATURE)[min(len(self._members), 1)]:
                    raise no_bundle(f"it begins with {self._name}")
                check_member(self._name, event.size, self._packed)
                self._members[self._name] = bytearray()
            elif event:
                self._members[self._name] += event
            elif self._name == SIGNATURE:
                self.done = True
                return

    def manifest(self) -> tuple[BundleManifest, Signature, int]:
        """Return the manifest, its signature, and its size. The signer is not checked against any trust.

        A manifest with an invalid signature is returned only if it is small.
        """
        if not self.done:
            raise no_bundle("it ends before its manifest does")
        raw, signature = (bytes(self._members[name]) for name in (MANIFEST, SIGNATURE))
        opened = open_manifest(raw, signature, anybody=True)
        if opened.manifest is None:
            raise TooLarge(opened.refused, size=len(raw), limit=MANIFEST_UNSIGNED_BYTES_MAX)
        return opened.manifest, Signature.from_json(jcs.parse(signature)), len(raw)


def manifest_limit(packed: int | None) -> int:
    """Return the maximum manifest size for a file of that size.

    >>> manifest_limit(6_000), manifest_limit(None)
    (1048576, 67108864)
    """
    if packed is None:
        return MANIFEST_BYTES_MAX
    return min(MANIFEST_BYTES_MAX, max(MANIFEST_UNSIGNED_BYTES_MAX, packed * MANIFEST_RATIO_MAX))


def check_member(name: str, size: int, packed: int | None = None) -> None:
    """Raise if a member is larger than its kind can be, in a file of `packed` bytes.

    >>> check_member("headers.jsonl", 1 << 40)
    """
    if name == HEADERS:
        return  # read line by line, and each line has its limit
    whole = {MANIFEST: manifest_limit(packed), SIGNATURE: SIGNATURE_BYTES_MAX}
    kinds = {"proofs": PROOF_MEMBER_MAX, "cbor": CBOR_MEMBER_MAX}
    limit = whole.get(name, kinds.get(name.partition("/")[0], BLOCK_MEMBER_MAX))
    if size > limit:
        raise TooLarge(
            f"member {name} must have at most {limit} bytes, got {size}", size=size, limit=limit, name=name
        )


def parse_proof_line(raw: bytes) -> tuple[bytes, int, tuple[bytes, ...]]:
    """Parse envelope id, index and path of one line; only the form is checked."""
    value = jcs.parse_canonical(raw, bytes_max=PROOF_LINE_MAX)
    if not isinstance(value, dict) or value.keys() != {"envelope_id", "index", "path"}:
        raise Invalid("a proof must have envelope_id, index and path")
    index, path = value["index"], value["path"]
    if type(index) is not int or not isinstance(path, list) or len(path) > 64:
        raise Invalid("index must be a number and path a short list of hashes")
    hashes = [_hash(each) for each in (value["envelope_id"], *path)]
    return hashes[0], index, tuple(hashes[1:])


def _hash(text: jcs.Json) -> bytes:
    raw = hash_from_hex(text)
    if raw is None:
        raise Invalid("hashes must be 64 lowercase hex digits")
    return raw


def no_bundle(why: str) -> Invalid:
    """Return the error for something that is not a bundle."""
    return Invalid(f"not a bundle: {why}", advice="Make one with `ropewalk bundle export`.")
