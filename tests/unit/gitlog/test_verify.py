"""Verification from bytes alone: what passes, what is refused, and which commit is named."""

from __future__ import annotations

import base64
import subprocess

import pytest
from tests.unit.gitlog.journals import Journal

from ropewalk.disk.repository_paths import find_repository
from ropewalk.errors import Unverified
from ropewalk.gitlog.core.commit import parse_message
from ropewalk.gitlog.core.envelope import Draft, EncodedEnvelope
from ropewalk.gitlog.core.layout import LOG_NOTES, MESSAGES, SHIPLOG
from ropewalk.gitlog.core.notes import add_note, read_note
from ropewalk.gitlog.core.objects import (
    Commit,
    TreeEntry,
    build_path_trees,
    encode_commit,
    encode_tree,
    object_id,
    parse_commit,
    parse_tree,
)
from ropewalk.gitlog.core.reading import messages_answer
from ropewalk.gitlog.repository.signing import set_anchor, sign_log
from ropewalk.gitlog.store.object_store import GitStore
from ropewalk.gitlog.verify.log_check import verify_log
from ropewalk.kernel.digest import ContentId, content_id
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.note.key import Signer
from ropewalk.kernel.ulid import Ulid
from ropewalk.repository_check import verify_gitlogs

KEY = SigningKey.generate("ed25519", b"k" * 32)


def fill(log, count, topic="demo", layout=SHIPLOG):
    return log.append_all(
        topic, [Draft({"type": "t", "payload": {"n": n}}) for n in range(count)], layout=layout
    )


def failed(report):
    return {step.name: step.detail for step in report.steps if step.status == "failed"}


def forge(log, change, topic="demo", layout=SHIPLOG):
    """Put a commit on the head that no honest writer makes; `change` edits (commit, raw envelope)."""
    ref = layout.head_ref(topic)
    head = log.store.head(ref)
    old = parse_commit(log.store.get(head)[1])
    headers = parse_message(old.message)
    raw = next(e.raw for e in log.events(topic, layout=layout) if e.commit == head)
    commit, raw, path = change(old, raw, layout.path(topic, headers.ulid))
    tree, objects = build_path_trees(path, raw)
    body = encode_commit(Commit(tree, (head,), commit.author, commit.committer, commit.message))
    oid = object_id("commit", body)
    with log.store.put([*objects, (oid, "commit", body)]):
        log.store.move_head(ref, head, oid)
    return oid


def test_an_honest_log_passes_every_step(log):
    fill(log, 1200)
    set_anchor(log, "demo", label="v1", signer=Signer("ada", KEY))
    fill(log, 3)
    sign_log(log, "demo", KEY)
    report = verify_log(
        log.store, SHIPLOG, "demo", seen=log.store.head(SHIPLOG.head_ref("demo")), keys=[KEY.public]
    )
    assert report.ok
    assert report.entries == 1203
    assert {step.status for step in report.steps} == {"passed"}


def test_what_was_not_checked_is_said(log):
    fill(log, 1)
    sign_log(log, "demo", KEY)
    unchecked = {s.name for s in verify_gitlogs(log.store).steps if s.status == "not_checked"}
    assert unchecked == {"anchors", "signed_heads", "packs"}


def test_messages_pass(log):
    fill(log, 3, "jobs/a", MESSAGES)
    assert verify_gitlogs(log.store, deep=True).ok


def test_something_beside_a_message_is_flagged_and_read_past(log):
    fill(log, 1, "jobs", MESSAGES)
    (event,) = log.events("jobs", layout=MESSAGES)
    old = parse_commit(log.store.get(event.commit)[1])
    top = list(parse_tree(log.store.get(old.tree)[1]))
    meta = b'{"x":1}'
    tree = encode_tree([*top, TreeEntry(b"100644", "meta.json", object_id("blob", meta))])
    body = encode_commit(Commit(object_id("tree", tree), (), old.author, old.committer, old.message))
    objects = [(object_id("blob", meta), "blob", meta), (object_id("tree", tree), "tree", tree)]
    with log.store.put([*objects, (object_id("commit", body), "commit", body)]):
        log.store.move_head(MESSAGES.head_ref("other"), None, object_id("commit", body))
    assert log.read("other", layout=MESSAGES).events[0].raw == event.raw
    found = failed(verify_gitlogs(log.store, "other"))
    assert set(found) == {"layout"}
    assert "meta.json" in found["layout"]


