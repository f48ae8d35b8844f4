"""The columns of the source: names, types in Spark and in Arrow, and which of them a read returns by default.

`docs/reference/tables.md` describes them; a test holds the page and this table together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import orjson

from ropewalk.errors import InvalidName
from ropewalk.pipeline.source import variant
from ropewalk.pipeline.source.rows import ROW_NAMES, Columns, entry_bytes

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: dict[str, str] = {
    "engine": "string",
    "topic": "string",
    "entry_id": "string",
    "content_id": "string",
    "parents": "array<string>",
    "height": "bigint",
    "time": "timestamp",
    "type": "string",
    "payload": "variant",
    "author": "string",
    "verdict": "string",
    "detail": "string",
    "block_height": "bigint",
    "leaf_index": "int",
    "proof": "array<string>",
    "position": "bigint",
    "entry": "string",
    "notes": "binary",
    "payload_json": "string",
}
SHARED_COLUMNS: tuple[str, ...] = tuple(COLUMNS)[:12]
LEDGER_COLUMNS: tuple[str, ...] = tuple(COLUMNS)[12:15]
VERDICT_COLUMNS: dict[str, str] = {
    "engine": "string",
    "topic": "string",
    "start": "bigint",
    "end": "bigint",
    "entries": "bigint",
    "verdict": "string",
    "entry_id": "string",
    "detail": "string",
    "span": "string",
}
CHECK_COLUMNS: dict[str, str] = {**VERDICT_COLUMNS, "marks": "array<bigint>", "asked": "bigint"}
"""What a check hands out; what is beyond the verdict serves to look across ranges."""


def choose_columns(engines: Iterable[str], wanted: str | None) -> tuple[str, ...]:
    """Return the columns of a read: those that were asked for, else all of the engine's own.

    >>> choose_columns(["gossip"], "topic, height")
    ('topic', 'height')
    >>> choose_columns(["ledger"], None)[-1]
    'proof'
    """
    if wanted is None:
        return SHARED_COLUMNS + (LEDGER_COLUMNS if "ledger" in engines else ())
    names = tuple(name.strip() for name in wanted.split(",") if name.strip())
    for name in names:
        if name not in COLUMNS:
            raise InvalidName(
                f"there is no column {name!r}", name=name, advice=f"The columns are {', '.join(COLUMNS)}."
            )
    if not names:
        raise InvalidName("no column is named", name=wanted, advice=f"The columns are {', '.join(COLUMNS)}.")
    return names


def ddl(columns: Iterable[str], types: dict[str, str] = COLUMNS) -> str:
    """Return the columns as Spark writes a schema.

    >>> ddl(["topic", "height"])
    '`topic` string, `height` bigint'
    """
    return ", ".join(f"`{name}` {types[name]}" for name in columns)


def arrow_schema(columns: Iterable[str], types: dict[str, str] = COLUMNS, *, text: bool = False) -> pa.Schema:
    """Return the columns in Arrow; with `text`, VARIANT columns are JSON texts, for readers that lack VARIANT."""
    import pyarrow as pa

    kinds = {
        "string": pa.string(),
        "array<bigint>": pa.list_(pa.int64()),
        "bigint": pa.int64(),
        "binary": pa.binary(),
        "boolean": pa.bool_(),
        "double": pa.float64(),
        "int": pa.int32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "array<string>": pa.list_(pa.string()),
        "variant": pa.string() if text else _variant_type(),
    }
    return pa.schema([pa.field(name, kinds[types[name]]) for name in columns])


def arrow_batch(rows: Columns, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as one Arrow batch of these columns."""
    import pyarrow as pa

    arrays = []
    for field in schema:
        values = rows.values[ROW_NAMES.get(field.name, field.name)]
        if field.name == "entry":
            values = [entry_bytes(each) for each in values]
        elif pa.types.is_struct(field.type):
            values = [_as_variant(each) for each in values]
        arrays.append(values if isinstance(values, pa.Array) else pa.array(values, field.type))
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return batch if rows.keep is None else batch.filter(pa.array(rows.keep, pa.bool_()))


def _as_variant(text: bytes | None) -> dict[str, bytes] | None:
    if text is None:
        return None
    body, dictionary = variant.encode(orjson.loads(text))
    return {"value": body, "metadata": dictionary}


def _variant_type() -> pa.DataType:
    import pyarrow as pa

    return pa.struct(
        [
            pa.field("value", pa.binary(), nullable=False),
            # Spark knows a VARIANT in Arrow by this mark.
            pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
        ]
    )
