"""One HTML page about a warehouse: plots as drawings inside the page, nothing fetched, no script.

Reads the Parquet files itself; no Spark is needed to look at what Spark has made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from ropewalk.pipeline.warehouse import Warehouse

__all__ = ["Series", "draw_bars", "render"]

Series = Mapping[str, Sequence[float]]
"""A name for every line or bar, and its values."""

WIDTH, HEIGHT, LEFT, BOTTOM = 760, 240, 56, 44
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b83280", "#718096", "#d69e2e", "#319795")
STYLE = """
body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:820px;padding:0 1rem;color:#1a202c;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;width:100%}
td,th{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #e2e8f0;font-variant-numeric:tabular-nums}
svg{width:100%;height:auto}text{font:11px system-ui,sans-serif;fill:#4a5568}code{font-size:.85em}
.legend span{margin-right:1rem}.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}
@media (prefers-color-scheme:dark){body{background:#1a202c;color:#e2e8f0}text{fill:#a0aec0}td,th{border-color:#2d3748}}
"""


def render(warehouse: Warehouse, now_ms: int) -> str:
    """The page."""
    manifests = warehouse.require().manifests()
    files = warehouse.current_files(manifests)

    def read(table: str, columns: list[str]) -> list[dict[str, Any]]:
        import pyarrow.parquet as pq

        return [
            row
            for file in files.get(table, [])
            for row in pq.read_table(
                warehouse.path / file.name, columns=columns, partitioning=None
            ).to_pylist()
        ]

    events = read("events", ["topic", "time"])
    rejected = sum(file.rows for file in files.get("events_rejected", []))
    deployed = read("deployments", ["ended", "status"])
    measures = read("deployment_measures", ["env", "service", "deployments", "per_week", "failure_rate"])
    lag = read("consumer_lag", ["group", "topic", "behind"])
    runs = [run for run in warehouse.runs() if "rows_per_s" in run or run["job"] == "verify"]
    sections = [
        _figure("Events over time, by topic", *_over_time((row["topic"], row["time"]) for row in events)),
        _figure("Deployments by outcome", *_over_time((row["status"], row["ended"]) for row in deployed)),
        _table("Delivery", ("env", "service", "deployments", "per_week", "failure_rate"), measures),
        _figure("Rate of runs, entries a second", *_rates(runs)),
        _figure(
            "Consumer lag, events behind",
            [f"{row['group']}/{row['topic']}" for row in lag],
            {"behind": [float(row["behind"]) for row in lag]},
        ),
        _table(
            "Batches",
            ("number", "rows", "verify", "digest"),
            [
                {"number": m.number, "rows": m.rows, "verify": m.mode, "digest": m.digest[:16] + "…"}
                for m in manifests[-20:]
            ],
        ),
    ]
    made = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    count = sum(file.rows for file in files.get("events", []))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>ropewalk report</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>What the logs say</h1>"
        f"<p>{count} events, {rejected} rejected, {len(manifests)} batches; made {made} from "
        f"<code>{escape(manifests[-1].source if manifests else '')}</code></p>{''.join(sections)}</body></html>\n"
    )


def draw_bars(labels: Sequence[str], series: Series) -> str:
    """Stacked bars as SVG.

    >>> draw_bars(["a"], {"x": [1.0]}).count("<rect")
    1
    """
    totals = [sum(values[at] for values in series.values()) for at in range(len(labels))]
    top = max(totals, default=0) or 1
    step = (WIDTH - LEFT) / max(1, len(labels))
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    for share in (0, 0.5, 1):
        y = (HEIGHT - BOTTOM) * (1 - share) + 8
        parts.append(f'<text x="4" y="{y + 4:.1f}">{top * share:,.4g}</text>')
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#cbd5e0" stroke-width=".5"/>'
        )
    every = max(1, len(labels) // 8)
    for at, label in enumerate(labels):
        base = HEIGHT - BOTTOM + 8.0
        for number, (name, values) in enumerate(series.items()):
            tall = (HEIGHT - BOTTOM) * values[at] / top
            base -= tall
            if tall:
                parts.append(
                    f'<rect x="{LEFT + at * step + 1:.1f}" y="{base:.1f}" width="{max(1.0, step - 2):.1f}" '
                    f'height="{tall:.1f}" fill="{COLOURS[number % len(COLOURS)]}">'
                    f"<title>{escape(label)} {escape(name)}: {values[at]:,.4g}</title></rect>"
                )
        if at % every == 0:
            parts.append(f'<text x="{LEFT + at * step:.1f}" y="{HEIGHT - 16}">{escape(label[:18])}</text>')
    return "".join([*parts, "</svg>"])


def _figure(title: str, labels: Sequence[str], series: Series) -> str:
    if not labels:
        return f"<h2>{escape(title)}</h2><p>nothing yet</p>"
    legend = "".join(
        f'<span><i style="background:{COLOURS[number % len(COLOURS)]}"></i>{escape(name)}</span>'
        for number, name in enumerate(series)
    )
    return f'<h2>{escape(title)}</h2>{draw_bars(labels, series)}<p class="legend">{legend}</p>'


def _table(title: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(row[name]))}</td>" for name in columns) + "</tr>" for row in rows
    )
    return f"<h2>{escape(title)}</h2><table><tr>{head}</tr>{body}</table>"


def _over_time(rows: Iterable[tuple[str, datetime | None]]) -> tuple[list[str], dict[str, list[float]]]:
    """Counts by day (by hour where it is a day or two) for every name, the most frequent names first."""
    found = [(name, moment) for name, moment in rows if moment is not None]
    if not found:
        return [], {}
    first, last = min(moment for _, moment in found), max(moment for _, moment in found)
    form = "%m-%d %H:00" if (last - first).total_seconds() < 2 * 86_400 else "%Y-%m-%d"
    labels = sorted({moment.strftime(form) for _, moment in found})
    place = {label: at for at, label in enumerate(labels)}
    counts: dict[str, list[float]] = {}
    for name, moment in found:
        counts.setdefault(name, [0.0] * len(labels))[place[moment.strftime(form)]] += 1
    return labels, dict(sorted(counts.items(), key=lambda each: -sum(each[1])))


def _rates(runs: Sequence[Mapping[str, Any]]) -> tuple[list[str], dict[str, list[float]]]:
    shown = runs[-24:]
    rates = [
        float(run["rows_per_s"])
        if "rows_per_s" in run
        else run.get("entries", 0) / max(run.get("seconds", 1), 0.01)
        for run in shown
    ]
    return [f"{run['job']} {number + 1}" for number, run in enumerate(shown)], {"entries per second": rates}
