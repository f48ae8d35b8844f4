"""`ropewalk serve` as a process of its own, over loopback: every row of its HTTP interface."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import signal
import socket
import subprocess
import threading
from typing import Any

import pytest
from tests.serving import Served, call, serving
from tests.tools import skip_or_fail
from tests.waiting import LIMIT_S, Crew, until

from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.kernel.digest import content_id

EVENT = {"type": "proposal.created", "payload": {"id": 7}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("serve"), started=True) as found:
        yield found


def envelopes(folder, count: int, channel: str = "audit") -> list[dict[str, Any]]:
    call(folder, "key", "new", "ada")
    made = []
    for n in range(count):
        answer = call(
            folder, "ledger", "envelope", "--channel", channel, "--domain", "ops", "--class", "Observation",
            "--type", "disk.full", "--payload", "-", "--key", "ada", stdin=b'{"n":%d}' % n,
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr
        made.append(json.loads(answer.stdout))
    return made


def test_ready_line_names_every_address(server: Served):
    facts = server.facts
    assert set(facts) == {"url", "api", "console", "metrics", "stream", "grpc", "quic", "pid"}
    assert facts["api"] == facts["url"] + "/api/v1" and facts["pid"] == server.process.pid
    assert facts["grpc"] is None and facts["quic"] is None


def test_append_answers_a_durable_receipt(server: Served):
    answer = server("POST", "/shiplog/receipts/events", EVENT)
    receipt = answer.json
    assert answer.status == 201
    assert set(receipt) == {"ulid", "content_id", "commit", "ns", "replayed"} and receipt["ns"] == "receipts"
    with open_repository(server.folder / "log.git") as log:
        (event,) = log.read("receipts").events
    assert (event.ulid, event.commit, event.payload) == (receipt["ulid"], receipt["commit"], {"id": 7})


def test_array_keeps_refusals_in_their_places(server: Served):
    answer = server("POST", "/shiplog/arrays/events", [EVENT, {"payload": {}}, 3, EVENT])
    rows = answer.json["receipts"]
    assert answer.status == 200
    assert [row.get("status") for row in rows] == [None, 400, 400, None]
    assert rows[0]["ulid"] < rows[3]["ulid"]
    assert server("POST", "/shiplog/arrays/events", [EVENT, EVENT]).status == 201


def test_pages_neither_skip_nor_repeat_while_the_log_grows(server: Served):
    for n in range(5):
        server("POST", "/shiplog/pages/events", {"type": "t", "payload": {"n": n}})
    seen, since = [], None
    for turn in range(12):
        query = f"?limit=2&since={since}" if since else "?limit=2"
        page = server("GET", f"/shiplog/pages/events{query}").json
        seen += [event["envelope"]["payload"]["n"] for event in page["events"]]
        since = page["next_since"]
        if turn < 5:
            server("POST", "/shiplog/pages/events", {"type": "t", "payload": {"n": 5 + turn}})
    assert seen == list(range(10))


def test_page_has_an_etag_and_answers_304(server: Served):
    server("POST", "/shiplog/etags/events", EVENT)
    first = server("GET", "/shiplog/etags/events")
    again = server("GET", "/shiplog/etags/events", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    server("POST", "/shiplog/etags/events", EVENT)
    assert (
        server("GET", "/shiplog/etags/events", headers={"If-None-Match": first.headers["etag"]}).status == 200
    )


def test_event_is_shown_as_the_command_shows_it(server: Served):
    ulid = server("POST", "/shiplog/shown/events", EVENT).json["ulid"]
    answer = server("GET", f"/shiplog/shown/events/{ulid}")
    told = json.loads(call(server.folder, "shiplog", "show", ulid, "--json").stdout)
    assert answer.json == told and answer.headers["etag"] == f'"{told["content_id"].removeprefix("blake3:")}"'
    assert server("GET", "/shiplog/other/events/" + ulid).status == 404


def test_tail_takes_turns(server: Served):
    for ns in ("tail-a", "tail-b", "tail-a"):
        server("POST", f"/shiplog/{ns}/events", EVENT)
    found = server("GET", "/shiplog/tail?ns=tail-a&ns=tail-b&limit_per_ns=5").json
    assert [row["ns"] for row in found["events"]] == ["tail-a", "tail-b", "tail-a"]
    assert set(found["watermarks"]) == {"tail-a", "tail-b"}


def test_messages_follow_the_contract_of_s1(server: Served):
    receipt = server("POST", "/messages?topic=jobs/pending", {"type": "job", "payload": {"id": 1}}).json
    page = server("GET", "/messages?topic=jobs/pending").json
    assert set(page) == {"messages", "next_since", "restarted"}
    (row,) = page["messages"]
    assert set(row) == {"ulid", "commit", "content_id", "envelope_path", "canonical_json", "checkpoint_hint"}
    assert row["content_id"] == content_id(base64.b64decode(row["canonical_json"])) == receipt["content_id"]
    empty = server("GET", f"/messages?topic=jobs/pending&since_ulid={receipt['ulid']}").json
    assert empty == {"messages": [], "next_since": receipt["ulid"], "restarted": False}
    assert server("GET", "/messages?topic=jobs/pending&limit=100000").status == 200  # clamped
    refusals = {
        "/messages?topic=nowhere": (404, "topic_not_found"),
        "/messages?topic=jobs/pending&since_ulid=x": (400, "invalid_ulid"),
        "/messages?topic=jobs/pending&limit=0": (409, "range_exceeded"),
        "/messages?topic=a..b": (400, "invalid_topic"),
    }
    for path, expected in refusals.items():
        answer = server("GET", path)
        assert (answer.status, answer.code) == expected


def test_group_checkpoint_moves_behind_a_page(server: Served):
    for n in range(3):
        server("POST", "/messages?topic=groups", {"type": "t", "payload": {"n": n}})
    first = server("GET", "/messages?topic=groups&group=workers&limit=2").json
    second = server("GET", "/messages?topic=groups&group=workers&limit=2").json
    assert [len(first["messages"]), len(second["messages"])] == [2, 1]
    assert first["messages"][0]["checkpoint_hint"] == {"group": "workers", "topic": "groups"}
    until(lambda: server("GET", "/consumers/workers?log=messages/groups").json["behind"] == 0)
    again = server(
        "GET", f"/messages?topic=groups&group=workers&since_ulid={first['messages'][0]['ulid']}"
    ).json
    assert again["messages"][0]["checkpoint_hint"] is None  # reading old messages again moves nothing


def test_consumers_are_listed_set_and_deleted(server: Served):
    ulids = [server("POST", "/shiplog/consumed/events", EVENT).json["ulid"] for _ in range(3)]
    made = server("PUT", "/consumers/analytics?log=shiplog/consumed", {"ulid": ulids[1]})
    assert made.status == 200 and made.json["ref"] == "refs/gatos/consumers/analytics/consumed"
    shown = server("GET", "/consumers/analytics?log=shiplog/consumed").json
    assert (shown["ulid"], shown["behind"]) == (ulids[1], 1)
    back = server("PUT", "/consumers/analytics?log=shiplog/consumed", {"ulid": ulids[0]})
    assert (back.status, back.code) == (409, "TemporalOrder")
    assert shown in server("GET", "/consumers").json["consumers"]
    assert server("DELETE", "/consumers/analytics?log=shiplog/consumed").status == 200
    assert server("GET", "/consumers/analytics?log=shiplog/consumed").status == 404


def test_channel_rows_are_what_the_commands_write(server: Served):
    one, two = envelopes(server.folder, 2)
    receipt = server("POST", "/channels/audit/envelopes", one).json
    assert set(receipt) >= {"envelope_id", "height", "index", "block_hash", "replayed"}
    many = server("POST", "/channels/audit/envelopes", [two, one, {"x": 1}])
    assert many.status == 200
    assert [row.get("status", row.get("replayed")) for row in many.json["receipts"]] == [False, True, 400]
    assert server("GET", "/channels").json == {"channels": ["audit"]}
    facts = server("GET", "/channels/audit").json
    head = json.loads(call(server.folder, "ledger", "head", "--channel", "audit", "--json").stdout)
    assert head.items() <= facts.items()
    blocks = server("GET", "/channels/audit/blocks?from=0").json
    assert [block["height"] for block in blocks["blocks"]] == list(range(facts["height"] + 1))
    assert one in blocks["blocks"][0]["envelopes"] and blocks["next_from"] is None
    name = receipt["envelope_id"]
    shown = server("GET", f"/channels/audit/envelopes/{name}")
    assert shown.json == one and "immutable" in shown.headers["cache-control"]
    for path, file in (("proof", "proof.json"), ("bundle", "b.tar.zst"), ("trust", "trust.json")):
        inner = f"envelopes/{name}/proof" if path == "proof" else path
        (server.folder / file).write_bytes(server("GET", f"/channels/audit/{inner}").body)
    for file in ("proof.json", "b.tar.zst"):
        done = call(server.folder, "verify", str(server.folder / file), "--trust", "trust.json", "--json")
        assert json.loads(done.stdout)["verdict"] == "passed", done.stdout
    assert b"localhost/audit\n" in server("GET", "/channels/audit/checkpoint").body
    assert server("GET", "/channels/audit/envelopes/zz").code == "InvalidDigest"


def test_cbor_envelopes_have_the_same_id(server: Served):
    (one,) = envelopes(server.folder, 1, "cbor")
    raw = call(
        server.folder, "ledger", "envelope", "--channel", "cbor", "--domain", "ops", "--class", "Observation",
        "--type", "t", "--payload", "-", "--key", "ada", "--cbor", stdin=b"{}",
    ).stdout  # fmt: skip
    answer = server(
        "POST", "/channels/cbor/envelopes", body=raw, headers={"Content-Type": "application/cbor"}
    )
    assert answer.status == 201
    shown = server("GET", f"/channels/cbor/envelopes/{answer.json['envelope_id']}").json
    assert shown["event_type"] == "t" and one["event_type"] == "disk.full"


def test_gossip_rows(server: Served):
    ids = [server("POST", "/gossip/com.example/messages", {"payload": {"n": n}}).json["id"] for n in range(3)]
    assert server("GET", "/gossip").json == {"topics": ["com.example"]}
    assert server("GET", "/gossip/com.example/heads").json["heads"] == [ids[2]]
    first = server("GET", "/gossip/com.example/messages?limit=2").json
    rest = server("GET", f"/gossip/com.example/messages?after={first['next_after']}").json
    assert [row["id"] for row in first["messages"] + rest["messages"]] == ids


def test_verify_answers_the_steps(server: Served):
    server("POST", "/shiplog/verified/events", EVENT)
    server("POST", "/gossip/com.verified/messages", {"payload": 1})
    for log in ("shiplog/verified", "gossip/com.verified"):
        report = server("GET", f"/verify?log={log}").json
        assert report["ok"] and report["verdict"] == "passed" and report["steps"]
    assert server("GET", "/verify?log=shiplog/missing").status == 404
    assert server("GET", "/verify?log=nothing").status == 400


def test_every_refusal_is_a_problem(server: Served):
    over = {"Content-Type": "application/json", "Content-Length": str(17 << 20)}
    refusals = [
        (server("GET", "/nowhere"), 404, "NotFound"),
        (server("PATCH", "/channels"), 405, "MethodNotAllowed"),
        (server("POST", "/shiplog/x/events", body=b"a=1"), 415, "UnsupportedMediaType"),
        (server("POST", "/shiplog/x/events", body=b"x", headers=over), 413, "TooLarge"),
        (server("POST", "/shiplog/x/events", {"type": 1, "payload": {}}), 400, "InvalidEnvelope"),
        (server("POST", "/shiplog/UPPER/events", EVENT), 400, "InvalidName"),
        (server("GET", "/stream"), 426, "UpgradeRequired"),
        (server("GET", "/channels", headers={"Host": "evil.example"}), 403, "PolicyDenied"),
        (server("GET", "/channels", headers={"Origin": "https://evil.example"}), 403, "PolicyDenied"),
        (server("GET", "/shiplog/x/events?limit=many"), 400, "InvalidInput"),
    ]
    for answer, status, code in refusals:
        assert (answer.status, answer.code) == (status, code), answer
        assert answer.json["status"] == status and answer.json["detail"]
    bad = b'{"type":"t","payload":{"a":1,"a":2}}'
    answer = server("POST", "/shiplog/x/events", body=bad, headers={"Content-Type": "application/json"})
    assert answer.code == "InvalidJson"


@pytest.mark.parametrize(
    "raw", [b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\nA: " + b"x" * 100_000 + b"\r\n\r\n", b"\x00\xff\r\n\r\n"]
)
def test_malformed_http_is_a_problem(server: Served, raw):
    with socket.create_connection((server.host, server.port), timeout=LIMIT_S) as link:
        link.sendall(raw)
        answer = b""
        while chunk := link.recv(65536):
            answer += chunk
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 ")) and b"application/problem+json" in answer


def test_chunked_body_over_the_limit_is_refused(server: Served):
    def pieces():
        for _ in range(18):
            yield b"x" * (1 << 20)

    connection = http.client.HTTPConnection(server.host, server.port, timeout=LIMIT_S)
    headers = {"Content-Type": "application/json"}
    try:
        connection.request("POST", "/api/v1/shiplog/x/events", pieces(), headers, encode_chunked=True)
        status = connection.getresponse().status
    except OSError:  # the server closed the connection before it had read all
        status = 413
    connection.close()
    assert status == 413


def test_metrics_pass_promtool(server: Served):
    server("GET", "/channels")
    text = server("GET", "/metrics").body
    if shutil.which("promtool") is None:
        skip_or_fail("promtool is not installed")
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 0, done
    for name in (
        b"http_requests_total",
        b"fsync_duration_seconds_bucket",
        b"append_queue_events",
        b"ready 1.0",
    ):
        assert b"ropewalk_" + name in text


def test_probes_and_documents(server: Served):
    assert server("GET", "/healthz").json == {"status": "ok"}
    assert server("GET", "/readyz").json["status"] == "ok"
    document = server("GET", "/openapi.json").json
    assert document["openapi"].startswith("3.1")
    assert "/api/v1/shiplog/{ns}/events" in document["paths"]
    assert b"<script" not in server("GET", "/docs").body


def test_events_arrive_over_sse_and_resume(server: Served):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=LIMIT_S)
    connection.request("GET", "/api/v1/events?ns=live&topic=live.*")
    stream = connection.getresponse()
    assert stream.getheader("content-type", "").startswith("text/event-stream")
    assert frame_of(stream)["kind"] == "ack"
    server("POST", "/shiplog/live/events", {"type": "t", "payload": {"n": 1}})
    server("POST", "/messages?topic=live/jobs", {"type": "t", "payload": {"n": 2}})
    found = [frame_of(stream), frame_of(stream)]
    connection.close()
    assert {frame["topic"] for frame in found} == {"shiplog/live", "live/jobs"}
    first = next(frame for frame in found if frame["topic"] == "shiplog/live")
    assert {"ns", "ulid", "type", "content_id", "commit", "payload"} <= set(first) and first["ns"] == "live"
    last = max(frame["seq"] for frame in found)
    server("POST", "/shiplog/live/events", {"type": "t", "payload": {"n": 3}})
    again = http.client.HTTPConnection(server.host, server.port, timeout=LIMIT_S)
    again.request("GET", "/api/v1/events?ns=live", headers={"Last-Event-ID": str(last)})
    stream = again.getresponse()
    assert frame_of(stream)["kind"] == "ack"
    assert frame_of(stream)["payload"] == {"n": 3}
    again.close()


def test_frames_from_before_the_first_client_are_kept(tmp_path):
    """A stream without clients reads nothing; the next client still gets what the window would have kept."""
    with serving(tmp_path) as server:
        for n in range(3):
            server("POST", "/shiplog/early/events", {"type": "t", "payload": {"n": n}})
        connection = http.client.HTTPConnection(server.host, server.port, timeout=LIMIT_S)
        connection.request("GET", "/api/v1/events?ns=early&since=0")
        stream = connection.getresponse()
        assert frame_of(stream)["kind"] == "ack"
        assert [frame_of(stream)["payload"]["n"] for _ in range(3)] == [0, 1, 2]
        connection.close()
        server("POST", "/shiplog/early/events", [{"type": "t", "payload": {"n": n}} for n in range(3, 1503)])
        connection.request("GET", "/api/v1/events?ns=early")
        assert frame_of(connection.getresponse())["kind"] == "ack"  # and nothing that came before it
        connection.close()


def test_watch_runs_in_the_background(tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"version":1,"watch":{"interval_seconds":0.2,"observations":{"channel":"health"}}}')
    with serving(tmp_path, "--config", str(config)) as server:
        assert server("POST", "/channels/audit/envelopes", envelopes(tmp_path, 1)).status == 201
        labels = b'ropewalk_policy_hash_mismatch{channel="audit",domain="ops"'
        until(lambda: labels in server("GET", "/metrics").body)
        until(lambda: "health" in server("GET", "/channels").json["channels"])
        assert b'ropewalk_alerts_firing{severity="page"} 0.0' in server("GET", "/metrics").body


def frame_of(stream: http.client.HTTPResponse) -> Any:
    """The next event; its id is the frame's seq."""
    fields: dict[str, str] = {}
    while True:
        line = stream.readline().decode().rstrip("\n")
        if not line and "data" in fields:
            frame = json.loads(fields["data"])
            assert fields.get("id") in (None, str(frame["seq"]))
            return frame
        name, _, value = line.partition(": ")
        fields[name] = value


