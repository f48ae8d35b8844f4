"""Tables about deployments, made from `events` with DuckDB in the driver: too small to be worth Spark's seconds.

A deployment is settled once no later one can change its row. Settled rows stay in the file that the batch wrote; the
others are in one file, `open.parquet`, which every batch with a deployment replaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.pipeline.tables.derive import table_schema
from ropewalk.pipeline.tables.duck import open_duckdb, read_parquet
from ropewalk.pipeline.tables.row_groups import GROUP_ROWS, open_writer
from ropewalk.pipeline.tables.sql import damage_named
from ropewalk.pipeline.tables.table_files import OPEN_FILE, is_replaced

if TYPE_CHECKING:
    import duckdb
    import pyarrow.parquet as pq

ROWS_AT_ONCE = 100_000
HEIGHTS = 4096  # events are counted by so many heights, to cut them into parts

_PASSED = "engine = 'gitlog' AND verdict = 'passed'"
# One deployment for each event, without a look at any other event.
_ROWS = """
SELECT coalesce(found[1], topic) AS env, found[2] AS service, found[3] AS artifact, found[4] AS status,
  {started} AS started, {ended} AS ended, {committed} AS committed, found[7] AS reason, found[8] AS ticket,
  author, topic, height, entry_id AS commit
FROM (SELECT *, json_extract_string(entry, ['$.trailer.env', '$.trailer.what.service', '$.trailer.what.artifact',
  '$.trailer.status', '$.trailer.when.start_ts', '$.trailer.when.end_ts', '$.trailer.why.reason',
  '$.trailer.why.ticket']) AS found FROM {events} WHERE {part})
WHERE found[2] IS NOT NULL AND found[4] IS NOT NULL
"""
# A time in the years 1 to 9999, which every reader can show: an event can name any other, also 'infinity'.
_TIME = """CASE WHEN try_cast({0} AS TIMESTAMPTZ) >= '0001-01-01' AND try_cast({0} AS TIMESTAMPTZ) < '10000-01-01'
  THEN try_cast({0} AS TIMESTAMPTZ) END"""
# What a later deployment may change: the current one of its service and place, and failures that none made good yet.
_OPEN = "current OR (status = 'failed' AND recovery_s IS NULL AND ended IS NOT NULL)"
_CARRIED = """
SELECT env, service, artifact, status, started, ended, committed, reason, ticket, author, topic, height, commit
FROM open UNION ALL
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
# The four measures of delivery, by place and service: frequency, lead time, failure rate, time to recover. The median
# is taken of counted times, for DuckDB's own holds every value in memory.
_MEASURES = """
WITH delivered AS (
  SELECT * FROM history WHERE status IN ('success', 'failed', 'revert', 'override', 'finalize')
), counted AS (
  SELECT env, service, lead_time_s, count(*) AS times FROM delivered WHERE lead_time_s IS NOT NULL GROUP BY ALL
), ranked AS (
  SELECT *, sum(times) OVER (PARTITION BY env, service ORDER BY lead_time_s) * 2 AS upto,
    sum(times) OVER (PARTITION BY env, service) AS whole FROM counted
), medians AS (
  SELECT env, service, (min(lead_time_s) FILTER (upto >= whole) + min(lead_time_s) FILTER (upto > whole)) / 2.0
    AS lead_time_median_s FROM ranked GROUP BY env, service
), sums AS (
  SELECT env, service, count(*) AS deployments,
    count(*) FILTER (WHERE status IN ('failed', 'revert')) AS failures, min(ended) AS first, max(ended) AS last,
    round(count(*) / greatest((epoch_us(max(ended)) // 1000000 - epoch_us(min(ended)) // 1000000) / 604800.0, 1.0), 6)
      AS per_week,
    round(count(*) FILTER (WHERE status IN ('failed', 'revert')) / count(*), 6) AS failure_rate,
    round(avg(recovery_s), 3) AS recovery_mean_s
  FROM delivered GROUP BY env, service
)
SELECT sums.* EXCLUDE recovery_mean_s, lead_time_median_s, recovery_mean_s
FROM sums LEFT JOIN medians USING (env, service) ORDER BY env, service
"""


