"""Verify a certificate that a peer has shown, where the transport's library does not: QUIC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import verification

from ropewalk.errors import Invalid, Unauthenticated
from ropewalk.net.revocation import RevocationList, now_utc
from ropewalk.net.tls import Certificate, TlsFiles, certificate_from


class CertificateVerifier:
    """Accept a certificate only if it leads to our authorities, is valid now, is for its purpose and not revoked."""

    def __init__(self, files: TlsFiles) -> None:
        self._roots = roots_of(files.roots)
        self._revoked = RevocationList(files.crl, files.roots) if files.crl is not None else None

    def check_client(self, shown: x509.Certificate | None, chain: Sequence[x509.Certificate]) -> Certificate:
        """Return what a client's certificate names; Unauthenticated without one that is accepted."""
        return self._check(
            shown, lambda found: self._builder().build_client_verifier().verify(found, list(chain))
        )

    def check_server(
        self, host: str, shown: x509.Certificate | None, chain: Sequence[x509.Certificate]
    ) -> Certificate:
        """Return what a server's certificate names; it must be for this host."""
        try:
            name: x509.GeneralName = x509.IPAddress(ip_address(host))
        except ValueError:
            name = x509.DNSName(host)
        assert isinstance(name, x509.IPAddress | x509.DNSName)
        return self._check(
            shown, lambda found: self._builder().build_server_verifier(name).verify(found, list(chain))
        )

    def _builder(self) -> verification.PolicyBuilder:
        return verification.PolicyBuilder().store(verification.Store(self._roots)).time(now_utc())

    def _check(
        self, shown: x509.Certificate | None, verify: Callable[[x509.Certificate], object]
    ) -> Certificate:
        if shown is None:
            raise Unauthenticated("the peer has shown no certificate", advice="Use one of our authority.")
        found = certificate_from(shown.public_bytes(Encoding.DER))
        try:
            verify(shown)
        except (verification.VerificationError, ValueError) as error:
            raise Unauthenticated(
                f"the certificate of {found.subject} is not accepted: {str(error)[:200]}",
                advice="It must lead to the authority of the other side, be valid now, and be for this use.",
            ) from error
        if self._revoked is not None:
            self._revoked.check(found)
        return found


def roots_of(path: Path) -> list[x509.Certificate]:
    """Return the certificates of a PEM file."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Invalid(f"{path}: must be certificates in PEM") from error
