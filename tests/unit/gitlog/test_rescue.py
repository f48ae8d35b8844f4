"""Displaced events recorded again: in order, once, and a few at a time however large they are."""

from __future__ import annotations

from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import MESSAGES
from ropewalk.gitlog.repository import rescue as rescuing
from ropewalk.kernel.digest import content_id


def test_large_attachments_are_rescued_in_order_and_few_at_a_time(log, monkeypatch):
    ref = MESSAGES.head_ref("jobs")
    drafts = [_with_attachment(n) for n in range(5)]
    log.append_all("jobs", drafts[:1], layout=MESSAGES)
    kept = log.store.head(ref)
    log.append_all("jobs", drafts[1:], layout=MESSAGES)
    log.store.move_head(ref, log.store.head(ref), kept)
    log.lines.accept(MESSAGES, "jobs", "Ada")

    batches = []
    append_all = log.append_all

    def counted(topic, drafts, **more):
        batches.append(len(drafts))
        return append_all(topic, drafts, **more)

    monkeypatch.setattr(log, "append_all", counted)
    monkeypatch.setattr(rescuing, "BATCH_BYTES", 2_000)
    list(rescuing.rescue(log, "jobs", layout=MESSAGES))
    assert batches == [2, 2]
    assert [event.payload["n"] for event in log.events("jobs", layout=MESSAGES)] == [0, 1, 2, 3, 4]
    assert list(rescuing.rescue(log, "jobs", layout=MESSAGES)) == []


def _with_attachment(number: int) -> Draft:
    raw = bytes([number]) * 1_000
    document = {"ns": "jobs", "type": "t", "payload": {"n": number}, "refs": {"file": content_id(raw)}}
    return Draft(document, attachments={"file": raw})
