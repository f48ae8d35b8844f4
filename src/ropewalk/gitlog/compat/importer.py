"""Journals of `git shiplog` become logs of S0: the same commits on every machine, however often it is done.

Nothing but the journal decides what an imported commit is: its ULID comes from the source commit's time and id, its
author, committer and dates are the source's, its trailer is the source's in S0's form. What cannot be carried over is
named, and what is odd is listed; a journal that was rewritten since the last import is refused, and only that one.
Heads move last, once a journal, so a journal is in its log with all its entries or with none of the new ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from ropewalk.errors import Conflict, HeadMoved, InvalidName, NotFound, RopewalkError, Unverified
from ropewalk.gitlog.compat.anchors_and_notes import import_anchors, import_notes, list_refs
from ropewalk.gitlog.compat.conversion import (
    EntryReader,
    Journals,
    Problem,
    envelope_name,
    find_envelope,
    source_of,
)
from ropewalk.gitlog.compat.entries import ROOTS, parse_entry, slug
from ropewalk.gitlog.compat.journal import (
    ImportReport,
    ImportTarget,
    Journal,
    Note,
    find_imported,
    heads_below,
)
from ropewalk.gitlog.core.clock_limit import ClockLimit
from ropewalk.gitlog.core.layout import SHIPLOG, check_namespace
from ropewalk.gitlog.core.log import get_object
from ropewalk.gitlog.core.objects import Oid
from ropewalk.gitlog.core.planning import AppendContext, Plan, Tip, add_event
from ropewalk.kernel import ulid

BATCH = 1_000  # entries that share a pack
ATTEMPTS_MAX = 6


@dataclass(slots=True)
class _Ready:
    """A journal whose new entries are written, and wait for the head to move."""

    journal: Journal
    fresh: list[Oid] = field(default_factory=list)
    made: Plan = field(default_factory=lambda: Plan(Tip(), Tip()))
    places: dict[Oid, Oid] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def import_journals(
    repo: Journals,
    target: ImportTarget,
    mapping: Mapping[str, str],
    note: Note | None = None,
    *,
    limit: ClockLimit,
) -> ImportReport:
    """Bring every journal of a repository up to date in its log.

    `mapping` names namespaces for environments. `note` replaces a note's bytes, None for no note.
    A journal with an entry dated later than `limit` is refused.
    """
    report = ImportReport()
    for name in mapping.values():
        check_namespace(name)
    journals = _journals(repo, target, mapping, report)
    done: list[Journal] = []
    # Everything is written before the first head moves: an import that fails on the way leaves every log as it was.
    with ExitStack() as held:
        ready: list[_Ready] = []
        for journal in journals:
            with _refusal_listed(journal, report):
                ready.append(_prepare(repo, target, journal, report, held, limit))
        for each in ready:
            with _refusal_listed(each.journal, report):
                _settle(repo, target, each, report, limit)
                done.append(each.journal)
    import_anchors(repo, target, done, report)
    import_notes(repo, target, done, note, report)
    list_refs(repo, report)
    return report


@contextmanager
def _refusal_listed(journal: Journal, report: ImportReport) -> Iterator[None]:
    """List a refused journal instead of stopping the import of the others."""
    try:
        yield
    except (Conflict, Unverified) as error:
        report.problems.append(Problem(journal.ref, error.detail, journal.head))
        report.refused = report.refused or error


# --- which journals go where ---


def _journals(
    repo: Journals, target: ImportTarget, mapping: Mapping[str, str], report: ImportReport
) -> list[Journal]:
    found: list[Journal] = []
    for root in ROOTS:
        prefix = f"{root}journal/"
        for ref, head in heads_below(repo, prefix, report):
            env = ref.removeprefix(prefix)
            if any(other.env == env and other.head == head for other in found):
                continue  # the same journal under both roots
            found.append(Journal(ref, root, env, head, ""))
    unused = sorted(set(mapping) - {journal.env for journal in found})
    report.problems += [Problem("", f"--map {env}: there is no journal of that name") for env in unused]
    kept: list[Journal] = []
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
    takers: dict[str, list[Journal]] = {}
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


def _is_export(repo: Journals, target: ImportTarget, journal: Journal) -> bool:
    """Return whether every entry of a journal came out of one log here, under another name: nothing is to import.

    A journal only claims its source; it is accepted once that log is found to hold all of it.
    """
    try:
        carried = find_envelope(
            repo, parse_entry(Oid(journal.head), get_object(repo, Oid(journal.head), "commit"))
        )
        home = check_namespace(str(carried[0].get("ns"))) if carried is not None else None
        if home is None or home == slug(journal.env) or target.tip(home).commit is None:
            return False
        chain = _walk(repo, journal, ImportReport())
        twin = Journal(journal.ref, journal.root, journal.env, journal.head, home)
        if not all(_is_ours(repo, target, twin, oid) for oid in chain):
            return False
    except RopewalkError:
        return False
    journal.topic, journal.chain, journal.places = home, chain, twin.places
    return True


# --- one journal ---


def _prepare(
    repo: Journals,
    target: ImportTarget,
    journal: Journal,
    report: ImportReport,
    held: ExitStack,
    limit: ClockLimit,
) -> _Ready:
    """Write what a log lacks of a journal; its head does not move yet."""
    if journal.guest:
        return _Ready(journal)
    journal.chain = _walk(repo, journal, report)
    ready = _Ready(journal, _unknown(repo, target, journal))
    _write(repo, target, ready, held, limit)
    return ready


def _settle(
    repo: Journals, target: ImportTarget, ready: _Ready, report: ImportReport, limit: ClockLimit
) -> None:
    """Move the log's head over what was written; after a conflict, read again and write on top."""
    journal, ref = ready.journal, SHIPLOG.head_ref(ready.journal.topic)
    with repo.turn(ref), ExitStack() as held:
        for attempt in range(ATTEMPTS_MAX if ready.fresh else 0):
            try:
                repo.move_head(ref, ready.made.start.commit, ready.made.tip.commit or "")
                target.grown(journal.topic, ready.made)
                break
            except HeadMoved:
                if attempt + 1 == ATTEMPTS_MAX:
                    raise
                # It may have been another import of this very journal.
                ready.fresh = _unknown(repo, target, journal)
                if not ready.fresh:
                    break
                _write(repo, target, ready, held, limit)
    if ready.fresh:
        journal.places.update(ready.places)
        report.problems += ready.problems
    report.imported += len(ready.fresh)
    report.skipped += len(journal.chain) - len(ready.fresh)
    head = repo.head(ref)
    if head is not None and not journal.guest:
        report.refs[ref] = head


