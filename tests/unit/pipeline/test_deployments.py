"""The tables about deployments, made batch by batch on top of what is recorded, and made at once."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.pipeline.tables.deployments import write_deployments
from ropewalk.pipeline.tables.derive import events_schema

TABLES = ("deployments", "deployment_measures")
DEPLOYMENTS = st.tuples(
    st.sampled_from(("success", "failed", "revert", "other")),
    st.sampled_from(("web", "api")),
    st.one_of(st.none(), st.integers(0, 59)),  # the minute of its end
)


def event(height: int, status: str, service: str, minute: int | None) -> dict[str, Any]:
    when = {"start_ts": "2024-11-01T12:00:00Z"}
    if minute is not None:
        when["end_ts"] = f"2024-11-01T13:{minute:02d}:00Z"
    trailer = {"status": status, "what": {"service": service, "artifact": "a"}, "when": when}
    known = {"engine": "gitlog", "topic": "prod", "entry_id": f"{height:040x}", "verdict": "passed"}
    return {**known, "height": height, "payload": "{}", "entry": json.dumps({"trailer": trailer})}


def make(folder: Path, rows: list[dict[str, Any]], recorded: list[Path]) -> list[Path]:
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows, events_schema()), folder / "events.parquet")
    write_deployments([folder / "events.parquet"], recorded, *(folder / name for name in TABLES))
    return [folder / name / "part-0.parquet" for name in TABLES]


@settings(max_examples=25)
@given(batches=st.lists(st.lists(DEPLOYMENTS, min_size=1, max_size=6), min_size=1, max_size=4))
def test_batches_make_the_tables_of_one_run(tmp_path_factory: Any, batches: list[list[Any]]):
    folder = tmp_path_factory.mktemp("deployments")
    every = [event(height, *each) for height, each in enumerate(chain(*batches))]
    start = 0
    last: list[Path] = []
    for number, batch in enumerate(batches):
        last = make(folder / str(number), every[start : start + len(batch)], last[:1])
        start += len(batch)
    for made, wanted in zip(last, make(folder / "whole", every, []), strict=True):
        assert pq.read_table(made).to_pylist() == pq.read_table(wanted).to_pylist()
