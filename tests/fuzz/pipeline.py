"""Parsers of the pipeline: manifests of a warehouse, offsets of streams, options and bounds of tables."""

from __future__ import annotations

import json

from ropewalk.kernel import jcs
from ropewalk.pipeline.source.logs import parse_bound
from ropewalk.pipeline.source.offsets import LogName, Offset, Point
from ropewalk.pipeline.source.table_options import MARK, parse_options
from ropewalk.pipeline.tables.warehouse import Manifest, StoredFile, Warehouse
from tests.fuzz.offering import Parser, as_text, work_folder

__all__ = ["PARSERS"]

OFFSET = Offset(
    {LogName("gitlog", "prod"): Point(7, "ab"), LogName("ledger", "a"): Point(2, "cd", "block 2")}
)
FILES: dict[str, tuple[StoredFile, ...]] = {
    "events": (StoredFile("events/batch=1/part-0.parquet", "0" * 64, 900, 7),)
}
LOG = {"engine": "gitlog", "topic": "prod", "start": 0, "end": 4, "rows": 4, "rejected": 0, "root": ""}
MANIFEST = Manifest(1, None, "s", "strict", 1_730_462_400_000, Offset(), OFFSET, (LOG,), FILES)


def _manifest(raw: bytes) -> None:
    store = Warehouse(work_folder() / "warehouse").make()
    (store.batches / "0000000001.json").write_bytes(raw)
    (found,) = store.manifests()
    assert Manifest.from_bytes(found.to_bytes()) == found


def _offset(raw: bytes) -> None:
    found = Offset.from_json(jcs.parse(raw))
    assert Offset.from_json(found.to_json()) == found


def _options(raw: bytes) -> None:
    found = parse_options(as_text(raw))
    assert parse_options(MARK + json.dumps(found)) == found


def _bound(raw: bytes) -> None:
    parse_bound(as_text(raw))


PARSERS = (
    Parser("warehouse_manifest", _manifest, (MANIFEST.to_bytes(),)),
    Parser("stream_offset", _offset, (jcs.encode(OFFSET.to_json()),)),
    Parser("table_options", _options, (MARK.encode() + b'{"repository": "/r", "topics": "a,b"}',)),
    Parser("time_bound", _bound, (b"2024-11-01T12:00:00Z", b"2024-11-01T12:00:00.25+02:00", b"2024-11-01")),
)