def _walk(repo: Journals, journal: Journal, report: ImportReport) -> list[Oid]:
    """Return the commits of a journal along first parents, oldest first, as far as they are there."""
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


def _unknown(repo: Journals, target: ImportTarget, journal: Journal) -> list[Oid]:
    """Return the commits that are not in the log yet. Those in the log must match the journal, in its order."""
    if target.tip(journal.topic).commit is None:
        return journal.chain
    known, height = _newest_known(repo, target, journal)
    rest = journal.chain[known + 1 :]
    at = 0
    ours: set[Oid] = set()
    # An entry whose ULID was changed for the order is not found by it; search the log.
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


def _newest_known(repo: Journals, target: ImportTarget, journal: Journal) -> tuple[int, int]:
    """Place in the journal and height in the log of the newest entry that is in both; -1 where there is none."""
    for at in range(len(journal.chain) - 1, -1, -1):
        event = find_imported(repo, target, journal, journal.chain[at])
        if event is not None:
            return at, event.height
    return -1, -1


def _is_ours(repo: Journals, target: ImportTarget, journal: Journal, oid: Oid) -> bool:
    """Return whether an entry was exported from this very log (or imported from such an export before)."""
    carried = find_envelope(repo, parse_entry(oid, get_object(repo, oid, "commit")))
    if carried is None:
        return False
    document, promised = carried
    if not ulid.is_ulid(document.get("ulid")):
        return False
    event = target.find(journal.topic, document["ulid"])
    if event is None or event.content_id != promised:
        return False
    # The journal only claims so: an editor of an exported entry can leave its promise unchanged.
    if envelope_name(document) != envelope_name(event.envelope):
        return False
    journal.places[oid] = event.commit
    return True


def _write(repo: Journals, target: ImportTarget, ready: _Ready, held: ExitStack, limit: ClockLimit) -> None:
    """Put the fresh entries of a journal on the log's tip, in packs that are held until `held` ends."""
    journal = ready.journal
    reader = EntryReader(repo, journal.ref, journal.env, journal.topic)
    tip = target.tip(journal.topic)
    made = Plan(tip, tip)
    ready.made, ready.places, ready.problems = made, {}, []
    for number, oid in enumerate(ready.fresh, 1):
        sealed, draft = reader.event(oid, made.tip, ready.problems)
        assert draft.author is not None
        limit.check(SHIPLOG.option(journal.topic), sealed.ulid, made.tip.ulid)
        setting = AppendContext(ulid.time_ms(sealed.ulid), bytes(10), draft.author, lambda *_: None)
        ready.places[oid] = add_event(SHIPLOG, journal.topic, made, draft, sealed, setting, None).commit
        if number % BATCH == 0 or number == len(ready.fresh):
            held.enter_context(repo.put(made.objects))
            made.objects = []
