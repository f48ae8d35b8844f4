"""Ways to end a part of an ingest with SIGKILL, and what must be true of the tables right after.

`python -m tests.pipeline.killing SOURCE WAREHOUSE ROWS` is a driver program on a JVM that is already warm: it starts in
a second, so many can be killed. Its JVM lives on and may finish what the program had asked for, into a folder that
nobody looks at any more.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ropewalk.pipeline import to_arrow
from ropewalk.pipeline.tables.warehouse import Manifest, StoredFile, Warehouse, reached
from tests.pipeline.world import World

__all__ = [
    "Crash",
    "Driver",
    "Mortal",
    "check_recorded",
    "ending",
    "executors_of",
    "grow",
    "kill_one",
    "processes_below",
    "workers_of",
]

ROOT = Path(__file__).parents[2]
KEY = ["engine", "topic", "entry_id", "content_id", "position"]
BEGUN, DONE = b"begun\n", b"done\n"


class Crash(BaseException):
    """The process is gone: nobody catches this."""


class Mortal(Warehouse):
    """A warehouse whose writer dies before its n-th step: a table put in place, the manifest, old files removed."""

    def __init__(self, path: Path, lives: int) -> None:
        super().__init__(path)
        self.lives = lives
        self.committing = False

    def _step(self) -> None:
        self.lives -= 1
        if self.lives < 0:
            raise Crash

    def put_in_place(self, table: str, number: int, *, partitioned: bool = False) -> tuple[StoredFile, ...]:
        self._step()
        return super().put_in_place(table, number, partitioned=partitioned)

    def commit(self, manifest: Manifest, before: list[Manifest]) -> None:
        self._step()
        self.committing = True
        super().commit(manifest, before)
        self.committing = False

    def _drop(self, names: Iterable[str], manifests: list[Manifest]) -> None:
        if self.committing:
            self._step()
        super()._drop(names, manifests)


class Driver:
    """A driver program attached to a JVM; `begun` has been read, so Spark is at hand."""

    def __init__(self, port: int, secret: str, world: World, warehouse: Path, rows: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.killing", str(world.path), str(warehouse), str(rows)],
            env={
                **os.environ,
                "PYSPARK_GATEWAY_PORT": str(port),
                "PYSPARK_GATEWAY_SECRET": secret,
                "PYSPARK_PYTHON": sys.executable,
            },
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdout is not None
        self.out = self.process.stdout
        try:
            assert self.out.readline() == BEGUN
        except BaseException:
            self.kill(0)
            raise

    def finish(self) -> float:
        """Let it run to its end; the seconds that took."""
        started = time.monotonic()
        try:
            told = self.out.readline()
        finally:
            self.kill(10)
        assert told == DONE, told
        return time.monotonic() - started

    def kill(self, after_s: float) -> bool:
        """Kill it in a while; whether it was still at work."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(after_s)
        at_work = self.process.poll() is None
        self.process.kill()
        self.out.close()
        self.process.wait()
        return at_work


def grow(world: World, chance: random.Random) -> None:
    """A little more in every log."""
    world.git("prod", chance.randrange(1, 6))
    world.ledger("ea.core", chance.randrange(1, 6))
    world.gossip("com.example.chat", chance.randrange(1, 3))


def check_recorded(world: World, warehouse: Path) -> int:
    """What the manifests name is the log up to the recorded heads, each row once; how many rows that is."""
    place = Warehouse(warehouse)
    manifests = place.manifests()  # raises unless each stands on the one before it
    ends = {(log.engine, log.topic): point.position for log, point in reached(manifests).points.items()}
    found = [
        tuple(map(str, row.values()))
        for file in place.current_files(manifests).get("events", [])
        for row in pq.read_table(place.path / file.name, columns=KEY, partitioning=None).to_pylist()
    ]
    log = [
        tuple(map(str, row.values()))
        for row in to_arrow(world.path, columns=",".join(KEY)).to_pylist()
        if row["position"] < ends.get((row["engine"], row["topic"]), 0)
    ]
    assert sorted(found) == sorted(log)
    return len(found)


def processes_below(root: int, wanted: Callable[[list[str]], bool]) -> list[int]:
    """The processes under one whose command line is the wanted one, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        waiting += below
        found += [pid for pid in below if wanted(_command(pid))]
    return found


def workers_of(root: int) -> list[int]:
    """Python workers, children of Spark's daemon; the daemon itself is not one."""
    daemons = processes_below(root, lambda command: "pyspark.daemon" in command)
    return [pid for pid in daemons if _parent(pid) in daemons]


def executors_of(root: int) -> list[int]:
    """Executors of a small cluster."""
    return processes_below(
        root, lambda command: any("CoarseGrainedExecutorBackend" in word for word in command)
    )


def kill_one(
    find: Callable[[], list[int]], chance: random.Random, after_s: float, ended: threading.Event
) -> bool:
    """Kill one of those that are found in a while, or as soon as there is one; whether there was."""
    ended.wait(after_s)
    while not ended.is_set():
        found = find()
        if found:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(found), signal.SIGKILL)
                return True
        time.sleep(0.01)
    return False


def ending(process: subprocess.Popen[Any]) -> threading.Event:
    """An event for the end of a process."""
    ended = threading.Event()

    def wait() -> None:
        process.wait()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    return ended


def _command(pid: int) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return []


def _parent(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return 0


def attached() -> Any:
    """The session of the JVM that the environment names."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    SparkContext._ensure_initialized()
    gateway: Any = SparkContext._gateway
    context = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    java = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(context)
    return SparkSession(SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jconf=java.getConf())))


def main(source: str, warehouse: str, rows: str) -> None:
    from ropewalk.pipeline.jobs.ingest import Ingest

    spark = attached()
    out = sys.stdout.buffer
    out.write(BEGUN)
    out.flush()
    job = Ingest(
        spark,
        Path(source),
        Path(warehouse),
        now_ms=lambda: 1,
        group="analytics",
        rows_per_batch=int(rows),
    )
    job.once()
    out.write(DONE)
    out.flush()
    os._exit(0)  # the session is not ours to end


if __name__ == "__main__":
    main(*sys.argv[1:])
