"""Channels of `ropewalk serve` over gRPC: the identities and rights of the auth file hold there, too."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from tests.serving import call, serving
from tests.unit.ledger.certifying import Authority
from tests.unit.ledger.making import observed

from ropewalk.errors import Denied, Unauthenticated
from ropewalk.ledger.remote.sync_client import connect_channel


@pytest.mark.timeout(300)
def test_serve_rights_hold_over_grpc(tmp_path):
    authority = Authority(tmp_path)
    made = {name: authority.files(name) for name in ("server", "ada", "eve")}
    with serving(tmp_path) as server:
        assert server.stop() == 0
    assert call(tmp_path, "ledger", "create", "--channel", "audit").returncode == 0
    shown = x509.load_pem_x509_certificate(made["ada"].certificate.read_bytes())
    digest = shown.fingerprint(hashes.SHA256()).hex()
    given = ("--right", "ledger/audit:read,append", "--file", "auth.json")
    added = call(tmp_path, "auth", "add", "ada", "--certificate-sha256", digest, *given)
    assert added.returncode == 0, added.stderr
    own = made["server"]
    tls = ("--tls-cert", str(own.certificate), "--tls-key", str(own.key), "--client-ca", str(authority.roots))
    with serving(tmp_path, "--auth", "auth.json", *tls, "--grpc", "127.0.0.1:0") as server:
        url = server.facts["grpc"]
        with connect_channel(url, "audit", files=made["ada"]) as remote:
            assert remote.submit(observed(1).raw).height == 0
            with pytest.raises(Unauthenticated):
                connect_channel(url, "audit", files=made["eve"])
            revoked = call(tmp_path, "auth", "revoke", "ada", "--file", "auth.json")
            assert revoked.returncode == 0, revoked.stderr
            with pytest.raises(Denied):
                remote.submit(observed(2).raw)
        assert server.stop() == 0
