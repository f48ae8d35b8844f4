"""The pipeline beside plain processes running the same pure code, plain Arrow, and a plain Spark start.

Everything runs on local[2]. The contestants of a job take turns in one run; the session stays warm between them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.harness import Contestant, Result, compare, fixed
from ropewalk.disk.repository_paths import make_repository
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block.block import GENESIS, seal
from ropewalk.ledger.channel.segments.writer import SegmentWriter
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.envelope.envelope import build
from ropewalk.pipeline.launch.launch import Setting, launch, stop
from ropewalk.pipeline.source.logs import between, open_logs
from ropewalk.pipeline.source.offsets import LogName, Point, Range

AUTHOR = SigningKey.generate("ed25519", b"author" + bytes(26))
NODE = SigningKey.generate("ed25519", b"node" + bytes(28))
PER_BLOCK = 1_000
NOW_NS = 1_730_462_400 * 10**9
SMALL = "a small size, where starting a job is most of it; the targets are for the full size"
CACHE = Path(tempfile.gettempdir()) / f"ropewalk-bench-pipeline-{os.getuid()}"


def fill_ledger(home: Path, channel: str, count: int, *, signed: bool) -> None:
    """A channel of sealed blocks. Unsigned: envelopes of the right form whose own signatures nobody will check."""
    create_channel(home, channel, "node", NODE.public)
    below = GENESIS
    with SegmentWriter(home / "ledger" / channel) as writer:
        for height, raws in enumerate(_blocks(count, signed=signed)):
            block = seal(
                NODE,
                channel=channel,
                height=height,
                prev_block_hash=below,
                envelopes=raws,
                timestamp_ns=NOW_NS + height,
            )
            writer.append(height, block.lines())
            below = block.hash
        writer.sync()


def _blocks(count: int, *, signed: bool) -> Iterator[list[bytes]]:
    """The envelopes of each block. Signing is nearly all of the work, so two processes do it."""
    numbers = [range(start, min(start + PER_BLOCK, count)) for start in range(0, count, PER_BLOCK)]
    if signed:
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            yield from pool.map(_signed, numbers)
        return
    first = _envelope(0)
    for each in numbers:
        yield [first.replace(b'"n":0', b'"n":%d' % number) for number in each]


def _signed(numbers: range) -> list[bytes]:
    return [_envelope(number) for number in numbers]


def _envelope(number: int) -> bytes:
    return build(
        AUTHOR,
        domain="bench",
        event_class="Observation",
        event_type=f"bench.{number % 4}",
        payload={"n": number, "text": "x" * 80},
        timestamp="2024-11-01T12:00:00Z",
    ).raw


def fill_git(path: Path, topic: str, count: int) -> None:
    with open_repository(path) as log:
        for start in range(0, count, 5_000):
            log.append_all(
                topic,
                [
                    Draft({"type": "t", "payload": {"n": n}}, {"what": {"service": "web"}})
                    for n in range(start, min(start + 5_000, count))
                ],
            )


def check_range(repository: Path, part: Range, deep: bool) -> int:
    """What one plain process does: the code that a Spark worker runs, without Spark."""
    total = 0
    for checked in open_logs(repository, (part.log.engine,))[part.log.engine].check(part, deep=deep):
        assert checked.detail is None, checked
        total += checked.entries
    return total


def check_signatures(repository: Path, part: Range) -> int:
    """What libsodium alone takes: the signatures of a range, made ready beforehand."""
    from nacl.bindings import crypto_sign_open

    for signed, key in _signatures(repository, part.log.topic, part.start, part.end):
        crypto_sign_open(signed, key)
    return part.rows


@lru_cache
def _signatures(repository: Path, channel: str, start: int, end: int) -> list[tuple[bytes, bytes]]:
    from ropewalk.disk.repository_paths import find_repository
    from ropewalk.ledger.channel.channel import open_channel
    from ropewalk.ledger.envelope.envelope import parse_stored

    with open_channel(find_repository(repository).home, channel) as opened:
        lines = [
            line
            for height, place in opened.segments.places()
            if start <= height < end
            for line in opened.segments.read(place, height).lines[1:]
        ]
    envelopes = map(parse_stored, lines)
    return [(each.signature_bytes + each.preimage, each.public_key.raw) for each in envelopes]


def run(quick: bool) -> list[Result]:
    sizes = (20_000, 50_000, 10_000) if quick else (200_000, 1_000_000, 100_000)
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        signed, sealed, git = (Path(folder) / f"{name}.git" for name in ("signed", "sealed", "git"))
        homes = {path: make_repository(path)[0].home for path in (signed, sealed, git)}
        fill_ledger(homes[signed], "signed", sizes[0], signed=True)
        fill_ledger(homes[sealed], "sealed", sizes[1], signed=False)
        fill_git(git, "prod", sizes[2])
        spark = launch(Setting("local[2]", cache=CACHE, memory_mb=2048, quick=False), os.environ)
        try:
            results += _verify(spark, signed, sizes[0], True, 0.9)
            results += _verify(spark, sealed, sizes[1], False, 0.7)
            results.append(
                replace(
                    results[-1], peer="asked", peer_per_s=1e6, ratio=results[-1].ours_per_s / 1e6, target=1.0
                )
            )
            results += _read_verified(spark, signed, sizes[0])
            results += _read(spark, sealed, sizes[1], Path(folder))
            results += _ingest(spark, "ledger", signed, sizes[0], Path(folder))
            results += _ingest(spark, "gitlog", git, sizes[2], Path(folder))
            results += _all_columns(spark, git, sizes[2], Path(folder))
            if quick:
                results = [replace(result, target=None, note=SMALL) for result in results]
            results.append(_follow(spark, git, Path(folder)))
        finally:
            stop(spark)
        results += _commands(git, Path(folder) / "tables-gitlog-1", 5)
        results.append(_start(3))
    return results


def _verify(spark: Any, repository: Path, count: int, deep: bool, target: float) -> list[Result]:
    from ropewalk.pipeline.jobs.verify import verify_logs

    halves = _halves(repository, count)

    def ours() -> int:
        report, _ = verify_logs(
            spark, repository, deep=deep, engine="ledger", rows_per_range=max(1, count // 4)
        )
        assert report.ok
        return count

    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:

        def plain() -> int:
            done = list(pool.map(check_range, [repository] * len(halves), halves, [deep] * len(halves)))
            assert sum(done) == count
            return count

        def bare() -> int:
            return sum(pool.map(check_signatures, [repository] * len(halves), halves))

        what = "every envelope" if deep else "block seals only"
        others = [Contestant("two plain processes", plain)]
        if deep:
            others.append(Contestant("bare libsodium, two processes", bare))
        return compare(
            f"verify {count:,} envelopes, {what}",
            Contestant("Spark, checked in the source", ours),
            others,
            target=target,
            rounds=3,
            unit="envelopes",
        )


def _halves(repository: Path, count: int) -> list[Range]:
    """The only channel of a repository, cut in two."""
    logs = open_logs(repository, ("ledger",))["ledger"]
    (topic,) = logs.topics()
    return between(logs, LogName("ledger", topic), Point(), logs.extent(topic), max(1, count // 2))


def _read_verified(spark: Any, repository: Path, count: int) -> list[Result]:
    """Three columns of events, each verified in the worker that reads it, to a sink that keeps nothing."""
    halves = _halves(repository, count)
    options = {"repository": str(repository), "engine": "ledger", "columns": "type,time,payload_json"}

    def ours() -> int:
        rows = spark.read.format("ropewalk").options(**options).load()
        rows.write.format("noop").mode("overwrite").save()
        return count

    assert spark.read.format("ropewalk").options(**options).load().count() == count
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        return compare(
            f"read three columns of {count:,} signed envelopes, verified",
            Contestant("Spark, from the log", ours),
            [
                Contestant(
                    "bare libsodium, two processes",
                    lambda: sum(pool.map(check_signatures, [repository] * len(halves), halves)),
                )
            ],
            target=0.9,
            rounds=3,
            unit="envelopes",
        )


def _read(spark: Any, repository: Path, count: int, folder: Path) -> list[Result]:
    import pyarrow.dataset as ds

    options = {"repository": str(repository), "engine": "ledger", "verify": "off", "columns": "type,height"}
    stored = folder / "rows.parquet"
    spark.read.format("ropewalk").options(**options).load().write.parquet(str(stored))

    def ours() -> int:
        found = spark.read.format("ropewalk").options(**options).load().groupBy("type").count().collect()
        return sum(int(row["count"]) for row in found)

    def arrow() -> int:
        table = ds.dataset(stored).to_table(columns=["type", "height"])
        return sum(
            row["type_count"] for row in table.group_by("type").aggregate([("type", "count")]).to_pylist()
        )

    assert ours() == arrow() == count
    return compare(
        f"read {count:,} ledger envelopes into a count by type",
        Contestant("Spark, from the log", ours),
        [Contestant("pyarrow, from Parquet", arrow)],
        target=None,
        rounds=3,
        unit="envelopes",
    )


def _ingest(spark: Any, engine: str, repository: Path, count: int, folder: Path) -> list[Result]:
    """All tables, manifests and digests of ours against the job that a Spark user would write (`pipeline_by_hand`)."""
    from bench import pipeline_by_hand as by_hand
    from ropewalk.pipeline.jobs.ingest import Ingest

    number = [0]
    lines = folder / "lines"
    if engine == "ledger":
        by_hand.dump_envelopes(repository, "signed", lines)

    def ours() -> int:
        number[0] += 1
        target = folder / f"tables-{engine}-{number[0]}"
        done = Ingest(spark, repository, target, now_ms=lambda: 0, engine=engine).once()
        assert done.rows == count
        return count

    def theirs() -> int:
        target = folder / f"hand-{engine}"
        if engine == "ledger":
            assert by_hand.ingest_envelopes(spark, lines, target) == count
        else:
            assert by_hand.ingest_commits(spark, repository, "refs/gatos/shiplog/prod/head", target) == count
        return count

    return compare(
        f"ingest {count:,} {'signed envelopes' if engine == 'ledger' else 'git events'} into tables",
        Contestant("pipeline ingest, all tables", ours),
        [Contestant("a Spark job written by hand", theirs)],
        target=1.0,
        rounds=3,
        unit="events",
    )


def _all_columns(spark: Any, repository: Path, count: int, folder: Path) -> list[Result]:
    """Every column of the source, written to Parquet by a user's own job, beside the job written by hand."""
    from bench import pipeline_by_hand as by_hand

    def ours() -> int:
        rows = spark.read.format("ropewalk").options(repository=str(repository), engine="gitlog").load()
        rows.write.mode("overwrite").parquet(str(folder / "columns"))
        return count

    def theirs() -> int:
        head = "refs/gatos/shiplog/prod/head"
        assert by_hand.ingest_commits(spark, repository, head, folder / "columns-hand") == count
        return count

    return compare(
        f"read all columns of {count:,} git events, to Parquet",
        Contestant("Spark, from the log", ours),
        [Contestant("a Spark job written by hand", theirs)],
        target=None,
        rounds=3,
        unit="events",
    )


