"""Verify a log from its bytes alone: nothing is believed that was not hashed here and now.

The walk goes down from the head in runs; each run is a span of the kernel, and spans join. Every step is named, and
what was not checked is said.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ropewalk.errors import BrokenLink, DigestMismatch, Invalid, RopewalkError
from ropewalk.gitlog.core.clock_limit import ClockLimit
from ropewalk.gitlog.core.layout import MESSAGES, Layout
from ropewalk.gitlog.core.log import Repo, get_object
from ropewalk.gitlog.core.objects import Commit, Oid, parse_commit
from ropewalk.gitlog.verify.anchor_check import (
    TrustedKeys,
    anchored_commits,
    check_anchors,
    check_signed_heads,
)
from ropewalk.gitlog.verify.event_check import CheckedEvent, check_event, check_first, check_order
from ropewalk.gitlog.verify.note_check import NoteCheck
from ropewalk.kernel.digest import ContentId
from ropewalk.kernel.entry import EMPTY, Entry, EntryId, Span, check_span, join
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.report import Report, Step

RUN = 512  # commits checked as one span


@dataclass(slots=True)
class _Walk:
    """What the walk has found. It goes downwards, so the last failure of a step is the first in the log."""

    failures: dict[str, str] = field(default_factory=dict)
    names: bytearray = field(default_factory=bytearray)  # digests of the content ids, newest first
    anchored: set[str] = field(default_factory=set)  # commits that anchors name and the walk has met
    above: CheckedEvent | None = None
    limit: ClockLimit | None = None
    first_ahead: CheckedEvent | None = None  # the first entry dated later than the limit
    ahead_count: int = 0
    notes: NoteCheck | None = None

    def content_ids(self) -> Iterator[ContentId]:
        """Yield the content ids, oldest first."""
        for at in range(len(self.names) - 32, -1, -32):
            yield ContentId("blake3:" + self.names[at : at + 32].hex())


def verify_log(
    repo: Repo,
    layout: Layout,
    topic: str,
    *,
    seen: str | None = None,
    keys: Sequence[PublicKey] = (),
    own_keys: Sequence[PublicKey] = (),
    limit: ClockLimit | None = None,
    progress: Callable[[int], None] = lambda _count: None,
) -> Report:
    """Walk a log from its head to its root and check every step of it.

    `seen` is a commit that must lie in the log. `keys` are trusted to sign heads and anchors. Without any, `own_keys`
    are, and signatures of other keys are reported as untrusted. With a `limit`, entries dated ahead of the clock are
    named.
    """
    ref = layout.head_ref(topic)
    walk = _Walk(limit=limit, notes=NoteCheck.of(repo) if layout.has_trailer else None)
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
    return Report.of(
        _steps(repo, layout, topic, walk, span, chain, met, seen, TrustedKeys(keys, own_keys)),
        entries=span.count,
    )


def _runs(repo: Repo, head: str | None) -> Iterator[list[tuple[Oid, Commit, bytes]]]:
    """Yield the commits from the head down, in runs, newest first."""
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
                yield run  # entries above the break can still be checked
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
    """Return the id of a commit computed from its bytes; the id covers the parents read from them."""
    return EntryId(hashlib.sha1(b"commit %d\x00" % len(body) + body, usedforsecurity=False).digest())


def _check_entry(repo: Repo, layout: Layout, topic: str, oid: Oid, commit: Commit, walk: _Walk) -> None:
    event = check_event(repo, layout, topic, oid, commit)
    for step, reason in event.faults.items():
        walk.failures[step] = f"commit {oid}: {reason}"
    if event.headers is not None:
        walk.names += bytes.fromhex(event.headers.content_id.removeprefix("blake3:"))
        if walk.limit is not None and walk.limit.is_ahead(event.headers.ulid):
            walk.first_ahead, walk.ahead_count = event, walk.ahead_count + 1
    if walk.notes is not None and event.document is not None:
        walk.notes.take(oid, event.document)
    above = walk.above
    if above is not None and above.headers is not None:
        unordered = check_order(event.headers, above.headers)
        if unordered is not None:
            walk.failures["order"] = f"commit {above.oid}: {unordered}"
    walk.above = event


def _check_root(walk: _Walk, *, complete: bool) -> None:
    if complete and walk.above is not None and walk.above.headers is not None:
        reason = check_first(walk.above.headers)
        if reason is not None:
            walk.failures["order"] = f"commit {walk.above.oid}: {reason}"


def _steps(
    repo: Repo,
    layout: Layout,
    topic: str,
    walk: _Walk,
    span: Span,
    chain: str,
    met: bool,
    seen: str | None,
    keys: TrustedKeys,
) -> Iterator[Step]:
    yield (
        Step("chain", "failed", chain)
        if chain
        else Step("chain", "passed", f"{span.count} commits, each on the one before")
    )
    if seen is None:
        yield Step.optional("seen_head", "no head of this log was seen here before")
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
        "pointers": "every opaque pointer fits its schema and holds no secret",
        "layout": "every tree holds its envelope"
        + (" and attachments" if layout is MESSAGES else "")
        + ", nothing else",
        "attachments": "every attachment has a digest its envelope names",
        "order": "ULIDs and seq go up without a gap",
        "trailers": "every trailer fits its schema and names its parent",
    }
    for name, detail in said.items():
        if (name == "trailers" and not layout.has_trailer) or (
            name == "attachments" and layout is not MESSAGES
        ):
            continue
        if name in walk.failures:
            yield Step(name, "failed", walk.failures[name])
        elif chain:
            yield Step(name, "not_checked", f"only {span.count} entries above the break could be read")
        else:
            yield Step(name, "passed", detail)
    yield from _extra_steps(layout, topic, walk)
    yield check_anchors(repo, layout, topic, walk.anchored, keys, complete=not chain)
    yield check_signed_heads(repo, layout, topic, walk.content_ids, keys, complete=not chain)


def _extra_steps(layout: Layout, topic: str, walk: _Walk) -> Iterator[Step]:
    """Yield what only some logs have: entries dated ahead, and notes."""
    if walk.limit is not None and walk.first_ahead is not None and walk.first_ahead.headers is not None:
        ulid = walk.first_ahead.headers.ulid
        yield Step.optional(  # the bytes are what was written; no log can show when that was
            "time",
            f"{walk.ahead_count} entries are dated ahead of this clock; the first is commit {walk.first_ahead.oid}: "
            f"ULID {ulid} is {walk.limit.dated(ulid)}. {walk.limit.advice(layout.option(topic), ulid)}",
        )
    step = walk.notes.step() if walk.notes is not None else None
    if step is not None:
        yield step
