"""AMD SEV-SNP attestation reports: 1184 bytes by the secure processor, under a configured root.

The report comes as `document`, its certificates as `cert_chain`: the key of the chip (VCEK), or the one its cloud has
loaded (VLEK), and above it AMD's signing key (ASK or ASVK). The root above both (ARK) is configuration. Layout: AMD's
SEV-SNP firmware ABI, ATTESTATION_REPORT; certificates: AMD's VCEK and KDS interface specification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from ropewalk.errors import Unverified
from ropewalk.kernel.report import Status
from ropewalk.ledger.evidence.certificates import public_key_of
from ropewalk.ledger.evidence.crls import check_revoked
from ropewalk.ledger.evidence.item import EvidenceItem
from ropewalk.ledger.evidence.tee.amd_certificates import (
    TURIN_FAMILY,
    Endorsement,
    check_amd_chain,
    read_endorsement,
)

REPORT_BYTES: Final = 0x4A0
SIGNED_BYTES: Final = 0x2A0
VERSIONS: Final = range(2, 6)  # their layouts agree in every field that is read here
_ECDSA_P384: Final = 1
_NUMBER_BYTES: Final = 72  # r and s, each in little-endian
_MUST_BE_ONE: Final = 1 << 17
_DEBUG: Final = 1 << 19
_VMPL_MAX: Final = 3  # a report requested by the host has 2^32 - 1
_VCEK, _VLEK, _NO_KEY = 0, 1, 7


@dataclass(frozen=True, slots=True)
class SnpReport:
    """The content of a report: guest, platform, and signer."""

    version: int
    policy: int
    vmpl: int
    signer: int
    key_masked: bool
    report_data: bytes
    measurement: bytes
    host_data: bytes
    id_key_digest: bytes
    reported_tcb: bytes
    family: int | None
    chip_id: bytes
    r: int
    s: int


def parse_snp_report(raw: bytes) -> SnpReport:
    """Return a report from its bytes, of a version that is known and in the form AMD gives it; nothing is verified.

    >>> parse_snp_report(bytes(5))
    Traceback (most recent call last):
    ropewalk.errors.Unverified: a SEV-SNP report has 1184 bytes, not 5
    """
    if len(raw) != REPORT_BYTES:
        raise Unverified(f"a SEV-SNP report has {REPORT_BYTES} bytes, not {len(raw)}")
    version = _number(raw, 0x000, 4)
    if version not in VERSIONS:
        raise Unverified(f"SEV-SNP report of version {version}; known are {VERSIONS[0]} to {VERSIONS[-1]}")
    algorithm = _number(raw, 0x034, 4)
    if algorithm != _ECDSA_P384:
        raise Unverified(f"signature algorithm {algorithm} is not {_ECDSA_P384}, ECDSA P-384 with SHA-384")
    flags = _number(raw, 0x048, 4)
    end = SIGNED_BYTES + 2 * _NUMBER_BYTES
    if any(raw[end:]):
        raise Unverified("bytes after the signature are not zero")
    return SnpReport(
        version=version,
        policy=_number(raw, 0x008, 8),
        vmpl=_number(raw, 0x030, 4),
        signer=flags >> 2 & 7,
        key_masked=bool(flags >> 1 & 1),
        report_data=raw[0x050:0x090],
        measurement=raw[0x090:0x0C0],
        host_data=raw[0x0C0:0x0E0],
        id_key_digest=raw[0x0E0:0x110],
        reported_tcb=raw[0x180:0x188],
        family=raw[0x188] if version >= 3 else None,
        chip_id=raw[0x1A0:0x1E0],
        r=_number(raw, SIGNED_BYTES, _NUMBER_BYTES),
        s=_number(raw, SIGNED_BYTES + _NUMBER_BYTES, _NUMBER_BYTES),
    )


def check_sev_snp(piece: EvidenceItem) -> tuple[Status, str]:
    """Return whether a SEV-SNP report is bound to its envelope and holds."""
    raw = piece.document(REPORT_BYTES)
    report = parse_snp_report(raw)
    piece.require_bound(report.report_data)
    _check_guest(report)
    chain = piece.chain()
    piece.require_reported(report.measurement, chain[0] if chain else None)
    if not piece.trust.roots:
        return "not_checked", "no roots are configured for AMD SEV-SNP"
    if not chain:
        raise Unverified("cert_chain must begin with the VCEK or VLEK of the report")
    root = check_amd_chain(chain, piece.trust.roots, piece.at_ns)
    check_revoked(chain, root, piece.trust.crls, piece.at_ns)
    endorsement = read_endorsement(chain[0])
    _check_platform(report, endorsement)
    _check_signature(chain[0], report, raw)
    where = f"{endorsement.product}, {endorsement.whose()}"
    if not piece.trust.pinned:
        digest = report.measurement.hex()[:16]
        return "not_checked", f"signed under a trusted root by {where}; measurement {digest}… is not pinned"
    registers = {
        "sev.measurement": report.measurement,
        "sev.host_data": report.host_data,
        "sev.id_key_digest": report.id_key_digest,
    }
    piece.require_measured(registers, "sev.measurement")
    _check_levels(endorsement, piece.trust.sev_tcb)
    piece.require_age()
    return "passed", f"SEV-SNP guest on {where}, measurement {report.measurement.hex()[:16]}…"


def _check_guest(report: SnpReport) -> None:
    """Check what a guest was allowed to be, and who in it asked."""
    if not report.policy & _MUST_BE_ONE:
        raise Unverified("bit 17 of the guest policy is not set, as it must be")
    if report.policy & _DEBUG:
        raise Unverified("the guest policy allows debugging: the host can read and change the guest")
    if report.vmpl > _VMPL_MAX:
        raise Unverified("the host asked for the report, not the guest")
    if report.signer == _NO_KEY or report.key_masked:
        raise Unverified("the platform does not sign its reports")
    if report.signer not in (_VCEK, _VLEK):
        raise Unverified(f"signing key {report.signer} is not known; 0 is a VCEK, 1 a VLEK")


def _check_platform(report: SnpReport, endorsement: Endorsement) -> None:
    """Check that the key was made for this chip at these levels."""
    if (report.signer == _VCEK) != (endorsement.chip_id is not None):
        kind = "VCEK" if report.signer == _VCEK else "VLEK"
        raise Unverified(f"the report names a {kind} as signer, but its certificate is not one")
    if endorsement.chip_id is not None and report.chip_id != endorsement.chip_id:
        raise Unverified(
            f"chip id {report.chip_id.hex()[:16]}… of the report is not that of the VCEK certificate"
        )
    if report.family is not None and (report.family >= TURIN_FAMILY) != endorsement.has_fmc:
        raise Unverified(f"family {report.family:#x} of the report is not that of the certificate")
    if report.reported_tcb != endorsement.tcb:
        raise Unverified(
            f"reported TCB {report.reported_tcb.hex()} is not the {endorsement.tcb.hex()} of the certificate"
        )


def _check_signature(leaf: x509.Certificate, report: SnpReport, raw: bytes) -> None:
    key = public_key_of(leaf)
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise Unverified("the certificate of the chip has no P-384 key")
    try:
        key.verify(encode_dss_signature(report.r, report.s), raw[:SIGNED_BYTES], ec.ECDSA(hashes.SHA384()))
    except InvalidSignature as error:
        raise Unverified("the report's signature does not hold") from error


def _check_levels(endorsement: Endorsement, asked: dict[str, int]) -> None:
    levels = endorsement.levels()
    for name, least in asked.items():
        if levels.get(name, 0) < least:
            raise Unverified(
                f"level {levels.get(name, 0)} of the {name} is below {least}, which is asked for"
            )


def _number(raw: bytes, start: int, size: int) -> int:
    return int.from_bytes(raw[start : start + size], "little")
