"""Ordered rows in memory behave as a sorted map, also while they change under a scan."""

from __future__ import annotations

import random

import pytest

from ropewalk.kernel.prolly import memory
from ropewalk.kernel.prolly.memory import MemoryStore


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(memory, "BLOCK_ROWS_MAX", 8)
    monkeypatch.setattr(memory, "STEP_ROWS", 3)


def test_it_agrees_with_a_sorted_map():
    chance = random.Random(2)
    store = MemoryStore()
    model: dict[bytes, bytes] = {}
    for step in range(3000):
        key = chance.randbytes(chance.choice((0, 1, 1, 2)))
        if chance.random() < (0.7 if step < 2000 else 0.2):
            value = chance.randbytes(2)
            store.put(key, value)
            model[key] = value
        else:
            store.delete(key)
            model.pop(key, None)
        assert store.get(key) == model.get(key)
        if step % 20 == 0:
            low, high = sorted((chance.randbytes(1), chance.randbytes(2)))
            for start, stop in ((b"", None), (low, high), (b"", high), (low, None), (high, low), (b"", b"")):
                want = sorted(
                    item for item in model.items() if item[0] >= start and (stop is None or item[0] < stop)
                )
                assert list(store.scan(start, stop)) == want
                assert list(store.scan(start, stop, reverse=True)) == want[::-1]
    assert len(store) == len(model)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_survives_changes_ahead_of_it_and_behind_it(reverse):
    store = MemoryStore()
    for i in range(0, 200, 2):
        store.put(bytes((i,)), b"")
    seen = []
    for key, _ in store.scan(reverse=reverse):
        seen.append(key[0])
        for other in range(key[0] - 6, key[0] + 7):
            if other % 2 and 0 <= other < 200:
                store.put(bytes((other,)), b"")
        if key[0] in (50, 150):
            for gone in range(80, 120):
                store.delete(bytes((gone,)))
    assert seen == sorted(set(seen), reverse=reverse)
    assert {i for i in range(0, 200, 2) if not 80 <= i < 120} <= set(seen)
    assert not {i for i in seen if i % 2 == 0 and 80 <= i < 120}
