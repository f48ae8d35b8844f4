"""DAG-CBOR of gossip messages beside `dag-cbor` from PyPI: encoding, and decoding that refuses other spellings.

The peer's decoder is strict by itself, except that it lets an integer be written as a float.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import dag_cbor

from bench.harness import Contestant, Result, compare
from ropewalk.kernel import cbor

__all__ = ["message", "run"]

TARGET = 8.0


def message(size: int, chance: random.Random) -> list[Any]:
    """A stored v0.6 message of about `size` bytes: key, signature, parents, and a payload of records."""
    payload: dict[str, Any] = {"kind": "reading", "at": chance.randrange(2**41), "note": "ж" * 8}
    made: list[Any] = [
        b"\xed\x01" + chance.randbytes(32),
        chance.randbytes(64),
        sorted(b"\x07" + chance.randbytes(19) for _ in range(2)),
        payload,
    ]
    rows: list[dict[str, Any]] = []
    payload["rows"] = rows
    while len(dag_cbor.encode(made)) < size:
        rows.append(
            {"id": chance.randbytes(4).hex(), "level": chance.random() * 10, "count": chance.randrange(500)}
        )
    return made


def each(act: Callable[[Any], object], items: list[Any], repeats: int) -> Callable[[], int]:
    """Do it to every item, often enough to be measured."""

    def all_of_them() -> int:
        for _ in range(repeats):
            for item in items:
                act(item)
        return len(items) * repeats

    return all_of_them


def run(quick: bool) -> list[Result]:
    """Messages of 300 B and 4 KB; the bytes of both codecs must be equal before anything is timed."""
    results = []
    for size in (300, 4000):
        chance = random.Random(size)
        values = [message(size, chance) for _ in range(20 if quick else 100)]
        raws = [cbor.dag_encode(value) for value in values]
        assert raws == [dag_cbor.encode(value) for value in values]
        for job, ours, peer, items in (
            (f"DAG-CBOR encode, {size} B", cbor.dag_encode, dag_cbor.encode, values),
            (f"DAG-CBOR decode and check, {size} B", cbor.dag_decode, dag_cbor.decode, raws),
        ):
            results += compare(
                job,
                Contestant("ropewalk", each(ours, items, 2 if quick else 10)),
                [Contestant("dag-cbor", each(peer, items, 1))],
                target=TARGET,
                rounds=3 if quick else 7,
            )
    return results