def test_another_envelope_under_the_same_promise_is_named(log):
    fill(log, 3)
    oid = forge(log, lambda c, raw, path: (c, raw.replace(b'"n":2', b'"n":3'), path))
    assert oid in failed(verify_gitlogs(log.store))["envelopes"]


def test_a_repeated_ulid_breaks_the_order(log):
    fill(log, 3)
    oid = forge(log, lambda c, raw, path: (c, raw, path))
    found = failed(verify_gitlogs(log.store))
    assert oid in found["order"]
    assert oid in found["trailers"]  # journal_parent is that of the commit it was copied from


def test_bytes_that_are_not_canonical_are_flagged(log):
    fill(log, 1)

    def change(commit, raw, path):
        loose = raw.replace(b'{"n":0}', b'{"n": 0}')
        return commit, loose, path

    oid = forge(log, change)
    found = failed(verify_gitlogs(log.store))
    assert oid in found["canonical"]
    assert "envelopes" not in found  # its canonical form has the promised name, as S0's profile allows


@pytest.mark.parametrize(
    ("old", "new", "step"),
    [
        (b"Namespace: demo", b"Namespace: other", "headers"),
        (b"Event-Id: ulid:", b"Event-Ix: ulid:", "headers"),
        (b"Namespace: demo", b"Namespace: demo\nNamespace: demo", "headers"),
        (b"Namespace: demo", b"Namespace: demo\nSchema: x", "headers"),
        (b'"status":"success"', b'"status":"odd"', "trailers"),
        (b'"version":1', b'"version":1,"what":{"repo_head":"x"}', "trailers"),
        (b"\n---\n", b"\n--\n", "trailers"),
    ],
)
def test_a_message_with_something_wrong_is_named(log, old, new, step):
    fill(log, 2)

    def change(commit, raw, path):
        assert old in commit.message
        message = commit.message.replace(old, new)
        return Commit(commit.tree, commit.parents, commit.author, commit.committer, message), raw, path

    oid = forge(log, change)
    assert oid in failed(verify_gitlogs(log.store))[step]


def test_an_envelope_at_another_path_is_missing(log):
    fill(log, 1)
    oid = forge(log, lambda c, raw, path: (c, raw, ("elsewhere", "x.json")))
    assert oid in failed(verify_gitlogs(log.store))["envelopes"]


def test_a_missing_commit_breaks_the_chain(log):
    receipts = fill(log, 2)
    body = log.store.get(receipts[-1].commit)[1].replace(receipts[0].commit.encode(), b"e" * 40, 1)
    oid = object_id("commit", body)
    with log.store.put([(oid, "commit", body)]):
        log.store.move_head(SHIPLOG.head_ref("demo"), receipts[-1].commit, oid)
    report = verify_gitlogs(log.store)
    assert "e" * 40 in failed(report)["chain"]
    assert report.entries == 1


def test_a_head_that_points_nowhere_fails_the_chain(log):
    log.store.move_head(SHIPLOG.head_ref("demo"), None, "d" * 40)
    assert "chain" in failed(verify_gitlogs(log.store))


def test_an_anchor_outside_the_log_is_refused(log):
    receipts = fill(log, 3)
    set_anchor(log, "demo")
    log.store.move_head(SHIPLOG.head_ref("demo"), receipts[-1].commit, receipts[0].commit)
    found = failed(verify_gitlogs(log.store))
    assert set(found) == {"seen_head", "anchors"}


def test_a_signed_head_over_another_order_is_refused(log):
    fill(log, 3)
    sign_log(log, "demo", KEY)
    other = SigningKey.generate("ed25519", b"o" * 32)
    assert "signed_heads" in failed(verify_gitlogs(log.store, keys=[other.public]))
    from ropewalk.gitlog.verify.signed_heads import add_signed_head

    names = [ContentId(e.content_id) for e in log.events("demo")]
    signer = Signer("ropewalk/shiplog/demo", KEY)
    add_signed_head(log.store, SHIPLOG, "demo", [names[1], names[0], names[2]], signer, log.author(0))
    assert "root" in failed(verify_gitlogs(log.store, keys=[KEY.public]))["signed_heads"]


