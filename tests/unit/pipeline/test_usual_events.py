"""Events proven in bulk are those that the engine's own check passes, with the same rows."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.world import World
from tests.tools import needs_that

from ropewalk import native
from ropewalk.disk.durable import Disk
from ropewalk.disk.repository_paths import RepositoryPaths, find_repository
from ropewalk.errors import NotFound, RopewalkError
from ropewalk.gitlog.core.commit import Headers, parse_message
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import ENVELOPE_SCHEMA_ID, SHIPLOG, TRAILER_SCHEMA_ID
from ropewalk.gitlog.core.objects import (
    FILE,
    Kind,
    Oid,
    TreeEntry,
    build_path_trees,
    encode_tree,
    object_id,
    parse_commit,
)
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.store.object_store import GitStore
from ropewalk.gitlog.store.rollup import roll_up
from ropewalk.gitlog.verify.event_check import check_next
from ropewalk.gitlog.verify.usual_events import UsualEvent, prove_usual
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import ContentId, content_id
from ropewalk.kernel.ulid import Ulid
from ropewalk.pipeline import to_arrow
from ropewalk.pipeline.source.git_logs import TREES, GitLogs
from ropewalk.pipeline.source.logs import between
from ropewalk.pipeline.source.offsets import LogName, Point
from ropewalk.pipeline.source.rows import entry_bytes, gitlog_row, usual_row

LAST, NAME = Ulid("01HF4Y9Q1SM8Q7K9DK2R4V5CXC"), Ulid("01HF4Y9Q1SM8Q7K9DK2R4V5CXD")
BELOW = "ab" * 20
WHEN = {"start_ts": "2024-11-01T12:00:00Z", "end_ts": "2024-11-01T12:01:00Z", "dur_s": 60}
POINTER = {"kind": "opaque_pointer"}


@dataclass(frozen=True)
class Event:
    """The parts of one event, each of which a case may change; what depends on them is made from them."""

    document: dict[str, Any]
    trailer: dict[str, Any]
    raw: bytes | None = None
    said: bytes | None = None
    name: Ulid = NAME
    parents: tuple[str, ...] = (BELOW,)
    person: bytes = b"Ada <ada@example.org> 1730462400 +0000"
    namespace: str = "prod"
    schemas: tuple[str, str] = (ENVELOPE_SCHEMA_ID, TRAILER_SCHEMA_ID)
    promised: str | None = None
    also: tuple[TreeEntry, ...] = ()
    extra: bytes = b""
    end: bytes = b"\n"

    def made(self) -> tuple[dict[str, tuple[Any, bytes]], Oid, Oid]:
        """All objects, the blob and the commit."""
        raw = jcs.encode(self.document) if self.raw is None else self.raw
        said = jcs.encode(self.trailer) if self.said is None else self.said
        tree, objects = build_path_trees(("gatos", "shiplog", "prod", f"{self.name}.json"), raw)
        found: dict[str, tuple[Any, bytes]] = {oid: (kind, each) for oid, kind, each in objects}
        if self.also:
            root = encode_tree([TreeEntry(b"40000", "gatos", Oid(objects[-2][0])), *self.also])
            tree = object_id("tree", root)
            found[tree] = ("tree", root)
        message = (
            f"Event-Id: ulid:{self.name}\nContent-Id: {self.promised or content_id(raw)}\nNamespace: {self.namespace}\n"
            f"Envelope-Schema: {self.schemas[0]}\nTrailer-Schema: {self.schemas[1]}\n---\n"
        ).encode()
        parents = b"".join(b"parent %s\n" % each.encode() for each in self.parents)
        head = b"tree %s\n%sauthor %s\ncommitter %s\n%s\n" % (
            tree.encode(), parents, self.person, self.person, self.extra
        )  # fmt: skip
        commit = head + message + said + self.end
        oid = object_id("commit", commit)
        found[oid] = ("commit", commit)
        return found, Oid(objects[0][0]), oid


EVENT = Event(
    {"type": "t", "ns": "prod", "ulid": NAME, "payload": {"n": 1, "é": 1.5, "list": [None, True]}},
    {"version": 1, "env": "prod", "status": "success", "when": WHEN, "seq": 8, "journal_parent": BELOW,
     "what": {"service": "web"}},
)  # fmt: skip


def _with(**changed: Any) -> Event:
    return replace(EVENT, **changed)


def _document(**changed: Any) -> Event:
    return _with(document={**EVENT.document, **changed})


def _trailer(**changed: Any) -> Event:
    return _with(trailer={k: v for k, v in {**EVENT.trailer, **changed}.items() if v is not None})


WRONG: dict[str, Event] = {
    "content id": _with(promised="blake3:" + "0" * 64),
    "other parent": _with(parents=("cd" * 20,)),
    "other parent and journal parent": _with(
        parents=("cd" * 20,), trailer={**EVENT.trailer, "journal_parent": "cd" * 20}
    ),
    "no parent": _with(parents=()),
    "two parents": _with(parents=(BELOW, "cd" * 20)),
    "journal parent": _trailer(journal_parent="cd" * 20),
    "seq too high": _trailer(seq=9),
    "seq again": _trailer(seq=7),
    "ulid again": _with(name=LAST, document={**EVENT.document, "ulid": LAST}),
    "ulid of another": _document(ulid=LAST),
    "namespace of another": _document(ns="dev"),
    "namespace header": _with(namespace="dev"),
    "envelope schema id": _with(schemas=(TRAILER_SCHEMA_ID, TRAILER_SCHEMA_ID)),
    "trailer schema id": _with(schemas=(ENVELOPE_SCHEMA_ID, ENVELOPE_SCHEMA_ID)),
    "envelope schema": _document(extra=1),
    "payload is text": _document(payload="x"),
    "spaced envelope": _with(raw=jcs.encode(EVENT.document).replace(b":", b": ", 1)),
    "key twice": _with(raw=jcs.encode(EVENT.document).replace(b'"payload"', b'"ns":"prod","payload"')),
    "pointer in payload": _document(payload={"p": POINTER}),
    "status": _trailer(status="great"),
    "no version": _trailer(version=None),
    "repo_head inside": _trailer(what={"repo_head": "x"}),
    "pointer in trailer": _trailer(what={"p": POINTER}),
    "member twice": _with(said=jcs.encode(EVENT.trailer).replace(b',"version"', b',"version":1,"version"')),
    "trailer no utf-8": _with(said=jcs.encode(EVENT.trailer).replace(b"web", b"w\xff")),
    "trailer cut": _with(said=jcs.encode(EVENT.trailer)[:-9] + b"}"),
    "stray file": _with(also=(TreeEntry(FILE, "stray", Oid("ef" * 20)),)),
    "person": _with(person=b"Ada 1730462400 +0000"),
    "tree header": _with(extra=b"tree %s\n" % (b"0" * 40)),
}
FINE: dict[str, Event] = {
    "usual": EVENT,
    "no env": _trailer(env=None),
    "anchored": _trailer(previous_anchor="cd" * 20, repo_head="ef" * 20),
    "refs": _document(refs={"log": "blake3:" + "0" * 64}),
    "type with quotes": _document(type='a "b" é'),
    "latin-1 person": _with(person=b"Zo\xeb <z@example.org> 1730462400 +0000"),
    "gpg signed": _with(extra=b"gpgsig x\n"),
    "spaced trailer": _with(said=jcs.encode(EVENT.trailer).replace(b'":', b'": ')),
    "no newline": _with(end=b""),
}


class Objects:
    """A repository that only holds objects."""

    def __init__(self, objects: dict[str, tuple[Any, bytes]]) -> None:
        self.objects = objects

    def get(self, oid: str) -> tuple[Any, bytes]:
        return self.objects[oid]


def judged(event: Event) -> tuple[UsualEvent | None, bool]:
    """What is proven in bulk, and whether the engine's check passes; where both do, documents and rows are equal."""
    objects, blob, oid = event.made()
    last = Headers(LAST, ContentId("blake3:" + "1" * 64), trailer={"seq": 7})
    usual = prove_usual(SHIPLOG, "prod", blob, objects[blob], objects[oid], BELOW, last)
    try:
        checked = check_next(Objects(objects), SHIPLOG, "prod", oid, BELOW, last, blob)  # type: ignore[arg-type]
    except RopewalkError:
        return usual, False
    if usual is not None and checked.fault is None:
        assert checked.document == usual.document and checked.headers is not None
        mine = usual_row("prod", 3, oid, BELOW, usual)
        place = "prod", 3, oid, checked.headers.content_id, checked.commit.parents
        its = gitlog_row(*place, usual.document, checked.commit, checked.headers.trailer, "passed")
        assert mine._replace(entry=None) == its._replace(entry=None)
        assert entry_bytes(mine.entry) == entry_bytes(its.entry)
    return usual, checked.fault is None


