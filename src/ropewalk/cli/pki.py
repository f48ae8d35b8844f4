"""`ropewalk pki`: a small certificate authority for servers and clients."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from ropewalk.cli.common.command import emit, group
from ropewalk.cli.common.options import option, repeated

DAYS = 30  # written out so that --help loads no library; a test compares
dir_option = option("--dir folder", "DIR", "Folder of the authority.", default="pki")


@group(
    "pki",
    "ropewalk pki init",
    "ropewalk pki issue server --host ledger.example --host 192.0.2.7",
    "ropewalk pki issue ada",
    "ropewalk pki revoke ada",
)
def pki() -> None:
    """Issue and revoke certificates for `ledger serve`, `ropewalk serve` and their clients.

    The authority is a folder. A reader of its ca.key can issue certificates: keep the folder private.
    """


@pki.command("init", "ropewalk pki init", "ropewalk pki init --dir /secure/pki --name acme")
@dir_option
@option("--name", "NAME", "Common name of the authority.", default="ropewalk")
def init(folder: str, name: str) -> None:
    """Create an authority: ca.pem, ca.key and an empty revocation list. It is valid for a year."""
    from ropewalk.disk.certificate_authority import init_authority

    made = init_authority(Path(folder), name, datetime.now(UTC))
    emit({"folder": str(made.folder), "name": name}, f"ok  authority {name} in {made.folder}")


@pki.command("issue", "ropewalk pki issue server --host 127.0.0.1", "ropewalk pki issue ada --days 7")
@click.argument("name")
@repeated("--host hosts", "H", "Name or address of a server; repeatable. None: a client.")
@option("--days", "N", "Days until it expires, at most 365.", default=DAYS)
@dir_option
def issue(name: str, hosts: tuple[str, ...], days: int, folder: str) -> None:
    """Issue a certificate for NAME and write DIR/NAME: cert.pem, key.pem, ca.pem and crl.pem.

    That folder is what `--tls` takes. Copy it to the machine it is for.
    """
    from ropewalk.disk.certificate_authority import CertificateAuthority

    made = CertificateAuthority(Path(folder), datetime.now(UTC)).issue(name, hosts, days)
    facts = {
        "name": name,
        "folder": str(made.folder),
        "serial": f"{made.serial:x}",
        "sha256": made.sha256,
        "expires": made.expires.isoformat(),
    }
    kind = "server" if hosts else "client"
    emit(facts, f"ok  {kind} {name}  {made.folder}  until {made.expires:%Y-%m-%d}  sha256 {made.sha256}")


@pki.command("revoke", "ropewalk pki revoke ada")
@click.argument("name")
@dir_option
def revoke(name: str, folder: str) -> None:
    """Revoke all certificates of NAME, and write the revocation list to DIR and to every folder below it.

    Servers that use one of these files refuse the certificates from the next request on. Copy crl.pem to the others.
    """
    from ropewalk.disk.certificate_authority import CertificateAuthority

    count = CertificateAuthority(Path(folder), datetime.now(UTC)).revoke(name)
    emit({"name": name, "revoked": count}, f"ok  {name}  {count} certificates revoked")
