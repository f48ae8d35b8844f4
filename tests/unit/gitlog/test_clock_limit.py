"""Events dated ahead of the clock: refused when they are new, named where they are recorded."""

from __future__ import annotations

import subprocess

import pytest
from tests.unit.gitlog.journals import Journal

from ropewalk.bridge.mirror import mirror
from ropewalk.errors import Invalid, OutOfOrder, RopewalkError
from ropewalk.gitlog.compat.transfer import import_from_compat
from ropewalk.gitlog.core.clock_limit import SKEW_MS_DEFAULT
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG
from ropewalk.gitlog.repository.clock import heads_ahead
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.repository.rescue import rescue
from ropewalk.kernel import ulid
from ropewalk.repository_check import verify_gitlogs

EVENT = {"type": "t", "payload": {}}
LAYOUTS = pytest.mark.parametrize("layout", [SHIPLOG, MESSAGES], ids=lambda layout: layout.name)
YEARS_10_MS = 3650 * 86_400_000
HIGHEST = "7" + "Z" * 25


def set_skew(log, text):
    config = log.store.place.git_dir / "config"
    subprocess.run(["git", "config", "--file", config, "ropewalk.maxClockSkew", text], check=True)
    return open_repository(log.store.place.git_dir, now_ms=log.now_ms)


def recorded_ahead(log, clock, layout=SHIPLOG):
    """A log whose second event was written by a clock ten years ahead."""
    first = log.append("demo", EVENT, layout=layout)
    clock.ms += YEARS_10_MS
    second = log.append("demo", EVENT, layout=layout)
    clock.ms -= YEARS_10_MS - 1_000
    return first, second


@LAYOUTS
def test_a_given_ulid_far_ahead_is_refused(log, clock, layout):
    for given in (HIGHEST, ulid.make(clock.ms + SKEW_MS_DEFAULT + 1, 0)):
        with pytest.raises(OutOfOrder, match="ahead of this clock") as refused:
            log.append("demo", {**EVENT, "ulid": given}, layout=layout)
        assert "maxClockSkew" in refused.value.advice_now
    near = ulid.make(clock.ms + SKEW_MS_DEFAULT, 0)
    assert log.append("demo", {**EVENT, "ulid": near}, layout=layout).ulid == near
    assert ulid.time_ms(log.append("demo", EVENT, layout=layout).ulid) == ulid.time_ms(near)


def test_a_refused_ulid_harms_no_other(log):
    outcomes = log.append_all("demo", [Draft(EVENT), Draft({**EVENT, "ulid": HIGHEST}), Draft(EVENT)])
    assert [isinstance(each, RopewalkError) for each in outcomes] == [False, True, False]


@LAYOUTS
def test_a_head_far_ahead_says_what_to_do(log, clock, layout):
    _, second = recorded_ahead(log, clock, layout)
    with pytest.raises(OutOfOrder) as refused:
        log.append("demo", EVENT, layout=layout)
    assert "3649 days ahead of this clock" in refused.value.detail
    for said in ("heads accept", "heads rescue", "maxClockSkew 3650d"):
        assert said in refused.value.advice_now
    again = log.append("demo", {**EVENT, "ulid": second.ulid}, layout=layout)
    assert again.replayed  # its receipt is still to be had
    (named,) = heads_ahead(log.store, clock.ms)
    assert second.ulid in named and layout.option("demo") in named


def test_the_advice_for_a_head_ahead_works(log, clock):
    first, second = recorded_ahead(log, clock)
    log.store.move_head(SHIPLOG.head_ref("demo"), second.commit, first.commit)  # git update-ref
    log.lines.accept(SHIPLOG, "demo", "ada")
    (rescued,) = rescue(log, "demo")
    assert not isinstance(rescued.outcome, RopewalkError)
    assert ulid.time_ms(rescued.outcome.ulid) == clock.ms
    assert list(heads_ahead(log.store, clock.ms)) == []


def test_the_limit_can_be_set(log, clock):
    recorded_ahead(log, clock)
    with set_skew(log, "3650d") as open_:
        assert not open_.append("demo", EVENT).replayed
        assert list(heads_ahead(open_.store, clock.ms)) == []
    with set_skew(log, "5s") as open_, pytest.raises(OutOfOrder, match="at most 5 seconds"):
        open_.append("other", {**EVENT, "ulid": ulid.make(clock.ms + 6_000, 0)})
    with set_skew(log, "soon") as open_, pytest.raises(Invalid, match="10m"):
        open_.append("demo", EVENT)


def test_verify_names_the_first_entry_ahead(log, clock):
    log.append("other", EVENT)
    _, second = recorded_ahead(log, clock)
    with set_skew(log, "3650d") as open_:
        open_.append("demo", EVENT)
    with set_skew(log, "10m") as open_:
        report = verify_gitlogs(open_.store, "demo", now_ms=clock.ms)
    (step,) = [step for step in report.steps if step.name == "time"]
    assert step.status == "not_checked"
    assert second.commit in step.detail and "2 entries" in step.detail
    assert report.ok  # the bytes hold; whether their dates do, no log can show
    assert not [s for s in verify_gitlogs(log.store, "other", now_ms=clock.ms).steps if s.name == "time"]


def test_an_import_dated_ahead_is_refused(log, clock):
    journal = Journal(log.store, "prod")
    journal.add()
    journal.add(seconds=86_400)
    report = import_from_compat(log)
    assert isinstance(report.refused, OutOfOrder) and report.imported == 0
    assert any("ahead of this clock" in problem.reason for problem in report.problems)


def test_a_mirror_copies_nothing_dated_ahead(log, clock):
    first, second = recorded_ahead(log, clock)
    with pytest.raises(OutOfOrder, match=second.ulid):
        mirror(log, "ns:demo", "topic:copies")
    assert [event.ulid for event in log.events("copies", layout=MESSAGES)] == [first.ulid]
