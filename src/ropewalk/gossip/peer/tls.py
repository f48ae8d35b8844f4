"""TLS contexts for `wss://`: the server shows a certificate, and clients may have to show one too."""

from __future__ import annotations

import ssl
from pathlib import Path

from ropewalk.errors import Invalid, NotFound, Usage


def server_context(
    certificate: Path | None, key: Path | None, client_ca: Path | None = None
) -> ssl.SSLContext | None:
    """Return the context of a server, or None without a certificate. With `client_ca`, peers must show one."""
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise Usage("a server needs both --tls-cert and --tls-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, certificate, key)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _trust(context, client_ca)
    return _hardened(context)


def client_context(
    ca: Path | None = None, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """Return the context of a client that trusts `ca`, or the system's authorities, and may show a certificate."""
    context = ssl.create_default_context()
    if ca is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _trust(context, ca)
    if (certificate is None) != (key is None):
        raise Usage("a client certificate needs its key, and the key its certificate")
    if certificate is not None and key is not None:
        _load(context, certificate, key)
    return _hardened(context)


def _hardened(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    _check_file(certificate)
    _check_file(key)

    def no_password() -> str:
        raise Invalid(f"{key} is encrypted", advice="Give a key without a password, readable by you alone.")

    try:
        context.load_cert_chain(certificate, key, password=no_password)
    except ssl.SSLError as error:
        raise Invalid(
            f"{certificate} and {key} must be a certificate and its key, both PEM: {error.reason}"
        ) from error


def _trust(context: ssl.SSLContext, ca: Path) -> None:
    _check_file(ca)
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise Invalid(f"{ca} must hold PEM certificates: {error.reason}") from error


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise NotFound(f"no file {path}", name=str(path))
