"""The recipes in `examples/`: each is run, or checked against what would run it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
import yaml  # type: ignore[import-untyped]

from ropewalk.cli.pipeline.pipeline import ingest as ingest_command
from tests.pipeline.test_ingest import ingest
from tests.pipeline.world import World
from tests.tools import needs, skip_or_fail

TOOLS = ("dbt-duckdb==1.11.*", "kubernetes-validate==1.37.*")  # their dependencies do not go with ours
EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


def test_kubernetes_manifest_calls_ingest_as_it_is():
    job = yaml.safe_load((EXAMPLES / "spark" / "kubernetes.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob")
    assert job["spec"]["concurrencyPolicy"] == "Forbid"  # a warehouse has one writer
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["ropewalk", "pipeline", "ingest"]
    ingest_command.make_context("ingest", list(container["args"]), resilient_parsing=False)
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["volumes"]}
    image = (EXAMPLES / "spark" / "Dockerfile").read_text()
    assert f"--uid {pod['securityContext']['runAsUser']} ropewalk" in image and '".[spark]"' in image
    assert container["image"].rpartition("/")[2].partition(":")[0] in re.findall(r"build -t (\S+)", image)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of dbt and of a validator with the schemas of Kubernetes, in an environment of their own."""
    folder = tmp_path_factory.mktemp("tools")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
    done = subprocess.run([*install, *TOOLS], capture_output=True, text=True, check=False, timeout=400)
    if done.returncode:
        skip_or_fail(f"pip could not install {' '.join(TOOLS)}: {done.stderr[-2000:]}")
    return folder / "bin"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_kubernetes_manifest_follows_the_schema(tools: Path, version: str):
    manifest = EXAMPLES / "spark" / "kubernetes.yaml"
    command = (tools / "kubernetes-validate", "--strict", "-k", version, manifest)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_dbt_runs_its_models_over_a_warehouse(tools: Path, world: World, tmp_path: Path):
    warehouse, project = tmp_path / "tables", tmp_path / "dbt"
    ingest(pytest.fail, world, warehouse).once()  # so few rows need no Spark
    shutil.copytree(EXAMPLES / "dbt", project)
    done = subprocess.run(
        [tools / "dbt", "run", "--profiles-dir", "."],
        cwd=project,
        env={**os.environ, "WAREHOUSE": str(warehouse)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    with duckdb.connect(str(project / "ropewalk.duckdb"), read_only=True) as made:
        assert made.sql("SELECT sum(events) FROM events_by_day").fetchall() == [(47,)]
        assert made.sql("SELECT count(*) FROM failed_deployments").fetchall() == [(5,)]


@pytest.mark.slow
def test_notebook_runs_from_top_to_bottom(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import nbformat
    from nbclient import NotebookClient

    ingest(pytest.fail, world, tmp_path / "tables", typed=True).once()
    monkeypatch.setenv("WAREHOUSE", str(tmp_path / "tables"))
    monkeypatch.setenv("REPOSITORY", str(world.path))
    book: Any = nbformat.read(EXAMPLES / "spark" / "events.ipynb", as_version=4)
    NotebookClient(book, timeout=300, kernel_name="python3").execute()
    said = "".join(
        output["data"]["text/plain"]
        for cell in book.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "data" in output
    )
    assert "20" in said and "True" in said and "False" not in said
    assert "events__deploy_finished" in said and "no tables of event types" not in said
    assert re.search(r"type +n +ok", said), said  # the columns of a typed table


@needs("java")
@pytest.mark.slow
def test_spark_submit_runs_the_job(world: World, tmp_path: Path):
    import pyspark

    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [
            *(str(submit), "--master", "local[2]", "--driver-memory", "1g"),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"),
            *(str(EXAMPLES / "spark" / "daily_counts.py"), str(world.path), str(tmp_path / "counts")),
        ],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert sum(pq.read_table(tmp_path / "counts")["count"].to_pylist()) == 47
