"""Bad input and bad clients: every endpoint fuzzed, slow and silent sockets, overload, a crash."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import signal
import socket
from typing import Any
from urllib.parse import quote

import pytest
from tests.serving import Served, call, serving
from tests.waiting import LIMIT_S, Crew, until

from ropewalk.gitlog.repository.opening import open_repository

EVENT = {"type": "t", "payload": {"n": 1}}
TEXTS = (
    "demo", "x", "", "a/b", "..", "%00", "\x7f", "é", "A" * 300, "'; --", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "0", "-1",
    "9" * 40, "true", "refs/heads/main", "shiplog/demo", "messages/demo", "ledger/demo", "gossip/demo", "f" * 64,
)  # fmt: skip
BODIES = (
    b"", b"{}", b"[]", b"null", b"3", b'"x"', b"{", b"\xff\xfe", b"[" * 5_000, b'{"a":1,"a":2}', b"[{},{}]",
    json.dumps(EVENT).encode(), json.dumps([EVENT, 7, None]).encode(), b'{"ulid":"x"}', b'{"payload":{"/":1}}',
    b'{"type":"t","payload":{"n":1e400}}', b'{"type":"t","payload":{"n":123456789012345678901}}',
    b'{"type":"\\ud800","payload":{}}', b"\x80", b"\xa1\x61a\x01", b"\x9f\xff", b'{"payload":1,"key":"../node"}',
)  # fmt: skip
KINDS = ("application/json", "application/cbor", "text/plain", "application/json; charset=utf-16", "")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("abuse")) as found:
        yield found


def requests_of(document: dict[str, Any], chance: random.Random, count: int) -> Any:
    """Random requests to every operation: parameters by their places, bodies where there is one."""
    operations = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if isinstance(operation, dict) and operation["operationId"] != "stream_events"
    ]
    for number in range(count):
        path, method, operation = operations[number % len(operations)]
        query = []
        headers = {}
        for parameter in operation.get("parameters", ()):
            value = chance.choice(TEXTS)
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", quote(value, safe="") or "-")
            elif parameter["in"] == "query" and chance.random() < 0.8:
                query.append(f"{parameter['name']}={quote(value)}")
            elif parameter["in"] == "header" and chance.random() < 0.3:
                headers[parameter["name"]] = quote(value) or "k"
        body = chance.choice(BODIES) if "requestBody" in operation else None
        if body is not None:
            headers["Content-Type"] = chance.choice(KINDS)
        yield method.upper(), path + ("?" + "&".join(query) if query else ""), body, headers


@pytest.mark.parametrize("seed", range(3))
def test_no_request_makes_the_server_fail(server: Served, seed):
    document = server("GET", "/openapi.json").json
    connection = http.client.HTTPConnection(server.host, server.port, timeout=LIMIT_S)
    for method, target, body, headers in requests_of(document, random.Random(seed), 400):
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status < 500, (method, target, body, headers, content)
        if answer.status >= 400:
            assert answer.getheader("content-type") == "application/problem+json", (method, target, content)
            assert json.loads(content)["code"], (method, target)
    connection.close()
    assert server("GET", "/healthz").status == 200 and "Traceback" not in server.errors()


def test_slow_and_silent_clients_are_dropped(tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"version":1,"server":{"request_seconds":1}}')
    head = b"POST /api/v1/shiplog/x/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    beginnings = [b"", b"GET", b"GET / HTTP/1.1\r\nHost: loc", head, head + b"Content-Length: 99\r\n\r\n{"]
    with serving(tmp_path, "--config", str(config)) as server:
        held = []
        for number in range(200):
            link = socket.create_connection((server.host, server.port), timeout=LIMIT_S)
            link.sendall(beginnings[number % len(beginnings)])
            held.append(link)
        # A healthy client is not held up; on a busy machine it may itself be too slow for one second.
        until(lambda: server("POST", "/shiplog/x/events", EVENT).status == 201)
        for link in held:
            answer = b""
            with contextlib.suppress(ConnectionError):
                while chunk := link.recv(65536):
                    answer += chunk
            assert not answer or answer.startswith(b"HTTP/1.1 408 ")
            link.close()
        until(
            lambda: (
                (page := server("GET", "/shiplog/x/events")).status == 200 and len(page.json["events"]) == 1
            )
        )


def test_full_queue_answers_503_and_loses_nothing(tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"version":1,"server":{"append_waiting_max":4}}')
    with serving(tmp_path, "--config", str(config)) as server:
        with Crew(32) as crew:
            answers = crew.map(
                lambda n: server("POST", "/shiplog/x/events", {**EVENT, "payload": {"n": n}}), range(128)
            )
        taken = [answer.json["ulid"] for answer in answers if answer.status == 201]
        refused = [answer for answer in answers if answer.status != 201]
        assert taken and {(each.status, each.headers["retry-after"]) for each in refused} <= {(503, "1")}
        assert server("POST", "/shiplog/x/events", [EVENT] * 5).status == 503  # it could never fit
        assert server.stop() == 0
    with open_repository(tmp_path / "log.git") as log:
        assert sorted(event.ulid for event in log.events("x")) == sorted(taken)


def test_pages_end_at_their_byte_budget(tmp_path):
    """A page of large events ends early, and `next_since` continues without a gap."""
    with serving(tmp_path) as server:
        for number in range(12):
            document = {"type": "t", "payload": {"n": number, "text": "x" * 1_000_000}}
            assert server("POST", "/shiplog/x/events", document).status == 201
        seen: list[int] = []
        since, sizes = "", []
        while (page := server("GET", f"/shiplog/x/events?limit=512{since}")).json["events"]:
            sizes.append(len(page.body))
            seen += [each["envelope"]["payload"]["n"] for each in page.json["events"]]
            since = f"&since={page.json['next_since']}"
        assert seen == list(range(12)) and len(sizes) == 2 and max(sizes) < 10 << 20
        assert server("GET", "/shiplog/tail?ns=x&limit_per_ns=12").status == 200


def test_one_key_appends_an_envelope_once(tmp_path):
    """Concurrent requests with one Idempotency-Key: each waits for the first, and all get its receipt."""
    with serving(tmp_path) as server:
        call(tmp_path, "key", "new", "ada")
        made = call(
            tmp_path, "ledger", "envelope", "--channel", "audit", "--domain", "ops", "--class", "Observation",
            "--type", "t", "--payload", "-", "--key", "ada", stdin=b"{}",
        )  # fmt: skip
        headers = {"Idempotency-Key": "one", "Content-Type": "application/json"}
        with Crew(8) as crew:
            answers = crew.map(
                lambda _: server("POST", "/channels/audit/envelopes", body=made.stdout, headers=headers),
                range(8),
            )
        assert {each.status for each in answers} == {201} and len({each.body for each in answers}) == 1


@pytest.mark.slow
def test_keyed_appends_survive_kill_9(tmp_path):
    """Killed at any moment, a server that starts again appends a retried request once, never twice."""
    answered: dict[int, str] = {}
    for turn in range(3):
        with serving(tmp_path) as server:

            def append(n: int, server: Served = server) -> None:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    headers = {"Idempotency-Key": f"k{n}"}
                    answer = server(
                        "POST", "/shiplog/x/events", {"type": "t", "payload": {"n": n}}, headers=headers
                    )
                    assert answer.status == 201
                    assert answered.setdefault(n, answer.json["ulid"]) == answer.json["ulid"]

            with Crew(8) as crew:
                pending = [crew.submit(append, n) for n in range(60)]
                if turn < 2:
                    until(lambda enough=10 * (turn + 1): len(answered) > enough)  # type: ignore[misc]
                    server.process.send_signal(signal.SIGKILL)
                for each in pending:
                    each.result(LIMIT_S)
    assert sorted(answered) == list(range(60))
    with open_repository(tmp_path / "log.git") as log:
        found = [event.payload["n"] for event in log.events("x")]
    assert sorted(found) == list(range(60))


def exchange(server: Served, sent: bytes) -> bytes:
    """Send bytes and return all that comes until the server closes the connection."""
    found = b""
    with (
        socket.create_connection((server.host, server.port), LIMIT_S) as raw,
        contextlib.suppress(ConnectionError),
    ):
        raw.sendall(sent)
        while data := raw.recv(1 << 16):
            found += data
    return found


HEAD = b"POST /api/v1/shiplog/odd/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "asked",
    [
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n",
        b"Connection: upgrade\r\nUpgrade: websocket\r\n",
    ],
)
def test_append_that_asks_for_an_upgrade_is_served(server: Served, asked):
    body = json.dumps(EVENT).encode()
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    found = exchange(server, HEAD + asked + b"Content-Length: %d\r\n\r\n" % len(body) + body + last)
    assert [each[:3] for each in found.split(b"HTTP/1.1 ")[1:]] == [b"201", b"200"]


@pytest.mark.parametrize("flood", [b"2;" + b"x" * (1 << 20), b"2\r\n{}\r\n0\r\n" + b"A: b\r\n" * 150_000])
def test_framing_of_chunks_is_bounded(server: Served, flood):
    found = exchange(server, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + flood)
    assert found == b"" or found.startswith(b"HTTP/1.1 431 ")  # the answer may be lost where we still send
    small = b"".join(b"1\r\n%c\r\n" % each for each in b'{"type":"t","payload":{}}')
    end = b"0\r\nTrailer: kept out\r\n\r\n"
    close = b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert exchange(server, HEAD + close + small + end).startswith(b"HTTP/1.1 201 ")
