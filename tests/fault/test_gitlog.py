"""A small share of `make torture`: kills, crowds, failing calls, wild clocks, flipped bytes."""

from __future__ import annotations

from tests.tools import needs
from tests.torture.gitlog import crowd, failing_calls, flips, kills, wild_clock

GIT = needs("git")


@GIT
def test_no_acknowledged_event_is_lost_to_kill_9(tmp_path):
    report = kills(tmp_path, 6)
    assert report["ok"], report


@GIT
def test_append_during_git_gc_fetch_and_push(tmp_path):
    report = crowd(tmp_path, 4, 4, 5)
    assert report["ok"], report


def test_every_write_call_may_fail_once(tmp_path):
    report = failing_calls(tmp_path)
    assert report["ok"], report


def test_ulids_rise_under_a_wild_clock():
    assert wild_clock(20_000)["ok"]


def test_every_flipped_byte_is_noticed(tmp_path):
    report = flips(tmp_path, 1, 5)
    assert report["ok"], report
