"""Append (S0 §4–§5): what is recorded, what is refused, and under which name."""

from __future__ import annotations

import json
import threading
from functools import partial

import pytest
from tests.waiting import LIMIT_S, Crew, together, until

from ropewalk.disk.durable import Disk
from ropewalk.errors import (
    ContentDiffers,
    HeadMoved,
    Invalid,
    InvalidEnvelope,
    InvalidJson,
    InvalidName,
    InvalidUlid,
    OutOfOrder,
    RopewalkError,
    TooLarge,
    Unavailable,
)
from ropewalk.gitlog.core.commit import parse_message
from ropewalk.gitlog.core.envelope import ENVELOPE_BYTES_MAX, Draft, parse_document
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG
from ropewalk.gitlog.core.objects import parse_commit, parse_tree
from ropewalk.gitlog.core.planning import Receipt
from ropewalk.gitlog.repository.group_commit import _Drafts, _Request
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.kernel import group_commit, jcs, ulid
from ropewalk.kernel.digest import content_id

EVENT = {"type": "proposal.created", "payload": {"id": 7}}


def head(log, topic="demo", layout=SHIPLOG):
    return log.store.head(layout.head_ref(topic))


def commit_of(log, oid):
    kind, raw = log.store.get(oid)
    assert kind == "commit"
    return parse_commit(raw)


def paths(log, tree, prefix=""):
    for entry in parse_tree(log.store.get(tree)[1]):
        if entry.mode == b"40000":
            yield from paths(log, entry.oid, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry.oid


def test_the_stored_blob_is_the_hashed_bytes_at_the_path_of_s0(log):
    receipt = log.append("demo", EVENT)
    commit = commit_of(log, receipt.commit)
    ((path, blob),) = paths(log, commit.tree)
    raw = log.store.get(blob)[1]
    assert path == f"gatos/shiplog/demo/{receipt.ulid}.json"
    assert content_id(raw) == receipt.content_id
    assert raw == jcs.encode({**EVENT, "ns": "demo", "ulid": receipt.ulid})


def test_the_message_carries_headers_dashes_and_a_valid_trailer(log):
    first = log.append("demo", EVENT)
    second = log.append(
        "demo", EVENT, trailer={"status": "failed", "env": "prod", "what": {"service": "web"}}
    )
    headers = parse_message(commit_of(log, second.commit).message)
    assert (headers.ulid, headers.content_id, headers.namespace) == (second.ulid, second.content_id, "demo")
    assert headers.envelope_schema == "https://gatos.dev/schemas/v1/shiplog/event_envelope.schema.json"
    assert headers.trailer_schema == "https://gatos.dev/schemas/v1/shiplog/deployment_trailer.schema.json"
    trailer = headers.trailer
    assert trailer is not None
    assert trailer["status"] == "failed"
    assert trailer["env"] == "prod"
    assert trailer["seq"] == 1
    assert trailer["journal_parent"] == first.commit
    assert commit_of(log, second.commit).parents == (first.commit,)


def test_a_message_lies_alone_under_message(log):
    receipt = log.append("jobs/pending", EVENT, layout=MESSAGES)
    commit = commit_of(log, receipt.commit)
    assert [path for path, _ in paths(log, commit.tree)] == ["message/envelope.json"]
    assert commit.message.decode() == f"Event-Id: ulid:{receipt.ulid}\nContent-Id: {receipt.content_id}\n"


def test_head_ref_of_a_topic_is_that_of_s1(log):
    receipts = [log.append("jobs/pending", EVENT, layout=MESSAGES) for _ in range(2)]
    folder = log.store.place.git_dir / "refs"
    refs = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert list(refs) == ["gatos/messages/jobs/pending/head"]
    assert refs["gatos/messages/jobs/pending/head"].read_text() == receipts[-1].commit + "\n"
    assert commit_of(log, receipts[-1].commit).parents == (receipts[0].commit,)


def test_message_is_canonical_with_attachments(log):
    raw = b"a picture"
    document = {**EVENT, "refs": {"p": content_id(raw)}}
    receipt = log.append("jobs", document, layout=MESSAGES, attachments={"p.png": raw})
    blobs = dict(paths(log, commit_of(log, receipt.commit).tree))
    stored = log.store.get(blobs["message/envelope.json"])[1]
    assert stored == jcs.encode({**document, "ns": "jobs", "ulid": receipt.ulid})
    assert receipt.content_id == content_id(stored)
    bare = log.append("jobs", {**document, "ulid": receipt.ulid}, layout=MESSAGES)
    assert bare.replayed and bare.content_id == receipt.content_id


@pytest.mark.parametrize(
    "document",
    [{"payload": {}}, {"type": "t"}, {"type": "t", "payload": []}, {"type": "t", "payload": {}, "extra": 1}],
)
def test_messages_outside_the_schema_are_refused(log, document):
    with pytest.raises(InvalidEnvelope):
        log.append("jobs", document, layout=MESSAGES)
    assert head(log, "jobs", MESSAGES) is None


def test_attachments_must_be_named_by_digest(log):
    raw = b"a picture"
    with pytest.raises(InvalidEnvelope, match="not named in refs"):
        log.append("jobs", EVENT, layout=MESSAGES, attachments={"p.png": raw})
    receipt = log.append(
        "jobs", {**EVENT, "refs": {"p": content_id(raw)}}, layout=MESSAGES, attachments={"p.png": raw}
    )
    found = dict(paths(log, commit_of(log, receipt.commit).tree))
    assert set(found) == {"message/envelope.json", "message/attachments/p.png"}
    hidden = {**EVENT, "payload": {"p": content_id(raw)}, "refs": {}}  # S1 says refs, not anywhere
    with pytest.raises(InvalidEnvelope, match="not named in refs"):
        log.append("jobs", hidden, layout=MESSAGES, attachments={"p.png": raw})
    for name in ("../x", "", "a/b", ".git", ".GitModules", "git~1", "a\x00", "\u200b"):
        with pytest.raises(InvalidEnvelope, match="no file name"):
            log.append(
                "jobs", {**EVENT, "refs": {"p": content_id(raw)}}, layout=MESSAGES, attachments={name: raw}
            )


@pytest.mark.parametrize(
    "raw",
    [
        b"not json",
        b'{"type":"t","type":"u","payload":{}}',
        b'{"type":"t","payload":{"n":9007199254740993}}',
        b'{"type":"t","payload":{"s":"\\ud800"}}',
        b'{"type":"t","payload":{"n":NaN}}',
        b'{"type":"t","payload":{}} trailing',
        b"\xef\xbb\xbf{}",
        b"\xff\xfe",
    ],
)
def test_what_is_not_strict_json_is_refused(raw):
    with pytest.raises(InvalidJson):
        parse_document(raw)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53 + 1, "\ud800"])
