"""One table for each event type, with the members of the payload as columns: `events__deploy_finished`.

A column keeps the type that it has in the newest file, else has the one that a JSON Schema declares, else the one that
its first rows suggest. New members become new columns; a value of another type, and a member whose name cannot be a
column, go into `_rest`, a JSON object, and are counted. So columns and `_rest` together are always
the payload, and `check_typed` compares them.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from ropewalk.kernel.digest import blake3
from ropewalk.pipeline.source.rows import json_bytes
from ropewalk.pipeline.tables.sql import damage_named

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

PREFIX: Final = "events__"
REST: Final = "_rest"
FIXED: Final = ("engine", "topic", "entry_id", "content_id", "leaf_index", "height", "time", "type", "author")
TYPES_MAX: Final = 200  # tables; events of further types stay in `events` only
COLUMNS_MAX: Final = 200  # members of one type
ROWS_READ: Final = 10_000
ROWS_HELD: Final = 200_000  # before they are written
_NAMED: Final = 5  # members that are named in a report
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}", re.ASCII)
_NOT_PLAIN: Final = re.compile(r"[^a-z0-9]+")
_DECLARED: Final = {
    "boolean": "boolean",
    "integer": "bigint",
    "number": "double",
    "string": "string",
    "array": "json",
    "object": "json",
}
_KINDS: Final = {bool: "boolean", int: "bigint", float: "double", str: "string", list: "json", dict: "json"}


def table_name(event_type: str) -> str:
    """Return the table of an event type.

    >>> table_name("Deploy.Finished"), table_name("…")
    ('events__deploy_finished', 'events__other')
    """
    plain = _NOT_PLAIN.sub("_", event_type.lower()).strip("_")
    return PREFIX + (plain[:60] or "other")


def schema_kinds(schema: Any) -> dict[str, str]:
    """Return the types of the members that a JSON Schema declares; a member of several types is inferred instead.

    >>> schema_kinds({"properties": {"id": {"type": ["integer", "null"]}, "any": {}, "tags": {"type": "array"}}})
    {'id': 'bigint', 'tags': 'json'}
    """
    members = schema.get("properties") if isinstance(schema, dict) else None
    found: dict[str, str] = {}
    for name, about in members.items() if isinstance(members, dict) else ():
        given = about.get("type") if isinstance(about, dict) else None
        types = {given} if isinstance(given, str) else set(given) if isinstance(given, list) else set()
        kinds = {_DECLARED.get(each, "") for each in types - {"null"}}
        if kinds == {"bigint", "double"}:
            kinds = {"double"}
        if len(kinds) == 1 and "" not in kinds:
            found[name] = kinds.pop()
    return found


def count_kinds(payload: Mapping[str, Any], found: dict[str, Counter[str]]) -> None:
    """Count the types of the members of one payload."""
    for name, value in payload.items():
        if (kind := _kind(value)) is not None:
            found.setdefault(name, Counter())[kind] += 1


def choose_kinds(
    found: Mapping[str, Counter[str]], known: Mapping[str, str], declared: Mapping[str, str]
) -> dict[str, str]:
    """Return the type of every column: the known one, else the declared, else the commonest of its values.

    >>> choose_kinds({"n": Counter(bigint=2, double=1), "s": Counter(string=1)}, {}, {"s": "json"})
    {'s': 'json', 'n': 'double'}
    """
    kinds = dict(known)
    taken = {name.lower() for name in (*known, *FIXED)}
    for name in (*sorted(declared), *sorted(found.keys() - declared.keys())):
        if name in kinds or len(kinds) >= COLUMNS_MAX or name.lower() in taken or not _NAME.fullmatch(name):
            continue
        taken.add(name.lower())
        if name in declared:
            kinds[name] = declared[name]
            continue
        kind = found[name].most_common(1)[0][0]
        kinds[name] = "double" if kind == "bigint" and found[name]["double"] else kind
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


@dataclass(slots=True)
class _Table:
    """One table that is being written: the types that were counted, then its columns and rows in Arrow."""

    known: dict[str, str]
    found: dict[str, Counter[str]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    rest: Counter[str] = field(default_factory=Counter)  # rows by member that has no place in a column
    waiting: list[pa.Table] = field(default_factory=list)
    writer: pq.ParquetWriter | None = None

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        import pyarrow as pa

        values = []
        for row in rows:
            fit, rest = split_payload(_members(row["payload"]), self.kinds)
            self.rest.update(name for name, value in rest.items() if value is not None)
            fixed = {name: row[name] for name in FIXED}
            values.append({**fixed, **fit, REST: json_bytes(rest) if rest else None})
        self.waiting.append(pa.Table.from_pylist(values, _schema(self.kinds)))

    def flush(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self.waiting:
            return
        if self.writer is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.writer = pq.ParquetWriter(path, _schema(self.kinds), compression="zstd")
        self.writer.write_table(pa.concat_tables(self.waiting))
        self.waiting.clear()


def write_typed(
    events: Sequence[Path],
    newest: Mapping[str, Path],
    folder: Path,
    declared: Callable[[str], Mapping[str, str]] = lambda _: {},
) -> tuple[dict[str, Path], dict[str, list[str]]]:
    """Write the typed tables of a batch below `folder`; `newest` is the newest file of each table there is.

    `declared` returns the types that a schema gives the members of an event type. The files are read twice, so that
    no more than `ROWS_HELD` rows are in memory. Return the folders by table, and what each table has in `_rest`.
    """
    import pyarrow.parquet as pq

    with damage_named(*newest.values()):
        known = {name: _known_kinds(pq.read_schema(path)) for name, path in newest.items()}
    tables: dict[str, _Table] = {}
    asked: dict[str, dict[str, str]] = {}
    for row in _rows(events):
        name = table_name(row["type"])
        if name not in tables and name not in known and len(tables.keys() | known.keys()) >= TYPES_MAX:
            continue
        table = tables.setdefault(name, _Table(known.get(name, {})))
        if row["type"] not in asked:
            asked[row["type"]] = dict(declared(row["type"]))
        count_kinds(_members(row["payload"]), table.found)
    schemas: dict[str, dict[str, str]] = {}
    for event_type, kinds in sorted(asked.items()):
        name = table_name(event_type)
        schemas[name] = {**kinds, **schemas.get(name, {})}
    for name, table in tables.items():
        table.kinds = choose_kinds(table.found, table.known, schemas[name])
    _write_rows(tables, events, folder)
    rest = {name: _explain_rest(table) for name, table in tables.items() if table.rest}
    return {name: folder / name for name in tables}, rest


def _write_rows(tables: Mapping[str, _Table], events: Sequence[Path], folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        held = 0
        for batch in _batches(events):
            by_table: dict[str, list[dict[str, Any]]] = {}
            for row in batch:
                by_table.setdefault(table_name(row["type"]), []).append(row)
            for name in by_table.keys() & tables.keys():
                tables[name].add(by_table[name])
            held += len(batch)
            if held >= ROWS_HELD:
                _flush(tables, folder, stack)
                held = 0
        _flush(tables, folder, stack)


def _flush(tables: Mapping[str, _Table], folder: Path, stack: contextlib.ExitStack) -> None:
    for name, table in tables.items():
        is_open = table.writer is not None
        table.flush(folder / name / "part-0.parquet")
        if table.writer is not None and not is_open:
            stack.enter_context(table.writer)


def _explain_rest(table: _Table) -> list[str]:
    """Say which members are in `_rest`, of how many rows, and why."""
    said = [
        f"{name} of {count} rows ({f'not {table.kinds[name]}' if name in table.kinds else 'no column'})"
        for name, count in table.rest.most_common(_NAMED)
    ]
    more = len(table.rest) - len(said)
    return [*said, *([f"{more} more members"] if more else [])]


def _batches(events: Iterable[Path]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows that have a type, some thousands at a time."""
    import pyarrow.parquet as pq

    for path in events:
        with damage_named(path), pq.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS_READ, columns=[*FIXED, "payload"]):
                yield [row for row in batch.to_pylist() if row["type"] is not None]


