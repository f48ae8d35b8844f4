"""Certificates on the command line: one folder that `ropewalk pki issue` made, or a file for each part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ropewalk.cli.common.options import option, together

if TYPE_CHECKING:
    from ropewalk.net.tls import TlsFiles

F = TypeVar("F", bound=Callable[..., Any])


def tls_options(roots: str, whose: str) -> Callable[[F], F]:
    """Add the options; `roots` is the name of the one for the other side's authority, `whose` the other side."""
    return together(
        option("--tls", "DIR", "Folder of `ropewalk pki issue`, instead of the four files."),
        option("--tls-cert", "F", "Own certificate, PEM."),
        option("--tls-key", "F", "Private key of the certificate, PEM."),
        click.option(roots, "tls_roots", metavar="F", help=f"CA certificates for the {whose}, PEM."),
        option("--crl", "F", "Revocation list of that CA, PEM; read again when it changes."),
    )


def tls_files(options: dict[str, Any], roots: str) -> TlsFiles | None:
    """Take the options out of `options`; return the files they name, None for none."""
    from ropewalk.net.tls import TlsFiles

    folder, *parts, crl = (options.pop(name) for name in ("tls", "tls_cert", "tls_key", "tls_roots", "crl"))
    if folder is not None:
        if any(part is not None for part in parts):
            raise click.UsageError("--tls and --tls-cert exclude each other")
        place = Path(folder)
        found = Path(crl) if crl is not None else place / "crl.pem"
        certificate, key, authority = (place / name for name in ("cert.pem", "key.pem", "ca.pem"))
        return TlsFiles(certificate, key, authority, found if crl is not None or found.exists() else None)
    if all(part is None for part in parts):
        if crl is not None:
            raise click.UsageError("--crl goes with certificates")
        return None
    if any(part is None for part in parts):
        raise click.UsageError(f"--tls-cert, --tls-key and {roots} must be given together: TLS is mutual")
    certificate, key, authority = map(Path, parts)
    return TlsFiles(certificate, key, authority, Path(crl) if crl is not None else None)


def address_option(value: str | None, option: str) -> tuple[str, int] | None:
    """Parse HOST:PORT; an IPv6 address stands in brackets."""
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"{option} must be HOST:PORT, got {value!r:.80}")
    return host.removeprefix("[").removesuffix("]"), int(port)
