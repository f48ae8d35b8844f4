"""Several hands give what one would: all of it, in order, or the error."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from ropewalk.ledger.ingest.thread_pool import ThreadPool


def doubled(items: Sequence[int]) -> list[int]:
    return [item * 2 for item in items]


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 64, 257])
def test_everything_comes_back_in_order(count, size):
    with ThreadPool(count) as pool:
        assert pool(doubled, range(size)) == doubled(range(size))


def test_a_hand_that_is_held_up_is_not_waited_for():
    held = threading.Event()
    with ThreadPool(2) as pool:
        assert pool._others is not None
        pool._others.submit(held.wait)
        try:
            assert pool(doubled, range(100)) == doubled(range(100))
        finally:
            held.set()


def test_what_goes_wrong_in_any_hand_reaches_who_asked():
    def wrong(items: Sequence[int]) -> list[int]:
        if 50 in items:
            raise ArithmeticError("fifty")
        return list(items)

    with ThreadPool(4) as pool:
        for _ in range(20):
            with pytest.raises(ArithmeticError, match="fifty"):
                pool(wrong, range(100))
        assert pool(wrong, range(50)) == list(range(50))
