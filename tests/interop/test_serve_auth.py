"""Identities and rights of a real server: tokens, certificates, patterns, revocation, limits."""

from __future__ import annotations

import datetime
import hashlib
import http.client
import json
import socket
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.interop.test_serve import frame_of
from tests.serving import Served, call, make, serving
from tests.waiting import LIMIT_S, until

from ropewalk.errors import Invalid
from ropewalk.server.run import tls_context
from ropewalk.server.settings import TlsPaths

EVENT = {"type": "t", "payload": {"n": 1}}


def token(folder, name: str, *rights: str) -> dict[str, str]:
    """Add a client; the header that it sends."""
    given = [part for right in rights for part in ("--right", right)]
    answer = call(folder, "auth", "add", name, *given, "--file", str(folder / "auth.json"), "--json")
    assert answer.returncode == 0, answer.stderr
    return {"Authorization": f"Bearer {json.loads(answer.stdout)['token']}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("auth")
    with serving(folder) as server:  # makes the repository
        server("POST", "/shiplog/prod/events", EVENT)
        server("POST", "/shiplog/secret/events", EVENT)
        assert server.stop() == 0
    admin = token(folder, "admin", "**:read,append,checkpoint,admin")
    ada = token(folder, "ada", "shiplog/prod:read")
    bob = token(folder, "bob", "messages/jobs.**:read,append")
    with serving(folder, "--auth", str(folder / "auth.json")) as server:
        yield server, admin, ada, bob


def test_requests_without_a_known_token_are_401(guarded):
    server, *_ = guarded
    for headers in ({}, {"Authorization": "Bearer rw_wrong"}, {"Authorization": "Basic YTpi"}):
        answer = server("GET", "/shiplog/prod/events", headers=headers)
        assert (answer.status, answer.code) == (401, "Unauthenticated")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert server("GET", "/metrics").status == 401
    assert server("GET", "/healthz").status == 200


def test_reader_of_one_log_sees_nothing_else(guarded):
    server, admin, ada, _ = guarded
    assert server("GET", "/shiplog/prod/events", headers=ada).status == 200
    refused = [
        server("GET", "/shiplog/secret/events", headers=ada),
        server("POST", "/shiplog/prod/events", EVENT, headers=ada),
        server("GET", "/shiplog/tail?ns=prod&ns=secret", headers=ada),
        server("GET", "/verify?log=shiplog/secret", headers=ada),
        server("GET", "/channels/server.audit", headers=ada),
        server("GET", "/messages?topic=jobs", headers=ada),
        server("PUT", "/consumers/g?log=shiplog/prod", {"ulid": "x"}, headers=ada),
        server("POST", "/gossip/com.x/messages", {"payload": 1}, headers=ada),
    ]
    assert {(answer.status, answer.code) for answer in refused} == {(403, "PolicyDenied")}
    assert server("GET", "/channels", headers=ada).json == {"channels": []}
    assert server("GET", "/channels", headers=admin).json == {"channels": ["server.audit"]}


def test_patterns_give_rights_below_a_topic(guarded):
    server, _, _, bob = guarded
    assert server("POST", "/messages?topic=jobs/new", EVENT, headers=bob).status == 201
    assert server("POST", "/messages?topic=other", EVENT, headers=bob).status == 403


def test_stream_shows_a_client_its_own_logs(guarded):
    server, admin, ada, _ = guarded
    connection = http.client.HTTPConnection(server.host, server.port, timeout=LIMIT_S)
    connection.request("GET", "/api/v1/events?topic=**", headers=ada)
    stream = connection.getresponse()
    assert frame_of(stream)["kind"] == "ack"
    for ns in ("secret", "prod"):
        assert server("POST", f"/shiplog/{ns}/events", EVENT, headers=admin).status == 201
    assert frame_of(stream)["topic"] == "shiplog/prod"
    connection.close()


def test_revoked_client_is_refused_and_its_stream_ends(guarded):
    server, *_ = guarded
    eve = token(server.folder, "eve", "**:read")
    assert server("GET", "/shiplog/prod/events", headers=eve).status == 200
    connection = http.client.HTTPConnection(server.host, server.port, timeout=LIMIT_S)
    connection.request("GET", "/api/v1/events", headers=eve)
    stream = connection.getresponse()
    assert frame_of(stream)["kind"] == "ack"
    done = call(server.folder, "auth", "revoke", "eve", "--file", str(server.folder / "auth.json"))
    assert done.returncode == 0
    assert server("GET", "/shiplog/prod/events", headers=eve).status == 401
    until(lambda: stream.readline() == b"")
    connection.close()


def test_broken_auth_file_lets_nobody_in(tmp_path):
    make(tmp_path)
    admin = token(tmp_path, "admin", "**:read")
    with serving(tmp_path, "--auth", str(tmp_path / "auth.json")) as server:
        assert server("GET", "/channels", headers=admin).status == 200
        kept = (tmp_path / "auth.json").read_bytes()
        (tmp_path / "auth.json").write_text('{"version":1,"clients":[')
        assert server("GET", "/channels", headers=admin).status == 401
        assert server("GET", "/readyz").status == 503
        (tmp_path / "auth.json").write_bytes(kept)
        assert server("GET", "/channels", headers=admin).status == 200


def test_administrative_acts_are_in_the_audit_channel(guarded):
    server, admin, *_ = guarded
    blocks = server("GET", "/channels/server.audit/blocks", headers=admin).json["blocks"]
    acts = [envelope["event_type"] for block in blocks for envelope in block["envelopes"]]
    assert acts[:3] == ["auth.add"] * 3
    assert json.dumps(blocks).count("rw_") == 0


def test_moving_a_group_as_admin_is_recorded(guarded):
    server, admin, *_ = guarded
    ulid = server("GET", "/shiplog/prod/events", headers=admin).json["events"][0]["ulid"]
    assert server("PUT", "/consumers/g?log=shiplog/prod", {"ulid": ulid}, headers=admin).status == 200
    assert server("DELETE", "/consumers/g?log=shiplog/prod", headers=admin).status == 200
    blocks = server("GET", "/channels/server.audit/blocks", headers=admin).json["blocks"]
    acts = [(each["event_type"], each["payload"]["actor"]) for block in blocks for each in block["envelopes"]]
    assert ("consumer.set", "admin") in acts and ("consumer.delete", "admin") in acts


def test_tokens_are_nowhere_but_in_the_answer(guarded):
    server, admin, ada, bob = guarded
    server("GET", "/shiplog/secret/events", headers=ada)
    server("GET", "/nowhere?token=none", headers={"Authorization": "Bearer rw_wrong"})
    metrics = server("GET", "/metrics", headers=admin).body.decode()
    files = "".join(
        path.read_bytes().decode("latin-1") for path in server.folder.rglob("*") if path.is_file()
    )
    for headers in (admin, ada, bob):
        secret = headers["Authorization"].removeprefix("Bearer ")
        assert secret not in metrics and secret not in server.errors() and secret not in files
        assert hashlib.sha256(secret.encode()).hexdigest() in files


def test_other_addresses_need_an_auth_file(tmp_path):
    make(tmp_path)
    done = call(tmp_path, "serve", "--host", "0.0.0.0", "--port", "0", "--json")
    assert done.returncode == 2 and "--auth" in json.loads(done.stdout)["detail"]


def test_rate_limit_is_per_client(tmp_path):
    make(tmp_path)
    ada, bob = (token(tmp_path, name, "**:read") for name in ("ada", "bob"))
    config = tmp_path / "config.json"
    config.write_text('{"version":1,"server":{"requests_per_second":0.01,"burst":3}}')
    with serving(tmp_path, "--auth", str(tmp_path / "auth.json"), "--config", str(config)) as server:
        answers = [server("GET", "/channels", headers=ada) for _ in range(4)]
        assert [answer.status for answer in answers] == [200, 200, 200, 429]
        assert answers[3].code == "RateLimited" and int(answers[3].headers["retry-after"]) > 0
        assert server("GET", "/channels", headers=bob).status == 200


def certificate(name: str, issuer=None, *, is_ca: bool = False, hours: int = 24):
    """A key and a certificate, signed by the issuer or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[1].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(hours=hours))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    )
    return key, built.sign(issuer[0] if issuer else key, hashes.SHA256())


def save(folder, name: str, pair) -> None:
    private = pair[0].private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / f"{name}.key").write_bytes(private)
    (folder / f"{name}.pem").write_bytes(pair[1].public_bytes(serialization.Encoding.PEM))


def test_client_certificate_is_an_identity(tmp_path):
    with serving(tmp_path) as server:
        server("POST", "/shiplog/prod/events", EVENT)
        assert server.stop() == 0
    authority = certificate("authority", is_ca=True)
    for name in ("server", "ada", "bob"):
        save(tmp_path, name, certificate(name, authority))
    save(tmp_path, "ca", authority)
    known = x509.load_pem_x509_certificate((tmp_path / "ada.pem").read_bytes())
    digest = known.fingerprint(hashes.SHA256()).hex()
    done = call(
        tmp_path, "auth", "add", "ada", "--certificate-sha256", digest, "--right", "shiplog/prod:read",
        "--file", str(tmp_path / "auth.json"),
    )  # fmt: skip
    assert done.returncode == 0
    tls = ("--tls-cert", "server.pem", "--tls-key", "server.key", "--client-ca", "ca.pem")
    with serving(tmp_path, "--auth", "auth.json", *tls) as server:
        assert server.facts["url"].startswith("https://")
        assert status(server, tmp_path, "ada") == 200
        assert status(server, tmp_path, "bob") == 401
        assert status(server, tmp_path, None) == 401


def test_expired_certificate_is_reported(tmp_path, caplog):
    save(tmp_path, "server", certificate("server", hours=-1))
    tls_context(TlsPaths(tmp_path / "server.pem", tmp_path / "server.key"))
    assert "server.pem expired on" in caplog.text


def test_certificate_of_another_form_is_refused(tmp_path):
    save(tmp_path, "server", certificate("server"))
    path = tmp_path / "server.pem"
    path.write_bytes(path.read_bytes().replace(b" CERTIFICATE", b" TRUSTED CERTIFICATE"))  # OpenSSL takes it
    with pytest.raises(Invalid, match="must be a PEM certificate"):
        tls_context(TlsPaths(path, tmp_path / "server.key"))


def test_certificate_is_renewed_without_restart(tmp_path):
    authority = certificate("authority", is_ca=True)
    save(tmp_path, "ca", authority)
    first, second = certificate("first", authority), certificate("second", authority)
    save(tmp_path, "server", first)

    def shown() -> str:
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        context.check_hostname = False
        plain = socket.create_connection((server.host, server.port), LIMIT_S)
        with context.wrap_socket(plain) as secure:
            found = secure.getpeercert(binary_form=True)
        assert found is not None
        return x509.load_der_x509_certificate(found).subject.rfc4514_string()

    with serving(tmp_path, "--tls-cert", "server.pem", "--tls-key", "server.key") as server:
        assert shown() == "CN=first"
        save(tmp_path, "next", second)
        (tmp_path / "next.pem").replace(tmp_path / "server.pem")
        until(lambda: "was not renewed" in server.errors())
        assert shown() == "CN=first"
        (tmp_path / "next.key").replace(tmp_path / "server.key")
        until(lambda: shown() == "CN=second")


def status(server: Served, folder, name: str | None) -> int:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.check_hostname = False
    if name is not None:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    connection = http.client.HTTPSConnection(server.host, server.port, timeout=LIMIT_S, context=context)
    connection.request("GET", "/api/v1/shiplog/prod/events")
    found = connection.getresponse().status
    connection.close()
    return found
