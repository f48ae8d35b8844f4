"""Tables about deployments, made from `events` with DuckDB in the driver: too small to be worth Spark's seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ropewalk.pipeline.source.logs import ROWS_PER_READ
from ropewalk.pipeline.tables.derive import table_schema
from ropewalk.pipeline.tables.duck import open_duckdb, read_parquet

# One deployment for each event, without a look at any other event.
_ROWS = """
SELECT coalesce(found[1], topic) AS env, found[2] AS service, found[3] AS artifact, found[4] AS status,
  try_cast(found[5] AS TIMESTAMPTZ) AS started, try_cast(found[6] AS TIMESTAMPTZ) AS ended,
  try_cast(payload->>'$.committed_at' AS TIMESTAMPTZ) AS committed, found[7] AS reason, found[8] AS ticket,
  author, topic, height, entry_id AS commit
FROM (SELECT *, json_extract_string(entry, ['$.trailer.env', '$.trailer.what.service', '$.trailer.what.artifact',
  '$.trailer.status', '$.trailer.when.start_ts', '$.trailer.when.end_ts', '$.trailer.why.reason',
  '$.trailer.why.ticket']) AS found FROM {events} WHERE engine = 'gitlog' AND verdict = 'passed')
WHERE found[2] IS NOT NULL AND found[4] IS NOT NULL
"""
# What a later deployment may change: the current one of its service and place, and failures that none made good yet.
_OPEN = "current OR (status = 'failed' AND recovery_s IS NULL AND ended IS NOT NULL)"
_RECORDED = """
SELECT env, service, artifact, status, started, ended, committed, reason, ticket, author, topic, height, commit
FROM {recorded} WHERE {open}
"""
# `lead_time_s` counts from the payload's `committed_at`, else from the deployment's start, to its end; `recovery_s` of
# a failed deployment to the end of the next success of that service and place.
_HISTORY = """
SELECT * EXCLUDE stands, epoch_us(ended) // 1000000 - epoch_us(coalesce(committed, started)) // 1000000 AS lead_time_s,
  CASE WHEN status = 'failed' THEN epoch_us(arg_min(ended, height) FILTER (WHERE stands AND ended IS NOT NULL)
    OVER later) // 1000000 - epoch_us(ended) // 1000000 END AS recovery_s,
  stands AND NOT coalesce(bool_or(stands) OVER later, false) AS current
FROM (SELECT *, status IN ('success', 'override', 'finalize', 'revert') AS stands FROM ({rows}))
WINDOW later AS (PARTITION BY topic, env, service ORDER BY height ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)
"""
# The four measures of delivery, by place and service: frequency, lead time, failure rate, time to recover.
_MEASURES = """
SELECT env, service, count(*) AS deployments,
  count(*) FILTER (WHERE status IN ('failed', 'revert')) AS failures, min(ended) AS first, max(ended) AS last,
  round(count(*) / greatest((epoch_us(max(ended)) // 1000000 - epoch_us(min(ended)) // 1000000) / 604800.0, 1.0), 6)
    AS per_week,
  round(count(*) FILTER (WHERE status IN ('failed', 'revert')) / count(*), 6) AS failure_rate,
  quantile_cont(lead_time_s::DOUBLE, 0.5) AS lead_time_median_s, round(avg(recovery_s), 3) AS recovery_mean_s
FROM history WHERE status IN ('success', 'failed', 'revert', 'override', 'finalize')
GROUP BY env, service ORDER BY env, service
"""


def write_deployments(
    events: Sequence[Path], recorded: Sequence[Path], deployments: Path, measures: Path
) -> None:
    """Write both tables, each as one file in the folder of its name: what `events` holds, on top of what is recorded.

    What is recorded is taken over, and only what may still change is computed again: reading every event again for
    every batch would cost ever more.
    """
    import pyarrow.parquet as pq

    rows, settled = _ROWS.format(events=read_parquet(events)), ""
    if recorded:
        before = read_parquet(recorded)
        rows = f"{_RECORDED.format(recorded=before, open=_OPEN)} UNION ALL {rows}"
        settled = f" UNION ALL BY NAME FROM {before} WHERE NOT ({_OPEN})"
    with open_duckdb(spill=deployments.parent / "spill") as connection:
        connection.execute(f"CREATE TABLE changed AS {_HISTORY.format(rows=rows)}")
        connection.execute(f"CREATE VIEW history AS FROM changed{settled}")
        for query, folder in (("FROM history ORDER BY topic, height", deployments), (_MEASURES, measures)):
            folder.mkdir(parents=True, exist_ok=True)
            schema = table_schema(folder.name)
            with pq.ParquetWriter(folder / "part-0.parquet", schema, compression="zstd") as writer:
                for batch in connection.sql(query).to_arrow_reader(ROWS_PER_READ):
                    writer.write_batch(batch.cast(schema))
