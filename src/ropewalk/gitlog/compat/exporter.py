"""A log of S0 written as a journal that `git shiplog` lists, shows, verifies and validates.

Every exported entry carries its ULID, its content id and the whole envelope in its trailer, so that an import
recognises it, and so that the journal alone gives the same event back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson

from ropewalk.errors import Conflict, HeadMoved, RopewalkError
from ropewalk.gitlog.compat.conversion import TIME_S_MAX, Journals, Problem, envelope_name, source_of
from ropewalk.gitlog.compat.entries import CompatEntry, note_refs, parse_entry
from ropewalk.gitlog.compat.journal import ImportTarget
from ropewalk.gitlog.core.anchor import anchors
from ropewalk.gitlog.core.commit import parse_message, rfc3339
from ropewalk.gitlog.core.envelope import Event
from ropewalk.gitlog.core.layout import COMPAT, LOG_NOTES, SHIPLOG, anchors_ref
from ropewalk.gitlog.core.log import get_object
from ropewalk.gitlog.core.notes import add_notes, list_notes
from ropewalk.gitlog.core.objects import (
    EMPTY_TREE,
    Commit,
    GitObject,
    Oid,
    encode_commit,
    object_id,
    parse_commit,
)

SEPARATOR = "---  # structured trailer for machines"
ROOT = "refs/_shiplog/"
BATCH = 1_000
ATTEMPTS_MAX = 6


@dataclass(slots=True)
class ExportReport:
    """What an export wrote, and what the bash tool may stumble over."""

    exported: int = 0
    skipped: int = 0
    refs: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "exported": self.exported,
            "skipped": self.skipped,
            "refs": self.refs,
            "problems": [problem.to_json() for problem in self.problems],
            "notes": self.notes,
        }


@dataclass(slots=True)
class _Journal:
    ref: str
    env: str
    head: str | None
    seq: int = -1
    places: dict[str, Oid] = field(default_factory=dict)  # our commit → the journal's commit


def export_journal(
    repo: Journals,
    target: ImportTarget,
    topic: str,
    env: str | None = None,
    cursors: Mapping[str, Oid] | None = None,
) -> ExportReport:
    """Bring a log's journal up to date. Entries the journal has and the log lacks must be imported first.

    `cursors`, groups with the last commit each has handled, are mirrored to `refs/_shiplog/consumers/`.
    """
    env = env or _env_of(target, topic)
    report = ExportReport()
    for attempt in range(ATTEMPTS_MAX):
        journal = _Journal(COMPAT.head_ref(env), env, repo.head(COMPAT.head_ref(env)))
        with repo.turn(journal.ref):
            try:
                _extend(repo, target, topic, journal, report)
                break
            except HeadMoved:
                if attempt + 1 == ATTEMPTS_MAX:
                    raise
                report.exported = report.skipped = 0
    if journal.head is not None:
        report.refs[journal.ref] = journal.head
    if repo.head(f"{ROOT}trust/root") is None:
        reason = "there is no trust root; git shiplog needs one before it appends or verifies"
        report.problems.append(Problem(f"{ROOT}trust/root", reason))
    _move_anchor(repo, topic, journal, report)
    _carry_notes(repo, journal, report)
    for group, commit in (cursors or {}).items():
        _mirror_cursor(repo, journal, group, commit, report)
    return report


def format_entry(trailer: Mapping[str, Any], parent: str | None) -> str:
    """Return the message of an entry: six lines for people, the separator, and the trailer as `jq -S` prints it."""
    what, where, why, when = (trailer[name] for name in ("what", "where", "why", "when"))
    artifact = f" {_line(what['artifact'])}" if what.get("artifact") else ""
    places = [where.get(name) for name in ("region", "cluster", "namespace")]
    places = [place for place in places if place]
    if places == [trailer["env"]]:
        places = []
    ticket = f"({_line(why['ticket'])})" if why.get("ticket") else ""
    anchor, trust = trailer.get("previous_anchor"), trailer.get("trust_oid")
    head = (
        f"Deploy: {_line(what['service'])}{artifact} → {'/'.join(_line(each) for each in (trailer['env'], *places))}",
        f"Reason: {_line(why.get('reason') or '—')} {ticket}",
        f"Status: {trailer['status'].upper()} ({when['dur_s']}s) @ {trailer['ts']}",
        f"Seq:    {trailer['seq']} (parent {parent[:7] if parent else '(genesis)'}, "
        f"trust {trust[:7] if trust else '(unset)'}, anchor {anchor[:7] if anchor else '(none)'})",
        f"Author: {_line(trailer['who']['email'])}",
        f"Repo:   {trailer.get('repo_head') or '(none)'}",
    )
    return "\n".join((*head, "", SEPARATOR, _pretty(trailer)))


def _env_of(target: ImportTarget, topic: str) -> str:
    """Return the environment a log came from, else its own name."""
    for event in target.events(topic, 0):
        source = source_of(event)
        if source is not None:
            return COMPAT.topic_of(source[0]) or topic
    return topic


def _written(repo: Journals, journal: _Journal) -> tuple[dict[tuple[str, str, str], Oid], set[str]]:
    """Return what the journal holds: our exports by ULID, content id and envelope, and every commit of it."""
    ours: dict[tuple[str, str, str], Oid] = {}
    oids: set[str] = set()
    tip = True
    for entry in _entries(repo, journal):
        trailer = entry.trailer or {}
        if tip and isinstance(trailer.get("seq"), int):
            journal.seq = trailer["seq"]
        named = envelope_name(trailer.get("envelope"))
        if "ulid" in trailer and "content_id" in trailer and named is not None:
            ours[str(trailer["ulid"]), str(trailer["content_id"]), named] = entry.oid
        oids.add(entry.oid)
        tip = False
    if journal.head is not None and journal.seq < 0:
        journal.seq = len(oids) - 1
    return ours, oids


def _entries(repo: Journals, journal: _Journal) -> Iterator[CompatEntry]:
    at = journal.head
    while at is not None:
        entry = parse_entry(Oid(at), get_object(repo, Oid(at), "commit"))
        yield entry
        at = entry.commit.parents[0] if entry.commit.parents else None


def _extend(
    repo: Journals, target: ImportTarget, topic: str, journal: _Journal, report: ExportReport
) -> None:
    ours, oids = _written(repo, journal)
    fresh: set[int] = set()
    for event in target.events(topic, 0):
        source = source_of(event)
        there = ours.get((event.ulid, event.content_id, envelope_name(event.envelope) or ""))
        if there is None and source is not None and source[0] == journal.ref and source[1] in oids:
            there = Oid(source[1])
        if there is None:
            fresh.add(event.height)
        else:
            journal.places[event.commit] = there
    foreign = oids.difference(journal.places.values())
    if foreign:
        raise Conflict(
            f"{journal.ref} holds {len(foreign)} entries that are not in {topic}, {min(foreign)} among them",
            ref=journal.ref,
            entry=min(foreign),
            advice="Bring them in first: `ropewalk shiplog import --from-compat`.",
        )
    report.skipped = len(journal.places)
    remaining = (event for event in target.events(topic, min(fresh, default=0)) if event.height in fresh)
    while batch := list(islice(remaining, BATCH)):
        _write(repo, journal, batch)
        report.exported += len(batch)


def _write(repo: Journals, journal: _Journal, batch: Sequence[Event]) -> None:
    trust, anchor = repo.head(f"{ROOT}trust/root"), repo.head(anchors_ref(COMPAT, journal.env))
    objects: list[GitObject] = [(EMPTY_TREE, "tree", b"")]
    places: dict[str, Oid] = {}
    head, seq = journal.head, journal.seq
    for event in batch:
        seq += 1
        head, made = _entry(repo, event, journal.env, head, seq, trust, anchor)
        objects.append(made)
        places[event.commit] = Oid(head)
    assert head is not None
    with repo.put(objects):
        repo.move_head(journal.ref, journal.head, head)
    journal.head, journal.seq = head, seq
    journal.places.update(places)


def _entry(
    repo: Journals,
    event: Event,
    env: str,
    parent: str | None,
    seq: int,
    trust: str | None,
    anchor: str | None,
) -> tuple[str, GitObject]:
    commit = parse_commit(get_object(repo, event.commit, "commit"))
    native = parse_message(commit.message).trailer or {}
    found = event.payload.get("trailer") if source_of(event) is not None else None
    trailer = _compat_trailer(native, found if isinstance(found, dict) else {}, event, commit, env)
    trailer |= {"seq": seq, "journal_parent": parent, "previous_anchor": anchor}
    trailer["trust_oid"] = trust or trailer.get("trust_oid")
    raw = encode_commit(
        Commit(
            EMPTY_TREE,
            (Oid(parent),) if parent else (),
            commit.author,
            commit.committer,
            format_entry(trailer, parent).encode("utf-8", "surrogateescape"),
        )
    )
    oid = object_id("commit", raw)
    return oid, (oid, "commit", raw)


def _compat_trailer(
    native: Mapping[str, Any], found: Mapping[str, Any], event: Event, commit: Commit, env: str
) -> dict[str, Any]:
    """Return every field the bash tool writes, from what the log knows; `found` is the trailer an import kept."""

    def part(name: str) -> dict[str, Any]:
        given = {**_object(native.get(name)), **_object(found.get(name))}
        return {key: value for key, value in given.items() if value is not None}

    who, what, where, why, how, when = (part(name) for name in ("who", "what", "where", "why", "how", "when"))
    ts = rfc3339(min(max(commit.committer.time_s, 0), TIME_S_MAX) * 1000)
    repo_head = native.get("repo_head") or found.get("repo_head")
    extra = {name: value for name, value in found.items() if name not in native}
    trailer: dict[str, Any] = {
        **extra,
        "version": 1,
        "env": env,
        "ts": found["ts"] if isinstance(found.get("ts"), str) and found["ts"] else ts,
        "who": {"name": "", "email": "", **who}
        if who
        else {"name": commit.author.name, "email": commit.author.mail},
        "what": {
            "artifact": None,
            **what,
            "service": what.get("service") or _named_service(event.payload) or event.topic,
            "repo_head": repo_head,
        },
        "where": {"region": None, "cluster": None, "namespace": env, **where, "env": env},
        "why": {"reason": None, "ticket": None, **why},
        "how": {"pipeline": None, "run_url": None, **how},
        "status": str(found.get("status") or native.get("status") or "success"),
        "when": {"start_ts": ts, "end_ts": ts, **when, "dur_s": _whole(when.get("dur_s"))},
        "trust_oid": native.get("trust_oid"),
        "repo_head": repo_head,
        "ulid": event.ulid,
        "content_id": event.content_id,
        "envelope": event.envelope,
    }
    plain: dict[str, Any] = _plain(trailer)
    return plain


def _named_service(payload: Mapping[str, Any]) -> str | None:
    """Return the service that an event without a deployment's trailer names in its payload."""
    name = payload.get("service")
    return name if isinstance(name, str) else None


