"""`ropewalk pipeline replay | export | compact | health | report`: jobs over ledgers, and the page about tables."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from ropewalk.cli.manners import Command, emit, write_output
from ropewalk.cli.pipeline import (
    now_ms,
    recorded,
    source_of,
    source_option,
    spark_options,
    spark_session,
    warehouse_option,
)
from ropewalk.cli.places import NODE_KEY

__all__ = ["compact", "export", "health", "replay", "report"]

channels_option = click.option("--channels", metavar="A,B", help="Only these channels; default: all.")
key_option = click.option(
    "--key", "key_name", default=NODE_KEY, show_default=True, metavar="NAME", help="Who signs."
)


@click.command(
    "replay",
    cls=Command,
    epilog="Examples:\n  ropewalk pipeline replay --warehouse ./tables --reducer counts\n",
)
@warehouse_option
@source_option
@channels_option
@click.option("--reducer", default="counts", show_default=True, metavar="NAME", help="Or module:function.")
@click.option(
    "--partitions", type=click.IntRange(1), metavar="N", help="Hands; the roots are the same for any number."
)
@spark_options
def replay(
    warehouse: Path,
    source: Path | None,
    channels: str | None,
    reducer: str,
    partitions: int | None,
    master: str,
    remote: str | None,
) -> None:
    """Verify channels in parallel, fold each in order, and compare with the snapshots that were recorded."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ropewalk.errors import Unverified
    from ropewalk.node.replay import recorded_snapshots
    from ropewalk.pipeline.replay import replay_channels
    from ropewalk.pipeline.warehouse import Warehouse
    from ropewalk.stores.place import find_place

    store, place = Warehouse(warehouse).make(), source_of(source)
    with recorded(store, "replay") as facts, spark_session(master, remote, memory_mb=2048) as spark:
        found = replay_channels(spark, place, reducer, channels=channels, partitions=partitions)
        compared = 0
        for each in found:
            for snapshot in recorded_snapshots(find_place(place).home, each.channel):
                if snapshot.height == each.height and snapshot.evaluator.endswith(f" {reducer}"):
                    compared += 1
                    if snapshot.state_root.hex() != each.state_root:
                        raise Unverified(
                            f"channel {each.channel}, block {each.height}: state {each.state_root}, "
                            f"the snapshot says {snapshot.state_root.hex()}",
                            channel=each.channel,
                            height=each.height,
                            advice=f"`ropewalk ledger replay --channel {each.channel}` writes the reproduction bundle.",
                        )
        folder = store.path / "replays"
        folder.mkdir(exist_ok=True)
        rows = [{**each.to_json(), "state": each.state} for each in found]
        if rows:
            pq.write_table(
                pa.Table.from_pylist(rows), folder / f"{reducer.replace(':', '.')}-{now_ms()}.parquet"
            )
        facts |= {"channels": [each.to_json() for each in found], "compared": compared}
    emit(
        {"channels": [each.to_json() for each in found], "compared": compared},
        lambda: (
            "\n".join(
                f"ok  {e.channel}  {e.blocks} blocks, {e.envelopes} envelopes  state {e.state_root}"
                for e in found
            )
            or "no channels"
        ),
    )


@click.command(
    "export",
    cls=Command,
    epilog="Examples:\n  ropewalk pipeline export --warehouse ./tables --blocks 1000\n",
)
@warehouse_option
@source_option
@channels_option
@click.option(
    "--blocks", type=click.IntRange(1), default=1_000, show_default=True, metavar="N", help="Per bundle."
)
@click.option(
    "--from",
    "start",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="H",
    help="The first block.",
)
@click.option("--to", "end", type=click.IntRange(0), metavar="H", help="The last block; default: the head.")
@key_option
@spark_options
def export(
    warehouse: Path,
    source: Path | None,
    channels: str | None,
    blocks: int,
    start: int,
    end: int | None,
    key_name: str,
    master: str,
    remote: str | None,
) -> None:
    """Write proof bundles, one a range of heights, into <warehouse>/bundles; those that are there are kept."""
    from ropewalk.cli.places import key_folder
    from ropewalk.node.bundle import export_blocks
    from ropewalk.pipeline.export import export_channels
    from ropewalk.pipeline.warehouse import Warehouse
    from ropewalk.stores.place import find_place

    store, place = Warehouse(warehouse).make(), source_of(source)
    keys = find_place(place).keys if key_name == NODE_KEY else key_folder()
    with recorded(store, "export") as facts, spark_session(master, remote) as spark:
        found = export_channels(
            spark,
            place,
            store.path / "bundles",
            export_blocks,
            key_folder=keys,
            key_name=key_name,
            channels=channels,
            start=start,
            end=end,
            blocks_per_bundle=blocks,
        )
        facts |= {"bundles": len(found), "kept": sum(each.kept for each in found)}
    emit(
        {"bundles": [each.to_json() for each in found]},
        lambda: (
            "\n".join(
                f"{'kept' if e.kept else 'ok  '}  {e.channel} {e.start}–{e.end}  {e.path}" for e in found
            )
            or "no blocks"
        ),
    )