def test_values_without_a_canonical_form_are_refused(log, value):
    with pytest.raises(InvalidJson):
        log.append("demo", {"type": "t", "payload": {"v": value}})
    assert head(log) is None


def test_an_event_is_an_object():
    with pytest.raises(InvalidEnvelope):
        parse_document(b"[1]")


@pytest.mark.parametrize(
    "document",
    [
        {"payload": {}},
        {"type": "t"},
        {"type": "", "payload": {}},
        {"type": 7, "payload": {}},
        {"type": "t", "payload": []},
        {"type": "t", "payload": {}, "extra": 1},
        {"type": "t", "payload": {}, "refs": {"state": "blake3:XYZ"}},
        {"type": "t", "payload": {}, "refs": {"state": "blake3:" + "A" * 64}},
        {"type": "t", "payload": {}, "ns": "other"},
        {"type": "t", "payload": {}, "ulid": 7},
    ],
)
def test_documents_outside_the_schema_are_refused(log, document):
    with pytest.raises(InvalidEnvelope) as refused:
        log.append("demo", document)
    assert refused.value.exit_code == 8
    assert head(log) is None


@pytest.mark.parametrize(
    "ns", ["a..b", "x.lock", "../x", "a" * 65, "x.", "", "A", "1a", "a/b", "a b", "-a", ".a", "a\n"]
)
def test_namespaces_git_or_s0_refuse_are_refused(log, ns):
    with pytest.raises(InvalidName):
        log.append(ns, EVENT)


