"""Pull logs from a remote and push them to it, with plain git underneath."""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ropewalk.errors import Conflict, Denied, HeadMoved
from ropewalk.gitlog.core.layout import CONSUMERS, MESSAGES, SHIPLOG, Layout
from ropewalk.gitlog.sharing.git_command import git_failure, run_git
from ropewalk.gitlog.sharing.log_merge import LogChange, compare, merge_log
from ropewalk.gitlog.sharing.ref_merge import chain_refs, merge_chain, merge_cursor, merge_notes
from ropewalk.gitlog.sharing.remotes import SHARED, configure, fetch, is_mirror, tracking_prefix, tracking_ref

if TYPE_CHECKING:
    from ropewalk.gitlog.repository.repository import GitRepository

ATTEMPTS_MAX = 20  # pushes that lose against another pusher
PAUSE_S = 0.2  # before another attempt, times the attempts, with jitter
REFS_MAX = 400  # refs of one git push: their names must fit a command line
RACES = (
    "stale info",
    "fetch first",
    "non-fast-forward",
    "failed to update ref",
    "cannot lock ref",
    "incorrect old",
)
LOCK = "Unable to create '", "': File exists"  # around the name of its file


@dataclass(slots=True)
class Exchange:
    """What a pull or a push did."""

    remote: str
    fetched: dict[str, int] = field(default_factory=dict)
    reappended: dict[str, int] = field(default_factory=dict)
    diverged: list[str] = field(default_factory=list)
    pushed: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(
        default_factory=dict
    )  # anchors and signed heads of displaced events, by ref

    def add(self, change: LogChange) -> None:
        """Count what happened to one log."""
        for counts, number in ((self.fetched, change.fetched), (self.reappended, change.reappended)):
            if number:
                counts[change.log] = counts.get(change.log, 0) + number
        if change.diverged:
            self.diverged.append(change.log)


def pull(log: GitRepository, remote: str, *, who: str, interactive: bool = False) -> Exchange:
    """Fetch the logs of a remote and fast-forward ours. Logs to which both sides appended stay as they are."""
    done = Exchange(remote)
    with log.store.turn("refs/ropewalk/exchange"):
        _pull(log, done, who=who, rebase=False, interactive=interactive)
    return done


def push(
    log: GitRepository, remote: str, *, who: str, rebase: bool = True, interactive: bool = False
) -> Exchange:
    """Send our logs to a remote. Where both sides appended, first re-append our events behind theirs.

    Every ref moves from the value we have fetched, all or none. If another pusher was faster, start again.
    """
    done = Exchange(remote)
    if is_mirror(log.store.place.git_dir, remote):
        raise Conflict(
            f"this repository is a mirror of {remote}: each `git fetch` overwrites the logs here",
            advice="Append in a clone that `ropewalk clone` made, and push from there.",
        )
    refused: list[str] = []
    with log.store.turn("refs/ropewalk/exchange"):
        for attempt in range(ATTEMPTS_MAX):
            _pull(log, done, who=who, rebase=rebase, interactive=interactive)
            if done.diverged:
                raise HeadMoved(
                    f"{remote} has events that are not here, in {', '.join(done.diverged)}",
                    logs=done.diverged,
                    advice="Push without --no-rebase: your events are re-appended behind them.",
                )
            refused.append(_push(log, done, interactive=interactive))
            if not refused[-1]:
                return done
            time.sleep(PAUSE_S * (attempt + 1) * random.random())  # noqa: S311 - jitter
    locks = set.intersection(*map(_locks, refused))
    if locks:  # a lock that only some attempts met was another pusher's
        raise Conflict(
            f"{remote} kept a ref locked during all of {ATTEMPTS_MAX} attempts, with the file {min(locks)} there",
            advice="If no git is at work there, a stopped one left the file: remove it, and push again.",
        )
    raise Conflict(
        f"{remote} moved during all of {ATTEMPTS_MAX} attempts", advice="Push again when fewer others push."
    )


def _locks(said: str) -> set[str]:
    """Return the lock files that git could not make, in time that grows with what the remote says."""
    after = (line.partition(LOCK[0])[2] for line in said.splitlines())
    return {name for each in after if (name := each.rpartition(LOCK[1])[0]).endswith(".lock")}