def test_websocket_carries_the_same_frames(server: Served):
    from ropewalk import stream

    with stream.follow(server.facts["stream"], topics=["shiplog.socket", "ledger.*"]) as frames:
        server("POST", "/shiplog/socket/events", {"type": "t", "payload": {"n": 1}})
        first = next(frames)
        (one,) = envelopes(server.folder, 1, "streamed")
        receipt = server("POST", "/channels/streamed/envelopes", one).json
        second = next(frames)
    assert isinstance(first, stream.BusEvent) and isinstance(second, stream.BusEvent)
    assert first.about is not None
    assert (first.topic, first.payload, first.about["ns"]) == ("shiplog/socket", {"n": 1}, "socket")
    assert second.topic == "ledger/streamed"
    assert second.payload["envelope_ids"] == [receipt["envelope_id"]] and second.payload["height"] == 0


def test_idempotency_key_survives_a_restart(tmp_path):
    headers = {"Idempotency-Key": "order-7"}
    with serving(tmp_path) as server:
        first = server("POST", "/shiplog/orders/events", EVENT, headers=headers)
        assert server("POST", "/shiplog/orders/events", EVENT, headers=headers).json == first.json
        assert server.stop() == 0
    with serving(tmp_path) as server:
        again = server("POST", "/shiplog/orders/events", EVENT, headers=headers)
        assert (again.status, again.json) == (first.status, first.json)
        other = server("POST", "/shiplog/orders/events", {**EVENT, "type": "x"}, headers=headers)
        assert (other.status, other.code) == (422, "DigestMismatch")
        assert len(server("GET", "/shiplog/orders/events").json["events"]) == 1


