"""`ropewalk heads`: list, compare, accept and sign heads of logs; record displaced events again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import answer_line, emit, emit_line, fail, group, say, session
from ropewalk.cli.common.locations import NODE_KEY, login, signing_key
from ropewalk.cli.common.options import flag, integer, option, together
from ropewalk.cli.git.events import opened, receipt_line, short
from ropewalk.errors import RopewalkError, Unavailable, Usage
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG, Layout
from ropewalk.kernel.terminal_text import printable

if TYPE_CHECKING:
    from ropewalk.gitlog.core.divergence import DivergedEntry, LogDivergence
    from ropewalk.gitlog.repository.repository import GitRepository

ROWS_DEFAULT = 20
TYPE_CHARACTERS_MAX = 40  # in a table for people
log_options: Callable[[Any], Any] = together(
    option("--ns", "NS", "The namespace."), option("--topic", "TOPIC", "The topic, for messages.")
)


def named_log(ns: str | None, topic: str | None) -> tuple[Layout, str]:
    """Return the log named by these options."""
    if ns is not None and topic is None:
        return SHIPLOG, ns
    if topic is not None and ns is None:
        return MESSAGES, topic
    raise Usage("exactly one of --ns NS and --topic T must be given")


@group("heads", "ropewalk heads ls", "ropewalk heads diff --ns prod", "ropewalk heads sign --ns prod")
def heads() -> None:
    """List, compare, accept and sign heads of logs."""


@heads.command("ls", "ropewalk heads ls --json")
def ls() -> None:
    """List every log with its head and the head seen last. If one cannot be read, exit with that error's code."""
    with opened() as log:
        rows: list[dict[str, Any]] = []
        code = 0
        for layout in (SHIPLOG, MESSAGES):
            # Also logs seen before whose ref is missing.
            gone = (ref for ref in log.lines.seen.refs(layout.prefix) if layout.topic_of(ref) is not None)
            for ref in sorted({*map(layout.head_ref, log.topics(layout)), *gone}):
                row = {"ref": ref, "head": None, "seen": None, "problem": None}
                for name, look in (("head", log.store.head), ("seen", log.lines.seen.get)):
                    try:
                        row[name] = look(ref)
                    except RopewalkError as error:
                        row["problem"] = row["problem"] or error.detail
                        code = code or error.exit_code
                        if not session().json:
                            fail(error, as_json=False)
                rows.append(row)
        width = max((len(str(row["ref"])) for row in rows), default=0)
        lines = (
            f"{r['ref']:<{width}}  {'unreadable' if r['problem'] else short(r['head'] or '-'):<7}  "
            f"seen {short(r['seen'] or '-')}"
            for r in rows
        )
        emit({"heads": rows}, lines, "no logs")
        if code:
            raise click.exceptions.Exit(code)


@heads.command(
    "accept", "ropewalk heads accept --ns governance", "ropewalk heads accept --ns governance --forget"
)
@log_options
@flag("--forget", "Do not keep displaced events; git will prune them.")
def accept(ns: str | None, topic: str | None, forget: bool) -> None:
    """Accept a rewritten history, and record who accepted it, when, and both heads.

    Displaced events stay under refs/ropewalk/displaced/, for `heads diff --old` and `heads rescue`.
    """
    layout, name = named_log(ns, topic)
    with opened() as log:
        done = log.lines.accept(layout, name, f"{login()[0]} {log.store.identity}", keep=not forget)
        found = done.divergence
        counted = ("displaced", "lost", "gone")
        counts = {name: 0 if found is None else len(getattr(found, name)) for name in counted}
        answer: dict[str, Any] = {"ref": done.ref, "old": done.old, "head": done.head}
        answer |= {"accepted": done.anew or found is not None, **counts, "kept": done.kept}
        moved = f"ok  {done.ref}: {short(done.old or '-')} -> {short(done.head or '-')}"
        if done.anew:
            moved = f"ok  {done.ref}: the head seen before was damaged; {short(done.head or '-')} is seen now"
        elif found is None:
            moved = f"ok  {done.ref}: nothing to accept, {short(done.head or '-')} contains all that was seen"
        emit(answer, moved)
        if found is None or forget:
            return
        if done.kept is None:
            say(
                f"{len(found.gone)} of {len(found.displaced)} displaced entries are not there any more, so the line "
                f"cannot be kept: `ropewalk heads rescue --old {short(done.old or '-')}` records again what is left, "
                "until git clears it away"
            )
        elif found.lost:
            say(
                f"{len(found.lost)} displaced events are kept as {done.kept}; "
                "`ropewalk heads rescue` records them again"
            )


