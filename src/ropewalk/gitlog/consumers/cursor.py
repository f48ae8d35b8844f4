"""How far a consumer has got: `refs/gatos/consumers/<group>/<topic>`, by commit (S0) or by ULID (S1).

One ref name serves both specifications. Its value is read by its object type; it is written in the form of the
layout and one form never replaces the other unasked. A cursor is advisory: it proves nothing, and one that names a
commit outside the chain still means its ULID.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ropewalk.errors import BrokenLink, Conflict, Invalid, OutOfOrder, RopewalkError, Unavailable
from ropewalk.gitlog.core.commit import parse_message
from ropewalk.gitlog.core.layout import CONSUMERS, MESSAGES, Layout, consumer_ref
from ropewalk.gitlog.core.log import Repo
from ropewalk.gitlog.core.objects import Oid, object_id, parse_commit
from ropewalk.gitlog.core.planning import IndexedEntry
from ropewalk.gitlog.core.reading import LogView
from ropewalk.kernel import jcs, ulid
from ropewalk.kernel.schema import shipped as schema
from ropewalk.kernel.ulid import Ulid


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last event a group has handled. `target` is the object the ref points to, `by` the kind of that object."""

    group: str
    topic: str
    ulid: Ulid
    commit: Oid | None
    target: Oid
    by: str

    @property
    def ref(self) -> str:
        """The ref the cursor is kept in."""
        return f"{CONSUMERS}{self.group}/{self.topic}"  # also one of a name that only other software would choose


def read_cursor(repo: Repo, group: str, topic: str) -> Cursor | None:
    """Return the position of a group in a topic, None if it has not begun."""
    target = repo.head(consumer_ref(group, topic))
    if target is None:
        return None
    kind: str = "object"
    try:
        kind, raw = repo.get(target)
        if kind == "commit":
            name = parse_message(parse_commit(raw).message).ulid
            return Cursor(group, topic, name, Oid(target), Oid(target), kind)
        name, commit = _parse(raw)
        return Cursor(group, topic, name, commit, Oid(target), kind)
    except RopewalkError as error:
        if isinstance(error, Unavailable):
            raise
        raise BrokenLink(
            f"{consumer_ref(group, topic)} points to {target}, {_a(kind)} that is no checkpoint",
            ref=consumer_ref(group, topic),
            advice="Set it again with `ropewalk consumer reset`.",
        ) from error


def find_cursor(repo: Repo, group: str, topic: str) -> Cursor | None:
    """Return what `read_cursor` does; one that cannot be read has no ULID, so that it can be listed and set again."""
    try:
        return read_cursor(repo, group, topic)
    except (BrokenLink, Invalid):
        target = ""
        with suppress(BrokenLink, Invalid):  # a torn ref has no target either, and only git can set it again
            target = repo.head(consumer_ref(group, topic)) or ""
        return Cursor(group, topic, Ulid(""), None, Oid(target), "nothing")


def _parse(raw: bytes) -> tuple[ulid.Ulid, Oid | None]:
    """Parse the document of a checkpoint; other software writes `commit_oid`."""
    document = jcs.parse_foreign(raw)
    if isinstance(document, dict):
        name, commit = document.get("ulid"), document.get("commit", document.get("commit_oid"))
        if isinstance(name, str) and (commit is None or isinstance(commit, str)):
            return ulid.parse(name), Oid(commit) if commit else None
    raise Invalid("a checkpoint is an object with a ulid and, maybe, a commit")


def _a(kind: str) -> str:
    return f"an {kind}" if kind == "object" else f"a {kind}"


def height_of(line: LogView, cursor: Cursor | None) -> int:
    """Return the height of the last event a cursor covers; -1 before the first."""
    if cursor is None:
        return -1
    slot = line.find(cursor.ulid)
    return slot.height if slot is not None else line.first_above(cursor.ulid) - 1


def kind_kept(layout: Layout) -> str:
    """Return what a layout keeps in a cursor's ref: S0 a commit, S1 a blob of JSON."""
    return "blob" if layout is MESSAGES else "commit"


def check_kind(layout: Layout, old: Cursor | None) -> None:
    """Refuse to use a cursor that belongs to a consumer of the other specification."""
    if old is not None and old.by != kind_kept(layout):
        raise Conflict(
            f"{old.ref} holds a {old.by}; this layout keeps a {kind_kept(layout)} there",
            ref=old.ref,
            advice="The other specification's consumer uses this name; choose another group, or `consumer reset`.",
        )


def move_cursor(
    repo: Repo,
    layout: Layout,
    group: str,
    topic: str,
    place: IndexedEntry,
    old: Cursor | None,
    *,
    backwards: bool = False,
    other_kind: bool = False,
) -> Cursor:
    """Put a group's cursor on an event, by compare-and-swap against `old`."""
    by = kind_kept(layout)
    if not other_kind:
        check_kind(layout, old)
    if old is not None and place.ulid < old.ulid and not backwards:
        raise OutOfOrder(
            f"{old.ref} is at {old.ulid}; {place.ulid} is before it",
            ref=old.ref,
            advice="Going back is `ropewalk consumer reset` (or `checkpoint set --reset`).",
        )
    ref = consumer_ref(group, topic)
    expected = old.target if old is not None else None
    if by == "commit":
        target = Oid(place.commit)
        if target != expected:
            repo.move_head(ref, expected, target)
    else:
        document: dict[str, Any] = {"ulid": place.ulid, "commit": place.commit}
        schema.validate("message-plane/consumer_checkpoint", document)
        raw = jcs.encode(document)
        target = object_id("blob", raw)
        if target != expected:
            with repo.put([(target, "blob", raw)]):
                repo.move_head(ref, expected, target)
    return Cursor(group, topic, place.ulid, Oid(place.commit), target, by)


def portable_form(cursor: Cursor) -> bytes:
    """Return a cursor as the portable JSON of S0 §7, canonical; one without a commit has none."""
    document = {"ulid": cursor.ulid, "commit_oid": cursor.commit}
    schema.validate("shiplog/consumer_checkpoint", document)
    return jcs.encode(document)


def split_ref(ref: str) -> tuple[str, str]:
    """Group and topic of a consumer ref.

    >>> split_ref("refs/gatos/consumers/analytics/jobs/pending")
    ('analytics', 'jobs/pending')
    """
    group, _, topic = ref.removeprefix(CONSUMERS).partition("/")
    return group, topic
