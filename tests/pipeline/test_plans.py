"""Random queries over the data source: Spark's answer under any plan is DuckDB's answer over `to_arrow`.

`ROPEWALK_PLANS=10000` sets how many queries the slow test asks.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from ropewalk.pipeline import read, to_arrow
from tests.pipeline.world import World

pytestmark = [pytest.mark.timeout(3600), pytest.mark.filterwarnings("ignore")]
COLUMNS = "engine,topic,entry_id,content_id,height,type,author,verdict,leaf_index,position"
TEXTS = ("engine", "topic", "entry_id", "content_id", "type", "author", "verdict")
NUMBERS = ("height", "leaf_index", "position")


class Plans:
    """Queries that Spark and DuckDB understand alike, from a seed."""

    def __init__(self, seed: int, rows: list[dict[str, Any]]) -> None:
        self.chance = random.Random(seed)
        self.rows = rows

    def condition(self, table: str, depth: int = 2) -> str:
        chance = self.chance
        if depth and chance.random() < 0.5:
            one, other = self.condition(table, depth - 1), self.condition(table, depth - 1)
            return f"({one} {chance.choice(('AND', 'OR'))} {other})"
        row = chance.choice(self.rows)
        if chance.random() < 0.5:
            name = chance.choice(NUMBERS)
            return f"{table}.{name} {chance.choice(('<', '<=', '=', '>', '<>'))} {row[name] or 0}"
        name = chance.choice(TEXTS)
        if row[name] is None or chance.random() < 0.2:
            return f"{table}.{name} IS {chance.choice(('', 'NOT '))}NULL"
        return f"{table}.{name} {chance.choice(('=', '<>', '>='))} '{row[name]}'"

    def query(self) -> str:
        chance, where = self.chance, f"WHERE {self.condition('a')}"
        key = chance.choice(TEXTS)
        kind = chance.randrange(5)
        if kind == 0:
            return f"SELECT {key}, count(*), min(height), max(position) FROM t a {where} GROUP BY {key}"
        if kind == 1:
            order = "content_id, entry_id, leaf_index"
            return f"SELECT {order} FROM t a {where} ORDER BY {order} LIMIT {chance.randrange(1, 30)}"
        if kind == 2:
            return f"SELECT count(*) FROM t a JOIN t b ON a.{key} = b.{key} AND a.height <= b.height {where}"
        if kind == 3:
            also = f"SELECT {key} FROM t b WHERE {self.condition('b')}"
            return f"SELECT {key}, count(*) FROM (SELECT {key} FROM t a {where} UNION ALL {also}) u GROUP BY {key}"
        return (
            f"SELECT count(DISTINCT {key}) FROM t a {where} AND a.content_id IN (SELECT content_id FROM t b)"
        )


def compare(spark: Any, world: World, count: int, seed: int) -> None:
    """Ask both. Every query has another plan: cached or not, adaptive or not, a fresh frame or an old one."""
    table = to_arrow(world.path, columns=COLUMNS)
    plans = Plans(seed, table.to_pylist())
    frame = read(spark, world.path, columns=COLUMNS)
    with duckdb.connect(":memory:") as other:
        other.register("t", table)
        for number in range(count):
            query = plans.query()
            spark.conf.set("spark.sql.adaptive.enabled", str(plans.chance.random() < 0.5).lower())
            spark.conf.set("spark.sql.shuffle.partitions", str(plans.chance.choice((1, 2, 3))))
            if plans.chance.random() < 0.2:
                frame = read(spark, world.path, columns=COLUMNS)
            mine = frame.cache() if plans.chance.random() < 0.3 else frame
            mine.createOrReplaceTempView("t")
            got = sorted(map(repr, map(tuple, spark.sql(query).collect())))
            wanted = sorted(map(repr, other.execute(query).fetchall()))
            assert got == wanted, f"seed {seed}, query {number}: {query}"
            if plans.chance.random() < 0.3:
                frame.unpersist()


@pytest.fixture
def plain_session(spark: Any) -> Iterator[Any]:
    names = ("spark.sql.adaptive.enabled", "spark.sql.shuffle.partitions")
    before = {name: spark.conf.get(name) for name in names}
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)
    spark.catalog.dropTempView("t")


@pytest.mark.slow
def test_random_plans_give_the_answers_of_duckdb(plain_session: Any, world: World):
    compare(plain_session, world, 12, seed=1)


@pytest.mark.slow
def test_many_random_plans_give_the_answers_of_duckdb(plain_session: Any, world: World):
    compare(plain_session, world, int(os.environ.get("ROPEWALK_PLANS", "300")), seed=2)


def test_read_narrows_by_arguments(plain_session: Any, world: World):
    rows = read(plain_session, world.path, topics=["prod"], columns=["topic", "height"], since="3", until="6")
    assert sorted(map(tuple, rows.collect())) == [("prod", 3), ("prod", 4), ("prod", 5)]
