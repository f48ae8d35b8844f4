"""The commands as processes: contract answers, exit codes, and a driver killed in the middle."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ropewalk.disk import key_files
from ropewalk.ledger.channel.settings import read_settings
from ropewalk.pipeline.tables.warehouse import Warehouse
from tests.pipeline.tampering import change_payload
from tests.pipeline.test_ingest import keys_in_log, keys_of
from tests.pipeline.world import World
from tests.waiting import ended

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]
KILLS = int(os.environ.get("ROPEWALK_KILLS", "1"))


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from ropewalk.cli import main; main()", "pipeline", *arguments]


def run(*arguments: str, cwd: Path | None = None) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        command(*arguments, "--json"),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        cwd=cwd,
    )
    assert done.stdout.strip(), done.stderr
    return done.returncode, json.loads(done.stdout)


def test_from_a_repository_to_a_query_in_two_commands(world: World, tmp_path: Path):
    warehouse = str(tmp_path / "tables")
    code, said = run(
        "ingest", "--warehouse", warehouse, "--source", str(world.path), "--master", "local[2]", "--delta"
    )
    assert (code, said["rows"], said["rejected"]) == (0, 47, 0)
    code, said = run("tables", "--warehouse", warehouse)
    assert code == 0
    rows = {table["name"]: table["rows"] for table in said["tables"]}
    assert rows["events"] == 47 and rows["commits"] == 20 and rows["blocks"] == 5 and rows["gossip_dag"] == 7
    assert all({"name", "rows", "path", "head"} <= table.keys() for table in said["tables"])
    assert all(table["delta_version"] == 0 for table in said["tables"])
    code, said = run("report", "--warehouse", warehouse)
    assert code == 0 and "What the logs say" in Path(said["report"]).read_text(encoding="utf-8")
    code, said = run(
        "sql", "--warehouse", warehouse, "--master", "local[2]", "SELECT count(*) AS n FROM events"
    )
    assert (code, said) == (0, {"columns": ["n"], "rows": [[47]], "truncated": False})
    other = World.make(tmp_path / "other.git")
    other.git("prod", 1)
    code, said = run("verify", "--warehouse", warehouse, "--master", "local[2]", cwd=other.path)
    assert (code, said["ok"], sum(log["entries"] for log in said["logs"])) == (0, True, 47)
    code, said = run("status", "--warehouse", warehouse)
    assert code == 0 and said["batches"][0]["logs"][0]["root"] and said["runs"][0]["job"] == "ingest"
    schema = tmp_path / "schema.json"
    schema.write_text('{"properties": {"later": {"type": "number"}}}', encoding="utf-8")
    named = f"deploy.finished={schema}"
    code, said = run("ingest", "--warehouse", warehouse, "--master", "local[2]", "--typed", "--schema", named)
    assert (code, said["rows"], said["batches"]) == (0, 0, 1)
    code, said = run("sql", "--warehouse", warehouse, "DESCRIBE events__deploy_finished")
    assert code == 0 and ["later", "DOUBLE"] in [row[:2] for row in said["rows"]]


def test_verify_ends_with_five_and_names_the_first_bad_entry(world: World, tmp_path: Path):
    change_payload(world)
    code, said = run(
        "verify", "--warehouse", str(tmp_path / "t"), "--source", str(world.path), "--master", "local[2]"
    )
    assert code == 5 and not said["ok"]
    bad = [log for log in said["logs"] if not log["ok"]]
    assert [(log["topic"], log["first_bad"]) for log in bad] == [("ea.core", "block 2")]


def test_upkeep_of_ledgers_by_command(world: World, tmp_path: Path):
    key_files.make(world.place.keys, "node", "ed25519", b"node" + bytes(28))
    trust = tmp_path / "trust.json"
    trust.write_bytes(read_settings(world.place.home, "ea.core").trust().to_bytes())
    place = ["--warehouse", str(tmp_path / "t"), "--source", str(world.path), "--master", "local[2]"]
    code, said = run("compact", *place, "--blocks", "2")
    assert code == 0 and [each["start_height"] for each in said["summaries"]] == [0, 2]
    code, said = run("health", *place, "--trust", str(trust))
    (health,) = said["health"]
    assert code == 0 and (health["envelopes"], health["attestation_chain_valid"]) == (20, None)
    assert (tmp_path / "t" / "_ropewalk" / "observations.jsonl").read_bytes().count(b"\n") == 1


def test_next_run_completes_killed_drivers_tables(world: World, tmp_path: Path):
    warehouse = tmp_path / "tables"
    arguments = ["ingest", "--warehouse", str(warehouse), "--source", str(world.path), "--master", "local[2]"]
    stood = 0
    for kill in range(KILLS):
        world.git("prod", 5)
        world.ledger("ea.core", 6)
        process = subprocess.Popen(
            command(*arguments, "--batch-rows", "20"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with ended(process, 500):
            _wait_for_files(warehouse, kill, process)
        now = len(Warehouse(warehouse).manifests())  # raises unless each stands on the one before it
        assert now >= stood
        stood = now
    code, _ = run(*arguments)
    assert code == 0
    assert keys_of(warehouse, "events") == keys_in_log(world)
    assert len(set(keys_of(warehouse, "events"))) == len(keys_of(warehouse, "events"))
    code, said = run("verify", "--warehouse", str(warehouse), "--tables", "--master", "local[2]")
    assert code == 0, said
    assert pq.read_table(warehouse / "deployments").num_rows == 12 + 5 + 5 * KILLS


def _wait_for_files(warehouse: Path, more: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the run has begun to write: the moment differs from kill to kill."""
    wanted = ("events", "commits", "deployments", "blocks")[more % 4]
    before = _files(warehouse / wanted, warehouse / "_ropewalk" / "staging")
    while not _files(warehouse / wanted, warehouse / "_ropewalk" / "staging") - before:
        assert process.poll() is None, "the run ended before it wrote"
        time.sleep(0.01)


def _files(*folders: Path) -> set[Path]:
    """What stands below the folders just now; one may come or go while we look."""
    found: set[Path] = set()
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):
            found.update(folder.rglob("*"))
    return found