def test_a_changed_anchor_signature_is_refused(log):
    fill(log, 1)
    set_anchor(log, "demo", signer=Signer("ada", SigningKey.generate("ed25519", b"x" * 32)))
    assert "anchors" in failed(verify_gitlogs(log.store, keys=[KEY.public]))


def test_sealed_names_the_bytes_it_holds():
    raw = b'{"a":1}'
    assert EncodedEnvelope(Ulid("01HF4Y9Q1SM8Q7K9DK2R4V5CXD"), raw, content_id(raw)).content_id == content_id(
        raw
    )


def planted(log, change):
    """The last commit with other bytes in its place, as no git command writes them."""
    ref = SHIPLOG.head_ref("demo")
    head = log.store.head(ref)
    raw = change(log.store.get(head)[1])
    oid = object_id("commit", raw)
    with log.store.put([(oid, "commit", raw)]):
        log.store.move_head(ref, head, oid)
    return oid


def _parent_behind(raw):
    head, message = raw.split(b"\n\n", 1)
    lines = head.split(b"\n")
    return b"\n".join([lines[0], *lines[2:], lines[1]]) + b"\n\n" + message


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: b"tree " + b"1" * 40 + b"\n" + raw,
        _parent_behind,
        lambda raw: raw.replace(b"\nauthor", b"\nparent zz\nauthor", 1),
        lambda raw: b"tree zz" + raw[raw.index(b"\n") :],
        lambda raw: raw.replace(b"\nauthor", b"\nauthor A <a@b> 1 +0000\nauthor", 1),
    ],
)
def test_a_commit_git_reads_otherwise_than_we_would_is_refused(log, change):
    fill(log, 3)
    oid = planted(log, change)
    assert oid in failed(verify_gitlogs(log.store))["chain"]
    with pytest.raises(Unverified):
        log.read("demo")
    with pytest.raises(Unverified):
        log.append("demo", {"type": "t", "payload": {}})


@pytest.mark.parametrize("name", [b"Envelope-Schema", b"Trailer-Schema"])
def test_a_commit_without_its_schema_headers_is_named(log, name):
    fill(log, 2)
    oid = planted(log, lambda raw: raw.replace(b"\n" + name, b"\nX-" + name))
    assert oid in failed(verify_gitlogs(log.store))["headers"]


def test_a_log_that_was_seen_and_is_gone_fails(log):
    fill(log, 2)
    fill(log, 2, "other")
    ref = SHIPLOG.head_ref("demo")
    log.store.drop_head(ref, log.store.head(ref))
    assert set(failed(verify_gitlogs(log.store))) == {"shiplog/demo:seen_head"}
    log.lines.accept(SHIPLOG, "demo", "test")
    assert verify_gitlogs(log.store).ok


def test_progress_is_told_over_all_logs(log):
    fill(log, 600)
    fill(log, 2, "other")
    told: list[int] = []
    verify_gitlogs(log.store, progress=told.append)
    assert told == [512, 600, 602]


# --- refs that cannot be read ---


@pytest.mark.parametrize("torn", [b"", b"garbage\n", b"ab" * 19, b"ref: refs/heads/main\n"])
def test_one_torn_ref_fails_its_own_log_and_the_others_are_verified(log, torn):
    for topic in ("a", "b", "c"):
        fill(log, 2, topic)
    (log.store.place.git_dir / SHIPLOG.head_ref("b")).write_bytes(torn)
    report = verify_gitlogs(log.store)
    assert set(failed(report)) == {"refs", "shiplog/b:chain"}
    assert SHIPLOG.head_ref("b") in failed(report)["shiplog/b:chain"]
    assert report.entries == 4
    assert verify_gitlogs(log.store, "a").ok


