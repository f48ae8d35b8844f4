"""Check one event of a git log: its commit, headers, tree, envelope and trailer. Pure: the caller brings the objects.

`ropewalk verify`, the rows of the pipeline and the workers of `pipeline verify` all call these functions, so that an
event has one verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ropewalk.errors import BrokenLink, RopewalkError
from ropewalk.gitlog.core.attachment import named_digests, tree_with
from ropewalk.gitlog.core.commit import Headers, check_trailer, parse_message
from ropewalk.gitlog.core.envelope import read_envelope
from ropewalk.gitlog.core.layout import ENVELOPE_SCHEMA_ID, MESSAGES, TRAILER_SCHEMA_ID, Layout
from ropewalk.gitlog.core.log import Repo, get_object, open_trees
from ropewalk.gitlog.core.objects import (
    FOLDER,
    Commit,
    Oid,
    TreeEntry,
    parse_commit,
    parse_tree,
    path_tree_id,
)
from ropewalk.gitlog.privacy.pointer import check_pointers, may_hold_pointers
from ropewalk.kernel.digest import content_id
from ropewalk.kernel.schema import shipped as schema

STEPS: Final = (
    "chain",
    "headers",
    "envelopes",
    "canonical",
    "schema",
    "pointers",
    "layout",
    "attachments",
    "order",
    "trailers",
)
"""The steps of a report that speak of single events, in their order."""

Wrong = Callable[[str, str], object]


@dataclass(frozen=True, slots=True)
class CheckedEvent:
    """One event and everything that is wrong with it, by step. `headers` is None where the message cannot be read."""

    oid: Oid
    commit: Commit
    headers: Headers | None = None
    document: dict[str, Any] | None = None
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def fault(self) -> str | None:
        """The first fault, in the order of the steps."""
        return next((self.faults[step] for step in STEPS if step in self.faults), None)


def check_event(
    repo: Repo, layout: Layout, topic: str, oid: Oid, commit: Commit, blob: Oid | None = None
) -> CheckedEvent:
    """Check one event alone; `check_order` checks it against the one before it.

    `blob` is the envelope's blob by an index. If the commit's tree can only be the one that holds these bytes and
    nothing else, the trees are proven without being read; if not, they are read.
    """
    faults: dict[str, str] = {}
    wrong: Wrong = faults.setdefault
    try:
        headers = parse_message(commit.message)
    except RopewalkError as error:
        return CheckedEvent(oid, commit, faults={"headers": error.detail})
    _check_headers(layout, topic, headers, wrong)
    document = _check_envelope(repo, layout, topic, oid, commit, headers, blob, wrong)
    if layout.has_trailer:
        _check_trailer(headers, commit, wrong)
    return CheckedEvent(oid, commit, headers, document, faults)


def check_next(
    repo: Repo,
    layout: Layout,
    topic: str,
    oid: Oid,
    below: str,
    last: Headers | None,
    blob: Oid | None = None,
) -> CheckedEvent:
    """Check the event that follows another: alone, by its parent and by its order; raise if there is no commit.

    `below` is the commit before it (empty for the first of a log), `last` its headers, None if it is unreadable.
    """
    commit = parse_commit(get_object(repo, oid, "commit"))
    event = check_event(repo, layout, topic, oid, commit, blob)
    if commit.parents != ((below,) if below else ()):
        found = ", ".join(commit.parents) or "nothing"
        event.faults["chain"] = f"parent must be {below or 'absent'}, got {found}"
    if event.headers is not None:
        unordered = check_order(last, event.headers) if below else check_first(event.headers)
        if unordered is not None:
            event.faults["order"] = unordered
    return event


def list_chain(repo: Repo, head: str, stop: str | None, count: int | None = None) -> Iterator[Oid]:
    """Yield the commits from `head` down to the root, to `stop` (without it), or `count` of them."""
    at: str | None = head
    while at is not None and at != stop and (count is None or count > 0):
        commit = parse_commit(get_object(repo, Oid(at), "commit"))
        if len(commit.parents) > 1:
            raise BrokenLink(f"commit {at} has {len(commit.parents)} parents; a line has one", entry=at)
        yield Oid(at)
        at = commit.parents[0] if commit.parents else None
        count = None if count is None else count - 1


def check_order(lower: Headers | None, upper: Headers) -> str | None:
    """Return what is wrong between two neighbours: ULIDs and numbers must rise. None if nothing is."""
    if lower is None:
        return None
    if lower.ulid >= upper.ulid:
        return f"ULID {upper.ulid} is not above {lower.ulid} before it"
    mine, its = seq_of(lower), seq_of(upper)
    if its is not None and (mine is None or its != mine + 1):
        return f"seq {its} follows {'an entry without one' if mine is None else mine}"
    return None


def check_first(headers: Headers) -> str | None:
    """Return what is wrong with the first event of a log as its first. None if nothing is."""
    return None if seq_of(headers) in (None, 0) else f"the first entry has seq {seq_of(headers)}"


def _check_headers(layout: Layout, topic: str, headers: Headers, wrong: Wrong) -> None:
    if layout.topic_is_ns and headers.namespace != topic:
        wrong("headers", f"Namespace is {headers.namespace!r}, the log is {topic!r}")
    if layout.has_trailer:
        for name, found, wanted in (
            ("Envelope-Schema", headers.envelope_schema, ENVELOPE_SCHEMA_ID),
            ("Trailer-Schema", headers.trailer_schema, TRAILER_SCHEMA_ID),
        ):
            if found != wanted:
                wrong("headers", f"{name} is {found!r}, not {wanted}")


def _check_envelope(
    repo: Repo,
    layout: Layout,
    topic: str,
    oid: Oid,
    commit: Commit,
    headers: Headers,
    blob: Oid | None,
    wrong: Wrong,
) -> dict[str, Any] | None:
    """Return the envelope, if it is the one the commit promises."""
    document: dict[str, Any] | None = None
    try:
        trees: list[list[TreeEntry]] | None = None
        raw = _planted(repo, layout, topic, commit, headers, blob)
        if raw is None:
            found, trees = open_trees(repo, layout, topic, headers, commit.tree, oid)
            raw = get_object(repo, found, "blob")
        document, canonical = read_envelope(raw, headers.content_id)
        if document["ulid"] != headers.ulid:
            wrong("envelopes", f"the envelope's ulid must be {headers.ulid}, got {document['ulid']}")
        if layout.topic_is_ns and document.get("ns") != topic:
            wrong("envelopes", f"the envelope's ns must be {topic!r}, got {document.get('ns')!r}")
        if not canonical:
            wrong("canonical", "the envelope's bytes are not canonical (non_canonical)")
        _check_document(layout.envelope_schema, document, raw, wrong)
        if trees is not None:
            _check_trees(repo, layout, topic, headers, commit, trees, raw, document, wrong)
    except RopewalkError as error:
        wrong("envelopes", error.detail)
    return document


def _planted(
    repo: Repo, layout: Layout, topic: str, commit: Commit, headers: Headers, blob: Oid | None
) -> bytes | None:
    """Return the envelope's bytes, if the commit's tree can only be the one that holds them alone at their place."""
    if blob is None or layout.path is None:
        return None
    try:
        raw = get_object(repo, blob, "blob")
    except RopewalkError:
        return None  # the index only guessed; the commit's own tree decides
    # `get_object` named these bytes, so the blob's id stands for them.
    return raw if path_tree_id(layout.path(topic, headers.ulid), blob) == commit.tree else None


def _check_trees(
    repo: Repo,
    layout: Layout,
    topic: str,
    headers: Headers,
    commit: Commit,
    trees: list[list[TreeEntry]],
    raw: bytes,
    document: dict[str, Any],
    wrong: Wrong,
) -> None:
    """S0 §4, S1 §2: the envelope, the attachments of a message that it names by digest, and nothing else.

    What no digest covers would be carried by the log unseen, also in a log of S0, which names one blob and no other.
    """
    assert layout.path is not None
    path = layout.path(topic, headers.ulid)
    attachments: list[TreeEntry] = []
    for depth, entries in enumerate(trees):
        for entry in entries:
            if entry.name == path[depth]:
                continue
            if layout is MESSAGES and depth == 1 and entry.name == "attachments" and entry.mode == FOLDER:
                attachments += _check_attachments(repo, entry.oid, document, wrong)
            else:
                wrong("layout", f"its tree also holds {'/'.join((*path[:depth], entry.name))}")
    if tree_with(path, raw, attachments) != commit.tree:
        wrong("layout", "its tree is not the one git writes for these files")


def _check_attachments(repo: Repo, folder: Oid, document: dict[str, Any], wrong: Wrong) -> list[TreeEntry]:
    named = named_digests(document)
    found = list(parse_tree(get_object(repo, folder, "tree")))
    for each in found:
        if each.mode == FOLDER or content_id(get_object(repo, each.oid, "blob")) not in named:
            wrong("attachments", f"its envelope does not name attachment {each.name!r} by digest")
    return found


def _check_document(name: str, document: dict[str, Any], raw: bytes, wrong: Wrong) -> None:
    try:
        schema.validate(name, document)
    except RopewalkError as error:
        wrong("schema", error.detail)
    try:
        if may_hold_pointers(raw):
            check_pointers(document.get("payload"))
    except RopewalkError as error:
        wrong("pointers", error.detail)


def _check_trailer(headers: Headers, commit: Commit, wrong: Wrong) -> None:
    if headers.trailer is None:
        wrong("trailers", "there is no trailer")
        return
    try:
        check_trailer(headers.trailer, commit.message)
    except RopewalkError as error:
        wrong("trailers", error.detail)
    parent = commit.parents[0] if commit.parents else None
    named = headers.trailer.get("journal_parent")
    if named is not None and named != parent:
        wrong("trailers", f"journal_parent is {named}, the parent is {parent or 'nothing'}")


def seq_of(headers: Headers) -> int | None:
    """Return the number that a trailer gives its event."""
    seq = (headers.trailer or {}).get("seq")
    return int(seq) if isinstance(seq, (int, float)) else None
