"""TLS for pipes: version 1.3, both sides show a certificate, and both name the protocol they speak."""

from __future__ import annotations

import contextlib
import hashlib
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509

from ropewalk.errors import Invalid, NotFound, Unavailable

SHORT = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C"}


def file_mark(path: Path) -> object:
    """Return what changes when a file is replaced; None if it is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116 - once a request; building a Path costs more than the call
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where one side's certificate and key lie, and the certificates under which the other side's must be."""

    certificate: Path
    key: Path
    roots: Path
    crl: Path | None = None  # certificates that those authorities have revoked

    def mark(self) -> object:
        """Return what changes when one of the files is replaced; a revocation list is looked at by those who use it."""
        return tuple(map(file_mark, (self.certificate, self.key, self.roots)))


@dataclass(frozen=True, slots=True)
class Certificate:
    """Whom the other side's certificate names, once it was accepted, and the SHA-256 of its DER, in hex."""

    subject: str
    sha256: str
    der: bytes = field(default=b"", repr=False)

    def __str__(self) -> str:
        return f"{self.subject}, sha256 {self.sha256}"


def certificate_of(tls: ssl.SSLObject) -> Certificate | None:
    """Return the certificate that the other side showed."""
    raw = tls.getpeercert(binary_form=True)
    return None if raw is None else certificate_from(raw)


def certificate_from(raw: bytes) -> Certificate:
    """Return what a certificate names, from its DER."""
    found = x509.load_der_x509_certificate(raw)
    names = ((each.oid._name, str(each.value)) for each in found.subject)
    parts = [f"{SHORT.get(name, name)}={value}" for name, value in names]
    if not parts:  # one without a subject names its holder by other means
        with contextlib.suppress(x509.ExtensionNotFound):
            held = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            parts = [f"DNS:{name}" for name in held.get_values_for_type(x509.DNSName)]
    return Certificate(",".join(parts) or "no name", hashlib.sha256(raw).hexdigest(), raw)


def server_tls(files: TlsFiles, protocol: str) -> ssl.SSLContext:
    """Return the context of a server; clients must present a certificate."""
    return _context(ssl.PROTOCOL_TLS_SERVER, files, protocol)


def client_tls(files: TlsFiles, protocol: str) -> ssl.SSLContext:
    """Return the context of a client; the server's certificate must match the host name."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, files, protocol)


def _context(side: int, files: TlsFiles, protocol: str) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols([protocol])
    if side == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # a session that is resumed shows no certificate
    for path in (files.certificate, files.key, files.roots):
        if not path.is_file():
            raise NotFound(f"no file {path}", name=str(path))
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password(files.key))
    except ssl.SSLError as error:
        raise Invalid(
            f"{files.certificate}, {files.key}: no certificate in PEM with its key",
            advice="Give the certificate and the key that belongs to it, both as PEM.",
        ) from error
    except OSError as error:
        raise Unavailable(f"{files.key}: {error.strerror}") from error
    try:
        context.load_verify_locations(files.roots)
    except ssl.SSLError as error:
        raise Invalid(f"{files.roots}: no certificates in PEM") from error
    except OSError as error:
        raise Unavailable(f"{files.roots}: {error.strerror}") from error
    return context


def _no_password(key: Path) -> Callable[[], str]:
    """Refuse an encrypted key instead of prompting for its password at a terminal."""

    def ask() -> str:
        raise Invalid(
            f"{key} is locked by a password", advice="Give a key without one, readable by you alone."
        )

    return ask
