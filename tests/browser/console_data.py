"""A repository with something for every page of the console, made by the demo's own stages; no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from ropewalk.cli.demo import gitlog, ledger, pipeline
from ropewalk.cli.demo.stage import Stage
from ropewalk.disk.repository_paths import make_repository
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import MESSAGES
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.pipeline.tables.warehouse import Warehouse

MARKUP = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"


def make_data(folder: Path) -> None:
    """Make `demo.git` and `tables` in the folder."""
    stage = Stage(folder, quiet=True)
    gitlog.run(stage)
    ledger.run(stage)
    place, _ = make_repository(folder / "demo.git")
    pipeline._six_weeks(stage, place)
    pipeline._peers(stage, place)
    pipeline._metrics(stage, place)
    with open_repository(place.git_dir) as log:
        log.append("jobs/pending", {"type": "job.made", "payload": {"n": 1}}, layout=MESSAGES)
    store = Warehouse(folder / "tables").make()
    rows = {"channel": ["demo.audit"] * 3, "day": ["2026-01-01", "2026-01-02", "2026-01-03"], "n": [1, 5, 3]}
    store.note("health", "health-1", pa.table(rows))
    store.record_run("ingest", 1_790_000_000_000, {"ok": False, "error": MARKUP, "rows": 3})


def deployed(service: str, artifact: str, status: str = "success", **more: Any) -> Draft:
    """Return a deployment in prod."""
    trailer = {"env": "prod", "status": status, "what": {"service": service, "artifact": artifact}, **more}
    return Draft({"type": f"deployment.{status}", "payload": {"service": service}}, trailer)
