"""The headers of a bundle, line by line: signatures, links, the range root, and the policy."""

from __future__ import annotations

from ropewalk.errors import Invalid, RopewalkError, TooLarge
from ropewalk.kernel import merkle
from ropewalk.ledger.block.block import GENESIS, BlockRecord, Header, check_link, parse_record
from ropewalk.ledger.bundle.findings import Findings
from ropewalk.ledger.bundle.format import HEADERS
from ropewalk.ledger.bundle.manifest import BundleManifest
from ropewalk.ledger.bundle.members import HEADER_LINE_MAX
from ropewalk.ledger.evidence.recheck import EvidenceTally
from ropewalk.ledger.keys.history import KeyHistory
from ropewalk.ledger.keys.statements import maybe_key_statement
from ropewalk.ledger.proof.trust import Trust


class HeaderCheck:
    """Takes `headers.jsonl` in chunks; `heads` has the roots that the envelopes must match."""

    def __init__(
        self,
        manifest: BundleManifest,
        trust: Trust,
        findings: Findings,
        key_history: KeyHistory,
        evidence: EvidenceTally | None = None,
    ) -> None:
        self._evidence = evidence
        self._manifest, self._trust, self._findings, self.key_history = manifest, trust, findings, key_history
        self._said = {each.record.height: each for each in manifest.keys}
        try:
            self.key_history.follow(manifest.keys)
        except RopewalkError as error:
            findings.add("block_signatures", f"the manifest's keys: {error.detail}")
        self._below: BlockRecord | None = None
        self._range = merkle.Frontier(merkle.RANGE)
        self.heads: dict[int, tuple[bytes, int]] = {}
        self.times: dict[int, int] = {}
        self.leaves: list[bytes] = []  # of the tree of the anchors, if there are any
        self.count = 0
        self.ended = False

    @property
    def last(self) -> Header | None:
        """The last header, if it could be read."""
        return self._below.header if self._below is not None else None

    def take(self, data: bytearray) -> None:
        """Parse the complete lines at the front of the buffer and remove them."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._read(bytes(data[start:end]))
            start = end + 1
        del data[:start]
        if len(data) > HEADER_LINE_MAX:
            raise TooLarge(f"{HEADERS}: a line of more than {HEADER_LINE_MAX} bytes", limit=HEADER_LINE_MAX)

    def end(self, rest: bytes) -> None:
        if rest:
            self._findings.add("block_signatures", f"{HEADERS}: the last line has no end")
        self.ended = True

    def close(self) -> None:
        """Check what only shows once all headers were read."""
        manifest, fail = self._manifest, self._findings.add
        wanted = len(manifest.heights)
        if not self.ended or self.count < wanted:
            fail("block_signatures", f"{self.count} headers for {wanted} blocks")
        elif self._range.root().hex() != manifest.range_root:
            fail("block_signatures", "the headers do not match range_root")
        if self.key_history.stranger is not None and not self.key_history.leads:
            height, key = self.key_history.stranger
            fail("block_signatures", f"block {height}: signer {key.did()} is not trusted", height=height)
        if len(manifest.block_hashes) != wanted:
            fail("block_signatures", f"{len(manifest.block_hashes)} hashes for {wanted} blocks")
        last = self.last
        policy = last.policy_hash.hex() if last is not None and last.policy_hash is not None else None
        if last is not None and policy != manifest.policy_hash:
            fail("policy_hash", "policy_hash of the manifest must be that of its last block")

    def last_policy_fits(self, pinned: bytes) -> bool:
        """Return whether the policy of the last header is the pinned one, or one that followed it."""
        last = self.last
        return last is not None and self.key_history.policies.fits(last.height, last.policy_hash, pinned)

    def check_statement(self, height: int, raw: bytes) -> None:
        """Raise if a single envelope of the range is a key statement that the manifest does not list."""
        if maybe_key_statement(raw) and height not in self._said:
            raise Invalid("it is a key statement that the manifest does not list")

    def _read(self, raw: bytes) -> None:
        manifest = self._manifest
        place, height = self.count, manifest.start_height + self.count
        self.count += 1
        if place >= len(manifest.heights):
            self._fail(f"{HEADERS} has more lines than the range has blocks", height)
            return
        try:
            record = parse_record(raw)
        except RopewalkError as error:
            self._fail(f"block {height}: {error.detail}", height)
            self._below = None
            return
        header = record.header
        self._range.append(header.hash)
        if manifest.anchors:
            self.leaves.append(merkle.SHA256.leaf(header.encode()))
        self.heads[height] = header.merkle_root, header.envelope_count
        self.times[height] = header.timestamp_ns
        if self._evidence is not None:
            self._evidence.look_header(header)
        listed = manifest.block_hashes[place] if place < len(manifest.block_hashes) else ""
        if header.hash.hex() != listed:
            self._fail(f"block {height}: its hash is not the one the manifest lists", height)
        if header.channel != manifest.channel:
            self._fail(
                f'block {height}: channel must be "{manifest.channel}", got "{header.channel}"', height
            )
        try:
            self._check_place(header, place, height)
            self.key_history.check(record)
            said = self._said.get(height)
            if said is not None and said.record.hash != header.hash:
                raise Invalid(f"block {height}: the manifest's keys are of another block")
        except RopewalkError as error:
            self._fail(error.detail, height)
        self._below = record
        if not self.key_history.policies.fits(height, header.policy_hash, self._trust.policy_hash):
            self._findings.add(
                "policy_hash", f"block {height}: policy_hash must be the expected one", height=height
            )

    def _check_place(self, header: Header, place: int, height: int) -> None:
        if place and self._below is not None:
            check_link(self._below.header, header)
        elif header.height != height or (place == 0 and (height == 0) != (header.prev_block_hash == GENESIS)):
            raise Invalid(f"expected block {height}, got block {header.height}")

    def _fail(self, detail: str, height: int) -> None:
        self._findings.add("block_signatures", detail, height=height)
