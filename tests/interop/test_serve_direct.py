"""Usual appends pass the framework by; every answer must be the one that the routes give."""

from __future__ import annotations

import http.client
import json
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest
from tests.serving import Served, call, make, serving
from tests.waiting import LIMIT_S, until

from ropewalk.server.http.direct import DirectAppends

EVENT = b'{"type":"t","payload":{"n":1}}'
JSON = {"Content-Type": "application/json"}
PROD, JOBS = "/api/v1/shiplog/prod/events", "/api/v1/messages?topic=jobs/a"
CASES: list[tuple[str, dict[str, str], bytes]] = [
    (PROD, JSON, EVENT),
    (PROD, JSON, b"[%s,7,%s]" % (EVENT, EVENT)),
    (PROD, JSON, b"[%s]" % EVENT),
    (PROD, JSON, b"[]"),
    (PROD, JSON, b"{"),
    (PROD, JSON, b"3"),
    (PROD, JSON, b'{"type":"t"}'),
    (PROD, JSON, b'{"type":"t","payload":{"n":0.12345678901234567890}}'),
    (PROD, {"Content-Type": "text/plain"}, EVENT),
    (PROD, {}, EVENT),
    (PROD, {**JSON, "Idempotency-Key": "not printable "}, EVENT),
    (PROD, {**JSON, "Host": "evil.example"}, EVENT),
    (PROD, {**JSON, "Authorization": "Bearer wrong"}, EVENT),
    (PROD, {**JSON, "Sec-Fetch-Site": "cross-site"}, EVENT),
    ("/api/v1/shiplog/dev/events", JSON, EVENT),
    ("/api/v1/shiplog/prod.lock/events", JSON, EVENT),
    (JOBS, JSON, EVENT),
    (JOBS, JSON, b'{"type":"t"}'),
    ("/api/v1/messages?topic=jobs/../a", JSON, EVENT),
    ("/api/v1/messages?topic=other", JSON, EVENT),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("direct")
    make(folder)
    rights = ("--right", "shiplog/prod*:append,read", "--right", "messages/jobs.**:append,read")
    done = call(folder, "auth", "add", "ada", *rights, "--file", str(folder / "auth.json"), "--json")
    assert done.returncode == 0, done.stderr
    with serving(folder, "--auth", "auth.json") as found:
        JSON["Authorization"] = f"Bearer {json.loads(done.stdout)['token']}"
        yield found
        JSON.pop("Authorization")


def ask(server: Served, path: str, headers: dict[str, str], body: bytes, *, chunked: bool) -> Any:
    """The answer, without what differs between two appends."""
    token = {"Authorization": JSON["Authorization"]}
    connection = http.client.HTTPConnection(server.host, server.port, timeout=LIMIT_S)
    connection.request(
        "POST", path, iter([body]) if chunked else body, token | headers, encode_chunked=chunked
    )
    answer = connection.getresponse()
    shown = {name.lower(): value for name, value in answer.getheaders()}
    found = json.loads(answer.read())
    connection.close()
    shown.pop("date")
    if answer.status < 300:
        shown.pop("content-length")
        for row in found.get("receipts", [found]):
            for name in ("ulid", "content_id", "commit"):
                if name in row:
                    row[name] = ""
    return answer.status, shown, found


@pytest.mark.parametrize("path,headers,body", CASES)
def test_direct_answers_are_those_of_the_routes(server: Served, path, headers, body):
    plain = ask(server, path, dict(headers), body, chunked=False)
    assert plain == ask(server, path, dict(headers), body, chunked=True)


def test_direct_keys_give_the_first_receipt(server: Served):
    keyed = {**JSON, "Idempotency-Key": "once"}

    def receipt(body: bytes, chunked: bool) -> Any:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=LIMIT_S)
        connection.request("POST", PROD, iter([body]) if chunked else body, keyed, encode_chunked=chunked)
        found = json.loads(connection.getresponse().read())
        connection.close()
        return found

    first = receipt(EVENT, False)
    assert first["ulid"] and receipt(EVENT, False) == receipt(EVENT, True) == first
    assert receipt(b'{"type":"u","payload":{}}', False)["status"] == 422


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {JSON['Authorization']}\r\n"
    return head.encode() + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def read_answers(raw: socket.socket, count: int) -> list[tuple[int, Any]]:
    found = []
    with raw.makefile("rb") as lines:
        for _ in range(count):
            status, size = int(lines.readline().split()[1]), 0
            while (line := lines.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    size = int(line.partition(b":")[2])
            found.append((status, json.loads(lines.read(size))))
    return found


def test_pipelined_appends_are_answered_in_order(server: Served):
    bodies = [b'{"type":"t%d","payload":{}}' % number for number in range(6)]
    get = f"GET {PROD}?limit=1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: {JSON['Authorization']}\r\n\r\n"
    sent = [post(PROD, bodies[0]), get.encode(), *(post(PROD, each) for each in bodies[1:]), post(PROD, b"{")]
    with socket.create_connection((server.host, server.port), LIMIT_S) as raw:
        raw.sendall(b"".join(sent))
        answers = read_answers(raw, len(sent))
    assert [status for status, _ in answers] == [201, 200, 201, 201, 201, 201, 201, 400]
    ulids = [found["ulid"] for status, found in answers if status == 201]
    assert ulids == sorted(ulids)


def test_append_of_a_client_that_left_is_kept(server: Served):
    with socket.create_connection((server.host, server.port), LIMIT_S) as raw:
        raw.sendall(post(PROD, b'{"type":"left","payload":{}}'))

    def kept() -> bool:
        page = server("GET", "/shiplog/prod/events?limit=512", headers=JSON).json
        return any(each["envelope"]["type"] == "left" for each in page["events"])

    until(kept)
    assert ask(server, PROD, JSON, EVENT, chunked=False)[0] == 201


def test_body_in_pieces_is_one_append(server: Served):
    whole = post(PROD, EVENT)
    with socket.create_connection((server.host, server.port), LIMIT_S) as raw:
        for at in range(0, len(whole), 40):
            raw.sendall(whole[at : at + 40])
        assert read_answers(raw, 1)[0][0] == 201


LONG = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nX: %s\r\n\r\n" % (
    PROD.encode(),
    b"x" * 36_000,
)
SOCKET = (
    b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@pytest.mark.parametrize(
    "name,behind,closes",
    [
        ("long", LONG, True),
        ("socket", SOCKET, False),
        ("tunnel", b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", True),
        ("garbage", b"garbage\r\n\r\n", True),
    ],
)
def test_append_is_once_whatever_is_behind(server: Served, name, behind, closes):
    body = b'{"type":"before.%s","payload":{}}' % name.encode()
    with socket.create_connection((server.host, server.port), LIMIT_S) as raw:
        raw.sendall(post(PROD, body) + behind + post(PROD, body) * closes)
        assert read_answers(raw, 1)[0][0] == 201
        assert not closes or raw.recv(1) == b""
    page = server("GET", "/shiplog/prod/events?limit=512", headers=JSON).json
    assert [each["envelope"]["type"] for each in page["events"]].count(f"before.{name}") == 1


def test_append_over_the_read_limit_is_answered(server: Served):
    whole = post(PROD, b'{"type":"t","payload":{"text":"%s"}}' % (b"x" * 80_000))
    with socket.create_connection((server.host, server.port), LIMIT_S) as raw:
        raw.sendall(whole[:66_000])
        time.sleep(0.05)  # so that the server reads this part first
        raw.sendall(whole[66_000:])
        assert read_answers(raw, 1)[0][0] == 201


def test_first_of_two_keys_counts(server: Served):
    def ulid(*keys: str, chunked: bool) -> str:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=LIMIT_S)
        connection.putrequest("POST", PROD)
        for name, value in [*JSON.items(), *(("Idempotency-Key", key) for key in keys)]:
            connection.putheader(name, value)
        size = ("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(len(EVENT)))
        connection.putheader(*size)
        connection.endheaders([EVENT] if chunked else EVENT, encode_chunked=chunked)
        found = json.loads(connection.getresponse().read())["ulid"]
        connection.close()
        return str(found)

    first = ulid("key-1", chunked=False)
    assert ulid("key-1", "key-2", chunked=False) == ulid("key-1", "key-2", chunked=True) == first


@pytest.mark.parametrize(
    "extra",
    [
        (b"transfer-encoding", b"chunked"),
        (b"expect", b"100-continue"),
        (b"origin", b"http://localhost"),
        (b"content-length", b"65537"),
        (b"content-length", b"100000"),
    ],
)
def test_unusual_appends_go_to_the_routes(extra):
    def connection(*headers: tuple[bytes, bytes], url: str = PROD, paused: bool = False) -> Any:
        parser = SimpleNamespace(
            get_method=lambda: b"POST", get_http_version=lambda: "1.1", should_keep_alive=lambda: True
        )
        flow = SimpleNamespace(write_paused=paused)
        return SimpleNamespace(parser=parser, url=url.encode(), flow=flow, headers=headers, scope={})

    appends = DirectAppends(SimpleNamespace(telemetry=None), None)  # type: ignore[arg-type]
    usual = b"content-length", b"30"
    assert appends.take(connection(usual)) is not None
    assert appends.take(connection(usual, extra)) is None
    assert appends.take(connection(usual, url=PROD + "?x=1")) is None
    assert appends.take(connection(usual, paused=True)) is None
