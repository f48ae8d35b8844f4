"""What is held in memory of a channel says the same as the tables, or sends to them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from ropewalk.kernel.digest import blake3
from ropewalk.pipeline.source.notes import ANSWERS, CLAIM, FOLLOWS, INTENT, KEY, PROVES, ROOT, ROW_NOTE
from ropewalk.pipeline.tables.channel_state import KnownMarks

Note = tuple[bytes, bytes, int]


def key(text: str) -> bytes:
    return blake3(text.encode())[:KEY]


def command(name: str) -> list[Note]:
    return [(INTENT, key(f"command {name}"), 0), (CLAIM, key(name), 0)]


def result(name: str, *ancestors: str) -> list[Note]:
    follows = [(FOLLOWS, key(each), number) for number, each in enumerate(ancestors)]
    claimed = [(INTENT, key(f"result {name}"), 0), (CLAIM, key(f"result of {name}"), 0)]
    return [*claimed, (ANSWERS, key(name), 0), *follows]


def batch(start: int, *rows: list[Note], topic: str = "audit") -> pa.Table:
    """Rows from a height on, a block each, in the order files may have: the last first."""
    table: list[dict[str, Any]] = [
        {
            "topic": topic,
            "notes": b"".join(ROW_NOTE.pack(*note) for note in notes),
            "position": start + number,
            "leaf_index": 0,
        }
        for number, notes in enumerate(rows)
    ]
    kinds = {"topic": pa.string(), "notes": pa.binary(), "position": pa.int64(), "leaf_index": pa.int32()}
    return pa.Table.from_pylist(table[::-1], schema=pa.schema(list(kinds.items())))


def test_results_behind_their_commands_do_not_ask_the_tables():
    standing = KnownMarks()
    assert standing.add(batch(0, command("a"), command("b"), result("a", "a"))) == set()
    assert standing.add(batch(3, command("c"), result("b"), result("c"))) == set()
    again = KnownMarks()
    again.learn(batch(0, command("a"), command("b")))
    assert again.add(batch(2, result("b"), result("a"))) == set()


@pytest.mark.parametrize(
    "rows",
    [
        [result("nobody")],
        [result("late"), command("late")],
        [command("a")],
        [result("known", "one", "two")],
        [[(INTENT, key("proof"), 0), (PROVES, key("root"), 4)]],
    ],
    ids=["no command", "before its command", "repeated", "two ancestors", "a proof"],
)
def test_what_memory_cannot_settle_is_for_the_tables(rows: list[list[Note]]):
    standing = KnownMarks()
    assert standing.add(batch(0, [(ROOT, key("root"), 4), *command("a")], command("known"))) == set()
    assert standing.add(batch(2, *rows)) == {"audit"}


def test_a_command_of_another_channel_answers_nothing():
    standing = KnownMarks()
    assert standing.add(batch(0, command("a"), topic="other")) == set()
    assert standing.add(batch(0, result("a"))) == {"audit"}


def test_claim_sharing_half_a_command_is_distinct():
    real = key("a")
    forged = real[:8] + key("b")[8:]
    standing = KnownMarks()
    assert standing.add(batch(0, [(INTENT, key("i"), 0), (CLAIM, real, 0)])) == set()
    assert standing.add(batch(1, [(INTENT, key("j"), 0), (ANSWERS, forged, 0)])) == {"audit"}
