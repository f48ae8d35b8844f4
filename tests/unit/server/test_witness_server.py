"""The HTTP side of a witness: the statuses of C2SP tlog-witness, durable state, limits."""

from __future__ import annotations

import json
import socket
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.unit.ledger.certifying import Authority
from tests.unit.ledger.heading import LOG, NOW_S, ORIGIN, SmallLog
from tests.unit.ledger.witnesses import live_witness, post
from tests.waiting import LIMIT_S, until

from ropewalk.kernel.digest import sha256
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.note.key import Verifier
from ropewalk.kernel.note.note import SignedHead, Signer, open_head, sign_head
from ropewalk.ledger.transparency.witness import REQUEST_BYTES_MAX, WitnessRequest
from ropewalk.ledger.transparency.witness_folder import open_witness
from ropewalk.net.tls import certificate_from

SMALL, OTHER = SmallLog(9), SmallLog(9, turn=2)


@pytest.fixture
def live(tmp_path):
    with live_witness(tmp_path / "watch", "w.example", now_s=NOW_S) as found:
        found.witness.add(LOG.verifier)
        yield found


def ask(live, size, old=0, log=SMALL, **more):
    path = log.tree.consistency(old, size) if 0 < old < size else ()
    return post(live.url, WitnessRequest(log.head(size, **more), old, path).to_bytes())


def test_witness_cosigns_heads_that_grow(live):
    for old, size in ((0, 3), (3, 3), (3, 9)):
        status, media, line = ask(live, size, old)
        assert (status, media) == (200, "text/plain; charset=utf-8")
        head, note = open_head(SMALL.head(size) + line, LOG.verifier, [live.vkey])
        signed = note.signed_by(live.vkey)
        assert signed is not None and (head.size, signed.time_s) == (size, NOW_S)
        assert line.count(b"\n") == 1 and line.startswith("\u2014 w.example ".encode())


def test_witness_unknown_log_is_404(live):
    stranger = Signer("other.example/x", SigningKey.generate("ed25519", bytes(32)))
    assert ask(live, 3, signer=stranger, origin="other.example/x")[0] == 404


def test_witness_head_without_log_signature_is_403(live):
    stranger = Signer(ORIGIN, SigningKey.generate("ed25519", bytes(32)))
    assert ask(live, 3, signer=stranger)[0] == 403
    head = SMALL.head(3)
    forged = sign_head(SignedHead(ORIGIN, 4, SMALL.tree.root(4)), LOG).rpartition(b"\n\n")[2]
    body = WitnessRequest(head.rpartition(b"\n\n")[0] + b"\n\n" + forged, 0).to_bytes()
    assert post(live.url, body)[0] == 403
    assert live.witness.log(ORIGIN).note is None


@pytest.mark.parametrize("old", [0, 2, 9])
def test_witness_other_old_size_is_409_with_size(live, old):
    assert ask(live, 3)[0] == 200
    assert ask(live, 9, old) == (409, "text/x.tlog.size", b"3\n")


def test_witness_size_is_asked_before_the_fork(live):
    """C2SP answers a wrong old size first; the fork is kept as evidence all the same."""
    assert ask(live, 5)[0] == 200
    assert ask(live, 5, 3, log=OTHER) == (409, "text/x.tlog.size", b"5\n")
    assert len(live.witness.forks()) == 1


def test_witness_fork_is_422_and_kept(live):
    assert ask(live, 5)[0] == 200
    assert ask(live, 5, 5, log=OTHER)[0] == 422
    assert ask(live, 9, 5, log=OTHER)[0] == 422
    assert len(live.witness.forks()) == 2
    assert ask(live, 9, 5)[0] == 200, "the true log goes on"


def test_witness_proof_with_old_size_zero_is_422(live):
    path = SMALL.tree.consistency(2, 3)
    assert post(live.url, WitnessRequest(SMALL.head(3), 0, path).to_bytes())[0] == 422
    empty = sign_head(SignedHead(ORIGIN, 0, bytes(32)), LOG)
    assert post(live.url, WitnessRequest(empty, 0).to_bytes())[0] == 422