def test_damaged_packed_refs_are_named(log):
    fill(log, 2, "a")
    fill(log, 2, "b")
    git_dir = log.store.place.git_dir
    head = git_dir / SHIPLOG.head_ref("a")
    (git_dir / "packed-refs").write_bytes(b"torn\n" + head.read_bytes().strip() + b" refs/x/y\n")
    head.unlink()
    report = verify_gitlogs(log.store)
    assert "packed-refs" in failed(report)["refs"]
    assert "shiplog/a:chain" in failed(report)
    assert "shiplog/b:chain" not in failed(report)
    assert not verify_gitlogs(log.store, "nowhere").ok


# --- entries of another log ---


def test_an_entry_of_another_namespace_is_not_handed_out(log):
    fill(log, 2)
    oid = forge(
        log,
        lambda c, raw, path: (
            Commit(
                c.tree,
                c.parents,
                c.author,
                c.committer,
                c.message.replace(b"Namespace: demo", b"Namespace: other"),
            ),
            raw,
            path,
        ),
    )
    for act in (
        lambda: log.read("demo"),
        lambda: log.tail(["demo"]),
        lambda: list(log.events("demo")),
        lambda: log.append("demo", {"type": "t", "payload": {}}),
    ):
        with pytest.raises(Unverified, match=f"commit {oid}: Namespace is 'other'"):
            act()
    with pytest.raises(Unverified, match=oid), log.consume("g", "demo") as events:
        list(events)
    assert log.store.head("refs/gatos/consumers/g/demo") is None


def _dressed(log, topic, layout, raw, ulid, oid):
    """A commit on the head that promises exactly these bytes, as careless or hostile software would make it."""
    name = content_id(raw)
    moment = b'"2024-01-01T00:00:00Z"'
    when = b'{"dur_s":0,"end_ts":%s,"start_ts":%s}' % (moment, moment)
    trailer = b'{"status":"success","version":1,"when":%s}' % when
    message = f"Event-Id: ulid:{ulid}\nContent-Id: {name}\n".encode()
    if layout.has_trailer:
        message += f"Namespace: {topic}\n---\n".encode() + trailer
    tree, objects = build_path_trees(layout.path(topic, ulid), raw)
    old = parse_commit(log.store.get(oid)[1])
    body = encode_commit(Commit(tree, (oid,), old.author, old.committer, message))
    new = object_id("commit", body)
    with log.store.put([*objects, (new, "commit", body)]):
        log.store.move_head(layout.head_ref(topic), oid, new)
    return new


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"ns":"other","payload":{},"type":"t","ulid":"%s"}', "got 'other'"),
        (b'{"ns":"other","payload":{"a":{"ns":"demo"}},"type":"t","ulid":"%s"}', "got 'other'"),
        (b'{"payload":{},"type":"t","ulid":"%s"}', "got None"),
        (
            b'{"ns":"demo","payload":{"ulid":"%s"},"type":"t","ulid":"00000000000000000000000000"}',
            "got '00000000000000000000000000'",
        ),
        (b'{"ns":"demo","payload":{},"type":"t","zz":"%s"}', "the stored envelope has no ULID"),
        (b'{"ns":"demo",oops,"ulid":"%s"}', "the stored envelope is no JSON"),
        (b'{"ns":"demo","ns":"other","ulid":"%s"}', "the stored envelope is no JSON"),
    ],
)
def test_an_envelope_of_another_log_or_ulid_is_not_handed_out(log, raw, reason):
    receipts = fill(log, 2)
    ulid = log.new_ulid(receipts[-1].ulid)
    oid = _dressed(log, "demo", SHIPLOG, raw % ulid.encode(), ulid, receipts[-1].commit)
    with pytest.raises(Unverified, match=f"commit {oid}.*{reason}"):
        print([event.envelope for event in log.read("demo", receipts[0].ulid).events])
    # What stands before it is handed out.
    assert [event.payload["n"] for event in log.read("demo", None, 2).events] == [0, 1]


def test_an_envelope_that_no_schema_allows_has_no_type_to_hand_out(log):
    receipts = fill(log, 1)
    ulid = log.new_ulid(receipts[-1].ulid)
    raw = b'{"ns":"demo","payload":[],"ulid":"%s"}' % ulid.encode()
    oid = _dressed(log, "demo", SHIPLOG, raw, ulid, receipts[-1].commit)
    event = log.read("demo").events[-1]
    for act in (lambda: event.type, lambda: event.payload):
        with pytest.raises(Unverified, match=oid):
            act()


