"""Verify a bundle as a stream: the five steps of S4 §12, in order; only digests are kept.

    bundle_signature   the manifest is signed by a trusted key, and every file matches it
    envelope_hashes    every envelope is canonical and has the id that the proofs give it
    merkle_paths       every path leads from its envelope to the root in the block's header
    block_signatures   every header is signed by a trusted key, follows the one before, and is under range_root
    policy_hash        the blocks were made under the policy the verifier expects

Three more if needed: `anchors` if the bundle has some or witnesses are named or required; with `deep`
`envelope_rules` checks every envelope alone; `evidence` checks their evidence against the roots of the trust file.
This module reads the archive and its manifest; `headers` reads headers, `paths` envelopes and their paths,
`anchors` anchors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from blake3 import blake3

from ropewalk.errors import Damaged, RopewalkError
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.report import Need, Report, Status, Step
from ropewalk.ledger.bundle.anchors import AnchorFinding, anchors_step, judge_anchor, require_witnesses
from ropewalk.ledger.bundle.findings import STEPS, Findings
from ropewalk.ledger.bundle.format import HEADERS, MANIFEST, SIGNATURE, member_names, proof_name
from ropewalk.ledger.bundle.headers import HeaderCheck
from ropewalk.ledger.bundle.manifest import BundleManifest
from ropewalk.ledger.bundle.members import check_member, no_bundle, open_manifest
from ropewalk.ledger.bundle.paths import Exhibit, ListedEnvelope, PathCheck
from ropewalk.ledger.bundle.tar import Member, TarReader
from ropewalk.ledger.evidence.recheck import EvidenceTally
from ropewalk.ledger.keys.history import KeyHistory
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.rules.policy import Policy

CUT_SHORT: Final[tuple[Status, str]] = ("not_checked", "the bundle could not be read to its end")
NO_TRUST: Final[tuple[Status, str, Need]] = (
    "not_checked",
    "valid under its own key; no trust file names that key",
    "trust",
)
Outcome = tuple[Status, str] | tuple[Status, str, Need]


class BundleVerifier:
    """Feed it the bytes of an archive, then ask for the report. Hostile archives raise; wrong ones are reported."""

    def __init__(
        self,
        trust: Trust,
        *,
        deep: bool = False,
        policy: Policy | None = None,
        threshold: int | None = None,
        anybody: bool = False,
        packed: int | None = None,
    ) -> None:
        """Start a verification.

        `policy` is the text of the policy that the trust file pins; with it, envelopes are checked against it too.
        `threshold` is how many witnesses must have signed anchors. With `anybody` any key may have signed: signatures
        must be valid, and the report says that no trust file names their keys. `packed` is the size of the file, which
        bounds its manifest.
        """
        self._trust, self._deep, self._policy, self._threshold = trust, deep, policy, threshold
        self._anybody, self._packed = anybody, packed
        self._evidence = EvidenceTally(trust) if deep or trust.judges_evidence else None
        self._tar = TarReader()
        self._findings = Findings()
        self._name = ""
        self._hash = blake3()
        self._data = bytearray()
        self._members = 0
        self._seen_names: set[str] = set()
        self._expected: list[str] = []
        self._files: dict[str, tuple[str, int]] = {}
        self._manifest_raw: bytes | None = None
        self._opened = False
        self._headers: HeaderCheck | None = None
        self._paths: PathCheck | None = None
        self._cut = ""
        self.anchors: tuple[AnchorFinding, ...] = ()
        self.manifest: BundleManifest | None = None

    @property
    def exhibits(self) -> list[Exhibit]:
        """A few envelopes with their paths, for a report page."""
        return self._paths.exhibits if self._paths is not None else []

    @property
    def listed(self) -> list[ListedEnvelope]:
        """The first envelopes, for a report page."""
        return self._paths.listed if self._paths is not None else []

    @property
    def envelopes(self) -> int:
        """The number of envelopes read."""
        return self._paths.envelopes if self._paths is not None else 0

    # --- the stream -------------------------------------------------------------------------------------------------

    def feed(self, chunk: bytes) -> None:
        """Process the next bytes of the archive."""
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
        """Record that the stream cannot be read further; what came before is still checked."""
        self._cut = reason

    def report(self) -> Report:
        """Return every step: a failed one does not hide the others."""
        if not self._cut:
            if self._manifest_raw is None:
                raise no_bundle("it holds no manifest")
            self._open_manifest(None)  # unless it was opened with its signature
            if self.manifest is None and SIGNATURE not in self._seen_names:
                raise no_bundle(self._findings.detail("bundle_signature"))
            try:
                self._tar.finish()
            except Damaged as error:
                self._cut = error.detail
        self._close()
        judged = (
            self._signature_step,
            self._envelopes_step,
            self._paths_step,
            self._blocks_step,
            self._policy_step,
        )
        steps = [self._findings.step(name, each) for name, each in zip(STEPS, judged, strict=True)]
        if self._threshold:
            step = self._anchors_step()
            steps.append(require_witnesses(step, self.anchors, self._trust, self._threshold))
        elif self._trust.witnesses or (self.manifest is not None and self.manifest.anchors):
            # Naming witnesses requires one of them, unless the threshold is zero.
            required = bool(self._trust.witnesses) and self._threshold is None
            steps.append(replace(self._anchors_step(), need="required" if required else "optional"))
        if self._deep:
            steps.append(self._findings.step("envelope_rules", self._rules_step))
        elif self._trust.revocations:  # revocations also apply to authors, which were not checked
            detail = "revoked authors are checked only with --deep"
            steps.append(Step("envelope_rules", "not_checked", detail))
        if self._evidence is not None:
            steps.append(self._evidence.step())
        blocks = self._headers.count if self._headers is not None else 0
        return Report.of(steps, envelopes=self.envelopes, blocks=blocks)

    # --- members ----------------------------------------------------------------------------------------------------

    def _begin(self, member: Member) -> None:
        name, size = member.name, member.size
        self._members += 1
        if self._members == 1 and name != MANIFEST:
            raise no_bundle(f"it begins with {name}")
        if self._members == 2 and name != SIGNATURE:
            self._open_manifest(None)
            if self.manifest is None:
                raise no_bundle("its manifest cannot be read")
        check_member(name, size, self._packed)
        self._name, self._hash = name, blake3()
        self._data.clear()
        problem = self._misplaced(name, size)
        if problem:
            self._findings.add("bundle_signature", problem, member=name)
        late = self._members > 2 and (self.manifest is None or name in (MANIFEST, SIGNATURE))
        if late or name in self._seen_names:
            # Skip its contents: the first one is used, and without a manifest none.
            self._name = ""
        self._seen_names.add(name)

    def _misplaced(self, name: str, size: int) -> str:
        """Return what is wrong with a member of that name and size at this position, if anything."""
        if name in self._seen_names:
            return f"{name} is there twice"
        if self._members == 2 and name != SIGNATURE:
            return f"{name} must be {SIGNATURE}"
        if self._members <= 2 or self.manifest is None:
            return ""
        want = self._expected[self._members - 3] if self._members - 3 < len(self._expected) else None
        if name not in self._files:
            return f"{name} is not in the manifest"
        if name != want:
            return f"{name} is out of order; expected {want or 'nothing'}"
        if size != self._files[name][1]:
            return f"{name} has {size} bytes, the manifest lists {self._files[name][1]}"
        return ""

    def _take(self, piece: bytes) -> None:
        if not self._name:
            return
        self._hash.update(piece)
        self._data += piece
        if self._name == HEADERS and self._headers is not None:
            self._headers.take(self._data)

    def _end(self) -> None:
        name, data = self._name, bytes(self._data)
        self._data.clear()
        if not name:
            return
        if name == MANIFEST:
            self._manifest_raw = data
            return
        if name == SIGNATURE:
            self._open_manifest(data)
            return
        listed = self._files.get(name)
        if listed is not None and self._hash.hexdigest() != listed[0]:
            self._findings.add("bundle_signature", f"{name} is not the file the manifest lists", member=name)
        if name == HEADERS and self._headers is not None:
            self._headers.end(data)
        elif listed is not None and self._paths is not None:
            kind, _, rest = name.partition("/")
            read = {"blocks": self._paths.read_block, "cbor": self._paths.read_cbor}
            read.get(kind, self._paths.read_proofs)(int(rest.partition(".")[0]), data)

    def _open_manifest(self, signature: bytes | None) -> None:
        """Check the manifest's signature, then parse it; once."""
        raw, fail = self._manifest_raw, self._findings.add
        if raw is None or self._opened:
            return
        self._opened = True
        try:
            opened = open_manifest(raw, signature, self._trust.bundle_signers)
        except RopewalkError as error:
            fail("bundle_signature", error.detail, member=MANIFEST)
            return
        if opened.refused and signature is not None:
            fail("bundle_signature", f"the manifest's signature: {opened.refused}", member=SIGNATURE)
        if opened.manifest is not None:
            self._read_manifest(opened.manifest)
            if not opened.refused:
                self._check_signer(opened.manifest.signer)

    def _read_manifest(self, manifest: BundleManifest) -> None:
        fail = self._findings.add
        self.manifest = manifest
        key_history = KeyHistory(None if self._anybody else self._trust, policy=self._policy, lenient=True)
        self._headers = HeaderCheck(manifest, self._trust, self._findings, key_history, self._evidence)
        self._paths = PathCheck(
            manifest,
            self._headers,
            self._findings,
            deep=self._deep,
            evidence=self._evidence,
            policy=self._policy,
        )
        self._expected = list(member_names(manifest.heights, both=manifest.both))
        self._files = dict.fromkeys(self._expected, ("", 0))
        self._files.update(
            {file.name: (file.blake3, file.size) for file in manifest.files if file.name in self._files}
        )
        if [file.name for file in manifest.files] != self._expected:
            fail("bundle_signature", "the manifest does not list exactly the files of its range")
        if list(manifest.merkle_proofs) != list(map(proof_name, manifest.heights)):
            fail("bundle_signature", "merkle_proofs does not list exactly the proofs of its range")

    def _check_signer(self, signer: PublicKey) -> None:
        fail = self._findings.add
        key_history = self._headers.key_history if self._headers is not None else KeyHistory(self._trust)
        if not self._anybody and not key_history.descends(signer, self._trust.bundle_signers):
            fail("bundle_signature", f"{signer.did()} is not trusted to sign bundles")
        elif signer.identity() in key_history.revoked:
            fail(
                "bundle_signature", f"{signer.did()} was revoked; the channel's key can sign the bundle anew"
            )

    # --- the steps --------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        """Check what only shows at the end of the stream."""
        fail = self._findings.add
        if self._cut:
            where = f" in {self._name}" if self._name else ""
            fail("bundle_signature", f"the archive cannot be read to its end{where}: {self._cut}")
        if self._headers is None or self._paths is None:
            return
        missing = [name for name in self._expected if name not in self._seen_names]
        if missing and not self._cut:
            fail("bundle_signature", f"{missing[0]} is missing", member=missing[0])
        if SIGNATURE not in self._seen_names and not self._cut:
            fail("bundle_signature", f"{SIGNATURE} is missing", member=SIGNATURE)
        self._paths.close(missing=bool(missing), cut=bool(self._cut))
        if not self._cut:
            self._headers.close()
            self._check_signer_unended(self._headers)

    def _check_signer_unended(self, headers: HeaderCheck) -> None:
        assert self.manifest is not None
        signer, last = self.manifest.signer, headers.last
        try:
            if last is not None:
                headers.key_history.check_unended(signer, last.height, last.timestamp_ns)
        except RopewalkError as error:
            self._findings.add("bundle_signature", error.detail, member=SIGNATURE)

    def _signature_step(self) -> Outcome:
        if self._anybody:
            return NO_TRUST
        assert self.manifest is not None
        signer, count = self.manifest.signer.did(), len(self.manifest.files)
        return "passed", f"signed by {signer}; {count} files as listed"

    def _envelopes_step(self) -> tuple[Status, str]:
        if self._cut or self._paths is None:
            return CUT_SHORT
        return "passed", f"{self.envelopes} envelopes"

    def _paths_step(self) -> tuple[Status, str]:
        if self._cut or self._paths is None:
            return CUT_SHORT
        if self._paths.rootless:
            return "not_checked", "a header that paths should lead to could not be read"
        return "passed", f"{self.envelopes} paths to {self._paths.blocks} roots"

    def _blocks_step(self) -> Outcome:
        if self._cut or self._headers is None:
            return CUT_SHORT
        if self._anybody:
            return NO_TRUST
        key_history = self._headers.key_history
        if key_history.unjudged:
            return "not_checked", key_history.unjudged
        said = key_history.summary()
        what = f"{self._headers.count} blocks, linked, under one range root"
        return "passed", f"{what} ({said})" if said else what

    def _policy_step(self) -> Outcome:
        manifest, want = self.manifest, self._trust.policy_hash
        if manifest is None:
            return "not_checked", "the manifest could not be read"
        if want is None:
            return "not_checked", "the trust file pins no policy", "optional"
        if self._headers is None or not self._headers.count:
            if manifest.policy_hash == want.hex():
                return "not_checked", "no header could be read"
        elif self._headers.last_policy_fits(want):
            return "passed", f"policy {want.hex()[:16]}…"
        if manifest.policy_hash != want.hex():
            return "failed", f"the bundle names {manifest.policy_hash or 'no policy'}, expected {want.hex()}"
        return "passed", f"policy {want.hex()[:16]}…"

    def _anchors_step(self) -> Step:
        manifest, headers = self.manifest, self._headers
        if manifest is None or headers is None:
            return Step("anchors", *CUT_SHORT)
        if manifest.anchors and len(headers.leaves) != len(manifest.heights):
            return Step("anchors", "not_checked", "the headers they should lead from could not all be read")
        sealers = tuple(validity.key for validity in headers.key_history.validities if validity.named)
        trust = replace(self._trust, block_signers=sealers)  # heads may be signed by a successor key
        self.anchors = tuple(
            judge_anchor(anchor, manifest.channel, manifest.start_height, headers.leaves, trust)
            for anchor in manifest.anchors
        )
        return anchors_step(self.anchors)

    def _rules_step(self) -> tuple[Status, str]:
        unjudged = self._paths.unjudged if self._paths is not None else 0
        by = ", also by the policy" if self._policy is not None else ""
        rest = f", {unjudged} findings not checked" if unjudged else ""
        return "passed", f"{self.envelopes} envelopes{by}{rest}"
