"""Clauses of S1, provoked in topics of the Message Plane and not only in shiplog's namespaces."""

from __future__ import annotations

import pytest
from tests.unit.gitlog.test_append import EVENT, commit_of, head
from tests.unit.gitlog.test_privacy import redact, with_policy
from tests.unit.gitlog.test_read import cursor_of, fill
from tests.unit.gitlog.test_verify import failed, forge

from ropewalk.errors import OutOfOrder, RangeExceeded
from ropewalk.gitlog.consumers.consumers import cursor_status, set_cursor
from ropewalk.gitlog.core.layout import MESSAGES, consumer_ref
from ropewalk.gitlog.core.objects import object_id
from ropewalk.gitlog.core.reading import messages_answer
from ropewalk.kernel import ulid
from ropewalk.repository_check import verify_gitlogs


def chain(log, topic):
    """The commits of a topic as git has them: from the head down by first parents, oldest first."""
    found, at = [], head(log, topic, MESSAGES)
    while at is not None:
        found.append(at)
        parents = commit_of(log, at).parents
        assert len(parents) <= 1
        at = parents[0] if parents else None
    return found[::-1]


def test_message_has_one_commit_in_parent_order(log):
    receipts = [*fill(log, 3, "jobs", MESSAGES), *fill(log, 1, "jobs", MESSAGES)]
    assert chain(log, "jobs") == [receipt.commit for receipt in receipts]
    page = log.read("jobs", layout=MESSAGES)
    assert [event.commit for event in page.events] == chain(log, "jobs")
    assert [event.payload["n"] for event in page.events] == [0, 1, 2, 0]


def test_ulids_rise_in_a_topic_while_the_clock_falls(log, clock):
    names = []
    for step in (0, -5_000, -1, 3, -100_000):
        clock.ms += step
        names.append(log.append("jobs", EVENT, layout=MESSAGES).ulid)
    assert names == sorted(set(names))
    with pytest.raises(OutOfOrder):
        log.append("jobs", {**EVENT, "ulid": ulid.make(clock.ms, 0)}, layout=MESSAGES)
    forge(log, lambda commit, raw, path: (commit, raw, path), "jobs", MESSAGES)
    assert "order" in failed(verify_gitlogs(log.store, "jobs"))


def test_topics_are_ordered_independently(log, clock):
    late = log.append("orders", EVENT, layout=MESSAGES)
    clock.ms -= 60_000
    early = log.append("bills", {**EVENT, "refs": {"order": late.content_id}}, layout=MESSAGES)
    # What is caused carries the smaller ULID: nothing is promised across topics.
    assert early.ulid < late.ulid
    (bill,) = log.read("bills", layout=MESSAGES).events
    orders = {event.content_id: event for event in log.read("orders", layout=MESSAGES).events}
    assert orders[bill.envelope["refs"]["order"]].commit == late.commit
    assert commit_of(log, early.commit).parents == ()


def test_a_group_stands_in_each_topic_by_itself(log):
    one, two = fill(log, 3, "one", MESSAGES), fill(log, 3, "two", MESSAGES)
    set_cursor(log, "g", "one", one[1].ulid, layout=MESSAGES)
    set_cursor(log, "g", "two", two[0].ulid, layout=MESSAGES)
    set_cursor(log, "h", "one", one[2].ulid, layout=MESSAGES)
    found = {
        (group, topic): cursor_of(log, group, topic).ulid
        for group, topic in (("g", "one"), ("g", "two"), ("h", "one"))
    }
    assert found == {("g", "one"): one[1].ulid, ("g", "two"): two[0].ulid, ("h", "one"): one[2].ulid}


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (511, 511), (512, 512), (513, 512), (10**9, 512)])
def test_a_page_of_messages_has_at_most_512(log, asked, given):
    fill(log, 514, "jobs", MESSAGES)
    assert len(log.read("jobs", limit=asked, layout=MESSAGES).events) == given
    for below in (0, -1):
        with pytest.raises(RangeExceeded) as refused:
            log.read("jobs", limit=below, layout=MESSAGES)
        assert refused.value.status == 409


def test_next_since_leads_through_a_topic_without_reading_twice(log):
    receipts = fill(log, 7, "jobs", MESSAGES)
    seen, since = [], None
    while True:
        answer = messages_answer(log.read("jobs", since, 3, layout=MESSAGES), "jobs", None)
        if not answer["messages"]:
            break
        seen += [row["ulid"] for row in answer["messages"]]
        assert answer["next_since"] == seen[-1]
        since = answer["next_since"]
    assert seen == [receipt.ulid for receipt in receipts]
    assert answer["next_since"] == since == seen[-1]  # a poll loop stays where it is


def test_next_since_of_an_empty_page(log):
    receipt = log.append("jobs", EVENT, layout=MESSAGES)
    page = log.read("jobs", receipt.ulid, layout=MESSAGES)
    assert (page.events, page.next_since) == ((), receipt.ulid)
    assert messages_answer(page, "jobs", None)["next_since"] == receipt.ulid


def test_read_since_unknown_ulid_restarts(log, clock):
    first = log.append("jobs", EVENT, layout=MESSAGES)
    clock.ms += 1_000
    between = ulid.make(clock.ms, 0)
    clock.ms += 1_000
    second = log.append("jobs", EVENT, layout=MESSAGES)
    page = log.read("jobs", between, layout=MESSAGES)
    assert page.restarted
    assert [event.ulid for event in page.events] == [first.ulid, second.ulid]
    known = log.read("jobs", first.ulid, layout=MESSAGES)
    assert not known.restarted and [event.ulid for event in known.events] == [second.ulid]


def test_a_cursor_anybody_could_have_written_proves_nothing(log):
    receipts = fill(log, 3, "jobs", MESSAGES)
    raw = f'{{"commit":"{"e" * 40}","ulid":"7ZZZZZZZZZZZZZZZZZZZZZZZZZ"}}'.encode()
    with log.store.put([(object_id("blob", raw), "blob", raw)]):
        log.store.move_head(consumer_ref("liar", "jobs"), None, object_id("blob", raw))
    assert (
        cursor_status(log, cursor_of(log, "liar", "jobs"))["behind"] == 0
    )  # what it says of itself, and no more
    assert [e.ulid for e in log.read("jobs", layout=MESSAGES).events] == [r.ulid for r in receipts]
    with log.consume("honest", "jobs", layout=MESSAGES) as events:
        assert [event.ulid for event in events] == [receipt.ulid for receipt in receipts]
    assert log.append("jobs", EVENT, layout=MESSAGES).ulid > receipts[-1].ulid
    assert verify_gitlogs(log.store, "jobs").ok


def test_what_a_policy_keeps_private_is_in_no_message_either(log):
    with_policy(log, redact("user.name"))
    log.append("prod", {"type": "a", "payload": {"user": {"name": "Ada", "id": 7}}}, layout=MESSAGES)
    (event,) = log.read("prod", layout=MESSAGES).events
    assert b"Ada" not in event.raw and event.payload["user"]["id"] == 7
