"""Mirrors within git: the same bytes in another log, whatever happens on the way."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.tools import needs
from tests.waiting import together

from ropewalk.bridge.event_copy import MirrorResult, copy_of
from ropewalk.bridge.mirror import (
    BATCH_EVENTS,
    MERGE_AFTER_MS,
    LogSource,
    Mirror,
    MirrorTarget,
    keep_mirroring,
    mirror,
)
from ropewalk.errors import (
    Conflict,
    ContentDiffers,
    HistoryRewritten,
    InvalidEnvelope,
    InvalidName,
    NotFound,
    OutOfOrder,
    Unavailable,
    Usage,
)
from ropewalk.gitlog.core.envelope import Draft, EncodedEnvelope, seal_foreign
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG, Layout
from ropewalk.gitlog.core.objects import GitSignature
from ropewalk.gitlog.core.planning import AppendContext, IndexedEntry, Plan, add_event
from ropewalk.gitlog.privacy.apply import policy_file
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.gitlog.store.index import GitIndex
from ropewalk.kernel.digest import content_id
from ropewalk.kernel.ulid import Ulid, parse
from ropewalk.verification import verify as verify_repository

GIT = needs("git")


def fill(log: GitRepository, topic: str, count: int, layout: Layout = SHIPLOG, **members: object) -> None:
    drafts = [Draft({"type": "t", "payload": {"n": n}, **members}) for n in range(count)]
    assert not [each for each in log.append_all(topic, drafts, layout=layout) if isinstance(each, Exception)]


def standing(log: GitRepository, topic: str, layout: Layout = SHIPLOG) -> list[tuple[str, str, str, bytes]]:
    """Everything two mirrored events share: ULID, content id, blob, bytes."""
    line = log.lines.line(layout, topic)
    blobs = [place.blob for place in line.span(0, line.count)]
    return [
        (event.ulid, event.content_id, blob, event.raw)
        for event, blob in zip(log.events(topic, layout=layout), blobs, strict=True)
    ]


def put_foreign(log: GitRepository, layout: Layout, topic: str, sealed: EncodedEnvelope) -> None:
    """Write what other software might: whatever bytes, under whatever name."""
    tip = log.lines.tip(layout, topic, log.store.head(layout.head_ref(topic)))
    made = Plan(tip, tip)
    who = GitSignature("Else", "else@example.test", 1_700_000_000)
    add_event(
        layout,
        topic,
        made,
        Draft({}),
        sealed,
        AppendContext(1_700_000_000_000, bytes(10), who, lambda *_: None),
        None,
    )
    with log.store.put(made.objects):
        log.store.move_head(layout.head_ref(topic), tip.commit, made.tip.commit or "")


@GIT
def test_a_mirror_holds_the_same_blobs_and_git_finds_nothing_wrong(log, place):
    fill(log, "prod", 5)
    assert mirror(log, ["ns:prod"], "topic:deploys/all") == MirrorResult(mirrored=5)
    assert standing(log, "deploys/all", MESSAGES) == standing(log, "prod")
    assert mirror(log, ["topic:deploys/all"], "topic:other") == MirrorResult(mirrored=5)
    fsck = subprocess.run(
        ["git", "-C", place.git_dir, "fsck", "--strict"], capture_output=True, text=True, check=False
    )
    assert (fsck.returncode, fsck.stdout) == (0, "")
    assert verify_repository(place.git_dir, deep=True).ok


def test_a_topic_is_mirrored_into_the_namespace_its_envelopes_name(log, place):
    fill(log, "bus/governance", 4, MESSAGES, ns="governance")
    assert mirror(log, "topic:bus/governance", "ns:governance").mirrored == 4
    assert standing(log, "governance") == standing(log, "bus/governance", MESSAGES)
    assert verify_repository(place.git_dir).ok


def test_a_second_run_does_nothing_and_a_third_brings_what_is_new(log):
    fill(log, "prod", 3)
    mirror(log, ["ns:prod"], "topic:t")
    head = log.store.head(MESSAGES.head_ref("t"))
    assert mirror(log, ["ns:prod"], "topic:t") == MirrorResult(skipped=3)
    assert log.store.head(MESSAGES.head_ref("t")) == head
    fill(log, "prod", 2)
    assert mirror(log, ["ns:prod"], "topic:t") == MirrorResult(mirrored=2, skipped=3)
    assert standing(log, "t", MESSAGES) == standing(log, "prod")


def test_two_clones_that_mirror_alike_get_the_same_commits(log, place, tmp_path):
    fill(log, "prod", 3)
    fill(log, "bus", 3, MESSAGES, ns="back")
    log.close()
    shutil.copytree(place.git_dir, tmp_path / "clone.git")
    heads = []
    for at, when in ((place.git_dir, 1_800_000_000_000), (tmp_path / "clone.git", 1_900_000_000_000)):
        with open_repository(at, now_ms=itertools.repeat(when).__next__) as clone:
            mirror(clone, ["ns:prod"], "topic:t")
            mirror(clone, ["topic:bus"], "ns:back")
            heads.append(
                (clone.store.head(MESSAGES.head_ref("t")), clone.store.head(SHIPLOG.head_ref("back")))
            )
    assert heads[0] == heads[1]


def test_an_event_goes_round_and_comes_back_as_itself(log):
    fill(log, "prod", 3)
    mirror(log, ["ns:prod"], "topic:t")
    assert mirror(log, ["topic:t"], "ns:prod") == MirrorResult(skipped=3)


def test_several_sources_are_merged_by_their_ulids(log, clock):
    for _ in range(3):
        for ns in ("web", "billing"):
            fill(log, ns, 2)
            clock.ms += 1
    clock.ms += MERGE_AFTER_MS
    assert mirror(log, ["ns:web", "ns:billing"], "topic:all").mirrored == 12
    ulids = [event.ulid for event in log.events("all", layout=MESSAGES)]
    assert ulids == sorted(ulids)
    assert mirror(log, ["ns:billing", "ns:web"], "topic:all") == MirrorResult(skipped=12)
    assert mirror(log, ["ns:billing"], "topic:all") == MirrorResult(skipped=6)


def test_mirror_several_sources_waits_for_order(log, clock):
    fill(log, "web", 1)
    clock.ms += MERGE_AFTER_MS
    fill(log, "web", 1)
    copying = Mirror(log, ["ns:web", "ns:billing"], "topic:all")
    clock.ms -= 1
    fill(log, "billing", 1)  # made before the last of web, and written after it
    clock.ms += 1
    assert copying.catch_up() == MirrorResult(mirrored=1, waiting=2)
    clock.ms += MERGE_AFTER_MS
    assert copying.catch_up() == MirrorResult(mirrored=2)
    assert [event.envelope["ns"] for event in log.events("all", layout=MESSAGES)] == ["web", "billing", "web"]


def test_mirror_refuses_late_source_by_name(log, clock):
    fill(log, "old", 2)
    clock.ms += 1
    fill(log, "new", 2)
    mirror(log, ["ns:new"], "topic:all")
    before = standing(log, "all", MESSAGES)
    first = next(log.events("old")).ulid
    with pytest.raises(OutOfOrder, match=rf"event {first} of ns:old: .*not above the head of all") as refused:
        mirror(log, ["ns:old"], "topic:all")
    assert "together" in refused.value.advice_now
    assert standing(log, "all", MESSAGES) == before
    assert len(standing(log, "old")) == 2


def test_an_event_the_target_lacks_is_never_passed_over(log):
    fill(log, "prod", 3)
    last = [*log.events("prod")][-1]
    log.append("t", json.loads(last.raw), layout=MESSAGES)
    with pytest.raises(OutOfOrder, match="of ns:prod"):
        mirror(log, ["ns:prod"], "topic:t")


def test_another_event_under_the_same_ulid_is_refused(log):
    fill(log, "prod", 1)
    (event,) = log.events("prod")
    log.append("t", {"ulid": event.ulid, "ns": "prod", "type": "other", "payload": {}}, layout=MESSAGES)
    with pytest.raises(ContentDiffers, match=f"event {event.ulid} of ns:prod"):
        mirror(log, ["ns:prod"], "topic:t")


def test_namespace_refuses_envelopes_of_others(log):
    fill(log, "bus", 2, MESSAGES, ns="prod")
    fill(log, "bus", 1, MESSAGES, ns="else")
    fill(log, "bus", 1, MESSAGES, ns="prod")
    for _ in range(2):
        with pytest.raises(
            InvalidEnvelope, match="of topic:bus: the envelope's ns must be 'prod', got 'else'"
        ):
            mirror(log, ["topic:bus"], "ns:prod")
        assert len(standing(log, "prod")) == 2


def test_what_the_stricter_layout_does_not_allow_is_refused_by_name(log):
    log.append("bus", {"ns": "prod", "type": "", "payload": {}}, layout=MESSAGES)
    with pytest.raises(InvalidEnvelope, match="of topic:bus"):
        mirror(log, ["topic:bus"], "ns:prod")


def test_attachments_go_from_topic_to_topic_and_stay_behind_a_namespace(log, place):
    refs = {"log": content_id(b"output")}
    log.append(
        "bus",
        {"ns": "prod", "type": "t", "payload": {}, "refs": refs},
        attachments={"log": b"output"},
        layout=MESSAGES,
    )
    assert mirror(log, ["topic:bus"], "topic:copy") == MirrorResult(mirrored=1)
    trees = []
    for topic in ("bus", "copy"):
        raw = log.store.get(str(log.store.head(MESSAGES.head_ref(topic))))[1]
        trees.append(raw.split(b"\n")[0])
    assert trees[0] == trees[1]
    assert mirror(log, ["topic:bus"], "ns:prod") == MirrorResult(mirrored=1, attachments_left=1)
    assert standing(log, "prod") == standing(log, "bus", MESSAGES)
    assert verify_repository(place.git_dir).ok


def test_what_was_allowed_to_look_like_a_secret_is_mirrored_as_it_is(log):
    log.allow_secrets = True
    log.append("prod", {"type": "t", "payload": {"key": "AKIA" + "QRSTUVWX23456Z7A"}})
    log.allow_secrets = False
    mirror(log, ["ns:prod"], "topic:t")
    assert standing(log, "t", MESSAGES) == standing(log, "prod")


def test_privacy_rules_made_later_do_not_change_what_was_recorded(log, place):
    log.append("prod", {"type": "t", "payload": {"email": "a@example.test"}})
    policy_file(place).write_text('{"privacy":{"rules":[{"select":"email","action":"redact"}]}}')
    log.append("later", {"type": "t", "payload": {"email": "a@example.test"}})
    assert next(log.events("later")).payload == {}
    mirror(log, ["ns:prod"], "topic:t")
    assert standing(log, "t", MESSAGES) == standing(log, "prod")


def test_foreign_numbers_are_mirrored_byte_for_byte(log):
    ulid = parse("01HF4Y9Q1SM8Q7K9DK2R4V5CXD")
    put_foreign(
        log, SHIPLOG, "prod", seal_foreign(SHIPLOG, "prod", {"type": "t", "payload": {"n": 2.0**60}}, ulid)
    )
    mirror(log, ["ns:prod"], "topic:t")
    assert standing(log, "t", MESSAGES) == standing(log, "prod")
    assert b"1152921504606847000" in standing(log, "t", MESSAGES)[0][3]


def test_mirror_refuses_noncanonical_bytes(log):
    fill(log, "prod", 1)
    ulid = Ulid("7" + str(next(log.events("prod")).ulid)[1:])
    raw = b'{"ns": "prod", "type": "t", "payload": {}, "ulid": "%s"}' % ulid.encode()
    put_foreign(log, SHIPLOG, "prod", EncodedEnvelope(ulid, raw, content_id(raw)))
    with pytest.raises(InvalidEnvelope, match=rf"event {ulid} of ns:prod: its bytes are not canonical"):
        mirror(log, ["ns:prod"], "topic:t")
    assert standing(log, "t", MESSAGES) == standing(log, "prod")[:1]


def test_a_ulid_from_the_far_future_gets_a_trailer_all_the_same(log, place):
    log.store.clock_skew_ms = 1 << 48  # as git's setting ropewalk.maxClockSkew allows
    log.append(
        "bus",
        {"ulid": "7ZZZZZZZZZ0000000000000000", "ns": "prod", "type": "t", "payload": {}},
        layout=MESSAGES,
    )
    assert mirror(log, ["topic:bus"], "ns:prod").mirrored == 1
    assert verify_repository(place.git_dir).ok


def test_a_source_that_was_rewritten_is_not_followed(log):
    fill(log, "prod", 3)
    mirror(log, ["ns:prod"], "topic:t")
    ref = SHIPLOG.head_ref("prod")
    parent = log.lines.line(SHIPLOG, "prod").span(1, 2)[0].commit
    log.store.move_head(ref, log.store.head(ref), parent)
    with pytest.raises(HistoryRewritten):
        mirror(log, ["ns:prod"], "topic:t")


@pytest.mark.parametrize(
    ("sources", "to", "error"),
    [
        (["ns:prod"], "ns:prod", Conflict),
        (["ns:prod", "ns:prod"], "topic:t", Conflict),
        (["prod"], "topic:t", Usage),
        (["shiplog:prod"], "topic:t", Usage),
        (["ns:prod"], "channel:audit", Usage),
        ([], "topic:t", Usage),
        (["ns:prod"], "topic:a..b", InvalidName),
        (["ns:Prod"], "topic:t", InvalidName),
        (["ns:nowhere"], "topic:t", NotFound),
    ],
)
def test_what_names_no_log_is_refused_and_makes_none(log, sources, to, error):
    fill(log, "prod", 1)
    with pytest.raises(error):
        mirror(log, sources, to)
    assert log.topics(MESSAGES) == []


def test_two_mirrors_at_once_bring_every_event_once(log, place):
    fill(log, "prod", 300)

    def run() -> None:
        with open_repository(place.git_dir) as mine:
            mirror(mine, ["ns:prod"], "topic:t")

    together(run, run, run)
    assert standing(log, "t", MESSAGES) == standing(log, "prod")


def test_a_mirror_that_is_kept_up_brings_what_comes(log):
    fill(log, "prod", 2)
    stop = threading.Event()
    rounds = keep_mirroring(Mirror(log, ["ns:prod"], "topic:t"), stop)
    assert next(rounds) == MirrorResult(mirrored=2)
    fill(log, "prod", 1)
    assert next(rounds) == MirrorResult(mirrored=1)
    stop.set()
    assert list(rounds) == []
    assert standing(log, "t", MESSAGES) == standing(log, "prod")


# Mirrors, and is killed: after its first batch is on disk, or with a batch on disk and the head not moved.
KILLED = """
import os, signal, sys
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.bridge.mirror import mirror