def _commands(repository: Path, tables: Path, rounds: int) -> list[Result]:
    """Whole processes: one answer in SQL beside DuckDB alone, and an ingest that finds nothing new."""
    command = [str(Path(sys.executable).with_name("ropewalk")), "--repo", str(repository), "pipeline"]
    query = "SELECT type, count(*) FROM {} GROUP BY type LIMIT 3"
    every_file = f"read_parquet('{tables}/events/**/*.parquet')"
    alone = f"import duckdb; print(duckdb.sql({query.format(every_file)!r}).fetchall())"
    scripts = {
        "sql": [*command, "sql", "--warehouse", str(tables), query.format("events")],
        "duckdb": [sys.executable, "-c", alone],
        "nothing new": [*command, "ingest", "--warehouse", str(tables), "--engine", "gitlog"],
    }
    times: dict[str, list[float]] = {name: [] for name in scripts}
    for _ in range(rounds + 1):
        for name, script in scripts.items():
            started = time.perf_counter()
            subprocess.run(script, check=True, capture_output=True)
            times[name].append(time.perf_counter() - started)
    sql, duckdb, nothing = (statistics.median(times[name][1:]) for name in scripts)
    return [
        fixed(
            "answer one query of the tables (per second)",
            f"pipeline sql {sql:.2f} s",
            f"a script with DuckDB {duckdb:.2f} s",
            1 / sql,
            1 / duckdb,
            None,
            "answers",
            rounds=rounds,
        ),
        fixed(
            "ingest with nothing new (per second)",
            f"pipeline ingest {nothing:.2f} s",
            "1 s",
            1 / nothing,
            1.0,
            1.0,
            "runs",
            rounds=rounds,
        ),
    ]