@pytest.mark.parametrize("name", WRONG)
def test_wrong_event_is_never_proven_in_bulk(name: str):
    assert judged(WRONG[name]) == (None, False)


@pytest.mark.parametrize("name", FINE)
def test_fine_event_passes_both_ways(name: str):
    usual, passed = judged(FINE[name])
    assert passed
    assert (usual is not None) == (name not in ("gpg signed", "spaced trailer", "no newline"))


def test_changed_bytes_are_judged_alike():
    chance, proven = random.Random(5), 0
    raws = {"raw": jcs.encode(EVENT.document), "said": jcs.encode(EVENT.trailer), "person": EVENT.person}
    for _ in range(1_500):
        part = chance.choice(list(raws))
        changed = bytearray(raws[part])
        for _ in range(chance.randrange(1, 3)):
            changed[chance.randrange(len(changed))] = chance.choice(b'"\\{}[]:,. 0123456789eE-azAZ\xff\n<>')
        usual, passed = judged(_with(**{part: bytes(changed)}))
        assert passed or usual is None, (part, bytes(changed))
        proven += usual is not None
    assert proven > 100


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World.make(tmp_path_factory.mktemp("usual") / "log.git")
    made.git("prod", 40)
    made.messages("jobs", 3)
    with open_repository(made.path, now_ms=made.now_ms, entropy=made.entropy) as log:
        documents = [
            {"type": 'x "é"', "payload": {"f": 1.5}},
            {"type": "t", "payload": {}, "refs": {"a": "blake3:" + "0" * 64}},
        ]
        log.append_all("prod", [Draft(each) for each in documents])
        log.append("prod", {"type": "one", "payload": {"deep": [[{"a": None}]]}})
    return made


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    import ropewalk.pipeline.source.git_logs as module

    seen: list[object] = []
    real: Callable[..., object] = prove_usual

    def counting(*arguments: Any) -> Any:
        seen.append(real(*arguments))
        return seen[-1]

    monkeypatch.setattr(module, "prove_usual", counting)
    return seen


