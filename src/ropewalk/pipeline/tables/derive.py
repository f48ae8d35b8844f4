"""Tables derived from the rows of the source, in the worker that reads them: no files, no Spark, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from ropewalk.pipeline.source.rows import Columns, Engine, readable, table_time

if TYPE_CHECKING:
    import pyarrow as pa

INGESTED = (
    "engine,topic,entry_id,content_id,parents,height,time,type,payload_json,author,verdict,detail,"
    "block_height,leaf_index,proof,position,entry,notes"
)
"""The columns that ingest reads; `events` and `events_rejected` have them all, with `payload_json` as `payload`."""

Values: TypeAlias = tuple[Any, ...]
TYPES = {
    "blocks": "topic string, height bigint, block_hash string, prev_block_hash string, merkle_root string, "
    "time timestamp, signer string, policy_hash string, envelope_count int, verdict string, detail string",
    "commits": "topic string, height bigint, commit string, parent string, tree string, ulid string, "
    "content_id string, time timestamp, type string, author_name string, author_email string, "
    "author_time timestamp, status string, trailer string, verdict string",
    "gossip_dag": "topic string, message string, parent string, clock bigint, arrival bigint, author string, "
    "verdict string",
    "deployments": "env string, service string, artifact string, status string, started timestamp, ended timestamp, "
    "committed timestamp, reason string, ticket string, author string, topic string, height bigint, commit string, "
    "lead_time_s bigint, recovery_s bigint, current boolean",
    "deployment_measures": "env string, service string, deployments bigint, failures bigint, first timestamp, "
    "last timestamp, per_week double, failure_rate double, lead_time_median_s double, recovery_mean_s double",
}


def events_schema() -> pa.Schema:
    """Return the Arrow schema of `events` and `events_rejected`."""
    import pyarrow as pa

    from ropewalk.pipeline.source.schemas import arrow_schema

    names = INGESTED.split(",")
    return pa.schema(
        [
            field.with_name("payload") if field.name == "payload_json" else field
            for field in arrow_schema(names)
        ]
    )


def table_schema(table: str) -> pa.Schema:
    """Return the Arrow schema of a table.

    >>> table_schema("gossip_dag").names[:3]
    ['topic', 'message', 'parent']
    """
    from ropewalk.pipeline.source.schemas import arrow_schema

    if table not in TYPES:
        return events_schema()
    types = dict(each.rsplit(" ", 1) for each in TYPES[table].split(", "))
    return arrow_schema(types, types)


def derive_rows(rows: Columns, engine: Engine) -> tuple[str, list[Values]]:
    """Return the name of the engine's own table and its rows, derived from rows of the source."""
    table, function = _TABLES[engine]
    return table, list(function(rows.values))


def _blocks(values: dict[str, Any]) -> Iterator[Values]:
    for at, entry in enumerate(values["entry"]):
        if entry is not None and values["leaf_index"][at] == 0:
            yield (
                values["topic"][at],
                values["height"][at],
                values["entry_id"][at],
                entry["prev_block_hash"],
                entry["merkle_root"],
                int(entry["timestamp"]) // 1_000,
                entry["signer"],
                entry["policy_hash"],
                entry["envelope_count"],
                values["verdict"][at],
                values["detail"][at],
            )


def _commits(values: dict[str, Any]) -> Iterator[Values]:
    names = ("entry", "topic", "height", "entry_id", "parents", "content_id", "time_us", "type", "verdict")
    for entry, topic, height, commit, parents, content_id, time_us, kind, verdict in zip(
        *(values[name] for name in names), strict=True
    ):
        if entry is not None:
            author, status = entry.author, entry.said.get("status")
            yield (
                topic,
                height,
                commit,
                parents[0] if parents else None,
                entry.tree,
                entry.ulid,
                content_id,
                time_us,
                kind,
                readable(author.name),
                readable(author.mail),
                table_time(author.time_s * 1_000_000),
                status if isinstance(status, str) else None,
                entry.trailer,
                verdict,
            )


def _gossip_dag(values: dict[str, Any]) -> Iterator[Values]:
    names = ("topic", "entry_id", "parents", "height", "position", "author", "verdict", "content_id")
    for topic, message, parents, clock, arrival, author, verdict, content_id in zip(
        *(values[name] for name in names), strict=True
    ):
        if content_id is not None:
            for parent in parents or (None,):
                yield topic, message, parent, clock, arrival, author, verdict


_TABLES: dict[Engine, tuple[str, Callable[[dict[str, Any]], Iterator[Values]]]] = {
    "ledger": ("blocks", _blocks),
    "gitlog": ("commits", _commits),
    "gossip": ("gossip_dag", _gossip_dag),
}
