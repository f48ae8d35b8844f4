"""Journals of `git shiplog` become logs of S0: the same commits on every machine, however often it is done.

Nothing but the journal decides what an imported commit is: its ULID comes from the source commit's time and id, its
author, committer and dates are the source's, its trailer is the source's in S0's form. What cannot be carried over is
named, and what is odd is listed; a journal that was rewritten since the last import is refused, and only that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from ropewalk.errors import Conflict, HeadMoved, InvalidName, NotFound, RopewalkError, Unverified
from ropewalk.gitlog.anchor import add_anchor, anchors
from ropewalk.gitlog.commit import rfc3339
from ropewalk.gitlog.compat import ROOTS, note_refs, parse_entry, slug
from ropewalk.gitlog.envelope import Event
from ropewalk.gitlog.incoming import (
    TIME_S_MAX,
    EntryReader,
    Journals,
    Problem,
    find_envelope,
    kept_signature,
    source_of,
    ulid_of,
)
from ropewalk.gitlog.layout import LOG_NOTES, SHIPLOG, check_namespace
from ropewalk.gitlog.log import Plan, Setting, Tip, get_object, grow
from ropewalk.gitlog.notes import add_notes, list_notes
from ropewalk.gitlog.objects import Oid
from ropewalk.gitlog.secrets import scan_text
from ropewalk.kernel import ulid
from ropewalk.kernel.digest import Tag, tagged
from ropewalk.kernel.ulid import Ulid

__all__ = ["ImportReport", "Note", "Target", "import_journals"]

BATCH = 1_000  # entries that share a pack and a move of the head
ATTEMPTS_MAX = 6


Note = Callable[[bytes], bytes | None]
"""What is kept of a note: its bytes, a pointer to them, or nothing."""


class Target(Protocol):
    """The logs that are written to, as the importer needs to see them."""

    def tip(self, topic: str) -> Tip: ...
    def find(self, topic: str, wanted: Ulid) -> Event | None: ...
    def events(self, topic: str, start: int) -> Iterator[Event]: ...
    def grown(self, topic: str, made: Plan) -> None: ...


@dataclass(slots=True)
class ImportReport:
    """What an import did, and everything it found odd. `refused` is the first journal that was not taken."""

    imported: int = 0
    skipped: int = 0
    problems: list[Problem] = field(default_factory=list)
    refs: dict[str, str] = field(default_factory=dict)
    anchors: list[dict[str, str]] = field(default_factory=list)
    notes: int = 0
    mapped: dict[str, str] = field(default_factory=dict)
    not_carried: list[dict[str, str]] = field(default_factory=list)
    refused: RopewalkError | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "imported": self.imported,
            "skipped": self.skipped,
            "problems": [problem.to_json() for problem in self.problems],
            "refs": dict(sorted(self.refs.items())),
            "anchors": self.anchors,
            "notes": self.notes,
            "mapped": self.mapped,
            "not_carried": self.not_carried,
        }


@dataclass(slots=True)
class _Journal:
    ref: str
    root: str
    env: str
    head: str
    topic: str
    chain: list[Oid] = field(default_factory=list)  # oldest first
    places: dict[Oid, Oid] = field(default_factory=dict)  # source commit → our commit, of this run
    scanned: bool = False
    guest: bool = False  # nothing but an export of a log of another name


def import_journals(
    repo: Journals, target: Target, mapping: Mapping[str, str], note: Note | None = None
) -> ImportReport:
    """Bring every journal of a repository up to date in its log.

    `mapping` names namespaces for environments. `note` says what is hung in place of a note's bytes, None for nothing.
    """
    report = ImportReport()
    for name in mapping.values():
        check_namespace(name)
    journals = _journals(repo, target, mapping, report)
    done: list[_Journal] = []
    for journal in journals:
        try:
            if journal.guest:
                report.skipped += len(journal.chain)
            else:
                _bring_in(repo, target, journal, report)
            done.append(journal)
        except (Conflict, Unverified) as error:
            report.problems.append(Problem(journal.ref, error.detail, journal.head))
            report.refused = report.refused or error
    _bring_anchors(repo, target, done, report)
    _bring_notes(repo, target, done, note, report)
    _name_the_rest(repo, report)
    return report


# --- which journals go where ---


def _journals(
    repo: Journals, target: Target, mapping: Mapping[str, str], report: ImportReport
) -> list[_Journal]:
    found: list[_Journal] = []
    for root in ROOTS:
        prefix = f"{root}journal/"
        for ref, head in sorted(repo.heads(prefix).items()):
            env = ref.removeprefix(prefix)
            if any(other.env == env and other.head == head for other in found):
                continue  # the same journal under both roots
            found.append(_Journal(ref, root, env, head, ""))
    unused = sorted(set(mapping) - {journal.env for journal in found})
    report.problems += [Problem("", f"--map {env}: there is no journal of that name") for env in unused]
    kept: list[_Journal] = []
    for journal in found:
        try:
            journal.guest = journal.env not in mapping and _is_export(repo, target, journal)
            if not journal.guest:
                journal.topic = check_namespace(mapping.get(journal.env) or slug(journal.env))
        except InvalidName as error:
            refusal = Conflict(f"journal {journal.env}: {error.detail}; name a namespace with --map")
            report.problems.append(Problem(journal.ref, refusal.detail, journal.head))
            report.refused = report.refused or refusal
            continue
        kept.append(journal)
    takers: dict[str, list[_Journal]] = {}
    for journal in kept:
        if not journal.guest:
            takers.setdefault(journal.topic, []).append(journal)
    for topic, rivals in takers.items():
        # A name that is one already goes before a name that had to be made into one.
        own = [rival for rival in rivals if rival.env == topic and rival.env not in mapping]
        for rival in rivals if len(own) != 1 else [each for each in rivals if each is not own[0]]:
            if len(rivals) > 1:
                others = ", ".join(other.env for other in rivals if other is not rival)
                refusal = Conflict(f"journal {rival.env} and {others} would both become {topic}; use --map")
                report.problems.append(Problem(rival.ref, refusal.detail, rival.head))
                report.refused = report.refused or refusal
                kept.remove(rival)
    report.mapped = {each.env: each.topic for each in kept if each.env != each.topic and not each.guest}
    return kept


def _is_export(repo: Journals, target: Target, journal: _Journal) -> bool:
    """Whether every entry of a journal came out of one log here, under another name: then there is nothing to import.

    A journal only says where it came from; it is believed once that log is found to hold all of it.
    """
    try:
        carried = find_envelope(
            repo, parse_entry(Oid(journal.head), get_object(repo, Oid(journal.head), "commit"))
        )
        home = check_namespace(str(carried[0].get("ns"))) if carried is not None else None
        if home is None or home == slug(journal.env) or target.tip(home).commit is None:
            return False
        chain = _walk(repo, journal, ImportReport())
        twin = _Journal(journal.ref, journal.root, journal.env, journal.head, home)
        if not all(_is_ours(repo, target, twin, oid) for oid in chain):
            return False
    except RopewalkError:
        return False
    journal.topic, journal.chain, journal.places = home, chain, twin.places
    return True


# --- one journal ---


def _bring_in(repo: Journals, target: Target, journal: _Journal, report: ImportReport) -> None:
    journal.chain = _walk(repo, journal, report)
    fresh = _unknown(repo, target, journal)
    report.skipped += len(journal.chain) - len(fresh)
    reader = EntryReader(repo, journal.ref, journal.env, journal.topic)
    remaining = iter(fresh)
    while batch := list(islice(remaining, BATCH)):
        _write(repo, target, journal, reader, batch, report)
    head = repo.head(SHIPLOG.head_ref(journal.topic))
    if head is not None:
        report.refs[SHIPLOG.head_ref(journal.topic)] = head


def _walk(repo: Journals, journal: _Journal, report: ImportReport) -> list[Oid]:
    """The commits of a journal along first parents, oldest first, as far as they are there."""
    chain: list[Oid] = []
    at: str | None = journal.head
    while at is not None:
        try:
            kind, raw = repo.get(at)
        except (NotFound, Unverified) as error:
            reason = (
                f"its parent {at} is not here (a shallow clone?)"
                if chain
                else "the journal's head is not here"
            )
            if isinstance(error, Unverified):
                reason = f"{at} cannot be read: {error.detail}"
            report.problems.append(
                Problem(journal.ref, f"{reason}; older entries are not imported", chain[-1] if chain else at)
            )
            break
        if kind != "commit":
            report.problems.append(Problem(journal.ref, f"{at} is a {kind}, not a commit", at))
            break
        chain.append(Oid(at))
        head = raw.partition(b"\n\n")[0]
        parents = [
            line[7:].decode("ascii", "replace") for line in head.split(b"\n") if line.startswith(b"parent ")
        ]
        if len(parents) > 1:
            reason = f"it has {len(parents)} parents; only the first line of history is imported"
            report.problems.append(Problem(journal.ref, reason, at))
        at = parents[0] if parents else None
    chain.reverse()
    return chain


def _unknown(repo: Journals, target: Target, journal: _Journal) -> list[Oid]:
    """The commits that are not in the log yet. What is there must be what the journal says, in its order."""
    if target.tip(journal.topic).commit is None:
        return journal.chain
    known, height = _newest_known(repo, target, journal)
    rest = journal.chain[known + 1 :]
    at = 0
    ours: set[Oid] = set()
    # An entry whose ULID had to give way to order is not found by it; the log itself tells.
    for event in target.events(journal.topic, height + 1):
        source = source_of(event)
        if source is None:
            continue
        if source[0] != journal.ref:
            raise Conflict(
                f"namespace {journal.topic} holds journal {source[0]} already",
                ref=journal.ref,
                advice=f"Name another namespace: --map {journal.env}=NAME.",
            )
        # Entries exported from here may lie between; an event may also have come as one of those itself.
        while at < len(rest) and rest[at] != source[1] and event.commit not in ours:
            if not _is_ours(repo, target, journal, rest[at]):
                break
            ours.add(journal.places[rest[at]])
            at += 1
        if event.commit in ours:
            continue
        if at == len(rest) or rest[at] != source[1]:
            raise HeadMoved(
                f"{journal.ref} was rewritten: {source[1]} was imported from it and is no longer there",
                ref=journal.ref,
                expected=source[1],
                advice="Find out who rewrote the journal. The log keeps what it has; other journals were imported.",
            )
        journal.places[rest[at]] = event.commit
        at += 1
    return [oid for oid in rest[at:] if not _is_ours(repo, target, journal, oid)]


def _newest_known(repo: Journals, target: Target, journal: _Journal) -> tuple[int, int]:
    """Place in the journal and height in the log of the newest entry that is in both; -1 where there is none."""
    for at in range(len(journal.chain) - 1, -1, -1):
        event = _imported(repo, target, journal, journal.chain[at])
        if event is not None:
            return at, event.height
    return -1, -1


def _imported(repo: Journals, target: Target, journal: _Journal, oid: Oid) -> Event | None:
    time_s = parse_entry(oid, get_object(repo, oid, "commit")).commit.committer.time_s
    event = target.find(journal.topic, ulid_of(oid, time_s, None))
    return event if event is not None and source_of(event) == (journal.ref, oid) else None


def _is_ours(repo: Journals, target: Target, journal: _Journal, oid: Oid) -> bool:
    """Whether an entry was exported from this very log (or imported from such an export before)."""
    carried = find_envelope(repo, parse_entry(oid, get_object(repo, oid, "commit")))
    if carried is None:
        return False
    document, promised = carried
    if not ulid.is_ulid(document.get("ulid")):
        return False
    event = target.find(journal.topic, document["ulid"])
    if event is None or event.content_id != promised:
        return False
    journal.places[oid] = event.commit
    return True


def _write(
    repo: Journals,
    target: Target,
    journal: _Journal,
    reader: EntryReader,
    batch: Sequence[Oid],
    report: ImportReport,
) -> None:
    topic = journal.topic
    ref = SHIPLOG.head_ref(topic)
    with repo.turn(ref):
        for attempt in range(ATTEMPTS_MAX):
            tip = target.tip(topic)
            made = Plan(tip, tip)
            problems: list[Problem] = []
            places = {}
            for oid in batch:
                sealed, draft = reader.event(oid, made.tip, problems)
                time_ms = ulid.time_ms(sealed.ulid)
                assert draft.author is not None
                setting = Setting(time_ms, bytes(10), draft.author, lambda *_: None)
                places[oid] = grow(SHIPLOG, topic, made, draft, sealed, setting, None).commit
            try:
                with repo.put(made.objects):
                    repo.move_head(ref, tip.commit, made.tip.commit or "")
            except HeadMoved:
                if attempt + 1 == ATTEMPTS_MAX:
                    raise
                continue
            target.grown(topic, made)
            journal.places.update(places)
            report.problems += problems
            report.imported += len(batch)
            return


# --- anchors, notes, and what stays behind ---


def _place(repo: Journals, target: Target, journal: _Journal, oid: Oid) -> Oid | None:
    """Our commit of a source commit."""
    if oid in journal.places:
        return journal.places[oid]
    event = _imported(repo, target, journal, oid)
    if event is None and not journal.scanned:
        journal.scanned = True
        for each in target.events(journal.topic, 0):
            source = source_of(each)
            if source is not None and source[0] == journal.ref:
                journal.places.setdefault(Oid(source[1]), each.commit)
    return event.commit if event is not None else journal.places.get(oid)


def _bring_anchors(
    repo: Journals, target: Target, journals: Sequence[_Journal], report: ImportReport
) -> None:
    by_env = {(journal.root, journal.env): journal for journal in journals}
    for root in ROOTS:
        for ref, head in sorted(repo.heads(f"{root}anchors/").items()):
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


def _bring_notes(
    repo: Journals, target: Target, journals: Sequence[_Journal], note: Note | None, report: ImportReport
) -> None:
    for root in ROOTS:
        homes = {oid: journal for journal in journals if journal.root == root for oid in journal.chain}
        for ref in note_refs(root):
            head = repo.head(ref)
            if head is None:
                continue
            try:
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
    target: Target,
    ref: str,
    listed: Iterable[tuple[Oid, Oid]],
    homes: Mapping[Oid, _Journal],
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


def _name_the_rest(repo: Journals, report: ImportReport) -> None:
    reasons = {
        "trust/": "S0 has no trust object; signatures were judged against it, the ref stays where it is",
        "policy/": "S0 has no policy object; the ref stays where it is",
    }
    for root in ROOTS:
        for ref, head in sorted(repo.heads(root).items()):
            name = ref.removeprefix(root)
            if name.startswith(("journal/", "anchors/", "notes/")):
                continue
            reason = next(
                (text for start, text in reasons.items() if name.startswith(start)), "not part of a journal"
            )
            report.not_carried.append({"ref": ref, "commit": head, "reason": reason})
