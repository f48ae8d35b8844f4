"""Random queries that Spark and DuckDB understand alike, and one asker that compares their answers.

Spark answers a union of several queries in one statement, each row with the number of its query.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import duckdb

from ropewalk.pipeline import read, to_arrow
from tests.pipeline.world import World

COLUMNS = "engine,topic,entry_id,content_id,height,type,author,verdict,leaf_index,position"
TEXTS = ("engine", "topic", "entry_id", "content_id", "type", "author", "verdict")
NUMBERS = ("height", "leaf_index", "position")
ORDER = "a.content_id NULLS FIRST, a.entry_id NULLS FIRST, a.leaf_index NULLS FIRST, a.position"
TOPICS = (
    None,
    "prod",
    "prod",
    "ea.core",
    "jobs/pending",
    "com.example.chat",
    "staging,ea.core",
    "prod,com.example.chat",
)
BATCHES = (1, 4, 8, 16, 16)  # how many queries a statement asks
FROM_LOGS = 0.25  # share of the statements that read the logs; the others read what Spark has cached


class Queries:
    """Queries over the table `t` and the view `v`, whose columns are named c0, c1, …"""

    def __init__(self, chance: random.Random, rows: Sequence[dict[str, Any]]) -> None:
        self.chance, self.rows = chance, rows

    def condition(self, table: str, depth: int = 2) -> str:
        """Return a condition with constants from the rows."""
        chance = self.chance
        if depth and chance.random() < 0.5:
            one, other = self.condition(table, depth - 1), self.condition(table, depth - 1)
            both = f"({one} {chance.choice(('AND', 'OR'))} {other})"
            return f"NOT {both}" if chance.random() < 0.1 else both
        row = chance.choice(self.rows)
        if chance.random() < 0.5:
            name = chance.choice(NUMBERS)
            if chance.random() < 0.2:
                return f"{table}.{name} BETWEEN {row[name] or 0} AND {chance.randrange(20)}"
            return f"{table}.{name} {chance.choice(('<', '<=', '=', '>', '<>'))} {row[name] or 0}"
        name = chance.choice(TEXTS)
        if row[name] is None or chance.random() < 0.2:
            return f"{table}.{name} IS {chance.choice(('', 'NOT '))}NULL"
        if chance.random() < 0.2:
            return f"{table}.{name} LIKE '{row[name][:2]}%'"
        return f"{table}.{name} {chance.choice(('=', '<>', '>='))} '{row[name]}'"

    def source(self) -> str:
        """Return what a query reads: the table, the view, or a narrower subquery."""
        kind = self.chance.randrange(6)
        if kind == 0:
            return f"(SELECT * FROM t a WHERE {self.condition('a', 1)})"
        if kind == 1:
            return f"(SELECT * FROM t a ORDER BY {ORDER} LIMIT {self.chance.randrange(1, 40)})"
        return "v" if kind == 2 else "t"

    def query(self) -> tuple[str, int]:
        """Return a query and how many columns it has."""
        chance = self.chance
        kinds = (
            self._group,
            self._top,
            self._join,
            self._sets,
            self._among,
            self._some,
            self._window,
            self._with,
        )
        return chance.choice(kinds)(chance.choice(TEXTS), f"{self.source()} a WHERE {self.condition('a')}")

    def _group(self, key: str, where: str) -> tuple[str, int]:
        rolled = self.chance.random() < 0.3  # of no rows, Spark makes no total and DuckDB does
        keys = f"ROLLUP ({key}, verdict)" if rolled else key
        having = (
            f" HAVING count(*) > {self.chance.randrange(5)}" if rolled or self.chance.random() < 0.2 else ""
        )
        wanted = (
            "count(*) AS c1, min(height) AS c2, max(position) AS c3, sum(leaf_index) AS c4, max(author) AS c5"
        )
        return f"SELECT {key} AS c0, {wanted} FROM {where} GROUP BY {keys}{having}", 6

    def _top(self, _: str, where: str) -> tuple[str, int]:
        limit = f"LIMIT {self.chance.randrange(1, 30)} OFFSET {self.chance.choice((0, 0, 3))}"
        wanted = "a.content_id AS c0, a.entry_id AS c1, a.leaf_index AS c2, a.position AS c3"
        return f"SELECT {wanted} FROM {where} ORDER BY {ORDER} {limit}", 4

    def _join(self, key: str, where: str) -> tuple[str, int]:
        kind = self.chance.choice(("JOIN", "LEFT JOIN", "FULL JOIN"))
        on = f"a.{key} = b.{key} AND a.height {'=' if kind == 'FULL JOIN' else '<='} b.height"
        left = f"(SELECT * FROM {where})"
        wanted = "count(*) AS c0, count(a.height) AS c1, sum(b.position) AS c2"
        return f"SELECT {wanted} FROM {left} a {kind} {self.source()} b ON {on}", 3

    def _sets(self, key: str, where: str) -> tuple[str, int]:
        other = f"SELECT {key}, height FROM {self.source()} b WHERE {self.condition('b')}"
        join = self.chance.choice(("UNION ALL", "UNION", "EXCEPT", "INTERSECT"))
        union = f"SELECT {key}, height FROM {where} {join} {other}"
        return f"SELECT {key} AS c0, count(*) AS c1, sum(height) AS c2 FROM ({union}) u GROUP BY {key}", 3

    def _among(self, key: str, where: str) -> tuple[str, int]:
        also = f"SELECT content_id FROM {self.source()} b WHERE {self.condition('b')}"
        among = f"SELECT content_id FROM {self.source()} d"
        tests = (
            f"a.content_id IN ({also})",
            f"EXISTS (SELECT 1 FROM t b WHERE b.{key} = a.{key} AND b.height > a.height)",
            f"NOT EXISTS ({among} WHERE d.height = a.height + 1 AND d.topic = a.topic)",
            f"a.height >= (SELECT max(b.leaf_index) FROM ({self.source()}) b)",
        )
        return (
            f"SELECT count(DISTINCT {key}) AS c0, count(*) AS c1 FROM {where} AND {self.chance.choice(tests)}",
            2,
        )

    def _some(self, key: str, where: str) -> tuple[str, int]:
        some = f"SELECT {key} FROM {where} LIMIT {self.chance.randrange(40)}"
        return f"SELECT count(*) AS c0 FROM ({some}) s", 1

    def _window(self, key: str, where: str) -> tuple[str, int]:
        over = f"OVER (PARTITION BY {key} ORDER BY {ORDER})"
        ranked = f"SELECT a.entry_id AS c0, row_number() {over} AS c1, sum(height) {over} AS c2 FROM {where}"
        return f"SELECT c0, c1, c2 FROM ({ranked}) r WHERE c1 <= {self.chance.randrange(1, 6)}", 3

    def _with(self, key: str, where: str) -> tuple[str, int]:
        pairs = (
            f"SELECT x.{key} AS c0, count(*) AS c1 FROM w x JOIN w y ON x.{key} = y.{key} GROUP BY x.{key}"
        )
        return f"WITH w AS (SELECT * FROM {where}) {pairs}", 2


def tagged(number: int, query: str, columns: int) -> str:
    """Return a query whose rows are its number and its values as one text."""
    values = ", ".join(f"coalesce(CAST(c{each} AS STRING), '~')" for each in range(columns))
    return f"SELECT {number} AS q, concat_ws('|', {values}) AS r FROM ({query}) s{number}"


class Asker:
    """Asks both in a session of its own. Every statement has another plan, on a fresh frame or an old one."""

    def __init__(self, spark: Any, world: World, seed: int) -> None:
        self.spark, self.world, self.seed = spark.newSession(), world, seed
        self.tables = {
            topics: to_arrow(world.path, columns=COLUMNS, **({"topics": topics} if topics else {}))
            for topics in TOPICS
        }
        self.frames: dict[str | None, Any] = {}
        self.asked: Counter[str] = Counter()

    def ask(self, count: int) -> None:
        """Ask `count` queries; raise `AssertionError` at the first that is answered in two ways."""
        goal = self.asked["queries"] + count
        while (left := goal - self.asked["queries"]) > 0:
            chance = random.Random(f"{self.seed}-{self.asked['statements']}")
            self._ask_once(chance, min(left, chance.choice(BATCHES)))

    def _ask_once(self, chance: random.Random, size: int) -> None:
        topics = chance.choice(TOPICS)
        table = self.tables[topics]
        plan = self._set_plan(chance, topics)
        queries = Queries(chance, table.to_pylist())
        view = f"CREATE OR REPLACE TEMP VIEW v AS SELECT * FROM t a WHERE {queries.condition('a')}"
        asked = [queries.query() for _ in range(size)]
        statement = " UNION ALL ".join(tagged(number, *each) for number, each in enumerate(asked))
        self.spark.sql(view)
        got = Counter((row[0], row[1]) for row in self.spark.sql(statement).collect())
        with duckdb.connect(":memory:") as other:
            other.register("t", table)
            other.execute(view)
            wanted = Counter(other.execute(statement).fetchall())
        self.asked += Counter(queries=size, statements=1, alone=size == 1, **plan)
        for number, (query, _) in enumerate(asked):
            one, two = ({row: n for row, n in rows.items() if row[0] == number} for rows in (got, wanted))
            assert one == two, (
                f"seed {self.seed}, statement {self.asked['statements'] - 1}, topics {topics}, plan {plan}:\n{view}\n"
                f"{query}\nSpark: {one}\nDuckDB: {two}"
            )

    def _set_plan(self, chance: random.Random, topics: str | None) -> dict[str, bool]:
        """Choose how Spark runs the next statement, and over which frame."""
        adaptive, compiled, broadcast = (chance.random() < share for share in (0.5, 0.15, 0.5))
        for name, value in {
            "spark.sql.adaptive.enabled": str(adaptive).lower(),
            "spark.sql.codegen.wholeStage": str(compiled).lower(),
            "spark.sql.codegen.factoryMode": "FALLBACK" if compiled else "NO_CODEGEN",
            "spark.sql.autoBroadcastJoinThreshold": "10MB" if broadcast else "-1",
            "spark.sql.shuffle.partitions": str(chance.choice((1, 1, 1, 2, 3))),
        }.items():
            self.spark.conf.set(name, value)
        fresh, cached = chance.random() < 0.05, chance.random() >= FROM_LOGS
        if fresh and topics in self.frames:
            self.frames.pop(topics).unpersist()
        if topics not in self.frames:
            self.frames[topics] = read(self.spark, self.world.path, columns=COLUMNS, topics=topics)
        frame = self.frames[topics]
        if cached != frame.is_cached:
            frame = frame.cache() if cached else frame.unpersist()
        frame.createOrReplaceTempView("t")
        return {"adaptive": adaptive, "cached": cached, "compiled": compiled, "broadcast": broadcast}
