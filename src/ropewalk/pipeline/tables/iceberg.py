"""Keep Iceberg tables over the files of a warehouse, in a catalogue of its own: SQLite in `_ropewalk/iceberg`.

As with Delta logs, the manifests stay the truth, the catalogue follows them in one transaction a table, and it can be
deleted. Iceberg names files by absolute paths: a warehouse that was moved needs a new catalogue.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.errors import Damaged, RopewalkError, Unavailable
from ropewalk.pipeline.tables.delta import schema_of
from ropewalk.pipeline.tables.sql import damage_named
from ropewalk.pipeline.tables.warehouse import HOME, ICEBERG, Manifest, StoredFile, Warehouse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

NAMESPACE = "ropewalk"
_COUNTS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


def keep_iceberg(warehouse: Warehouse) -> None:
    """Let every writer of this warehouse keep Iceberg tables from now on."""
    warehouse.make().manifests()
    warehouse.inside(HOME, ICEBERG).mkdir(exist_ok=True)
    _catalog(warehouse).create_namespace_if_not_exists(NAMESPACE)


def follow_iceberg(warehouse: Warehouse, manifests: Sequence[Manifest]) -> None:
    """Make every Iceberg table say what the manifests say. Only the warehouse's writer may."""
    catalog = _catalog(warehouse)
    for name, files in warehouse.current_files(manifests).items():
        with _damage_refused(warehouse, f"table {name}"):
            _follow(warehouse, catalog, name, files, manifests[-1])


def check_iceberg(warehouse: Warehouse, manifests: Sequence[Manifest]) -> str | None:
    """Return what differs between the Iceberg tables and the manifests or the files; None if nothing does.

    Statistics and columns decide what readers see of a file: both must be those of the files.
    """
    catalog = _catalog(warehouse)
    for name, files in warehouse.current_files(manifests).items():
        with _damage_refused(warehouse, f"table {name}"):
            opened = _open(warehouse, catalog, name)
            if opened is None:
                return f"{name} has no Iceberg table"
            wanted = {path: file.size for path, file in _with_rows(warehouse, files).items()}
            found = {path: each.file_size_in_bytes for path, each in _present(opened).items()}
            if found != wanted:
                odd = sorted(found.items() ^ wanted.items())
                return f"the Iceberg table {name} and the manifests differ about {Path(odd[0][0]).name}"
            columns = schema_of(warehouse.paths(files)[-1])
            if odd_one := _odd_columns(opened, columns) or _odd_statistics(opened):
                return f"the Iceberg table {name} and its files differ about {odd_one}"
    return None


@contextmanager
def _damage_refused(warehouse: Warehouse, what: str) -> Iterator[None]:
    """Raise `Damaged` for anything that pyiceberg cannot read."""
    try:
        yield
    except RopewalkError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
            raise  # no rights, a full disk: not damage
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise _damaged(f"the Iceberg {what} cannot be read: {reason[:300]}", warehouse) from error


def _damaged(detail: str, warehouse: Warehouse) -> Damaged:
    folder = warehouse.home / ICEBERG
    advice = f"Delete {folder} and run `ropewalk pipeline tables --format iceberg` again."
    return Damaged(detail, reason="iceberg", advice=advice)


def _odd_columns(opened: Table, columns: pa.Schema) -> str | None:
    """Return what differs from these columns: their names and types, and how readers find them in files."""
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    have = opened.schema()
    if others := {each.name for each in have.fields} ^ set(columns.names):
        return f"column {min(others)}"
    for each in pyarrow_to_schema(columns, name_mapping=have.name_mapping).fields:
        found = have.find_field(each.name)
        if (found.field_type, found.required) != (each.field_type, each.required):
            return f"column {each.name}"
    mapping = opened.name_mapping()  # without one, readers take columns by their place
    if mapping != have.name_mapping and (mapping is not None or _present(opened)):
        return "the names of columns in files"
    return None if opened.spec().is_unpartitioned() else "partitions"


def _odd_statistics(opened: Table) -> str | None:
    """Return the first file with a statistic that is not its own, or with rows that count as deleted."""
    from pyiceberg.io.pyarrow import parquet_file_to_data_file

    for task in opened.scan().plan_files():
        have, path = task.file, Path(task.file.file_path)
        with damage_named(path):
            want = parquet_file_to_data_file(opened.io, opened.metadata, have.file_path)
        if task.delete_files:
            return f"deleted rows of {path.name}"
        if have.record_count != want.record_count:
            return f"record_count of {path.name}"
        if have.split_offsets not in (None, want.split_offsets):  # where readers begin
            return f"split_offsets of {path.name}"
        for each in _COUNTS:
            if not dict(getattr(have, each) or {}).items() <= dict(getattr(want, each) or {}).items():
                return f"{each} of {path.name}"
    return None


