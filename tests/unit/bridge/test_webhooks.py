"""Webhooks against a real HTTP server on loopback: signatures, retries, dead letters, order, forbidden addresses."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.waiting import LIMIT_S

from ropewalk.bridge.webhooks.forms import RETRY_S, check_signature
from ropewalk.bridge.webhooks.hooks import Webhook
from ropewalk.bridge.webhooks.post import post
from ropewalk.bridge.webhooks.run import Delivered, WebhookRunner
from ropewalk.errors import NotFound, Usage

SECRET = b"0123456789abcdef"
HOOK = "00112233445566aa"


class Endpoint:
    """A server that keeps what it got and answers as told; `answers` are statuses, the last one goes on."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers = [200]
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                endpoint.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                status = endpoint.answers.pop(0) if len(endpoint.answers) > 1 else endpoint.answers[0]
                self.send_response(status)
                self.send_header("Location", endpoint.url + "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_arguments: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"

    def deliveries(self) -> list[str]:
        return [headers["x-gatos-delivery"] for headers, _ in self.got]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join(10)
    made.server.server_close()


@pytest.fixture
def runner(log, clock) -> WebhookRunner:
    return WebhookRunner(log, now_ms=log.now_ms, chance=lambda: 0.5)


def add(runner: WebhookRunner, endpoint: Endpoint, **options: object) -> Webhook:
    hook = Webhook(HOOK, endpoint.url, "shiplog/prod", SECRET.hex(), allow_private=True, **options)  # type: ignore[arg-type]
    return runner.hooks.add(hook, "")


def append(log, *numbers: int) -> list[str]:
    return [log.append("prod", {"type": "t", "payload": {"n": n}}).ulid for n in numbers]


def test_unreadable_hook_stops_no_other(log, runner, endpoint):
    add(runner, endpoint)
    damaged = runner.hooks.folder("0" * 16)
    damaged.mkdir()
    (damaged / "hook.json").write_text("{")
    ulids = append(log, 1)
    assert runner.once() == Delivered(delivered=1)
    assert endpoint.deliveries() == ulids


def test_new_events_are_delivered_signed(log, runner, endpoint):
    add(runner, endpoint)
    ulids = append(log, 1, 2)
    assert runner.once() == Delivered(delivered=2)
    assert runner.once() == Delivered()
    assert endpoint.deliveries() == ulids
    headers, body = endpoint.got[0]
    now = log.now_ms() // 1000
    assert check_signature(SECRET, headers, body, now)
    assert not check_signature(SECRET, headers, body + b" ", now)
    assert not check_signature(b"another secret here", headers, body, now)
    assert not check_signature(SECRET, headers, body, now + 301)


def test_private_members_are_not_delivered(log, runner, endpoint, clock):
    add(runner, endpoint)
    log.append("prod", {"type": "t", "payload": {"email": "ada@example.test", "name": "Ada"}})
    policy = log.store.place.home / "policy.json"
    policy.write_text("{")
    assert (
        runner.once() == Delivered(failed=1) and endpoint.got == []
    )  # it may be mended before the next attempt
    policy.write_text('{"privacy":{"rules":[{"select":"email","action":"redact"}]}}')
    clock.ms += round(RETRY_S[0] * 1000) + 1
    assert runner.once() == Delivered(delivered=1)
    ((_, body),) = endpoint.got
    assert b"Ada" in body and b"ada@" not in body


def test_failures_are_retried_then_dead_then_replayed(log, runner, endpoint, clock):
    add(runner, endpoint)
    (ulid,) = append(log, 1)
    endpoint.answers = [500]
    assert runner.once() == Delivered(failed=1)
    for pause in RETRY_S:
        assert runner.once() == Delivered()  # not due yet
        clock.ms += round(pause * 1000) + 1
        runner.once()
    assert [each["attempts"] for each in runner.hooks.dead(HOOK)] == [5]
    assert len(endpoint.got) == 5 and set(endpoint.deliveries()) == {ulid}
    endpoint.answers = [204]
    assert runner.hooks.raise_dead(HOOK, []) == [ulid]
    assert runner.once() == Delivered(delivered=1)
    assert runner.hooks.dead(HOOK) == []


def test_ordered_hook_holds_later_events_back(log, runner, endpoint, clock):
    add(runner, endpoint, ordered=True)
    ulids = append(log, 1, 2, 3)
    endpoint.answers = [503, 200]
    runner.once()
    assert endpoint.deliveries() == ulids[:1]
    clock.ms += 2000
    runner.once()
    assert endpoint.deliveries() == [ulids[0], *ulids]


def test_unordered_hook_goes_on(log, runner, endpoint):
    add(runner, endpoint)
    ulids = append(log, 1, 2, 3)
    endpoint.answers = [503, 200]
    assert runner.once() == Delivered(delivered=2, failed=1)
    assert endpoint.deliveries() == ulids


def test_restart_delivers_from_the_saved_state(log, runner, endpoint):
    add(runner, endpoint)
    append(log, 1)
    runner.once()
    append(log, 2)
    again = WebhookRunner(log, now_ms=log.now_ms, chance=lambda: 0.5)
    assert again.once() == Delivered(delivered=1)


def test_rotation_signs_with_both_secrets(log, runner, endpoint):
    add(runner, endpoint)
    runner.hooks.rotate(HOOK, b"another secret here")
    append(log, 1)
    runner.once()
    headers, body = endpoint.got[0]
    now = log.now_ms() // 1000
    assert check_signature(SECRET, headers, body, now)
    assert check_signature(b"another secret here", headers, body, now)


def test_redirect_is_a_failure(log, runner, endpoint):
    add(runner, endpoint)
    append(log, 1)
    endpoint.answers = [302]
    assert runner.once() == Delivered(failed=1)
    assert len(endpoint.got) == 1


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "169.254.169.254", "10.0.0.1", "0.0.0.0"]
)
def test_private_addresses_are_not_called(host):
    result = post(f"http://{host}:9/x", b"", {}, allow_private=False, timeout_s=1)
    assert result.status is None and "no public address" in result.detail


