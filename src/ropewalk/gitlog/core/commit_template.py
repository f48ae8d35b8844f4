"""Plain events by the thousand: what they have in common is written down once, and compiled loops do the rest.

A template is cut from one event made in Python, and believed only if it makes two others as Python makes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from ropewalk.gitlog.core.envelope import EncodedEnvelope
from ropewalk.gitlog.core.objects import GitObject, Oid
from ropewalk.kernel.digest import ContentId
from ropewalk.kernel.ulid import Ulid
from ropewalk.native.object_batch import (
    NUMBER,
    PREVIOUS,
    Column,
    CompiledTemplate,
    Field,
    HexOf,
    IdOf,
    ObjectBatch,
    Piece,
    column_of_bytes,
    column_of_texts,
    compile_template,
)

Make = Callable[[EncodedEnvelope, Oid, int], Sequence[GitObject]]
"""Return the objects of a plain event with a parent and a number; the commit comes last."""

# Nothing else in an event reads like these.
EXAMPLE = EncodedEnvelope(Ulid("7" + "X" * 25), b"\x00envelope\x00", ContentId("blake3:" + "ab" * 32))
OTHER = EncodedEnvelope(Ulid("7" + "Y" * 25), b"\x00another one\x00", ContentId("blake3:" + "5e" * 32))
PARENT, NUMBERED = Oid("c3" * 20), 7_777_777_777_777_777


def cut_template(make: Make) -> CompiledTemplate | None:
    """Return what all plain events of a log have in common; None if it cannot be separated from what differs."""
    example = make(EXAMPLE, PARENT, NUMBERED)
    template = compile_template(
        [(kind, _cut(raw, _gaps(example[:at]))) for at, (_, kind, raw) in enumerate(example)]
    )
    first = make(OTHER, Oid("0" * 40), 9)
    second = make(EXAMPLE, Oid(first[-1][0]), 10)
    woven = ObjectBatch()
    woven.weave(template, columns_of([OTHER, EXAMPLE]), 9, "0" * 40)
    return template if list(woven) == [*first, *second] else None


def columns_of(events: Sequence[EncodedEnvelope]) -> tuple[Column, Column, Column]:
    """Return what differs from event to event: envelope, ULID, content id."""
    ulids, envelopes, names = zip(*events, strict=True)
    return (
        column_of_bytes(envelopes),
        column_of_texts(ulids, len(EXAMPLE.ulid)),
        column_of_texts(names, len(EXAMPLE.content_id)),
    )


def _gaps(before: Sequence[GitObject]) -> Mapping[bytes, Piece]:
    """Return what the example's own bytes stand for; `before` are the objects an object may name."""
    gaps: dict[bytes, Piece] = {
        EXAMPLE.raw: Field(0),
        EXAMPLE.ulid.encode(): Field(1),
        EXAMPLE.content_id.encode(): Field(2),
        PARENT.encode(): PREVIOUS,
        b"%d" % NUMBERED: NUMBER,
    }
    for at, (oid, _, _) in enumerate(before):
        gaps[bytes.fromhex(oid)] = IdOf(at)
        gaps[oid.encode()] = HexOf(at)
    return gaps


def _cut(raw: bytes, gaps: Mapping[bytes, Piece]) -> list[Piece]:
    parts = re.split(b"(" + b"|".join(map(re.escape, gaps)) + b")", raw)
    return [gaps.get(part, part) for part in parts if part]
