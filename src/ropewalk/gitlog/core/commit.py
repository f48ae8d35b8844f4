"""Commit messages: headers, a line of three dashes, and the deployment trailer (S0 §4).

Headers hold no text of users, so the first `---` ends them. Journals of `git shiplog` do hold such text in front, so
there the last line that starts with `---` counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from ropewalk.errors import InvalidEnvelope, RopewalkError, Unverified
from ropewalk.gitlog.core.envelope import EncodedEnvelope
from ropewalk.gitlog.core.layout import ENVELOPE_SCHEMA_ID, TRAILER_SCHEMA_ID
from ropewalk.gitlog.core.objects import GitSignature, Oid
from ropewalk.gitlog.privacy.pointer import check_pointers, may_hold_pointers
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import ContentId, parse_content_id
from ropewalk.kernel.schema import shipped as schema
from ropewalk.kernel.ulid import Ulid, parse

TRAILER_SCHEMA = "shiplog/deployment_trailer"
HEADER = re.compile(r"([A-Za-z][A-Za-z0-9-]*):[ \t]*(.*)")
USUAL = re.compile(
    r"Event-Id: ulid:([0-7][0-9A-HJKMNP-TV-Z]{25})\nContent-Id: (blake3:[0-9a-f]{64})\nNamespace: ([a-z0-9._-]+)\n"
    r"Envelope-Schema: ([!-~]+)\nTrailer-Schema: ([!-~]+)\n---\n(\{[^\n]*\})\n"
)
KNOWN = frozenset({"event-id", "content-id", "namespace", "envelope-schema", "trailer-schema"})
STATUSES = ("success", "failed", "in_progress", "skipped", "override", "revert", "finalize")


@dataclass(frozen=True, slots=True)
class Headers:
    """What a commit promises about its envelope, and the trailer behind the dashes."""

    ulid: Ulid
    content_id: ContentId
    namespace: str | None = None
    envelope_schema: str | None = None
    trailer_schema: str | None = None
    trailer: dict[str, Any] | None = None


def event_commit(
    topic: str,
    sealed: EncodedEnvelope,
    tree: Oid,
    parent: Oid | None,
    author: GitSignature,
    committer: GitSignature,
    trailer: bytes | None,
) -> bytes:
    """Return the commit of an event; the trailer in canonical bytes, None in layouts that have none."""
    frame = _frame(topic, author, committer, trailer is not None)
    above = b"parent %s\n" % parent.encode() if parent is not None else b""
    name, content = sealed.ulid.encode(), sealed.content_id.encode()
    if trailer is None:
        return frame % (tree.encode(), above, name, content)
    return frame % (tree.encode(), above, name, content, trailer)


@lru_cache(maxsize=64)
def _frame(topic: str, author: GitSignature, committer: GitSignature, has_trailer: bool) -> bytes:
    """Return a commit with a gap at each place where the events of a batch differ."""
    gap = "%s"
    message = f"Event-Id: ulid:{gap}\nContent-Id: {gap}\n"
    if has_trailer:
        message += (
            f"Namespace: {topic}\nEnvelope-Schema: {ENVELOPE_SCHEMA_ID}\nTrailer-Schema: {TRAILER_SCHEMA_ID}\n"
            f"---\n{gap}\n"
        )
    people = b"author %s\ncommitter %s\n" % (author.encode(), committer.encode())
    return b"tree %%s\n%%s%s\n%s" % (people.replace(b"%", b"%%"), message.encode())


def parse_message(raw: bytes) -> Headers:
    """Read a native commit message; header names in any case and order, a subject line is passed over."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise Unverified("the commit message is not UTF-8", where="message") from error
    usual = USUAL.fullmatch(text)
    if usual is not None:  # as we write it: nothing is left to decide
        event, name, namespace, of_envelope, of_trailer, after = usual.groups()
        return Headers(Ulid(event), ContentId(name), namespace, of_envelope, of_trailer, _trailer(after))
    lines = text.split("\n")
    dashes = next((at for at, line in enumerate(lines) if line.rstrip() == "---"), None)
    found = _headers(lines if dashes is None else lines[:dashes])
    event_id = found.get("event-id", "")
    if not event_id.startswith("ulid:") or "content-id" not in found:
        raise Unverified("the commit message lacks Event-Id or Content-Id", where="message")
    trailer = None if dashes is None else _trailer("\n".join(lines[dashes + 1 :]))
    try:
        ulid, name = parse(event_id.removeprefix("ulid:")), found["content-id"]
        parse_content_id(name)
    except RopewalkError as error:
        raise Unverified(f"the commit message holds a bad header: {error.detail}", where="message") from error
    return Headers(
        ulid,
        ContentId(name),
        found.get("namespace"),
        found.get("envelope-schema"),
        found.get("trailer-schema"),
        trailer,
    )