def _move_anchor(repo: Journals, topic: str, journal: _Journal, report: ExportReport) -> None:
    """Move the compat anchor, a bare ref, to the newest anchor of the log."""
    try:
        newest = next(anchors(repo, SHIPLOG, topic), None)
    except RopewalkError as error:
        report.problems.append(
            Problem(anchors_ref(SHIPLOG, topic), f"its anchors cannot be read: {error.detail}")
        )
        return
    place = journal.places.get(newest.head) if newest is not None else None
    ref = anchors_ref(COMPAT, journal.env)
    there = repo.head(ref)
    if place is None or there == place:
        return
    order = {oid: at for at, oid in enumerate(journal.places.values())}
    if there is not None and order.get(Oid(there), -1) > order[place]:
        return  # the bash tool set a newer one; the next import takes it
    repo.move_head(ref, there, place)
    report.refs[ref] = place


def _mirror_cursor(repo: Journals, journal: _Journal, group: str, commit: Oid, report: ExportReport) -> None:
    """Put the mirror of a group's cursor on the entry of the journal that it stands for, forwards or backwards."""
    ref, place = f"{ROOT}consumers/{group}/{journal.env}", journal.places.get(commit)
    if place is None:
        report.problems.append(Problem(ref, f"group {group} is at {commit}, which the journal does not hold"))
        return
    there = repo.head(ref)
    if there != place:
        repo.move_head(ref, there, place)
    report.refs[ref] = place


