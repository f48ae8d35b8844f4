"""What hangs on journals besides their entries: anchors, notes, and what has to stay behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ropewalk.errors import RopewalkError
from ropewalk.gitlog.compat.conversion import TIME_S_MAX, Journals, Problem, kept_signature, source_of
from ropewalk.gitlog.compat.entries import ROOTS, note_refs, parse_entry
from ropewalk.gitlog.compat.journal import (
    ImportReport,
    ImportTarget,
    Journal,
    Note,
    find_imported,
    heads_below,
)
from ropewalk.gitlog.core.anchor import add_anchor, anchors
from ropewalk.gitlog.core.commit import rfc3339
from ropewalk.gitlog.core.layout import LOG_NOTES, SHIPLOG
from ropewalk.gitlog.core.log import get_object
from ropewalk.gitlog.core.notes import add_notes, list_notes
from ropewalk.gitlog.core.objects import Oid
from ropewalk.gitlog.privacy.secrets import scan_text
from ropewalk.kernel import ulid
from ropewalk.kernel.digest import Tag, tagged


def _place(repo: Journals, target: ImportTarget, journal: Journal, oid: Oid) -> Oid | None:
    """Return our commit of a source commit."""
    if oid in journal.places:
        return journal.places[oid]
    event = find_imported(repo, target, journal, oid)
    if event is None and not journal.scanned:
        journal.scanned = True
        for each in target.events(journal.topic, 0):
            source = source_of(each)
            if source is not None and source[0] == journal.ref:
                journal.places.setdefault(Oid(source[1]), each.commit)
    return event.commit if event is not None else journal.places.get(oid)


def import_anchors(
    repo: Journals, target: ImportTarget, journals: Sequence[Journal], report: ImportReport
) -> None:
    """Import anchors of journals as anchors of their logs, once."""
    by_env = {(journal.root, journal.env): journal for journal in journals}
    for root in ROOTS:
        for ref, head in heads_below(repo, f"{root}anchors/", report):
            journal = by_env.get((root, ref.removeprefix(f"{root}anchors/")))
            place = (
                _place(repo, target, journal, Oid(head)) if journal and head in set(journal.chain) else None
            )
            if journal is None or place is None:
                report.problems.append(
                    Problem(ref, "the anchor names no commit of an imported journal", head)
                )
                continue
            there = next((each for each in anchors(repo, SHIPLOG, journal.topic) if each.head == place), None)
            if there is None:
                entry = parse_entry(Oid(head), get_object(repo, Oid(head), "commit"))
                by = kept_signature(entry.commit.committer)
                chance = tagged(Tag.IMPORT, f"anchor:{head}".encode())[:10]
                there = add_anchor(
                    repo,
                    SHIPLOG,
                    journal.topic,
                    ulid=ulid.make(min(by.time_s, TIME_S_MAX) * 1000, chance),
                    head=place,
                    created_at=rfc3339(min(by.time_s, TIME_S_MAX) * 1000),
                    author=by,
                    notes=f"imported from {ref}",
                )
            report.anchors.append({"ref": ref, "ns": journal.topic, "head": place, "commit": there.commit})


def import_notes(
    repo: Journals, target: ImportTarget, journals: Sequence[Journal], note: Note | None, report: ImportReport
) -> None:
    """Attach notes on entries of journals to the events made from them."""
    for root in ROOTS:
        homes = {oid: journal for journal in journals if journal.root == root for oid in journal.chain}
        for ref in note_refs(root):
            head = None
            try:
                head = repo.head(ref)
                if head is None:
                    continue
                author = kept_signature(
                    parse_entry(Oid(head), get_object(repo, Oid(head), "commit")).commit.committer
                )
                listed = sorted(list_notes(repo, ref).items())
            except RopewalkError as error:
                report.problems.append(Problem(ref, f"its notes cannot be read: {error.detail}", head))
                continue
            before = list_notes(repo, LOG_NOTES)
            notes: dict[Oid, bytes] = {}
            for place, raw in _readable(repo, target, ref, listed, homes, report):
                # Only what is new is asked about: sealing a note has a price.
                hung = note(raw) if note is not None and place not in before else raw
                if hung is not None:
                    notes[place] = hung
            add_notes(repo, LOG_NOTES, notes, author)
            report.notes += sum(1 for place in notes if place not in before)


def _readable(
    repo: Journals,
    target: ImportTarget,
    ref: str,
    listed: Iterable[tuple[Oid, Oid]],
    homes: Mapping[Oid, Journal],
    report: ImportReport,
) -> Iterator[tuple[Oid, bytes]]:
    for oid, blob in listed:
        journal = homes.get(oid)
        place = _place(repo, target, journal, oid) if journal is not None else None
        if place is None:
            report.problems.append(Problem(ref, "a note hangs on it, but it is no imported entry", oid))
            continue
        try:
            raw = get_object(repo, blob, "blob")
        except RopewalkError as error:
            report.problems.append(Problem(ref, f"its note cannot be read: {error.detail}", oid))
            continue
        found = scan_text(raw.decode("utf-8", "replace"))
        report.problems += [
            Problem(ref, f"its note holds what looks like a {each.kind} at {each.where}", oid)
            for each in found
        ]
        yield place, raw


def list_refs(repo: Journals, report: ImportReport) -> None:
    """Name the refs of the bash tool that have no counterpart here."""
    reasons = {
        "trust/": "S0 has no trust object; signatures were judged against it, the ref stays where it is",
        "consumers/": "positions are not imported; set one with `ropewalk shiplog checkpoint set`",
        "policy/": "S0 has no policy object; the ref stays where it is",
    }
    for root in ROOTS:
        for ref, head in heads_below(repo, root, report):
            name = ref.removeprefix(root)
            if name.startswith(("journal/", "anchors/", "notes/")):
                continue
            reason = next(
                (text for start, text in reasons.items() if name.startswith(start)), "not part of a journal"
            )
            report.not_carried.append({"ref": ref, "commit": head, "reason": reason})
