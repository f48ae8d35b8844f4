"""One table for each event type, with the members of the payload as columns: `events__deploy_finished`.

A column keeps the type that it has in the newest file, or that its first rows suggest. New members become new columns;
a value of another type goes into `_rest`, a JSON object, and is counted. So columns and `_rest` together are always
the payload, and `check_typed` compares them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from ropewalk.pipeline.source.rows import json_bytes

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX: Final = "events__"
REST: Final = "_rest"
FIXED: Final = ("engine", "topic", "entry_id", "content_id", "leaf_index", "height", "time", "type", "author")
TYPES_MAX: Final = 200  # tables; events of further types stay in `events` only
COLUMNS_MAX: Final = 200  # members of one type
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}", re.ASCII)
_NOT_PLAIN: Final = re.compile(r"[^a-z0-9]+")
_KINDS: Final = {bool: "boolean", int: "bigint", float: "double", str: "string", list: "json", dict: "json"}


def table_name(event_type: str) -> str:
    """Return the table of an event type.

    >>> table_name("Deploy.Finished"), table_name("…")
    ('events__deploy_finished', 'events__other')
    """
    plain = _NOT_PLAIN.sub("_", event_type.lower()).strip("_")
    return PREFIX + (plain[:60] or "other")


def infer_kinds(payloads: Iterable[Mapping[str, Any]], known: Mapping[str, str]) -> dict[str, str]:
    """Return the type of every member: the known one, else the commonest of its values.

    >>> infer_kinds([{"n": 1, "s": "a"}, {"n": 2.5}], {})
    {'n': 'double', 's': 'string'}
    """
    found: dict[str, Counter[str]] = {}
    for payload in payloads:
        for name, value in payload.items():
            if (kind := _kind(value)) is not None:
                found.setdefault(name, Counter())[kind] += 1
    kinds = dict(known)
    taken = {name.lower() for name in (*known, *FIXED)}
    for name, counts in sorted(found.items()):
        if name in kinds or len(kinds) >= COLUMNS_MAX or name.lower() in taken or not _NAME.fullmatch(name):
            continue
        taken.add(name.lower())
        kind = counts.most_common(1)[0][0]
        kinds[name] = "double" if kind == "bigint" and counts["double"] else kind
    return kinds


def _kind(value: Any) -> str | None:
    """Return the type of a value; null and integers beyond 64 bits have none."""
    return None if type(value) is int and not -(2**63) <= value < 2**63 else _KINDS.get(type(value))


def split_payload(
    payload: Mapping[str, Any], kinds: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values that fit their columns, and the rest.

    >>> split_payload({"n": 1, "s": 2, "t": [3]}, {"n": "bigint", "s": "string", "t": "json"})
    ({'n': 1, 't': b'[3]'}, {'s': 2})
    """
    fit: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name, value in payload.items():
        wanted, kind = kinds.get(name), _kind(value)
        if wanted == "json" and kind == "json":
            fit[name] = json_bytes(value)
        elif wanted is not None and (wanted == kind or (wanted, kind) == ("double", "bigint")):
            fit[name] = value
        else:
            rest[name] = value
    return fit, rest


def write_typed(
    events: Sequence[Path], newest: Mapping[str, Path], folder: Path
) -> tuple[dict[str, Path], dict[str, int]]:
    """Write the typed tables of a batch below `folder`; `newest` is the newest file of each table there is.

    Return the folders by table, and how many rows of which table have a value that did not fit its column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: dict[str, list[dict[str, Any]]] = {}
    for path in events:
        columns = [*FIXED, "payload"]
        for row in pq.read_table(path, columns=columns, partitioning=None).to_pylist():
            if row["type"] is not None:
                name = table_name(row["type"])
                if name in rows or name in newest or len(rows.keys() | newest.keys()) < TYPES_MAX:
                    rows.setdefault(name, []).append(row)
    made: dict[str, Path] = {}
    odd: dict[str, int] = {}
    for name, found in rows.items():
        known = _known_kinds(pq.read_schema(newest[name])) if name in newest else {}
        payloads = [_members(row["payload"]) for row in found]
        kinds = infer_kinds(payloads, known)
        parts = [split_payload(payload, kinds) for payload in payloads]
        if misfits := sum(
            any(name in kinds and value is not None for name, value in rest.items()) for _, rest in parts
        ):
            odd[name] = misfits
        schema = _schema(kinds)
        values = [
            {**{each: row[each] for each in FIXED}, **fit, REST: json_bytes(rest) if rest else None}
            for row, (fit, rest) in zip(found, parts, strict=True)
        ]
        made[name] = folder / name
        made[name].mkdir(parents=True, exist_ok=True)
        pq.write_table(
            pa.Table.from_pylist(values, schema), made[name] / "part-0.parquet", compression="zstd"
        )
    return made, odd


def check_typed(typed: Iterable[Path], events: Iterable[Path]) -> str | None:
    """Return what differs between typed tables and the events, by content id; None if nothing does."""
    import pyarrow.parquet as pq

    names = ["engine", "topic", "entry_id", "leaf_index"]
    wanted: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for path in events:
        for row in pq.read_table(path, columns=[*FIXED, "payload"], partitioning=None).to_pylist():
            key = tuple(row[name] for name in names)
            wanted[key] = (*(row[name] for name in FIXED), _members(row["payload"]))
    seen: set[tuple[Any, ...]] = set()
    for path in typed:
        for row in pq.read_table(path, partitioning=None).to_pylist():
            key = tuple(row[name] for name in names)
            found = (*(row[name] for name in FIXED), _payload(row, pq.read_schema(path)))
            if key in seen or wanted.get(key) != found:
                return (
                    f"{path.parent.parent.name}: row {row['topic']}, {row['entry_id']} differs from its event"
                )
            seen.add(key)
    return None


def _members(payload: str | None) -> dict[str, Any]:
    value = None if payload is None else orjson.loads(payload)
    return value if isinstance(value, dict) else {} if value is None else {"": value}


def _payload(row: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    rest = orjson.loads(row[REST]) if row[REST] is not None else {}
    kinds = _known_kinds(schema)
    values = {name: row[name] for name in kinds if row[name] is not None}
    return {**{n: orjson.loads(v) if kinds[n] == "json" else v for n, v in values.items()}, **rest}


def _schema(kinds: Mapping[str, str]) -> pa.Schema:
    """Return the columns in Arrow; a column of JSON text is marked in its metadata."""
    import pyarrow as pa

    from ropewalk.pipeline.source.schemas import COLUMNS, arrow_schema

    types = {**{name: COLUMNS[name] for name in FIXED}, **kinds, REST: "json"}
    schema = arrow_schema(types, {name: "string" if kind == "json" else kind for name, kind in types.items()})
    return pa.schema(
        [
            field.with_metadata({"ropewalk": "json"}) if types[field.name] == "json" else field
            for field in schema
        ]
    )


def _known_kinds(schema: pa.Schema) -> dict[str, str]:
    import pyarrow as pa

    kinds = {pa.bool_(): "boolean", pa.int64(): "bigint", pa.float64(): "double", pa.string(): "string"}
    return {
        field.name: "json" if (field.metadata or {}).get(b"ropewalk") == b"json" else kinds[field.type]
        for field in schema
        if field.name not in (*FIXED, REST)
    }
