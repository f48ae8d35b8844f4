"""Checks that are the only one to catch what they catch: each test here fails when its check is taken away."""

from __future__ import annotations

import pytest

from ropewalk.errors import (
    BrokenLink,
    Conflict,
    DigestMismatch,
    Invalid,
    InvalidEnvelope,
    InvalidName,
    NotFound,
    TooLarge,
    Unavailable,
)
from ropewalk.gitlog.consumers.consumers import find_position
from ropewalk.gitlog.consumers.cursor import read_cursor
from ropewalk.gitlog.core.anchor import add_anchor, anchors, note_text
from ropewalk.gitlog.core.envelope import ENVELOPE_BYTES_MAX, Draft, parse_document
from ropewalk.gitlog.core.file_chain import add_files
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG, anchors_ref, consumer_ref, signed_heads_ref
from ropewalk.gitlog.core.log import describe
from ropewalk.gitlog.core.notes import add_note, read_note
from ropewalk.gitlog.core.objects import (
    FILE,
    FOLDER,
    Commit,
    TreeEntry,
    encode_commit,
    encode_tree,
    object_id,
    parse_commit,
    parse_tree,
)
from ropewalk.gitlog.privacy.pointer import context_of, nonce_of, open_pointer, read_pointer
from ropewalk.gitlog.privacy.rules import RULES_MAX, parse_policy
from ropewalk.gitlog.repository.signing import set_anchor
from ropewalk.gitlog.verify.log_check import verify_log
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import content_id
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.note.key import Signer
from ropewalk.kernel.note.note import sign_note
from ropewalk.kernel.seal import SealingKey
from ropewalk.repository_check import verify_gitlogs
from ropewalk.verification import verify as verify_repository

KEY = SigningKey.generate("ed25519", b"k" * 32)
REF = SHIPLOG.head_ref("demo")


def fill(log, count):
    return log.append_all("demo", [Draft({"type": "t", "payload": {"n": n}}) for n in range(count)])


def failed(log, **options):
    report = verify_gitlogs(log.store, "demo", **options)
    return {step.name: step.detail for step in report.steps if step.status == "failed"}


def put_commit(log, *parents, tree=None, objects=()):
    """A commit like the head's on other parents, or with another tree; the head moves to it."""
    head = log.store.head(REF)
    old = parse_commit(log.store.get(head)[1])
    body = encode_commit(Commit(tree or old.tree, parents, old.author, old.committer, old.message))
    oid = object_id("commit", body)
    with log.store.put([*objects, (oid, "commit", body)]):
        log.store.move_head(REF, head, oid)
    return oid


def test_a_merge_is_named_and_what_stands_above_it_is_still_judged(log):
    receipts = fill(log, 3)
    merge = put_commit(log, receipts[1].commit, receipts[0].commit)
    assert f"commit {merge} has 2 parents" in failed(log)["chain"]
    with pytest.raises(BrokenLink, match="2 parents; a line has one"):
        describe(log.store, SHIPLOG, "demo", merge)
    above = put_commit(log, merge)
    report = verify_log(log.store, SHIPLOG, "demo")
    found = {step.name: step.detail for step in report.steps if step.status == "failed"}
    assert report.entries == 1
    assert f"commit {merge} has 2 parents" in found["chain"]
    assert above in found["trailers"]  # its journal_parent is that of the commit it was copied from


def test_a_folder_where_the_envelope_belongs_is_named(log):
    receipts = fill(log, 1)
    assert SHIPLOG.path is not None
    path = SHIPLOG.path("demo", receipts[0].ulid)
    raw = b""
    tree = object_id("tree", raw)
    objects = [(tree, "tree", raw)]
    for name in reversed(path):
        raw = encode_tree([TreeEntry(FOLDER, name, tree)])
        tree = object_id("tree", raw)
        objects.append((tree, "tree", raw))
    oid = put_commit(log, tree=tree, objects=objects)
    found = failed(log)["envelopes"]
    assert oid in found
    assert "is a tree, not a blob" in found


