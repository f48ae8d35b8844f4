"""One verdict: command line, rows, Spark, bundle and replica all say the same of a damaged log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ropewalk.errors import RopewalkError
from ropewalk.ledger.evidence.settings import channel_trust
from ropewalk.ledger.proof.trust import Trust
from ropewalk.pipeline.source.refusals import find_refusal
from tests.pipeline.verdicts import CASES, LOGS, RULED, make_base, reopened, verdicts_of
from tests.pipeline.world import World, mostly_slow

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_base(tmp_path_factory.mktemp("base") / "log.git")


@pytest.fixture(scope="module")
def trust(base: World) -> dict[str, Trust]:
    return {name: channel_trust(base.place.home, name) for name in ("ea.core", RULED)}


@pytest.mark.parametrize("name", CASES)
def test_every_verifier_says_the_same(base: World, trust: dict[str, Trust], tmp_path: Path, name: str):
    case, world = CASES[name], reopened(base, tmp_path / "log.git")
    case.act(world)
    found = verdicts_of(world, trust, tmp_path)
    ledgers = {log for log in case.bad if log.startswith("ledger/")}
    for verifier, refused in found.items():
        expected = ledgers if verifier in ("bundle", "replica") else set(case.bad)
        if verifier.removeprefix("strict ") not in case.unseen:
            assert refused == expected, f"{verifier}: {found}"


@pytest.mark.parametrize(
    "name", mostly_slow("envelope schema", "no policy", "unnamed attachment", "no key list", fast=1)
)
def test_spark_says_the_same(spark: Any, base: World, tmp_path: Path, name: str):
    from ropewalk.pipeline.jobs.verify import verify_logs

    case, world = CASES[name], reopened(base, tmp_path / "log.git")
    case.act(world)
    (bad,) = case.bad
    engine, _, topic = bad.partition("/")
    reader = spark.read.format("ropewalk").option("repository", str(world.path)).option("engine", engine)
    with pytest.raises(Exception) as caught:
        reader.option("topics", topic).load().count()
    refusal = find_refusal(str(caught.value))
    assert isinstance(refusal, RopewalkError) and refusal.exit_code == 5, caught.value
    rows = reader.option("verify", "quarantine").load().select("topic", "verdict").distinct().collect()
    assert {row.topic for row in rows if row.verdict == "failed"} == {topic}
    report, _ = verify_logs(spark, world.path)
    assert {f"{log.log.engine}/{log.log.topic}" for log in report.logs if log.detail} == {bad}
    assert {f"{log.log.engine}/{log.log.topic}" for log in report.logs} >= set(LOGS)