def test_a_message_may_name_another_namespace_than_its_topic(log):
    log.append("jobs/a", {"ns": "elsewhere", "type": "t", "payload": {}}, layout=MESSAGES)
    assert log.read("jobs/a", layout=MESSAGES).events[0].envelope["ns"] == "elsewhere"


def test_messages_hand_out_the_bytes_their_content_id_names(log):
    receipts = fill(log, 1, "jobs", MESSAGES)
    ulid = log.new_ulid(receipts[-1].ulid)
    canonical = b'{"ns":"jobs","payload":{},"type":"t","ulid":"%s"}' % ulid.encode()
    stored = canonical.replace(b",", b", ")
    oid = _dressed(log, "jobs", MESSAGES, stored, ulid, receipts[-1].commit)
    old = parse_commit(log.store.get(oid)[1])
    message = old.message.replace(content_id(stored).encode(), content_id(canonical).encode())
    body = encode_commit(Commit(old.tree, old.parents, old.author, old.committer, message))
    new = object_id("commit", body)
    with log.store.put([(new, "commit", body)]):
        log.store.move_head(MESSAGES.head_ref("jobs"), oid, new)
    row = messages_answer(log.read("jobs", layout=MESSAGES), "jobs", None)["messages"][-1]
    assert base64.b64decode(row["canonical_json"]) == canonical
    assert row["content_id"] == content_id(canonical)


def test_no_event_is_skipped_where_ulids_do_not_rise(log):
    """Other software may write such a log; its order is the chain, and `verify` says what is wrong with it."""
    (first,) = fill(log, 1)
    head, ulids = first.commit, [first.ulid]
    for number in (9, 5, 7, 1, 8, 2):
        ulid = Ulid(f"01HF4Y9Q1SM8Q7K9DK2R4V5CX{number}")
        raw = b'{"ns":"demo","payload":{"n":%d},"type":"t","ulid":"%s"}' % (number, ulid.encode())
        head = _dressed(log, "demo", SHIPLOG, raw, ulid, head)
        ulids.append(ulid)
    for at, since in enumerate(ulids):
        behind = ulids[at + 1 :]
        assert [event.ulid for event in log.events("demo", since)] == behind
        assert [event.ulid for event in log.tail(["demo"], {"demo": since})] == behind
        assert [event.ulid for event in log.read("demo", since).events] == behind
    assert "order" in failed(verify_gitlogs(log.store))


def test_a_shallow_clone_is_called_so_and_what_lies_below_is_not_judged(log):
    receipts = fill(log, 5)
    set_anchor(log, "demo", label="v1", signer=Signer("ada", KEY))
    fill(log, 3)
    sign_log(log, "demo", KEY)
    git_dir = log.store.place.git_dir
    shallow = git_dir.with_name("shallow.git")
    subprocess.run(["git", "init", "-q", "--bare", shallow], check=True)
    subprocess.run(
        ["git", "fetch", "-q", "--depth", "2", git_dir.as_uri(), "refs/gatos/*:refs/gatos/*"],
        cwd=shallow,
        check=True,
    )
    report = verify_gitlogs(GitStore(find_repository(shallow)), keys=[KEY.public])
    assert set(failed(report)) == {"chain"}
    assert "git fetch --unshallow" in failed(report)["chain"]
    unchecked = {step.name for step in report.steps if step.status == "not_checked"}
    assert {"anchors", "signed_heads", "order"} <= unchecked
    assert receipts[0].commit not in failed(report)["chain"]


def test_deep_looks_into_packs_that_are_borrowed(log):
    fill(log, 2)
    git_dir = log.store.place.git_dir
    borrower = git_dir.with_name("borrower.git")
    subprocess.run(["git", "clone", "-q", "--mirror", "--shared", git_dir, borrower], check=True)
    assert verify_gitlogs(GitStore(find_repository(borrower)), deep=True).ok
    pack = next(log.store.pack_folder.glob("*.pack"))
    pack.chmod(0o644)
    pack.write_bytes(pack.read_bytes()[:-1] + b"x")  # its checksum, which no object needs
    assert set(failed(verify_gitlogs(GitStore(find_repository(borrower)), deep=True))) == {"packs"}


