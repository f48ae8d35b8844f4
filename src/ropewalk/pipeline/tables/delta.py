"""Keep a Delta log for every table, so that readers who do not know the manifests see the same rows.

The manifests stay the truth; a Delta log follows them. It is brought up to date with every batch and every merge,
before files that were replaced are removed, and again by the next writer where one died in between. It is
compared with what the manifests say, so doing it twice changes nothing. It can be deleted; it is made again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ropewalk.errors import Damaged, Unavailable
from ropewalk.pipeline.tables.row_groups import column_range
from ropewalk.pipeline.tables.sql import damage_named
from ropewalk.pipeline.tables.warehouse import DELTA_LOG, Manifest, StoredFile, Warehouse

if TYPE_CHECKING:
    from deltalake import DeltaTable, Field

WRITER = "ropewalk"  # the application whose transaction numbers are our batch numbers


def require_delta() -> None:
    """Refuse with the line that helps where the library is missing."""
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise Unavailable(
            "a Delta log needs the deltalake library",
            advice='Run: pip install ".[delta]" (in a checkout of ropewalk)',
        ) from error


def keep_delta(warehouse: Warehouse) -> None:
    """Keep Delta logs of the tables from now on, in every writer of this warehouse."""
    require_delta()
    warehouse.make().manifests()
    warehouse.delta_mark.touch()


def follow_delta(warehouse: Warehouse, manifests: Sequence[Manifest]) -> None:
    """Make the Delta log of every table say what the manifests say. Only the warehouse's writer may."""
    require_delta()
    for table, files in warehouse.current_files(manifests).items():
        _follow(warehouse, table, files, manifests)


def delta_versions(warehouse: Warehouse, manifests: Iterable[Manifest]) -> dict[str, int]:
    """Return the version of every Delta log there is."""
    found = {}
    for table in warehouse.current_files(manifests):
        opened = _open(warehouse, table)
        if opened is not None:
            found[table] = opened.version()
    return found


def check_delta(warehouse: Warehouse, manifests: Sequence[Manifest]) -> str | None:
    """Return what differs between the Delta logs and the manifests or the files; None if nothing does.

    Statistics and columns decide what readers see of a file: both must be those of the files.
    """
    for table, files in warehouse.current_files(manifests).items():
        opened = _open(warehouse, table)
        if opened is None:
            return f"{table} has no Delta log"
        wanted = {_inside(table, file.name): file.size for file in files}
        if _present(opened) != wanted:
            odd = sorted(_present(opened).items() ^ wanted.items())
            return f"the Delta log of {table} and the manifests differ about {odd[0][0]}"
        try:
            if odd_one := _odd_columns(opened, warehouse.paths(files)[-1]) or _odd_statistics(
                opened, warehouse.inside(table), files
            ):
                return f"the Delta log of {table} and its files differ about {odd_one}"
        except Damaged as error:
            return error.detail
    return None


def _odd_columns(opened: DeltaTable, newest: Path) -> str | None:
    """Return what differs from the columns of the newest file, which has all of its table's, or hides rows."""
    from deltalake import Schema

    if "deletionVectors" in (opened.protocol().reader_features or ()):
        return "deleted rows"
    if "delta.columnMapping.mode" in opened.metadata().configuration:
        return "the names of columns in files"

    have, want = opened.schema().fields, Schema.from_arrow(schema_of(newest)).fields
    differs = set(map(_column, have)) ^ set(map(_column, want))
    if differs:
        return f"column {min(differs)[0]}"
    return "partitions" if opened.metadata().partition_columns else None


def _column(field: Field) -> tuple[str, str, bool]:
    """Return what readers go by; where a column is never null, they answer `IS NULL` without looking."""
    return field.name, str(field.type), field.nullable


def _odd_statistics(opened: DeltaTable, folder: Path, files: Iterable[StoredFile]) -> str | None:
    """Return the first file with a statistic that is not its own; readers skip none for one that is missing."""
    rows = {_inside(folder.name, file.name): file.rows for file in files}
    for action in _actions(opened):
        name = unquote(action.pop("path"))
        own = json.loads(_statistics(folder / name, rows[name]))
        want: dict[str, Any] = {"num_records": own["numRecords"]}
        for side in ("min", "max"):
            for column, value in own[f"{side}Values"].items():
                want[f"{side}.{column}"] = datetime.fromisoformat(value) if column == "time" else value
        for key, value in action.items():
            if (
                key not in ("size_bytes", "modification_time")
                and value is not None
                and want.get(key) != value
            ):
                return f"{key} of {name}"
    return None