def test_concurrent_appends_share_packs(tmp_path):
    with serving(tmp_path) as server:
        server("POST", "/shiplog/crowd/events", EVENT)
        packs = tmp_path / "log.git" / "objects" / "pack"
        before = len(list(packs.glob("*.pack")))
        with Crew(64) as crew:
            answers = crew.map(
                lambda n: server("POST", "/shiplog/crowd/events", {"type": "t", "payload": {"n": n}}),
                range(256),
            )
        assert [answer.status for answer in answers] == [201] * 256
        assert len({answer.json["commit"] for answer in answers}) == 256
        assert len(list(packs.glob("*.pack"))) - before < 128


def test_sigterm_answers_what_was_taken(tmp_path):
    """No acknowledged append is lost, whatever comes first: the signal or the requests."""
    receipts: list[str] = []
    with serving(tmp_path) as server:
        server("POST", "/shiplog/drain/events", EVENT)

        def append() -> None:
            for _ in range(200):
                try:
                    answer = server("POST", "/shiplog/drain/events", EVENT)
                except OSError:
                    return
                if answer.status != 201:
                    assert answer.status == 503 and answer.headers["retry-after"]
                    return
                receipts.append(answer.json["ulid"])

        crew = [threading.Thread(target=append, daemon=True) for _ in range(8)]
        for thread in crew:
            thread.start()
        until(lambda: len(receipts) > 20)
        assert server.stop() == 0
        for thread in crew:
            thread.join(LIMIT_S)
    with open_repository(tmp_path / "log.git") as log:
        kept = {event.ulid for event in log.events("drain")}
    assert set(receipts) <= kept


def test_second_sigterm_ends_at_once(tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"version":1,"server":{"drain_seconds":100}}')
    with serving(tmp_path, "--config", str(config)) as server:
        held = socket.create_connection((server.host, server.port), timeout=LIMIT_S)
        head = b"POST /api/v1/shiplog/x/events HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        held.sendall(head + b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
        until(lambda: server("GET", "/healthz").status == 200)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: refuses(server))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(LIMIT_S) == 143
        held.close()


def refuses(server: Served) -> bool:
    try:
        return server("GET", "/channels").status == 503
    except OSError:
        return True


def test_systemd_is_notified(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.settimeout(LIMIT_S)
        told.bind(str(tmp_path / "notify"))
        with serving(tmp_path, env={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as server:
            assert told.recv(100) == b"READY=1"
            assert server.stop() == 0
        assert told.recv(100) == b"STOPPING=1"
