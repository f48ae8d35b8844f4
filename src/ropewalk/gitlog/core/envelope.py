"""Events in their canonical form: parse → JCS → hash. The bytes that are hashed are the bytes that are stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from ropewalk.errors import DigestMismatch, InvalidEnvelope, InvalidJson, TooLarge, Unverified
from ropewalk.gitlog.core.layout import Layout
from ropewalk.gitlog.core.objects import GitSignature, Oid
from ropewalk.gitlog.privacy.pointer import MARK, check_pointers
from ropewalk.kernel import jcs, ulid
from ropewalk.kernel.digest import ContentId, content_id
from ropewalk.kernel.schema import shipped as schema
from ropewalk.kernel.ulid import Ulid

ENVELOPE_BYTES_MAX = 1 << 20  # larger payloads belong behind a pointer or in an attachment
FOREIGN_BYTES_MAX = 32 << 20  # what other software recorded is kept, up to half of what a loose object may be
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Draft:
    """An event to record. `ulid` and `ns` may be missing from the document; the append fills them.

    `trailer` holds deployment fields over the default trailer. `author` and `committer` are for importers; others
    leave them to the repository. `replay` marks an event that was recorded before and must keep its ULID.
    """

    document: Mapping[str, Any]
    trailer: Mapping[str, Any] | None = None
    author: GitSignature | None = None
    committer: GitSignature | None = None
    attachments: Mapping[str, bytes] = field(default_factory=dict)
    replay: bool = False


class EncodedEnvelope(NamedTuple):
    """An envelope in canonical bytes, and the name of those bytes."""

    ulid: Ulid
    raw: bytes
    content_id: ContentId


@dataclass(frozen=True)
class Event:
    """An event of a log: its position, its names, its exact bytes."""

    topic: str
    ulid: Ulid
    content_id: ContentId
    commit: Oid
    raw: bytes
    height: int
    withheld: bool = False  # the policy keeps a part of it from the reader; the content id names the whole

    @cached_property
    def envelope(self) -> dict[str, Any]:
        """The parsed envelope (numbers as JCS reads them)."""
        try:
            parsed = jcs.parse_foreign(self.raw)
        except InvalidJson as error:
            raise DigestMismatch(
                f"commit {self.commit}: the stored envelope is no JSON: {error.detail}", where=self.commit
            ) from error
        assert isinstance(parsed, dict)
        return parsed

    @property
    def type(self) -> str:
        """What kind of thing happened."""
        return _field(self, "type", str)

    @property
    def payload(self) -> dict[str, Any]:
        """What the application said."""
        return _field(self, "payload", dict)

    def __repr__(self) -> str:
        return f"Event({self.topic} {self.ulid} {self.commit[:7]})"


def _field(event: Event, name: str, kind: type[T]) -> T:
    value = event.envelope.get(name)
    if not isinstance(value, kind):  # other software may write what no schema allows
        raise Unverified(f"commit {event.commit}: its envelope has no {name}", entry=event.commit)
    return value


def refs_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `refs` of an envelope; none where other software wrote something else there.

    >>> refs_of({"refs": {"log": "blake3:00"}}), refs_of({"refs": None})
    ({'log': 'blake3:00'}, {})
    """
    refs = document.get("refs")
    return refs if isinstance(refs, dict) else {}


def parse_document(raw: bytes) -> dict[str, Any]:
    """Return a document to be appended, read strictly: no duplicate keys, NaN, lone surrogates or huge integers.

    A decimal whose digits a double does not hold is refused, too: it would be recorded as another number (S0 §1).

    >>> parse_document(b'{"type": "proposal.created", "payload": {"id": 7}}')["type"]
    'proposal.created'
    """
    if len(raw) > ENVELOPE_BYTES_MAX * 2:
        raise _too_large(len(raw))
    parsed = jcs.parse(raw)
    if not isinstance(parsed, dict):
        raise InvalidEnvelope("an event is a JSON object", where="", schema="shiplog/event_envelope")
    check_numbers(raw)
    return parsed


def check_numbers(raw: bytes) -> None:
    """Refuse JSON with a decimal whose digits a double does not hold (S0 §1)."""
    _decode(raw.decode())