@needs_that(native.is_here(), "the compiled loops are not built")
def test_rows_are_the_same_without_loops(world: World, monkeypatch: pytest.MonkeyPatch):
    proven = _counted(monkeypatch)
    fast = to_arrow(
        world.path, columns="entry_id,payload_json,entry,parents,time,author,type,verdict,content_id"
    )
    assert sum(each is not None for each in proven) == 42
    with native.switched_off():
        slow = to_arrow(world.path, columns=",".join(fast.column_names))
    assert fast.equals(slow) and fast.num_rows == 46


@needs_that(native.is_here(), "the compiled loops are not built")
@pytest.mark.parametrize("rolled_up", [False, True])
def test_bulk_reading_never_differs_from_get(world: World, tmp_path: Path, rolled_up: bool):
    """Every object, stored or compressed; and after any one flipped byte of a pack or an index."""
    copy = tmp_path / "log.git"
    shutil.copytree(world.path, copy)
    if rolled_up:
        assert roll_up(copy / "objects" / "pack", tmp_path / "locks", Disk(), at_most=1)
    logs = GitLogs(find_repository(copy))
    records = logs.line("prod").records(0, 43)
    ids = [each[at : at + 20] for each in records for at in (36, 16)]
    found = logs.store.get_many(b"".join(ids))
    assert found == [logs.store.get(each.hex()) for each in ids]
    assert logs.store.get_many(b"\x00" * 20) == [None]
    chance = random.Random(3)
    files = sorted((copy / "objects" / "pack").glob("pack-*"))
    for _ in range(60):
        path = chance.choice(files)
        kept = path.read_bytes()
        raw = bytearray(kept)
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        path.chmod(0o644)
        path.write_bytes(raw)
        # An index that is refused as a whole is refused by `get` too.
        with contextlib.suppress(RopewalkError):
            mine = GitStore(find_repository(copy)).get_many(b"".join(ids))
            assert all(
                each is None or object_id(*each) == oid.hex() for oid, each in zip(ids, mine, strict=True)
            )
        path.write_bytes(kept)


def test_check_in_bulk_reads_every_tree(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A tree that is damaged, or missing from every pack, is a fault although hashing proves the envelope's place."""
    logs = GitLogs(world.place)
    name = LogName("gitlog", "prod")
    (part,) = between(logs, name, Point(), logs.extent("prod"))
    proven = _counted(monkeypatch)
    assert [each.detail for each in logs.check(part, deep=True)] == [None]
    assert sum(each is not None for each in proven) == (42 if native.is_here() else 0)
    real = logs.store.get
    tree = Oid(logs.line("prod").span(20, 21)[0].commit)
    for _ in range(TREES):
        kind, raw = real(tree)
        tree = parse_commit(raw).tree if kind == "commit" else Oid(raw[-20:].hex())
        store = _Without(world.place, tree)
        damaged = GitLogs(world.place)
        damaged.store = store
        faults = [each for each in damaged.check(part, deep=True) if each.detail is not None]
        assert len(faults) == 1 and faults[0].end == 21


class _Without(GitStore):
    """A store that lost one object."""

    def __init__(self, place: RepositoryPaths, lost: str) -> None:
        super().__init__(place)
        self.lost = lost

    def get(self, oid: str) -> tuple[Kind, bytes]:
        if oid == self.lost:
            raise NotFound(f"object {oid} is not in the repository", oid=oid)
        return super().get(oid)

    def get_many(self, ids: bytes) -> list[tuple[Kind, bytes] | None]:
        found = super().get_many(ids)
        return [
            None if ids[20 * n : 20 * n + 20].hex() == self.lost else each for n, each in enumerate(found)
        ]


def test_odd_author_names_become_text():
    event = judged(FINE["latin-1 person"])[0]
    assert event is not None
    row = usual_row("prod", 0, "00" * 20, BELOW, event)
    assert row.author == "Zo\ufffd <z@example.org>"
    assert "Zo\ufffd".encode() in (entry_bytes(row.entry) or b"")
    objects, _, oid = FINE["latin-1 person"].made()
    commit = parse_commit(objects[oid][1])
    assert parse_message(commit.message).ulid == NAME
