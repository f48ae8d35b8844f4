"""`ropewalk pki`: certificates that work, and that stop working when they are revoked."""

from __future__ import annotations

import json
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from ropewalk.cli import pki
from ropewalk.cli.main import run
from ropewalk.disk.certificate_authority import DAYS, init_authority
from ropewalk.errors import Conflict, Invalid, InvalidName, NotFound, Unauthenticated
from ropewalk.net.revocation import RevocationList
from ropewalk.net.tls import TlsFiles, certificate_from, server_tls

NOW = datetime.now(UTC)


def test_pki_issues_and_revokes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert pki.DAYS == DAYS
    for line in ("pki init", "pki issue server --host localhost", "pki issue ada --days 7 --json"):
        assert run(line.split()) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    folder = tmp_path / "pki" / "ada"
    files = TlsFiles(folder / "cert.pem", folder / "key.pem", folder / "ca.pem", folder / "crl.pem")
    server_tls(files, "x")
    shown = certificate_from(ssl.PEM_cert_to_DER_cert(files.certificate.read_text()))
    assert (shown.subject, shown.sha256) == ("CN=ada", facts["sha256"])
    assert (folder / "key.pem").stat().st_mode & 0o077 == 0
    assert (tmp_path / "pki" / "ca.key").stat().st_mode & 0o077 == 0
    assert files.crl is not None
    lists = RevocationList(files.crl, files.roots)
    lists.check(shown)
    assert run(["pki", "revoke", "ada"]) == 0
    with pytest.raises(Unauthenticated, match="CN=ada was revoked"):
        lists.check(shown)
    assert run(["pki", "issue", "ada"]) == 0  # a new certificate is not the old one
    lists.check(certificate_from(ssl.PEM_cert_to_DER_cert(files.certificate.read_text())))
    with pytest.raises(Unauthenticated):
        lists.check(shown)


def test_pki_refuses_what_makes_no_sense(tmp_path):
    made = init_authority(tmp_path, "ca", NOW)
    with pytest.raises(Conflict):
        init_authority(tmp_path, "ca", NOW)
    with pytest.raises(InvalidName):
        made.issue("../x", [])
    with pytest.raises(Invalid):
        made.issue("x", [], 366)
    with pytest.raises(NotFound):
        made.revoke("nobody")


def test_crl_that_is_stale_or_foreign_refuses_all(tmp_path):
    made = init_authority(tmp_path / "a", "ca", NOW)
    other = init_authority(tmp_path / "b", "ca", NOW)
    late = RevocationList(
        made.folder / "crl.pem", made.folder / "ca.pem", now=lambda: NOW + timedelta(days=60)
    )
    with pytest.raises(Unauthenticated, match="expired"):
        late.check(None)
    with pytest.raises(Invalid, match="no authority"):
        RevocationList(other.folder / "crl.pem", made.folder / "ca.pem")
    held = RevocationList(made.folder / "crl.pem", made.folder / "ca.pem")
    whole = (made.folder / "crl.pem").read_bytes()
    for torn in (b"", whole[: len(whole) // 2]):
        (made.folder / "crl.pem").write_bytes(torn)
        with pytest.raises(Unauthenticated, match="revocation list"):  # as sessions end that ask for it
            held.check(None)
    (made.folder / "crl.pem").write_bytes(whole)
    held.check(None)
    (made.folder / "crl.pem").unlink()
    with pytest.raises(Unauthenticated, match="cannot be read"):
        held.check(None)


def test_certificate_never_outlives_its_authority(tmp_path):
    made = init_authority(tmp_path, "ca", NOW - timedelta(days=360))
    found = made.issue("ada", [], 30)
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    assert found.expires <= authority.not_valid_after_utc
