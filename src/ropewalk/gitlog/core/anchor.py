"""Anchors: portable statements "this topic's head was that commit", kept outside the log (S0 anchor schema).

They stand on `refs/gatos/shiplog/<ns>/anchors`, one commit each with `anchor.json` in canonical bytes. A signature is
a C2SP note whose text names the anchor's content id and its head, so it binds both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ropewalk.errors import Unverified
from ropewalk.gitlog.core.file_chain import add_files, list_files
from ropewalk.gitlog.core.layout import Layout, anchors_ref
from ropewalk.gitlog.core.log import Repo
from ropewalk.gitlog.core.objects import GitSignature, Oid
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import content_id
from ropewalk.kernel.note.key import Signer
from ropewalk.kernel.note.note import sign_note
from ropewalk.kernel.schema import shipped as schema
from ropewalk.kernel.ulid import Ulid

SCHEMA = "shiplog/anchor"


@dataclass(frozen=True, slots=True)
class LogAnchor:
    """An anchor and its position; `signature` is the note over it, if it was signed."""

    document: dict[str, Any]
    commit: Oid
    raw: bytes
    signature: bytes | None

    @property
    def head(self) -> Oid:
        """The commit the anchor vouches for."""
        return Oid(self.document["head"])


def note_text(raw: bytes, head: str) -> str:
    """Return the text that the signature of an anchor covers."""
    return f"gatos anchor\n{content_id(raw)}\n{head}\n"


def add_anchor(
    repo: Repo,
    layout: Layout,
    topic: str,
    *,
    ulid: Ulid,
    head: str,
    created_at: str,
    author: GitSignature,
    label: str | None = None,
    notes: str | None = None,
    signer: Signer | None = None,
) -> LogAnchor:
    """Set an anchor on a head."""
    document: dict[str, Any] = {"ulid": ulid, "topic": topic, "head": head, "created_at": created_at}
    document |= {name: value for name, value in (("label", label), ("notes", notes)) if value is not None}
    schema.validate(SCHEMA, document)
    raw = jcs.encode(document)
    files = {"anchor.json": raw}
    if signer is not None:
        files["anchor.note"] = sign_note(note_text(raw, head), signer)
    message = f"Anchor-Id: ulid:{ulid}\nContent-Id: {content_id(raw)}\nNamespace: {topic}"
    commit = add_files(repo, anchors_ref(layout, topic), files, message, author)
    return LogAnchor(document, commit, raw, files.get("anchor.note"))


def anchors(repo: Repo, layout: Layout, topic: str) -> Iterator[LogAnchor]:
    """Yield the anchors of a topic, newest first."""
    for each in list_files(repo, anchors_ref(layout, topic)):
        raw = each.files.get("anchor.json")
        if raw is None:
            raise Unverified(f"anchor commit {each.commit} has no anchor.json", where=each.commit)
        document = jcs.parse_canonical(raw)
        schema.validate(SCHEMA, document)
        assert isinstance(document, dict)
        yield LogAnchor(document, each.commit, raw, each.files.get("anchor.note"))