def _carry_notes(repo: Journals, journal: _Journal, report: ExportReport) -> None:
    ref = note_refs(ROOT)[0]
    there = list_notes(repo, ref)
    ours = list_notes(repo, LOG_NOTES)
    fresh = {
        place: get_object(repo, ours[Oid(commit)], "blob")
        for commit, place in journal.places.items()
        if Oid(commit) in ours and place not in there
    }
    if not fresh:
        return
    newest = parse_commit(get_object(repo, list(fresh)[-1], "commit"))
    add_notes(repo, ref, fresh, newest.committer)
    report.notes = len(fresh)


def _pretty(trailer: Mapping[str, Any]) -> str:
    """Return JSON as `jq -S` prints it: two spaces, names in code point order, every character as itself."""
    return orjson.dumps(trailer, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode()


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(seconds: object) -> int:
    """Return whole seconds, as the bash tool counts them."""
    return int(seconds) if isinstance(seconds, (int, float)) and 0 <= seconds < 1e15 else 0


def _line(value: object) -> str:
    """Return a user's text within a line for people; indent further lines, so that none passes for the separator."""
    return "\n  ".join(str(value).splitlines()) if value else str(value)


def _plain(value: Any) -> Any:
    """Write integral doubles without a point, as jq does, and make texts valid UTF-8."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, str):
        # A name may hold bytes that were never UTF-8; JSON has no place for them.
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e17:
        return int(value)
    return value
