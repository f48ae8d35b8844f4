"""Revocation lists from the configuration: used if present, never fetched."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from ropewalk.errors import Invalid, Unverified
from ropewalk.ledger.evidence.certificates import public_key_of

CRL_BYTES_MAX: Final = 1 << 20


def parse_crl(raw: bytes) -> x509.CertificateRevocationList:
    """Return a revocation list in PEM or DER.

    >>> parse_crl(b"x")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: this is no revocation list in PEM or DER form
    """
    if len(raw) > CRL_BYTES_MAX:
        raise Invalid(f"a revocation list of {len(raw)} bytes; at most {CRL_BYTES_MAX}")
    try:
        if raw[:1] == b"\x30":
            return x509.load_der_x509_crl(raw)
        return x509.load_pem_x509_crl(raw)
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise Invalid("this is no revocation list in PEM or DER form") from error


def crl_text(raw: bytes) -> str:
    """Return a revocation list in PEM or DER, as PEM."""
    return parse_crl(raw).public_bytes(Encoding.PEM).decode()


def check_revoked(
    chain: Sequence[x509.Certificate],
    root: x509.Certificate,
    crls: Sequence[x509.CertificateRevocationList],
    at_ns: int,
) -> None:
    """Raise if a certificate of a chain was revoked by a time, or if the lists of its issuer had all ended by then.

    A list that came later counts too: what it revokes has a date. An issuer without lists is not asked.
    """
    at = datetime.fromtimestamp(at_ns // 10**9, UTC)
    for certificate, issuer in zip(chain, [*chain[1:], root], strict=True):
        try:
            lists = [crl for crl in crls if crl.issuer == certificate.issuer]
            if lists:
                _check_lists(certificate, issuer, lists, at)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise Unverified("a revocation list cannot be read") from error


def _check_lists(
    certificate: x509.Certificate,
    issuer: x509.Certificate,
    lists: Sequence[x509.CertificateRevocationList],
    at: datetime,
) -> None:
    name = certificate.subject.rfc4514_string()[:80] or "a certificate"
    # Authorities of one name may have had several keys: ignore a list signed by another of them.
    key = public_key_of(issuer)
    own = [crl for crl in lists if crl.is_signature_valid(key)]
    if not own:
        raise Unverified(f"no revocation list for {name} is signed by its issuer")
    for crl in own:
        entry = crl.get_revoked_certificate_by_serial_number(certificate.serial_number)
        if entry is not None and entry.revocation_date_utc <= at:
            raise Unverified(f"{name} was revoked at {entry.revocation_date_utc.isoformat()}")
    ends = [crl.next_update_utc for crl in own]
    if all(end is not None and end < at for end in ends):
        raise Unverified(f"the revocation list for {name} had ended by {at.isoformat()}")
