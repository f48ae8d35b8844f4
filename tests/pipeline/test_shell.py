"""`pipeline shell`: statements from a pipe and from a real terminal, over real tables, without a JVM."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.pipeline.tables.warehouse import Warehouse
from tests.pipeline.test_delta import write
from tests.unit.cli.conftest import living_in
from tests.waiting import ended, until


@pytest.fixture
def store(tmp_path: Path) -> Warehouse:
    made = Warehouse(tmp_path / "tables")
    with made.writing():
        write(made, 2, "events", "deployments")
        write(made, 1, "events")
    return made


def test_shell_runs_statements_from_a_pipe(store: Warehouse, tmp_path: Path):
    given = b"""-- two lines; one statement
SELECT n, ';' AS mark
  FROM events ORDER BY n DESC;
.limit 1
SELECT n FROM events ORDER BY n;
.mode csv
.schema deployments
.tables
.mode json
SELECT count(*) AS n FROM events"""
    found = living_in(tmp_path)("pipeline", "shell", "--warehouse", str(store.path), stdin=given)
    assert found.code == 0, found.err
    assert found.text.splitlines() == [
        *("n  mark", "─  ────", "1  ;", "0  ;", "0  ;", "3 rows"),
        *("n", "─", "0", "1 rows"),
        *("table_name,column_name,data_type", "deployments,n,BIGINT"),
        "deployments,time,TIMESTAMP WITH TIME ZONE",
        *("table,rows", "deployments,2", "events,3"),
        '{"columns":["n"],"rows":[[3]]}',
    ]
    assert found.err == "warning: the answer has more than 1 rows; .limit N takes more\n"


@pytest.mark.parametrize(
    ("given", "code", "told"),
    [
        (b"SELECT 1 AS a;\nSELECT * FROM evnts;\nSELECT 2 AS b;", 8, "Did you mean events?"),
        (b"SELECT 1 AS a;\n.tabels\nSELECT 2 AS b;", 2, "Did you mean .tables?"),
        (b"SELECT 1 AS a;\n.limit 0\nSELECT 2 AS b;", 2, ".limit 0 is not a command"),
        (b"SELECT 1 AS a;\nCOPY (SELECT 1) TO 'f';\nSELECT 2 AS b;", 8, "one SELECT statement"),
        (b"SELECT 1 AS a;\n.quit\nSELECT 2 AS b;", 0, ""),
    ],
)
def test_shell_ends_at_the_first_error(store: Warehouse, tmp_path: Path, given: bytes, code: int, told: str):
    asked = ("pipeline", "shell", "--warehouse", str(store.path), "--json")
    found = living_in(tmp_path)(*asked, stdin=given)
    assert found.code == code and told in found.text + found.err
    assert '"a"' in found.text and '"b"' not in found.text


@pytest.mark.slow
def test_shell_on_a_terminal_goes_on(store: Warehouse, tmp_path: Path):
    """A prompt, an error that ends nothing, Ctrl-C, Tab, Ctrl-D, and a history that the next session has."""
    cache = tmp_path / "cache"
    command = [str(Path(sys.executable).with_name("ropewalk")), "pipeline", "shell"]

    def session(*steps: tuple[bytes, str]) -> int:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*command, "--warehouse", str(store.path)],
            env={**os.environ, "ROPEWALK_CACHE": str(cache), "TERM": "dumb", "NO_COLOR": "1"},
            preexec_fn=lambda: os.login_tty(theirs),
        )
        os.close(theirs)
        os.set_blocking(ours, False)
        with ended(process):
            for keys, wanted in ((b"", r"tables> $"), *steps):
                if keys:
                    os.write(ours, keys)  # the prompt before it has been read
                seen = b""

                def found(pattern: str = wanted) -> bool:
                    nonlocal seen
                    try:
                        seen += os.read(ours, 65536)
                    except BlockingIOError:
                        assert process.poll() is None, seen
                    except OSError:  # the other side is closed
                        return True
                    return re.search(pattern, seen.decode(errors="replace"), re.DOTALL) is not None

                until(found)
            code = process.wait(60)
        os.close(ours)
        return code

    assert (
        session(
            (b"SELECT * FROM nothing;\n", r"there is no table.*tables> $"),
            (b"SELECT\n", r"\.\.\.> $"),
            (b"\x03", r"tables> $"),
            (b"SELECT count(*) FROM deploy\t;\n", r"deployments.*2.*1 rows.*tables> $"),
            (b"\x04", r"\n"),
        )
        == 0
    )
    assert (cache / "sql_history").stat().st_mode & 0o777 == 0o600
    assert session((b"\x1b[A\n", r"SELECT count.*1 rows.*tables> $"), (b".quit\n", r"\n")) == 0
