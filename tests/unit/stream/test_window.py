"""The window: numbers without gaps, three bounds, and no frame dropped behind a reader's back."""

from __future__ import annotations

import pytest

from ropewalk.stream.core.frames import BusEvent, RefUpdate
from ropewalk.stream.core.window import PROXY_BOUNDS, Window, WindowBounds


def filled(count: int, **bounds: int) -> Window:
    window = Window("01HF", 0, WindowBounds(**bounds))
    for at in range(count):
        window.publish(RefUpdate("refs/gatos/x", None, "8b1c"), at)
    return window


def test_the_default_is_a_thousand_frames_and_ten_minutes():
    assert (WindowBounds().frames_max, WindowBounds().age_ms_max) == (1_000, 600_000)
    assert (PROXY_BOUNDS.frames_max, PROXY_BOUNDS.age_ms_max) == (10_000, 900_000)


def test_numbers_follow_one_another_and_the_oldest_go():
    window = filled(1_500)
    assert (window.seq, window.oldest, len(window)) == (1_500, 501, 1_000)
    assert [window[seq].seq for seq in (501, 777, 1_500)] == [501, 777, 1_500]
    for seq in (500, 1_501, -1):
        with pytest.raises(IndexError):
            window[seq]


def test_age_counts_where_it_is_less():
    window = filled(100, age_ms_max=30)
    assert len(window) == 30
    window.prune(10_000)
    assert (len(window), window.oldest, window.seq) == (0, 101, 100)


def test_bytes_count_where_they_are_less():
    window = Window("01HF", 0, WindowBounds(bytes_max=10_000))
    for _ in range(50):
        window.publish(BusEvent("t", {"text": "x" * 900}), 0)
    assert 8 <= len(window) <= 10
    window.publish(BusEvent("t", {"text": "x" * 50_000}), 0)
    assert len(window) == 1  # one is kept, however large: somebody is about to take it


def test_bytes_are_those_in_memory_whatever_the_script():
    window = Window("01HF", 0, WindowBounds(bytes_max=100_000))
    for _ in range(50):
        window.publish(BusEvent("t", {"text": "𒀀" * 900}), 0)
    held = sum(window[seq].text.__sizeof__() for seq in range(window.oldest, window.seq + 1))
    assert 90_000 < held <= 100_000


def test_a_relayed_frame_carries_both_numbers():
    window = Window("proxy", 70)
    kept = window.relay(RefUpdate("refs/gatos/x", None, "8b1c", 9, "2026-01-02T03:04:05.678Z"), 0)
    assert kept.seq == 71
    assert '"seq":71,"seq_origin":9,"seq_proxy":71' in kept.text
    assert "2026-01-02" in kept.text
