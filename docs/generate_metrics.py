"""Write docs/reference/metrics.md from the code that counts: `python docs/generate_metrics.py [--check]`.

With `--check` nothing is written; a page that has drifted ends with 5.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from generated import write_or_check
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from ropewalk.pipeline.jobs.metrics import GAUGES, MEASURED
from ropewalk.server.metrics import LABELS, Metrics
from ropewalk.server.witness import count_requests

__all__ = ["PAGE", "main", "render"]

PAGE = Path(__file__).resolve().parent / "reference" / "metrics.md"
INTRO = """\
# Metrics

Written by `docs/generate_metrics.py` from the code that counts; do not edit.

Routes are templates and engines are `shiplog`, `messages`, `ledger` and `gossip`, so that no client can make new
series. Alert rules are in `examples/prometheus`, a dashboard is in `examples/grafana`."""
SERVER = """\
## `ropewalk serve`

`GET /metrics`, for a client that may read some log. With `--otel` the same figures go to a collector."""
WITNESS = "## `ropewalk witness serve`\n\n`GET /metrics` of the witness."
HEALTH = """\
## `ropewalk pipeline health`

A text file for the node exporter's textfile collector, written by `--metrics FILE`."""


def render() -> str:
    """Return the whole page."""
    witness = CollectorRegistry()
    count_requests(witness)
    gauges = [(name, "gauge", ", ".join(LABELS), text) for name, text, _ in GAUGES]
    measured = (MEASURED, "gauge", "", "When the channels were measured.")
    parts = [
        INTRO,
        SERVER,
        _table(_rows(Metrics().registry)),
        WITNESS,
        _table(_rows(witness)),
        HEALTH,
        _table([*gauges, measured]),
    ]
    return "\n\n".join(parts) + "\n"


def _rows(registry: CollectorRegistry) -> Iterable[tuple[str, str, str, str]]:
    for metric in registry._collector_to_names:
        assert isinstance(metric, MetricWrapperBase)
        (family,) = metric.describe()
        name = family.name + ("_total" if family.type == "counter" else "")
        yield name, family.type, ", ".join(metric._labelnames), family.documentation


def _table(rows: Iterable[tuple[str, str, str, str]]) -> str:
    lines = [f"| `{name}` | {kind} | {labels or '–'} | {text} |" for name, kind, labels, text in sorted(rows)]
    return "\n".join(["| name | type | labels | meaning |", "|---|---|---|---|", *lines])


def main(arguments: list[str]) -> int:
    """Write the page, or compare it."""
    return write_or_check({PAGE: render()}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
