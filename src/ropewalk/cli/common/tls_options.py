"""Certificates on the command line: one folder that `ropewalk pki issue` made, or a file for each part."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.options import F, path_option, together

if TYPE_CHECKING:
    from ropewalk.net.tls import TlsFiles


def tls_options(roots: str, whose: str) -> Callable[[F], F]:
    """Add the options; `roots` is the name of the one for the other side's authority, `whose` the other side."""
    return together(
        path_option("--tls", "DIR", "Folder of `ropewalk pki issue`, instead of the four files."),
        path_option("--tls-cert", "F", "Own certificate, PEM."),
        path_option("--tls-key", "F", "Private key of the certificate, PEM."),
        path_option(f"{roots} tls_roots", "F", f"CA certificates for the {whose}, PEM."),
        path_option("--crl", "F", "Revocation list of that CA, PEM; read again when it changes."),
    )


def tls_files(options: dict[str, Any], roots: str) -> TlsFiles | None:
    """Take the options out of `options`; return the files they name, None for none."""
    from ropewalk.net.tls import TlsFiles

    folder, *parts, crl = (options.pop(name) for name in ("tls", "tls_cert", "tls_key", "tls_roots", "crl"))
    if folder is not None:
        if any(parts):
            raise click.UsageError("--tls and --tls-cert exclude each other")
        if crl is None and (folder / "crl.pem").exists():
            crl = folder / "crl.pem"
        return TlsFiles(folder / "cert.pem", folder / "key.pem", folder / "ca.pem", crl)
    if not any(parts):
        if crl is not None:
            raise click.UsageError("--crl goes with certificates")
        return None
    if not all(parts):
        raise click.UsageError(f"--tls-cert, --tls-key and {roots} must be given together: TLS is mutual")
    certificate, key, authority = parts
    return TlsFiles(certificate, key, authority, crl)


def address_option(value: str | None, option: str) -> tuple[str, int] | None:
    """Parse HOST:PORT; an IPv6 address stands in brackets."""
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"{option} must be HOST:PORT, got {value!r:.80}")
    return host.removeprefix("[").removesuffix("]"), int(port)
