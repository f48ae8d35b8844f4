"""How rows lie in the files of a table: row groups of one log; in partitioned tables a folder for each day and log.

Readers skip row groups by their smallest and largest `topic` and `time`, and whole folders by `date` and `log`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ropewalk.kernel.digest import blake3

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# Their columns are fixed: no member of a payload can be named as a folder, `date` or `log`.
PARTITIONED: Final = ("events", "events_rejected", "blocks", "commits")
BY_DATE_AND_LOG: Final = "date,log"
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"  # what Hive, Spark, DuckDB and Polars read as null
GROUP_ROWS: Final = 20_000
FILE_ROWS: Final = 1_000_000
NAME_CHARS: Final = 240  # of a folder; most file systems stop at 255 bytes
HELD_ROWS: Final = 200_000  # before they are written
OPEN_FILES: Final = 64
# Unique in every row: a dictionary of these would cost time and save nothing.
PLAIN_COLUMNS: Final = frozenset(
    ("content_id", "payload", "notes", "proof", "entry_id", "entry", "trailer", "commit")
)


def open_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Return a writer of a table's file, with statistics of the columns that readers filter by."""
    import pyarrow.parquet as pq

    coded: Any = [name for name in schema.names if name not in PLAIN_COLUMNS]  # the stubs know no list here
    return pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=coded, write_statistics=coded)


def is_partitioned(name: str) -> bool:
    """Return whether a file of a warehouse lies in the folder of a day and a log.

    >>> is_partitioned("events/batch=2/date=2026-11-18/log=prod/part-0.parquet"), is_partitioned("a/batch=2/p.parquet")
    (True, False)
    """
    return name.count("/") == 4


def _folder_of(log: str) -> str:
    """Return the name of a log's folder: quoted, and where that is too long for a file system, cut with a hash.

    >>> _folder_of("jobs/pending"), len(_folder_of("a/" * 99 + "a"))
    ('jobs%2Fpending', 225)
    """
    name = quote(log, safe="")
    return name if len(name) <= NAME_CHARS else f"{name[:160]}~{blake3(log.encode()).hex()}"


def holds_one_log(path: Path) -> bool:
    """Return whether every row group of a file holds rows of one log only, as its statistics say."""
    return all(low is not None and low == high for low, high in _bounds(path, "topic"))


def column_range(path: Path, column: str) -> tuple[Any, Any] | None:
    """Return the smallest and the largest value of a column in a file, by its statistics; None if they do not say."""
    found = _bounds(path, column)
    if not found or any(low is None for low, _ in found):
        return None
    return min(low for low, _ in found), max(high for _, high in found)


def _bounds(path: Path, column: str) -> list[tuple[Any, Any]]:
    import pyarrow.parquet as pq

    about = pq.read_metadata(path)
    leaves = [about.schema.column(at).path for at in range(about.num_columns)]
    if column not in leaves:
        return []
    groups = (
        about.row_group(at).column(leaves.index(column)).statistics for at in range(about.num_row_groups)
    )
    return [
        (each.min, each.max) if each is not None and each.has_min_max else (None, None) for each in groups
    ]


def write_grouped(
    files: Iterable[Path], folder: Path, schema: pa.Schema, *, partitioned: bool = False
) -> None:
    """Write the rows of some files again, in few files whose row groups hold one log each.

    If `partitioned`, a file holds one day (UTC) and one log, and its folder says which. Columns that a file lacks are
    null. At least one file is written, so that readers find the columns.
    """
    import pyarrow.parquet as pq

    with _Grouped(folder, schema, partitioned) as out:
        for path in files:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(GROUP_ROWS):
                    out.add(batch)


class _Grouped:
    """Files that are being written; rows wait until they fill a row group."""

    def __init__(self, folder: Path, schema: pa.Schema, partitioned: bool) -> None:
        self._folder, self._schema, self._partitioned = folder, schema, partitioned
        self._waiting: dict[str, list[pa.Table]] = {}
        self._rows: Counter[str] = Counter()  # that wait
        self._open: dict[str, tuple[pq.ParquetWriter, int]] = {}  # by folder, with the rows written
        self._files = 0

    def __enter__(self) -> _Grouped:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._flush(list(self._waiting))
            if not self._files:
                self._writer(f"date={NO_VALUE}/log={NO_VALUE}" if self._partitioned else "")
        for writer, _ in self._open.values():
            writer.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Take some rows, in the order of their log."""
        import pyarrow as pa
        import pyarrow.compute as pc

        present = set(batch.schema.names)
        rows = pa.table(
            [
                batch.column(field.name).cast(field.type)
                if field.name in present
                else pa.nulls(batch.num_rows, field.type)
                for field in self._schema
            ],
            schema=self._schema,
        )
        keys = self._keys(rows)
        for at, key in enumerate(keys.dictionary.to_pylist()):
            part = rows if len(keys.dictionary) == 1 else rows.filter(pc.equal(keys.indices, at))
            self._waiting.setdefault(key, []).append(part)
            self._rows[key] += part.num_rows
            if self._rows[key] >= GROUP_ROWS:
                self._flush([key])
        if self._rows.total() >= HELD_ROWS:
            self._flush(list(self._waiting))

    def _keys(self, rows: pa.Table) -> pa.DictionaryArray[Any, Any]:
        """Return the folder of every row in a partitioned table, else its log."""
        import pyarrow as pa
        import pyarrow.compute as pc

        logs = pc.fill_null(rows.column("topic"), NO_VALUE)
        keys = logs
        if self._partitioned:
            days = rows.column("time").cast(pa.timestamp("us")).cast(pa.date32()).cast(pa.string())
            names = pc.dictionary_encode(logs.combine_chunks())
            quoted = pa.array([_folder_of(name) for name in names.dictionary.to_pylist()], pa.string())
            logs = quoted.take(names.indices)
            keys = pc.binary_join_element_wise(
                "date=", pc.fill_null(days, NO_VALUE).combine_chunks(), "/log=", logs, ""
            )
        return pc.dictionary_encode(keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys)

    def _flush(self, keys: Sequence[str]) -> None:
        import pyarrow as pa

        for key in keys:
            rows = pa.concat_tables(self._waiting.pop(key))
            del self._rows[key]
            place = key if self._partitioned else ""
            writer, written = self._writer(place)
            writer.write_table(rows)
            self._open[place] = writer, written + rows.num_rows
            if written + rows.num_rows >= FILE_ROWS:
                self._open.pop(place)[0].close()

    def _writer(self, place: str) -> tuple[pq.ParquetWriter, int]:
        if place not in self._open:
            if len(self._open) >= OPEN_FILES:
                self._open.pop(next(iter(self._open)))[0].close()
            folder = self._folder / place
            folder.mkdir(parents=True, exist_ok=True)
            self._open[place] = open_writer(folder / f"part-{self._files:05d}.parquet", self._schema), 0
            self._files += 1
        return self._open[place]
