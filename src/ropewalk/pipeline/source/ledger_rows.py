"""Ledger blocks as columns: what a whole block has in common once, inclusion paths of all its envelopes at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from ropewalk.kernel.proofs import HASH_BYTES, LEDGER, pack_leaves
from ropewalk.ledger.block.block import Block
from ropewalk.ledger.envelope.model import Envelope, envelope_id
from ropewalk.ledger.envelope.run import EnvelopeRun
from ropewalk.pipeline.source.logs import Want
from ropewalk.pipeline.source.rows import (
    ROW_NAMES,
    Columns,
    Row,
    Verdict,
    block_entry,
    ledger_author,
    ledger_row,
    time_us,
)

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
HEX = 2 * HASH_BYTES
_NAMES = tuple(name for name in Row._fields if name != "proof")


class BlockColumns:
    """Collect the rows of several blocks, column by column."""

    def __init__(self, topic: str, want: Want) -> None:
        self.topic, self.want = topic, want
        self.count = 0
        self._values: dict[str, list[Any]] = {name: [] for name in _NAMES}
        self._paths: list[bytes] = []  # nodes in hex, one after the other
        self._lengths: list[int] = []  # of the paths, -1 for a row without one
        self._rows_with_path = want.columns & {"proof"}
        bounds = () if want.bounds.open else ("height", "time_us", "verdict")
        self._wanted = {ROW_NAMES.get(name, name) for name in want.columns}.union(bounds)

    def add_checked(
        self, block: Block, parts: Sequence[Sequence[Envelope]], notes: Sequence[bytes | None] | None
    ) -> None:
        """Add the envelopes of a block that verified, in parts as the verifier read them; only wanted columns."""
        header, count = block.header, len(block.envelopes)
        ids = _of_each(parts, EnvelopeRun.ids, lambda each: each.id)
        fields = _of_each(parts, EnvelopeRun.fields, lambda each: each.fields)
        columns: dict[str, Callable[[], Sequence[Any]]] = {
            "engine": lambda: ["ledger"] * count,
            "topic": lambda: [self.topic] * count,
            "entry_id": lambda: [header.hash.hex()] * count,
            "content_id": lambda: [each.hex() for each in ids],
            "parents": lambda: [[header.prev_block_hash.hex()] if header.height else []] * count,
            "height": lambda: [header.height] * count,
            "time_us": lambda: [
                time_us(each) for each in _of_each(parts, EnvelopeRun.timestamps, lambda each: each.timestamp)
            ],
            "type": lambda: [each["event_type"] for each in fields],
            "payload": lambda: [
                None if each == b"null" else each
                for each in _of_each(parts, EnvelopeRun.payloads, lambda each: each.payload_raw)
            ],
            "author": lambda: _authors(fields),
            "verdict": lambda: ["passed"] * count,
            "block_height": lambda: [header.height] * count,
            "leaf_index": lambda: range(count),
            "position": lambda: [header.height] * count,
            "entry": lambda: [block_entry(block.record), *[None] * (count - 1)],
        }
        self._add(
            count,
            notes=notes,
            detail=None,
            **{name: make() if name in self._wanted else None for name, make in columns.items()},
        )
        if self._rows_with_path:
            self._add_paths(ids)

    def add_judged(
        self,
        block: Block,
        faults: dict[int | None, str],
        notes: Sequence[bytes | None] | None,
        verdict: Verdict,
    ) -> None:
        """Add the envelopes of a block that was not checked or did not pass; `faults` by index, None for all."""
        ids = [envelope_id(raw) for raw in block.envelopes]
        rows = []
        for index, raw in enumerate(block.envelopes):
            detail = faults.get(None) or faults.get(index)
            try:
                value = orjson.loads(raw)
            except orjson.JSONDecodeError:
                value = {}
            value = value if isinstance(value, dict) else {}
            shown: Verdict = "failed" if detail else verdict
            row = ledger_row(self.topic, block.record, value, ids[index], index, None, shown, detail)
            rows.append(row if notes is None else row._replace(notes=notes[index]))
        self.add_rows(rows, with_path=False)
        if self._rows_with_path:
            self._add_paths(ids)

    def add_rows(self, rows: Sequence[Row], *, with_path: bool = True) -> None:
        """Add rows as they are, without a path."""
        self._add(len(rows), **{name: [getattr(row, name) for row in rows] for name in _NAMES})
        if with_path:
            self._lengths += [-1] * len(rows)

    def take(self) -> Columns:
        """Return what was collected and begin anew."""
        values: dict[str, Any] = self._values
        if self._rows_with_path:
            values["proof"] = _path_array(b"".join(self._paths), self._lengths)
        bounds, keep = self.want.bounds, None
        if not bounds.open:
            asked = zip(values["height"], values["time_us"], values["verdict"], strict=True)
            keep = [bounds.admits(*each) for each in asked]
        found = Columns(self.count, values, keep)
        self.__init__(self.topic, self.want)  # type: ignore[misc]
        return found

    def _add(self, count: int, **values: Any) -> None:
        self.count += count
        for name, each in values.items():
            self._values[name] += [None] * count if each is None else each

    def _add_paths(self, ids: Sequence[bytes]) -> None:
        nodes, lengths = all_paths(ids)
        self._paths.append(nodes)
        self._lengths += lengths


def all_paths(leaves: Sequence[bytes]) -> tuple[bytes, list[int]]:
    """Return the inclusion paths of all leaves of a tree: their nodes in hex end to end, and how many each has.

    >>> a, b = LEDGER.leaf(b"a"), LEDGER.leaf(b"b")
    >>> nodes, lengths = all_paths([a, b])
    >>> nodes == (b.hex() + a.hex()).encode(), lengths
    (True, [1, 1])
    """
    import numpy as np

    count, level = len(leaves), pack_leaves(leaves)
    levels, starts, sizes = [level], [0], [count]
    while sizes[-1] > 1:
        even = sizes[-1] & ~1
        level = LEDGER.level(level[: even * HASH_BYTES]) + level[even * HASH_BYTES :]  # an odd node rises
        starts.append(starts[-1] + sizes[-1])
        levels.append(level)
        sizes.append(len(level) // HASH_BYTES)
    nodes = np.frombuffer(b"".join(levels).hex().encode(), dtype=f"S{HEX}")
    heights = np.arange(len(levels) - 1)
    siblings = (np.arange(count)[:, None] >> heights) ^ 1
    there = siblings < np.array(sizes[:-1], dtype=np.int64)
    picked = (siblings + np.array(starts[:-1], dtype=np.int64))[there]
    return nodes[picked].tobytes(), there.sum(axis=1).tolist()


def _path_array(nodes: bytes, lengths: Sequence[int]) -> pa.Array:
    """Return paths as an Arrow list of strings; a length of -1 is a null."""
    import numpy as np
    import pyarrow as pa

    count = len(nodes) // HEX
    offsets = pa.py_buffer(np.arange(0, (count + 1) * HEX, HEX, dtype=np.int32))
    values = pa.StringArray.from_buffers(count, offsets, pa.py_buffer(nodes))
    sizes = np.array(lengths, dtype=np.int32)
    ends = np.concatenate([[0], np.cumsum(np.maximum(sizes, 0), dtype=np.int32)]).astype(np.int32)
    missing = pa.array(sizes < 0, pa.bool_()) if (sizes < 0).any() else None
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, mask=missing)


def _of_each(
    parts: Sequence[Sequence[Envelope]],
    of_run: Callable[[EnvelopeRun], Sequence[T]],
    of_one: Callable[[Envelope], T],
) -> list[T]:
    """Return something of each envelope; those of a run need not be made for it."""
    return [
        each
        for part in parts
        for each in (of_run(part) if isinstance(part, EnvelopeRun) else map(of_one, part))
    ]


def _authors(fields: Sequence[dict[str, Any]]) -> list[str | None]:
    authors = {id(each): ledger_author(each) for each in {id(every): every for every in fields}.values()}
    return [authors[id(each)] for each in fields]