def write_deployments(
    events: Sequence[Path], recorded: Sequence[Path], deployments: Path, measures: Path
) -> None:
    """Write both tables into the folders of their names: what `events` holds, on top of the recorded `deployments`.

    Of those only the open ones are computed again, with about `ROWS_AT_ONCE` new ones at a time: memory grows with the
    open ones, not with the table. The measures are taken of all rows, of six narrow columns.
    """
    for folder in (deployments, measures):
        folder.mkdir(parents=True, exist_ok=True)
    replaced = [path for path in recorded if is_replaced(path.name)]
    rows, settled = read_parquet(events), deployments / "part-0.parquet"
    with damage_named(*recorded, *events), open_duckdb(spill=deployments.parent / "spill") as connection:
        connection.execute(f"CREATE TABLE open AS {_history(rows, 'false')}")
        with open_writer(settled, table_schema("deployments")) as writer:
            count = 0
            if replaced:
                before = read_parquet(replaced)
                connection.execute(f"INSERT INTO open BY NAME FROM {before} WHERE {_OPEN}")
                # Earlier versions kept all deployments in one file.
                count += _write(connection, f"FROM {before} WHERE NOT ({_OPEN})", writer)
            for part in _parts(connection, rows):
                made = _history(rows, part, _CARRIED)
                connection.execute(f"CREATE OR REPLACE TABLE changed AS {made}")
                connection.execute(f"CREATE OR REPLACE TABLE open AS FROM changed WHERE {_OPEN}")
                done = f"FROM changed WHERE NOT ({_OPEN}) ORDER BY topic, height"
                count += _write(connection, done, writer)
        if not count:
            settled.unlink()
        with open_writer(deployments / OPEN_FILE, table_schema("deployments")) as writer:
            _write(connection, "FROM open ORDER BY topic, height", writer)
        files = [*(path for path in recorded if path not in replaced), *sorted(deployments.glob("*.parquet"))]
        connection.execute(f"CREATE VIEW history AS FROM {read_parquet(files)}")
        with open_writer(measures / "part-0.parquet", table_schema("deployment_measures")) as writer:
            _write(connection, _MEASURES, writer)


def _history(events: str, part: str, before: str = "") -> str:
    """Return the query for the deployments of a part of some events, after the rows of `before`."""
    named = {"started": "found[5]", "ended": "found[6]", "committed": "(payload->>'$.committed_at')"}
    times = {name: _TIME.format(text) for name, text in named.items()}
    return _HISTORY.format(rows=f"{before} {_ROWS.format(events=events, part=part, **times)}")


def _parts(connection: duckdb.DuckDBPyConnection, events: str) -> Iterator[str]:
    """Cut events into parts of about `ROWS_AT_ONCE`, log by log, each in order; yield the condition of each."""
    counts = connection.execute(
        f"FROM {events} SELECT topic, height // {HEIGHTS} AS span, count(*) WHERE {_PASSED} GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    start, rows = "", 0
    for at, (topic, number, count) in enumerate(counts):
        name = "'" + topic.replace("'", "''") + "'"
        start = (
            start
            or f"(topic > {name} OR topic = {name} AND height >= {number * HEIGHTS}) AND topic >= {name}"
        )
        rows += count
        if rows >= ROWS_AT_ONCE or at == len(counts) - 1:
            end = f"(topic < {name} OR topic = {name} AND height < {(number + 1) * HEIGHTS}) AND topic <= {name}"
            yield f"{_PASSED} AND {start} AND {end}"
            start, rows = "", 0


def _write(connection: duckdb.DuckDBPyConnection, query: str, writer: pq.ParquetWriter) -> int:
    """Write the answer to a query; return how many rows it has."""
    rows = 0
    for batch in connection.sql(query).to_arrow_reader(GROUP_ROWS):
        writer.write_batch(batch.cast(writer.schema))
        rows += batch.num_rows
    return rows
