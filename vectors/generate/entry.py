"""Cases for spans of a line, with the simplest id there is: SHA-256 of the parents' ids, then the body."""

from __future__ import annotations

import hashlib
from typing import Any

Entry = dict[str, Any]


def _entry(body: bytes, *parents: str) -> Entry:
    raw = b"".join(map(bytes.fromhex, parents)) + body
    return {"id": hashlib.sha256(raw).hexdigest(), "parents": list(parents), "body": body.hex()}


def _line(length: int) -> list[Entry]:
    entries = [_entry(b"entry 0")]
    while len(entries) < length:
        entries.append(_entry(b"entry %d" % len(entries), entries[-1]["id"]))
    return entries


def generate() -> dict[str, object]:
    line = _line(6)
    whole = {"below": [], "above": [line[-1]["id"]], "count": 6}
    changed = {**line[3], "body": b"entry X".hex()}
    moved = {**line[3], "parents": line[1]["parents"] or [line[0]["id"]]}
    merge = _entry(b"merge", line[1]["id"], line[2]["id"])

    def holds(name: str, spans: list[list[Entry]], expect: dict[str, Any] = whole) -> dict[str, Any]:
        return {"name": name, "input": {"spans": spans}, "expect": expect}

    def broken(name: str, code: str, entry: Entry, spans: list[list[Entry]], why: str) -> dict[str, Any]:
        error = {"code": code, "entry": entry["id"]}
        return {"name": name, "why": why, "input": {"spans": spans}, "error": error}

    cases = [
        holds("one_span", [line]),
        holds("every_entry_alone", [[entry] for entry in line]),
        holds("cut_in_three", [line[:1], line[1:4], line[4:]]),
        holds("empty_spans_between", [[], line[:3], [], [], line[3:], []]),
        holds("no_entries", [[], []], {"below": [], "above": [], "count": 0}),
        holds("tail_only", [line[4:]], {"below": [line[3]["id"]], "above": [line[5]["id"]], "count": 2}),
        broken(
            "changed_body",
            "DigestMismatch",
            line[3],
            [[*line[:3], changed, *line[4:]]],
            "the id covers the body",
        ),
        broken(
            "changed_parents", "DigestMismatch", line[3], [[*line[:3], moved, *line[4:]]], "and the parents"
        ),
        broken(
            "missing_entry",
            "BrokenLink",
            line[3],
            [[*line[:2], *line[3:]]],
            "names the entry that hangs loose",
        ),
        broken(
            "missing_span", "BrokenLink", line[4], [line[:2], line[4:]], "seen only when spans are joined"
        ),
        broken(
            "doubled_span", "BrokenLink", line[2], [line[:2], line[2:4], line[2:4], line[4:]], "counted once"
        ),
        broken(
            "reordered_spans", "BrokenLink", line[4], [line[:2], line[4:], line[2:4]], "order is the line"
        ),
        broken("reordered_entries", "BrokenLink", line[2], [[line[0], line[2], line[1], *line[3:]]], ""),
        broken("second_beginning", "BrokenLink", line[0], [line[:3], line], "a line begins once"),
        broken("merge_in_a_line", "BrokenLink", merge, [[*line[:3], merge]], "a line has one way down"),
    ]
    for case in cases:
        if case.get("why") == "":
            del case["why"]
    return {
        "entry/spans.json": {
            "name": "spans",
            "why": (
                "A line cut into spans, each checked alone, joined from left to right. An entry's id is SHA-256 of its "
                "parents' ids followed by its body; bodies and ids are hex."
            ),
            "cases": cases,
        }
    }