@pytest.mark.parametrize(
    "body",
    [b"", b"old 1\n\n", b"old 01\n\n" + SMALL.head(3), b"old 4\n\n" + SMALL.head(3), SMALL.head(3),
     b"old 0\n" + b"AAAA\n" * 3 + b"\n" + SMALL.head(3), b"old 3\n" + b"A" * 43 + b"=\n" * 64 + b"\n" + SMALL.head(9)],
)  # fmt: skip
def test_witness_malformed_request_is_400(live, body):
    assert post(live.url, body)[0] == 400


def test_witness_limits_size_method_and_path(live):
    assert post(live.url, b"x" * (REQUEST_BYTES_MAX + 1))[0] == 413
    assert post(live.url, b"", method="PUT")[0] == 405
    assert post(live.url, b"", "/elsewhere", "GET")[0] == 404


def test_witness_limits_the_rate_of_an_address(tmp_path):
    with live_witness(tmp_path / "slow", "w.example", rate=0.001) as live:
        live.witness.add(LOG.verifier)
        assert [ask(live, 3, old)[0] for old in (0, 3)] == [200, 429]
        assert post(live.url, b"", "/healthz", "GET")[0] == 200


def test_witness_signs_nothing_it_cannot_store(live, tmp_path, monkeypatch):
    def fail(_name, _raw):
        raise open_failed

    from ropewalk.errors import Unavailable

    open_failed = Unavailable("no space left")
    with monkeypatch.context() as patch:
        patch.setattr(live.witness.state, "replace", fail)
        status, _, body = ask(live, 3)
        assert (status, "\u2014".encode() in body) == (503, False)
    assert [log.note for log in open_witness(tmp_path / "watch").logs()] == [None]
    assert ask(live, 3)[0] == 200
    assert [log.head.size for log in open_witness(tmp_path / "watch").logs()] == [3]


def test_witness_serves_newest_checkpoint(live):
    path = f"/{sha256(ORIGIN.encode()).hex()}/checkpoint"
    assert post(live.url, b"", path, "GET")[0] == 404
    line = ask(live, 3)[2]
    assert post(live.url, b"", path, "GET") == (200, "text/plain; charset=utf-8", SMALL.head(3) + line)


def test_witness_counts_requests(live):
    ask(live, 3)
    ask(live, 9, 1)
    text = post(live.url, b"", "/metrics", "GET")[2].decode()
    assert 'ropewalk_witness_requests_total{status="200"} 1.0' in text
    assert 'ropewalk_witness_requests_total{status="409"} 1.0' in text


def test_witness_answers_the_vectors(tmp_path):
    vectors = json.loads((Path(__file__).parents[3] / "vectors/witness/add_checkpoint.json").read_text())
    signer = Signer.from_secret_text(vectors["witness_secret"])
    with live_witness(tmp_path / "w", signer.name, now_s=vectors["time_s"], secret=signer.key) as live:
        assert live.vkey.to_text() == vectors["witness"]
        live.witness.add(Verifier.from_text(vectors["log"]))
        for case in vectors["cases"]:
            status, media, body = post(live.url, case["input"]["body"].encode())
            expected = case["expect"]
            assert status == expected["status"], (case["name"], body)
            assert body.decode() == expected.get("body", body.decode()), case["name"]
            assert media == expected.get("content_type", media), case["name"]


def test_witness_certificate_is_renewed_without_restart(tmp_path, caplog):
    """A pair that does not fit leaves the old certificate in use; `witness serve` runs the same server."""
    authority = Authority(tmp_path)
    first, second = authority.files("first"), authority.files("second")
    own = (tmp_path / "own.crt", tmp_path / "own.key")
    for path, found in zip(own, (first.certificate, first.key), strict=True):
        path.write_bytes(found.read_bytes())

    def shown(url: str) -> str:
        context = ssl.create_default_context(cafile=str(authority.roots))
        plain = socket.create_connection(("127.0.0.1", urlsplit(url).port), LIMIT_S)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            return certificate_from(secure.getpeercert(binary_form=True) or b"").subject

    with live_witness(tmp_path / "watch", "w.example", tls=own) as live:
        assert shown(live.url) == "CN=first"
        second.certificate.replace(own[0])
        until(lambda: "was not renewed" in caplog.text)
        assert shown(live.url) == "CN=first"
        second.key.replace(own[1])
        until(lambda: shown(live.url) == "CN=second")
