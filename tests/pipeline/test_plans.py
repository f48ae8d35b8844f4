"""Random queries over the data source: Spark's answer under any plan is DuckDB's answer over `to_arrow`.

`ROPEWALK_PLANS=10000` sets how many queries the slow test asks.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from ropewalk.pipeline import read
from tests.pipeline.random_plans import Asker
from tests.pipeline.world import World

pytestmark = [pytest.mark.timeout(3600), pytest.mark.filterwarnings("ignore")]


@pytest.mark.slow
def test_random_plans_give_the_answers_of_duckdb(spark: Any, world: World):
    Asker(spark, world, seed=1).ask(12)


@pytest.mark.slow
def test_many_random_plans_give_the_answers_of_duckdb(spark: Any, world: World):
    Asker(spark, world, seed=2).ask(int(os.environ.get("ROPEWALK_PLANS", "300")))


def test_read_narrows_by_arguments(spark: Any, world: World):
    rows = read(spark, world.path, topics=["prod"], columns=["topic", "height"], since="3", until="6")
    assert sorted(map(tuple, rows.collect())) == [("prod", 3), ("prod", 4), ("prod", 5)]
