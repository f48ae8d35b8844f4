"""Verify a log from its bytes alone: nothing is believed that was not hashed here and now.

The walk goes down from the head in runs; each run is a span of the kernel, and spans join. Every step is named, and
what was not checked is said.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ropewalk.errors import BrokenLink, DigestMismatch, Invalid, RopewalkError
from ropewalk.gitlog.attachment import named_digests
from ropewalk.gitlog.commit import Headers, check_trailer, parse_message
from ropewalk.gitlog.envelope import read_envelope
from ropewalk.gitlog.layout import ENVELOPE_SCHEMA_ID, MESSAGES, TRAILER_SCHEMA_ID, Layout
from ropewalk.gitlog.log import Repo, find_blob, get_object
from ropewalk.gitlog.objects import FOLDER, Commit, Oid, TreeEntry, parse_commit, parse_tree
from ropewalk.gitlog.vouch import anchored_commits, check_anchors, check_signed_heads
from ropewalk.kernel import schema
from ropewalk.kernel.digest import ContentId, content_id
from ropewalk.kernel.entry import EMPTY, Entry, EntryId, Span, check_span, join
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.report import Report, Step

__all__ = ["verify_log"]

RUN = 512  # commits checked as one span


@dataclass(slots=True)
class _Walk:
    """What the walk has found. It goes downwards, so the last failure of a step is the first in the log."""

    failures: dict[str, str] = field(default_factory=dict)
    names: bytearray = field(default_factory=bytearray)  # digests of the content ids, newest first
    anchored: set[str] = field(default_factory=set)  # commits that anchors name and the walk has met
    above: Headers | None = None
    above_oid: str = ""

    def content_ids(self) -> Iterator[ContentId]:
        """The content ids, oldest first."""
        for at in range(len(self.names) - 32, -1, -32):
            yield ContentId("blake3:" + self.names[at : at + 32].hex())


def verify_log(
    repo: Repo,
    layout: Layout,
    topic: str,
    *,
    seen: str | None = None,
    keys: Sequence[PublicKey] = (),
    progress: Callable[[int], None] = lambda _count: None,
) -> Report:
    """Walk a log from its head to its root and check every step of it.

    `seen` is a commit that must lie in the log. `keys` are trusted to sign heads and anchors; without any, signatures
    are reported as not checked.
    """
    ref = layout.head_ref(topic)
    walk = _Walk()
    span = EMPTY
    met = seen is None
    wanted = anchored_commits(repo, layout, topic)
    chain = ""
    try:
        head = repo.head(ref)
        for run in _runs(repo, head):
            met = met or any(oid == seen for oid, _, _ in run)
            lower = check_span((_entry(oid, commit, raw) for oid, commit, raw in reversed(run)), _derive)
            span = join(lower, span)
            walk.anchored |= wanted.intersection(oid for oid, _, _ in run)
            for oid, commit, _ in run:
                _check_entry(repo, layout, topic, oid, commit, walk)
            progress(span.count)
    except RopewalkError as error:
        chain = error.detail
    _check_root(walk, complete=not chain)
    return Report.of(_steps(repo, layout, topic, walk, span, chain, met, seen, keys), entries=span.count)


def _runs(repo: Repo, head: str | None) -> Iterator[list[tuple[Oid, Commit, bytes]]]:
    """The commits from the head down, in runs, newest first."""
    run: list[tuple[Oid, Commit, bytes]] = []
    at = head
    while at is not None:
        try:
            raw = get_object(repo, Oid(at), "commit")
            commit = parse_commit(raw)
            if len(commit.parents) > 1:
                raise BrokenLink(f"commit {at} has {len(commit.parents)} parents; a line has one", entry=at)
        except (BrokenLink, DigestMismatch, Invalid) as error:
            if run:
                yield run  # what stands above the break can still be judged
            named = error.detail if at in error.detail else f"commit {at}: {error.detail}"
            raise BrokenLink(named, entry=at) from error
        run.append((Oid(at), commit, raw))
        at = commit.parents[0] if commit.parents else None
        if len(run) == RUN:
            yield run
            run = []
    if run:
        yield run


def _entry(oid: Oid, commit: Commit, raw: bytes) -> Entry:
    return Entry(
        EntryId(bytes.fromhex(oid)), tuple(EntryId(bytes.fromhex(parent)) for parent in commit.parents), raw
    )


def _derive(_parents: tuple[EntryId, ...], body: bytes) -> EntryId:
    """A commit's name covers its parents: they were read from these very bytes."""
    return EntryId(hashlib.sha1(b"commit %d\x00" % len(body) + body, usedforsecurity=False).digest())


