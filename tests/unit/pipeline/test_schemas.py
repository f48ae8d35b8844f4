"""The page of tables and the code agree; VARIANT bytes are what Spark reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.pipeline.source import variant
from ropewalk.pipeline.source.schemas import COLUMNS

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "tables.md"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=30,
)


def test_the_page_lists_every_column_with_its_type():
    listed = dict(re.findall(r"^\| `(\w+)` \| ([\w<>]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == COLUMNS


@given(JSON)
@settings(deadline=None, max_examples=60)
def test_sparks_own_reader_reads_back_what_was_encoded(value):
    from pyspark.sql.types import VariantVal

    body, dictionary = variant.encode(value)
    assert VariantVal(body, dictionary).toPython() == value


@pytest.mark.parametrize("count", [255, 256, 70_000])
def test_large_arrays_and_objects_change_their_widths(count):
    from pyspark.sql.types import VariantVal

    numbers = list(range(count))
    assert VariantVal(*variant.encode(numbers)).toPython() == numbers
    names = {f"k{number}": number for number in range(min(count, 5_000))}
    assert VariantVal(*variant.encode(names)).toPython() == names