@pytest.mark.parametrize(
    "topic", ["a..b", "a/x.lock", "../x", "a//b", "/a", "a/", "head", "a/head/b", "a.", "", "a" * 201]
)
def test_topics_git_or_s1_refuse_are_refused(log, topic):
    with pytest.raises(InvalidName):
        log.append(topic, EVENT, layout=MESSAGES)


@pytest.mark.parametrize(
    "text", ["01HF4Y9Q1SM8Q7K9DK2R4V5CXL", "8" + "0" * 25, "01hf4y9q1sm8q7k9dk2r4v5cxd", "01HF", ""]
)
def test_bad_ulids_are_refused(log, text):
    with pytest.raises(InvalidUlid):
        log.append("demo", {**EVENT, "ulid": text})


def test_envelope_size_limit_is_exact(log):
    with pytest.raises(TooLarge):
        log.append("demo", {"type": "t", "payload": {"x": "y" * ENVELOPE_BYTES_MAX}})
    log.append("demo", {"type": "t", "payload": {"x": "y" * (ENVELOPE_BYTES_MAX - 200)}})


@pytest.mark.parametrize("nested", [{"what": {"repo_head": "a"}}, {"why": {"deep": [{"repo_head": "b"}]}}])
def test_nested_repo_head_is_refused(log, nested):
    with pytest.raises(InvalidEnvelope, match="repo_head"):
        log.append("demo", EVENT, trailer=nested)
    log.append("demo", EVENT, trailer={"repo_head": "0" * 40})


@pytest.mark.parametrize(
    "bad", [{"status": "odd"}, {"version": 2}, {"unknown": 1}, {"env": None}, {"when": {}}]
)
def test_trailers_outside_the_schema_are_refused(log, bad):
    with pytest.raises(InvalidEnvelope):
        log.append("demo", EVENT, trailer=bad)
    assert head(log) is None


def test_same_ulid_and_content_gives_the_old_receipt(log):
    old = log.append("demo", EVENT)
    log.append("demo", EVENT)
    before = head(log)
    again = log.append("demo", {**EVENT, "ulid": old.ulid})
    assert again.replayed
    assert (again.commit, again.content_id) == (old.commit, old.content_id)
    assert head(log) == before


def test_same_ulid_and_other_content_is_a_digest_mismatch(log):
    old = log.append("demo", EVENT)
    with pytest.raises(ContentDiffers) as refused:
        log.append("demo", {**EVENT, "payload": {"id": 8}, "ulid": old.ulid})
    assert (refused.value.code, refused.value.status, refused.value.exit_code) == ("DigestMismatch", 422, 4)


def test_a_ulid_not_above_the_head_is_out_of_order(log):
    log.append("demo", {**EVENT, "ulid": "01HF4Y9Q1SM8Q7K9DK2R4V5CXD"})
    with pytest.raises(OutOfOrder) as refused:
        log.append("demo", {**EVENT, "ulid": "01HF4Y9Q1SM8Q7K9DK2R4V5CXC"})
    assert (refused.value.code, refused.value.status) == ("TemporalOrder", 409)


def test_the_millisecond_can_run_out(log, clock):
    log.append("demo", {**EVENT, "ulid": ulid.make(clock.ms, ulid.RANDOMNESS_MAX)})
    with pytest.raises(OutOfOrder):
        log.append("demo", EVENT)
    clock.ms += 1
    log.append("demo", EVENT)


def test_a_replay_under_another_ulid_is_refused(log):
    log.append("demo", EVENT)
    (outcome,) = log.append_all("demo", [Draft({**EVENT, "ulid": "01ZZZZZZZZZZZZZZZZZZZZZZZZ"}, replay=True)])
    assert isinstance(outcome, ContentDiffers)


def test_a_replay_without_its_ulid_is_refused_too(log):
    log.append("demo", EVENT)
    (outcome,) = log.append_all("demo", [Draft(EVENT, replay=True)])
    assert isinstance(outcome, ContentDiffers)
    (other,) = log.append_all("demo", [Draft({**EVENT, "type": "another"}, replay=True)])
    assert isinstance(other, Receipt)