def _follow(
    warehouse: Warehouse, table: str, files: Sequence[StoredFile], manifests: Sequence[Manifest]
) -> None:
    from deltalake import Schema
    from deltalake.transaction import (
        AddAction,
        CommitProperties,
        RemoveAction,
        Transaction,
        create_table_with_add_actions,
    )

    folder = warehouse.inside(table)
    wanted = {_inside(table, file.name): file for file in files}
    paths = {
        _inside(table, file.name): path for file, path in zip(files, warehouse.paths(files), strict=True)
    }
    opened = _open(warehouse, table)
    present = {} if opened is None else _present(opened)
    done = 0 if opened is None else opened.transaction_version(WRITER) or 0
    since = [each for each in manifests if each.number > done and table in each.files]
    fresh = [name for name, file in wanted.items() if present.get(name) != file.size]
    gone = sorted(present.keys() - wanted.keys())
    if opened is not None and not fresh and not gone:
        return
    changes = not since or any(not each.replaces or each.logs for each in since)  # a merge changes no row
    adds = [
        AddAction(
            name,
            wanted[name].size,
            {},
            paths[name].stat().st_mtime_ns // 1_000_000,
            changes,
            _statistics(paths[name], wanted[name].rows),
        )
        for name in fresh
    ]
    last = manifests[-1]
    properties = CommitProperties(
        custom_metadata={"batch": str(last.number), "manifest": last.digest},
        app_transactions=[Transaction(WRITER, last.number)],
    )
    if opened is None:
        schema = Schema.from_arrow(schema_of(paths[fresh[-1]]))
        create_table_with_add_actions(str(folder), schema, adds, name=table, commit_properties=properties)
        return
    columns = Schema.from_arrow(schema_of(paths[_inside(table, files[-1].name)]))
    if (
        len(gone) == len(present) and columns != opened.schema()
    ):  # made anew, perhaps with columns of other types
        opened.create_write_transaction([*adds], "overwrite", columns, commit_properties=properties)
        return
    known = {each.name for each in opened.schema().fields}
    if new := [each for each in columns.fields if each.name not in known]:
        opened.alter.add_columns(new)
    removes = [RemoveAction(name, changes, last.made_ms, present[name], {}) for name in gone]
    opened.create_write_transaction(
        [*adds, *removes], "append", opened.schema(), commit_properties=properties
    )


def _open(warehouse: Warehouse, table: str) -> DeltaTable | None:
    folder, log = warehouse.inside(table), warehouse.inside(table, DELTA_LOG)
    if not log.is_dir():
        return None
    for each in log.iterdir():
        warehouse.inside(table, DELTA_LOG, each.name)
    require_delta()
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return DeltaTable(str(folder))
    except TableNotFoundError:
        return None
    except DeltaError as error:
        raise Damaged(
            f"the Delta log of {folder.name} cannot be read: {str(error).splitlines()[0][:200]}",
            reason="delta",
            advice=f"Delete {folder / DELTA_LOG}; the next run makes it again from the manifests.",
        ) from error


def _present(opened: DeltaTable) -> dict[str, int]:
    return {unquote(each["path"]): each["size_bytes"] for each in _actions(opened)}  # as the log spells them


def _actions(opened: DeltaTable) -> list[dict[str, Any]]:
    """Return the files that the log names, with their sizes and statistics."""
    import pyarrow as pa

    found: Any = pa.table(opened.get_add_actions(flatten=True))
    return list(found.to_pylist())


def schema_of(path: Path) -> Any:
    """Return the columns in Arrow."""
    import pyarrow.parquet as pq

    with damage_named(path):
        return pq.read_schema(path).remove_metadata()


def _inside(table: str, name: str) -> str:
    return name.removeprefix(f"{table}/")


def _statistics(path: Path, rows: int) -> str:
    """Return what lets readers pass over a file: its rows, and its smallest and largest log and time."""
    with damage_named(path):
        found = {name: column_range(path, name) for name in ("topic", "time")}
    low = {name: each[0] for name, each in found.items() if each is not None}
    high = {name: each[1] for name, each in found.items() if each is not None}
    if "time" in low:  # Delta compares milliseconds
        low["time"], high["time"] = _stamp(low["time"]), _stamp(high["time"] + timedelta(milliseconds=1))
    return json.dumps({"numRecords": rows, "minValues": low, "maxValues": high})


def _stamp(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
