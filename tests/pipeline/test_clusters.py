"""The same job where executors are other processes: a small cluster, and a Spark Connect server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.test_commands import run
from tests.pipeline.test_ingest import keys_in_log, keys_of
from tests.pipeline.world import World

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
# Executors are started by Spark's own launcher, which asks for a module that small runtimes lack.
needs_jdk = pytest.mark.skipif(shutil.which("java") is None, reason="needs a full JDK on PATH")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    import pyspark

    from ropewalk.pipeline.launch import OPENED

    home = Path(pyspark.__file__).parent
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [
            "java",
            "-Xmx1g",
            "-XX:+IgnoreUnrecognizedVMOptions",
            *(f"--add-opens={name}=ALL-UNNAMED" for name in OPENED),
            "-Dio.netty.tryReflectionSetAccessible=true",
            "-Dspark.master=local[2]",
            "-Dspark.ui.enabled=false",
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
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    yield f"sc://127.0.0.1:{port}"
    process.kill()
    process.wait()


@needs_jdk
def test_ingest_on_executors_of_their_own(world: World, tmp_path: Path):
    arguments = ("--warehouse", str(tmp_path / "t"), "--source", str(world.path))
    code, said = run("ingest", *arguments, "--master", "local-cluster[2,1,1024]")
    assert (code, said.get("rows")) == (0, 47), said
    assert keys_of(tmp_path / "t", "events") == keys_in_log(world)


@needs_jdk
def test_ingest_and_verify_over_spark_connect(world: World, tmp_path: Path, server: str):
    arguments = ("--warehouse", str(tmp_path / "t"), "--source", str(world.path), "--remote", server)
    code, said = run("ingest", *arguments)
    assert (code, said.get("rows")) == (0, 47), said
    assert keys_of(tmp_path / "t", "events") == keys_in_log(world)
    code, said = run("verify", *arguments)
    assert code == 0 and said["ok"], said