def test_a_head_that_is_no_commit_is_named(log):
    fill(log, 1)
    raw = b"hello"
    with log.store.put([(object_id("blob", raw), "blob", raw)]):
        log.store.move_head(REF, log.store.head(REF), object_id("blob", raw))
    assert "is a blob, not a commit" in failed(log)["chain"]


@pytest.mark.parametrize("end", [1, 6, 7, 9, 11, 30])
def test_a_tree_that_ends_in_the_middle_of_an_entry_is_refused(end):
    whole = encode_tree([TreeEntry(FILE, "one", object_id("blob", b"1"))])
    assert len(whole) == 31
    with pytest.raises(BrokenLink, match="in the middle of an entry"):
        list(parse_tree(whole + whole[:end]))


@pytest.mark.parametrize("document", [b"[]", b"7", b"null", b'"anchor"', b"{}", b"{", b'{"a":1,"a":1}'])
def test_an_anchor_that_is_none_fails_its_step_and_no_other(log, document):
    fill(log, 1)
    add_files(log.store, anchors_ref(SHIPLOG, "demo"), {"anchor.json": document}, "x", log.author(0))
    assert set(failed(log, keys=[KEY.public])) == {"anchors"}


def test_a_commit_without_its_anchor_or_signed_head_fails_its_step(log):
    fill(log, 1)
    for ref in (anchors_ref(SHIPLOG, "demo"), signed_heads_ref(SHIPLOG, "demo")):
        add_files(log.store, ref, {"other": b"x"}, "x", log.author(0))
    found = failed(log, keys=[KEY.public])
    assert found["anchors"].endswith("has no anchor.json")
    assert found["signed_heads"].endswith("holds no signed head")
    assert set(found) == {"anchors", "signed_heads"}


def test_unsigned_head_is_never_checked(log):
    fill(log, 1)
    steps = {step.name: step for step in verify_gitlogs(log.store, "demo", keys=[KEY.public]).steps}
    for name in ("anchors", "signed_heads"):
        assert (steps[name].status, steps[name].detail) == ("not_checked", "there are none")


def test_a_good_signature_taken_from_another_anchor_is_refused(log):
    receipts = fill(log, 2)
    signer = Signer("ada", KEY)
    set_anchor(log, "demo", signer=signer)
    assert failed(log, keys=[KEY.public]) == {}
    (good,) = anchors(log.store, SHIPLOG, "demo")
    assert good.signature is not None
    document = {**good.document, "head": receipts[0].commit}
    files = {"anchor.json": jcs.encode(document), "anchor.note": good.signature}
    add_files(log.store, anchors_ref(SHIPLOG, "demo"), files, "x", log.author(0))
    assert "its signature is over something else" in failed(log, keys=[KEY.public])["anchors"]
    files["anchor.note"] = sign_note(note_text(good.raw, receipts[0].commit), signer)
    add_files(log.store, anchors_ref(SHIPLOG, "demo"), files, "x", log.author(0))
    assert "its signature is over something else" in failed(log, keys=[KEY.public])["anchors"]


def test_an_anchor_says_only_what_its_schema_allows(log):
    receipts = fill(log, 1)
    with pytest.raises(InvalidEnvelope):
        add_anchor(
            log.store,
            SHIPLOG,
            "demo",
            ulid=receipts[0].ulid,
            head="main",
            created_at="2026-01-01T00:00:00Z",
            author=log.author(0),
        )
    assert list(anchors(log.store, SHIPLOG, "demo")) == []


def test_a_commit_has_one_note_and_keeps_it(log):
    (receipt,) = fill(log, 1)
    add_note(log.store, "refs/notes/x", receipt.commit, b"first", log.author(0))
    with pytest.raises(Conflict, match="already has a note"):
        add_note(log.store, "refs/notes/x", receipt.commit, b"second", log.author(0))
    assert read_note(log.store, "refs/notes/x", receipt.commit) == b"first"


