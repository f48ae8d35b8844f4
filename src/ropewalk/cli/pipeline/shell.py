"""`ropewalk pipeline shell`: SQL over the tables, statement by statement, with DuckDB and without a JVM."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import click

from ropewalk.cli.common.command import command, emit_line, fail, say, session
from ropewalk.cli.common.options import integer
from ropewalk.cli.common.suggest import did_you_mean
from ropewalk.cli.pipeline.running import cache_folder, warehouse_option
from ropewalk.errors import RopewalkError, Usage
from ropewalk.pipeline.tables.duck import ask_duckdb, is_finished
from ropewalk.pipeline.tables.sql import Answer
from ropewalk.pipeline.tables.warehouse import Warehouse

COLUMNS = "SELECT table_name, column_name, data_type FROM information_schema.columns"
FORMS: dict[str, Callable[[Answer], None]] = {
    "table": lambda answer: click.echo(answer.to_text()),
    "csv": lambda answer: click.echo(answer.to_csv()),
    "json": lambda answer: emit_line(answer.to_json()),
}
HELP = """.tables         list the tables and their rows
.schema [TABLE] list the columns of a table, or of all
.mode FORM      print answers as table, csv or json
.limit N        print at most N rows
.quit           leave the shell, as Ctrl-D does
A statement is one SELECT and ends with a semicolon. Every statement sees the newest batch."""
ROWS = 100_000  # more than any warehouse has tables and columns


@dataclass(slots=True)
class SqlShell:
    """Settings of one shell; every statement is asked on a fresh connection over the newest manifests."""

    store: Warehouse
    limit: int
    form: str

    def run(self, text: str) -> bool:
        """Run a statement or a dot command; return whether the shell goes on."""
        if text.startswith("."):
            return self._command(*text.split())
        answer, is_cut = self.ask(text, self.limit + 1).head(self.limit)
        FORMS[self.form](answer)
        if is_cut:
            say(f"warning: the answer has more than {self.limit} rows; .limit N takes more")
        return True

    def ask(self, query: str, limit: int) -> Answer:
        """Return the answer to one SELECT, at most `limit` rows of it."""
        return ask_duckdb(self.store, query, limit, did_you_mean)

    def names(self) -> list[str]:
        """Return the tables and their columns, for completion."""
        found = self.ask(COLUMNS, ROWS).rows
        return sorted({row[0] for row in found} | {row[1] for row in found})

    def _command(self, name: str, *given: str) -> bool:
        match name, given:
            case ".quit" | ".exit", ():
                return False
            case ".help", ():
                say(HELP)
            case ".tables", ():
                tables = sorted({row[0] for row in self.ask(COLUMNS, ROWS).rows})
                counts = [self.ask(f'FROM "{each}" SELECT count(*)', 1).rows[0][0] for each in tables]
                FORMS[self.form](Answer(("table", "rows"), tuple(zip(tables, counts, strict=True))))
            case ".schema", (table,):
                quoted = table.replace("'", "''")
                FORMS[self.form](self.ask(f"{COLUMNS} WHERE table_name = '{quoted}'", ROWS))
            case ".schema", ():
                FORMS[self.form](self.ask(COLUMNS, ROWS))
            case ".mode", (form,) if form in FORMS:
                self.form = form
            case ".limit", (limit,) if limit.isdecimal() and int(limit) > 0:
                self.limit = int(limit)
            case _:
                like = did_you_mean(name, (".tables", ".schema", ".mode", ".limit", ".help", ".quit"))
                raise Usage(f"{' '.join((name, *given))} is not a command of the shell", advice=like or HELP)
        return True


@command(
    "shell",
    "ropewalk pipeline shell --warehouse ./tables",
    "ropewalk pipeline shell --warehouse ./tables --json < queries.sql",
)
@warehouse_option
@integer("--limit", "N", "Maximum number of rows.", least=1, default=1_000)
def shell(warehouse: Path, limit: int) -> None:
    """Ask the tables with SQL in a prompt, or run statements from stdin. DuckDB answers; no Java is started.

    On a terminal there is a history, and Tab completes tables and columns. Without one, the first error ends it.
    """
    store = SqlShell(Warehouse(warehouse).require(), limit, "json" if session().json else "table")
    if not sys.stdin.isatty():
        for text in _statements(lambda _prompt: _line_of(sys.stdin.readline())):
            if not store.run(text):
                return
        return
    say(f"{len(store.ask(COLUMNS, ROWS).rows)} columns in {warehouse}; .help lists the commands")
    with _history(store):
        while True:
            try:
                if not all(map(store.run, _statements(input))):
                    return
                click.echo()
                return  # Ctrl-D
            except KeyboardInterrupt:
                click.echo()
            except RopewalkError as error:
                fail(error, as_json=False)


def _line_of(raw: str) -> str:
    if not raw:
        raise EOFError
    return raw.rstrip("\n")


def _statements(read_line: Callable[[str], str]) -> Iterator[str]:
    """Yield dot commands and statements, until the input ends; the last statement needs no semicolon."""
    text = ""
    while True:
        try:
            text += read_line("   ...> " if text else "tables> ") + "\n"
        except EOFError:
            break
        if text.startswith(".") or is_finished(text):
            done, text = text.strip(), ""
            yield done
        elif not text.strip():
            text = ""
    if text.strip():
        yield text.strip()


@contextmanager
def _history(store: SqlShell) -> Iterator[None]:
    """Keep the lines of earlier sessions, readable by the user only, and complete names with Tab."""
    try:
        import readline
    except ImportError:  # some builds of Python have none; the prompt still works
        yield
        return
    path = cache_folder() / "sql_history"
    names = store.names()
    readline.set_completer(lambda text, at: ([each for each in names if each.startswith(text)] + [None])[at])
    readline.parse_and_bind("tab: complete")
    with suppress(OSError):
        readline.read_history_file(path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.set_history_length(1_000)
            readline.write_history_file(path)
