"""Read, tail, consume (S0 §6–7, S1 §4–5), and an index that never answers wrongly."""

from __future__ import annotations

import base64
import shutil
import subprocess
import threading

import pytest
from tests.waiting import LIMIT_S, Crew

from ropewalk.errors import (
    BrokenLink,
    Conflict,
    HistoryRewritten,
    InvalidUlid,
    NotFound,
    OutOfOrder,
    RangeExceeded,
)
from ropewalk.gitlog.consumers.consumers import cursor_status, cursors, reset_cursor, set_cursor
from ropewalk.gitlog.consumers.cursor import Cursor, read_cursor
from ropewalk.gitlog.core.envelope import Draft, Event
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG, consumer_ref
from ropewalk.gitlog.core.objects import object_id
from ropewalk.gitlog.core.reading import messages_answer
from ropewalk.gitlog.repository.opening import open_repository


def fill(log, count, topic="demo", layout=SHIPLOG):
    return log.append_all(
        topic, [Draft({"type": "t", "payload": {"n": n}}) for n in range(count)], layout=layout
    )


def cursor_of(log, group, topic) -> Cursor:
    found = read_cursor(log.store, group, topic)
    assert found is not None
    return found


def test_pages_follow_one_another_without_gap(log):
    fill(log, 25)
    seen, since = [], None
    while (page := log.read("demo", since, 10)).events:
        seen += [event.payload["n"] for event in page.events]
        since = page.next_since
    assert seen == list(range(25))
    assert page.next_since == since


def test_since_is_exclusive_and_an_unknown_one_means_the_next_greater(log, clock):
    receipts = fill(log, 3)
    assert [e.ulid for e in log.read("demo", receipts[0].ulid).events] == [r.ulid for r in receipts[1:]]
    assert len(log.read("demo", "00000000000000000000000000").events) == 3
    assert log.read("demo", "7ZZZZZZZZZZZZZZZZZZZZZZZZZ").events == ()


def test_messages_restart_on_unknown_ulid(log):
    fill(log, 3, "jobs", MESSAGES)
    page = log.read("jobs", "7ZZZZZZZZZZZZZZZZZZZZZZZZZ", layout=MESSAGES)
    assert page.restarted
    assert len(page.events) == 3


def test_limits_are_clamped_above_and_refused_below(log):
    fill(log, 520)
    assert len(log.read("demo", limit=100_000).events) == 512
    assert len(log.read("demo").events) == 128
    with pytest.raises(RangeExceeded):
        log.read("demo", limit=0)


def test_messages_read_answers_key_for_key(log):
    (receipt,) = fill(log, 1, "jobs", MESSAGES)
    page = log.read("jobs", layout=MESSAGES)
    answer = messages_answer(page, "jobs", "workers")
    assert answer["next_since"] == receipt.ulid
    (row,) = answer["messages"]
    assert row == {
        "ulid": receipt.ulid,
        "commit": receipt.commit,
        "content_id": receipt.content_id,
        "envelope_path": "message/envelope.json",
        "canonical_json": base64.b64encode(page.events[0].raw).decode(),
        "checkpoint_hint": {"group": "workers", "topic": "jobs"},
    }
    assert messages_answer(page, "jobs", None)["messages"][0]["checkpoint_hint"] is None


def test_missing_topic_and_malformed_since_have_their_names(log):
    with pytest.raises(NotFound):
        log.read("nope")
    fill(log, 1)
    with pytest.raises(InvalidUlid):
        log.read("demo", "L" * 26)


def test_tail_takes_turns(log):
    fill(log, 5, "a")
    fill(log, 2, "b")
    assert [(e.topic, e.payload["n"]) for e in log.tail(["a", "b"], limit_per_topic=3)] == [
        ("a", 2),
        ("b", 0),
        ("a", 3),
        ("b", 1),
        ("a", 4),
    ]


