"""TLS for pipes: version 1.3, both sides show a certificate, and both name the protocol they speak."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.errors import Invalid, NotFound, Unavailable

SHORT = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C"}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where one side's certificate and key lie, and the certificates under which the other side's must be."""

    certificate: Path
    key: Path
    roots: Path


@dataclass(frozen=True, slots=True)
class Certificate:
    """Whom the other side's certificate names, once it was accepted, and the SHA-256 of its DER, in hex."""

    subject: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.subject}, sha256 {self.sha256}"


def certificate_of(tls: ssl.SSLObject) -> Certificate | None:
    """The certificate that the other side showed."""
    raw = tls.getpeercert(binary_form=True)
    said: dict[str, Any] | None = tls.getpeercert()
    if raw is None or not said:
        return None
    named = said.get("subject", ())
    parts = [f"{SHORT.get(name, name)}={value}" for each in named for name, value in each]
    # One without a subject names its holder by other means.
    parts = parts or [f"{kind}:{value}" for kind, value in said.get("subjectAltName", ())]
    return Certificate(",".join(parts) or "no name", hashlib.sha256(raw).hexdigest())


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
