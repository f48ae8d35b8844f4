"""One item of evidence: its envelope, the verifier's trust, and the time of the check.

Checks common to all hardware reports: the signed report is bound to the envelope, the values given with it are the
same, and the measurements are allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from ropewalk.errors import Unverified
from ropewalk.ledger.envelope.fields import decode_base64, parse_timestamp
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.evidence.binding import report_data
from ropewalk.ledger.evidence.certificates import parse_pem
from ropewalk.ledger.evidence.trust import EvidenceTrust

EARLY_S_MAX: Final = 300  # clocks of two honest machines may differ by this much


@dataclass(frozen=True, slots=True)
class EvidenceItem:
    """Evidence with its report, as part of an envelope, to be checked at a time.

    `nonce` is the verifier's; None if there was none.
    """

    envelope: Envelope
    evidence: dict[str, Any]
    report: dict[str, Any]
    trust: EvidenceTrust
    at_ns: int
    nonce: bytes | None = None

    def document(self, bytes_max: int) -> bytes:
        """Return the signed bytes themselves, as the hardware made them."""
        raw = decode_base64(str(self.report.get("document", "")), "/report/document")
        if len(raw) > bytes_max:
            raise Unverified(f"a document of {len(raw)} bytes; at most {bytes_max}")
        return raw

    def chain(self) -> list[x509.Certificate]:
        """Return the certificates of the report, the leaf first."""
        texts = self.evidence.get("cert_chain") or []
        return [parse_pem(str(text)) for text in texts]

    def require_bound(self, signed: bytes) -> None:
        """Raise unless the 64 bytes that the hardware signed are those of this envelope, and of the nonce if any.

        There is no other place for a nonce in such reports. They bind payload and correlation id, so who wants an
        answer to a challenge asks for its hex as the correlation id.
        """
        envelope = self.envelope
        if signed != report_data(envelope.payload_hash, envelope.correlation_id):
            raise Unverified("report_data of the document does not bind payload_hash and correlation_id")
        said = self.evidence.get("nonce")
        if said is not None and said != envelope.correlation_id:
            raise Unverified(
                "the report does not bind the nonce of the evidence: it must be the correlation id"
            )
        if self.nonce is not None and envelope.correlation_id != self.nonce.hex():
            raise Unverified(
                "the report does not bind the nonce that was asked for: it must be the correlation id"
            )

    def require_reported(
        self, measurement: bytes, leaf: x509.Certificate | None, signed_at_ms: int | None = None
    ) -> None:
        """Raise unless the given measurement, certificate and, if present, time match the signed document.

        An issuer may be named too. Only the envelope's signer signs it, so it must only be a string.
        """
        said = self.report.get("measurement")
        if said is not None and said != measurement.hex():
            raise Unverified("the measurement named in the report is not the document's")
        certificate = self.report.get("certificate")
        if certificate is not None and leaf is not None:
            other = parse_pem(str(certificate)).public_bytes(Encoding.DER)
            if other != leaf.public_bytes(Encoding.DER):
                raise Unverified("the certificate named in the report is not the one that vouches for it")
        timestamp = self.report.get("timestamp")
        if timestamp is not None:
            named_ns = parse_timestamp(str(timestamp))
            if signed_at_ms is not None and named_ns // 10**9 != signed_at_ms // 10**3:
                raise Unverified("the timestamp named in the report is not the document's")
        if not isinstance(self.report.get("issuer", ""), str):
            raise Unverified("the issuer named in the report is no text")

    def require_age(self) -> None:
        """Raise if the report is too old. The hardware signs no time: the envelope's signer states it."""
        most = self.trust.max_age_s
        if most is None:
            return
        said = self.report.get("timestamp")
        if said is None:
            raise Unverified(f"the report names no timestamp; at most {most} s are allowed")
        age_s = (self.at_ns - parse_timestamp(str(said))) // 10**9
        if not -EARLY_S_MAX <= age_s <= most:
            raise Unverified(f"the report is {age_s} s old; at most {most} s are allowed")

    def require_measured(self, registers: Mapping[str, bytes], *needed: str) -> None:
        """Raise unless each pinned register of this hardware has a pinned value, and one of those needed is pinned."""
        pinned = self.trust.measurements
        if not any(name in pinned for name in needed):
            raise Unverified(f"no measurement is allowed: configure {' or '.join(needed)}")
        for name, value in registers.items():
            if name in pinned and value not in pinned[name]:
                raise Unverified(f"{name} is {value.hex()[:16]}…, which is not allowed")
