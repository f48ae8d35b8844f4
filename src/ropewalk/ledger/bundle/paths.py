"""The envelopes of a bundle and their paths: ids, and paths to the headers.

Paths are checked by building the proofs file again from the envelopes: if the digests agree and the root is the
header's, every path is valid. Only if they differ is each path checked, to name the wrong one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from blake3 import blake3

from ropewalk.errors import Invalid, RopewalkError
from ropewalk.kernel import cbor, jcs, merkle
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.block.block import BLOCK_ENVELOPES_MAX
from ropewalk.ledger.block.leaves import leaf_hashes, split_hashes, surely_canonical
from ropewalk.ledger.bundle.findings import Findings
from ropewalk.ledger.bundle.format import find_refs, prove_block
from ropewalk.ledger.bundle.headers import HeaderCheck
from ropewalk.ledger.bundle.manifest import BundleManifest
from ropewalk.ledger.bundle.members import parse_proof_line
from ropewalk.ledger.envelope.envelope import ENVELOPE_BYTES_MAX, INLINE_BYTES_MAX, parse_stored
from ropewalk.ledger.evidence.recheck import EvidenceTally
from ropewalk.ledger.keys.statements import is_key_statement
from ropewalk.ledger.rules.policy import Policy
from ropewalk.ledger.rules.rules import judge
from ropewalk.ledger.rules.verdict import Context

LEAVES_KEPT_MAX: Final = 64 * BLOCK_ENVELOPES_MAX  # ids of invalid blocks, to name the envelope
EXHIBITS_MAX: Final = 6
LISTED_MAX: Final = 2_000  # envelopes listed in a report page
EVIDENCE: Final = b'"attestation_evidence":'  # canonical JSON has no other spelling of the member


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One envelope with its path, drawn in a report."""

    height: int
    index: int
    count: int
    envelope_id: str
    event_class: str
    event_type: str
    path: tuple[str, ...]
    root: str
    holds: bool


@dataclass(frozen=True, slots=True)
class ListedEnvelope:
    """One envelope as a row of a report, by its own claims."""

    height: int
    index: int
    envelope_id: str
    timestamp: str
    event_class: str
    event_type: str
    signer: str


@dataclass(slots=True)
class _Seen:
    """What is kept of a block between its envelopes and its proofs."""

    count: int
    ids_digest: bytes
    proofs_digest: bytes
    root_holds: bool | None
    kinds: tuple[str, str]
    leaves: list[bytes] | None = None


