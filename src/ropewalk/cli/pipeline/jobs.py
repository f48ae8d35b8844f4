"""`ropewalk pipeline replay | export | compact | health | report`: jobs over ledgers, and the page about tables."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from ropewalk.cli.common.command import command, emit, read_input, say, session, write_output
from ropewalk.cli.common.locations import NODE_KEY, key_folder
from ropewalk.cli.common.options import choice, decimal, integer, option
from ropewalk.cli.ledger.storage.replay import guard_option, snapshot_option, to_option
from ropewalk.cli.pipeline.running import (
    Job,
    as_job,
    asks_for_passphrases,
    now_ms,
    source_option,
    spark_options,
    warehouse_option,
)
from ropewalk.disk.repository_paths import find_repository
from ropewalk.kernel.terminal_text import printable
from ropewalk.pipeline.tables.row_groups import BY_DATE_AND_LOG

channels_option = option("--channels", "A,B", "Only these channels; default: all.")
key_option = option("--key key_name", "NAME", "Who signs.", default=NODE_KEY)


@command(
    "replay",
    "ropewalk pipeline replay --warehouse ./tables --reducer counts",
    "ropewalk pipeline replay --warehouse ./tables --reducer mine:fold --snapshot-every 1000",
    "ropewalk pipeline replay --warehouse ./tables --from-start",
)
@warehouse_option
@source_option
@channels_option
@option("--reducer", "NAME", "Or module:function (looked up here too).", default="counts")
@to_option
@snapshot_option
@click.option(
    "--from-snapshot/--from-start",
    "resume",
    default=None,
    help="Go on from the last snapshot, or fold every block and compare. Default: go on where the code is the same.",
)
@guard_option
@integer("--partitions", "N", "Hands; the roots are the same for any number.", least=1)
@spark_options
@as_job("replay")
def replay(
    job: Job,
    channels: str | None,
    reducer: str,
    until: int | None,
    snapshot_every: int | None,
    resume: bool | None,
    unsafe_no_guard: bool,
    partitions: int | None,
) -> None:
    """Verify channels in parallel, fold each in order, and compare with the snapshots that were recorded.

    What the warehouse knows already is not done again. A state that differs from a recorded snapshot ends with 5, an
    Alert on the companion channel, and a bundle that reproduces it.
    """
    from ropewalk.ledger.replay.channel_replay import replay_signing
    from ropewalk.pipeline.jobs.replay import Replays, replay_channels

    if ":" in reducer:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` would
    place = find_repository(job.place)
    quiet = asks_for_passphrases(place.keys, key_folder())
    with job.running(memory_mb=2048, quiet=quiet) as (spark, facts):
        replays = Replays(job.store)
        found = replay_channels(
            spark,
            place.git_dir,
            reducer,
            partial(replay_signing, node_keys=place.keys, user_keys=key_folder()),
            channels=channels,
            until=until,
            resume=resume,
            snapshot_every=snapshot_every,
            unsafe_no_guard=unsafe_no_guard,
            known=replays.last(reducer),
            partitions=partitions,
        )
        replays.keep(found, datetime.now(UTC))
        told = {"channels": [each.to_json() for each in found], "compared": sum(e.compared for e in found)}
        facts |= {"reducer": reducer, **told}
    if not session().json:
        for each in found:
            for refused in each.to_json()["refused"]:
                say(f"{each.channel}: refused {refused['snapshot']}: {refused['reason']}")
    emit(told, map(_replay_line, found), "no channels")


def _replay_line(each: Any) -> str:
    if not each.blocks:
        return f"ok  {each.channel}  nothing to do: height {each.height}  state {each.state_root}"
    since = "" if each.from_snapshot is None else f" since the snapshot at {each.from_snapshot}"
    kept = f", {each.snapshots} snapshots" if each.snapshots else ""
    return (
        f"ok  {each.channel}  {each.blocks} blocks{since}, {each.envelopes} envelopes{kept}  "
        f"state {each.state_root}"
    )


@command("export", "ropewalk pipeline export --warehouse ./tables --blocks 1000")
@warehouse_option
@source_option
@channels_option
@integer("--blocks", "N", "Per bundle.", least=1, default=1_000)
@integer("--from start", "H", "The first block.", default=0)
@integer("--to end", "H", "The last block; default: the head.")
@key_option
@spark_options
@as_job("export")
def export(job: Job, channels: str | None, blocks: int, start: int, end: int | None) -> None:
    """Write proof bundles, one a range of heights, into <warehouse>/bundles; those that are there are kept."""
    from ropewalk.ledger.bundle.files import export_blocks
    from ropewalk.pipeline.jobs.export import export_channels

    keys, store = job.keys, job.store.make()
    with job.running() as (spark, facts):
        found = export_channels(
            spark,
            job.place,
            store.inside("bundles"),
            export_blocks,
            key_folder=keys,
            key_name=job.key_name,
            channels=channels,
            start=start,
            end=end,
            blocks_per_bundle=blocks,
        )
        facts |= {"bundles": len(found), "kept": sum(each.kept for each in found)}
    emit(
        {"bundles": [each.to_json() for each in found]},
        (f"{'kept' if e.kept else 'ok  '}  {e.channel} {e.start}–{e.end}  {e.path}" for e in found),
        "no blocks",
    )


@command(
    "compact",
    "ropewalk pipeline compact --warehouse ./tables",
    "ropewalk pipeline compact --warehouse ./tables --by date,log",
)
@warehouse_option
@source_option
@channels_option
@integer("--blocks", "N", "Per summary.", least=2, default=1_000)
@choice(
    "--by",
    (BY_DATE_AND_LOG, "none"),
    "Write the growing tables into folders date=<day>/log=<topic> from now on, or into none; default: as they are.",
)
@key_option
@spark_options
@as_job("compact")
def compact(job: Job, channels: str | None, blocks: int, by: str | None) -> None:
    """Sign summaries of closed ranges, check those that stand, and merge small files of the tables.

    Row groups of merged files hold one log each. Folders by day and log let readers skip whole files; they pay if there
    are few logs, or many rows a day.
    """
    from ropewalk.pipeline.jobs.compact import merge_files, summarise

    key, store = job.key(), job.store.make()
    with job.running() as (spark, facts):
        found = summarise(spark, job.place, store, key, channels=channels, blocks_per_summary=blocks)
        partitioned = None if by is None else by == BY_DATE_AND_LOG
        merged = merge_files(store, now_ms(), partitioned=partitioned)
        replaced = 0 if merged is None else len(merged.replaces)
        facts |= {"summaries": len(found), "files_merged": replaced}
    emit(
        {"summaries": [each.to_json() for each in found], "files_merged": replaced},
        lambda: f"ok  {len(found)} summaries ({sum(e.kept for e in found)} checked), {replaced} files merged",
    )


@command(
    "health",
    "ropewalk pipeline health --warehouse ./tables --json",
    "ropewalk pipeline health --warehouse ./tables --trust TRUST.json",
    "ropewalk pipeline health --warehouse ./tables --metrics /var/lib/node_exporter/ropewalk.prom",
)
@warehouse_option
@source_option
@channels_option
@option("--freshness-s", "N", "How old evidence may be.", type=float, default=86_400.0)
@decimal(
    "--window-s",
    "N",
    "Count failures and policy mismatches in blocks sealed within this many seconds before now.",
    above=0,
    default=86_400.0,
)
@option("--trust", "F", "Judge evidence by this trust file; default: each channel's own settings.")
@option("--metrics", "F", "Also write Prometheus metrics into this file, whole or not at all.")
@key_option
@spark_options
@as_job("health")
def health(
    job: Job,
    channels: str | None,
    freshness_s: float,
    window_s: float,
    trust: str | None,
    metrics: str | None,
) -> None:
    """Measure attestations and policies of channels: a table, and Observation envelopes to pass on.

    Whether evidence holds is judged offline: signatures, certificate chains, builders, measurements, expiry. What
    cannot be judged, for want of roots say, is unknown, which is not valid.
    """
    import pyarrow as pa

    from ropewalk.ledger.proof.trust import parse_trust
    from ropewalk.pipeline.jobs.health import measure_channels, observation
    from ropewalk.pipeline.jobs.metrics import metrics_text

    key, store = job.key(), job.store.make()
    with job.running() as (spark, facts):
        now_ns = time.time_ns()
        believed = None if trust is None else parse_trust(read_input(trust))
        found = measure_channels(
            spark,
            job.place,
            now_ns,
            channels=channels,
            freshness_s=freshness_s,
            window_s=window_s,
            trust=believed,
        )
        if found:
            store.note("health", f"health-{now_ns}", pa.Table.from_pylist([each.to_json() for each in found]))
        envelopes = [observation(each, key, now_ns).raw for each in found]
        write_output(
            str(store.inside(store.home.name, "observations.jsonl")),
            b"".join(raw + b"\n" for raw in envelopes),
        )
        if metrics is not None:
            write_output(metrics, metrics_text(found, now_ns).encode())
        facts |= {
            "measured": len(found),
            "stale": sum(each.stale for each in found),
            "invalid": sum(each.attestation_chain_valid is False for each in found),
        }
    if metrics == "-":
        return  # print the data only
    emit({"health": [each.to_json() for each in found]}, map(_health_line, found), "no channels")


def _health_line(each: Any) -> str:
    age = (
        "no evidence"
        if each.attestation_age_seconds is None
        else f"evidence {each.attestation_age_seconds:.0f} s old"
    )
    mark = "STALE" if each.stale else "ok   "
    where = printable(f"{each.channel} {each.domain} {each.protocol_version}")
    chain = {True: ", chain valid", False: ", chain INVALID", None: ", chain unknown"}[
        each.attestation_chain_valid
    ]
    why = f"\n         {printable(each.evidence_detail)}" if each.evidence_detail else ""
    return f"{mark}  {where}: {age}{chain if each.attested else ''}, {each.policy_hash_mismatch} policy mismatches{why}"


@command("report", "ropewalk pipeline report --warehouse ./tables -o report.html")
@warehouse_option
@option("-o output", "F", "Where the page goes; default: <warehouse>/report.html.")
@click.option("--source", hidden=True)
@click.option("--master", hidden=True)
@click.option("--remote", hidden=True)
def report(warehouse: Path, output: str | None, **_ignored: Any) -> None:
    """Write one HTML page with plots that opens without a network. It needs no Spark."""
    from ropewalk.pipeline.launch.launch import require_spark
    from ropewalk.pipeline.report.report import render
    from ropewalk.pipeline.tables.warehouse import Warehouse

    require_spark()
    store = Warehouse(warehouse).require()
    target = output or str(store.inside("report.html"))
    write_output(target, render(store, now_ms()).encode())
    emit({"report": target}, f"ok  {target}")
