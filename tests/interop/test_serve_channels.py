"""Channels of `ropewalk serve` over gRPC and QUIC: the identities and rights of the auth file hold there, too."""

from __future__ import annotations

import http.client
import json
import ssl
from datetime import UTC, datetime

import pytest
from tests.serving import call, make, serving
from tests.unit.ledger.certifying import files_of
from tests.unit.ledger.making import observed
from tests.waiting import LIMIT_S, until

from ropewalk.disk.certificate_authority import init_authority
from ropewalk.errors import Denied, NegotiateAgain, Quarantined, Unauthenticated, Unavailable
from ropewalk.ledger.remote.sync_client import connect_channel

CLIENTS: dict[str, list[str]] = {"server": ["127.0.0.1"], "ada": [], "eve": []}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", ["grpc", pytest.param("quic", marks=pytest.mark.slow)])
def test_serve_rights_hold_over_transports(tmp_path, transport):
    pki = init_authority(tmp_path / "pki", "ropewalk", datetime.now(UTC))
    digest = {name: pki.issue(name, hosts).sha256 for name, hosts in CLIENTS.items()}["ada"]
    made = {name: files_of(pki.folder / name) for name in CLIENTS}
    make(tmp_path)
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


@pytest.mark.timeout(300)
def test_serve_shows_peers_in_quarantine(tmp_path):
    """--peer-trust asks peers for evidence; a revoked certificate is refused over HTTP, too."""
    pki = init_authority(tmp_path / "pki", "ropewalk", datetime.now(UTC))
    digests = {name: pki.issue(name, hosts).sha256 for name, hosts in CLIENTS.items()}
    own, ada = files_of(pki.folder / "server"), files_of(pki.folder / "ada")
    (tmp_path / "trust.json").write_text(
        '{"block_signers":[],"bundle_signers":[],"policy_hash":null,"roots":[],"version":1}'
    )
    assert call(tmp_path, "init", str(tmp_path / "log.git")).returncode == 0
    assert call(tmp_path, "ledger", "create", "--channel", "audit").returncode == 0
    added = call(
        tmp_path, "auth", "add", "ada", "--certificate-sha256", digests["ada"],
        "--right", "ledger/audit:read", "--file", "auth.json",
    )  # fmt: skip
    assert added.returncode == 0, added.stderr
    options = (
        "--auth", "auth.json", "--tls-cert", str(own.certificate), "--tls-key", str(own.key),
        "--client-ca", str(own.roots), "--crl", str(pki.folder / "crl.pem"), "--grpc", "127.0.0.1:0",
        "--peer-trust", "trust.json",
    )  # fmt: skip
    with serving(tmp_path, *options) as server:
        with pytest.raises(Quarantined, match="no report of hardware"):
            connect_channel(server.facts["grpc"], "audit", files=ada)
        context = ssl.create_default_context(cafile=str(ada.roots))
        context.load_cert_chain(ada.certificate, ada.key)
        secure = http.client.HTTPSConnection(server.host, server.port, timeout=LIMIT_S, context=context)

        def get(path: str) -> tuple[int, bytes]:
            secure.request("GET", path)
            answer = secure.getresponse()
            return answer.status, answer.read()

        status, body = get("/api/v1/peers")
        (held,) = json.loads(body)["quarantined"]
        assert status == 200 and held["channel"] == "audit" and "no report" in held["reason"]
        assert b"ropewalk_quarantined_peers 1.0" in get("/metrics")[1]
        pki.revoke("ada")
        until(lambda: get("/api/v1/peers")[0] == 401)  # on the same connection
        secure.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", ["grpc", pytest.param("quic", marks=pytest.mark.slow)])
def test_serve_counts_revoked_peers(tmp_path, transport):
    """A session of a revoked peer ends, metrics count the peer until it has a new certificate, others go on."""
    pki = init_authority(tmp_path / "pki", "ropewalk", datetime.now(UTC))
    for name, hosts in CLIENTS.items():
        pki.issue(name, hosts)
    own, ada, eve = (files_of(pki.folder / name) for name in CLIENTS)
    make(tmp_path)
    assert call(tmp_path, "ledger", "create", "--channel", "audit").returncode == 0
    options = (
        "--tls-cert", str(own.certificate), "--tls-key", str(own.key), "--client-ca", str(own.roots),
        "--crl", str(own.crl), f"--{transport}", "127.0.0.1:0",
    )  # fmt: skip
    with (
        serving(tmp_path, *options) as server,
        connect_channel(server.facts[transport], "audit", files=ada) as healthy,
        connect_channel(server.facts[transport], "audit", files=eve, retry_s=0) as revoked,
    ):
        context = ssl.create_default_context(cafile=str(ada.roots))
        context.load_cert_chain(ada.certificate, ada.key)
        secure = http.client.HTTPSConnection(server.host, server.port, timeout=LIMIT_S, context=context)

        def counted() -> list[bytes]:
            secure.request("GET", "/metrics")
            lines = secure.getresponse().read().splitlines()
            return [each for each in lines if each.startswith(b"ropewalk_quarantined_peers")]

        revoked.submit(observed(1).raw)
        healthy.head()
        assert counted() == [b"ropewalk_quarantined_peers 0.0"]
        pki.revoke("eve")
        with pytest.raises(NegotiateAgain, match="CN=eve was revoked"):
            revoked.head()
        with pytest.raises(Unauthenticated, match="revoked"):
            connect_channel(server.facts[transport], "audit", files=eve)
        assert counted() == [b"ropewalk_quarantined_peers 1.0"]
        assert healthy.submit(observed(2).raw).height == 1
        pki.issue("eve", [])
        assert revoked.head()["height"] == 1
        assert counted() == [b"ropewalk_quarantined_peers 0.0"]
        secure.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_serve_seals_answers_by_command(tmp_path):
    pki = init_authority(tmp_path / "pki", "ropewalk", datetime.now(UTC))
    for name, hosts in CLIENTS.items():
        pki.issue(name, hosts)
    own = files_of(pki.folder / "server")
    assert call(tmp_path, "init", str(tmp_path / "log.git")).returncode == 0
    assert call(tmp_path, "ledger", "create", "--channel", "audit").returncode == 0
    options = (
        "--tls-cert", str(own.certificate), "--tls-key", str(own.key), "--client-ca", str(own.roots),
        "--quic", "127.0.0.1:0", "--attest-command", "false",
    )  # fmt: skip
    with serving(tmp_path, *options) as server, pytest.raises(Unavailable, match="gave no evidence"):
        connect_channel(server.facts["quic"], "audit", files=files_of(pki.folder / "ada"))
    refused = call(tmp_path, "serve", "--port", "0", "--attest-command", "false")
    assert refused.returncode == 2 and b"--grpc or --quic" in refused.stderr
