"""A small certificate authority in a folder: it issues short-lived certificates, and lists those it has revoked.

ca.pem ca.key crl.pem     the authority
issued.jsonl              every certificate that was issued: name, serial number, when it ends
NAME/                     cert.pem and key.pem of NAME, with ca.pem and crl.pem: what is copied to its machine
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ropewalk.disk.durable import Disk
from ropewalk.disk.folder_lock import hold_folder
from ropewalk.errors import Conflict, Invalid, InvalidName, NotFound

AUTHORITY_DAYS: Final = 365
DAYS: Final = 30  # of a certificate, unless it is said otherwise
LIST_DAYS: Final = 31  # every command that changes something writes a new list
DAYS_MAX: Final = 365
LOCK_S: Final = 10.0
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_USAGES: Final = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A certificate that was issued, and the folder it lies in."""

    name: str
    folder: Path
    serial: int
    sha256: str
    expires: datetime


class CertificateAuthority:
    """The authority in a folder that `init_authority` made. `now` is the time of what it signs."""

    def __init__(self, folder: Path, now: datetime) -> None:
        self.folder, self._now, self._disk = folder, now.replace(microsecond=0), Disk()
        try:
            self._own = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
            key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        except FileNotFoundError as error:
            raise NotFound(
                f"there is no authority in {folder}",
                name=str(folder),
                advice="Make one: `ropewalk pki init`.",
            ) from error
        except (ValueError, TypeError) as error:
            raise Invalid(f"{folder}: ca.pem and ca.key must be a certificate and its key in PEM") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise Invalid(f"{folder / 'ca.key'} must be an EC key")
        self._key = key

    def issue(self, name: str, hosts: Sequence[str], days: int = DAYS) -> IssuedCertificate:
        """Issue a certificate for a server at these hosts, or without any for a client; an older one stays valid."""
        if _NAME.fullmatch(name) is None:
            raise InvalidName(
                f"a name must be lowercase letters, digits and hyphens, got {name!r:.80}", name=name
            )
        if not 0 < days <= DAYS_MAX:
            raise Invalid(f"a certificate must be valid for 1 to {DAYS_MAX} days, got {days}")
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(name, self._own.subject, key.public_key(), self._now, min(self._ends, self._after(days)))
            .add_extension(x509.BasicConstraints(False, None), critical=True)
            .add_extension(_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([_host(each) for each in hosts or [name]]), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        made = builder.sign(self._key, hashes.SHA256())
        place = self.folder / name
        with hold_folder(self.folder, LOCK_S):
            self._disk.make_directories(place, mode=0o700)
            line = {
                "name": name,
                "serial": f"{made.serial_number:x}",
                "not_after": f"{made.not_valid_after_utc}",
            }
            issued = (self.folder / "issued.jsonl").read_bytes() + json.dumps(line).encode() + b"\n"
            self._disk.replace(self.folder / "issued.jsonl", issued)
            self._disk.replace(place / "key.pem", _key_pem(key), mode=0o600)
            self._disk.replace(place / "cert.pem", made.public_bytes(Encoding.PEM))
            self._disk.replace(place / "ca.pem", self._own.public_bytes(Encoding.PEM))
            self._write_list(self._revoked())
        digest = made.fingerprint(hashes.SHA256()).hex()
        return IssuedCertificate(name, place, made.serial_number, digest, made.not_valid_after_utc)

    def revoke(self, name: str) -> int:
        """Revoke all certificates that were issued for a name; return how many were not revoked before."""
        with hold_folder(self.folder, LOCK_S):
            lines = map(json.loads, (self.folder / "issued.jsonl").read_text().splitlines())
            serials = {int(line["serial"], 16) for line in lines if line["name"] == name}
            if not serials:
                raise NotFound(f"no certificate was issued for {name[:80]!r}", name=name[:80])
            revoked = self._revoked()
            new = serials - revoked.keys()
            self._write_list(revoked | dict.fromkeys(new, self._now))
        return len(new)

    @property
    def _ends(self) -> datetime:
        return self._own.not_valid_after_utc

    def _after(self, days: int) -> datetime:
        return self._now + timedelta(days=days)

    def _revoked(self) -> dict[int, datetime]:
        path = self.folder / "crl.pem"
        if not path.exists():
            return {}
        return {
            each.serial_number: each.revocation_date_utc for each in x509.load_pem_x509_crl(path.read_bytes())
        }

    def _write_list(self, revoked: dict[int, datetime]) -> None:
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._own.subject)
            .last_update(self._now - timedelta(minutes=5))
            .next_update(self._after(LIST_DAYS))
        )
        for serial, when in sorted(revoked.items()):
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(when)
            builder = builder.add_revoked_certificate(entry.build())
        raw = builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        places = [self.folder, *(each for each in self.folder.iterdir() if (each / "cert.pem").is_file())]
        for place in places:
            self._disk.replace(place / "crl.pem", raw)


def init_authority(folder: Path, name: str, now: datetime) -> CertificateAuthority:
    """Make an authority in a folder; Conflict if one is there already."""
    disk = Disk()
    disk.make_directories(folder, mode=0o700)
    with hold_folder(folder, LOCK_S):
        if (folder / "ca.key").exists():
            raise Conflict(f"there is an authority in {folder} already", advice="Issue certificates with it.")
        now = now.replace(microsecond=0)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(name, subject, key.public_key(), now, now + timedelta(days=AUTHORITY_DAYS))
        made = (
            builder.add_extension(x509.BasicConstraints(True, 0), critical=True)
            .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        disk.replace(folder / "issued.jsonl", b"")
        disk.replace(folder / "ca.pem", made.public_bytes(Encoding.PEM))
        disk.replace(folder / "ca.key", _key_pem(key), mode=0o600)
        authority = CertificateAuthority(folder, now)
        authority._write_list({})
    return authority


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks of other machines
        .not_valid_after(ends)
    )


def _usage(*names: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{each: each in names for each in _USAGES})


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