def test_follow_sees_what_another_process_appends(log, place):
    fill(log, 1)
    stop = threading.Event()
    follower = log.follow(["demo"], stop=stop)
    got = Crew(1).submit(lambda: [next(follower).height for _ in range(2)])
    with open_repository(place.git_dir) as other:
        fill(other, 2)
    assert got.result(LIMIT_S) == [1, 2]
    stop.set()


def test_follow_begins_where_the_log_stands_when_it_is_called(log):
    fill(log, 1)
    stop = threading.Event()
    follower = log.follow(["demo"], stop=stop)
    fill(log, 2)
    assert [next(follower).height, next(follower).height] == [1, 2]
    stop.set()
    assert list(follower) == []


def test_reading_through_the_index_equals_reading_the_commits(log):
    fill(log, 7)
    git = ["git", "-C", str(log.store.place.git_dir)]
    listed = subprocess.run(
        [*git, "rev-list", "--reverse", SHIPLOG.head_ref("demo")], check=True, capture_output=True, text=True
    )
    events = list(log.events("demo"))
    assert [event.commit for event in events] == listed.stdout.split()
    for event in events:
        path = f"{event.commit}:gatos/shiplog/demo/{event.ulid}.json"
        shown = subprocess.run([*git, "cat-file", "blob", path], check=True, capture_output=True)
        assert shown.stdout == event.raw


def test_a_deleted_index_costs_only_a_rebuild(log, place):
    fill(log, 20)
    first = list(log.events("demo"))
    log.close()
    shutil.rmtree(place.home / "index")
    with open_repository(place.git_dir) as again:
        assert list(again.events("demo")) == first
        assert again.append("demo", {"type": "t", "payload": {}}).ulid > first[-1].ulid
        assert len(list(again.events("demo"))) == 21


