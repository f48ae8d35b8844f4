"""`ropewalk pipeline`: tables from logs, on Spark, each row proven and each table provable."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import emit, emit_line, group, parse_input, say, session, write_output
from ropewalk.cli.common.locations import key_folder
from ropewalk.cli.common.options import choice, flag, integer, option, repeated
from ropewalk.cli.common.suggest import did_you_mean
from ropewalk.cli.common.verdict import allow_partly_option, format_report
from ropewalk.cli.pipeline.running import (
    Job,
    as_job,
    check_names,
    clear_progress,
    now_ms,
    progress_line,
    source_option,
    spark_options,
    spark_session,
    warehouse_option,
    watched,
)
from ropewalk.errors import NotFound, Usage
from ropewalk.pipeline.tables.recorded import recorded_source

if TYPE_CHECKING:
    from ropewalk.pipeline.tables.warehouse import Manifest, Warehouse

FAILED = 5
FORM_OF = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}  # by the end of a file's name


@group(
    "pipeline",
    "ropewalk pipeline ingest --warehouse ./tables",
    'ropewalk pipeline sql --warehouse ./tables "SELECT topic, count(*) FROM events GROUP BY topic"',
    "ropewalk pipeline verify --warehouse ./tables --tables",
    lazy={
        "replay": "pipeline.jobs:replay Fold channels into states, verified in parallel.",
        "export": "pipeline.jobs:export Write proof bundles, one per range of heights.",
        "compact": "pipeline.jobs:compact Sign summaries of closed ranges and merge small files.",
        "health": "pipeline.jobs:health Measure ages of attestations and drift of policies.",
        "report": "pipeline.jobs:report Write an HTML report that works offline.",
        "quarantine": "pipeline.quarantine:quarantine List entries that did not verify, and verify them again.",
        "shell": "pipeline.shell:shell Ask the tables with SQL in a prompt, without Java.",
        "doctor": "pipeline.doctor:doctor Check Java, memory, versions and a warehouse.",
    },
)
def pipeline() -> None:
    """Write verified logs to tables with Spark, and query and verify the tables."""


@pipeline.command(
    "ingest",
    "ropewalk pipeline ingest --warehouse ./tables --group analytics",
    "ropewalk pipeline ingest --warehouse ./tables --follow",
)
@warehouse_option
@source_option
@choice(
    "--verify mode",
    ["strict", "quarantine", "off"],
    "strict: refuse the batch; quarantine: write bad entries to events_rejected; off: verify nothing.",
    default="strict",
)
@option("--group", "G", "Move this consumer group's checkpoints behind what was written.")
@option("--engine", "NAME", "gitlog, gossip or ledger; default: all.")
@option("--topics", "A,B", "Only these logs.")
@flag("--follow", "Keep running and ingest new entries as they are appended.")
@flag("--typed", "Also keep one table per event type, events__<type>, from now on.")
@repeated(
    "--schema schemas",
    "TYPE=FILE",
    "With --typed: a JSON Schema whose properties give the columns their types.",
)
@click.option(
    "--progress/--no-progress", default=None, help="Show rows and rows/s on stderr; default: on a terminal."
)
@flag("--delta", "Keep Delta logs of the tables from now on; needs the extra delta.")
@integer("--batch-rows", "N", "Rows a batch, about.", least=1, default=500_000)
@spark_options
@as_job("ingest")
def ingest(
    job: Job,
    mode: Any,
    group: str | None,
    engine: str | None,
    topics: str | None,
    follow: bool,
    typed: bool,
    schemas: tuple[str, ...],
    progress: bool | None,
    delta: bool,
    batch_rows: int,
) -> None:
    """Write new log entries to tables, each exactly once.

    Up to 20,000 new rows are written without starting Java, unless --master or --remote names a cluster.
    """
    from ropewalk.pipeline.jobs.ingest import Ingest
    from ropewalk.pipeline.tables.declared import read_schemas

    store, place = job.store, job.place
    if delta:
        from ropewalk.pipeline.tables.delta import keep_delta

        keep_delta(store)
    check_names(place, engine, topics)
    declared = read_schemas(_named_schemas(schemas, typed))
    started = time.monotonic()

    def tell(manifest: Manifest) -> None:
        clear_progress()
        if follow:
            _tell_batch(manifest, writer.took_s)
        else:
            say(_batch_line(manifest))
        for table, members in sorted(writer.rest.items()):
            say(f"{table}: `_rest` has {', '.join(members)}")

    with job.running_on_demand() as (spark, facts):
        writer = Ingest(
            spark,
            place,
            job.warehouse,
            now_ms=now_ms,
            mode=mode,
            group=group,
            engine=engine,
            topics=topics,
            rows_per_batch=batch_rows,
            typed=typed,
            schemas=declared,
            told=tell,
            on_progress=progress_line("ingest", progress),
        )
        try:
            if follow:
                say(f"following into {store.path}; Ctrl-C ends it")
                facts["follow"] = True
                writer.follow(lambda: False)
                return
            done = writer.once()
        finally:
            clear_progress()
        took = time.monotonic() - started
        facts |= {**done.to_json(), "rows_per_s": round((done.rows + done.rejected) / took, 1)}
    emit(
        {**done.to_json(), "warehouse": str(store.path)},
        lambda: f"ok  {done.rows} rows in {done.batches} batches, {done.rejected} rejected, {took:.1f} s",
    )


def _named_schemas(given: Iterable[str], typed: bool) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for each in given:
        name, mark, path = each.partition("=")
        if not (typed and name and mark and path):
            raise Usage(
                f"--schema {each!r} must be TYPE=FILE, together with --typed",
                advice="As in --typed --schema order.placed=order.json.",
            )
        found[name] = Path(path)
    return found


def _batch_line(manifest: Manifest) -> str:
    about = f"{manifest.rows} rows" if manifest.logs else f"{len(manifest.files)} tables of event types"
    return f"batch {manifest.number}: {about}"


def _tell_batch(manifest: Manifest, took_s: float) -> None:
    """Write a line about a batch that was written while following."""
    rate = round(manifest.rows / max(0.001, took_s), 1)
    if session().json:
        logs = list(manifest.logs)
        emit_line({"batch": manifest.number, "rows": manifest.rows, "rows_per_s": rate, "logs": logs})
    else:
        click.echo(_batch_line(manifest) + (f", {rate:,.0f} rows/s" if manifest.logs else ""))


@pipeline.command(
    "verify",
    "ropewalk pipeline verify --warehouse ./tables",
    "ropewalk pipeline verify --warehouse ./tables --tables",
)
@warehouse_option
@source_option
@flag("--tables of_tables", "Prove that the tables are the fold of the logs.")
@flag("--blocks-only", "Ledger: seals and roots of blocks, not every envelope.")
@option("--engine", "NAME", "gitlog, gossip or ledger; default: all.")
@option("--topics", "A,B", "Only these logs.")
@option("--trust", "F", "Keys that may sign heads and anchors; default: the repository's and yours.")
@allow_partly_option
@spark_options
@click.pass_context
@as_job("verify")
def verify(
    ctx: click.Context,
    job: Job,
    of_tables: bool,
    blocks_only: bool,
    engine: str | None,
    topics: str | None,
    trust: str | None,
    allow_partly: bool,
) -> None:
    """Verify whole logs in parallel, or the tables against the logs. Exit 5 unless the verdict is `passed`."""
    from ropewalk.disk.key_files import public_keys
    from ropewalk.disk.repository_paths import find_repository
    from ropewalk.pipeline.jobs.verify import LogsReport, count_rows, verify_logs
    from ropewalk.pipeline.tables.verify import verify_tables
    from ropewalk.pipeline.tables.warehouse import reached
    from ropewalk.verification import parse_keys

    store = job.store
    if of_tables and (blocks_only or engine or topics or trust):
        raise Usage(
            "--tables compares all tables with all logs, without --blocks-only, --engine, --topics and --trust",
            advice="Verify logs by these options in a second command, without --tables.",
        )
    if not of_tables:
        check_names(job.place, engine, topics)
    started = time.monotonic()
    rows_of = None if of_tables else lambda: count_rows(job.place, engine, topics)
    with job.running(rows=rows_of) as (spark, facts):
        report: LogsReport
        if of_tables:
            report = verify_tables(spark, store, job.source or session().repo)
        else:
            at = reached(store.manifests())
            keys = parse_input(trust, parse_keys)[0] if trust else ()
            own = (*public_keys(find_repository(job.place).keys), *public_keys(key_folder()))
            report, rows = verify_logs(
                spark,
                job.place,
                engine=engine,
                topics=topics,
                deep=not blocks_only,
                keys=keys,
                own_keys=() if trust else own,
                recorded=at if at.points else None,
            )
            _keep_verdicts(store, rows)
        report = replace(report, allow_partly=allow_partly)
        facts |= {
            "ok": report.ok,
            "verdict": report.report.verdict,
            "entries": report.entries,
            "seconds": round(time.monotonic() - started, 2),
            "failed": [step.to_json() for step in report.steps if step.status == "failed"],
        }
    emit(report.to_json(), lambda: format_report(report.report))
    if not report.ok:
        ctx.exit(FAILED)


def _keep_verdicts(store: Warehouse, rows: list[dict[str, Any]]) -> None:
    """Write one verdict row per range to the table `verdicts`."""
    import pyarrow as pa

    from ropewalk.pipeline.source.schemas import VERDICT_COLUMNS, arrow_schema

    table = pa.Table.from_pylist(rows, arrow_schema(VERDICT_COLUMNS, VERDICT_COLUMNS))
    store.note("verdicts", f"verify-{now_ms()}", table)


@pipeline.command("status", "ropewalk pipeline status --warehouse ./tables")
@warehouse_option
@source_option
@integer("--limit", "N", "Only the newest.", least=1, default=20)
def status(warehouse: Path, source: Path | None, limit: int) -> None:
    """What ran, over which ranges, with which roots and rates, and how far the source has grown since."""
    from ropewalk.pipeline.tables.warehouse import Warehouse

    store = Warehouse(warehouse).require()
    batches = store.manifests()
    named = source or session().repo
    found: Path | None = None
    try:
        found = named if named is not None else recorded_source(batches[-1].source) if batches else None
    except NotFound as error:
        say(f"{error.detail}. {error.advice_now}")
    value = {
        "warehouse": str(store.path),
        "source": batches[-1].source if named is None and batches else None if named is None else str(named),
        "logs": [] if found is None else _progress_of(batches, found),
        "batches": [
            {
                "number": each.number,
                "made_ms": each.made_ms,
                "rows": each.rows,
                "verify": each.mode,
                "digest": each.digest,
                "logs": list(each.logs),
            }
            for each in batches[-limit:]
        ],
        "runs": store.runs()[-limit:],
    }
    emit(value, lambda: _status_text(value))


def _progress_of(batches: list[Manifest], source: Path) -> list[dict[str, Any]]:
    """Return how many entries of every log are recorded, and how many there are now."""
    from ropewalk.pipeline.source.query import make_query
    from ropewalk.pipeline.tables.warehouse import reached

    at = reached(batches)
    query = make_query({"repository": str(source), "verify": "quarantine"})
    return [
        {
            "engine": name.engine,
            "topic": name.topic,
            "recorded": at.at(name).position,
            "entries": query.extent(name).end.position,
        }
        for name in query.names()
    ]


def _status_text(value: dict[str, Any]) -> str:
    lines = [f"source {value['source']}"] if value["source"] else []
    lines += [
        f"  {log['engine']:<7} {log['topic']:<24} {log['recorded']} of {log['entries']} entries recorded"
        for log in value["logs"]
    ]
    for batch in value["batches"]:
        lines.append(f"batch {batch['number']}  {batch['rows']} rows  verify={batch['verify']}")
        lines += [
            f"  {log['engine']:<7} {log['topic']:<24} {log['start']}–{log['end'] - 1}  root {log['root'][:16]}…"
            for log in batch["logs"]
        ]
    for run in value["runs"]:
        took = (run.get("ended_ms", run["started_ms"]) - run["started_ms"]) / 1000
        end = "ok" if run.get("ok") else f"FAILED {run.get('error', '')}"
        rate = f"  {run['rows_per_s']:,.0f} rows/s" if "rows_per_s" in run else ""
        lines.append(f"{run['job']:<10} {took:8.1f} s  {end}{rate}")
    return "\n".join(lines) or "nothing has run"


@pipeline.command(
    "tables",
    "ropewalk pipeline tables --warehouse ./tables",
    "ropewalk pipeline tables --warehouse ./tables --format iceberg",
)
@warehouse_option
@choice(
    "--format form",
    ("delta", "iceberg"),
    "Keep the tables in this format too from now on; needs the extra of that name.",
)
@flag("--delta", "The same as --format delta.")
def tables(warehouse: Path, form: str | None, delta: bool) -> None:
    """Which tables there are, how many rows they have, and up to which heads."""
    from ropewalk.pipeline.tables.warehouse import Warehouse

    store = Warehouse(warehouse).require()
    if delta or form is not None:
        from ropewalk.pipeline.tables.delta import keep_delta
        from ropewalk.pipeline.tables.iceberg import keep_iceberg

        (keep_iceberg if form == "iceberg" else keep_delta)(store)
        with store.writing():
            pass  # the writer brings them up to date
    manifests = store.manifests()
    versions: dict[str, int] = {}
    if store.delta_mark.exists():
        from ropewalk.pipeline.tables.delta import delta_versions

        versions = delta_versions(store, manifests)
    found = []
    for name, files in store.current_files(manifests).items():
        last = next(each for each in reversed(manifests) if name in each.files)
        head = {f"{log.engine}/{log.topic}": point.head for log, point in last.end.points.items()}
        rows = sum(file.rows for file in files)
        about = {"name": name, "rows": rows, "path": str(store.path / name), "head": head}
        found.append({**about, "delta_version": versions[name]} if name in versions else about)
    width = max((len(str(each["name"])) for each in found), default=0)
    emit({"tables": found}, (_table_line(each, width) for each in found))


def _table_line(table: dict[str, Any], width: int) -> str:
    delta = f"  delta version {table['delta_version']}" if "delta_version" in table else ""
    return f"{table['name']:<{width}} {table['rows']:>10} rows  {table['path']}{delta}"


@pipeline.command(
    "sql", 'ropewalk pipeline sql --warehouse ./tables "SELECT * FROM deployments WHERE current"'
)
@warehouse_option
@click.argument("query")
@integer("--limit", "N", "Maximum number of rows.", least=1, default=1_000)
@choice(
    "--engine",
    ("auto", "duckdb", "spark"),
    "Query engine; auto is DuckDB unless the query uses `column:member` or --remote is given.",
    default="auto",
)
@choice(
    "--format form",
    ("table", "csv", "json", "parquet"),
    "Output format; json is one object a line, parquet needs --output. Default: table; with --output by the end of its "
    "name, else csv.",
)
@option("-o --output", "F", "Write the answer to this file instead of stdout.")
@spark_options
def sql(
    warehouse: Path,
    query: str,
    limit: int,
    engine: str,
    form: str | None,
    output: str | None,
    master: str,
    remote: str | None,
) -> None:
    """Query the tables with SQL.

    DuckDB answers without starting Java: read JSON columns with `payload->>'$.name'`. With Spark, JSON columns are
    VARIANT: `payload:name::type`.
    """
    from ropewalk.pipeline.tables.duck import ask_duckdb, is_installed, needs_spark
    from ropewalk.pipeline.tables.sql import ask
    from ropewalk.pipeline.tables.warehouse import Warehouse

    if form is None:
        form = "table" if output is None else FORM_OF.get(Path(output).suffix, "csv")
    if form == "parquet" and output is None:
        raise Usage("--format parquet needs --output", advice="Add -o FILE.")
    store = Warehouse(warehouse).require()
    is_local = remote is None and is_installed() and not needs_spark(query)
    if engine == "duckdb" or (engine == "auto" and is_local):
        found = ask_duckdb(store, query, limit + 1, did_you_mean, as_arrow=form == "parquet")
    else:
        with watched("sql", spark_session(master, remote), None) as spark:
            found = ask(spark, store, query, limit + 1, did_you_mean, as_arrow=form == "parquet")
    answer, is_cut = found.head(limit)
    if is_cut:
        say(f"warning: the answer has more than {limit} rows; --limit N takes more")
    if output is None and form == "table":
        emit({**answer.to_json(), "truncated": is_cut}, answer.to_text)
        return
    if form == "parquet":
        raw = answer.to_parquet()
    else:
        text = {"json": answer.to_json_lines, "csv": answer.to_csv, "table": answer.to_text}[form]()
        raw = f"{text}\n".encode() if text else b""
    if output is None:
        click.echo(raw, nl=False)
    else:
        write_output(output, raw)
        emit({"rows": len(answer.rows), "path": output}, lambda: f"ok  {len(answer.rows)} rows in {output}")
