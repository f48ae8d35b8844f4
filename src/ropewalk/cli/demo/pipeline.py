"""The main job: six weeks of deployments, peers and a ledger become tables on Spark; then proofs, and one lie."""

from __future__ import annotations

import contextlib
import os
import random
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.cli.demo.gitlog import PEOPLE
from ropewalk.cli.demo.stage import NODE, Stage, node_key
from ropewalk.cli.pipeline.running import now_ms, spark_session
from ropewalk.disk.repository_paths import RepositoryPaths, make_repository
from ropewalk.errors import RopewalkError, Unavailable
from ropewalk.gitlog.core.commit import rfc3339
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gossip.peer.topics import open_log, open_topic
from ropewalk.gossip.sync.session import sync_both
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.channel.channel import open_log as open_channel_log
from ropewalk.ledger.channel.settings import channels, create_channel, read_settings
from ropewalk.ledger.envelope.envelope import build

if TYPE_CHECKING:
    from ropewalk.pipeline.tables.warehouse import Warehouse

DAYS = 42
DAY_MS = 86_400_000
SERVICES = ("web", "api", "search", "billing")
METRICS = "demo.metrics"
CHAT = "com.example.notes"


def run(stage: Stage) -> None:
    """Show logs becoming tables whose every row is proven, and a table that is proven as a whole."""
    place, _ = make_repository(stage.directory / "demo.git")
    stage.made.setdefault("repository", str(place.git_dir))
    _six_weeks(stage, place)
    _peers(stage, place)
    _metrics(stage, place)
    started = time.monotonic()
    try:
        with spark_session("local[2]", None) as spark:
            stage.show("spark", f"{spark.version} started in {time.monotonic() - started:.1f} s")
            _tables(stage, place, spark)
    except Unavailable as error:
        stage.refused(f"{error.detail}. {error.advice_now}")


