"""Intel SGX and TDX: quotes checked against configured roots, collateral and measurements.

The quote comes as `document` and carries its PCK certificates. Intel's statements on such platforms (TCB info and QE
identity) come with it as `collateral`, or from the verifier's settings; the newest valid one decides. Signed by Intel,
it may be carried with the evidence: the carrier can withhold it, but not change it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from cryptography import x509

from ropewalk.errors import Invalid, Unverified
from ropewalk.kernel.report import Status
from ropewalk.ledger.evidence.allowed import parse_collateral_texts
from ropewalk.ledger.evidence.certificates import check_chain, parse_certificates, parse_pem
from ropewalk.ledger.evidence.crls import check_revoked
from ropewalk.ledger.evidence.item import EvidenceItem
from ropewalk.ledger.evidence.tee.intel_certificates import Platform, check_p256, read_platform
from ropewalk.ledger.evidence.tee.intel_collateral import Collateral, parse_collateral
from ropewalk.ledger.evidence.tee.intel_quote import (
    QUOTE_BYTES_MAX,
    EnclaveReport,
    Quote,
    TdReport,
    parse_quote,
)


def check_dcap(piece: EvidenceItem) -> tuple[Status, str]:
    """Return whether a quote is bound to its envelope and holds."""
    quote = parse_quote(piece.document(QUOTE_BYTES_MAX))
    if quote.tee != piece.report.get("tee_type"):
        raise Unverified(f"the quote is of {quote.tee}, the report names {piece.report.get('tee_type')}")
    piece.require_bound(quote.body.report_data)
    if quote.body.debug:
        raise Unverified("it ran in debug mode: the host can read and change it")
    chain = _certificates(quote)
    registers = _registers(quote.body)
    measured = "sgx.mrenclave" if quote.tee == "sgx" else "tdx.mrtd"
    piece.require_reported(registers[measured], chain[0])
    trust = piece.trust
    if not trust.roots:
        return "not_checked", "no roots are configured for Intel SGX and TDX"
    root = check_chain(chain[0], chain[1:], trust.roots, piece.at_ns)
    check_revoked(chain, root, trust.crls, piece.at_ns)
    _check_signatures(quote, chain[0])
    platform = read_platform(chain[0])
    digest = registers[measured].hex()[:16]
    collateral = _newest(piece, quote, platform)
    if collateral is None:
        what = f"no collateral for FMSPC {platform.fmspc.hex()}: the platform's status is unknown"
        if trust.pinned:
            raise Unverified(what)  # else it would be enough to leave it out
        return "not_checked", f"signed under a trusted root; {what}"
    collateral.check_signed(root, piece.at_ns)
    check_revoked(collateral.chain, root, trust.crls, piece.at_ns)
    for what, status in collateral.statuses(platform, quote.body, quote.qe).items():
        if status not in trust.tcb_statuses:
            raise Unverified(f"TCB status of the {what}: {status[:60]}, which is not allowed")
    if not trust.pinned:
        return "not_checked", f"signed under a trusted root; {measured} {digest}… is not pinned"
    _check_measured(piece, quote, registers)
    piece.require_age()
    return "passed", f"{quote.tee.upper()} on FMSPC {platform.fmspc.hex()}, {measured} {digest}…"


def _certificates(quote: Quote) -> list[x509.Certificate]:
    try:
        texts = parse_certificates(quote.certificates.rstrip(b"\0"))
    except Invalid as error:
        raise Unverified(f"the certificates in the quote: {error.detail}") from error
    return [parse_pem(text) for text in texts]


def _check_signatures(quote: Quote, leaf: x509.Certificate) -> None:
    """Check from the top down: the platform signs the quoting enclave, whose key signs the report."""
    check_p256(leaf, quote.qe_raw, quote.qe_signature, "signature over the QE report")
    if quote.qe.debug:
        raise Unverified("the quoting enclave ran in debug mode")
    if quote.qe.report_data != hashlib.sha256(quote.key + quote.qe_auth).digest() + bytes(32):
        raise Unverified("the QE report does not name the key that signs the quote")
    check_p256(quote.key, quote.signed, quote.signature, "signature over the quote")


def _newest(piece: EvidenceItem, quote: Quote, platform: Platform) -> Collateral | None:
    """Return the newest collateral for such a platform that is valid at the time; None if there is none."""
    given = list(piece.trust.collateral)
    if "collateral" in piece.report:
        given.append(parse_collateral(parse_collateral_texts(piece.report["collateral"], Invalid)))
    about = [each for each in given if each.applies_to(quote.tee, platform)]
    counting = [each for each in about if each.is_current(piece.at_ns)]
    if about and not counting:
        raise Unverified(f"all collateral for FMSPC {platform.fmspc.hex()} is of another time")
    return max(counting, key=lambda each: (each.tcb.since_ns, each.qe.since_ns), default=None)


def _registers(body: EnclaveReport | TdReport) -> dict[str, bytes]:
    if isinstance(body, EnclaveReport):
        return {"sgx.mrenclave": body.mr_enclave, "sgx.mrsigner": body.mr_signer}
    return {
        "tdx.mrtd": body.mr_td,
        **{f"tdx.rtmr{number}": value for number, value in enumerate(body.rtmrs)},
        "tdx.mrconfigid": body.mr_config_id,
        "tdx.mrowner": body.mr_owner,
        "tdx.mrownerconfig": body.mr_owner_config,
        "tdx.mrseam": body.mr_seam,
    }


def _check_measured(piece: EvidenceItem, quote: Quote, registers: Mapping[str, bytes]) -> None:
    body, asked = quote.body, piece.trust.sgx_isv
    if not isinstance(body, EnclaveReport):
        piece.require_measured(registers, "tdx.mrtd")
        return
    piece.require_measured(registers, "sgx.mrenclave", "sgx.mrsigner")
    if "sgx.mrenclave" not in piece.trust.measurements and "prodid" not in asked:
        raise Unverified(
            "sgx.mrsigner alone allows all its enclaves: configure sgx.mrenclave or the prodid in sgx_isv"
        )
    if "prodid" in asked and body.isv_prodid != asked["prodid"]:
        raise Unverified(
            f"product {body.isv_prodid} of its signer is not {asked['prodid']}, which is allowed"
        )
    if body.isv_svn < asked.get("svn", 0):
        raise Unverified(f"level {body.isv_svn} of the enclave is below {asked['svn']}, which is asked for")
