"""Bring one log up to a remote's: fast-forward it, or re-append our events behind theirs.

A re-append is a sequence of durable steps, and `refs/ropewalk/reappend/<layout>/<topic>/head` names our old head until
all are done: a process that was killed in between is continued by the next pull or push.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ropewalk.errors import BrokenLink, HeadMoved, RopewalkError, Unverified
from ropewalk.gitlog.consumers.consumers import cursors
from ropewalk.gitlog.consumers.cursor import kind_kept, move_cursor
from ropewalk.gitlog.core.commit import parse_message
from ropewalk.gitlog.core.divergence import LogDivergence, find_divergence, reappend_ref
from ropewalk.gitlog.core.layout import LOG_NOTES, Layout
from ropewalk.gitlog.core.log import Repo, describe, get_object
from ropewalk.gitlog.core.notes import add_notes, read_note
from ropewalk.gitlog.core.objects import Oid, parse_commit
from ropewalk.gitlog.repository.rescue import rescue
from ropewalk.gitlog.verify.event_check import check_next

if TYPE_CHECKING:
    from ropewalk.gitlog.repository.repository import GitRepository

ATTEMPTS_MAX = 8  # local writers that append while we compare


@dataclass(frozen=True, slots=True)
class LogChange:
    """What merging did to one log: events fetched, events re-appended, events the remote lacks."""

    log: str
    fetched: int = 0
    reappended: int = 0
    ahead: int = 0
    diverged: bool = False


def merge_log(
    log: GitRepository, layout: Layout, topic: str, theirs: str | None, *, who: str, rebase: bool
) -> LogChange:
    """Make our log contain theirs. Where both appended, re-append ours behind theirs if `rebase`."""
    name, ref = f"{layout.name}/{topic}", layout.head_ref(topic)
    again = _finish(log, layout, topic, who)
    for _ in range(ATTEMPTS_MAX):
        ours = log.lines.line(layout, topic, must_exist=False).head  # raises if our history was rewritten
        found = compare(log.store, layout, topic, ours, theirs)
        if not found.added:
            return LogChange(name, reappended=again, ahead=len(found.displaced))
        check_incoming(log.store, layout, topic, found)
        try:
            if not found.displaced:
                assert theirs is not None
                log.store.move_head(ref, ours, theirs)
                log.lines.line(layout, topic)
                return LogChange(name, fetched=len(found.added), reappended=again)
            if not rebase:
                return LogChange(name, ahead=len(found.displaced), diverged=True)
            _displace(log, layout, topic, found, who)
        except HeadMoved:
            continue
        again += _finish(log, layout, topic, who)
        return LogChange(name, len(found.added), again, ahead=again)
    raise HeadMoved(f"{ref} moved {ATTEMPTS_MAX} times while it was compared", ref=ref)


def compare(repo: Repo, layout: Layout, topic: str, ours: str | None, theirs: str | None) -> LogDivergence:
    """Return what only we have (`displaced`) and what only they have (`added`)."""
    found = find_divergence(
        repo,
        layout,
        topic,
        Oid(ours) if ours else None,
        Oid(theirs) if theirs else None,
        lambda: lambda _oid: None,
    )
    if found.cut is not None:
        raise BrokenLink(
            f"{found.ref}: commit {found.cut} is missing, so the two histories cannot be compared",
            ref=found.ref,
            entry=found.cut,
            advice="In a shallow clone run `git fetch --unshallow` first.",
        )
    return found


def check_incoming(repo: Repo, layout: Layout, topic: str, found: LogDivergence) -> None:
    """Verify every fetched event and its place before our head moves."""
    below: str = found.parted or ""
    last = parse_message(parse_commit(get_object(repo, Oid(below), "commit")).message) if below else None
    for each in found.added:
        event = check_next(repo, layout, topic, each.commit, below, last)
        if event.fault is not None:
            raise Unverified(
                f"{found.ref}: the remote's commit {each.commit} is not valid: {event.fault}",
                ref=found.ref,
                where=each.commit,
                advice="Nothing was changed here. Ask the owner of the remote to repair its log.",
            )
        below, last = each.commit, event.headers


def _displace(log: GitRepository, layout: Layout, topic: str, found: LogDivergence, who: str) -> None:
    """Move our head to theirs, and keep our events as displaced."""
    assert found.old is not None and found.new is not None
    with log.store.turn(found.ref):
        if log.store.head(found.ref) != found.old:
            raise HeadMoved(f"{found.ref} moved while it was compared", ref=found.ref)
        log.store.move_head(reappend_ref(layout, topic), None, found.old)
        log.store.move_head(found.ref, found.old, found.new)
        log.lines.accept(layout, topic, who)


def _finish(log: GitRepository, layout: Layout, topic: str, who: str) -> int:
    """Re-append displaced events with their notes, also after a kill; return how many were re-appended."""
    marker = reappend_ref(layout, topic)
    old = log.store.head(marker)
    if old is None:
        return 0
    with log.store.turn(layout.head_ref(topic)):
        log.lines.accept(layout, topic, who)
    allowed, log.allow_secrets = log.allow_secrets, True  # they were screened when they were first recorded
    try:
        count = 0
        for each in rescue(log, topic, old=old, layout=layout):
            if isinstance(each.outcome, RopewalkError):
                raise each.outcome
            count += 1
    finally:
        log.allow_secrets = allowed
    found = log.lines.compare(layout, topic, old)
    _copy_notes(log, layout, found)
    _move_cursors(log, layout, topic, found)
    log.store.drop_head(marker, old)
    return count


def _copy_notes(log: GitRepository, layout: Layout, found: LogDivergence) -> None:
    """Attach the notes of displaced events to the events that replace them."""
    if not layout.has_trailer:
        return
    notes: dict[Oid, bytes] = {}
    for each in found.displaced:
        raw = read_note(log.store, LOG_NOTES, each.commit) if each.again is not None else None
        if raw is not None and each.again is not None:
            notes[each.again] = raw
    if notes:
        add_notes(log.store, LOG_NOTES, notes, log.author(log.now_ms()))


def _move_cursors(log: GitRepository, layout: Layout, topic: str, found: LogDivergence) -> None:
    """Move cursors on displaced events back to the last common event: consumers see events twice, and miss none."""
    gone = {each.commit for each in found.displaced}
    for cursor in cursors(log):
        if cursor.topic != topic or cursor.by != kind_kept(layout) or cursor.commit not in gone:
            continue
        if found.parted is None:
            log.store.drop_head(cursor.ref, cursor.target)
        else:
            place = log.lines.line(layout, topic).find(describe(log.store, layout, topic, found.parted).ulid)
            assert place is not None
            move_cursor(log.store, layout, cursor.group, topic, place, cursor, backwards=True)
