"""SQL over the tables and the source: short errors with advice, and tables of Spark's own catalog."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropewalk.cli.common.suggest import did_you_mean
from ropewalk.errors import Invalid, InvalidName
from ropewalk.kernel import ulid
from ropewalk.pipeline import to_arrow
from ropewalk.pipeline.source.refusals import refusals_raised
from ropewalk.pipeline.tables.sql import ask
from ropewalk.pipeline.tables.warehouse import Warehouse
from tests.pipeline.test_delta import write
from tests.pipeline.world import World

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def test_sql_names_the_misspelt_table(spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    store = Warehouse(tmp_path / "tables")
    with store.writing():
        write(store, 2, "events", "deployments")
    assert ask(spark, store, "SELECT count(*) AS n FROM events", 1).rows == ((2,),)
    with pytest.raises(Invalid) as caught:
        ask(spark, store, "SELECT * FROM evnts", 1, did_you_mean)
    assert caught.value.detail == "there is no table 'evnts'"
    assert caught.value.advice_now == "Did you mean events? The tables are deployments, events."
    with pytest.raises(Invalid) as caught:
        ask(spark, store, "SELECT m FROM events", 1, did_you_mean)
    assert len(caught.value.detail) <= 300 and "UNRESOLVED_COLUMN" in caught.value.detail
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")  # no stack of the JVM


@pytest.fixture
def table(spark: Any) -> Any:
    yield "logs_of_test"
    spark.sql("DROP TABLE IF EXISTS logs_of_test")


def test_create_table_using_ropewalk_reads(spark: Any, world: World, table: str):
    spark.sql(
        f"CREATE TABLE {table} USING ropewalk OPTIONS (repository '{world.path}', engine 'gitlog') "
        "COMMENT 'deployments' TBLPROPERTIES ('team' = 'web')"
    )
    assert spark.sql(f"SELECT count(*) FROM {table}").head()[0] == 20
    assert spark.table(table).where("topic = 'prod'").count() == 12
    assert spark.sql(f"SELECT count(*) FROM {table} WITH (topics 'staging')").head()[0] == 5
    spark.sql(f"DROP TABLE {table}")
    spark.sql(f"CREATE TABLE {table} USING ropewalk LOCATION '{world.path}'")
    assert spark.table(table).count() == 47


def test_unknown_option_is_refused_in_plain_text(spark: Any, world: World, table: str):
    advice = "Options: repository, engine, topics, channels, start, end, verify, columns,"
    for act in (
        lambda: spark.sql(
            f"CREATE TABLE {table} USING ropewalk OPTIONS (repository '{world.path}', topcs 'x')"
        ),
        lambda: spark.read.format("ropewalk").option("repository", world.path).option("topcs", "x").load(),
    ):
        with pytest.raises(Exception) as caught:
            act()
        lines = str(caught.value).splitlines()
        at = next(number for number, line in enumerate(lines) if "there is no option 'topcs'" in line)
        assert lines[at + 1].startswith(advice)
        with pytest.raises(InvalidName, match="topcs") as refused, refusals_raised():
            act()
        assert refused.value.exit_code == 8 and refused.value.fields["name"] == "topcs"


def test_write_appends_rows_to_a_log_once(spark: Any, world: World):
    ulids = [ulid.make(1_700_000_000_000 + number, number) for number in range(30)]
    rows = [(each, "order.paid", json.dumps({"n": number})) for number, each in enumerate(ulids)]
    frame = spark.createDataFrame(rows, "ulid string, type string, payload string").repartition(3)
    writer = frame.write.format("ropewalk").mode("append").option("repository", str(world.path))
    for _ in range(2):  # a repeated job appends nothing again
        writer.option("topic", "orders").save()
    table = to_arrow(world.path, topics="orders")
    assert table["payload"].to_pylist() == [row[2].replace(" ", "") for row in rows]
    assert set(table["verdict"].to_pylist()) == {"passed"}
    variant = frame.selectExpr("ulid", "type", "parse_json(payload) AS payload").limit(1)
    variant.write.format("ropewalk").mode("append").options(repository=str(world.path), topic="orders").save()
    assert to_arrow(world.path, topics="orders").num_rows == 30


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"topic": ""}, "one topic"),
        ({"engine": "ledger"}, "must be gitlog"),
        ({"colour": "red"}, "there is no option 'colour'"),
        ({"drop": "ulid"}, "missing: ulid"),
        ({"payload": "{"}, "the ULID x must be JSON: unexpected end"),
    ],
)
def test_write_refuses_what_it_cannot_append(spark: Any, world: World, change: dict[str, str], wanted: str):
    rows = [("x", "t", change.pop("payload", "{}"))]
    frame = spark.createDataFrame(rows, "ulid string, type string, payload string")
    frame = frame.drop(change.pop("drop", ""))
    options = {"repository": str(world.path), "topic": "orders", **change}
    with pytest.raises(Invalid, match=wanted), refusals_raised():
        frame.write.format("ropewalk").mode("append").options(**options).save()