def _pull(log: GitRepository, done: Exchange, *, who: str, rebase: bool, interactive: bool) -> None:
    store, remote = log.store, done.remote
    configure(store.place.git_dir, remote)
    base = _tracked(log, remote)
    store.refs.break_abandoned(tracking_prefix(remote))  # git would ask a person to remove each
    fetch(store.place.git_dir, remote, interactive=interactive)
    theirs = _tracked(log, remote)
    done.diverged.clear()
    for ref in [ref for ref in theirs if ref.startswith(SHARED[1])]:
        merge_notes(log, ref, theirs[ref])
    topics = {layout: _topics(log, layout, theirs) for layout in (SHIPLOG, MESSAGES)}
    for layout, names in topics.items():
        for topic in names:
            head = theirs.get(layout.head_ref(topic))
            done.add(merge_log(log, layout, topic, head, who=who, rebase=rebase))
    for ref, (layout, topic) in chain_refs(topics).items():
        if f"{layout.name}/{topic}" not in done.diverged and (ref in theirs or store.head(ref) is not None):
            dropped = merge_chain(log, ref, layout, topic, theirs.get(ref))
            if dropped:
                done.dropped[ref] = dropped
    for ref in [ref for ref in theirs if ref.startswith(CONSUMERS)]:
        merge_cursor(log, ref, base.get(ref), theirs[ref])


def _tracked(log: GitRepository, remote: str) -> dict[str, str]:
    """Return the refs of a remote as they were fetched last, by the names they have there."""
    prefix = tracking_prefix(remote)
    return {f"refs/{ref.removeprefix(prefix)}": oid for ref, oid in log.store.heads(prefix).items()}


def _topics(log: GitRepository, layout: Layout, theirs: dict[str, str]) -> list[str]:
    found = {topic for ref in theirs if (topic := layout.topic_of(ref)) is not None}
    return sorted(found.union(log.topics(layout)))


def _push(log: GitRepository, done: Exchange, *, interactive: bool) -> str:
    """Send every ref that differs; return what git says if the remote has moved, else nothing."""
    theirs = _tracked(log, done.remote)
    ours = {ref: oid for prefix in SHARED for ref, oid in log.store.heads(prefix).items()}
    changed = {ref: oid for ref, oid in ours.items() if theirs.get(ref) != oid}
    names = sorted(changed, key=lambda ref: (not ref.startswith(SHARED[1]), ref))
    for start in range(0, len(names), REFS_MAX):
        some = {ref: changed[ref] for ref in names[start : start + REFS_MAX]}
        refused = _push_refs(log, done.remote, some, theirs, interactive=interactive)
        if refused:
            return refused
        for ref, oid in some.items():
            _count(log, done, ref, oid, theirs.get(ref))
            _track(log, tracking_ref(done.remote, ref), oid)
    return ""


def _push_refs(
    log: GitRepository, remote: str, refs: dict[str, str], theirs: dict[str, str], *, interactive: bool
) -> str:
    leases = [f"--force-with-lease={ref}:{theirs.get(ref, '')}" for ref in refs]
    updates = [f"{oid}:{ref}" for ref, oid in refs.items()]
    arguments = ["push", "--porcelain", "--atomic", "--no-follow-tags", *leases, "--", remote, *updates]
    result = run_git(log.store.place.git_dir, *arguments, interactive=interactive)
    if result.returncode == 0:
        return ""
    text = result.stdout.decode("utf-8", "replace")
    said = result.stderr.decode("utf-8", "replace")
    if "hook declined" in text:
        lines = [
            line.removeprefix("remote:").strip() for line in said.splitlines() if line.startswith("remote:")
        ]
        raise Denied(
            f"{remote} refused the push: {'; '.join(filter(None, lines)) or 'its hook gave no reason'}",
            advice="Correct what its hook names, or ask the owner of the remote.",
        )
    if any(reason in text + said for reason in RACES):
        return text + said
    if reason := re.search(r"\[remote rejected\] \((.*)\)$", text, re.MULTILINE):
        raise Denied(
            f"{remote} refused the push: {reason[1]}",
            advice="Ask the owner of the remote to accept refs/gatos/*.",
        )
    raise git_failure(arguments, result.stderr + result.stdout)  # a local pre-push hook writes to stdout


def _count(log: GitRepository, done: Exchange, ref: str, ours: str, theirs: str | None) -> None:
    for layout in (SHIPLOG, MESSAGES):
        topic = layout.topic_of(ref)
        if topic is not None:
            name = f"{layout.name}/{topic}"
            sent = len(compare(log.store, layout, topic, ours, theirs).displaced)
            done.pushed[name] = done.pushed.get(name, 0) + sent


def _track(log: GitRepository, ref: str, oid: str) -> None:
    """Note what the remote has now; git itself may have done so already."""
    now = log.store.head(ref)
    if now != oid:
        log.store.move_head(ref, now, oid)
