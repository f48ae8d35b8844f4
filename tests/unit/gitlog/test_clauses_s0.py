"""Clauses of S0 that need a provocation of their own: each test breaks if its clause does."""

from __future__ import annotations

import pytest
from tests.unit.gitlog.test_append import EVENT, commit_of, head
from tests.unit.gitlog.test_privacy import pointerize, redact, with_policy
from tests.unit.gitlog.test_verify import failed, fill, forge

from ropewalk.errors import HeadMoved, InvalidEnvelope, Unverified
from ropewalk.gitlog.consumers.consumers import set_cursor
from ropewalk.gitlog.consumers.cursor import Cursor, portable_form, read_cursor
from ropewalk.gitlog.core.commit import parse_message
from ropewalk.gitlog.core.layout import SHIPLOG, consumer_ref
from ropewalk.gitlog.core.objects import Commit, Oid, object_id
from ropewalk.gitlog.privacy.pointer import parse_pointer
from ropewalk.gitlog.repository.signing import set_anchor
from ropewalk.kernel import jcs, ulid
from ropewalk.kernel.digest import content_id
from ropewalk.kernel.schema import shipped as schema
from ropewalk.kernel.ulid import Ulid
from ropewalk.repository_check import verify_gitlogs

TRAILER = {
    "env": "prod",
    "who": {"name": "Jane Dev", "email": "jane@example.com"},
    "what": {"service": "web", "artifact": "ghcr.io/acme/web:1.2.3"},
    "where": {"region": "us-east-1", "cluster": "eks-a", "namespace": "prod"},
    "why": {"reason": "canary", "ticket": "OPS-123"},
    "how": {"pipeline": "gha", "run_url": "https://ci.example.com/runs/1"},
    "status": "success",
    "when": {"start_ts": "2025-11-10T10:00:00Z", "end_ts": "2025-11-10T10:01:10Z", "dur_s": 70},
    "trust_oid": "a" * 40,
    "repo_head": "b" * 40,
}


def trailer_of(log, commit):
    return parse_message(commit_of(log, commit).message).trailer


@pytest.mark.parametrize("ns", ["a", "a" * 64, "a0._-9z", "z-", "a_b.c-d"])
def test_every_namespace_the_grammar_allows_has_a_log(log, ns):
    receipt = log.append(ns, EVENT)
    assert log.store.head(f"refs/gatos/shiplog/{ns}/head") == receipt.commit


@pytest.mark.parametrize(
    ("document", "trailer"),
    [
        ({"type": "t", "payload": {}, "extra": 1}, None),
        ({"type": "t"}, None),
        ({**EVENT, "refs": {"state": "blake3:XYZ"}}, None),
        (EVENT, {"status": "odd"}),
        (EVENT, {"what": {"repo_head": "a"}}),
    ],
)
def test_schemas_are_asked_before_a_single_object_is_written(log, monkeypatch, document, trailer):
    written: list[object] = []
    monkeypatch.setattr(log.store, "put", lambda objects: written.append(objects))
    monkeypatch.setattr(log.store, "move_head", lambda *moved: written.append(moved))
    with pytest.raises(InvalidEnvelope):
        log.append("demo", document, trailer=trailer)
    assert written == []


def test_refs_are_kept_as_given_and_may_be_left_out(log):
    named = {"state": content_id(b"state"), "proposal_id": content_id(b"proposal")}
    log.append("demo", {**EVENT, "refs": named})
    log.append("demo", EVENT)
    first, second = log.events("demo")
    assert first.envelope["refs"] == named
    assert "refs" not in second.envelope


def test_trailer_members_kept_but_seq_is_ours(log):
    lies = {"seq": 99, "journal_parent": "c" * 40, "previous_anchor": "d" * 40}
    first = log.append("demo", EVENT, trailer={**TRAILER, **lies})
    assert trailer_of(log, first.commit) == {"version": 1, **TRAILER, "seq": 0}
    anchor = set_anchor(log, "demo", label="v1")
    second = log.append("demo", EVENT, trailer={**TRAILER, **lies})
    assert trailer_of(log, second.commit) == {
        "version": 1,
        **TRAILER,
        "seq": 1,
        "journal_parent": first.commit,
        "previous_anchor": anchor.commit,
    }


def test_headers_are_read_in_any_order(log):
    fill(log, 1)
    event = next(log.events("demo"))
    message = commit_of(log, event.commit).message
    lines, rest = message.split(b"---\n", 1)
    turned = b"\n".join(reversed(lines.splitlines())) + b"\n---\n" + rest
    assert turned != message
    assert parse_message(turned) == parse_message(message)

    def change(commit, raw, path):
        return Commit(commit.tree, commit.parents, commit.author, commit.committer, turned), raw, path

    forge(log, change)
    assert "headers" not in failed(verify_gitlogs(log.store))