def test_a_repository_without_logs_is_not_called_verified(log):
    """Whoever names the wrong repository should not read `ok` and nothing else."""
    steps = {step.name: step for step in verify_gitlogs(log.store).steps}
    assert steps["logs"].status == "not_checked"
    Journal(log.store).add()
    steps = {step.name: step for step in verify_gitlogs(log.store).steps}
    assert steps["journals"].detail.startswith("1 journals")
    fill(log, 1)
    assert "logs" not in {step.name for step in verify_gitlogs(log.store).steps}


def _message_tree(log, files):
    """Put a message on the head whose attachments are these, whatever its envelope says."""
    ref = MESSAGES.head_ref("jobs")
    head = log.store.head(ref)
    old = parse_commit(log.store.get(head)[1])
    (top,) = parse_tree(log.store.get(old.tree)[1])
    inner = [e for e in parse_tree(log.store.get(top.oid)[1]) if e.name == "envelope.json"]
    objects = [(object_id("blob", raw), "blob", raw) for raw in files.values()]
    listed = encode_tree([TreeEntry(b"100644", name, object_id("blob", raw)) for name, raw in files.items()])
    message = encode_tree([TreeEntry(b"40000", "attachments", object_id("tree", listed)), *inner])
    tree = encode_tree([TreeEntry(b"40000", "message", object_id("tree", message))])
    objects += [(object_id("tree", raw), "tree", raw) for raw in (listed, message, tree)]
    body = encode_commit(Commit(object_id("tree", tree), old.parents, old.author, old.committer, old.message))
    objects.append((object_id("commit", body), "commit", body))
    with log.store.put(objects):
        log.store.move_head(ref, head, object_id("commit", body))


def test_an_attachment_its_envelope_does_not_name_is_flagged(log):
    named = {"type": "t", "payload": {}, "refs": {"photo": content_id(b"a photo")}}
    log.append("jobs", named, attachments={"photo.jpg": b"a photo"}, layout=MESSAGES)
    assert verify_log(log.store, MESSAGES, "jobs").ok
    _message_tree(log, {"photo.jpg": b"a photo"})
    assert verify_log(log.store, MESSAGES, "jobs").ok
    _message_tree(log, {"photo.jpg": b"another photo"})
    assert "photo.jpg" in failed(verify_log(log.store, MESSAGES, "jobs"))["attachments"]


# --- trees, numbers, notes ---


def with_tree(log, change, layout=SHIPLOG):
    """The only event of a log under a tree that no honest writer makes; `change` edits the entries of every level."""
    (receipt,) = fill(log, 1, "demo", layout)
    old = parse_commit(log.store.get(receipt.commit)[1])
    path = layout.path("demo", receipt.ulid)
    objects: list[tuple[str, str, bytes]] = [(object_id("blob", b"stray"), "blob", b"stray")]
    levels = [old.tree]
    for name in path[:-1]:
        inside = parse_tree(log.store.get(levels[-1])[1])
        levels.append(next(entry.oid for entry in inside if entry.name == name))
    below: TreeEntry | None = None
    for depth in range(len(path) - 1, -1, -1):
        entries = [below] if below is not None else list(parse_tree(log.store.get(levels[depth])[1]))
        raw = encode_tree(change(depth, entries))
        objects.append((object_id("tree", raw), "tree", raw))
        below = TreeEntry(b"40000", path[depth - 1], object_id("tree", raw))
    body = encode_commit(Commit(object_id("tree", raw), old.parents, old.author, old.committer, old.message))
    oid = object_id("commit", body)
    with log.store.put([*objects, (oid, "commit", body)]):
        log.store.move_head(layout.head_ref("demo"), receipt.commit, oid)
    return oid


STRAY = TreeEntry(b"100644", "stray.txt", object_id("blob", b"stray"))


@pytest.mark.parametrize("depth", range(4))
def test_a_stray_file_in_an_s0_tree_is_flagged(log, depth):
    oid = with_tree(log, lambda at, entries: [*entries, STRAY] if at == depth else entries)
    found = failed(verify_gitlogs(log.store, "demo"))
    assert set(found) == {"seen_head", "layout"}
    assert oid in found["layout"] and "stray.txt" in found["layout"]


