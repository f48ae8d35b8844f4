"""One HTML page about a warehouse: plots as drawings inside the page, nothing fetched, no script.

Reads the Parquet files itself; no Spark is needed to look at what Spark has made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ropewalk.errors import Damaged
from ropewalk.pages import Html, fill
from ropewalk.pipeline.report.plots import (
    buckets,
    choose_unit,
    draw_bars,
    duration,
    number,
    percent,
    section,
    strips,
    table,
)
from ropewalk.pipeline.tables.sql import ask_again, damage_named
from ropewalk.pipeline.tables.warehouse import Manifest, Warehouse

if TYPE_CHECKING:
    import pyarrow as pa

STRIPS_MAX: Final = 12  # names with a separate strip; the rest share one
OTHERS: Final = "others"
RUNS_SHOWN: Final = 12
LOGS_SHOWN: Final = 200
REJECTED_SHOWN: Final = 50
ROWS_OF_LOG: Final = "SELECT * FROM events WHERE engine = {} AND topic = {}"
ENGINES: Final = {
    "gitlog": ("events", "git commits in namespaces and topics"),
    "gossip": ("messages", "signed messages of gossip topics"),
    "ledger": ("envelopes", "signed envelopes in sealed blocks"),
}
BATCHES_SHOWN: Final = 20


def render(warehouse: Warehouse, now_ms: int) -> str:
    """Return the page."""
    warehouse.require()
    return ask_again(warehouse, lambda: _render(warehouse, now_ms))


def _render(warehouse: Warehouse, now_ms: int) -> str:
    manifests = warehouse.manifests()
    files = warehouse.current_files(manifests)

    def read(name: str, columns: list[str]) -> pa.Table:
        return _read(warehouse.paths(files.get(name, [])), columns)

    events = read("events", ["engine", "topic", "time"])
    rejected = read("events_rejected", ["engine", "topic", "position", "entry_id", "detail"])
    deployed = read("deployments", ["env", "status", "ended"])
    lag = read("consumer_lag", ["group", "topic", "behind"]).to_pylist()
    runs = warehouse.runs()
    parts = [
        _facts(events, rejected.num_rows, deployed, lag, runs),
        section("Logs", "rows of the table events", _logs(events)),
        section("Rejected", "entries that did not verify", _rejected(rejected)),
        section("Events over time", "by topic, each to its own height", _over_time(events, "topic", "time")),
        section("Deployments", "by place and outcome", _over_time(deployed, "env", "ended", "status")),
        section("Delivery", "by place and service", _delivery(read("deployment_measures", _MEASURES))),
        section("Runs", "entries a second", _rates(runs)),
        section("Consumer lag", "events behind the head", _lag(lag)),
        section("Health of evidence", "", _health(warehouse.noted("health"))),
        section("States", "what replay came to", _states(warehouse.noted("replays"))),
        section("Batches", "", _batches(manifests)),
    ]
    if not manifests:
        parts = [fill("warehouse", "empty")]
    made = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    source = manifests[-1].source if manifests else str(warehouse.path)
    return fill("warehouse", "page", made=made, source=source, parts=parts) + "\n"


_MEASURES: Final = [
    "env",
    "service",
    "deployments",
    "per_week",
    "failure_rate",
    "lead_time_median_s",
    "recovery_mean_s",
]


def _read(paths: Sequence[Path], columns: list[str]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with damage_named(*paths):
            found = [pq.read_table(path, columns=columns, partitioning=None) for path in paths]
    except pa.ArrowInvalid as error:
        raise Damaged(
            f"{paths[0].parent} must have files with the columns {', '.join(columns)}: {str(error)[:200]}",
            reason="table",
            advice="`ropewalk pipeline verify --tables` names files that no job wrote.",
        ) from error
    return pa.concat_tables(found) if found else pa.table({name: [] for name in columns})


def _facts(
    events: pa.Table, rejected: int, deployed: pa.Table, lag: list[dict[str, Any]], runs: list[dict[str, Any]]
) -> Html:
    """Return the tiles. Those of the engines and the rejected entries add up to the rows; each leads to its rows."""
    verified = [run for run in runs if run["job"] == "verify"]
    last = "none yet" if not verified else "passed" if verified[-1].get("ok") else "FAILED"
    failed = sum(status == "failed" for status in deployed.column("status").to_pylist())
    share = f"{number(failed)} ({percent(failed / deployed.num_rows)})" if deployed.num_rows else "–"
    behind = max((row["behind"] for row in lag), default=None)
    engines = _counts(events, "engine")
    told = [
        ("rows", number(events.num_rows + rejected), "logs", "all entries taken in, valid or not", False),
        *(
            (
                ENGINES.get(engine, (engine, ""))[0],
                number(count),
                "logs",
                ENGINES.get(engine, ("", ""))[1],
                False,
            )
            for engine, count in sorted(engines.items())
        ),
        ("rejected", number(rejected), "rejected", "entries that did not verify", rejected > 0),
        ("deployments", number(deployed.num_rows), "deployments", "of a service to a place", False),
        ("failed", share, "deployments", "deployments that ended in failure", False),
        (
            "furthest behind",
            "–" if behind is None else number(behind),
            "consumer-lag",
            "events the slowest consumer group has not handled",
            False,
        ),
        ("last verification", last, "runs", "of whole logs, by pipeline verify", last == "FAILED"),
    ]
    cells = [
        fill("warehouse", "fact", kind="bad" if bad else "", name=name, value=value, link=link, means=means)
        for name, value, link, means, bad in told
    ]
    return fill("warehouse", "facts", cells=cells)


def _logs(events: pa.Table) -> Html:
    """Return one line a log, with the query that lists its rows."""
    counted = events.group_by(["engine", "topic"]).aggregate([([], "count_all"), ("time", "max")])
    rows = sorted(counted.to_pylist(), key=lambda row: (row["engine"], -row["count_all"], row["topic"]))
    return table(
        (("log", False), ("rows", True), ("newest", False), ("query that lists its rows", False)),
        (
            (
                f"{row['engine']}/{row['topic']}",
                number(row["count_all"]),
                None if row["time_max"] is None else f"{row['time_max']:%Y-%m-%d %H:%M}",
                ROWS_OF_LOG.format(_quoted(row["engine"]), _quoted(row["topic"])),
            )
            for row in rows[:LOGS_SHOWN]
        ),
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _rejected(rejected: pa.Table) -> Html:
    return table(
        (("log", False), ("position", True), ("entry", False), ("reason", False)),
        (
            (f"{row['engine']}/{row['topic']}", number(row["position"]), row["entry_id"], row["detail"])
            for row in rejected.slice(0, REJECTED_SHOWN).to_pylist()
        ),
    )


def _over_time(found: pa.Table, name: str, time: str, series: str | None = None) -> Html:
    """Draw counts in equal steps of time: a strip a name, stacked by `series` if there is one.

    The numbers add up to all rows: those that no step holds, because they carry no time or lie before the first step,
    are counted below the strips.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    what = "events" if series is None else "deployments"
    column = found.column(time)
    dated = found.filter(pc.is_valid(column)) if not pa.types.is_null(column.type) else found.slice(0, 0)
    undated = _counts(found, name)
    undated.subtract(_counts(dated, name))
    if not dated.num_rows:
        return _not_drawn(undated, "no time recorded", what)
    ends = pc.min_max(dated.column(time))
    unit = choose_unit(ends["min"].as_py(), ends["max"].as_py())
    floors = pc.floor_temporal(dated.column(time), unit=unit)
    keys = ["at", name] if series is None else ["at", name, series]
    counted = dated.append_column("at", floors).group_by(keys).aggregate([([], "count_all")]).to_pylist()
    times = buckets(min(row["at"] for row in counted), max(row["at"] for row in counted), unit)
    place = {at: index for index, at in enumerate(times)}
    shown = [each for each, _ in _largest(_counts(dated, name))]
    parts: dict[str, dict[str, list[float]]] = {each: {} for each in shown}
    early: Counter[str] = Counter()
    for row in sorted(counted, key=lambda row: str(row.get(series or name))):
        if row["at"] not in place:
            early[row[name]] += row["count_all"]
            continue
        strip = row[name] if row[name] in shown else OTHERS
        values = parts.setdefault(strip, {}).setdefault(
            strip if series is None else str(row[series]), [0.0] * len(times)
        )
        values[place[row["at"]]] += row["count_all"]
    drawn = {each: values for each, values in parts.items() if values}
    missing = (
        _not_drawn(early, "before the time drawn", what),
        _not_drawn(undated, "no time recorded", what),
    )
    return Html("".join((strips(times, unit, drawn, what), *missing)))