def _follow(
    warehouse: Warehouse, catalog: SqlCatalog, name: str, files: Sequence[StoredFile], last: Manifest
) -> None:
    opened = _open(warehouse, catalog, name)
    wanted = _with_rows(warehouse, files)
    columns = schema_of(warehouse.paths(files)[-1])
    present = _present(opened) if opened is not None else {}
    if opened is not None and not _takes(opened, columns):
        catalog.drop_table((NAMESPACE, name))  # the table was made anew, with columns of other types
        opened, present = None, {}
    if opened is None:
        location = str(warehouse.inside(HOME, ICEBERG, name))
        opened = catalog.create_table((NAMESPACE, name), columns, location=location)
    fresh = [path for path in wanted if path not in present]
    gone = present.keys() - wanted.keys()
    if not fresh and not gone:
        return
    about = {"batch": str(last.number), "manifest": last.digest}
    with opened.transaction() as change:
        if set(columns.names) - set(opened.schema().column_names):
            with change.update_schema() as update:
                update.union_by_name(columns)
        if gone:
            with change.update_snapshot(snapshot_properties=about).overwrite() as overwrite:
                for path in gone:
                    overwrite.delete_data_file(present[path])
        if fresh:
            with damage_named(*map(Path, fresh)):
                change.add_files(fresh, about, check_duplicate_files=False)


def _takes(opened: Table, columns: pa.Schema) -> bool:
    """Return whether the table can have these columns; nothing is changed."""
    from pyiceberg.exceptions import ValidationError

    try:
        opened.update_schema().union_by_name(columns)
    except ValidationError:
        return False
    return True


def _open(warehouse: Warehouse, catalog: SqlCatalog, name: str) -> Table | None:
    """Return a table whose every path lies in the warehouse: the catalogue is data that others may have written."""
    from pyiceberg.exceptions import NoSuchTableError

    home = str(warehouse.inside(HOME, ICEBERG, name))
    with closing(sqlite3.connect(warehouse.inside(HOME, ICEBERG, "catalog.db"))) as raw:
        for (where,) in raw.execute(
            "SELECT metadata_location FROM iceberg_tables WHERE table_name = ?", (name,)
        ):
            _require_inside(warehouse, home, [where])
    try:
        opened = catalog.load_table((NAMESPACE, name))
    except NoSuchTableError:
        return None
    told = opened.metadata
    redirected = [value for key, value in told.properties.items() if key.endswith(".path")]
    lists = [each.manifest_list for each in told.snapshots]
    _require_inside(warehouse, home, [f"{told.location}/", *lists, *redirected])
    if (snapshot := opened.current_snapshot()) is not None:
        _require_inside(warehouse, home, [each.manifest_path for each in snapshot.manifests(opened.io)])
    return opened


def _require_inside(warehouse: Warehouse, home: str, paths: Sequence[str]) -> None:
    for path in paths:
        if not path.startswith(f"{home}/") or ".." in path.split("/"):
            raise _damaged(f"the Iceberg catalogue names {path!r}, which must lie in {home}", warehouse)


def _with_rows(warehouse: Warehouse, files: Sequence[StoredFile]) -> dict[str, StoredFile]:
    """Return the files that have rows, by path: a scan of Iceberg never names one that has none."""
    named = zip(warehouse.paths(files), files, strict=True)
    return {str(path): file for path, file in named if file.rows}


def _present(opened: Table) -> dict[str, DataFile]:
    return {task.file.file_path: task.file for task in opened.scan().plan_files()}


def _catalog(warehouse: Warehouse) -> SqlCatalog:
    try:
        from pyiceberg.catalog.sql import SqlCatalog
    except ImportError as error:
        raise Unavailable(
            "Iceberg tables need the pyiceberg library",
            advice='Run: pip install ".[iceberg]" (in a checkout of ropewalk)',
        ) from error
    # It prints a line for every column of every file that has no statistics.
    logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)
    folder = warehouse.inside(HOME, ICEBERG)
    uri = f"sqlite:///{warehouse.inside(HOME, ICEBERG, 'catalog.db')}"
    with _damage_refused(warehouse, "catalogue"):
        return SqlCatalog(NAMESPACE, uri=uri, warehouse=str(folder))