@pytest.mark.parametrize("layout", [SHIPLOG, MESSAGES], ids=lambda layout: layout.name)
@pytest.mark.parametrize("mode", [b"120000", b"100755"])
def test_an_envelope_that_is_no_plain_file_is_flagged(log, layout, mode):
    last = len(layout.path("demo", "")) - 1
    oid = with_tree(
        log, lambda at, es: [TreeEntry(mode, e.name, e.oid) for e in es] if at == last else es, layout
    )
    assert oid in failed(verify_gitlogs(log.store, "demo"))["layout"]


@pytest.mark.parametrize("first", [b"", b'"seq":5,'])
def test_seq_of_a_foreign_log_starts_at_zero(log, first):
    (receipt,) = fill(log, 1)
    ref = SHIPLOG.head_ref("demo")
    raw = log.store.get(receipt.commit)[1]
    root = raw.replace(b'"seq":0,', first)
    oid = object_id("commit", root)
    with log.store.put([(oid, "commit", root)]):
        log.store.move_head(ref, receipt.commit, oid)
    log.lines.accept(SHIPLOG, "demo", "test")
    if not first:
        assert "order" not in failed(verify_gitlogs(log.store))
        fill(log, 1)  # its number is its height: 1, behind an entry without one
    assert "seq" in failed(verify_gitlogs(log.store))["order"]


def note_step(log, **more):
    steps = verify_gitlogs(log.store, **more).steps
    return next(((step.status, step.detail) for step in steps if step.name == "notes"), None)


def test_notes_are_held_against_their_events(log):
    assert note_step(log) is None
    receipt = log.append("demo", {"type": "t", "payload": {}, "refs": {"log": content_id(b"output")}})
    assert note_step(log)[0] == "not_checked"
    first = add_note(log.store, LOG_NOTES, receipt.commit, b"output", log.author(0))
    assert note_step(log) == ("passed", "1 notes are those their events name")
    (plain,) = fill(log, 1)
    second = add_note(log.store, LOG_NOTES, plain.commit, b"about something else", log.author(0))
    assert note_step(log)[0] == "not_checked" and "1 are on events that name none" in note_step(log)[1]
    log.store.drop_head(LOG_NOTES, second)
    add_note(log.store, LOG_NOTES, receipt.commit, b"another story", log.author(0))
    status, detail = note_step(log)
    assert status == "failed" and receipt.commit in detail
    assert first


@pytest.mark.parametrize("raw", [b"torn", b"d" * 40 + b"\n"])
def test_notes_that_cannot_be_read_are_named(log, raw):
    log.append("demo", {"type": "t", "payload": {}, "refs": {"log": content_id(b"output")}})
    path = log.store.place.git_dir / LOG_NOTES
    path.parent.mkdir(parents=True)
    path.write_bytes(raw)
    assert note_step(log)[0] == "failed" and LOG_NOTES in note_step(log)[1]


def test_two_notes_on_one_event_are_judged_as_read(log):
    """git looks at the folder nearest to the top, and so do the check and `shiplog show`."""
    receipt = log.append("demo", {"type": "t", "payload": {}, "refs": {"log": content_id(b"output")}})
    entries = []
    objects = []
    for name, raw in ((receipt.commit, b"another story"), (receipt.commit[2:], b"output")):
        blob = object_id("blob", raw)
        objects.append((blob, "blob", raw))
        entries.append(TreeEntry(b"100644", name, blob))
    inner = encode_tree([entries[1]])
    outer = encode_tree([entries[0], TreeEntry(b"40000", receipt.commit[:2], object_id("tree", inner))])
    objects += [(object_id("tree", inner), "tree", inner), (object_id("tree", outer), "tree", outer)]
    body = encode_commit(Commit(object_id("tree", outer), (), log.author(0), log.author(0), b"x"))
    objects.append((object_id("commit", body), "commit", body))
    with log.store.put(objects):
        log.store.move_head(LOG_NOTES, None, object_id("commit", body))
    assert read_note(log.store, LOG_NOTES, receipt.commit) == b"another story"
    assert note_step(log)[0] == "failed"
