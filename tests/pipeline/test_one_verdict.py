"""One verdict: command line, rows, Spark, bundle and replica all say the same of a damaged log."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import ropewalk
from ropewalk.cli.common.command import Session
from ropewalk.cli.pipeline.pipeline import verify as verify_command
from ropewalk.disk import key_files
from ropewalk.errors import RopewalkError
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.repository.signing import sign_log
from ropewalk.kernel.note.key import Verifier
from ropewalk.ledger.evidence.settings import channel_trust
from ropewalk.ledger.proof.trust import Trust
from ropewalk.pipeline.source.refusals import find_refusal
from tests.pipeline.verdicts import CASES, LOGS, RULED, make_base, reopened, verdicts_of
from tests.pipeline.world import ADA, NODE, World, mostly_slow

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


@pytest.mark.parametrize(
    ("by", "options", "code"), [(NODE, (), 0), (ADA, (), 5), (NODE, ("--trust", "ada"), 5)]
)
def test_pipeline_verify_trusts_own_signed_heads(
    spark: Any,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by: Any,
    options: Any,
    code: int,
):
    """As `ropewalk verify`: a head signed by the repository's own key counts, unless --trust names other keys."""
    key_files.make(world.place.keys, "node", "ed25519", b"node" + bytes(28))
    with open_repository(world.path) as log:
        sign_log(log, "prod", by)
    (tmp_path / "ada").write_text(Verifier("ada", ADA.public).to_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROPEWALK_CONFIG", str(tmp_path / "config"))
    monkeypatch.setattr("ropewalk.cli.pipeline.running.spark_session", lambda *_, **__: nullcontext(spark))
    given = ["--warehouse", "tables", "--source", str(world.path), "--topics", "prod", *options]
    done = CliRunner().invoke(verify_command, given, obj=Session())
    assert done.exit_code == code, done.output
    assert ropewalk.verify(world.path, trust=options[-1] if options else None).ok == (code == 0)
