"""Verify every log of a repository, of every engine, without writing a byte."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.disk import key_files
from ropewalk.disk.repository_paths import RepositoryPaths
from ropewalk.errors import NotFound, RopewalkError, Unavailable, Unverified
from ropewalk.gitlog.compat.entries import ROOTS
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG, Layout
from ropewalk.gitlog.repository.clock import limit_of
from ropewalk.gitlog.repository.tracked_logs import TrackedLogs
from ropewalk.gitlog.store.object_store import GitStore
from ropewalk.gitlog.store.pack_check import damaged_packs
from ropewalk.gitlog.store.seen_heads import SeenHeads
from ropewalk.gitlog.verify.log_check import verify_log
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.report import Report, Status, Step

if TYPE_CHECKING:
    from ropewalk.ledger.proof.trust import Trust

NO_LOGS = (
    "there is no log under refs/gatos/ in this repository; a plain `git clone` leaves them behind, "
    "`git clone --mirror` brings them"
)


def verify_all(
    place: RepositoryPaths,
    ns: str | None = None,
    *,
    deep: bool = False,
    keys: Sequence[PublicKey] | None = None,
    trust: Trust | None = None,
    more_keys: Sequence[PublicKey] = (),
    progress: Callable[[int], None] = lambda _count: None,
) -> Report:
    """Return one report over every git log, ledger channel and gossip topic, or over those called `ns`.

    Anchors and signed heads must be signed by `keys` or by the block signers of `trust`. Without both, the repository's
    keys and `more_keys` count, and the signature of another key is reported as untrusted instead of failed. `trust`
    also names who seals channels; without it a channel's own settings do.
    """
    given = keys is not None or trust is not None
    believed = [*(keys or ()), *(trust.block_signers if trust is not None else ())]
    own = () if given else (*key_files.public_keys(place.keys), *more_keys)
    with contextlib.closing(GitStore(place)) as store:
        parts = (
            verify_gitlogs(store, ns, deep=deep, keys=believed, own_keys=own, progress=progress),
            _verify_channels(place.home, ns, deep, trust),
            _verify_topics(place.home, ns),
        )
    if ns is not None and not any(part.steps for part in parts):
        raise NotFound(f"there is no log {ns!r} in {place.git_dir}", topic=ns)
    return Report.of(
        (step for part in parts for step in part.steps), entries=sum(part.entries for part in parts)
    )


def _verify_channels(home: Path, only: str | None, deep: bool, trust: Trust | None) -> Report:
    # Each engine is loaded only where a repository may hold something of it: most have one.
    from ropewalk.ledger.channel.settings import channels

    steps: list[Step] = []
    entries = 0
    for channel in channels(home):
        if only in (None, channel):
            from ropewalk.ledger.channel.maintenance import verify_stored

            try:
                report = verify_stored(home, channel, trust=trust, deep=deep)
            except Unverified as error:
                report = Report.of([Step("settings", "failed", error.detail)])
            steps += _of_log(f"ledger/{channel}", report.steps)
            entries += report.entries
    return Report.of(steps, entries=entries)


def _verify_topics(home: Path, only: str | None) -> Report:
    from ropewalk.gossip.core.verify import verify_log as verify_topic
    from ropewalk.gossip.peer.topics import open_topic, topics

    steps: list[Step] = []
    entries = 0
    for topic in topics(home):
        if only in (None, topic):
            try:
                with open_topic(home, topic, create=False) as log:
                    report = verify_topic(log)
            except RopewalkError as error:
                status: Status = "not_checked" if isinstance(error, Unavailable) else "failed"
                report = Report.of([Step("open", status, error.detail)])
            steps += _of_log(f"gossip/{topic}", report.steps)
            entries += report.entries
    return Report.of(steps, entries=entries)


def _of_log(log: str, steps: Sequence[Step]) -> Iterator[Step]:
    return (replace(step, name=f"{log}:{step.name}") for step in steps)


def verify_gitlogs(
    store: GitStore,
    ns: str | None = None,
    *,
    deep: bool = False,
    keys: Sequence[PublicKey] = (),
    own_keys: Sequence[PublicKey] = (),
    now_ms: int | None = None,
    layouts: Sequence[Layout] = (SHIPLOG, MESSAGES),
    progress: Callable[[int], None] = lambda _count: None,
) -> Report:
    """Return one report over the git logs, or over those called `ns`; with several, steps are named `<log>:<step>`."""
    lines = TrackedLogs(store)
    logs = []
    for layout in layouts:
        # The refs step says why they cannot be listed, if they cannot.
        names = lines.names(layout, tolerant=True)
        logs += [(layout, topic) for topic in names if ns in (None, topic)]
    refs_step = _refs_step(store, ns)
    steps = [refs_step] if logs or ns is None or refs_step.status == "failed" else []
    entries = 0
    limit = limit_of(store, time.time_ns() // 1_000_000 if now_ms is None else now_ms)
    for layout, topic in logs:
        before = entries
        known, damage = _seen_before(lines.seen, layout.head_ref(topic))
        report = verify_log(
            store,
            layout,
            topic,
            seen=known,
            keys=keys,
            own_keys=own_keys,
            limit=limit,
            progress=lambda count, before=before: progress(before + count),  # type: ignore[misc]
        )
        prefix = "" if len(logs) == 1 else f"{layout.name}/{topic}:"
        for step in report.steps:
            if damage and step.name == "seen_head":
                step = Step("seen_head", "failed", damage)
            steps.append(replace(step, name=prefix + step.name, detail=step.detail + _hint(store, step)))
        entries += report.entries
    if logs or ns is None:
        steps.append(_packs_step(store, deep=deep))
    if ns is None:
        steps += _unwalked(store, logs=len(logs))
    return Report.of(steps, entries=entries)


def _seen_before(seen: SeenHeads, ref: str) -> tuple[str | None, str]:
    """Return the head seen last, and why it cannot be read, if it cannot."""
    try:
        return seen.get(ref), ""
    except RopewalkError as error:
        return None, error.detail


def _hint(store: GitStore, step: Step) -> str:
    """Return what a break may come from."""
    if step.name == "chain" and step.status == "failed" and (store.place.git_dir / "shallow").exists():
        return "; this is a shallow clone, `git fetch --unshallow` brings the rest"
    return ""


def _names(store: GitStore, prefix: str) -> list[str]:
    try:
        return store.head_names(prefix)
    except RopewalkError:
        return []  # the refs step says why


def _refs_step(store: GitStore, ns: str | None) -> Step:
    """Return whether every ref can be read (of one log: listed), for damage may hide a log altogether."""
    try:
        count = len(store.heads("refs/gatos/") if ns is None else store.head_names("refs/gatos/"))
    except RopewalkError as error:
        return Step("refs", "failed", error.detail)
    return Step("refs", "passed", f"{count} refs can be {'read' if ns is None else 'listed'}")


def _unwalked(store: GitStore, *, logs: int) -> Iterator[Step]:
    """Yield a step for what the caller may expect to be verified here, and was not."""
    journals = sum(len(_names(store, f"{root}journal/")) for root in ROOTS)
    if not logs:
        # An empty repository of ours is whole. A clone that left the logs behind has verified nothing.
        ours = store.place.home.is_dir() and not journals
        yield Step("logs", "not_checked", NO_LOGS, need="optional" if ours else "required")
    if journals:
        yield Step.optional("journals", f"{journals} journals of git shiplog; an import judges them")


def _packs_step(store: GitStore, *, deep: bool) -> Step:
    if not deep:
        return Step.optional("packs", "the checksums of whole packs are checked with --deep")
    damage = [each for folder in store.pack_folders for each in damaged_packs(folder)]
    if damage:
        return Step("packs", "failed", "; ".join(damage[:5]))
    return Step("packs", "passed", "every byte of every pack has its checksum")
