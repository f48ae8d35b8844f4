"""The list of clauses, docs/status.md, says nothing that is not so.

`python -m tests.test_status` prints what is wrong with the list; with `--write-summary` it counts the rows again first.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "status.md"

SPECIFICATIONS = ("S0", "S1", "S2", "S3", "S4", "P", "C")
SIGNS = ("✓", "◐", "✗")
ROW_ID = re.compile(r"(S[0-4]|[PC])-[a-z0-9]+(?:\.[0-9]+)+")
TEST_NAME = re.compile(r"`([^`\s]+::[^`\s]+)`")
SUMMARY_HEAD = ("specification", *SIGNS, "rows")
CLAUSES_HEAD = ("id", "clause", "state", "shown by")


@dataclass(frozen=True, slots=True)
class Row:
    """One clause: what is asked, whether it holds, and what shows it."""

    line: int
    id: str
    clause: str
    state: str
    shown_by: str

    @property
    def tests(self) -> list[str]:
        """The tests the row names, as `path::name`."""
        return TEST_NAME.findall(self.shown_by)

    @property
    def note(self) -> str:
        """What the row says besides naming tests."""
        return TEST_NAME.sub("", self.shown_by).strip(" ,;:.–—")


def cells(line: str) -> tuple[str, ...]:
    """The cells of one line of a table; a bar inside a cell is written with a backslash before it."""
    inner = line.strip().removeprefix("|").removesuffix("|")
    return tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", inner))


def tables(text: str) -> Iterator[tuple[tuple[str, ...], list[tuple[int, tuple[str, ...]]]]]:
    """Every table of a page: its head, and its lines with their numbers."""
    head: tuple[str, ...] | None = None
    lines: list[tuple[int, tuple[str, ...]]] = []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if not line.startswith("|"):
            if head is not None:
                yield head, lines
            head, lines = None, []
        elif head is None:
            head = cells(line)
        elif not set(line) <= set("|-: "):
            lines.append((number, cells(line)))


@cache
def _tests_in(path: Path) -> frozenset[str]:
    """The live tests a file defines: functions, and methods as `Class::method`."""

    def live(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
        marks = " ".join(ast.unparse(mark) for mark in node.decorator_list)
        return node.name.lower().startswith("test") and not re.search(r"mark\.(skip|xfail)\b", marks)

    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and live(node):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef) and live(node):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{node.name}::{each.name}" for each in methods if live(each)}
        elif isinstance(node, ast.Assign) and ast.unparse(node.value).endswith(".TestCase"):
            # Hypothesis runs a state machine under the name its TestCase is given.
            found |= {ast.unparse(target) for target in node.targets}
    return frozenset(found)


def live_test(name: str) -> bool:
    """Is there a test of this name that is neither skipped nor expected to fail?"""
    file, _, test = name.partition("::")
    path = ROOT / file
    return file.startswith("tests/") and path.is_file() and test.partition("[")[0] in _tests_in(path)


def rows_of(text: str) -> list[Row]:
    """Every row of every table of clauses; short lines come out with empty cells, so that a check can name them."""
    return [
        Row(number, *(*line, "", "", "", "")[:4])
        for head, lines in tables(text)
        if head == CLAUSES_HEAD
        for number, line in lines
    ]


def counts(rows: list[Row]) -> dict[str, tuple[int, ...]]:
    """Rows by specification: one number for each sign, then all."""
    by_sign = Counter((row.id.partition("-")[0], row.state) for row in rows)
    shown = {}
    for specification in SPECIFICATIONS:
        each = [by_sign[specification, sign] for sign in SIGNS]
        shown[specification] = (*each, sum(each))
    shown["all"] = tuple(sum(column) for column in zip(*shown.values(), strict=True))
    return shown


def summary_lines(rows: list[Row]) -> list[str]:
    """The summary as it should stand on the page."""
    return [f"| {name} | " + " | ".join(map(str, each)) + " |" for name, each in counts(rows).items()]


def problems(text: str, exists: Callable[[str], bool] = live_test) -> Iterator[str]:
    """Everything that is wrong with a page, each with its line."""
    rows = rows_of(text)
    seen: dict[str, int] = {}
    for row in rows:
        here = f"line {row.line}: {row.id or 'a row without id'}"
        if not ROW_ID.fullmatch(row.id):
            yield f"{here}: an id looks like S0-5.3 or S3-ids.2"
        if row.id in seen:
            yield f"{here}: stands on line {seen[row.id]} already"
        seen.setdefault(row.id, row.line)
        if not row.clause:
            yield f"{here}: no clause"
        if row.state not in SIGNS:
            yield f"{here}: state {row.state!r} is none of {' '.join(SIGNS)}"
        if row.state in ("✓", "◐") and not row.tests:
            yield f"{here}: {row.state} needs a test, written `tests/…/test_x.py::test_name` in backticks"
        if row.state in ("◐", "✗") and not row.note:
            yield f"{here}: {row.state} needs a note that says what is missing"
        yield from (f"{here}: there is no live test {name}" for name in row.tests if not exists(name))
    for specification in SPECIFICATIONS:
        if not any(row.id.startswith(f"{specification}-") for row in rows):
            yield f"{specification}: no rows"
    summaries = [lines for head, lines in tables(text) if head == SUMMARY_HEAD]
    if len(summaries) != 1:
        yield f"{len(summaries)} summary tables; there must be one"
        return
    written = [line for _, line in summaries[0]]
    if written != [cells(line) for line in summary_lines(rows)]:
        yield "the summary miscounts: run python -m tests.test_status --write-summary"


def with_summary(text: str) -> str:
    """The page with its summary counted again."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if cells(line) == SUMMARY_HEAD) + 2
    end = next(number for number in range(start, len(lines) + 1) if not "".join(lines[number : number + 1]))
    lines[start:end] = summary_lines(rows_of(text))
    return "\n".join(lines) + "\n"