@pytest.mark.parametrize("harm", ["garbage", "truncate", "empty"])
def test_a_corrupted_index_is_rebuilt(place, clock, harm, tmp_path):
    import subprocess
    import sys

    with open_repository(place.git_dir, now_ms=clock) as log:
        fill(log, 50)
        log.read("demo")
    for data in (place.home / "index").glob("*/*"):
        raw = data.read_bytes()
        data.write_bytes(
            {"garbage": b"\x5a" * len(raw), "truncate": raw[: len(raw) // 2], "empty": b""}[harm]
        )
    code = f"import ropewalk; print(sum(1 for _ in ropewalk.open({str(place.git_dir)!r}).events('demo')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("50", "")


def test_a_damaged_record_is_noticed_and_the_index_built_again(log):
    fill(log, 5)
    log.read("demo")
    (entries,) = (log.store.place.home / "index").glob("*/*.entries")
    raw = entries.read_bytes()
    entries.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(BrokenLink, match="dropped"):
        log.lines.index.span(SHIPLOG.head_ref("demo"), 0, 5)
    assert log.lines.index.extent(SHIPLOG.head_ref("demo")).count == 0
    assert len(log.read("demo").events) == 5


def test_records_another_process_drops_are_built_again_under_a_reader(log):
    fill(log, 600)
    reader = log.events("demo")
    first = [next(reader).height for _ in range(300)]
    log.lines.index.forget(SHIPLOG.head_ref("demo"))
    assert first + [event.height for event in reader] == list(range(600))


def test_a_rewritten_ref_is_reported_until_accepted(log, place):
    receipts = fill(log, 5)
    log.read("demo")
    ref = SHIPLOG.head_ref("demo")
    log.store.move_head(ref, receipts[-1].commit, receipts[2].commit)
    for act in (lambda: log.read("demo"), lambda: fill(log, 1)):
        with pytest.raises(HistoryRewritten) as refused:
            act()
        assert refused.value.exit_code == 5
        assert refused.value.fields["expected"] == receipts[-1].commit
    with open_repository(place.git_dir) as other, pytest.raises(HistoryRewritten):
        other.append("demo", {"type": "t", "payload": {}})
    log.lines.accept(SHIPLOG, "demo", "ada")
    assert len(log.read("demo").events) == 3
    fill(log, 1)
    assert len(log.read("demo").events) == 4
    assert "ada" in (place.home / "seen" / "accepted.log").read_text()


def test_a_deleted_ref_is_reported(log):
    receipts = fill(log, 2)
    log.store.drop_head(SHIPLOG.head_ref("demo"), receipts[-1].commit)
    with pytest.raises(HistoryRewritten):
        log.read("demo")
    with pytest.raises(HistoryRewritten):
        fill(log, 1)


def test_a_fetched_extension_is_followed(log, place, clock, tmp_path):
    fill(log, 3)
    log.read("demo")
    shutil.copytree(place.git_dir, tmp_path / "copy.git")
    with open_repository(tmp_path / "copy.git", now_ms=clock) as other:
        (receipt,) = fill(other, 1)
    for path in (tmp_path / "copy.git/objects/pack").iterdir():
        if not (log.store.pack_folder / path.name).exists():
            shutil.copy(path, log.store.pack_folder)
    ref = SHIPLOG.head_ref("demo")
    log.store.move_head(ref, log.store.head(ref), receipt.commit)
    assert log.read("demo").events[-1].ulid == receipt.ulid
    fill(log, 1)
    assert log.read("demo").events[-1].height == 4


def test_a_head_that_points_nowhere_is_a_broken_link(log):
    log.store.move_head(SHIPLOG.head_ref("demo"), None, "d" * 40)
    for act in (lambda: log.read("demo"), lambda: fill(log, 1)):
        with pytest.raises(BrokenLink, match="not in the repository"):
            act()


def test_consuming_commits_only_what_was_handed_out(log):
    fill(log, 10)
    with log.consume("g", "demo", 4) as events:
        assert [e.height for e in events] == [0, 1, 2, 3]
    with log.consume("g", "demo") as events:
        assert next(events).height == 4
    with log.consume("g", "demo") as events:
        assert [e.height for e in events] == [5, 6, 7, 8, 9]
    with log.consume("g", "demo") as events:
        assert list(events) == []


def test_a_crash_in_the_block_skips_no_event(log):
    fill(log, 3)
    with pytest.raises(RuntimeError), log.consume("g", "demo") as events:
        next(events)
        raise RuntimeError
    with log.consume("g", "demo") as events:
        assert next(events).height == 0


def test_shiplog_cursors_are_commits_and_message_cursors_are_blobs(log):
    (a,) = fill(log, 1, "demo")
    (b,) = fill(log, 1, "jobs", MESSAGES)
    set_cursor(log, "g", "demo", a.commit)
    set_cursor(log, "g", "jobs", b.ulid, layout=MESSAGES)
    assert log.store.get(log.store.head(consumer_ref("g", "demo")))[0] == "commit"
    kind, raw = log.store.get(log.store.head(consumer_ref("g", "jobs")))
    assert (kind, raw.decode()) == ("blob", f'{{"commit":"{b.commit}","ulid":"{b.ulid}"}}')
    assert cursor_of(log, "g", "jobs").commit == b.commit


def test_one_kind_of_cursor_never_replaces_the_other(log):
    fill(log, 1, "demo")
    fill(log, 1, "demo", MESSAGES)
    with log.consume("g", "demo") as events:
        list(events)
    with pytest.raises(Conflict, match="holds a commit"), log.consume("g", "demo", layout=MESSAGES) as events:
        list(events)


def test_a_cursor_does_not_go_back_unless_reset(log):
    receipts = fill(log, 5)
    set_cursor(log, "g", "demo", receipts[3].ulid)
    with pytest.raises(OutOfOrder):
        set_cursor(log, "g", "demo", receipts[1].ulid)
    assert reset_cursor(log, "g", "demo", receipts[1].ulid, dry_run=True)["behind"] == 3
    assert cursor_of(log, "g", "demo").ulid == receipts[3].ulid
    reset_cursor(log, "g", "demo", receipts[1].ulid)
    assert cursor_status(log, cursor_of(log, "g", "demo"))["behind"] == 3
    reset_cursor(log, "g", "demo", "now")
    assert cursor_status(log, cursor_of(log, "g", "demo"))["behind"] == 0
    reset_cursor(log, "g", "demo", "beginning")
    assert read_cursor(log.store, "g", "demo") is None


def test_a_cursor_off_the_chain_falls_back_to_its_ulid(log):
    receipts = fill(log, 4)
    from ropewalk.gitlog.core.objects import object_id

    raw = f'{{"commit_oid":"{"e" * 40}","ulid":"{receipts[1].ulid}"}}'.encode()
    with log.store.put([(object_id("blob", raw), "blob", raw)]):
        log.store.move_head(consumer_ref("g", "demo"), None, object_id("blob", raw))
    cursor = cursor_of(log, "g", "demo")
    assert cursor_status(log, cursor)["behind"] == 2


def test_cursor_names_that_cannot_be_refs_together_are_refused(log):
    fill(log, 1, "jobs", MESSAGES)
    fill(log, 1, "jobs/pending", MESSAGES)
    with log.consume("g", "jobs", layout=MESSAGES) as events:
        list(events)
    handed: list[Event] = []
    with pytest.raises(Conflict), log.consume("g", "jobs/pending", layout=MESSAGES) as events:
        handed += events
    assert handed == []  # said before anything is handled, not after


def test_a_consumer_of_a_topic_above_another_is_refused_too(log):
    fill(log, 1, "jobs", MESSAGES)
    fill(log, 1, "jobs/pending", MESSAGES)
    with log.consume("g", "jobs/pending", layout=MESSAGES) as events:
        list(events)
    with pytest.raises(Conflict, match="jobs/pending already"), log.consume("g", "jobs", layout=MESSAGES):
        raise AssertionError("nothing may be handed out")


def test_append_between_reader_looks_is_no_rewrite(log, place, monkeypatch):
    fill(log, 1)
    log.read("demo")
    with open_repository(place.git_dir) as other:
        looks = {"refs": log.store.head, "seen": log.lines.seen.get}

        def then_append(name):
            def look(ref):
                found = looks[name](ref)
                monkeypatch.undo()  # once
                fill(other, 1)
                return found

            return look

        monkeypatch.setattr(log.lines.seen, "get", then_append("seen"))
        assert len(log.read("demo").events) == 2
        monkeypatch.setattr(log.store, "head", then_append("refs"))
        assert len(log.read("demo").events) in (2, 3)
        overtaken = log.store.head(SHIPLOG.head_ref("demo"))
        fill(other, 1)
        assert log.lines.tip(SHIPLOG, "demo", overtaken).height == 3


def test_a_cursor_that_points_nowhere_is_listed_and_can_be_reset(log):
    fill(log, 2)
    blob = b"junk"
    oid = object_id("blob", blob)
    with log.store.put([(oid, "blob", blob)]):
        log.store.move_head(consumer_ref("torn", "demo"), None, oid)
    log.store.move_head(consumer_ref("lost", "demo"), None, "1" * 40)
    set_cursor(log, "fine", "demo", log.read("demo").events[0].ulid)
    rows = {row["group"]: row for row in (cursor_status(log, each) for each in cursors(log))}
    assert [(rows[group]["ulid"] is None, rows[group]["behind"]) for group in ("fine", "lost", "torn")] == [
        (False, 1),
        (True, None),
        (True, None),
    ]
    for group in ("lost", "torn"):
        with pytest.raises(BrokenLink, match="no checkpoint"):
            read_cursor(log.store, group, "demo")
        assert reset_cursor(log, group, "demo", "now")["old"] is None
        assert cursor_of(log, group, "demo").commit == log.read("demo").events[-1].commit


def test_index_without_room_stops_nobody(log, place, monkeypatch):
    fill(log, 1)
    log.read("demo")
    beside = log.lines.index

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(beside, "_store", full)
    assert len(fill(log, 2_500)) == 2_500  # more than wait for the index at a time
    assert log.read("demo", limit=512).events[-1].height == 511
    assert log.lines.index is not beside
    assert len(list(log.events("demo"))) == 2_501
