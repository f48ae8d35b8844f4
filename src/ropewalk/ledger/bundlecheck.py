"""Checking a bundle as it streams by: the five steps of S4 §12, in its order, with nothing kept but digests.

    bundle_signature   the manifest is signed by somebody trusted, and every file is the one it lists
    envelope_hashes    every envelope is canonical and has the id that the proofs give it
    merkle_paths       every path leads from its envelope to the root in the block's header
    block_signatures   every header is sealed by somebody trusted, stands on the one before, and lies under range_root
    policy_hash        the blocks were made under the policy the verifier expects

Paths are checked by making the proofs file again from the envelopes: if the digests agree and the root is the header's,
every path holds. Only where they differ is each path walked, to say which one is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from blake3 import blake3

from ropewalk.errors import Damaged, Invalid, RopewalkError, TooLarge
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import Tag
from ropewalk.kernel.keys import Signature
from ropewalk.kernel.report import Report, Status, Step
from ropewalk.ledger.block import (
    BLOCK_ENVELOPES_MAX,
    GENESIS,
    BlockRecord,
    check_link,
    check_signature,
    parse_record,
)
from ropewalk.ledger.bundle import (
    HEADERS,
    MANIFEST,
    SIGNATURE,
    Manifest,
    find_refs,
    member_names,
    parse_manifest,
    prove_block,
)
from ropewalk.ledger.bundleform import HEADER_LINE_MAX, check_member, no_bundle, parse_proof_line
from ropewalk.ledger.envelope import envelope_id, parse_stored
from ropewalk.ledger.rules import Context, judge
from ropewalk.ledger.tar import Member, TarReader
from ropewalk.ledger.trust import Trust

__all__ = ["STEPS", "BundleVerifier", "Exhibit"]

STEPS: Final = ("bundle_signature", "envelope_hashes", "merkle_paths", "block_signatures", "policy_hash")
LEAVES_KEPT_MAX: Final = (
    64 * BLOCK_ENVELOPES_MAX
)  # ids kept of blocks that are wrong, to say which envelope it is
EXHIBITS_MAX: Final = 6


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One envelope with its path, to be drawn in a report."""

    height: int
    index: int
    count: int
    envelope_id: str
    event_class: str
    event_type: str
    path: tuple[str, ...]
    root: str
    holds: bool


@dataclass(slots=True)
class _Seen:
    """What is remembered of a block between its envelopes and its proofs."""

    count: int
    ids_digest: bytes
    proofs_digest: bytes
    root_holds: bool | None
    kinds: tuple[str, str]
    leaves: list[bytes] | None = None


@dataclass(slots=True)
class _Finding:
    """The failures of one step: the first, and how many."""

    count: int = 0
    detail: str = ""
    fields: dict[str, Any] = field(default_factory=dict)

    def add(self, detail: str, **fields: Any) -> None:
        if not self.count:
            self.detail, self.fields = detail, {k: v for k, v in fields.items() if v is not None}
        self.count += 1