def test_the_list_of_clauses_is_true():
    assert list(problems(PAGE.read_text(encoding="utf-8"))) == []


# The checker itself, on small pages.

GOOD_ROWS = [
    "| S0-1.1 | canonical bytes | ✓ | `tests/a.py::test_a` |",
    "| S1-2.1 | one blob | ◐ | `tests/a.py::test_a`; attachments are missing |",
    "| S2-1.1 | endpoint | ✗ | not built yet |",
    "| S3-ids.1 | ids | ✗ | not built yet |",
    "| P-tables.1 | tables | ✗ | not built yet |",
    "| C-pages.1 | pages | ✗ | not built yet |",
    "| S4-3.1.2 | domain | ✓ | `tests/a.py::test_a`, `tests/a.py::TestB::test_c` |",
]


def page(*rows: str) -> str:
    head = "# Title\n\n| specification | ✓ | ◐ | ✗ | rows |\n|---|---:|---:|---:|---:|\n\n"
    return with_summary(head + "| id | clause | state | shown by |\n|---|---|:-:|---|\n" + "\n".join(rows))


def found(text: str, known: tuple[str, ...] = ("tests/a.py::test_a", "tests/a.py::TestB::test_c")) -> str:
    return "\n".join(problems(text, known.__contains__))


def test_a_true_page_passes():
    assert found(page(*GOOD_ROWS)) == ""


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("| S0-1.1 | again | ✗ | not built yet |", "stands on line"),
        ("| S0-9.1 | claim | ✓ | `tests/a.py::test_gone` |", "no live test tests/a.py::test_gone"),
        ("| S0-9.1 | claim | ◐ | `tests/a.py::test_gone`; half |", "no live test"),
        ("| S0-9.1 | claim | ✗ | wanted by `tests/a.py::test_gone` |", "no live test"),
        ("| S0-9.1 | claim | ✓ | trust me |", "✓ needs a test"),
        ("| S0-9.1 | claim | ◐ | half of it |", "◐ needs a test"),
        ("| S0-9.1 | claim | ◐ | `tests/a.py::test_a` |", "◐ needs a note"),
        ("| S0-9.1 | claim | ✗ | |", "✗ needs a note"),
        ("| S0-9.1 | claim | | later |", "state '' is none of"),
        ("| S0-9.1 | claim | yes | `tests/a.py::test_a` |", "state 'yes' is none of"),
        ("| S0-9.1 | claim |", "state '' is none of"),
        ("| S0-9.1 | | ✗ | later |", "no clause"),
        ("| S7-1.1 | claim | ✗ | later |", "an id looks like"),
        ("| S0 | claim | ✗ | later |", "an id looks like"),
    ],
)
def test_a_false_row_is_refused(row, complaint):
    assert complaint in found(page(*GOOD_ROWS, row))


def test_a_specification_that_was_forgotten_is_refused():
    assert "S2: no rows" in found(page(*(row for row in GOOD_ROWS if "S2-" not in row)))


def test_a_summary_that_miscounts_is_refused():
    right = page(*GOOD_ROWS)
    assert "miscounts" in found(right.replace("| S0 | 1 | 0 | 0 | 1 |", "| S0 | 2 | 0 | 0 | 2 |"))
    assert "0 summary tables" in found(right.replace("| specification |", "| spec |"))


def test_counting_again_repairs_the_summary_and_nothing_else():
    right = page(*GOOD_ROWS)
    wrong = right.replace("| S0 | 1 | 0 | 0 | 1 |", "| S0 | 7 | 0 | 0 | 7 |")
    assert with_summary(wrong) == right
    assert with_summary(right) == right


def test_a_bar_written_with_a_backslash_stays_in_its_cell():
    assert cells(r"| a \| b | c |") == (r"a \| b", "c")


def test_only_live_tests_of_this_repository_count(tmp_path):
    source = tmp_path / "test_x.py"
    source.write_text(
        "def test_a(): ...\n"
        "async def test_b(): ...\n"
        "@pytest.mark.skip\ndef test_c(): ...\n"
        "@pytest.mark.xfail(reason='later')\ndef test_d(): ...\n"
        "@pytest.mark.skipif(no_git, reason='needs git')\ndef test_e(): ...\n"
        "def helper(): ...\n"
        "class TestF:\n    def test_g(self): ...\n    def helper(self): ...\n"
        "@pytest.mark.skip\nclass TestI:\n    def test_j(self): ...\n"
        "TestH = Machine.TestCase\n"
    )
    assert _tests_in(source) == {"test_a", "test_b", "test_e", "TestF::test_g", "TestH"}
    here = "tests/test_status.py"
    assert live_test(f"{here}::test_a_true_page_passes")
    assert live_test(f"{here}::test_a_false_row_is_refused[row0]")
    assert not live_test(f"{here}::problems")
    assert not live_test("src/ropewalk/errors.py::RopewalkError")
    assert not live_test("tests/nowhere.py::test_a")


def main(arguments: list[str]) -> int:
    """Count again if asked to; then print what is wrong."""
    text = PAGE.read_text(encoding="utf-8")
    if arguments == ["--write-summary"]:
        text = with_summary(text)
        PAGE.write_text(text, encoding="utf-8")
    elif arguments:
        print("usage: python -m tests.test_status [--write-summary]", file=sys.stderr)
        return 2
    wrong = list(problems(text))
    print("\n".join([*summary_lines(rows_of(text)), *wrong]))
    return 5 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
