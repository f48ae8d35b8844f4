"""Certificate revocation lists: certificates that their authority has withdrawn. Every transport asks here."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from ropewalk.errors import Invalid, NotFound, Unauthenticated
from ropewalk.net.tls import Certificate

CRL_BYTES_MAX = 16 << 20
_MARK = b"-----BEGIN X509 CRL-----"


def now_utc() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


class RevocationList:
    """The lists of one file, read again when it changes. A list that cannot be read or has expired refuses everyone."""

    def __init__(self, path: Path, roots: Path, *, now: Callable[[], datetime] = now_utc) -> None:
        self._path, self._roots, self._now = path, roots, now
        self._mark: object = None
        self._lists: list[x509.CertificateRevocationList] = []
        if not path.is_file():
            raise NotFound(f"no file {path}", name=str(path))
        self._refresh()

    def check(self, certificate: Certificate | None) -> None:
        """Raise Unauthenticated for a certificate that was revoked, and for all while a list is not valid."""
        try:
            self._refresh()
        except Invalid as error:  # half-written, perhaps: the peer may ask again
            raise Unauthenticated(error.detail) from error
        for each in self._lists:
            until = each.next_update_utc
            if until is None or until < self._now():
                raise Unauthenticated(
                    f"the revocation list of {each.issuer.rfc4514_string()} expired on {until:%Y-%m-%d}"
                    if until is not None
                    else f"the revocation list {self._path} does not say until when it holds",
                    advice="Make a new one: `ropewalk pki revoke` or `pki issue` writes it.",
                )
        if certificate is None:
            return
        found = x509.load_der_x509_certificate(certificate.der)
        for each in self._lists:
            if each.issuer == found.issuer:
                revoked = each.get_revoked_certificate_by_serial_number(found.serial_number)
                if revoked is not None:
                    raise Unauthenticated(
                        f"the certificate of {certificate.subject} was revoked on "
                        f"{revoked.revocation_date_utc:%Y-%m-%d}",
                        advice="Get a new certificate from its authority.",
                    )

    def _refresh(self) -> None:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - once a request; building a Path costs more than the call
            mark: object = (found.st_mtime_ns, found.st_size, found.st_ino)
            if mark == self._mark:
                return
            if found.st_size > CRL_BYTES_MAX:
                raise Invalid(f"{self._path} must have at most {CRL_BYTES_MAX} bytes, got {found.st_size}")
            self._lists = self._read()
            self._mark = mark
        except OSError as error:
            raise Unauthenticated(
                f"the revocation list {self._path} cannot be read: {error.strerror}"
            ) from error

    def _read(self) -> list[x509.CertificateRevocationList]:
        text = self._path.read_bytes()
        try:
            lists = [x509.load_pem_x509_crl(_MARK + each) for each in text.split(_MARK)[1:]]
            roots = x509.load_pem_x509_certificates(self._roots.read_bytes())
        except (ValueError, x509.InvalidVersion) as error:
            raise Invalid(f"{self._path}: must be revocation lists in PEM") from error
        if not lists:
            raise Invalid(f"{self._path}: must hold at least one revocation list in PEM")
        for each in lists:
            if not any(_signed(each, root) for root in roots):
                raise Invalid(f"{self._path}: no authority of {self._roots} signed this revocation list")
        return lists


def _signed(found: x509.CertificateRevocationList, root: x509.Certificate) -> bool:
    try:
        # The types of public keys that sign lists are those that sign certificates.
        return found.issuer == root.subject and found.is_signature_valid(root.public_key())  # type: ignore[arg-type]
    except (InvalidSignature, TypeError, ValueError):
        return False