def test_dashes_with_something_behind_them_part_nothing(log):
    fill(log, 1)
    message = commit_of(log, head(log)).message
    assert parse_message(message.replace(b"\n---\n", b"\n--- \n")).trailer is not None
    assert parse_message(message.replace(b"\n---\n", b"\n----\n")).trailer is None
    with pytest.raises(Unverified, match="trailer is no JSON"):
        parse_message(message.replace(b"\n---\n", b"\n---\n---\n"))


def test_a_lost_append_is_409_under_both_names(log, clock):
    def never(name, expected, new):
        raise HeadMoved("somebody was faster", ref=name)

    log.store.move_head = never
    with pytest.raises(HeadMoved) as refused:
        log.append("demo", {**EVENT, "ulid": ulid.make(clock.ms, 0)})
    problem = refused.value.to_problem()
    assert (problem["code"], problem["status"], problem["aliases"]) == (
        "AppendRejected",
        409,
        ["NotFastForward"],
    )
    assert head(log) is None


def test_portable_cursor_fits_lowercase_schema(log):
    (receipt,) = fill(log, 1)
    set_cursor(log, "g", "demo", receipt.commit)
    cursor = read_cursor(log.store, "g", "demo")
    assert cursor is not None
    document = jcs.parse(portable_form(cursor))
    schema.validate("shiplog/consumer_checkpoint", document)
    assert document == {"ulid": receipt.ulid, "commit_oid": receipt.commit}
    assert receipt.commit == receipt.commit.lower() and len(receipt.commit) == 40
    for wrong in ("A" * 40, "a" * 39, "g" * 40):
        with pytest.raises(InvalidEnvelope, match="commit_oid"):
            portable_form(Cursor("g", "demo", Ulid(receipt.ulid), Oid(wrong), Oid(wrong), "commit"))


def test_a_cursor_that_lies_neither_hides_nor_moves_anything_of_the_log(log):
    receipts = fill(log, 3)
    raw = f'{{"commit_oid":"{"e" * 40}","ulid":"7ZZZZZZZZZZZZZZZZZZZZZZZZZ"}}'.encode()
    with log.store.put([(object_id("blob", raw), "blob", raw)]):
        log.store.move_head(consumer_ref("liar", "demo"), None, object_id("blob", raw))
    assert [event.ulid for event in log.read("demo").events] == [receipt.ulid for receipt in receipts]
    with log.consume("honest", "demo") as events:
        assert [event.ulid for event in events] == [receipt.ulid for receipt in receipts]
    assert log.append("demo", EVENT).ulid > receipts[-1].ulid
    assert commit_of(log, head(log)).parents == (receipts[-1].commit,)
    assert verify_gitlogs(log.store, "demo").ok
    assert log.store.head(SHIPLOG.head_ref("demo")) == head(log)


def test_ulids_rise_per_namespace(log, clock):
    ahead = log.append("a", EVENT)
    clock.ms -= 60_000
    assert ulid.time_ms(log.append("b", EVENT).ulid) == clock.ms
    held = log.append("a", EVENT).ulid
    assert ulid.time_ms(held) == ulid.time_ms(ahead.ulid) > clock.ms
    assert ulid.randomness(held) > ulid.randomness(ahead.ulid)


def test_read_yields_events_in_rising_order(log):
    receipts = fill(log, 5)
    events = log.read("demo", receipts[0].ulid, 3).events
    for event, receipt in zip(events, receipts[1:4], strict=True):
        assert (event.ulid, event.content_id, event.commit) == (
            receipt.ulid,
            receipt.content_id,
            receipt.commit,
        )
        assert event.envelope == jcs.parse(event.raw) and event.envelope["ulid"] == receipt.ulid
        assert content_id(jcs.encode(event.envelope)) == receipt.content_id
    assert [event.ulid for event in events] == sorted({event.ulid for event in events})


def test_the_cursor_s_ref_points_to_the_last_commit_that_was_handled(log):
    receipts = fill(log, 5)
    with log.consume("g", "demo", 3) as events:
        list(events)
    assert log.store.head("refs/gatos/consumers/g/demo") == receipts[2].commit
    with log.consume("g", "demo") as events:
        next(events)
    assert log.store.head("refs/gatos/consumers/g/demo") == receipts[3].commit


def test_pointers_fit_schema_and_redaction_removes(log):
    with_policy(log, redact("user.name"), pointerize("user.email"))
    log.append("prod", {"type": "a", "payload": {"user": {"email": "ada@example.test", "name": "Ada"}}})
    (event,) = log.events("prod")
    assert event.payload["user"].keys() == {"email"}
    schema.validate("privacy/shiplog_pointer", event.payload["user"]["email"])


@pytest.mark.parametrize("raw", [b"[]", b"5", b"null", b'"blake3:"'])
def test_a_pointer_is_an_object(raw):
    with pytest.raises(InvalidEnvelope, match="object"):
        parse_pointer(raw)
