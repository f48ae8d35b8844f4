"""Certificates of a small authority, for both sides of a connection."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ropewalk.net.tls import TlsFiles

__all__ = ["Authority", "files_of"]


class Authority:
    """Signs certificates; all files lie in one folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._own = self._sign(name, self._key, ca=True)
        self.roots = folder / f"{name}.pem"
        self.roots.write_bytes(self._own.public_bytes(serialization.Encoding.PEM))

    def files(self, name: str, roots: Path | None = None) -> TlsFiles:
        """A certificate for this machine, its key, and the roots that the other side must lead to."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._sign(name, key, ca=False)
        certificate, secret = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return TlsFiles(certificate, secret, roots or self.roots)

    def _sign(self, name: str, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._name)])
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca, None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName(
                    [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
                ),
                critical=False,
            )
        )
        return made.sign(self._key, hashes.SHA256())


def files_of(folder: Path) -> TlsFiles:
    """The files of a folder that `pki issue` made."""
    crl = folder / "crl.pem"
    return TlsFiles(folder / "cert.pem", folder / "key.pem", folder / "ca.pem", crl if crl.exists() else None)
