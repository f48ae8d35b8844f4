"""Verify everything a repository holds of gitlog, without writing a byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ropewalk.errors import RopewalkError
from ropewalk.gitlog.compat import ROOTS
from ropewalk.gitlog.layout import MESSAGES, SHIPLOG
from ropewalk.gitlog.verify import verify_log
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.report import Report, Step
from ropewalk.stores.git import GitStore
from ropewalk.stores.gitcheck import damaged_packs
from ropewalk.stores.gitseen import SeenHeads

__all__ = ["verify_repository"]


def verify_repository(
    store: GitStore,
    ns: str | None = None,
    *,
    deep: bool = False,
    keys: Sequence[PublicKey] = (),
    progress: Callable[[int], None] = lambda _count: None,
) -> Report:
    """One report over every log, or over those called `ns`. Steps are named `<log>:<step>` when there are several."""
    seen = SeenHeads(store.place.home / "seen", store.disk)
    logs = []
    for layout in (SHIPLOG, MESSAGES):
        # A head that was seen and is gone is missing, not absent; one that cannot be read fails its own log only.
        refs = {*_names(store, layout.prefix), *seen.refs(layout.prefix)}
        topics = {topic for ref in refs if (topic := layout.topic_of(ref)) is not None}
        logs += [(layout, topic) for topic in sorted(topics) if ns in (None, topic)]
    refs_step = _refs_step(store, ns)
    steps = [refs_step] if logs or ns is None or refs_step.status == "failed" else []
    entries = 0
    for layout, topic in logs:
        before = entries
        report = verify_log(
            store,
            layout,
            topic,
            seen=seen.get(layout.head_ref(topic)),
            keys=keys,
            progress=lambda count, before=before: progress(before + count),  # type: ignore[misc]
        )
        prefix = "" if len(logs) == 1 else f"{layout.name}/{topic}:"
        steps += [
            Step(prefix + step.name, step.status, step.detail + _hint(store, step)) for step in report.steps
        ]
        entries += report.entries
    if logs or ns is None:
        steps.append(_packs_step(store, deep=deep))
    if ns is None:
        steps += _unwalked(store, logs=len(logs))
    return Report.of(steps, entries=entries)


def _hint(store: GitStore, step: Step) -> str:
    """What a break may come from."""
    if step.name == "chain" and step.status == "failed" and (store.place.git_dir / "shallow").exists():
        return "; this is a shallow clone, `git fetch --unshallow` brings the rest"
    return ""


def _names(store: GitStore, prefix: str) -> list[str]:
    try:
        return store.head_names(prefix)
    except RopewalkError:
        return []  # the refs step says why


def _refs_step(store: GitStore, ns: str | None) -> Step:
    """Whether every ref can be read (of one log: listed), for damage may hide a log altogether."""
    try:
        count = len(store.heads("refs/gatos/") if ns is None else store.head_names("refs/gatos/"))
    except RopewalkError as error:
        return Step("refs", "failed", error.detail)
    return Step("refs", "passed", f"{count} refs can be {'read' if ns is None else 'listed'}")


def _unwalked(store: GitStore, *, logs: int) -> Iterator[Step]:
    """What somebody may have expected to be verified here, and was not."""
    if not logs:
        yield Step("logs", "not_checked", "there is no log under refs/gatos/ in this repository")
    journals = sum(len(_names(store, f"{root}journal/")) for root in ROOTS)
    if journals:
        yield Step("journals", "not_checked", f"{journals} journals of git shiplog; an import judges them")


def _packs_step(store: GitStore, *, deep: bool) -> Step:
    if not deep:
        return Step("packs", "not_checked", "the checksums of whole packs are checked with --deep")
    damage = [each for folder in store.pack_folders for each in damaged_packs(folder)]
    if damage:
        return Step("packs", "failed", "; ".join(damage[:5]))
    return Step("packs", "passed", "every byte of every pack has its checksum")
