"""Prove usual events of a git log in bulk: every byte as we write it. Pure: the caller brings the objects.

An event that passes here passes `check_next` with the same document. Everything else is left to `check_next`,
which alone finds faults. Tests hold both against each other.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

from ropewalk.errors import BrokenLink, RopewalkError
from ropewalk.gitlog.core.commit import Headers, check_trailer
from ropewalk.gitlog.core.layout import ENVELOPE_SCHEMA_ID, SHIPLOG, TRAILER_SCHEMA_ID, Layout
from ropewalk.gitlog.core.objects import GitSignature, Kind, Oid, parse_person, path_tree_id
from ropewalk.gitlog.privacy.pointer import may_hold_pointers
from ropewalk.gitlog.verify.event_check import seq_of
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import ContentId, content_id
from ropewalk.kernel.schema import shipped as schema
from ropewalk.kernel.ulid import Ulid

Found = tuple[Kind, bytes] | None
SHAPE_BYTES_MAX: Final = 4_096  # of a trailer that is kept to compare others with
_STAND_IN: Final = "0" * 40


class UsualEvent(NamedTuple):
    """An event that was proven. `shape` is its trailer but for parent and number, `trailer` its canonical bytes."""

    tree: str
    author: GitSignature
    committer: GitSignature
    ulid: Ulid
    content_id: ContentId
    seq: int
    shape: dict[str, Any]
    trailer: bytes
    document: dict[str, Any]
    raw: bytes


def prove_usual(
    layout: Layout,
    topic: str,
    blob: Oid,
    envelope: Found,
    commit: Found,
    below: str,
    last: Headers | UsualEvent | None,
) -> UsualEvent | None:
    """Return the event that follows another if it is usual and nothing is wrong with it, else None.

    `envelope` and `commit` are its objects, hashed already; `blob` names the former. `below` is the commit before it.
    """
    if layout is not SHIPLOG or last is None or envelope is None or commit is None:
        return None
    found = _usual(topic).fullmatch(commit[1])
    if found is None or envelope[0] != "blob" or commit[0] != "commit":
        return None
    tree, parent, author, committer, ulid, name, begin, named, middle, seq, rest = found.groups()
    shape = _shape(begin, middle, rest) if len(rest) <= SHAPE_BYTES_MAX else None
    raw, event, number = envelope[1], Ulid(ulid.decode()), int(seq)
    if shape is None or named != parent or parent.decode() != below or may_hold_pointers(raw):
        return None
    if event <= last.ulid or number - 1 != (last.seq if isinstance(last, UsualEvent) else seq_of(last)):
        return None
    if path_tree_id(("gatos", "shiplog", topic, f"{event}.json"), blob) != tree.decode():
        return None
    promised = ContentId(name.decode())
    document = _document(raw, event, topic) if promised == content_id(raw) else None
    if document is None:
        return None
    trailer = b"".join((begin, named, middle, seq, rest))
    try:
        people = parse_person(author), parse_person(committer)
    except BrokenLink:
        return None
    return UsualEvent(tree.decode(), *people, event, promised, number, shape, trailer, document, raw)


def _document(raw: bytes, ulid: Ulid, topic: str) -> dict[str, Any] | None:
    """Return a valid canonical envelope of this name and namespace, None if it is none."""
    try:
        document, canonical = jcs.read_foreign(raw)
        if canonical != raw or not isinstance(document, dict):
            return None
        schema.validate(SHIPLOG.envelope_schema, document)
    except RopewalkError:
        return None
    return document if document["ulid"] == ulid and document["ns"] == topic else None


@lru_cache(maxsize=64)
def _usual(topic: str) -> re.Pattern[bytes]:
    """Return the form of a commit of ours, with a group for everything in which two events of a log may differ."""
    oid, fixed = r"[0-9a-f]{40}", map(re.escape, (topic, ENVELOPE_SCHEMA_ID, TRAILER_SCHEMA_ID))
    headers = "Namespace: {}\nEnvelope-Schema: {}\nTrailer-Schema: {}\n---\n".format(*fixed)
    text = (
        rf"tree ({oid})\nparent ({oid})\nauthor ([^\n]*)\ncommitter ([^\n]*)\n\n"
        rf"Event-Id: ulid:([0-7][0-9A-HJKMNP-TV-Z]{{25}})\nContent-Id: (blake3:[0-9a-f]{{64}})\n{headers}"
        rf'(\{{(?:"env":"[ -!#-\[\]-~]*",)?"journal_parent":")({oid})(",(?:"previous_anchor":"{oid}",)?'
        rf'(?:"repo_head":"{oid}",)?"seq":)(0|[1-9][0-9]{{0,14}})(,"status":[^\n]*\}})\n'
    )
    return re.compile(text.encode())


@lru_cache(maxsize=1024)  # the events of a batch differ in parent and number only
def _shape(begin: bytes, middle: bytes, rest: bytes) -> dict[str, Any] | None:
    """Return a valid canonical trailer but for its parent and number, None if it is none.

    Parent and number may be any id and any integer: neither their canonical form nor the schema depends on the others.
    """
    text = b"".join((begin, _STAND_IN.encode(), middle, b"0", rest))
    try:
        trailer, canonical = jcs.read_foreign(text)
        if canonical != text or not isinstance(trailer, dict):
            return None
        check_trailer(trailer, text)
    except RopewalkError:
        return None
    return trailer