def test_a_ulid_that_is_null_is_not_a_ulid_left_out(log):
    with pytest.raises(InvalidEnvelope):
        log.append("demo", {**EVENT, "ulid": None})


def test_a_writer_interrupted_in_the_queue_holds_up_nobody(log, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    real = log.store.put

    def slow(objects):
        begun.set()
        go_on.wait(LIMIT_S)
        return real(objects)

    monkeypatch.setattr(log.store, "put", slow)
    crew = Crew(2)
    leader = crew.submit(log.append, "demo", EVENT)
    assert begun.wait(LIMIT_S)
    monkeypatch.setattr(log.store, "put", real)

    class Interrupted(group_commit.Waiter):
        def wait(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(group_commit, "Waiter", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.append("demo", EVENT)
    monkeypatch.undo()
    last = crew.submit(log.append, "demo", EVENT)
    go_on.set()
    assert leader.result(LIMIT_S).commit != last.result(LIMIT_S).commit
    assert len(log.read("demo").events) == 2


def test_ulids_rise_while_the_clock_falls(log, clock):
    names = []
    for step in (0, -5_000, -1, 3, -100_000, 50):
        clock.ms += step
        names.append(log.append("demo", EVENT).ulid)
    assert names == sorted(set(names))


def test_one_refusal_in_a_batch_harms_no_other(log):
    drafts = [Draft(EVENT), Draft({"type": "t"}), Draft(EVENT, {"status": "odd"}), Draft(EVENT)]
    outcomes = log.append_all("demo", drafts)
    assert [isinstance(o, RopewalkError) for o in outcomes] == [False, True, True, False]
    assert log.read("demo").events[-1].height == 1


def test_a_ulid_twice_in_one_batch_is_one_event(log):
    draft = Draft({**EVENT, "ulid": "01HF4Y9Q1SM8Q7K9DK2R4V5CXD"})
    first, second = log.append_all("demo", [draft, draft])
    assert not first.replayed
    assert second.replayed
    assert first.commit == second.commit


def test_a_moved_head_is_tried_again_where_the_ulid_was_ours(log, clock):
    log.append("demo", EVENT)
    ref = SHIPLOG.head_ref("demo")
    real = log.store.move_head
    failures: list[str] = []

    def moved_twice(name, expected, new):
        if name == ref and len(failures) < 2:
            failures.append(new)
            raise HeadMoved("somebody was faster", ref=name)
        real(name, expected, new)

    log.store.move_head = moved_twice
    log.append("demo", EVENT)
    assert len(failures) == 2
    failures.clear()
    with pytest.raises(HeadMoved) as refused:
        log.append("demo", {**EVENT, "ulid": ulid.make(clock.ms + 1_000, 0)})
    assert refused.value.code == "AppendRejected"
    assert "NotFastForward" in refused.value.to_problem()["aliases"]


def test_a_head_that_always_moves_is_append_rejected(log):
    def never(name, expected, new):
        raise HeadMoved("somebody was faster", ref=name)

    log.store.move_head = never
    with pytest.raises(HeadMoved):
        log.append("demo", EVENT)


def test_threads_share_packs_and_every_event_keeps_its_commit(log):
    receipts: list[Receipt] = []

    def write(number):
        receipts.extend(
            log.append("demo", {"type": "t", "payload": {"w": number, "n": n}}) for n in range(10)
        )

    together(*(partial(write, n) for n in range(16)))
    events = list(log.events("demo"))
    assert {e.commit for e in events} == {r.commit for r in receipts}
    assert len({e.commit for e in events}) == 160
    assert [e.ulid for e in events] == sorted(e.ulid for e in events)
    for number in range(16):
        assert [e.payload["n"] for e in events if e.payload["w"] == number] == list(range(10))


def test_appends_to_several_logs_share_a_pack(log):
    log.append("warm", EVENT)
    packs = []
    real, first = log.store.put, threading.Event()
    everybody = threading.Barrier(9)

    def put(objects):
        packs.append(len(objects))
        if len(packs) == 1:
            first.set()  # the leader is writing; the others queue up behind it
            everybody.wait(LIMIT_S)
            until(lambda: len(log._writer._commit.arrivals) == 8)
        return real(objects)

    log.store.put = put
    receipts: list[Receipt] = []

    def follow(n):
        assert first.wait(LIMIT_S)
        everybody.wait(LIMIT_S)
        layout = MESSAGES if n % 2 else SHIPLOG
        receipts.append(log.append(f"topic{n}", {**EVENT, "payload": {"n": n}}, layout=layout))

    together(lambda: receipts.append(log.append("warm", EVENT)), *(partial(follow, n) for n in range(8)))
    assert len(receipts) == 9
    assert len(packs) == 2
    for n in range(8):
        layout = MESSAGES if n % 2 else SHIPLOG
        assert [event.payload["n"] for event in log.events(f"topic{n}", layout=layout)] == [n]


def test_one_broken_log_in_a_shared_pack_harms_no_other(log):
    log.store.move_head(SHIPLOG.head_ref("broken"), None, "d" * 40)
    requests = [_Request(_Drafts(SHIPLOG, name, [Draft(EVENT)])) for name in ("a", "broken", "b")]
    log._writer._write(requests)
    assert [isinstance(r.outcome, RopewalkError) for r in requests] == [False, True, False]
    assert len(log.read("a").events) == len(log.read("b").events) == 1


def test_a_head_that_moves_under_a_shared_pack_is_written_again(log):
    real = log.store.move_head
    moved: list[str] = []

    def move(name, expected, new):
        if name == SHIPLOG.head_ref("a") and not moved:
            moved.append(name)
            raise HeadMoved("somebody was faster", ref=name)
        real(name, expected, new)

    log.store.move_head = move
    requests = [_Request(_Drafts(SHIPLOG, name, [Draft(EVENT)])) for name in ("a", "b")]
    log._writer._write(requests)
    assert moved
    assert len(log.read("a").events) == len(log.read("b").events) == 1


def test_a_read_only_or_full_disk_is_unavailable_and_changes_nothing(place, clock):
    class Full(Disk):
        full = False

        def write(self, descriptor, raw):
            if self.full:
                raise OSError(28, "No space left on device")
            super().write(descriptor, raw)

    disk = Full()
    with open_repository(place.git_dir, now_ms=clock, disk=disk) as log:
        log.append("demo", EVENT)
        before = head(log)
        disk.full = True
        with pytest.raises(Unavailable, match="disk is full") as refused:
            log.append("demo", EVENT)
        assert refused.value.exit_code == 7
        disk.full = False
        assert head(log) == before
        leftovers = [p.name for p in log.store.pack_folder.iterdir() if not p.name.startswith("pack-")]
        assert leftovers == []
        assert not list(log.store.pack_folder.glob("*.keep"))
        log.append("demo", EVENT)
        assert len(list(log.events("demo"))) == 2


def test_errors_travel_as_problem_json(log):
    with pytest.raises(Invalid) as refused:
        log.append("a..b", EVENT)
    assert json.loads(json.dumps(refused.value.to_problem()))["code"] == "InvalidName"


# --- numbers that lose digits ---


@pytest.mark.parametrize(
    "literal",
    [
        b"0.1234567890123456789",
        b"1234567890.123456789",
        b"-99999999999999.999",
        b"1e-400",
        b"3e-324",
        b"0.1e-330",
    ],
)
def test_a_decimal_that_loses_digits_is_refused(literal):
    for raw in (b'{"type":"t","payload":{"n":%s}}', b'{"type":"t","payload":{"n":[1.5,{"m":%s}]}}'):
        with pytest.raises(InvalidJson, match="a double does not hold its digits") as refused:
            parse_document(raw % literal)
        assert "string" in refused.value.advice_now


@pytest.mark.parametrize(
    "literal", [b"0.1", b"1.50", b"0.30000000000000004", b"1e100", b"5e-324", b"123456789012.345", b"1.0"]
)
def test_a_decimal_a_double_holds_is_taken(log, literal):
    document = parse_document(b'{"type":"t","payload":{"n":%s,"s":"0.1234567890123456789"}}' % literal)
    log.append("demo", document)
    assert log.read("demo").events[0].payload["n"] == float(literal)
