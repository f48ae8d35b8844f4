"""Displaced events, recorded again on top of the line that displaced them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ropewalk.errors import BrokenLink, RopewalkError
from ropewalk.gitlog.core.divergence import DivergedEntry, draft_of, event_at
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import SHIPLOG, Layout
from ropewalk.gitlog.core.planning import Receipt

if TYPE_CHECKING:
    from ropewalk.gitlog.repository.repository import GitRepository

BATCH_EVENTS = 1_000  # events that share one pack
BATCH_BYTES = 8 << 20  # of their attachments, which are held until they are written


@dataclass(frozen=True, slots=True)
class Rescued:
    """A displaced entry, and what recording its event again came to."""

    entry: DivergedEntry
    outcome: Receipt | RopewalkError


def rescue(
    log: GitRepository, topic: str, *, old: str | None = None, layout: Layout = SHIPLOG
) -> Iterator[Rescued]:
    """Record displaced events again: those of the history below `old`, else of all that are kept here.

    Each event gets a new ULID and a new place, keeps everything else, and names its original in `refs.displaced`. One
    that the log carries already, under its own name or recorded again, is passed over: doing this twice does it once.
    """
    ref = layout.head_ref(topic)
    # A separate lock: two rescues at once would record everything twice.
    with log.store.turn(f"{ref} rescue"):
        heads = [old] if old is not None else log.lines.kept(layout, topic)
        # A rewritten history is accepted first, by a person; an unknown log is a wrong name.
        log.lines.line(layout, topic, must_exist=not heads)
        for head in heads:
            yield from _record(log, layout, topic, log.lines.compare(layout, topic, head).lost)


def _record(
    log: GitRepository, layout: Layout, topic: str, entries: Sequence[DivergedEntry]
) -> Iterator[Rescued]:
    batch: list[tuple[DivergedEntry, Draft | RopewalkError]] = []
    size = 0
    for each in entries:
        draft = _draft(log, layout, topic, each)
        batch.append((each, draft))
        size += sum(map(len, draft.attachments.values())) if isinstance(draft, Draft) else 0
        if len(batch) >= BATCH_EVENTS or size >= BATCH_BYTES:
            yield from _written(log, layout, topic, batch)
            batch, size = [], 0
    yield from _written(log, layout, topic, batch)


def _written(
    log: GitRepository,
    layout: Layout,
    topic: str,
    batch: Sequence[tuple[DivergedEntry, Draft | RopewalkError]],
) -> Iterator[Rescued]:
    fit = [draft for _, draft in batch if isinstance(draft, Draft)]
    outcomes = iter(log.append_all(topic, fit, layout=layout) if fit else ())
    for each, draft in batch:
        yield Rescued(each, next(outcomes) if isinstance(draft, Draft) else draft)


def _draft(log: GitRepository, layout: Layout, topic: str, entry: DivergedEntry) -> Draft | RopewalkError:
    if entry.problem is not None:
        named = entry.commit in entry.problem
        return BrokenLink(
            entry.problem if named else f"commit {entry.commit}: {entry.problem}",
            entry=entry.commit,
            advice="If something is missing, fetch it from a clone that still has it, then rescue again; an entry of "
            "another log is not rescued into this one.",
        )
    draft = draft_of(log.store, layout, event_at(log.store, layout, topic, entry.commit))
    return replace(draft, committer=log.author(log.now_ms()))
