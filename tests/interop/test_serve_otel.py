"""OpenTelemetry: spans and figures of a real server arrive at an OTLP receiver on loopback."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.serving import call, serving

EVENT = {"type": "t", "payload": {"n": 1}}
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
KINDS: dict[str, Any] = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


class Receiver(ThreadingHTTPServer):
    """An OTLP/HTTP collector that keeps what it is sent."""

    def __init__(self) -> None:
        self.taken: dict[str, list[Any]] = {path: [] for path in KINDS}
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.taken["/v1/traces"]
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def metrics(self) -> dict[str, Any]:
        """The figures of the last export, by name."""
        (resource,) = self.taken["/v1/metrics"][-1].resource_metrics
        return {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert isinstance(self.server, Receiver)
        self.server.taken[self.path].append(KINDS[self.path].FromString(body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.shutdown()
    server.server_close()


def attributes(of: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in of.attributes}


def test_each_append_has_one_span_to_the_sync(tmp_path, receiver):
    with serving(tmp_path, "--otel", f"http://127.0.0.1:{receiver.server_port}") as server:
        assert server("POST", "/shiplog/x/events", EVENT, headers={"traceparent": PARENT}).status == 201
        assert server("POST", "/shiplog/x/events", [EVENT, 7]).status == 200
        assert server("POST", "/gossip/chat/messages", {"payload": 1}).status == 201
        assert server("POST", "/shiplog/x/events", body=b"{").status == 415
        assert server("GET", "/shiplog/x/events").status == 200  # a read has no span
        assert server.stop() == 0
    spans = sorted(receiver.spans(), key=lambda span: span.start_time_unix_nano)
    assert [attributes(span)["http.response.status_code"] for span in spans] == [201, 200, 201, 415]
    first = spans[0]
    assert first.name == "POST /api/v1/shiplog/{ns}/events"
    assert (first.trace_id.hex(), first.parent_span_id.hex()) == tuple(PARENT.split("-")[1:3])
    (durable,) = first.events
    assert durable.name == "durable"
    assert first.start_time_unix_nano < durable.time_unix_nano <= first.end_time_unix_nano
    assert attributes(spans[1].events[0]) == {
        "ropewalk.engine": "shiplog", "ropewalk.appended": 1, "ropewalk.refused": 1,
    }  # fmt: skip
    assert attributes(spans[2].events[0])["ropewalk.engine"] == "gossip" and not spans[3].events


def test_otlp_figures_are_those_of_prometheus(tmp_path, receiver):
    with serving(tmp_path, "--otel", f"http://127.0.0.1:{receiver.server_port}") as server:
        assert server("POST", "/shiplog/x/events", EVENT).status == 201
        text = server("GET", "/metrics").body.decode()
        assert server.stop() == 0
    found = receiver.metrics()
    (point,) = found["ropewalk_appends"].sum.data_points
    assert attributes(point) == {"engine": "shiplog", "outcome": "appended"} and point.as_double == 1
    assert found["ropewalk_appends"].sum.is_monotonic
    names = {
        line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") and "_created" not in line
    }
    shown = {name for name, metric in found.items()}
    assert {each.removesuffix("_total") for each in names if f"\n{each}" in text} <= shown
    (syncs,) = found["ropewalk_fsync_duration_seconds"].histogram.data_points
    assert (
        syncs.count == sum(syncs.bucket_counts) > 0
        and len(syncs.bucket_counts) == len(syncs.explicit_bounds) + 1
    )


@pytest.mark.slow
def test_collector_that_is_away_holds_up_nothing(tmp_path):
    with serving(tmp_path, "--otel", "http://127.0.0.1:9", "--log-format", "json") as server:
        assert server("POST", "/shiplog/x/events", EVENT).status == 201
        assert server.stop() == 0
    assert "Traceback" not in server.errors()


def test_otel_takes_http_urls_only(tmp_path):
    call(tmp_path, "init", str(tmp_path / "log.git"))
    done = call(tmp_path, "serve", "--port", "0", "--otel", "file:///etc/passwd")
    assert done.returncode == 2 and b"--otel must be an http or https URL" in done.stderr
