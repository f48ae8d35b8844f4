"""Vouch for a log: anchors on its head, and signed heads over its content ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ropewalk.gitlog.core.anchor import LogAnchor, add_anchor, anchors
from ropewalk.gitlog.core.commit import rfc3339
from ropewalk.gitlog.core.layout import SHIPLOG, Layout
from ropewalk.gitlog.core.reading import LogView
from ropewalk.gitlog.verify.signed_heads import StoredHead, add_signed_head, origin_of
from ropewalk.kernel.digest import ContentId
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.note.key import Signer
from ropewalk.kernel.note.note import SignedHead
from ropewalk.kernel.ulid import Ulid

if TYPE_CHECKING:
    from ropewalk.gitlog.repository.repository import GitRepository

CHUNK = 1_000


def set_anchor(
    log: GitRepository,
    topic: str,
    *,
    label: str | None = None,
    notes: str | None = None,
    signer: Signer | None = None,
) -> LogAnchor:
    """Anchor the head a namespace has now."""
    line = log.lines.line(SHIPLOG, topic)
    now = log.now_ms()
    last = next(anchors(log.store, SHIPLOG, topic), None)
    assert line.head is not None
    return add_anchor(
        log.store,
        SHIPLOG,
        topic,
        ulid=log.new_ulid(Ulid(last.document["ulid"]) if last else None),
        head=line.head,
        created_at=rfc3339(now),
        author=log.author(now),
        label=label,
        notes=notes,
        signer=signer,
    )


def sign_log(
    log: GitRepository, topic: str, key: SigningKey, *, layout: Layout = SHIPLOG
) -> tuple[SignedHead, StoredHead, str]:
    """Sign the present head of a log; return the head, its ref, and the key that verifies it."""
    line = log.lines.line(layout, topic)
    signer = Signer(origin_of(layout, topic), key)
    head, stored = add_signed_head(log.store, layout, topic, _names(line), signer, log.author(log.now_ms()))
    return head, stored, signer.verifier.to_text()


def _names(line: LogView) -> Iterator[ContentId]:
    for start in range(0, line.count, CHUNK):
        for place in line.span(start, min(start + CHUNK, line.count)):
            yield place.content_id
