"""Measure how far every consumer group has read its git logs: a few rows, so no Spark."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from ropewalk.errors import RopewalkError
from ropewalk.gitlog.consumers.cursor import height_of, read_cursor, split_ref
from ropewalk.gitlog.core.layout import CONSUMERS
from ropewalk.pipeline.source.git_logs import GitLogs


def write_lag(logs: GitLogs, folder: Path, now_ms: int) -> None:
    """Write the table `consumer_lag` as one file in a folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = []
    for ref in logs.store.head_names(CONSUMERS):
        with contextlib.suppress(RopewalkError):  # a torn cursor or log is reported where it is read
            group, topic = split_ref(ref)
            line = logs.line(topic)
            cursor = read_cursor(logs.store, group, topic)
            height = height_of(line, cursor)
            rows.append(
                {
                    "group": group,
                    "topic": topic,
                    "ulid": cursor.ulid if cursor else None,
                    "height": height,
                    "head": line.head or "",
                    "head_height": line.count - 1,
                    "behind": line.count - 1 - height,
                    "measured": now_ms * 1_000,
                }
            )
    schema = pa.schema(
        [
            ("group", pa.string()),
            ("topic", pa.string()),
            ("ulid", pa.string()),
            ("height", pa.int64()),
            ("head", pa.string()),
            ("head_height", pa.int64()),
            ("behind", pa.int64()),
            ("measured", pa.timestamp("us", tz="UTC")),
        ]
    )
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / "part-00000.parquet")
