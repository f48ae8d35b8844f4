"""Schedules of a watch: archives, packing, drills, anchors and compaction; due times, records, crashes, failures."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.test_delta import write
from tests.serving import call, command, environment
from tests.waiting import LIMIT_S

from ropewalk.disk.state_folder import StateFolder
from ropewalk.errors import Invalid
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.settings import channels, create_channel
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.keys.rotate import open_sealing
from ropewalk.pipeline.tables.duck import ask_duckdb
from ropewalk.pipeline.tables.warehouse import Warehouse
from ropewalk.server.auth.audit import CHANNEL as AUDIT_CHANNEL
from ropewalk.server.watch.config import WatchConfig, parse_watch
from ropewalk.server.watch.rounds import Watch
from ropewalk.server.watch.schedules import Schedules

NODE = SigningKey.generate("ed25519", bytes(range(32)))
DAY_NS = 86_400 * 10**9


class Place:
    """A repository with a namespace and a channel whose keys are all `NODE`, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, time.time_ns()
        done = subprocess.run(
            command("init", str(folder / "log.git")),
            env=environment(folder), check=False, capture_output=True, timeout=LIMIT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        self.home = folder / "log.git" / "ropewalk"
        create_channel(self.home, "ops", "node", NODE.public)
        self.append("ops", 1)

    def append(self, channel: str, number: int) -> None:
        made = build(
            NODE, domain="ops", event_class="Observation", event_type="t", payload={"n": number},
            timestamp="2024-11-01T12:00:00Z",
        )  # fmt: skip
        with open_sealing(self.home, channel, lambda: (NODE,)) as opened:
            opened.log.submit(made.raw)

    def parts(self) -> dict[str, Any]:
        return {
            "channel_keys": lambda _: (NODE,), "signing_key": lambda _: NODE, "now_ns": lambda: self.now,
        }  # fmt: skip

    def schedules(self, config: WatchConfig, chance: float = 0.5) -> Schedules:
        return Schedules(self.home, config, **self.parts(), chance=lambda: chance)

    def firing(self, config: WatchConfig) -> list[str]:
        return [each["name"] for each in Watch(self.home, config, **self.parts()).round().firing]

    def records(self) -> list[dict[str, Any]]:
        """What the audit channel says."""
        with open_channel(self.home, AUDIT_CHANNEL) as reading:
            blocks = list(reading.blocks(0, reading.head().height - 1))
        return [json.loads(raw) for block in blocks for raw in block.envelopes]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def config(place: Place, **more: Any) -> WatchConfig:
    return parse_watch(
        {"version": 1, "retention": {"keep_days": 1e-9, "archive": str(place.folder / "cold")}, **more}
    )


def test_archive_then_drill_is_recorded_and_due_again(place):
    schedules = place.schedules(config(place, drills={"every_days": 7}))
    acts = schedules.run_due()
    assert acts[0].startswith("archived ops") and acts[-1].startswith("rehearsed recovery of ops")
    (drill,) = (place.home / "ledger" / "ops" / "drills").iterdir()
    assert json.loads(drill.read_text())["ok"] is True
    types = [each["event_type"] for each in place.records()]
    assert types == ["schedule.archive", "schedule.drill"]
    assert place.records()[0]["payload"]["acts"][0].startswith("archived ops")
    assert schedules.run_due() == []  # nothing is due
    place.now += 2 * DAY_NS
    assert all("rehearsed" not in act for act in schedules.run_due())
    place.now += 6 * DAY_NS
    assert any("rehearsed" in act for act in schedules.run_due())


def test_jitter_spreads_the_next_run(place):
    due = []
    for chance in (0.0, 1.0):
        schedules = place.schedules(config(place), chance)
        StateFolder(place.home / "schedules").make()
        (place.home / "schedules" / "state.json").unlink(missing_ok=True)
        schedules.run_due()
        due.append((schedules.state()["archive"]["due_ns"] - place.now) / DAY_NS)
    assert due == [pytest.approx(0.9), pytest.approx(1.1)]


def test_failed_drill_pages_until_one_succeeds(place):
    settings = config(place, drills={"every_days": 7})
    schedules = place.schedules(settings)
    schedules.run_due()
    assert place.firing(settings) == []
    (packed,) = (place.folder / "cold" / "ops").glob("*/blocks.seg.zst")
    good = packed.read_bytes()
    packed.chmod(0o644)
    packed.write_bytes(good[:-20] + bytes(20))
    place.now += 8 * DAY_NS
    schedules.run_due()
    assert place.firing(settings) == ["ScheduleFailed"]
    assert place.records()[-1]["payload"]["ok"] is False
    packed.write_bytes(good)
    place.now += 8 * DAY_NS
    schedules.run_due()
    assert place.firing(settings) == []


def test_killed_job_is_due_again(place, monkeypatch):
    """What a process leaves that is killed in a job: started, not ended."""
    schedules = place.schedules(config(place))
    monkeypatch.setattr(schedules, "_archive", lambda _acts: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        schedules.run_due()
    assert "ended_ns" not in schedules.state()["archive"]
    shown = json.loads(call(place.folder, "watch", "status", "--json").stdout)["schedules"]
    assert [(each["job"], each["state"]) for each in shown] == [("archive", "running")]
    assert place.schedules(config(place)).run_due()[0].startswith("archived ops")


def test_jobs_run_in_one_process_at_a_time(place):
    folder = StateFolder(place.home / "schedules")
    folder.make()
    with folder.locked(0):
        assert place.schedules(config(place)).run_due() == []
    assert place.schedules(config(place)).run_due()


def test_anchors_are_signed_and_tiles_published(place):
    event = b'{"type":"t","payload":{}}'
    assert call(place.folder, "shiplog", "append", "--ns", "prod", "--file", "-", stdin=event).returncode == 0
    settings = parse_watch(
        {"version": 1, "anchors": {"every_hours": 1, "folder": str(place.folder / "tiles")}}
    )
    acts = place.schedules(settings).run_due()
    assert [act.split()[0:2] for act in acts] == [["anchored", "shiplog/prod"], ["published", "ops:"]]
    (row,) = json.loads(call(place.folder, "shiplog", "anchor", "ls", "--json").stdout)["anchors"]
    assert row["signed"] and row["label"] == "watch"
    assert (place.folder / "tiles" / "ops" / "checkpoint").read_text().startswith("localhost/ops\n1\n")
    place.now += DAY_NS
    assert place.schedules(settings).run_due() == []  # nothing is new: no anchor, no record
    assert len(place.records()) == 1


def test_compaction_joins_small_packs(place):
    event = b'{"type":"t","payload":{}}'
    for _ in range(4):
        assert (
            call(place.folder, "shiplog", "append", "--ns", "a", "--file", "-", stdin=event).returncode == 0
        )
    packs = place.folder / "log.git" / "objects" / "pack"
    before = len(list(packs.glob("*.pack")))
    settings = parse_watch({"version": 1, "compaction": {"every_hours": 1}})
    acts = place.schedules(settings).run_due()
    after = len(list(packs.glob("*.pack")))
    assert after < before and acts == [f"joined packs: {before} to {after}"]
    done = call(place.folder, "verify")
    assert done.returncode == 0, done.stdout


def test_tables_job_reports_missing_warehouse(place):
    wanted = place.folder / "tables"
    settings = parse_watch({"version": 1, "tables": {"warehouse": str(wanted)}})
    schedules = place.schedules(settings)
    assert schedules.run_due() == [] and not wanted.exists()
    known = schedules.state()["tables"]
    assert not known["ok"] and known["detail"] == f"there is no warehouse at {wanted}"
    assert known["due_ns"] > place.now  # the jitter's due time, as for every job
    assert [each["event_type"] for each in place.records()] == ["schedule.tables"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tables_job_compacts_by_child_process(place):
    """The real command, with Spark: the files of two batches become one, and a run that fails is recorded."""
    store = Warehouse(place.folder / "tables")
    with store.writing():
        for rows in (2, 1):
            write(store, rows, "events")
    settings = parse_watch({"version": 1, "tables": {"every_hours": 1, "warehouse": str(store.path)}})
    schedules = place.schedules(settings)
    assert schedules.run_due() == ["compacted tables: 0 summaries, 2 files merged"]
    assert schedules.state()["tables"]["ok"] and len(store.manifests()) == 3
    assert ask_duckdb(store, "SELECT count(*) FROM events", 1).rows == ((3,),)
    (place.folder / "log.git" / "ropewalk" / "keys" / "node.json").unlink()
    place.now += DAY_NS
    assert schedules.run_due() == []
    assert schedules.state()["tables"]["detail"].startswith("pipeline compact: ")
    assert [each["payload"]["ok"] for each in place.records()] == [True, False]


@pytest.mark.timeout(300)
def test_ingest_job_keeps_the_tables_fresh(place):
    """The real command writes what is new, and nothing if nothing is; a run leaves no entry that is new again."""
    event = b'{"type": "t", "payload": {}}'
    words = ("shiplog", "append", "--ns", "a", "--file", "-")
    assert call(place.folder, *words, stdin=event).returncode == 0
    wanted = place.folder / "fresh"
    settings = parse_watch({"version": 1, "ingest": {"every_minutes": 1, "warehouse": str(wanted)}})
    schedules = place.schedules(settings)
    assert schedules.run_due() == [] and AUDIT_CHANNEL not in channels(place.home)
    assert schedules.state()["ingest"]["ok"], schedules.state()
    known = "SELECT count(*) FROM events WHERE topic = 'a'"
    assert ask_duckdb(Warehouse(wanted), known, 1).rows == ((1,),)
    assert call(place.folder, *words, stdin=event).returncode == 0
    assert schedules.run_due() == []
    assert ask_duckdb(Warehouse(wanted), known, 1).rows == ((1,),), "it was not due"
    for _ in range(2):
        place.now += DAY_NS
        assert schedules.run_due() == []
    assert ask_duckdb(Warehouse(wanted), known, 1).rows == ((2,),)
    assert len(Warehouse(wanted).manifests()) == 2


def test_ingest_job_that_fails_is_recorded(place):
    wanted = place.folder / "fresh"
    wanted.write_text("a file")
    settings = parse_watch({"version": 1, "ingest": {"warehouse": str(wanted)}})
    schedules = place.schedules(settings)
    assert schedules.run_due() == []
    assert schedules.state()["ingest"]["detail"].startswith("pipeline ingest: ")
    assert [each["payload"]["ok"] for each in place.records()] == [False]


def test_ingest_settings_are_checked():
    with pytest.raises(Invalid, match="warehouse"):
        parse_watch({"version": 1, "ingest": {}})
    with pytest.raises(Invalid, match="strict, quarantine"):
        parse_watch({"version": 1, "ingest": {"warehouse": "t", "verify": "off"}})


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("ingest", "every_minutes"),
        ("anchors", "every_hours"),
        ("drills", "every_days"),
        ("retention", "keep_days"),
    ],
)
def test_watch_refuses_endless_intervals(name: str, member: str):
    """A time that no clock has ended the thread of the schedules, after every run of the job."""
    others = {"ingest": {"warehouse": "t"}, "retention": {"archive": "cold"}}
    for odd in (1e308, 1e15, -1):
        document = {"version": 1, **others, name: {**others.get(name, {}), member: odd}}
        with pytest.raises(Invalid, match=f'"{member}" must be a number of 0 or more'):
            parse_watch(document)
    with pytest.raises(Invalid, match="interval_seconds"):
        parse_watch({"version": 1, "interval_seconds": 1e308})


@pytest.mark.parametrize(
    "webhooks", [None, 1, "ab", {"a": 1}, [1], ["ab"], [["url", "x"]], [{}], [{"url": None}]]
)
def test_watch_webhooks_must_be_objects(webhooks):
    """One without an address would get no alert, ever."""
    with pytest.raises(Invalid, match="webhooks"):
        parse_watch({"version": 1, "webhooks": webhooks})


def test_tables_need_a_warehouse():
    with pytest.raises(Invalid, match="warehouse"):
        parse_watch({"version": 1, "tables": {"every_hours": 1}})


def test_drills_need_archives():
    with pytest.raises(Invalid, match="retention"):
        parse_watch({"version": 1, "drills": {}})
    with pytest.raises(Invalid, match="evry"):
        parse_watch({"version": 1, "compaction": {"evry_hours": 1}})