def _counts(found: pa.Table, name: str) -> Counter[str]:
    return Counter({each["values"]: each["counts"] for each in found.column(name).value_counts().to_pylist()})


def _largest(counts: Counter[str]) -> list[tuple[str, int]]:
    """Return the names that get a row, the largest first."""
    return sorted(counts.items(), key=lambda each: (-each[1], str(each[0])))[:STRIPS_MAX]


def _not_drawn(counts: Counter[str], why: str, what: str) -> Html:
    rows = _largest(+counts)
    rest = counts.total() - sum(count for _, count in rows)
    rows += [(OTHERS, rest)] if rest else []
    return draw_bars([(str(name), why, float(count), f"{number(count)} {what}") for name, count in rows])


def _delivery(measures: pa.Table) -> Html:
    columns = (
        ("place", False),
        ("service", False),
        ("deployments", True),
        ("a week", True),
        ("failed", True),
        ("lead time, median", True),
        ("recovery, mean", True),
    )
    return table(
        columns,
        (
            (
                row["env"],
                row["service"],
                number(row["deployments"]),
                number(row["per_week"]),
                percent(row["failure_rate"]),
                duration(row["lead_time_median_s"]),
                duration(row["recovery_mean_s"]),
            )
            for row in measures.to_pylist()
        ),
    )