def _exact(literal: str) -> float:
    value = float(literal)
    # Fifteen digits survive a double: most numbers need no second look.
    if (len(literal) > 16 or "e" in literal or "E" in literal) and Decimal(literal) != Decimal(repr(value)):
        raise InvalidJson(
            f"number {literal[:60]} would be recorded as {value!r}: a double does not hold its digits",
            reason="lossy number",
            advice="Write numbers that must stay exact as strings or as integers, as S0 §1 asks.",
        )
    return value


# One decoder for all: decoding takes a quarter of the time that a search for such numbers with a pattern takes.
_decode = json.JSONDecoder(parse_float=_exact).decode


def seal(layout: Layout, topic: str, document: Mapping[str, Any], ulid_: Ulid) -> EncodedEnvelope:
    """Return the document with its ULID and namespace, checked, canonical and named.

    >>> from ropewalk.gitlog.core.layout import SHIPLOG
    >>> seal(SHIPLOG, "demo", {"type": "t", "payload": {}}, Ulid("01HF4Y9Q1SM8Q7K9DK2R4V5CXD")).raw
    b'{"ns":"demo","payload":{},"type":"t","ulid":"01HF4Y9Q1SM8Q7K9DK2R4V5CXD"}'
    """
    sealed = _seal(layout, topic, document, ulid_, jcs.encode, ENVELOPE_BYTES_MAX)
    if MARK in sealed.raw:  # what a caller calls a pointer is one that may be public, at any depth
        recorded: Any = jcs.parse(sealed.raw)
        check_pointers(recorded["payload"])
    return sealed


def seal_foreign(layout: Layout, topic: str, document: Mapping[str, Any], ulid_: Ulid) -> EncodedEnvelope:
    """Seal what other software recorded: numbers are doubles, as in ECMAScript, and more bytes are allowed.

    >>> from ropewalk.gitlog.core.layout import SHIPLOG
    >>> document = {"type": "t", "payload": {"n": 2.0**60}}
    >>> seal_foreign(SHIPLOG, "demo", document, Ulid("01HF4Y9Q1SM8Q7K9DK2R4V5CXD")).raw[:46]
    b'{"ns":"demo","payload":{"n":115292150460684700'
    """
    return _seal(layout, topic, document, ulid_, jcs.encode_foreign, FOREIGN_BYTES_MAX)


def _seal(
    layout: Layout,
    topic: str,
    document: Mapping[str, Any],
    ulid_: Ulid,
    encode: Callable[[object], bytes],
    limit: int,
) -> EncodedEnvelope:
    whole = {**document, "ulid": ulid_, "ns": document.get("ns", topic)}
    if layout.topic_is_ns and whole["ns"] != topic:
        raise InvalidEnvelope(
            f"the envelope's ns must be {topic!r}, got {whole['ns']!r}",
            where="/ns",
            schema=layout.envelope_schema,
            advice="Append to the namespace the envelope names, or leave `ns` out.",
        )
    raw = encode(whole)
    if len(raw) > limit:
        raise _too_large(len(raw), limit)
    schema.validate(layout.envelope_schema, whole)
    return EncodedEnvelope(ulid_, raw, content_id(raw))


def read_envelope(raw: bytes, promised: str) -> tuple[dict[str, Any], bool]:
    """Return an envelope as stored: its document, and whether its bytes are canonical.

    The name must be that of the stored bytes or, as S0's compatibility profile demands, of their canonical form.
    """
    try:
        parsed, canonical = jcs.read_foreign(raw)
    except InvalidJson as error:
        raise DigestMismatch(f"the stored envelope is no JSON: {error.detail}", where="envelope") from error
    if promised != content_id(raw) and (canonical == raw or promised != content_id(canonical)):
        raise DigestMismatch(
            f"the envelope's content id is {content_id(raw)}, the commit promises {promised}",
            expected=promised,
            got=content_id(raw),
            where="envelope",
        )
    if not isinstance(parsed, dict) or not ulid.is_ulid(parsed.get("ulid")):
        raise DigestMismatch("the stored envelope has no ULID", where="envelope")
    return parsed, canonical == raw


def _too_large(size: int, limit: int = ENVELOPE_BYTES_MAX) -> TooLarge:
    return TooLarge(
        f"the envelope has {size} bytes; at most {limit} are allowed",
        size=size,
        limit=limit,
        advice="Seal the payload behind a pointer (`ropewalk pointer seal`) or attach it.",
    )