BAD_URLS = [
    "ftp://a/b", "http://", "http://u:p@a/", "http://a b/", "x", "http://a:0/", "http://:p@a/", "http://@a/",
    "http://a/\u00fc", "http://\u2460\u2461\u2466.0.0.1/", "http://a\\@127.0.0.1/", "http://a/\r\nX: y",
]  # fmt: skip


@pytest.mark.parametrize("url", BAD_URLS)
def test_bad_urls_are_refused(runner, url):
    with pytest.raises(Usage, match="URL must be"):
        runner.hooks.add(Webhook(HOOK, url, "shiplog/prod", SECRET.hex()), "")


def test_secret_must_be_long_and_is_private(runner, endpoint):
    with pytest.raises(Usage, match="16 to 1024 bytes"):
        runner.hooks.add(Webhook(HOOK, endpoint.url, "shiplog/prod", b"short".hex()), "")
    add(runner, endpoint)
    assert (runner.hooks.folder(HOOK) / "hook.json").stat().st_mode & 0o077 == 0
    with pytest.raises(NotFound):
        runner.hooks.get("../../etc")


@pytest.mark.parametrize("kind", ["a\rb", "é", "x" * 500])
def test_odd_event_types_do_not_stop_a_hook(log, runner, endpoint, kind):
    add(runner, endpoint)
    log.append("prod", {"type": kind, "payload": {}})
    append(log, 1)
    assert runner.once().delivered == 2


def test_damaged_hook_stops_no_other(log, runner, endpoint):
    add(runner, endpoint)
    other = Webhook("ffeeddccbbaa0011", endpoint.url, "shiplog/prod", SECRET.hex(), allow_private=True)
    runner.hooks.add(other, "")
    (runner.hooks.folder(HOOK) / "state.json").write_bytes(b"{")
    append(log, 1)
    assert runner.once() == Delivered(delivered=1)


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::ffff:7f00:1]"])
def test_odd_spellings_of_loopback_are_not_called(host):
    result = post(f"http://{host}:9/x", b"", {}, allow_private=False, timeout_s=1)
    assert result.status is None and "no public address" in result.detail


def test_name_is_resolved_once_per_attempt(endpoint, monkeypatch):
    """A name that answers with a public address first and a private one then gets no second question."""
    answers, port = ["93.184.215.14", "127.0.0.1"], int(endpoint.url.rpartition(":")[2].partition("/")[0])
    dialed: list[str] = []

    def resolve(_host: str, _port: int, **_options: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers.pop(0), port))]

    def dial(place: tuple[str, int], _timeout: float) -> socket.socket:
        dialed.append(place[0])
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", dial)
    assert post(f"http://changing.example:{port}/", b"", {}, allow_private=False).status is None
    assert dialed == ["93.184.215.14"] and answers == ["127.0.0.1"]
    assert "no public address" in post("http://changing.example/", b"", {}, allow_private=False).detail
    assert dialed == ["93.184.215.14"]


def test_attempt_has_a_deadline_for_the_whole_answer():
    """An endpoint that sends a byte now and then never lets a step time out."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def drip() -> None:
            link, _ = listener.accept()
            with link, contextlib.suppress(OSError):
                for byte in itertools.cycle(b"x"):
                    if stop.wait(0.05):
                        return
                    link.sendall(bytes([byte]))

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        done = post(url, b"{}", {}, allow_private=True, timeout_s=LIMIT_S, attempt_s=0.5)
        stop.set()
        thread.join(LIMIT_S)
    assert not done.ok and done.detail == "no whole answer within 0.5 s"