def _check_entry(repo: Repo, layout: Layout, topic: str, oid: Oid, commit: Commit, walk: _Walk) -> None:
    def wrong(step: str, reason: str) -> None:
        walk.failures[step] = f"commit {oid}: {reason}"

    try:
        headers = parse_message(commit.message)
    except RopewalkError as error:
        wrong("headers", error.detail)
        walk.above = None
        return
    if layout.topic_is_ns and headers.namespace != topic:
        wrong("headers", f"Namespace is {headers.namespace!r}, the log is {topic!r}")
    if layout.has_trailer:
        for name, found, wanted in (
            ("Envelope-Schema", headers.envelope_schema, ENVELOPE_SCHEMA_ID),
            ("Trailer-Schema", headers.trailer_schema, TRAILER_SCHEMA_ID),
        ):
            if found != wanted:
                wrong("headers", f"{name} is {found!r}, not {wanted}")
    try:
        raw = get_object(repo, find_blob(repo, layout, topic, headers, commit.tree, oid), "blob")
        document, canonical = read_envelope(raw, headers.content_id)
        if document["ulid"] != headers.ulid:
            wrong("envelopes", f"the envelope says {document['ulid']}, the commit {headers.ulid}")
        if layout.topic_is_ns and document.get("ns") != topic:
            wrong("envelopes", f"the envelope says ns {document.get('ns')!r}, the log is {topic!r}")
        if not canonical:
            wrong("canonical", "the envelope's bytes are not canonical (non_canonical)")
        _check_schema(layout.envelope_schema, document, lambda reason: wrong("schema", reason))
        if layout is MESSAGES:
            _check_message(repo, commit, document, wrong)
    except RopewalkError as error:
        wrong("envelopes", error.detail)
    walk.names += bytes.fromhex(headers.content_id.removeprefix("blake3:"))
    if layout.has_trailer:
        _check_trailer(headers, commit, wrong)
    above = walk.above
    if above is not None:
        if headers.ulid >= above.ulid:
            walk.failures["order"] = (
                f"commit {walk.above_oid}: ULID {above.ulid} is not above {headers.ulid} before it"
            )
        mine, its = _seq(headers), _seq(above)
        if mine is not None and its is not None and its != mine + 1:
            walk.failures["order"] = f"commit {walk.above_oid}: seq {its} follows {mine}"
    walk.above, walk.above_oid = headers, oid


def _check_message(
    repo: Repo, commit: Commit, document: dict[str, Any], wrong: Callable[[str, str], None]
) -> None:
    """S1 §2: nothing but `message` at the top, attachments only as the envelope names them. Extras are read past."""
    top = _entries(repo, commit.tree)
    extra = [entry.name for entry in top if entry.name != "message"]
    if extra:
        wrong("layout", f"its tree also holds {', '.join(extra[:3])}")
    named = named_digests(document)
    for entry in (inner for each in top if each.name == "message" for inner in _entries(repo, each.oid)):
        if entry.name == "attachments" and entry.mode == FOLDER:
            for each in _entries(repo, entry.oid):
                if each.mode == FOLDER or content_id(get_object(repo, each.oid, "blob")) not in named:
                    wrong("attachments", f"its envelope does not name attachment {each.name!r} by digest")
        elif entry.name != "envelope.json":
            wrong("layout", f"message/ also holds {entry.name}")


def _entries(repo: Repo, tree: Oid) -> list[TreeEntry]:
    return list(parse_tree(get_object(repo, tree, "tree")))


def _check_schema(name: str, document: dict[str, Any], wrong: Callable[[str], None]) -> None:
    try:
        schema.validate(name, document)
    except RopewalkError as error:
        wrong(error.detail)


def _check_trailer(headers: Headers, commit: Commit, wrong: Callable[[str, str], None]) -> None:
    if headers.trailer is None:
        wrong("trailers", "there is no trailer")
        return
    try:
        check_trailer(headers.trailer)
    except RopewalkError as error:
        wrong("trailers", error.detail)
    parent = commit.parents[0] if commit.parents else None
    named = headers.trailer.get("journal_parent")
    if named is not None and named != parent:
        wrong("trailers", f"journal_parent is {named}, the parent is {parent or 'nothing'}")


def _check_root(walk: _Walk, *, complete: bool) -> None:
    if complete and walk.above is not None and _seq(walk.above) not in (None, 0):
        walk.failures["order"] = f"commit {walk.above_oid}: the first entry has seq {_seq(walk.above)}"


def _seq(headers: Headers) -> int | None:
    seq = (headers.trailer or {}).get("seq")
    return int(seq) if isinstance(seq, (int, float)) else None


def _steps(
    repo: Repo,
    layout: Layout,
    topic: str,
    walk: _Walk,
    span: Span,
    chain: str,
    met: bool,
    seen: str | None,
    keys: Sequence[PublicKey],
) -> Iterator[Step]:
    yield (
        Step("chain", "failed", chain)
        if chain
        else Step("chain", "passed", f"{span.count} commits, each on the one before")
    )
    if seen is None:
        yield Step("seen_head", "not_checked", "no head of this log was seen here before")
    elif met:
        yield Step("seen_head", "passed", f"contains {seen[:7]}, seen before")
    elif chain:
        yield Step("seen_head", "not_checked", f"{seen} does not lie above the break; it may lie below")
    else:
        yield Step("seen_head", "failed", f"does not contain {seen}, seen before")
    said = {
        "headers": "Event-Id, Content-Id"
        + (", Namespace and schemas" if layout.topic_is_ns else "")
        + " of every commit",
        "envelopes": "every envelope has the content id and ULID its commit promises",
        "canonical": "every envelope is stored in canonical bytes",
        "schema": "every envelope fits its schema",
        "layout": "every tree holds nothing but message/",
        "attachments": "every attachment has a digest its envelope names",
        "order": "ULIDs and seq go up without a gap",
        "trailers": "every trailer fits its schema and names its parent",
    }
    for name, detail in said.items():
        if (name == "trailers" and not layout.has_trailer) or (
            name in ("layout", "attachments") and layout is not MESSAGES
        ):
            continue
        if name in walk.failures:
            yield Step(name, "failed", walk.failures[name])
        elif chain:
            yield Step(name, "not_checked", f"only {span.count} entries above the break could be read")
        else:
            yield Step(name, "passed", detail)
    yield check_anchors(repo, layout, topic, walk.anchored, keys, complete=not chain)
    yield check_signed_heads(repo, layout, topic, walk.content_ids, keys, complete=not chain)