class PathCheck:
    """Takes the envelopes of every block, then their proofs. `evidence` is None if it is not checked."""

    def __init__(
        self,
        manifest: BundleManifest,
        headers: HeaderCheck,
        findings: Findings,
        *,
        deep: bool,
        evidence: EvidenceTally | None,
        policy: Policy | None = None,
    ) -> None:
        self._manifest, self._headers, self._findings = manifest, headers, findings
        self._deep, self._evidence = deep, evidence
        self._context = Context(sealed=True)
        if manifest.policy_hash is not None:  # the policy is unchecked if its text is not available
            named = bytes.fromhex(manifest.policy_hash)
            text = policy if policy is not None and policy.hash == named else None
            self._context = Context(policy=text, policy_hash=named, sealed=True)
        self._blocks: dict[int, _Seen] = {}
        self._cbor: dict[int, bytes] = {}  # digests of the CBOR members that the JSON ones lead to
        self._refs = 0
        self._proved = 0
        self._kept = 0
        self.envelopes = 0
        self.unjudged = 0
        self.exhibits: list[Exhibit] = []
        self.listed: list[ListedEnvelope] = []

    @property
    def blocks(self) -> int:
        """The number of blocks with envelopes."""
        return len(self._blocks)

    @property
    def rootless(self) -> bool:
        """Whether a header that paths should lead to was missing."""
        return any(seen.root_holds is None for seen in self._blocks.values())

    def read_block(self, height: int, data: bytes) -> None:
        """Read the envelopes of one block, one per line."""
        lines = data.split(b"\n")
        if lines.pop():
            self._fail("envelope_hashes", "the last line has no end", height)
        if not 0 < len(lines) <= BLOCK_ENVELOPES_MAX:
            self._fail("envelope_hashes", f"{len(lines)} envelopes", height)
            return
        kinds, in_cbor = ("", ""), blake3()
        ids = split_hashes(leaf_hashes(lines))
        canonical = surely_canonical(data, len(lines))
        for index, raw in enumerate(lines):
            if index and canonical[index] and not self._asks(raw):
                continue
            try:
                value = jcs.parse_canonical(raw, bytes_max=ENVELOPE_BYTES_MAX)
                if not isinstance(value, dict):
                    raise Invalid("an envelope must be a JSON object")
            except RopewalkError as error:
                self._fail("envelope_hashes", error.detail, height, index)
                continue
            if index == 0:
                kinds = (str(value.get("event_class", ""))[:40], str(value.get("event_type", ""))[:200])
            if len(self.listed) < LISTED_MAX:
                self.listed.append(_list_envelope(height, index, ids[index], value))
            if self._manifest.both:
                in_cbor.update(cbor.encode(value))
            if len(lines) == 1:
                try:
                    self._headers.check_statement(height, raw)
                except RopewalkError as error:
                    self._fail("block_signatures", error.detail, height)
            if self._deep or (self._evidence is not None and "attestation_evidence" in value):
                self._judge(height, index, raw, alone=len(lines) == 1)
        self.envelopes += len(ids)
        self._match_refs(height, ids, lines)
        self._blocks[height] = self._match_root(height, ids, kinds)
        self._cbor[height] = in_cbor.digest()

    def read_cbor(self, height: int, data: bytes) -> None:
        """Compare the CBOR member of a block with its JSON member: both must encode the same envelopes."""
        if height in self._cbor and blake3(data).digest() != self._cbor[height]:
            self._fail("envelope_hashes", "its CBOR is not the encoding of its JSON envelopes", height)

    def read_proofs(self, height: int, data: bytes) -> None:
        """Read the paths of one block, one per line."""
        self._proved += 1
        seen, head = self._blocks.get(height), self._headers.heads.get(height)
        if seen is not None and blake3(data).digest() == seen.proofs_digest:
            # The paths lead from these envelopes to their root; it was compared with the header before.
            if len(self.exhibits) < EXHIBITS_MAX and head is not None:
                self._show(height, data, head, seen)
            return
        lines = data.split(b"\n")
        if lines.pop():
            self._fail("merkle_paths", "the last proof has no end", height)
        claimed = []
        for index, raw in enumerate(lines):
            try:
                name, place, path = parse_proof_line(raw)
            except RopewalkError as error:
                where = f"block {height}, proof {index}"
                self._findings.add("merkle_paths", f"{where}: {error.detail}", height=height, index=index)
                continue
            claimed.append(name)
            if head is not None:
                self._walk(height, index, name, place, path, seen, head)
        if seen is not None:
            self._match_names(height, seen, claimed, len(lines))

    def close(self, *, missing: bool, cut: bool) -> None:
        """Check what only shows at the end of the stream."""
        manifest = self._manifest
        if self._refs < len(manifest.payload_refs) and not missing:
            self._findings.add("bundle_signature", "the manifest lists detached payloads that are not there")
        if cut:
            return
        for height in manifest.heights:
            if height not in self._blocks and not self._findings.detail("envelope_hashes"):
                self._findings.add("envelope_hashes", f"block {height} has no envelopes here", height=height)
        if self._proved < len(manifest.heights):
            what = f"proofs of {self._proved} blocks for {len(manifest.heights)}"
            self._findings.add("merkle_paths", what)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _asks(self, raw: bytes) -> bool:
        """Return whether the value of a canonical envelope is needed, or its size must be checked."""
        return (
            self._deep
            or len(raw) > INLINE_BYTES_MAX
            or len(self.listed) < LISTED_MAX
            or self._manifest.both
            or (self._evidence is not None and EVIDENCE in raw)
        )

    def _judge(self, height: int, index: int, raw: bytes, *, alone: bool) -> None:
        try:
            envelope = parse_stored(raw)
            if self._evidence is not None:
                self._evidence.look(envelope, height, index, self._headers.times.get(height, 0))
            if self._deep:
                key_history, context = self._headers.key_history, self._context
                if key_history.revoked:
                    key_history.check_author(envelope, height, self._headers.times.get(height, 0))
                if alone and is_key_statement(envelope):
                    context = replace(context, policy=None)  # the key history has checked it
                verdict = judge(envelope, context)
                self.unjudged += sum(finding.status == "not_checked" for finding in verdict.findings)
                verdict.require()
        except RopewalkError as error:
            if self._deep:
                self._fail("envelope_rules", error.detail, height, index)
            elif self._evidence is not None:
                self._evidence.count("failed", error.detail, height, index)

    def _match_refs(self, height: int, ids: list[Any], lines: list[bytes]) -> None:
        try:
            found = list(find_refs(ids, lines))
        except RopewalkError:
            return  # reported before: the line is not a canonical envelope
        listed = list(self._manifest.payload_refs[self._refs : self._refs + len(found)])
        self._refs += len(found)
        if listed != found:
            self._fail(
                "bundle_signature", "payload_refs of the manifest do not match its detached payloads", height
            )

    def _match_root(self, height: int, ids: Sequence[bytes], kinds: tuple[str, str]) -> _Seen:
        root, proofs = prove_block(ids)
        seen = _Seen(len(ids), blake3(b"".join(ids)).digest(), blake3(proofs).digest(), None, kinds)
        head = self._headers.heads.get(height)
        if head is not None:
            seen.root_holds = (root, len(ids)) == head
            if not seen.root_holds:
                what = (
                    f"{len(ids)} envelopes, its header counts {head[1]}"
                    if head[1] != len(ids)
                    else f"its envelopes have the root {root.hex()[:16]}…, its header has {head[0].hex()[:16]}…"
                )
                self._fail("merkle_paths", what, height)
        if not seen.root_holds and self._kept + len(ids) <= LEAVES_KEPT_MAX:
            seen.leaves, self._kept = list(ids), self._kept + len(ids)
        return seen

    def _match_names(self, height: int, seen: _Seen, claimed: list[bytes], proofs: int) -> None:
        """Check that the proofs name the envelopes in the bundle, one each."""
        if proofs != seen.count:
            self._fail("merkle_paths", f"{proofs} proofs for {seen.count} envelopes", height)
        if blake3(b"".join(claimed)).digest() != seen.ids_digest:
            at = None
            if seen.leaves is not None:
                pairs = zip(claimed, seen.leaves, strict=False)
                at = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
            self._fail("envelope_hashes", "the bytes do not have the id in the bundle", height, at)

    def _walk(
        self,
        height: int,
        index: int,
        name: bytes,
        place: int,
        path: tuple[bytes, ...],
        seen: _Seen | None,
        head: tuple[bytes, int],
    ) -> None:
        leaf = name
        if seen is not None and seen.leaves is not None and index < len(seen.leaves):
            leaf = seen.leaves[index]  # a path proves the envelope in the bundle, not the named one
        try:
            if place != index:
                raise Invalid(f"expected index {index}, got {place}")
            merkle.verify_inclusion(leaf, place, head[1], path, head[0])
            holds = True
        except RopewalkError as error:
            holds = False
            self._fail("merkle_paths", error.detail, height, index)
        if len(self.exhibits) < EXHIBITS_MAX and (not holds or index == 0):
            kinds = seen.kinds if seen is not None and index == 0 else ("", "")
            hexes = tuple(each.hex() for each in path)
            root = head[0].hex()
            self.exhibits.append(Exhibit(height, index, head[1], leaf.hex(), *kinds, hexes, root, holds))

    def _show(self, height: int, data: bytes, head: tuple[bytes, int], seen: _Seen) -> None:
        name, index, path = parse_proof_line(data[: data.index(b"\n")])
        hexes = tuple(each.hex() for each in path)
        holds, root = bool(seen.root_holds), head[0].hex()
        self.exhibits.append(Exhibit(height, index, seen.count, name.hex(), *seen.kinds, hexes, root, holds))

    def _fail(self, step: str, detail: str, height: int, index: int | None = None) -> None:
        where = f"block {height}" if index is None else f"block {height}, envelope {index}"
        self._findings.add(step, f"{where}: {detail}", height=height, index=index)


def _list_envelope(height: int, index: int, id_: bytes, value: dict[str, Any]) -> ListedEnvelope:
    when, kind, name = (str(value.get(each, ""))[:200] for each in ("timestamp", "event_class", "event_type"))
    identity = value.get("origin_identity")
    members = identity if isinstance(identity, dict) else {}
    alg, key = members.get("identity_type"), members.get("public_key")
    try:
        signer = _did(alg, key) if isinstance(alg, str) and isinstance(key, str) else ""
    except RopewalkError:  # an enclave, or not an envelope, which the steps report
        signer = ""
    return ListedEnvelope(height, index, id_.hex(), when, kind, name, signer)


@lru_cache(maxsize=256)
def _did(alg: str, key: str) -> str:
    """Return a key as did:key. Few keys sign many envelopes, and writing a key costs more than checking an envelope."""
    return PublicKey.from_text(alg, key).did()