def make_trailer(
    given: Mapping[str, Any] | None,
    *,
    topic: str,
    now_ms: int,
    seq: int,
    parent: str | None,
    previous_anchor: str | None,
) -> dict[str, Any]:
    """Return the trailer of one event: what the caller gave, over what is true of every event.

    The place in the chain (`seq`, `journal_parent`, `previous_anchor`) is ours to say, never the caller's.
    """
    now = rfc3339(now_ms)
    trailer: dict[str, Any] = {
        "version": 1,
        "env": topic,
        "status": "success",
        "when": {"start_ts": now, "end_ts": now, "dur_s": 0},
        **(given or {}),
        "seq": seq,
    }
    for name, value in (("journal_parent", parent), ("previous_anchor", previous_anchor)):
        trailer.pop(name, None)
        if value is not None:
            trailer[name] = value
    return trailer


def default_trailer(topic: str, now_ms: int, seq: int, parent: str, previous_anchor: str | None) -> bytes:
    """Return the canonical bytes of what `make_trailer` makes of nothing given, for an event that has one before it.

    Nearly every event of a batch has this trailer, so what they share is checked and encoded once.

    >>> default_trailer("prod", 0, 7, "0" * 40, None)[:40]
    b'{"env":"prod","journal_parent":"00000000'
    """
    before, between, behind = _default_parts(topic, now_ms // 1000, previous_anchor)
    return b"%s%s%s%d%s" % (before, parent.encode(), between, seq, behind)


@lru_cache(maxsize=64)
def _default_parts(topic: str, now_s: int, previous_anchor: str | None) -> tuple[bytes, bytes, bytes]:
    """Cut the default trailer at the two places in which the events of a batch differ: its parent and its number."""
    stand_in = "0" * 40
    trailer = make_trailer(
        None, topic=topic, now_ms=now_s * 1000, seq=0, parent=stand_in, previous_anchor=previous_anchor
    )
    check_trailer(trailer)
    # A quotation mark inside a text is escaped, so these members are found where they stand and nowhere else.
    before, _, rest = jcs.encode(trailer).partition(b'"journal_parent":"%s"' % stand_in.encode())
    between, _, behind = rest.partition(b'"seq":0')
    return before + b'"journal_parent":"', b'"' + between + b'"seq":', behind


def check_trailer(trailer: Mapping[str, Any], text: bytes | None = None) -> None:
    """Check a trailer against its schema and S0's rules in prose: `repo_head` only at top level, public pointers.

    `text` is what the trailer was parsed from; where it holds no pointer, none is searched for.
    """
    schema.validate(TRAILER_SCHEMA, trailer if type(trailer) is dict else dict(trailer))
    if text is None or b"repo_head" in text or b"\\u" in text:
        for name, value in trailer.items():
            if isinstance(value, (dict, list)) and _holds_repo_head(value):
                raise InvalidEnvelope(
                    f"the trailer holds repo_head inside {name}; it belongs at top level only",
                    where=f"/{name}/repo_head",
                    schema=TRAILER_SCHEMA,
                )
    if text is None or may_hold_pointers(text):
        check_pointers(dict(trailer))


def rfc3339(time_ms: int) -> str:
    """Return a moment as RFC 3339 in UTC, to the second.

    >>> rfc3339(1700000000123)
    '2023-11-14T22:13:20Z'
    """
    return _second(time_ms // 1000)


@lru_cache(maxsize=64)
def _second(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _holds_repo_head(value: Any) -> bool:
    if isinstance(value, dict):
        return "repo_head" in value or any(map(_holds_repo_head, value.values()))
    return isinstance(value, list) and any(map(_holds_repo_head, value))


def _headers(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        match = HEADER.fullmatch(line.rstrip())
        if match is None:
            continue
        name = match[1].lower()
        if name == "schema":
            raise Unverified("the commit message holds the forbidden header Schema", where="message")
        if name in KNOWN and name in found:
            raise Unverified(f"the commit message holds {match[1]} twice", where="message")
        found.setdefault(name, match[2].strip())
    return found


def _trailer(text: str) -> dict[str, Any]:
    try:
        parsed = jcs.parse_foreign(text.strip().encode("utf-8", "surrogatepass"))
    except RopewalkError as error:
        raise Unverified(f"the trailer is no JSON: {error.detail}", where="trailer") from error
    if not isinstance(parsed, dict):
        raise Unverified("the trailer is no JSON object", where="trailer")
    return parsed