def _rates(runs: list[dict[str, Any]]) -> Html:
    rows = []
    for run in [run for run in runs if "rows_per_s" in run or "entries" in run][-RUNS_SHOWN:]:
        seconds = float(run.get("seconds") or (run.get("ended_ms", 0) - run["started_ms"]) / 1000) or 0.01
        rate = float(run["rows_per_s"]) if "rows_per_s" in run else run["entries"] / seconds
        when = datetime.fromtimestamp(run["started_ms"] / 1000, UTC).strftime("%d %b %H:%M").lstrip("0")
        rows.append((run["job"], f"{when}, {duration(seconds)}", rate, f"{number(round(rate))} a second"))
    return draw_bars(rows)


def _lag(lag: list[dict[str, Any]]) -> Html:
    rows = [
        (row["group"], row["topic"], float(row["behind"]), f"{number(row['behind'])} behind") for row in lag
    ]
    return draw_bars(sorted(rows, key=lambda row: -row[2]))


def _health(measured: Sequence[Path]) -> Html:
    """Return what the newest measurement said."""
    names = [
        "channel",
        "domain",
        "envelopes",
        "attested",
        "attestation_age_seconds",
        "attestation_chain_valid",
    ]
    rows = _read(measured[-1:], [*names, "policy_hash_mismatch", "stale"]).to_pylist()
    said = {True: "valid", False: "NOT VALID", None: "unknown"}
    return table(
        (
            ("channel", False),
            ("domain", False),
            ("envelopes", True),
            ("attested", True),
            ("newest evidence", True),
            ("chain", False),
            ("other policy", True),
        ),
        (
            (
                row["channel"],
                row["domain"],
                number(row["envelopes"]),
                number(row["attested"]),
                duration(row["attestation_age_seconds"]) + (" STALE" if row["stale"] else ""),
                said[row["attestation_chain_valid"]] if row["attested"] else None,
                number(row["policy_hash_mismatch"]),
            )
            for row in rows
        ),
    )


def _states(replays: Sequence[Path]) -> Html:
    """Return the newest state of every channel by every reducer."""
    names = ["channel", "reducer", "height", "state_root"]
    rows = _read(replays, names).to_pylist()
    newest = {(row["channel"], row["reducer"]): row for row in rows}
    return table(
        (("channel", False), ("reducer", False), ("height", True), ("state root", False)),
        ((*key, number(row["height"]), row["state_root"][:24] + "…") for key, row in sorted(newest.items())),
    )


def _batches(manifests: list[Manifest]) -> Html:
    return table(
        (("number", True), ("made", False), ("rows", True), ("verify", False), ("manifest", False)),
        (
            (
                number(each.number),
                datetime.fromtimestamp(each.made_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M"),
                number(each.rows) if not each.replaces else "merged",
                each.mode,
                each.digest[:24] + "…",
            )
            for each in reversed(manifests[-BATCHES_SHOWN:])
        ),
    )