@heads.command("sign", "ropewalk heads sign --ns prod --key ada")
@log_options
@click.option("--key", default=NODE_KEY, help="Signing key (ed25519).")
def sign(ns: str | None, topic: str | None, key: str) -> None:
    """Sign the current head of a log: a C2SP note over a Merkle tree of its content ids."""
    from ropewalk.gitlog.repository.signing import sign_log

    layout, name = named_log(ns, topic)
    with opened() as log:
        head, stored, vkey = sign_log(log, name, signing_key(key), layout=layout)
        note = stored.note.decode()
        answer = {"origin": head.origin, "size": head.size, "root": head.root.hex(), "commit": stored.commit}
        emit({**answer, "vkey": vkey, "note": note}, note.rstrip("\n"))


@heads.command(
    "diff",
    "ropewalk heads diff --ns governance",
    "ropewalk heads diff --ns governance --jsonl > displaced.jsonl",
)
@log_options
@option("--old", "COMMIT", "Compare with the history of this commit (default: the head seen last).")
@integer("--limit", "N", "Maximum number of events to show per side; all are counted.", default=ROWS_DEFAULT)
@flag("--jsonl", "Print the lost events, one per line, ready to append.")
def diff(ns: str | None, topic: str | None, old: str | None, limit: int, jsonl: bool) -> None:
    """Show where the history seen before and the current one diverge, and the events only one of them has."""
    layout, name = named_log(ns, topic)
    with opened() as log:
        found = log.lines.compare(layout, name, log.store.resolve(old.lower()) if old is not None else None)
        if jsonl:
            _print_lost(log, layout, name, found)
            return
        shown = _divergence_json(log, layout, name, found, limit)
        emit(shown, lambda: _divergence_text(shown))
        kept = [] if found.displaced else log.lines.kept(layout, name)
        if kept:
            say(f"displaced histories are kept; show one with --old: {' '.join(map(short, kept))}")


@heads.command(
    "rescue",
    "ropewalk heads rescue --ns governance",
    "ropewalk heads rescue --topic jobs/pending --old 8b1c1e4",
)
@log_options
@option("--old", "COMMIT", "Rescue only the history of this commit (default: all displaced histories).")
@flag("--allow-secret", "Record the event even if it seems to contain a secret.")
def rescue(ns: str | None, topic: str | None, old: str | None, allow_secret: bool) -> None:
    """Record displaced events again on top of the accepted history. Running it twice records nothing twice.

    Each event gets a new ULID and position, and keeps its old content id under `refs.displaced`.
    """
    from ropewalk.gitlog.repository.rescue import rescue as record_again

    layout, name = named_log(ns, topic)
    answer: dict[str, Any] = {"ref": layout.head_ref(name), "rescued": [], "problems": []}
    code = 0
    with opened() as log:
        log.allow_secrets = allow_secret
        commit = log.store.resolve(old.lower()) if old is not None else None
        for each in record_again(log, name, old=commit, layout=layout):
            was = {"displaced": {"ulid": each.entry.ulid, "commit": each.entry.commit}}
            if isinstance(each.outcome, RopewalkError):
                code = code or each.outcome.exit_code
                answer["problems"].append({**was, **each.outcome.to_problem()})
                if not session().json:
                    say(f"{each.entry.ulid or '-'}  {short(each.entry.commit)} is not recorded again:")
                    fail(each.outcome, as_json=False)
                continue
            new = each.outcome
            names = {"ulid": new.ulid, "content_id": new.content_id, "commit": new.commit}
            answer["rescued"].append({**was, **names})
            if not session().json:
                answer_line({}, f"{each.entry.ulid}  {receipt_line(new)}")
    if session().json:
        emit_line(answer)
    elif not code and not answer["rescued"]:
        say("nothing to rescue: the log has every displaced event that is kept here")
    if code:
        raise click.exceptions.Exit(code)