class BundleVerifier:
    """Feed it the bytes of an archive, then ask for the report. Hostile archives raise; wrong ones are reported."""

    def __init__(self, trust: Trust, *, deep: bool = False) -> None:
        self._trust, self._deep = trust, deep
        self._tar = TarReader()
        self._findings = {name: _Finding() for name in (*STEPS, "envelope_rules")}
        self._name = ""
        self._hash = blake3()
        self._data = bytearray()
        self._members = 0
        self._seen_names: set[str] = set()
        self._expected: list[str] = []
        self._files: dict[str, tuple[str, int]] = {}
        self._manifest_raw: bytes | None = None
        self.manifest: Manifest | None = None
        self._heads: dict[int, tuple[bytes, int]] = {}
        self._below: BlockRecord | None = None
        self._range = merkle.Frontier(merkle.RANGE)
        self._header_count = 0
        self._headers_seen = False
        self._blocks: dict[int, _Seen] = {}
        self._refs = 0
        self._proved = 0
        self._kept = 0
        self._unjudged = 0
        self._context = Context()
        self._cut = ""
        self.envelopes = 0
        self.exhibits: list[Exhibit] = []

    # --- the stream -------------------------------------------------------------------------------------------------

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the archive."""
        if self._cut:
            return
        try:
            for event in self._tar.feed(chunk):
                if isinstance(event, Member):
                    self._begin(event)
                elif event:
                    self._take(event)
                else:
                    self._end()
        except Damaged as error:
            if not self._members:
                raise no_bundle(error.detail) from error
            self.cut(error.detail)

    def cut(self, reason: str) -> None:
        """The stream cannot be read any further; what came before it is still judged."""
        self._cut = reason

    def report(self) -> Report:
        """All five steps, each by itself."""
        if not self._cut:
            if self._manifest_raw is None:
                raise no_bundle("it holds no manifest")
            if self.manifest is None and SIGNATURE not in self._seen_names:
                raise no_bundle(self._findings["bundle_signature"].detail)
            try:
                self._tar.finish()
            except Damaged as error:
                self._cut = error.detail
        self._close()
        judged = {
            "bundle_signature": self._signature_step,
            "envelope_hashes": self._envelopes_step,
            "merkle_paths": self._paths_step,
            "block_signatures": self._blocks_step,
            "policy_hash": self._policy_step,
        }
        steps = [self._step(name, judge_step) for name, judge_step in judged.items()]
        if self._deep:
            rest = f", {self._unjudged} findings not checked" if self._unjudged else ""
            done: tuple[Status, str] = ("passed", f"{self.envelopes} envelopes{rest}")
            steps.append(self._step("envelope_rules", lambda: done))
        return Report.of(steps, envelopes=self.envelopes, blocks=self._header_count)

    # --- members ----------------------------------------------------------------------------------------------------

    def _begin(self, member: Member) -> None:
        name, size = member.name, member.size
        self._members += 1
        if self._members == 1 and name != MANIFEST:
            raise no_bundle(f"it begins with {name}")
        if self._members == 2 and name != SIGNATURE and self.manifest is None:
            raise no_bundle("its manifest cannot be read")
        check_member(name, size)
        self._name, self._hash = name, blake3()
        self._data.clear()
        problem = ""
        if name in self._seen_names:
            problem = f"{name} is there twice"
        elif self._members == 2 and name != SIGNATURE:
            problem = f"{name} stands where {SIGNATURE} belongs"
        elif self._members > 2 and self.manifest is not None:
            want = self._expected[self._members - 3] if self._members - 3 < len(self._expected) else None
            if name not in self._files:
                problem = f"{name} is not in the manifest"
            elif name != want:
                problem = f"{name} stands where {want or 'nothing'} belongs"
            elif size != self._files[name][1]:
                problem = f"{name} has {size} bytes, the manifest says {self._files[name][1]}"
        if problem:
            self._fail("bundle_signature", problem, member=name)
        late = self._members > 2 and (self.manifest is None or name in (MANIFEST, SIGNATURE))
        if late or name in self._seen_names:
            self._name = (
                ""  # its contents are skipped: the first one counts, and without manifest nothing does
            )
        self._seen_names.add(name)

    def _take(self, piece: bytes) -> None:
        if not self._name:
            return
        self._hash.update(piece)
        self._data += piece
        if self._name == HEADERS:
            self._take_headers()

    def _end(self) -> None:
        name, data = self._name, bytes(self._data)
        self._data.clear()
        if not name:
            return
        if name == MANIFEST:
            self._read_manifest(data)
            return
        if name == SIGNATURE:
            self._read_signature(data)
            return
        listed = self._files.get(name)
        if listed is not None and self._hash.hexdigest() != listed[0]:
            self._fail("bundle_signature", f"{name} is not the file the manifest lists", member=name)
        if name == HEADERS:
            if data:
                self._fail("block_signatures", f"{HEADERS}: the last line has no end")
            self._headers_seen = True
        elif listed is not None:
            kind, _, rest = name.partition("/")
            height = int(rest.removesuffix(".jsonl"))
            (self._read_block if kind == "blocks" else self._read_proofs)(height, data)

    def _read_manifest(self, raw: bytes) -> None:
        self._manifest_raw = raw
        try:
            manifest = parse_manifest(raw)
        except RopewalkError as error:
            self._fail("bundle_signature", error.detail, member=MANIFEST)
            return
        self.manifest = manifest
        if manifest.policy_hash is not None:  # its text is not here, so what it allowed stays unchecked
            self._context = Context(policy_hash=bytes.fromhex(manifest.policy_hash), sealed=True)
        self._expected = list(member_names(manifest.heights))
        self._files = dict.fromkeys(self._expected, ("", 0))
        self._files.update(
            {file.name: (file.blake3, file.size) for file in manifest.files if file.name in self._files}
        )
        if [file.name for file in manifest.files] != self._expected:
            self._fail("bundle_signature", "the manifest does not list exactly the files of its range")
        if list(manifest.merkle_proofs) != self._expected[1 + len(manifest.heights) :]:
            self._fail("bundle_signature", "merkle_proofs does not list exactly the proofs of its range")

    def _read_signature(self, raw: bytes) -> None:
        if self.manifest is None or self._manifest_raw is None:
            return
        signer = self.manifest.signer
        try:
            signature = Signature.from_json(jcs.parse(raw))
            if signature.alg != signer.alg:
                raise Invalid(f"{signature.alg} signature of a {signer.alg} key")
            signer.verify(Tag.BUNDLE + self._manifest_raw, signature.raw)
        except RopewalkError as error:
            self._fail("bundle_signature", f"the manifest's signature: {error.detail}", member=SIGNATURE)
            return
        if signer not in self._trust.bundle_signers:
            self._fail("bundle_signature", f"{signer.did()} is not trusted to sign bundles")

    def _take_headers(self) -> None:
        data, start = self._data, 0
        while (end := data.find(b"\n", start)) >= 0:
            self._read_header(bytes(data[start:end]))
            start = end + 1
        del data[:start]
        if len(data) > HEADER_LINE_MAX:
            raise TooLarge(f"{HEADERS}: a line of more than {HEADER_LINE_MAX} bytes", limit=HEADER_LINE_MAX)

    def _read_header(self, raw: bytes) -> None:
        manifest = self.manifest
        assert manifest is not None
        place, height = self._header_count, manifest.start_height + self._header_count
        self._header_count += 1
        fail = self._findings["block_signatures"].add
        if place >= len(manifest.heights):
            fail(f"{HEADERS} has more lines than the range has blocks", height=height)
            return
        try:
            record = parse_record(raw)
        except RopewalkError as error:
            fail(f"block {height}: {error.detail}", height=height)
            self._below = None
            return
        header = record.header
        self._range.append(header.hash)
        self._heads[height] = header.merkle_root, header.envelope_count
        listed = manifest.block_hashes[place] if place < len(manifest.block_hashes) else ""
        if header.hash.hex() != listed:
            fail(f"block {height}: its hash is not the one the manifest lists", height=height)
        if header.channel != manifest.channel:
            fail(f'block {height}: of channel "{header.channel}", not "{manifest.channel}"', height=height)
        try:
            if place == 0:
                if header.height != height or (height == 0) != (header.prev_block_hash == GENESIS):
                    raise Invalid(f"block {header.height} stands where block {height} belongs")
            elif self._below is not None:
                check_link(self._below.header, header)
            elif header.height != height:
                raise Invalid(f"block {header.height} stands where block {height} belongs")
            check_signature(record, self._trust.block_signers)
        except RopewalkError as error:
            fail(error.detail, height=height)
        self._below = record
        if self._trust.policy_hash is not None and header.policy_hash != self._trust.policy_hash:
            self._fail("policy_hash", f"block {height}: made under another policy", height=height)

    # --- envelopes and proofs ---------------------------------------------------------------------------------------

    def _read_block(self, height: int, data: bytes) -> None:
        lines = data.split(b"\n")
        if lines.pop():
            self._fail("envelope_hashes", f"block {height}: the last line has no end", height=height)
        if not 0 < len(lines) <= BLOCK_ENVELOPES_MAX:
            self._fail("envelope_hashes", f"block {height}: {len(lines)} envelopes", height=height)
            return
        kinds = ("", "")
        for index, raw in enumerate(lines):
            try:
                value = jcs.parse_canonical(raw)
                if not isinstance(value, dict):
                    raise Invalid("an envelope is an object")
                if index == 0:
                    kinds = (str(value.get("event_class", ""))[:40], str(value.get("event_type", ""))[:200])
                if self._deep:
                    self._judge(height, index, raw)
            except RopewalkError as error:
                self._fail(
                    "envelope_hashes",
                    f"block {height}, envelope {index}: {error.detail}",
                    height=height,
                    index=index,
                )
        ids = [envelope_id(raw) for raw in lines]
        self.envelopes += len(ids)
        self._match_refs(height, ids, lines)
        root, proofs = prove_block(ids)
        seen = _Seen(len(ids), blake3(b"".join(ids)).digest(), blake3(proofs).digest(), None, kinds)
        head = self._heads.get(height)
        if head is not None:
            seen.root_holds = (root, len(ids)) == head
            if not seen.root_holds:
                what = (
                    f"{len(ids)} envelopes, its header counts {head[1]}"
                    if head[1] != len(ids)
                    else f"its envelopes have the root {root.hex()[:16]}…, its header says {head[0].hex()[:16]}…"
                )
                self._fail("merkle_paths", f"block {height}: {what}", height=height)
        if not seen.root_holds and self._kept + len(ids) <= LEAVES_KEPT_MAX:
            seen.leaves, self._kept = list(ids), self._kept + len(ids)
        self._blocks[height] = seen

    def _judge(self, height: int, index: int, raw: bytes) -> None:
        try:
            verdict = judge(parse_stored(raw), self._context)
            self._unjudged += sum(finding.status == "not_checked" for finding in verdict.findings)
            verdict.require()
        except RopewalkError as error:
            where = f"block {height}, envelope {index}"
            self._fail("envelope_rules", f"{where}: {error.detail}", height=height, index=index)

    def _match_refs(self, height: int, ids: list[Any], lines: list[bytes]) -> None:
        assert self.manifest is not None
        try:
            found = list(find_refs(ids, lines))
        except RopewalkError:
            return  # said already: the line is no canonical envelope
        listed = list(self.manifest.payload_refs[self._refs : self._refs + len(found)])
        self._refs += len(found)
        if listed != found:
            self._fail(
                "bundle_signature",
                f"block {height}: payload_refs of the manifest are not its detached payloads",
                height=height,
            )

    def _read_proofs(self, height: int, data: bytes) -> None:
        self._proved += 1
        seen, head = self._blocks.get(height), self._heads.get(height)
        if seen is not None and blake3(data).digest() == seen.proofs_digest:
            # The paths lead from these envelopes to their root; whether that is the header's was judged before.
            if len(self.exhibits) < EXHIBITS_MAX:
                self._show(height, data, head, seen)
            return
        lines = data.split(b"\n")
        if lines.pop():
            self._fail("merkle_paths", f"block {height}: the last proof has no end", height=height)
        claimed = []
        for index, raw in enumerate(lines):
            try:
                name, place, path = parse_proof_line(raw)
            except RopewalkError as error:
                self._fail(
                    "merkle_paths",
                    f"block {height}, proof {index}: {error.detail}",
                    height=height,
                    index=index,
                )
                continue
            claimed.append(name)
            self._walk(height, index, name, place, path, seen, head)
        if seen is None:
            return
        if len(lines) != seen.count:
            self._fail(
                "merkle_paths",
                f"block {height}: {len(lines)} proofs for {seen.count} envelopes",
                height=height,
            )
        if blake3(b"".join(claimed)).digest() != seen.ids_digest:
            at = None
            if seen.leaves is not None:
                pairs = zip(claimed, seen.leaves, strict=False)
                at = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
            where = f"block {height}" if at is None else f"block {height}, envelope {at}"
            self._fail(
                "envelope_hashes",
                f"{where}: the bytes have another id than the bundle says",
                height=height,
                index=at,
            )

    def _walk(
        self,
        height: int,
        index: int,
        name: bytes,
        place: int,
        path: tuple[bytes, ...],
        seen: _Seen | None,
        head: tuple[bytes, int] | None,
    ) -> None:
        if head is None:
            return
        leaf = name
        if seen is not None and seen.leaves is not None and index < len(seen.leaves):
            leaf = seen.leaves[index]  # a path proves the envelope that is here, not the one that is named
        try:
            if place != index:
                raise Invalid(f"index {place} stands where {index} belongs")
            merkle.verify_inclusion(leaf, place, head[1], path, head[0])
            holds = True
        except RopewalkError as error:
            holds = False
            self._fail(
                "merkle_paths",
                f"block {height}, envelope {index}: {error.detail}",
                height=height,
                index=index,
            )
        if len(self.exhibits) < EXHIBITS_MAX and (not holds or index == 0):
            kinds = seen.kinds if seen is not None and index == 0 else ("", "")
            hexes = tuple(each.hex() for each in path)
            self.exhibits.append(
                Exhibit(height, index, head[1], leaf.hex(), *kinds, hexes, head[0].hex(), holds)
            )

    def _show(self, height: int, data: bytes, head: tuple[bytes, int] | None, seen: _Seen) -> None:
        if head is None:
            return
        name, index, path = parse_proof_line(data[: data.index(b"\n")])
        hexes = tuple(each.hex() for each in path)
        self.exhibits.append(
            Exhibit(
                height,
                index,
                seen.count,
                name.hex(),
                *seen.kinds,
                hexes,
                head[0].hex(),
                bool(seen.root_holds),
            )
        )

    # --- the steps --------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        """What only shows once everything was read."""
        manifest = self.manifest
        if self._cut:
            where = f" in {self._name}" if self._name else ""
            self._fail("bundle_signature", f"the archive cannot be read to its end{where}: {self._cut}")
        if manifest is None:
            return
        missing = [name for name in self._expected if name not in self._seen_names]
        if missing and not self._cut:
            self._fail("bundle_signature", f"{missing[0]} is missing", member=missing[0])
        if SIGNATURE not in self._seen_names and not self._cut:
            self._fail("bundle_signature", f"{SIGNATURE} is missing", member=SIGNATURE)
        if self._refs < len(manifest.payload_refs) and not missing:
            self._fail("bundle_signature", "the manifest lists detached payloads that are not there")
        if self._cut:
            return
        if not self._headers_seen or self._header_count < len(manifest.heights):
            self._fail("block_signatures", f"{self._header_count} headers for {len(manifest.heights)} blocks")
        elif self._range.root().hex() != manifest.range_root:
            self._fail("block_signatures", "the headers do not lie under range_root")
        if len(manifest.block_hashes) != len(manifest.heights):
            self._fail(
                "block_signatures", f"{len(manifest.block_hashes)} hashes for {len(manifest.heights)} blocks"
            )
        for height in manifest.heights:
            if height not in self._blocks and not self._findings["envelope_hashes"].count:
                self._fail("envelope_hashes", f"block {height} has no envelopes here", height=height)
        last = self._below.header.policy_hash if self._below is not None else None
        if self._below is not None and (last.hex() if last is not None else None) != manifest.policy_hash:
            self._fail("policy_hash", "the manifest names another policy than its last block")
        if self._proved < len(manifest.heights):
            self._fail("merkle_paths", f"proofs of {self._proved} blocks for {len(manifest.heights)}")

    def _step(self, name: str, judge_step: Callable[[], tuple[Status, str]]) -> Step:
        finding = self._findings[name]
        if finding.count:
            more = f" (and {finding.count - 1} more)" if finding.count > 1 else ""
            return Step(name, "failed", finding.detail + more, finding.fields)
        return Step(name, *judge_step())

    def _signature_step(self) -> tuple[Status, str]:
        assert self.manifest is not None
        return (
            "passed",
            f"signed by {self.manifest.signer.did()}; {len(self.manifest.files)} files as listed",
        )

    def _envelopes_step(self) -> tuple[Status, str]:
        if self._whole():
            return "passed", f"{self.envelopes} envelopes"
        return "not_checked", "the bundle could not be read to its end"

    def _paths_step(self) -> tuple[Status, str]:
        if not self._whole():
            return "not_checked", "the bundle could not be read to its end"
        if any(seen.root_holds is None for seen in self._blocks.values()):
            return "not_checked", "a header that paths should lead to could not be read"
        return "passed", f"{self.envelopes} paths to {len(self._blocks)} roots"

    def _blocks_step(self) -> tuple[Status, str]:
        if not self._whole():
            return "not_checked", "the bundle could not be read to its end"
        return "passed", f"{self._header_count} blocks, linked, under one range root"

    def _policy_step(self) -> tuple[Status, str]:
        manifest, want = self.manifest, self._trust.policy_hash
        if manifest is None:
            return "not_checked", "the manifest could not be read"
        if want is None:
            return "not_checked", "the trust file pins no policy"
        if manifest.policy_hash != want.hex():
            return "failed", f"the bundle names {manifest.policy_hash or 'no policy'}, expected {want.hex()}"
        if not self._header_count:
            return "not_checked", "no header could be read"
        return "passed", f"policy {want.hex()[:16]}…"

    def _whole(self) -> bool:
        return self.manifest is not None and not self._cut

    def _fail(self, step: str, detail: str, **fields: Any) -> None:
        self._findings[step].add(detail, **fields)
