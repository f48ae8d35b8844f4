"""Properties: objects both ways, deltas against real git, and readers that agree with a plain list."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ropewalk.disk.repository_paths import make_repository
from ropewalk.gitlog.core.commit import default_trailer, event_commit, make_trailer
from ropewalk.gitlog.core.envelope import Draft, EncodedEnvelope
from ropewalk.gitlog.core.layout import MESSAGES, NAMESPACE, SHIPLOG
from ropewalk.gitlog.core.objects import (
    FILE,
    FOLDER,
    Commit,
    GitSignature,
    Oid,
    TreeEntry,
    build_path_trees,
    encode_commit,
    encode_tree,
    object_id,
    parse_commit,
    parse_tree,
)
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.store.rollup import roll_up
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import content_id
from ropewalk.kernel.ulid import Ulid
from ropewalk.repository_check import verify_gitlogs

names = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="<>/"), min_size=1, max_size=20
)
oids = st.binary(min_size=20, max_size=20).map(lambda raw: Oid(raw.hex()))
people = st.builds(
    GitSignature,
    names.map(str.strip).filter(bool),
    names.map(str.strip).filter(bool),
    st.integers(0, 2**40),
    st.sampled_from(["+0000", "-0730", "+1400"]),
)


@settings(deadline=None, max_examples=100)
@given(
    oids,
    st.lists(oids, max_size=3),
    people,
    people,
    st.binary(max_size=200),
    st.lists(st.tuples(st.just("gpgsig"), st.just(b"-----BEGIN\n\nabc\n-----END")), max_size=1),
)
def test_commits_round_trip(tree, parents, author, committer, message, extra):
    commit = Commit(tree, tuple(parents), author, committer, message, tuple(extra))
    assert parse_commit(encode_commit(commit)) == commit


@settings(deadline=None, max_examples=100)
@given(
    st.dictionaries(names.filter(lambda n: n not in (".", "..")), st.tuples(st.booleans(), oids), max_size=8)
)
def test_trees_round_trip(entries):
    listed = [
        TreeEntry(b"40000" if folder else b"100644", name, oid) for name, (folder, oid) in entries.items()
    ]
    assert sorted(parse_tree(encode_tree(listed))) == sorted(listed)


acts = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 1), st.integers(1, 5)),
    st.tuples(st.just("read"), st.integers(0, 1), st.integers(1, 7)),
    st.tuples(st.just("drop index"), st.just(0), st.just(0)),
    st.tuples(st.just("roll up"), st.just(0), st.just(0)),
    st.tuples(st.just("reopen"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("consume"), st.integers(0, 1), st.integers(1, 4)),
)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(acts, min_size=3, max_size=18), st.sampled_from([SHIPLOG, MESSAGES]))
def test_two_programs_on_one_repository_agree_with_a_plain_list(steps, layout):
    """Whatever two openers of one repository do in turn, each reads exactly what was appended, in order."""
    with tempfile.TemporaryDirectory() as folder:
        place = make_repository(Path(folder) / "log.git")[0]
        logs = [open_repository(place.git_dir) for _ in range(2)]
        model: list[int] = []
        handled: list[int] = []
        for act, who, count in steps:
            log = logs[who]
            if act == "append":
                fresh = list(range(len(model), len(model) + count))
                log.append_all(
                    "demo", [Draft({"type": "t", "payload": {"n": n}}) for n in fresh], layout=layout
                )
                model += fresh
            elif act == "read" and model:
                seen = [event.payload["n"] for event in log.events("demo", layout=layout)]
                assert seen == model
                page = log.read("demo", None, count, layout=layout)
                assert [event.payload["n"] for event in page.events] == model[:count]
            elif act == "drop index":
                for log in logs:
                    log.lines.index.forget(layout.head_ref("demo"))
            elif act == "roll up":
                roll_up(log.store.pack_folder, place.home / "locks", log.store.disk, at_most=1)
            elif act == "reopen":
                log.close()
                logs[who] = open_repository(place.git_dir)
            elif act == "consume" and model:
                with log.consume("g", "demo", count, layout=layout) as events:
                    handled += [event.payload["n"] for event in events]
                assert handled == model[: len(handled)]
        for log in logs:
            log.close()
        if model:
            assert verify_gitlogs(logs[0].store, deep=True).entries == len(model)
        shutil.rmtree(place.home / "index", ignore_errors=True)


@settings(deadline=None, max_examples=100)
@given(
    st.from_regex(NAMESPACE, fullmatch=True),
    st.integers(0, 2**42),
    st.integers(0, 2**53 - 1),
    oids,
    st.none() | oids,
)
def test_the_default_trailer_written_from_parts_is_the_one_made_whole(topic, now_ms, seq, parent, anchor):
    whole = make_trailer(None, topic=topic, now_ms=now_ms, seq=seq, parent=parent, previous_anchor=anchor)
    assert default_trailer(topic, now_ms, seq, parent, anchor) == jcs.encode(whole)


@settings(deadline=None, max_examples=200)
@given(
    people | st.just(GitSignature("100 %s %%", "a%d@b", 0)),
    people,
    st.none() | oids,
    st.none() | st.binary(max_size=60),
)
def test_framed_commit_equals_encoded_commit(author, committer, parent, trailer):
    ulid, content, tree = Ulid("01HF4Y9Q1SM8Q7K9DK2R4V5CXD"), content_id(b"{}"), Oid("1" * 40)
    message = f"Event-Id: ulid:{ulid}\nContent-Id: {content}\n".encode()
    if trailer is not None:
        schemas = "https://gatos.dev/schemas/v1/shiplog/"
        message += (
            f"Namespace: prod\nEnvelope-Schema: {schemas}event_envelope.schema.json\n"
            f"Trailer-Schema: {schemas}deployment_trailer.schema.json\n---\n"
        ).encode()
        message += trailer + b"\n"
    whole = encode_commit(Commit(tree, () if parent is None else (parent,), author, committer, message))
    sealed = EncodedEnvelope(ulid, b"{}", content)
    assert event_commit("prod", sealed, tree, parent, author, committer, trailer) == whole


@settings(deadline=None, max_examples=100)
@given(st.lists(names, min_size=1, max_size=5), st.binary(max_size=200))
def test_a_planted_path_is_the_tree_of_its_entries(path, raw):
    root, objects = build_path_trees(tuple(path), raw)
    (at, _, _), *trees = objects
    assert at == object_id("blob", raw)
    for mode, name, (oid, kind, tree) in zip([FILE, *[FOLDER] * 4], reversed(path), trees, strict=False):
        assert (kind, tree) == ("tree", encode_tree([TreeEntry(mode, name, Oid(at))]))
        assert oid == object_id("tree", tree)
        at = oid
    assert root == at
