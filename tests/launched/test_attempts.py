"""Tasks that run twice: retried after a failure, or copied by speculative execution. Rows come out exactly once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.pipeline.tables.verify import check_files
from ropewalk.pipeline.tables.warehouse import Warehouse
from tests.launched.test_clusters import Cluster, cluster, needs_jdk
from tests.pipeline.test_ingest import keys_in_log, keys_of
from tests.pipeline.world import World

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]
__all__ = ["cluster"]
# Spark copies a task only to another host; the fixture's two workers are on two loopback addresses.
SCRIPT = """
import os, sys, time
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader
from pyspark_ropewalk import DefaultSource
from ropewalk.cli.pipeline.running import cache_folder
from ropewalk.pipeline.jobs.ingest import Ingest
from ropewalk.pipeline.launch.launch import QUICK, Setting, launch, stop
from ropewalk.pipeline.tables import staging
kind, source, warehouse, folder, master = sys.argv[1:]
group = staging.stage_group

def trip(name):
    attempt = TaskContext.get().attemptNumber()
    Path(folder, f"{name}.{attempt}").touch()
    if attempt == 0 and kind == "retried":
        raise OSError("this attempt fails")
    deadline = time.monotonic() + 300
    while attempt == 0 and not Path(folder, f"{name}.1").exists() and time.monotonic() < deadline:
        time.sleep(0.05)

def stage_oddly(query, parts, into):
    done = group(query, parts, into)
    if parts[0].log.topic == "prod":
        trip("ingest")
    return done

class OddReader(DataSourceReader):
    def __init__(self, inner):
        self.inner = inner
    def partitions(self):
        return self.inner.partitions()
    def read(self, partition):
        for batch in self.inner.read(partition):
            yield batch
            if partition.part.log.topic == "prod":
                trip("source")

class OddSource(DefaultSource):
    @classmethod
    def name(cls):
        return "odd"
    def reader(self, schema):
        return OddReader(super().reader(schema))

options = {
    "spark.executor.extraJavaOptions": " ".join(QUICK),
    "spark.speculation": str(kind == "copied").lower(),
    "spark.speculation.interval": "100ms",
    "spark.speculation.task.duration.threshold": "1s",
}
spark = launch(Setting(master, cache=cache_folder(), options=options), os.environ)
staging.stage_group, staging.ROWS_PER_RANGE = stage_oddly, 8
print("ingested", Ingest(spark, Path(source), Path(warehouse), now_ms=lambda: 1).once().rows, flush=True)
spark.dataSource.register(OddSource)
frame = spark.read.format("odd").option("repository", source).option("rows_per_partition", "100").load()
columns = ("engine", "topic", "entry_id", "content_id")
rows = sorted(tuple(map(str, row)) for row in frame.select(*columns).collect())
print("read", len(rows), len(set(rows)), flush=True)
stop(spark)
"""


@needs_jdk
@pytest.mark.parametrize("kind", ["retried", "copied"])
def test_tasks_run_twice_bring_rows_once(world: World, tmp_path: Path, cluster: Cluster, kind: str):
    """The first attempt on the log `prod` fails after it wrote everything, or waits until a copy of it is as far."""
    store, marks = Warehouse(tmp_path / "t"), tmp_path / "marks"
    marks.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind, str(world.path), str(store.path), str(marks), cluster.url],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["ingested 47", "read 47 47"]
    assert {"ingest.1", "source.1"} <= {path.name for path in marks.iterdir()}  # second attempts
    assert keys_of(store.path, "events") == keys_in_log(world)
    with store.writing():  # what the other attempt left is swept away
        (files,) = check_files(store, store.manifests())
    assert files.status == "passed", files.detail
