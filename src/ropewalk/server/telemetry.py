"""OpenTelemetry (extra `otel`): one span for each append, and the Prometheus figures, sent over OTLP/HTTP.

The figures are those of `/metrics`, with the same names, labels and buckets. A collector that is away never holds up
an append: spans wait in a bounded queue and are dropped when it is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, MutableMapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import export as points
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry

from ropewalk import __version__
from ropewalk.bridge.progress import list_progress

if TYPE_CHECKING:
    from ropewalk.server.node import ServerNode

EVERY_S = 15.0  # between two exports of the figures
SEND_S = 2.0
CUMULATIVE = points.AggregationTemporality.CUMULATIVE


class Telemetry:
    """Sends spans and figures to the collector at `endpoint`, the base URL of OTLP/HTTP."""

    def __init__(self, endpoint: str) -> None:
        base = endpoint.rstrip("/")
        self._resource = Resource.create({"service.name": "ropewalk", "service.version": __version__})
        self._provider = TracerProvider(resource=self._resource)
        self._provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(f"{base}/v1/traces", timeout=SEND_S))
        )
        self._tracer = self._provider.get_tracer("ropewalk.server", __version__)
        self._figures = OTLPMetricExporter(f"{base}/v1/metrics", timeout=SEND_S)
        self._started_ns = time.time_ns()

    def begin(self, scope: MutableMapping[str, Any]) -> Span:
        """Start the span of an append, as a child of the client's if the request has a `traceparent`."""
        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in (b"traceparent", b"tracestate")
        }
        parent = TraceContextTextMapPropagator().extract(carrier)
        return self._tracer.start_span("append", parent, SpanKind.SERVER)

    def end(self, span: Span, scope: MutableMapping[str, Any], status: int) -> None:
        """End a span with what the answer was. Tokens and addresses are no attributes."""
        route = scope.get("path_template") or "unmatched"
        span.update_name(f"{scope['method']} {route}")
        span.set_attributes(
            {"http.request.method": scope["method"], "http.route": route, "http.response.status_code": status}
        )
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    async def run(self, node: ServerNode) -> None:
        """Export the figures from time to time, and once more at the end."""
        try:
            while True:
                await asyncio.sleep(EVERY_S)
                await asyncio.to_thread(self._export, node)
        finally:
            with contextlib.suppress(Exception):  # a collector that is away must not fail the shutdown
                self._export(node)
                self._provider.shutdown()
                self._figures.shutdown()

    def _export(self, node: ServerNode) -> None:
        node.metrics.look(node)
        node.metrics.take_bridges(list_progress(node.log))
        found = list(otlp_metrics(node.metrics.registry, self._started_ns, time.time_ns()))
        scope = points.ScopeMetrics(InstrumentationScope("ropewalk.server", __version__), found, "")
        self._figures.export(points.MetricsData([points.ResourceMetrics(self._resource, [scope], "")]))


def otlp_metrics(registry: CollectorRegistry, start_ns: int, now_ns: int) -> Iterator[points.Metric]:
    """Return the figures of a registry in the form of OpenTelemetry, names and labels unchanged."""
    for family in registry.collect():
        groups: dict[tuple[tuple[str, str], ...], list[Any]] = {}
        for sample in family.samples:
            labels = tuple(sorted((key, value) for key, value in sample.labels.items() if key != "le"))
            groups.setdefault(labels, []).append(sample)
        data: Any
        if family.type == "histogram":
            rows = [_histogram(labels, each, start_ns, now_ns) for labels, each in groups.items()]
            data = points.Histogram(rows, CUMULATIVE)
        else:
            numbers = [
                points.NumberDataPoint(dict(labels), start_ns, now_ns, sample.value)
                for labels, each in groups.items()
                for sample in each
                if not sample.name.endswith("_created")
            ]
            counted = family.type == "counter"
            data = points.Sum(numbers, CUMULATIVE, is_monotonic=True) if counted else points.Gauge(numbers)
        if groups:
            unit = "s" if family.name.endswith("_seconds") else ""
            yield points.Metric(family.name, family.documentation, unit, data)


def _histogram(
    labels: tuple[tuple[str, str], ...], samples: list[Any], start_ns: int, now_ns: int
) -> points.HistogramDataPoint:
    below = [(float(each.labels["le"]), int(each.value)) for each in samples if "le" in each.labels]
    counts = [0, *(count for _, count in below)]
    bounds = [bound for bound, _ in below[:-1]]  # the last is infinity
    total = next(each.value for each in samples if each.name.endswith("_sum"))
    return points.HistogramDataPoint(
        dict(labels),
        start_ns,
        now_ns,
        counts[-1],
        total,
        [high - low for low, high in pairwise(counts)],
        bounds,
        0.0,
        bounds[-1],
    )