def _six_weeks(stage: Stage, place: RepositoryPaths) -> None:
    chance = random.Random(42)  # noqa: S311 - reproducible sample data
    first_ms = now_ms() - DAYS * DAY_MS
    clock = [first_ms]
    count = 0
    with open_repository(place.git_dir, now_ms=lambda: clock[0]) as log:
        for day in range(DAYS):
            clock[0] = first_ms + day * DAY_MS + chance.randrange(DAY_MS // 2)
            drafts: list[Draft] = []
            for _ in range(chance.randrange(2, 6)):
                service, took_s = chance.choice(SERVICES), chance.randrange(30, 600)
                committed_ms = clock[0] - chance.randrange(600, 172_800) * 1_000
                status = "failed" if chance.random() < 0.12 else "success"
                drafts.append(
                    Draft(
                        {
                            "type": f"deployment.{status}",
                            "payload": {
                                "service": service,
                                "day": day,
                                "committed_at": rfc3339(committed_ms),
                            },
                        },
                        {
                            "status": status,
                            "what": {"service": service, "artifact": f"{service}:1.{day}.{len(drafts)}"},
                            "when": {
                                "start_ts": rfc3339(clock[0]),
                                "end_ts": rfc3339(clock[0] + took_s * 1000),
                                "dur_s": took_s,
                            },
                            "who": {"name": chance.choice(PEOPLE)},
                            "why": {"reason": chance.choice(("release", "release", "hotfix", "config"))},
                        },
                    )
                )
            log.append_all("prod", drafts)
            count += len(drafts)
        with log.consume("dashboard", "prod", count // 2) as events:
            handled = sum(1 for _ in events)
    stage.show(
        "deployments",
        f"{count} of {len(SERVICES)} services over {DAYS} days, in git; a consumer at {handled}",
    )


def _peers(stage: Stage, place: RepositoryPaths) -> None:
    keys = [SigningKey.generate("ed25519", os.urandom(32)) for _ in PEOPLE[:3]]
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(open_topic(place.home, CHAT, create=True, signer=keys[0]))
        others = [
            stack.enter_context(open_log(CHAT, stage.directory / "gossip" / f"notes-{name}", signer=key))
            for name, key in zip(PEOPLE[1:], keys[1:], strict=False)
        ]
        for number in range(60):  # each writes for a while, then they meet
            (ours, *others)[number % 3].append({"from": PEOPLE[number % 3], "note": number})
            if number % 7 == 6:
                sync_both(ours, others[number % 2])
        for _ in range(2):
            for other in others:
                sync_both(ours, other)
        stage.show("gossip", f"{len(ours)} messages of three authors")


def _metrics(stage: Stage, place: RepositoryPaths) -> None:
    node = node_key(place)
    if METRICS not in channels(place.home):
        create_channel(place.home, METRICS, NODE, node.public)
    author = SigningKey.generate("ed25519", os.urandom(32))
    raws = [
        build(
            author,
            domain="demo.ops",
            event_class="Observation",
            event_type="latency.measured",
            payload={"service": SERVICES[number % 4], "ms": number % 97, "sample": number},
            timestamp=rfc3339(now_ms() - (30 - number // 100 * 3) * DAY_MS),
        ).raw
        for number in range(1_000)
    ]
    clock = [time.time_ns() - 30 * DAY_MS * 1_000_000]
    with open_channel_log(place.home, METRICS, node, now_ns=lambda: clock[0]) as opened:
        for start in range(0, len(raws), 100):
            opened.log.submit_many(raws[start : start + 100])
            clock[0] += 3 * DAY_MS * 1_000_000
    stage.show("ledger", f"{len(raws)} envelopes in channel {METRICS}")


def _tables(stage: Stage, place: RepositoryPaths, spark: Any) -> None:
    from ropewalk.pipeline.report.report import render
    from ropewalk.pipeline.tables.verify import verify_tables
    from ropewalk.pipeline.tables.warehouse import Warehouse

    warehouse = Warehouse(stage.directory / "warehouse")
    stage.made["warehouse"] = str(warehouse.path)
    _take_in(stage, place, spark, warehouse)
    _verify(stage, place, spark, warehouse)
    _states(stage, place, spark, warehouse)
    _bundles(stage, place, spark, warehouse)
    _upkeep(stage, place, spark, warehouse)
    _lie(stage, spark, warehouse)
    held = verify_tables(spark, warehouse)
    if not held.ok:
        raise RopewalkError("the demo's own tables do not verify")
    stage.good(f"put back: {sum(step.status == 'passed' for step in held.steps)} steps prove the tables")
    page = stage.directory / "report.html"
    page.write_text(render(warehouse, now_ms()), encoding="utf-8")
    if "report" in stage.made:
        stage.made["audit"] = stage.made["report"]
    stage.made["report"] = str(page)


def _take_in(stage: Stage, place: RepositoryPaths, spark: Any, warehouse: Warehouse) -> None:
    """Load logs into tables, once, and query them."""
    from ropewalk.pipeline.jobs.ingest import Ingest
    from ropewalk.pipeline.tables.sql import ask

    job = Ingest(spark, place.git_dir, warehouse.path, now_ms=now_ms, group="warehouse")
    started, started_ms = time.monotonic(), now_ms()
    done = job.once()
    took = time.monotonic() - started
    warehouse.record_run(
        "ingest",
        started_ms,
        {"ok": True, **done.to_json(), "rows_per_s": done.rows / took, "ended_ms": now_ms()},
    )
    stage.good(f"ingest: {done.rows} rows, each verified on the way, in {took:.1f} s")
    if job.once().rows == 0:
        stage.good("ingest again: nothing is new, nothing is doubled")
    answer = ask(
        spark,
        warehouse,
        "SELECT service, deployments, per_week, failure_rate, recovery_mean_s FROM deployment_measures "
        "WHERE env = 'prod' ORDER BY service",
        20,
    )
    for line in answer.to_text().splitlines():
        stage.say(f"    {line}")


def _verify(stage: Stage, place: RepositoryPaths, spark: Any, warehouse: Warehouse) -> None:
    """Verify every log from end to end."""
    from ropewalk.pipeline.jobs.verify import verify_logs

    started, started_ms = time.monotonic(), now_ms()
    report, _ = verify_logs(spark, place.git_dir, keys=[node_key(place).public])
    took = time.monotonic() - started
    entries = sum(log.entries for log in report.logs)
    warehouse.record_run(
        "verify", started_ms, {"ok": report.ok, "entries": entries, "seconds": took, "ended_ms": now_ms()}
    )
    if not report.ok:
        raise RopewalkError("the demo's own logs do not verify")
    stage.good(f"verify: {entries} entries of {len(report.logs)} logs in parallel ranges that join")


def _bundles(stage: Stage, place: RepositoryPaths, spark: Any, warehouse: Warehouse) -> None:
    """Export bundles that verify without Spark and without the log."""
    from ropewalk.ledger.bundle.files import export_blocks, verify_bundle
    from ropewalk.pipeline.jobs.export import export_channels

    bundles = export_channels(
        spark,
        place.git_dir,
        warehouse.inside("bundles"),
        export_blocks,
        key_folder=place.keys,
        key_name=NODE,
        channels=METRICS,
        blocks_per_bundle=5,
    )
    trust = read_settings(place.home, METRICS).trust()
    for bundle in bundles:
        if not verify_bundle(Path(bundle.path), trust).report.ok:
            raise RopewalkError(f"{bundle.path} does not verify")
    stage.good(f"export: {len(bundles)} bundles by ranges, each verified offline")


def _states(stage: Stage, place: RepositoryPaths, spark: Any, warehouse: Warehouse) -> None:
    """Fold the channels into states, signed for; a second run has nothing to do."""
    from ropewalk.ledger.replay.channel_replay import replay_channel
    from ropewalk.pipeline.jobs.replay import Replays, replay_channels

    replays = Replays(warehouse)
    fold = partial(replay_channel, key=node_key(place))
    run = partial(replay_channels, spark, place.git_dir, "counts", fold, channels=METRICS)
    (found,) = run(snapshot_every=5)
    replays.keep([found], datetime.now(UTC))
    stage.good(
        f"replay: {found.channel}, {found.envelopes} envelopes, state {found.state_root[:16]}…, "
        f"{found.snapshots} signed snapshots"
    )
    if run(known=replays.last("counts"))[0].kept:
        stage.good("replay again: nothing to do")


def _upkeep(stage: Stage, place: RepositoryPaths, spark: Any, warehouse: Warehouse) -> None:
    """Compact files, sign summaries, and measure how fresh the evidence is."""
    import pyarrow as pa

    from ropewalk.pipeline.jobs.compact import merge_files, summarise
    from ropewalk.pipeline.jobs.health import measure_channels

    made = summarise(spark, place.git_dir, warehouse, node_key(place), channels=METRICS, blocks_per_summary=5)
    merged = merge_files(warehouse, now_ms())
    files = 0 if merged is None else len(merged.replaces)
    stage.good(f"compact: {len(made)} signed summaries of closed ranges, {files} files merged into few")
    found = measure_channels(spark, place.git_dir, time.time_ns())
    rows = [each.to_json() for each in found]
    warehouse.note("health", f"health-{time.time_ns()}", pa.Table.from_pylist(rows))
    words = {True: "hold", False: "DO NOT HOLD", None: "cannot be judged without roots"}
    for each in found:
        if each.attested:
            state = words[each.attestation_chain_valid]
            stage.good(f"health: {each.channel}: {each.attested} attestations {state}")


def _lie(stage: Stage, spark: Any, warehouse: Warehouse) -> None:
    """Edit one row of a table, and show that verification fails."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ropewalk.pipeline.tables.verify import verify_tables

    path = next(
        path
        for path in sorted((warehouse.path / "commits").rglob("*.parquet"))
        if pq.read_metadata(path).num_rows
    )
    kept = path.read_bytes()
    table = pq.read_table(path, partitioning=None)
    names = table["status"].to_pylist()
    names[0] = "skipped"
    pq.write_table(table.set_column(table.column_names.index("status"), "status", pa.array(names)), path)
    stage.say("  An attacker edits one row of the table commits:")
    report = verify_tables(spark, warehouse)
    failed = [step for step in report.steps if step.status == "failed"]
    path.write_bytes(kept)
    if not failed:
        raise RopewalkError("an edited row went unnoticed")
    for step in failed:
        stage.refused(f"{step.name}: {step.detail}")
