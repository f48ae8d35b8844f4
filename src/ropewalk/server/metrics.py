"""Figures for Prometheus. Labels are bounded: route templates, engines, channels and bridges, never client input."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ropewalk.bridge.progress import NAMES
from ropewalk.disk.durable import Disk
from ropewalk.errors import RopewalkError

if TYPE_CHECKING:
    from ropewalk.server.node import ServerNode
    from ropewalk.server.watch.rounds import Round

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LABELS = ("channel", "domain", "protocol_version")  # S4 §14
SIGNALS = {
    "attestation_age_seconds": "Age of the newest evidence that held.",
    "attestation_stale": "1 if the newest evidence has used up four fifths of its freshness budget.",
    "attestation_chain_valid": "1 if all evidence in the window was judged and held, and the newest still does.",
    "evidence_failed": "Pieces of evidence in the window that failed, or no longer hold.",
    "policy_hash_mismatch": "Envelopes in the window that name another policy than their channel has.",
}
BRIDGES = {
    "lag_events": "Entries of the source that a mirror, broker bridge or webhook has not copied yet.",
    "moved_events": "Entries that it has copied since it was made.",
    "lost_events": "Messages that the broker removed before the bridge read them.",
    "last_run_timestamp_seconds": "When it last recorded a run; a running one does so every 15 seconds.",
    "failing": "1 if its last run ended with an error.",
}
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The figures of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._appends: dict[tuple[str, str], Counter] = {}
        self.requests = self._counter(
            "http_requests_total", "HTTP requests answered.", "method", "route", "status"
        )
        self.latency = self._histogram(
            "http_request_duration_seconds",
            "Time from the request's headers to the end of its answer.",
            "route",
        )
        self.appends = self._counter(
            "appends_total", "Entries that were appended, by engine and outcome.", "engine", "outcome"
        )
        self.fsync = self._histogram("fsync_duration_seconds", "Time that one fsync of a git log took.")
        self.refused = self._counter(
            "http_refused_total", "Requests refused before a route saw them, by problem code.", "code"
        )
        self.append_queue = self._gauge("append_queue_events", "Events that wait to be written.")
        self.read_queue = self._gauge("read_queue_requests", "Requests in threads, or waiting for one.")
        self.stream_clients = self._gauge("stream_clients", "WebSocket and SSE clients.")
        self.stream_seq = self._gauge("stream_seq", "Number of the newest frame.")
        self.stream_lag = self._gauge("stream_lag_frames", "Frames that the slowest client has not taken.")
        self.uptime = self._gauge("uptime_seconds", "Time since the server started.")
        self.ready = self._gauge("ready", "1 if the server can do its work.")
        self.quarantined = self._gauge("quarantined_peers", "Ledger peers that are refused new sessions.")
        self.signals = {name: self._gauge(name, text, *LABELS) for name, text in SIGNALS.items()}
        self.unwitnessed = self._gauge("unwitnessed_blocks", "Blocks without enough cosignatures.", "channel")
        self.witness_failures = self._counter(
            "witness_failures", "Rounds in which a channel got too few cosignatures."
        )
        self.bridges = {name: self._gauge(f"bridge_{name}", text, *NAMES) for name, text in BRIDGES.items()}
        self.firing = self._gauge("alerts_firing", "Alerts that fire.", "severity")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"ropewalk_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"ropewalk_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"ropewalk_{name}", text, labels, buckets=SECONDS, registry=self.registry)

    def count_outcomes(self, engine: str, outcomes: Sequence[Any]) -> None:
        """Count entries; finding a counter by its labels takes longer than counting."""
        refused = sum(isinstance(each, RopewalkError) for each in outcomes)
        for outcome, count in (("appended", len(outcomes) - refused), ("refused", refused)):
            if count:
                counter = self._appends.get((engine, outcome))
                if counter is None:
                    counter = self._appends[engine, outcome] = self.appends.labels(engine, outcome)
                counter.inc(count)

    def look(self, node: ServerNode) -> None:
        """Take the figures that are not counted where they happen."""
        window, connections = node.stream.window, node.stream.connections
        self.append_queue.set(node.appends.waiting)
        self.read_queue.set(node.read.waiting)
        self.stream_clients.set(len(connections))
        self.stream_seq.set(window.seq)
        self.stream_lag.set(max((window.seq - each.cursor for each in connections), default=0))
        self.uptime.set(time.monotonic() - node.started_s)
        self.ready.set(node.fault is None)
        self.quarantined.set(0 if node.transports is None else len(node.transports.quarantine.peers))

    def take_bridges(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take the state of the bridges, which run in other processes; what is not known has no figure."""
        for gauge in self.bridges.values():
            gauge.clear()
        for row in rows:
            run_s = None if row["run_ms"] is None else row["run_ms"] / 1000
            figures = (row["lag"], row["moved"], row["lost"], run_s, row["error"] is not None)
            for gauge, value in zip(self.bridges.values(), figures, strict=True):
                if value is not None:
                    gauge.labels(*(row[name] for name in NAMES)).set(value)

    def take_signals(self, found: Round) -> None:
        """Take the figures of a watch round; what was not measured has no figure."""
        for name, gauge in self.signals.items():
            gauge.clear()
            for signal in found.signals:
                value = getattr(signal, name)
                if name == "attestation_chain_valid" and signal.attestation_age_seconds is not None:
                    value = value is True  # unknown is not valid
                if value is not None:
                    gauge.labels(*signal.labels).set(float(value))
        self.unwitnessed.clear()
        for channel, blocks in found.unwitnessed:
            self.unwitnessed.labels(channel).set(blocks)
        self.witness_failures.inc(found.witness_failures)
        for severity in ("page", "ticket"):
            self.firing.labels(severity).set(sum(each["severity"] == severity for each in found.firing))

    def render(self, node: ServerNode) -> bytes:
        """Return the text that Prometheus scrapes."""
        self.look(node)
        return generate_latest(self.registry)


class TimedDisk(Disk):
    """The durable file layer, which also measures how long a sync takes."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__()
        self._metrics = metrics

    def fsync(self, descriptor: int) -> None:
        start = time.perf_counter()
        super().fsync(descriptor)
        self._metrics.fsync.observe(time.perf_counter() - start)