def _print_lost(log: GitRepository, layout: Layout, topic: str, found: LogDivergence) -> None:
    """Print lost events as documents to append; name unreadable ones on stderr and exit with 5."""
    from ropewalk.gitlog.core.divergence import draft_of, event_at

    code = 0
    for stood in found.lost:
        if stood.problem is not None:
            code = 5
            say(f"{short(stood.commit)} {stood.ulid or '-'} is lost: {stood.problem}")
            continue
        emit_line(
            dict(draft_of(log.store, layout, event_at(log.store, layout, topic, stood.commit)).document)
        )
    if code:
        raise click.exceptions.Exit(code)


def _divergence_json(
    log: GitRepository, layout: Layout, topic: str, found: LogDivergence, limit: int
) -> dict[str, Any]:
    def rows(entries: tuple[DivergedEntry, ...]) -> list[dict[str, Any]]:
        return [_row(log, layout, topic, each) for each in entries[:limit]]

    return {
        "ref": found.ref,
        "old": found.old,
        "head": found.new,
        "parted": found.parted,
        "cut": found.cut,
        "counts": {name: len(getattr(found, name)) for name in ("displaced", "lost", "gone", "added")},
        "displaced": rows(found.displaced),
        "added": rows(found.added),
    }


def _row(log: GitRepository, layout: Layout, topic: str, stood: DivergedEntry) -> dict[str, Any]:
    from ropewalk.gitlog.core.divergence import event_at

    kind: object = None
    problem = stood.problem
    if problem is None:
        try:
            kind = event_at(log.store, layout, topic, stood.commit).envelope.get("type")
        except Unavailable:
            raise
        except RopewalkError as error:
            problem = error.detail
    return {
        "ulid": stood.ulid,
        "type": kind if isinstance(kind, str) else None,
        "content_id": stood.content_id,
        "commit": stood.commit,
        "again": stood.again,
        "problem": problem,
    }


def _divergence_text(shown: dict[str, Any]) -> str:
    counts = shown["counts"]
    now = short(shown["head"]) if shown["head"] else "gone"
    lines = [f"{shown['ref']}: before {short(shown['old'] or '-')}, now {now}"]
    if shown["cut"]:
        lines.append(f"the common ancestor is unknown: commit {short(shown['cut'])} is missing")
    elif shown["parted"]:
        lines.append(f"both have everything up to {short(shown['parted'])}")
    elif shown["old"] and shown["head"]:
        lines.append("they have no entry in common")
    said = f"displaced: {counts['displaced']}"
    if counts["displaced"]:
        again = counts["displaced"] - counts["lost"]
        said += f" ({counts['lost']} lost, {again} recorded again, {counts['gone']} unreadable)"
    lines += [said, *_row_lines("-", shown["displaced"], counts["displaced"])]
    if not shown["cut"]:
        lines += [f"added: {counts['added']}", *_row_lines("+", shown["added"], counts["added"])]
    return "\n".join(lines)


def _row_lines(mark: str, rows: list[dict[str, Any]], count: int) -> list[str]:
    width = max((len(_printed_type(row)) for row in rows), default=0)
    lines = []
    for row in rows:
        note = f"  as {short(row['again'])}" if row["again"] else ""
        note += f"  {row['problem']}" if row["problem"] else ""
        lines.append(
            f"{mark} {row['ulid'] or '-':<26}  {_printed_type(row):<{width}}  {short(row['content_id'] or '-'):<12}  "
            f"{short(row['commit'])}{note}"
        )
    return lines + ([f"  … and {count - len(rows)} more"] if count > len(rows) else [])


def _printed_type(row: dict[str, Any]) -> str:
    """Return an event type made safe for a terminal: other authors choose it."""
    return printable(row["type"] or "-", TYPE_CHARACTERS_MAX)