def test_only_messages_carry_attachments(log):
    refs = {"file": content_id(b"x")}
    draft = Draft({"type": "t", "payload": {}, "refs": refs}, attachments={"a.txt": b"x"})
    (outcome,) = log.append_all("demo", [draft])
    assert isinstance(outcome, InvalidEnvelope)
    assert "only messages carry attachments" in str(outcome)
    assert log.store.head(REF) is None


def test_a_document_that_no_envelope_could_hold_is_not_even_parsed():
    raw = b'{"type":"t","payload":"' + b"x" * (2 * ENVELOPE_BYTES_MAX)
    with pytest.raises(TooLarge):
        parse_document(raw)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "é", "x" * 300])
def test_a_group_has_a_name_git_can_keep(name):
    with pytest.raises(InvalidName, match="group"):
        consumer_ref(name, "demo")


def test_a_policy_of_too_many_rules_is_refused_whole():
    def policy(count):
        return jcs.encode(
            {"privacy": {"rules": [{"select": f"a{n}", "action": "redact"} for n in range(count)]}}
        )

    assert len(parse_policy(policy(RULES_MAX)).rules) == RULES_MAX
    with pytest.raises(Invalid, match="at most"):
        parse_policy(policy(RULES_MAX + 1))


def test_who_has_the_key_cannot_seal_other_bytes_under_a_digest():
    key, said, other = SealingKey(bytes(32)), content_id(b"said"), b"another"
    nonce = nonce_of(key, said, "ada", "v1")
    blob = nonce + key.seal(nonce, other, context_of(said, "ada", "v1"))
    pointer = read_pointer(
        {
            "kind": "opaque_pointer",
            "algo": "blake3",
            "digest": said,
            "ciphertext_digest": content_id(blob),
            "size": 1024,
            "location": "gatos://private/1",
            "capability": "gatos-key://v1/xchacha20-poly1305/k",
        }
    )
    with pytest.raises(DigestMismatch, match="the plaintext is not the one"):
        open_pointer(key, pointer, blob, actor="ada", policy="v1")


def test_a_checkpoint_that_cannot_be_read_now_is_not_called_broken(log, monkeypatch):
    fill(log, 1)
    with log.consume("readers", "demo") as events:
        assert len(list(events)) == 1

    def out_of_reach(_oid):
        raise Unavailable("the disk is away")

    monkeypatch.setattr(log.store, "get", out_of_reach)
    with pytest.raises(Unavailable, match="away"):
        read_cursor(log.store, "readers", "demo")


def test_a_place_in_a_log_is_named_by_its_own_ulids_and_commits_only(log):
    fill(log, 2)
    log.append("other", {"type": "t", "payload": {}})
    line = log.lines.line(SHIPLOG, "demo")
    (foreign,) = log.events("other")
    for name in (foreign.ulid, foreign.commit):
        with pytest.raises(NotFound, match="is not an event of demo"):
            find_position(log, line, name)


def test_a_log_that_is_nowhere_is_not_verified(log, place):
    fill(log, 1)
    assert verify_repository(place.git_dir, ns="demo").ok
    with pytest.raises(NotFound, match="no log 'demos'"):
        verify_repository(place.git_dir, ns="demos")


@pytest.mark.parametrize("layout", [SHIPLOG, MESSAGES])
def test_nothing_is_accepted_of_a_log_that_never_was(log, layout):
    with pytest.raises(NotFound):
        log.lines.accept(layout, "nowhere", "ada")
    assert log.lines.seen.get(layout.head_ref("nowhere")) is None


def test_nothing_is_appended_over_a_commit_that_is_stored_as_a_file(log):
    (receipt,) = fill(log, 1)
    old = parse_commit(log.store.get(receipt.commit)[1])
    inner = encode_commit(Commit(old.tree, (receipt.commit,), old.author, old.committer, old.message))
    blob = object_id("blob", inner)
    above = put_commit(log, blob, objects=[(blob, "blob", inner)])
    with pytest.raises(BrokenLink, match=f"{blob} is a blob, not a commit"):
        log.append("demo", {"type": "t", "payload": {}})
    assert log.store.head(REF) == above