def _rows(events: Iterable[Path]) -> Iterator[dict[str, Any]]:
    return itertools.chain.from_iterable(_batches(events))


def check_typed(typed: Mapping[str, Sequence[Path]], events: Iterable[Path]) -> str | None:
    """Return what differs between typed tables and the events, row by row; None if nothing does.

    Every event of a table's type must have its one row there. A digest a row is held in memory.
    """
    import pyarrow.parquet as pq

    wanted: dict[bytes, str] = {}
    for row in _rows(events):
        name = table_name(row["type"])
        if name in typed or len(typed) < TYPES_MAX:
            wanted[_digest(row, _members(row["payload"]))] = name
    for name, paths in typed.items():
        for path in paths:
            with damage_named(path), pq.ParquetFile(path) as file:
                schema = file.schema_arrow
                for batch in file.iter_batches(ROWS_READ):
                    for row in batch.to_pylist():
                        if wanted.pop(_digest(row, _payload(row, schema)), None) != name:
                            return f"{name}: row {row['topic']}, {row['entry_id']} differs from its event"
    for name, count in Counter(wanted.values()).most_common(1):
        return f"{name}: {count} events have no row"
    return None


def _digest(row: Mapping[str, Any], payload: Mapping[str, Any]) -> bytes:
    fixed = [str(row[name]) if name == "time" else row[name] for name in FIXED]
    return blake3(json_bytes([*fixed, payload]) or b"")


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
