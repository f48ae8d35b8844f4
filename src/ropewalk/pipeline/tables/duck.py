"""Answer SQL over the tables of a warehouse with DuckDB: no JVM, and nothing in reach but the tables' own files."""

from __future__ import annotations

import importlib.util
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ropewalk.errors import Invalid, Unavailable
from ropewalk.pipeline.launch.java import INSTALL_LINE
from ropewalk.pipeline.tables.sql import (
    Answer,
    arrow_rows,
    ask_again,
    damage_named,
    plain,
    require_readable,
)
from ropewalk.pipeline.tables.warehouse import Warehouse

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

T = TypeVar("T")
MEMORY_BYTES_MAX = 1 << 30
JSON_ADVICE = "Write payload->>'$.name' to read a member of a JSON column, or use --engine spark."
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_VARIANT_PATH = re.compile(r"\w\s*(?<!:):(?!:)\s*[\w\[`]")
_MISSING = re.compile(r"Table with name (\S+) does not exist")
_COLUMNS = re.compile(r"^Candidate bindings: (?:: )?(.+)", re.MULTILINE)


def is_installed() -> bool:
    """Return whether DuckDB can be imported."""
    return importlib.util.find_spec("duckdb") is not None


def needs_spark(query: str) -> bool:
    """Return whether a query uses Spark's syntax for VARIANT members, which DuckDB reads as a column alias.

    >>> needs_spark("SELECT payload:n::int FROM events"), needs_spark("SELECT n::int, 'a:b' FROM events")
    (True, False)
    """
    return _VARIANT_PATH.search(_QUOTED.sub("''", query)) is not None


def is_finished(text: str) -> bool:
    """Return whether a statement ends here: with a semicolon outside of quotes and comments.

    >>> is_finished("SELECT 1; -- one"), is_finished("SELECT ';"), is_finished("SELECT 1")
    (True, False, False)
    """
    rest = _QUOTED.sub("", text)
    return rest.rstrip().endswith(";") and not any(mark in rest for mark in ("'", '"', "/*"))


def ask_duckdb(
    warehouse: Warehouse,
    query: str,
    limit: int,
    suggest: Callable[[str, Iterable[str]], str | None] = lambda _name, _names: None,
    *,
    seconds_max: float | None = None,
    memory_bytes: int = MEMORY_BYTES_MAX,
    as_arrow: bool = False,
) -> Answer:
    """Return the answer to one SELECT over the tables; raise `Invalid` for anything else.

    With `as_arrow` it also holds an Arrow table. `suggest` may name the table that a misspelt name means. Nothing is
    spilled to disk. It is asked again where a writer has replaced files meanwhile.
    """

    def answer(connection: duckdb.DuckDBPyConnection, statement: Any) -> Answer:
        if as_arrow:
            table = connection.sql(statement).limit(limit).to_arrow_table()
            rows = tuple(tuple(map(plain, row)) for row in arrow_rows(table))
            return Answer(tuple(table.column_names), rows, table)
        found = connection.execute(statement)
        columns = tuple(each[0] for each in found.description or ())
        return Answer(columns, tuple(tuple(map(plain, row)) for row in found.fetchmany(limit)))

    return _ask(warehouse, query, answer, suggest, seconds_max, memory_bytes)


def ask_arrow(warehouse: Warehouse, query: str) -> pa.Table:
    """Return the whole answer to one SELECT over the tables as an Arrow table; otherwise as `ask_duckdb`."""

    def answer(connection: duckdb.DuckDBPyConnection, statement: Any) -> pa.Table:
        return connection.sql(statement).to_arrow_table()

    return _ask(warehouse, query, answer)


def _ask(
    warehouse: Warehouse,
    query: str,
    answer: Callable[[duckdb.DuckDBPyConnection, Any], T],
    suggest: Callable[[str, Iterable[str]], str | None] = lambda _name, _names: None,
    seconds_max: float | None = None,
    memory_bytes: int = MEMORY_BYTES_MAX,
) -> T:
    if needs_spark(query):
        raise Invalid("DuckDB does not know the syntax `column:member`", advice=JSON_ADVICE)
    since = time.monotonic()

    def ask() -> T:
        with open_duckdb(memory_bytes=memory_bytes) as connection, _limited(connection, seconds_max, since):
            import duckdb

            tables = warehouse.tables()
            try:
                _register(connection, tables)
                return answer(connection, _only_select(connection, query))
            except duckdb.InterruptException:
                raise
            except duckdb.Error as error:
                # Its decoders raise the base class, and one class is for mistakes in queries, too.
                if type(error) is duckdb.Error or "Failed to read file" in str(error):
                    require_readable(chain(*tables.values()), error)
                raise _refusal(str(error), tables, suggest) from error

    return ask_again(warehouse, ask)


def open_duckdb(
    spill: Path | None = None, *, memory_bytes: int = MEMORY_BYTES_MAX
) -> duckdb.DuckDBPyConnection:
    """Return a database in bounded memory that speaks UTC and loads no extension; `spill` takes what does not fit."""
    if not is_installed():
        raise Unavailable("DuckDB is not installed", name="duckdb", advice=f"Run: {INSTALL_LINE}")
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory_bytes}B",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "temp_directory": str(spill) if spill is not None else "",
    }
    connection = duckdb.connect(":memory:", config=config)
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def read_parquet(paths: Iterable[Path]) -> str:
    """Return the SQL that reads some files as one table."""
    return f"read_parquet([{_list(paths)}], hive_partitioning = false, union_by_name = true)"


@contextmanager
def _limited(
    connection: duckdb.DuckDBPyConnection, seconds_max: float | None, since: float
) -> Iterator[None]:
    """Interrupt the connection that many seconds after `since`, and raise `Invalid`."""
    import duckdb

    if seconds_max is None:
        yield
        return
    refusal = Invalid(
        f"the query took more than {seconds_max:g} s",
        advice="Ask for less, or run it with `ropewalk pipeline sql`.",
    )
    left = since + seconds_max - time.monotonic()
    if left <= 0:
        raise refusal
    timer = threading.Timer(left, connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    except duckdb.InterruptException as error:
        raise refusal from error
    finally:
        timer.cancel()


def _register(connection: duckdb.DuckDBPyConnection, tables: dict[str, list[Path]]) -> None:
    """Make every table a view over its files, then lock everything else."""
    for name, found in tables.items():
        with damage_named(*found):
            connection.execute(f'CREATE VIEW "{name}" AS FROM {read_parquet(found)}')  # a plain name, checked
    for setting in (
        f"allowed_paths = [{_list(chain(*tables.values()))}]",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")


def _only_select(connection: duckdb.DuckDBPyConnection, query: str) -> Any:
    """Return the statement, if it is one that only reads: the table files themselves may not be written either."""
    import duckdb

    statements = connection.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise Invalid(
            "the query must be one SELECT statement",
            advice="The tables are changed by `pipeline ingest` only.",
        )
    return statements[0]


def _refusal(text: str, names: Iterable[str], suggest: Callable[[str, Iterable[str]], str | None]) -> Invalid:
    tables = f"The tables are {', '.join(sorted(names)) or 'none yet'}."
    missing = _MISSING.search(text)
    if missing is not None:
        advice = " ".join(filter(None, (suggest(missing[1], names), tables)))
        return Invalid(f"there is no table {missing[1]!r}", name=missing[1], advice=advice)
    if columns := _COLUMNS.search(text):
        tables = f"Columns of similar names are {columns[1][:300]}. {tables}"
    return Invalid(text.splitlines()[0][:300], advice=tables)


def _list(paths: Iterable[Path]) -> str:
    return ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths)
