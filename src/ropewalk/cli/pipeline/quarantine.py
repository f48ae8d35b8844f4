"""`ropewalk pipeline quarantine`: what did not verify, and what became of it."""

from __future__ import annotations

from pathlib import Path

from ropewalk.cli.common.command import emit, group
from ropewalk.cli.common.options import integer
from ropewalk.cli.pipeline.running import (
    Job,
    as_job,
    now_ms,
    progress_line,
    source_option,
    spark_options,
    warehouse_option,
)

LISTED = (
    "SELECT engine, topic, position, entry_id, detail FROM events_rejected ORDER BY engine, topic, position"
)


@group("quarantine", "ropewalk pipeline quarantine ls --warehouse ./tables")
def quarantine() -> None:
    """List entries that did not verify, and verify them again."""


@quarantine.command("ls", "ropewalk pipeline quarantine ls --warehouse ./tables")
@warehouse_option
@integer("--limit", "N", "Maximum number of rows.", least=1, default=100)
def list_rejected(warehouse: Path, limit: int) -> None:
    """List the rows of `events_rejected` with the reason of each."""
    from ropewalk.pipeline.tables.duck import ask_duckdb
    from ropewalk.pipeline.tables.warehouse import Warehouse

    answer = ask_duckdb(Warehouse(warehouse).require(), LISTED, limit)
    emit(answer.to_json(), answer.to_text if answer.rows else lambda: "nothing is in quarantine")


@quarantine.command("retry", "ropewalk pipeline quarantine retry --warehouse ./tables")
@warehouse_option
@source_option
@spark_options
@as_job("retry")
def retry(job: Job) -> None:
    """Verify entries in quarantine again, after a log was repaired. What holds moves to the tables.

    If nothing changed, no table is written. Otherwise all tables are made anew from the logs, up to the recorded heads.
    """
    from ropewalk.pipeline.jobs.ingest import Ingest

    job.store.require()
    with job.running_on_demand() as (spark, facts):
        writer = Ingest(
            spark,
            job.place,
            job.warehouse,
            now_ms=now_ms,
            mode="quarantine",
            on_progress=progress_line("retry", None),
        )
        before, after = writer.retry()
        told = {"before": before, "after": after, "released": before - after}
        facts |= told
    emit(told, lambda: f"ok  {before - after} of {before} rows left quarantine, {after} stay")
