"""RFC 3161 time stamps by a real authority: `openssl ts` with its own certificates, behind HTTP on loopback."""

from __future__ import annotations

import contextlib
import http.server
import re
import subprocess
import threading
from pathlib import Path

import pytest
from tests.unit.ledger.calling import make

from ropewalk.errors import Invalid, TooLarge, Unavailable, Unverified
from ropewalk.ledger.transparency.timestamps import STAMP_BYTES_MAX, check_timestamp, fetch_timestamp

CONF = """
[tsa]
default_tsa = one
[one]
serial = serial
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256, sha512
ess_cert_id_alg = sha256
[root]
basicConstraints = critical,CA:TRUE
[stamper]
extendedKeyUsage = critical,timeStamping
[other]
extendedKeyUsage = critical,serverAuth
"""


def run(folder, *words):
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    """A folder with a root, a stamper, a certificate for another purpose, and another root."""
    folder = tmp_path_factory.mktemp("tsa")
    (folder / "tsa.cnf").write_text(CONF)
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for name in ("root", "stranger"):
        more = (
            "-subj",
            f"/CN={name}",
            "-config",
            "/dev/null",
            "-addext",
            "basicConstraints=critical,CA:TRUE",
        )
        run(folder, "req", "-x509", *curve, "-keyout", f"{name}.key", "-out", f"{name}.pem", *more)
    for name in ("stamper", "other"):
        run(folder, "req", "-new", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr",
            "-subj", f"/CN={name}", "-config", "/dev/null")  # fmt: skip
        run(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "root.pem", "-CAkey", "root.key",
            "-CAcreateserial", "-out", f"{name}.pem", "-extfile", "tsa.cnf", "-extensions", name)  # fmt: skip
    return folder


def stamp(folder, query, name="stamper"):
    (folder / "query.tsq").write_bytes(query)
    run(folder, "ts", "-reply", "-config", "tsa.cnf", "-queryfile", "query.tsq", "-signer", f"{name}.pem",
        "-inkey", f"{name}.key", "-out", "answer.tsr")  # fmt: skip
    return (folder / "answer.tsr").read_bytes()


@pytest.fixture
def tsa(authority):
    """The address of the authority."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = stamp(authority, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "application/timestamp-reply")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with contextlib.closing(server.socket):
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_timestamp_of_head_verifies_offline(ropewalk, tsa, authority):
    make(ropewalk)
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", "one.json").code == 0
    assert ropewalk("ledger", "trust", "--channel", "audit", "-o", "trust.json").code == 0
    head = ropewalk("ledger", "head", "--channel", "audit", "--note", "--host", "log.example").out
    Path("head.note").write_text(head)
    root = str(authority / "root.pem")
    done = ropewalk("ledger", "timestamp", "head.note", "--tsa", tsa, "--tsa-root", root, "--json")
    assert (done.code, done.json["path"]) == (0, "head.note.tsr")
    check = ("verify", "head.note", "--trust", "trust.json", "--timestamp", "head.note.tsr", "--json")
    passed = ropewalk(*check, "--tsa-root", root)
    assert (passed.code, passed.json["steps"][-1]["status"]) == (0, "passed")
    assert passed.json["steps"][-1]["time"] == done.json["time"]
    stranger = ropewalk(*check, "--tsa-root", str(authority / "stranger.pem"))
    assert (stranger.code, stranger.json["steps"][-1]["status"]) == (5, "failed")
    assert ropewalk(*check).json["verdict"] == "untrusted"
    Path("head.note").write_text(head + "\u2014 w.example AAAAAAAA\n")
    other = ropewalk(*check, "--tsa-root", root)
    assert (other.code, other.json["steps"][-1]["detail"]) == (5, "the time stamp is of other bytes")
    assert ropewalk("verify", "--timestamp", "head.note.tsr").code == 2
    # the file is a plain answer of RFC 3161
    Path("head.note").write_text(head)
    run(Path.cwd(), "ts", "-verify", "-data", "head.note", "-in", "head.note.tsr", "-CAfile", root)


def test_timestamp_of_archive_verifies_offline(ropewalk, tsa, authority):
    for number in range(2):
        Path("body.json").write_text(f'{{"n":{number}}}')
        make(ropewalk)
        assert ropewalk("ledger", "append", "--channel", "audit", "--file", "one.json").code == 0
        assert ropewalk("ledger", "archive", "--channel", "audit", "--to", "cold").code == 0
    assert ropewalk("ledger", "trust", "--channel", "audit", "-o", "trust.json").code == 0
    newest = str(sorted(Path("cold").rglob("archive.manifest.json"))[-1])
    root = str(authority / "root.pem")
    done = ropewalk("ledger", "timestamp", newest, "--tsa", tsa, "--tsa-root", root, "-o", "cold.tsr")
    assert done.code == 0, done
    more = ("--trust", "trust.json", "--timestamp", "cold.tsr", "--tsa-root", root, "--json")
    found = ropewalk("verify", "cold", *more)
    assert (found.code, found.json["steps"][-1]["status"]) == (0, "passed"), found
    assert newest in found.json["steps"][-1]["detail"]


def query_of(message):
    import rfc3161_client as library

    builder = library.TimestampRequestBuilder().data(message).hash_algorithm(library.HashAlgorithm.SHA256)
    return builder.build().as_bytes()


def test_timestamp_by_other_purpose_is_refused(authority):
    root = [(authority / "root.pem").read_text()]
    good = stamp(authority, query_of(b"message"))
    assert check_timestamp(good, b"message", root).year >= 2024
    with pytest.raises(Unverified, match="other bytes"):
        check_timestamp(good, b"another", root)
    with pytest.raises(Unverified, match="Nonce"):
        check_timestamp(good, b"message", root, nonce=1)
    with pytest.raises(Unverified):
        check_timestamp(good, b"message", [(authority / "stranger.pem").read_text()])
    with pytest.raises(subprocess.CalledProcessError):  # openssl itself refuses such a certificate
        stamp(authority, query_of(b"message"), "other")
    signed = re.search(rb"\x18\x0f[0-9]{14}Z", good)  # the time that the authority has signed
    assert signed is not None
    for at in range(signed.start() + 2, signed.end() - 1):
        bent = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        with pytest.raises((Unverified, Invalid)):
            check_timestamp(bent, b"message", root)


def test_timestamp_answers_that_are_none(authority):
    from ropewalk.net.http_post import HttpAnswer

    root = [(authority / "root.pem").read_text()]
    with pytest.raises(TooLarge):
        check_timestamp(bytes(STAMP_BYTES_MAX + 1), b"m", root)
    with pytest.raises(Invalid):
        check_timestamp(b"", b"m", root)
    old = stamp(authority, query_of(b"message"))
    for answer, error in (
        (HttpAnswer(500, "text/html", b""), Unavailable),
        (HttpAnswer(200, "text/html", old), Unavailable),
        (HttpAnswer(200, "application/timestamp-reply", old), Unverified),  # another nonce: replayed
    ):
        with pytest.raises(error):
            fetch_timestamp("http://tsa", b"message", root, send=lambda *_, answer=answer: answer)