def _follow(spark: Any, repository: Path, folder: Path) -> Result:
    from ropewalk.pipeline.jobs.ingest import Ingest

    seen, ended = threading.Event(), threading.Event()
    job = Ingest(
        spark,
        repository,
        folder / "tables-follow",
        now_ms=lambda: 0,
        engine="gitlog",
        told=lambda _manifest: seen.set(),
    )
    job.once()
    seen.clear()
    thread = threading.Thread(target=lambda: job.follow(ended.is_set))
    thread.start()
    times: list[float] = []
    with open_repository(repository) as log:
        for turn in range(8):
            seen.clear()
            log.append("prod", {"type": "t", "payload": {"turn": turn}})
            started = time.perf_counter()
            if not seen.wait(120):
                break
            times.append(time.perf_counter() - started)
    ended.set()
    thread.join(60)
    middle = statistics.median(times[1:])  # the first also waits for the query to start
    return fixed(
        "append to visible in --follow (median, per second)",
        f"{middle:.2f} s",
        "2 s",
        1 / middle,
        0.5,
        1.0,
        "events",
        rounds=len(times) - 1,
    )


OURS = """
import os
from pathlib import Path
from ropewalk.pipeline.launch.launch import Setting, launch, stop
spark = launch(Setting("local[2]", cache=Path({cache!r})), os.environ)
assert spark.range(1).count() == 1
stop(spark)
"""
PLAIN = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
assert spark.range(1).count() == 1
spark.stop()
"""


def _start(rounds: int) -> Result:
    """Start to first row, warm cache. The plain session needs a Java that Spark's own launcher accepts."""
    scripts: dict[str, Callable[[], str]] = {
        "ours": lambda: OURS.format(cache=str(CACHE)),
        "plain": lambda: PLAIN,
    }
    times: dict[str, list[float]] = {name: [] for name in scripts}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", scripts["ours"]()], check=True, capture_output=True)
        time.sleep(8)  # the archive is written behind the first one's back
    for _ in range(rounds):
        for name, script in scripts.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", script()], check=True, capture_output=True)
            times[name].append(time.perf_counter() - started)
    ours, plain = (statistics.median(times[name]) for name in ("ours", "plain"))
    return fixed(
        "start to first row, warm cache (per second)",
        f"{ours:.1f} s",
        f"plain SparkSession {plain:.1f} s",
        1 / ours,
        1 / plain,
        1 / 0.6,
        "starts",
        rounds=rounds,
    )
