"""The lists of mutants stay applicable: each patches code that is there, and names a clause with tests."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mutants import Mutant, load, source, status_rows
from tests.test_status import live_test


def test_mutants_apply_and_compile():
    for mutant in load():
        patched = mutant.apply(source(mutant))
        assert mutant.old != mutant.new, mutant.title
        if mutant.file.endswith(".py"):
            compile(patched, mutant.file, "exec")


def test_mutants_name_rows_that_hold():
    rows = status_rows()
    for mutant in load():
        assert mutant.row in rows, mutant.title
        assert rows[mutant.row].state == "✓", mutant.title
        assert all(map(live_test, mutant.tests)), mutant.title


def test_mutants_have_unique_names():
    names = Counter((mutant.area, mutant.name) for mutant in load())
    assert [name for name, count in names.items() if count > 1] == []


def test_mutant_old_text_must_occur_once():
    mutant = Mutant("area", "S0-1.1", "name", "file.py", "a", "b")
    assert mutant.apply("a c") == "b c"
    for text in ("a a", "c"):
        with pytest.raises(ValueError, match="expected the old text once"):
            mutant.apply(text)