die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
with open_repository(sys.argv[1]) as log:
    if sys.argv[2] == "before the head moves":
        log.store.move_head = die
    mirror(log, ["ns:prod"], "topic:t", progress=die)
"""


@GIT
@pytest.mark.parametrize("moment", ["before the head moves", "between batches"])
def test_a_mirror_that_is_killed_goes_on_where_it_stopped(log, place, moment):
    fill(log, "prod", BATCH_EVENTS + 10)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(place.git_dir), moment], env=os.environ.copy(), check=False
    )
    assert killed.returncode == -signal.SIGKILL
    there = BATCH_EVENTS if moment == "between batches" else 0
    assert mirror(log, ["ns:prod"], "topic:t") == MirrorResult(BATCH_EVENTS + 10 - there, there)
    assert standing(log, "t", MESSAGES) == standing(log, "prod")
    fsck = subprocess.run(["git", "-C", place.git_dir, "fsck"], capture_output=True, check=False)
    assert fsck.returncode == 0
    assert verify_repository(Path(place.git_dir)).ok


def test_what_was_taken_and_did_not_arrive_is_taken_again(log, monkeypatch):
    fill(log, "prod", 3)
    copying = Mirror(log, "ns:prod", "topic:t")
    with monkeypatch.context() as broken:
        broken.setattr(log.store, "move_head", _disk_full)
        with pytest.raises(Unavailable):
            copying.catch_up()
    assert copying.catch_up() == MirrorResult(mirrored=3)
    assert copying.catch_up() == MirrorResult()


def test_changed_source_is_compared_again(log, clock):
    fill(log, "prod", 2)
    kept = log.store.head(SHIPLOG.head_ref("prod"))
    fill(log, "prod", 3)
    copying = Mirror(log, "ns:prod", "topic:t")
    assert copying.catch_up() == MirrorResult(mirrored=5)
    log.store.move_head(SHIPLOG.head_ref("prod"), log.store.head(SHIPLOG.head_ref("prod")), kept)
    log.lines.accept(SHIPLOG, "prod", "Ada")
    clock.ms += 1  # in the same millisecond, the same events would be made again
    fill(log, "prod", 4)
    assert copying.catch_up() == MirrorResult(mirrored=4, skipped=2)
    assert standing(log, "t", MESSAGES)[5:] == standing(log, "prod")[2:]


def test_what_the_target_lost_since_is_brought_again(log):
    fill(log, "prod", 2)
    copying, ref = Mirror(log, "ns:prod", "topic:t"), MESSAGES.head_ref("t")
    copying.catch_up()
    early = log.store.head(ref)
    fill(log, "prod", 3)
    copying.catch_up()
    log.store.move_head(ref, log.store.head(ref), early)
    with pytest.raises(HistoryRewritten):
        copying.catch_up()
    log.lines.accept(MESSAGES, "t", "Ada")
    assert copying.catch_up() == MirrorResult(mirrored=3, skipped=2)
    assert standing(log, "t", MESSAGES) == standing(log, "prod")


def looked_at(monkeypatch) -> list[int]:
    """The heights that anybody looks at in an index, from now on."""
    heights: list[int] = []
    span = GitIndex.span

    def noted(index: GitIndex, ref: str, start: int, stop: int) -> Sequence[IndexedEntry]:
        heights.extend(range(start, stop))
        return span(index, ref, start, stop)

    monkeypatch.setattr(GitIndex, "span", noted)
    return heights


def test_a_run_with_nothing_new_does_not_look_through_the_logs(log, clock, monkeypatch):
    fill(log, "prod", 50)
    clock.ms += 1
    fill(log, "other", 50)
    clock.ms += MERGE_AFTER_MS
    sources = ["ns:prod", "ns:other"]
    assert mirror(log, sources, "topic:t").mirrored == 100
    heights = looked_at(monkeypatch)
    assert mirror(log, sources, "topic:t") == MirrorResult(skipped=100)
    clock.ms += 1
    fill(log, "other", 2)
    clock.ms += MERGE_AFTER_MS
    assert mirror(log, sources, "topic:t") == MirrorResult(mirrored=2, skipped=100)
    assert heights and min(heights) >= 49
    assert standing(log, "t", MESSAGES) == standing(log, "prod") + standing(log, "other")


@pytest.mark.parametrize("said", ["", "{", "[]", '{"height": true}', '{"height": 9, "commit": "x"}'])
def test_a_mark_that_cannot_be_read_costs_a_look_through_the_logs(log, place, monkeypatch, said):
    fill(log, "prod", 5)
    mirror(log, "ns:prod", "topic:t")
    (mark,) = (place.home / "bridges").glob("*/progress.json")
    mark.write_text(said)
    heights = looked_at(monkeypatch)
    assert mirror(log, "ns:prod", "topic:t") == MirrorResult(skipped=5)
    assert min(heights) == 0
    heights.clear()
    assert mirror(log, "ns:prod", "topic:t") == MirrorResult(skipped=5)  # and it is written anew
    assert min(heights) == 4


@pytest.mark.parametrize("member", ["commit", "ulid", "copy", "height"])
def test_a_mark_that_names_what_is_not_there_is_not_believed(log, place, member):
    fill(log, "prod", 5)
    mirror(log, "ns:prod", "topic:t")
    (mark,) = (place.home / "bridges").glob("*/progress.json")
    fill(log, "prod", 3)
    false = {"commit": "0" * 40, "ulid": "0" * 26, "copy": "0" * 40, "height": 8}
    mark.write_text(json.dumps({**json.loads(mark.read_text()), member: false[member]}))
    assert mirror(log, "ns:prod", "topic:t") == MirrorResult(mirrored=3, skipped=5)
    assert standing(log, "t", MESSAGES) == standing(log, "prod")


def test_a_mark_of_a_target_that_lost_events_is_not_believed(log):
    ref = MESSAGES.head_ref("t")
    fill(log, "prod", 2)
    mirror(log, "ns:prod", "topic:t")
    early = log.store.head(ref)
    fill(log, "prod", 3)
    mirror(log, "ns:prod", "topic:t")
    log.store.move_head(ref, log.store.head(ref), early)
    log.lines.accept(MESSAGES, "t", "Ada")
    assert mirror(log, "ns:prod", "topic:t") == MirrorResult(mirrored=3, skipped=2)
    assert standing(log, "t", MESSAGES) == standing(log, "prod")


def rewound(log: GitRepository, layout: Layout, topic: str, count: int) -> None:
    """A log taken back to its first events, and accepted so."""
    ref = layout.head_ref(topic)
    line = log.lines.line(layout, topic)
    (last,) = line.span(count - 1, count)
    log.store.move_head(ref, log.store.head(ref), last.commit)
    log.lines.accept(layout, topic, "Ada")


def test_exchanged_source_is_compared_again(log, clock, monkeypatch):
    fill(log, "prod", 3)
    mirror(log, "ns:prod", "topic:t")
    skip = LogSource.skip

    def exchanged(source: LogSource) -> int:
        found = skip(source)
        monkeypatch.setattr(LogSource, "skip", skip)
        rewound(log, SHIPLOG, "prod", 1)
        clock.ms += 1
        fill(log, "prod", 3)
        return found

    monkeypatch.setattr(LogSource, "skip", exchanged)
    mirror(log, "ns:prod", "topic:t")
    assert standing(log, "t", MESSAGES)[3:] == standing(log, "prod")[1:]


def test_exchanged_target_is_not_trusted_as_full(log, monkeypatch):
    fill(log, "prod", 5)
    remember = LogSource.remember

    def exchanged(source: LogSource, stands: Callable[[], bool]) -> None:
        monkeypatch.setattr(LogSource, "remember", remember)
        rewound(log, MESSAGES, "t", 1)
        *_, last = log.events("prod")
        MirrorTarget(log, MESSAGES, "t").append([copy_of(log.store, last, "ns:prod", SHIPLOG, MESSAGES, "t")])
        remember(source, stands)

    monkeypatch.setattr(LogSource, "remember", exchanged)
    mirror(log, "ns:prod", "topic:t")
    with pytest.raises(OutOfOrder):  # three are missing below the last, and that is said
        mirror(log, "ns:prod", "topic:t")


class Killed(BaseException):
    """As if the process had ended here."""


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_no_event_is_passed_over_or_copied_twice(log, place, clock, monkeypatch, seed):
    """Appends, logs taken back and accepted, kills and lost marks, before, between and within rounds of two mirrors."""
    monkeypatch.setattr("ropewalk.bridge.mirror.BATCH_EVENTS", 3)
    chance = random.Random(seed)
    sources, places = ["ns:a", "topic:b"], [(SHIPLOG, "a"), (MESSAGES, "b")]
    fill(log, "a", 2)
    fill(log, "b", 2, MESSAGES, ns="b")
    mirrors = [Mirror(log, sources, "topic:t") for _ in range(2)]
    disturbed = False

    def append() -> None:
        layout, topic = chance.choice(places)
        clock.ms += 1
        fill(log, topic, chance.randint(1, 5), layout, ns=topic)

    def take_back() -> None:
        layout, topic = chance.choice([*places, (MESSAGES, "t")])
        if (known := log.lines.line(layout, topic, must_exist=False).count) > 1:
            rewound(log, layout, topic, chance.randint(1, known - 1))

    def lose_marks() -> None:
        shutil.rmtree(place.home / "bridges", ignore_errors=True)

    def kill(*_: object) -> None:
        raise Killed

    def disturb(_count: int) -> None:
        nonlocal disturbed
        if chance.random() < 0.3:
            disturbed = True
            chance.choice([append, take_back, kill])()

    def ulids(layout: Layout, topic: str) -> list[Ulid]:
        line = log.lines.line(layout, topic, must_exist=False)
        return [each.ulid for each in line.span(0, line.count)]

    for _ in range(25):
        chance.choice([append, append, take_back, lose_marks])()
        clock.ms += MERGE_AFTER_MS + 1
        which, disturbed = chance.randrange(2), False
        if chance.random() < 0.3:
            mirrors[which] = Mirror(log, sources, "topic:t")
        try:
            mirrors[which].catch_up(disturb)
        except Killed:
            mirrors[which] = Mirror(log, sources, "topic:t")
            continue
        except OutOfOrder:  # what was exchanged within a round may no longer fit; then it is said, for good
            for copying in (*mirrors, Mirror(log, sources, "topic:t")):
                with pytest.raises(OutOfOrder):
                    copying.catch_up()
            return
        if not disturbed:
            held = ulids(MESSAGES, "t")
            assert len(held) == len(set(held))
            assert {ulid for layout, topic in places for ulid in ulids(layout, topic)} <= set(held)


def test_a_mirror_that_cannot_be_remembered_is_made_all_the_same(log, place):
    (place.home / "bridges").write_text("in the way")
    fill(log, "prod", 3)
    assert mirror(log, "ns:prod", "topic:t") == MirrorResult(mirrored=3)
    assert mirror(log, "ns:prod", "topic:t") == MirrorResult(skipped=3)


def test_a_refusal_of_one_source_waits_for_what_is_older_in_another(log, clock):
    fill(log, "a", 2, MESSAGES, ns="a")
    clock.ms += 1
    fill(log, "b", 1)
    clock.ms += MERGE_AFTER_MS
    with pytest.raises(InvalidEnvelope, match="of ns:b") as refused:
        mirror(log, ["ns:b", "topic:a"], "ns:a")
    assert "into a topic" in refused.value.advice_now
    assert len(standing(log, "a")) == 2


def _disk_full(*_: object) -> None:
    raise Unavailable("no space left on device")
