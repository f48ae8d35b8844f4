"""Channels of `ropewalk serve` over gRPC and QUIC: the identities and rights of the auth file hold there, too."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.serving import call, serving
from tests.unit.ledger.certifying import files_of
from tests.unit.ledger.making import observed

from ropewalk.disk.certificate_authority import init_authority
from ropewalk.errors import Denied, Unauthenticated
from ropewalk.ledger.remote.sync_client import connect_channel

CLIENTS: dict[str, list[str]] = {"server": ["127.0.0.1"], "ada": [], "eve": []}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", ["grpc", pytest.param("quic", marks=pytest.mark.slow)])
def test_serve_rights_hold_over_transports(tmp_path, transport):
    pki = init_authority(tmp_path / "pki", "ropewalk", datetime.now(UTC))
    digest = {name: pki.issue(name, hosts).sha256 for name, hosts in CLIENTS.items()}["ada"]
    made = {name: files_of(pki.folder / name) for name in CLIENTS}
    with serving(tmp_path) as server:
        assert server.stop() == 0
    assert call(tmp_path, "ledger", "create", "--channel", "audit").returncode == 0
    given = ("--right", "ledger/audit:read,append", "--file", "auth.json")
    added = call(tmp_path, "auth", "add", "ada", "--certificate-sha256", digest, *given)
    assert added.returncode == 0, added.stderr
    own = made["server"]
    tls = ("--tls-cert", str(own.certificate), "--tls-key", str(own.key), "--client-ca", str(own.roots))
    with serving(tmp_path, "--auth", "auth.json", *tls, f"--{transport}", "127.0.0.1:0") as server:
        url = server.facts[transport]
        with connect_channel(url, "audit", files=made["ada"]) as remote:
            assert remote.submit(observed(1).raw).height == 0
            with pytest.raises(Unauthenticated):
                connect_channel(url, "audit", files=made["eve"])
            revoked = call(tmp_path, "auth", "revoke", "ada", "--file", "auth.json")
            assert revoked.returncode == 0, revoked.stderr
            with pytest.raises(Denied):
                remote.submit(observed(2).raw)
        assert server.stop() == 0
