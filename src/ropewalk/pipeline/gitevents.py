"""One git event held against everything its commit promises about it, its envelope and its place."""

from __future__ import annotations

from typing import Any

from ropewalk.errors import BrokenLink, DigestMismatch, RopewalkError
from ropewalk.gitlog.commit import Headers, check_trailer, parse_message
from ropewalk.gitlog.envelope import read_envelope
from ropewalk.gitlog.layout import Layout
from ropewalk.gitlog.log import Repo, find_blob, get_object
from ropewalk.gitlog.objects import Commit, Oid, parse_commit, plant
from ropewalk.kernel import schema
from ropewalk.kernel.ulid import Ulid
from ropewalk.stores.gitindex import IndexedSlot

__all__ = ["check_event"]


def check_event(
    store: Repo,
    layout: Layout,
    topic: str,
    slot: IndexedSlot,
    below: str,
    last: Ulid | None,
    *,
    every_object: bool,
) -> tuple[Commit, Headers, dict[str, Any]]:
    """The commit, what its message says and the envelope, or the first thing that is wrong.

    `below` is the commit and `last` the ULID before it. With `every_object` the trees are read as well; without, it is
    enough that the commit's tree can only be the one which holds this envelope at its place.
    """
    commit = parse_commit(get_object(store, Oid(slot.commit), "commit"))
    parents = (below,) if slot.height else ()
    if commit.parents != parents:
        raise BrokenLink(
            f"stands on {', '.join(commit.parents) or 'nothing'}, not on {below or 'nothing'}",
            entry=slot.commit,
        )
    headers = parse_message(commit.message)
    if layout.topic_is_ns and headers.namespace != topic:
        raise DigestMismatch(f"Namespace is {headers.namespace!r}, the log is {topic!r}", where=slot.commit)
    if (headers.ulid, headers.content_id) != (slot.ulid, slot.content_id):
        raise DigestMismatch("the index names another event for this commit", where=slot.commit)
    if last is not None and headers.ulid <= last:
        raise BrokenLink(f"ULID {headers.ulid} is not above {last}", entry=slot.commit)
    raw = _envelope(store, layout, topic, slot, commit, headers, every_object=every_object)
    document, canonical = read_envelope(raw, headers.content_id)
    if document["ulid"] != headers.ulid:
        raise DigestMismatch(
            f"the envelope says {document['ulid']}, the commit {headers.ulid}", where=slot.commit
        )
    if layout.topic_is_ns and document.get("ns") != topic:
        raise DigestMismatch(f"the envelope says ns {document.get('ns')!r}", where=slot.commit)
    if not canonical:
        raise DigestMismatch("the envelope's bytes are not canonical", where=slot.commit)
    schema.validate(layout.envelope_schema, document)
    if layout.has_trailer:
        _check_trailer(headers, parents, slot.height)
    return commit, headers, document


def _envelope(
    store: Repo,
    layout: Layout,
    topic: str,
    slot: IndexedSlot,
    commit: Commit,
    headers: Headers,
    *,
    every_object: bool,
) -> bytes:
    """The envelope's bytes. Four trees lead to it, and hashing them anew costs a fifth of reading them."""
    if not every_object and layout.path is not None:
        try:
            raw = get_object(store, Oid(slot.blob), "blob")
            if plant(layout.path(topic, headers.ulid), raw)[0] == commit.tree:
                return raw
        except RopewalkError:
            pass  # the index only guessed; the commit's own tree decides
    return get_object(store, find_blob(store, layout, topic, headers, commit.tree, Oid(slot.commit)), "blob")


def _check_trailer(headers: Headers, parents: tuple[str, ...], height: int) -> None:
    if headers.trailer is None:
        raise DigestMismatch("there is no trailer", where="trailer")
    check_trailer(headers.trailer)
    named = headers.trailer.get("journal_parent")
    if named is not None and (named,) != parents:
        raise BrokenLink(f"journal_parent is {named}, the parent is {', '.join(parents) or 'nothing'}")
    seq = headers.trailer.get("seq")
    if seq is not None and int(seq) != height:
        raise BrokenLink(f"seq is {seq} at height {height}")
