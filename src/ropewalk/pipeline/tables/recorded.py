"""What a batch holds, as its manifest records it: ranges, roots, heads and faults, read off its rows. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropewalk.errors import BrokenLink
from ropewalk.kernel.digest import parse_cid
from ropewalk.kernel.merkle import SHA256, Frontier
from ropewalk.pipeline.source.offsets import LogName, Offset, Point
from ropewalk.pipeline.tables.warehouse import Manifest

if TYPE_CHECKING:
    import pyarrow as pa


def content_root(content_ids: list[str | None]) -> str:
    """The RFC 6962 root over content ids in order; an entry without one counts as an empty leaf."""
    frontier = Frontier(SHA256)
    for name in content_ids:
        frontier.append(SHA256.leaf(_digest_of(name)))
    return frontier.root().hex()


def _digest_of(name: str | None) -> bytes:
    if name is None:
        return b""
    if name.startswith("blake3:"):
        return bytes.fromhex(name[7:])
    return bytes.fromhex(name) if len(name) == 64 else parse_cid(name)


def ranges_in(found: pa.Table, at: Offset) -> tuple[list[dict[str, Any]], Offset]:
    """The range, root and head of every log in a batch; a gap or a double is refused before it is recorded."""
    grouped: dict[LogName, list[tuple[int, str | None, str | None, str]]] = {}
    columns = [
        found.column(n).to_pylist()
        for n in ("engine", "topic", "position", "entry_id", "content_id", "verdict")
    ]
    seen: set[tuple[Any, ...]] = set()
    leaves = found.column("leaf_index").to_pylist()
    for index, (engine, topic, position, entry, content, verdict) in enumerate(zip(*columns, strict=True)):
        if position < 0:
            continue
        mark = (engine, topic, position, leaves[index])
        if mark in seen:
            raise BrokenLink(f"{engine} log {topic}: entry {position} came twice", topic=topic)
        seen.add(mark)
        grouped.setdefault(LogName(engine, topic), []).append((position, entry, content, verdict))
    logs, points = [], {}
    for log, rows in sorted(grouped.items()):
        first, last = rows[0][0], rows[-1][0]
        if first != at.at(log).position or len({row[0] for row in rows}) != last - first + 1:
            raise BrokenLink(
                f"{log.engine} log {log.topic}: the batch begins at {first}, recorded is {at.at(log).position}",
                topic=log.topic,
            )
        points[log] = Point(last + 1, rows[-1][1] or "")
        logs.append(
            {
                "engine": log.engine,
                "topic": log.topic,
                "start": first,
                "end": last + 1,
                "head": rows[-1][1],
                "rows": len(rows),
                "rejected": sum(row[3] == "failed" for row in rows),
                "root": content_root([row[2] for row in rows]),
            }
        )
    return logs, Offset(points)


def recorded_end(at: Offset) -> str:
    """Up to which position the log of a row is recorded, as an expression."""
    known = " ".join(
        f"when engine = '{log.engine}' and topic = {_quoted(log.topic)} then {point.position}"
        for log, point in at.points.items()
    )
    return f"(case {known} else 0 end)" if known else "0"


def not_recorded(at: Offset, faults: set[tuple[str, str, str]]) -> str:
    """Rows that are not recorded yet, as a condition. Re-reading a batch then changes nothing."""
    told = " or ".join(
        f"(engine = '{engine}' and topic = {_quoted(topic)} and entry_id = {_quoted(entry)})"
        for engine, topic, entry in sorted(faults)
    )
    return f"(position >= {recorded_end(at)}) or (position < 0{f' and not ({told})' if told else ''})"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def faults_in(manifests: list[Manifest]) -> set[tuple[str, str, str]]:
    """Damage that is recorded already, by log and entry."""
    return {
        (fault["engine"], fault["topic"], fault["entry_id"]) for each in manifests for fault in each.faults
    }


def new_faults(found: pa.Table) -> list[dict[str, str]]:
    """Damage in what was just written: rows that stand for no place in a log."""
    names = ("engine", "topic", "position", "entry_id")
    columns = [found.column(name).to_pylist() for name in names]
    return [
        {"engine": engine, "topic": topic, "entry_id": entry or ""}
        for engine, topic, position, entry in zip(*columns, strict=True)
        if position < 0
    ]