@click.command("compact", cls=Command, epilog="Examples:\n  ropewalk pipeline compact --warehouse ./tables\n")
@warehouse_option
@source_option
@channels_option
@click.option(
    "--blocks", type=click.IntRange(2), default=1_000, show_default=True, metavar="N", help="Per summary."
)
@key_option
@spark_options
def compact(
    warehouse: Path,
    source: Path | None,
    channels: str | None,
    blocks: int,
    key_name: str,
    master: str,
    remote: str | None,
) -> None:
    """Sign summaries of closed ranges, check those that stand, and merge small files of the tables."""
    from ropewalk.cli.places import key_folder
    from ropewalk.pipeline.compact import merge_files, summarise
    from ropewalk.pipeline.warehouse import Warehouse
    from ropewalk.stores.keyfiles import load_signing
    from ropewalk.stores.place import find_place

    store, place = Warehouse(warehouse).make(), source_of(source)
    key = load_signing(find_place(place).keys if key_name == NODE_KEY else key_folder(), key_name)
    with recorded(store, "compact") as facts, spark_session(master, remote) as spark:
        found = summarise(spark, place, store, key, channels=channels, blocks_per_summary=blocks)
        merged = merge_files(spark, store, now_ms())
        replaced = 0 if merged is None else len(merged.replaces)
        facts |= {"summaries": len(found), "files_merged": replaced}
    emit(
        {"summaries": [each.to_json() for each in found], "files_merged": replaced},
        lambda: f"ok  {len(found)} summaries ({sum(e.kept for e in found)} checked), {replaced} files merged",
    )


@click.command(
    "health", cls=Command, epilog="Examples:\n  ropewalk pipeline health --warehouse ./tables --json\n"
)
@warehouse_option
@source_option
@channels_option
@click.option(
    "--freshness-s", type=float, default=86_400.0, show_default=True, help="How old evidence may be."
)
@key_option
@spark_options
def health(
    warehouse: Path,
    source: Path | None,
    channels: str | None,
    freshness_s: float,
    key_name: str,
    master: str,
    remote: str | None,
) -> None:
    """Measure attestations and policies of channels: a table, and Observation envelopes to pass on."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ropewalk.cli.places import key_folder
    from ropewalk.pipeline.health import measure_channels, observation
    from ropewalk.pipeline.warehouse import Warehouse
    from ropewalk.stores.keyfiles import load_signing
    from ropewalk.stores.place import find_place

    store, place = Warehouse(warehouse).make(), source_of(source)
    key = load_signing(find_place(place).keys if key_name == NODE_KEY else key_folder(), key_name)
    with recorded(store, "health") as facts, spark_session(master, remote) as spark:
        now_ns = time.time_ns()
        found = measure_channels(spark, place, now_ns, channels=channels, freshness_s=freshness_s)
        folder = store.path / "health"
        folder.mkdir(exist_ok=True)
        if found:
            pq.write_table(
                pa.Table.from_pylist([each.to_json() for each in found]), folder / f"health-{now_ns}.parquet"
            )
        envelopes = [observation(each, key, now_ns).raw for each in found]
        write_output(str(store.home / "observations.jsonl"), b"".join(raw + b"\n" for raw in envelopes))
        facts |= {"measured": len(found), "stale": sum(each.stale for each in found)}
    emit(
        {"health": [each.to_json() for each in found]},
        lambda: "\n".join(map(_health_line, found)) or "no channels",
    )


def _health_line(each: Any) -> str:
    age = (
        "no evidence"
        if each.attestation_age_seconds is None
        else f"evidence {each.attestation_age_seconds:.0f} s old"
    )
    mark = "STALE" if each.stale else "ok   "
    where = f"{each.channel} {each.domain} {each.protocol_version}"
    return f"{mark}  {where}: {age}, {each.policy_hash_mismatch} policy mismatches"


@click.command(
    "report",
    cls=Command,
    epilog="Examples:\n  ropewalk pipeline report --warehouse ./tables -o report.html\n",
)
@warehouse_option
@click.option("-o", "output", metavar="F", help="Where the page goes; default: <warehouse>/report.html.")
@click.option("--source", hidden=True)
@click.option("--master", hidden=True)
@click.option("--remote", hidden=True)
def report(warehouse: Path, output: str | None, **_ignored: Any) -> None:
    """Write one HTML page with plots that opens without a network. It needs no Spark."""
    from ropewalk.pipeline.launch import require_spark
    from ropewalk.pipeline.report import render
    from ropewalk.pipeline.warehouse import Warehouse

    require_spark()
    store = Warehouse(warehouse).require()
    target = output or str(store.path / "report.html")
    write_output(target, render(store, now_ms()).encode())
    emit({"report": target}, f"ok  {target}")
