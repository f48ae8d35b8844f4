"""A table that outgrows memory answers as a dictionary would, and leaves nothing behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.disk.spill import Spill
from ropewalk.errors import Unavailable

KEYS = st.binary(min_size=1, max_size=2)


@settings(deadline=None, max_examples=30)
@given(rows=st.lists(st.tuples(KEYS, st.integers(0, 2**63)), max_size=60), asked=st.lists(KEYS, max_size=10))
def test_a_table_answers_as_a_dictionary_does(rows, asked):
    with Spill(fresh_max=7) as spill:
        tables = {name: (spill.table(name), dict[bytes, int]()) for name in ("a", "b")}
        for number, (key, value) in enumerate(rows):
            table, model = tables["ab"[number % 2]]
            table.setdefault(key, value)
            model.setdefault(key, value)
            assert table.get(key) == model[key]
        for table, model in tables.values():
            assert [table.get(key) for key in (*model, *asked)] == [
                model.get(key) for key in (*model, *asked)
            ]


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(KeyError), Spill(fresh_max=1) as spill:
        spill.table("a").setdefault(b"k", 1)
        assert list(tmp_path.iterdir())
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_little_is_never_written(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Spill() as spill:
        spill.table("a").setdefault(b"k", 1)
        assert not list(tmp_path.iterdir())


def test_no_room_for_temporary_files_is_unavailable(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with Spill(fresh_max=1) as spill, pytest.raises(Unavailable, match="temporary"):
        spill.table("a").setdefault(b"k", 1)
    assert not Path(tmp_path / "missing").exists()
