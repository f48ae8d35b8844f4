"""Signed heads: a C2SP note over an RFC 6962 tree of content ids.

Git's SHA-1 alone guards the order of a log. A signed head names the order by full digests, so that a log rearranged
under colliding commits is still caught, and so that tools without git can check it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ropewalk.errors import ProofRefused, Unverified
from ropewalk.gitlog.core.file_chain import add_files, list_files
from ropewalk.gitlog.core.layout import Layout, signed_heads_ref
from ropewalk.gitlog.core.log import Repo
from ropewalk.gitlog.core.objects import GitSignature, Oid
from ropewalk.kernel.digest import ContentId, parse_content_id
from ropewalk.kernel.merkle import SHA256, Frontier
from ropewalk.kernel.note.key import Signer, Verifier
from ropewalk.kernel.note.note import SignedHead, open_head, sign_head

FILE_NAME = "checkpoint"  # the name C2SP gives a log's latest signed head


@dataclass(frozen=True, slots=True)
class StoredHead:
    """A signed head from the repository, not yet verified."""

    commit: Oid
    note: bytes


def origin_of(layout: Layout, topic: str) -> str:
    """Return the name of a log in its signed heads; also the name of the key that signs them.

    >>> from ropewalk.gitlog.core.layout import SHIPLOG
    >>> origin_of(SHIPLOG, "prod")
    'ropewalk/shiplog/prod'
    """
    return f"ropewalk/{layout.name}/{topic}"


def root_over(content_ids: Iterable[ContentId]) -> tuple[int, bytes]:
    """Return size and root of the tree whose leaves are the digests of the events, in order."""
    frontier = Frontier(SHA256)
    for name in content_ids:
        frontier.append(SHA256.leaf(parse_content_id(name)))
    return frontier.size, frontier.root()


def add_signed_head(
    repo: Repo,
    layout: Layout,
    topic: str,
    content_ids: Iterable[ContentId],
    signer: Signer,
    author: GitSignature,
) -> tuple[SignedHead, StoredHead]:
    """Sign the present log and store the note."""
    size, root = root_over(content_ids)
    head = SignedHead(origin_of(layout, topic), size, root)
    note = sign_head(head, signer)
    commit = add_files(
        repo, signed_heads_ref(layout, topic), {FILE_NAME: note}, f"Signed-Head: {size}", author
    )
    return head, StoredHead(commit, note)


def signed_heads(repo: Repo, layout: Layout, topic: str) -> Iterator[StoredHead]:
    """Yield the signed heads of a topic, newest first."""
    for each in list_files(repo, signed_heads_ref(layout, topic)):
        note = each.files.get(FILE_NAME)
        if note is None:
            raise Unverified(f"commit {each.commit} holds no signed head", where=each.commit)
        yield StoredHead(each.commit, note)


def check_signed_head(stored: StoredHead, verifier: Verifier, content_ids: Iterable[ContentId]) -> SignedHead:
    """Return the head, if the key signed it and the events below it give its root. `content_ids` may be longer."""
    head, _ = open_head(stored.note, verifier)
    frontier = Frontier(SHA256)
    if head.size:
        for name in content_ids:
            frontier.append(SHA256.leaf(parse_content_id(name)))
            if frontier.size == head.size:
                break
    if frontier.size != head.size or frontier.root() != head.root:
        raise ProofRefused(
            f"the signed head over {head.size} events has another root than the log's first {frontier.size}",
            step="signed_heads",
            size=head.size,
        )
    return head
