"""Check evidence in sealed blocks again during verification: each item at the time of its block.

The block's time is used, not today's, because certificates of enclaves are valid for hours and a verdict must be the
same in ten years. The verifier's trust file names what is trusted; without roots or allowed values only the binding is
checked.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ropewalk.errors import Invalid, RopewalkError, Unverified
from ropewalk.kernel.report import Status, Step
from ropewalk.ledger.block.block import Header, parse_record
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.evidence.binding import check_binding
from ropewalk.ledger.proof.trust import Trust

if TYPE_CHECKING:
    from ropewalk.ledger.evidence.trust import EvidenceTrust

SNAPSHOT_TYPE: Final = "ledger.checkpoint"  # as `replay` names it
_HINT: Final = b'"attestation_evidence":'  # canonical JSON has no other spelling of the member
_NO_PROOF: Final = b'"integrity_proof":null'
EVIDENCE: Final = "evidence"
"""The step's name."""


class EvidenceTally:
    """Judges pieces of evidence and counts what came of them; may be asked from several threads.

    >>> EvidenceTally(None).step()
    Step(name='evidence', status='passed', detail='no envelope carries evidence', fields={}, need='required')
    """

    def __init__(self, trust: Trust | None) -> None:
        self._sealers = trust.block_signers if trust is not None else ()
        self._revoked = {each.key: each.since_ns for each in trust.revocations} if trust is not None else {}
        self._believed = None
        self._pinned = trust is not None and trust.evidence is not None
        if trust is not None and trust.judges_evidence:
            # Certificates are read with a large library, which only those who need it should load.
            from ropewalk.ledger.evidence.trust import EvidenceTrust

            try:
                self._believed = EvidenceTrust.of(trust.roots, trust.evidence)
            except Invalid as error:
                raise Invalid(f"trust file: {error.detail}", advice=error.advice_now) from error
        self._mutex = threading.Lock()
        self._counts: dict[Status, int] = {"passed": 0, "failed": 0, "not_checked": 0}
        self._first: dict[Status, tuple[int, int, str]] = {}

    def judge(self, envelope: Envelope, at_ns: int, nonce: bytes | None = None) -> tuple[Status, str]:
        """Return whether an envelope's evidence holds at a time, for a nonce if one was asked for; count nothing."""
        if "attestation_evidence" not in envelope.value:
            status, detail = check_binding(envelope)
            if nonce is not None:
                return "failed", "it carries no evidence, and so no nonce"
            return status, detail or "it carries no evidence"
        if envelope.event_type == SNAPSHOT_TYPE and envelope.public_key in self._sealers:
            return self._judge_snapshot(envelope, at_ns, nonce)
        if self._believed is not None:
            from ropewalk.ledger.evidence.verify import check_evidence

            status, detail = check_evidence(envelope, self._believed, at_ns, nonce=nonce)
            return self._still(status, detail, envelope, self._believed, at_ns)
        status, detail = check_binding(envelope)
        if status == "failed":
            return status, detail
        asked = "" if nonce is None else ", nor for the nonce"
        return (
            "not_checked",
            f"{detail or 'it speaks of this envelope'}; no key is trusted to sign it{asked}",
        )

    def look(self, envelope: Envelope, height: int, index: int, at_ns: int) -> None:
        """Judge the evidence of an envelope, if it has any."""
        if "attestation_evidence" not in envelope.value:
            return
        status, detail = self.judge(envelope, at_ns)
        self.count(status, detail, height, index)

    def look_into(self, height: int, lines: Sequence[bytes]) -> None:
        """Judge the evidence in a stored block; what cannot be read is left to those who verify the block itself."""
        at_ns: int | None = None
        if _NO_PROOF not in lines[0]:
            with suppress(Invalid, Unverified):
                self.look_header(parse_record(lines[0]).header)
        for index, raw in enumerate(lines[1:]):
            if _HINT in raw:
                try:
                    at_ns = parse_record(lines[0]).header.timestamp_ns if at_ns is None else at_ns
                    self.look(parse_stored(raw), height, index, at_ns)
                except RopewalkError:
                    return

    def look_header(self, header: Header) -> None:
        """Judge the integrity_proof of a header, if it has one."""
        if header.integrity_proof is not None:
            self.count(*self._judge_header(header), header.height, -1)

    def _judge_header(self, header: Header) -> tuple[Status, str]:
        from ropewalk.ledger.evidence.snark import check_header_proof

        keys = self._believed.snark_keys if self._believed is not None else {}
        return check_header_proof(header.integrity_proof, header.merkle_root, keys)

    def failures(self, lines: Sequence[bytes]) -> dict[int, str]:
        """Return what is wrong with the evidence in a stored block, by the index of its envelope; count nothing."""
        found: dict[int, str] = {}
        if _NO_PROOF not in lines[0]:
            with suppress(Invalid, Unverified):
                status, detail = self._judge_header(parse_record(lines[0]).header)
                if status == "failed":
                    found[0] = detail
        for index, raw in enumerate(lines[1:]):
            if _HINT not in raw:
                continue
            with suppress(RopewalkError):  # what cannot be read is left to those who verify the block itself
                status, detail = self.judge(parse_stored(raw), parse_record(lines[0]).header.timestamp_ns)
                if status == "failed":
                    found[index] = detail
        return found

    def require(self) -> None:
        step = self.step()
        if step.status == "failed":
            raise Unverified(f"evidence: {step.detail}", **step.fields)

    def count(self, status: Status, detail: str, height: int, index: int) -> None:
        """Take what came of one piece into account."""
        with self._mutex:
            self._counts[status] += 1
            self._first[status] = min(
                self._first.get(status, (height, index, detail)), (height, index, detail)
            )

    def step(self) -> Step:
        """Return what all of it came to: failed if one failed, not checked if one was not, passed otherwise."""
        counts, total = self._counts, sum(self._counts.values())
        if not total:
            return Step(EVIDENCE, "passed", "no envelope carries evidence")
        for status in ("failed", "not_checked"):
            if counts[status]:
                height, index, detail = self._first[status]
                parts = [f"{counts[each]} {word}" for each, word in _WORDS.items() if counts[each]]
                place = {"height": height} if index < 0 else {"height": height, "index": index}
                facts = place if status == "failed" else {}
                where = f"block {height}" + (f", envelope {index}" if index >= 0 else "")
                text = f"{where}: {detail} ({', '.join(parts)})"
                # A trust file without pins leaves open whose evidence it is; one with pins requires a verdict.
                return Step(EVIDENCE, status, text, facts, "required" if self._pinned else "optional")
        return Step(EVIDENCE, "passed", f"{total} pieces hold")

    def _still(
        self, status: Status, detail: str, envelope: Envelope, trust: EvidenceTrust, at_ns: int
    ) -> tuple[Status, str]:
        """Return what was found, unless only a key vouches for it that was revoked by that time."""
        if not self._revoked or status == "failed":
            return status, detail
        keys = tuple(key for key in trust.keys if at_ns < self._revoked.get(key.identity(), at_ns + 1))
        if keys == trust.keys:
            return status, detail
        from ropewalk.ledger.evidence.verify import check_evidence

        again, _ = check_evidence(envelope, replace(trust, keys=keys), at_ns)
        return (
            (status, detail)
            if again == status
            else ("failed", "the key that vouches for it was revoked by then")
        )

    def _judge_snapshot(self, envelope: Envelope, at_ns: int, nonce: bytes | None) -> tuple[Status, str]:
        """Judge the snapshot of a replay by the key that seals the blocks; no root is needed."""
        from ropewalk.ledger.evidence.trust import EvidenceTrust
        from ropewalk.ledger.evidence.verify import check_evidence

        own = EvidenceTrust(keys=self._sealers, pinned=False)
        status, detail = check_evidence(envelope, own, at_ns, nonce=nonce)
        if status == "not_checked" and nonce is None:
            status = "passed"  # by the envelope's own signature
        return status, detail  # a sealing key that was revoked is found by who checks the author


_WORDS: Final[dict[Status, str]] = {"passed": "hold", "failed": "failed", "not_checked": "not checked"}
