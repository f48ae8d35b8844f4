"""What others vouch for: anchors and signed heads, held against a log that was just walked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ropewalk.errors import RopewalkError, SigInvalid
from ropewalk.gitlog.core.anchor import LogAnchor, anchors, note_text
from ropewalk.gitlog.core.layout import Layout
from ropewalk.gitlog.core.log import Repo
from ropewalk.gitlog.verify.signed_heads import StoredHead, check_signed_head, origin_of, signed_heads
from ropewalk.kernel.digest import ContentId
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.note.key import Verifier
from ropewalk.kernel.note.note import open_note
from ropewalk.kernel.report import Step


class TrustedKeys:
    """The keys whose signatures count: those the caller named, else the caller's own.

    A signature of any other key fails where keys were named, and is untrusted where none were.
    """

    def __init__(self, named: Sequence[PublicKey] = (), own: Sequence[PublicKey] = ()) -> None:
        self.strict = bool(named)
        self.keys = [key for key in named or own if key.alg == "ed25519"]


def anchored_commits(repo: Repo, layout: Layout, topic: str) -> set[str]:
    """Return the commits anchors name, for a walk to look out for; damage is reported by `check_anchors`."""
    try:
        return {anchor.head for anchor in anchors(repo, layout, topic)}
    except RopewalkError:
        return set()


def check_anchors(
    repo: Repo, layout: Layout, topic: str, met: set[str], trusted: TrustedKeys, *, complete: bool = True
) -> Step:
    """Return every anchor names a commit of the log; signatures hold, where there is a key to tell.

    `complete` is whether the log was walked down to its root: what was not met may else lie below.
    """
    count = signed = below = unknown = 0
    try:
        for anchor in anchors(repo, layout, topic):
            count += 1
            if anchor.head not in met and not complete:
                below += 1
            elif anchor.head not in met:
                return Step("anchors", "failed", f"anchor {anchor.commit}: {anchor.head} is not in the log")
            if anchor.signature is not None:
                try:
                    fits = _signature_fits(anchor, trusted.keys)
                except SigInvalid:
                    if trusted.strict:
                        raise
                    unknown += 1
                    continue
                if not fits:
                    return Step(
                        "anchors", "failed", f"anchor {anchor.commit}: its signature is over something else"
                    )
                signed += 1
    except RopewalkError as error:
        return Step("anchors", "failed", error.detail)
    if not count:
        return Step.optional("anchors", "there are none")
    if below:
        return Step("anchors", "not_checked", f"{below} of {count} anchors do not lie above the break")
    said = f"{count} anchors lie in the log, {signed} signatures checked"
    if unknown:
        return Step.untrusted("anchors", f"{said}, {unknown} of unknown keys; --trust names keys")
    return Step("anchors", "passed", said)


def check_signed_heads(
    repo: Repo,
    layout: Layout,
    topic: str,
    content_ids: Callable[[], Iterator[ContentId]],
    trusted: TrustedKeys,
    *,
    complete: bool = True,
) -> Step:
    """Check every signed head against the content ids of the log; `content_ids` gives them oldest first."""
    try:
        stored = list(signed_heads(repo, layout, topic))
        if not stored:
            return Step.optional("signed_heads", "there are none")
        if not complete:
            return Step("signed_heads", "not_checked", f"{len(stored)} signed heads, but the log has a break")
        unknown = 0
        for each in stored:
            try:
                _check_with_any(each, origin_of(layout, topic), trusted.keys, content_ids)
            except SigInvalid:
                if trusted.strict:
                    raise
                unknown += 1
        if unknown:
            detail = f"{unknown} of {len(stored)} signed heads are signed by unknown keys; --trust names keys"
            return Step.untrusted("signed_heads", detail)
    except RopewalkError as error:
        return Step("signed_heads", "failed", error.detail)
    return Step(
        "signed_heads", "passed", f"{len(stored)} signed heads stand over the content ids of this log"
    )


def _check_with_any(
    each: StoredHead, origin: str, keys: Iterable[PublicKey], content_ids: Callable[[], Iterator[ContentId]]
) -> None:
    failure: RopewalkError = SigInvalid(f"head of {origin} is signed by no known key")
    for key in keys:
        try:
            check_signed_head(each, Verifier(origin, key), content_ids())
            return
        except SigInvalid as error:
            failure = error
    raise failure


def _signature_fits(anchor: LogAnchor, keys: Iterable[PublicKey]) -> bool:
    assert anchor.signature is not None
    name = _signer_name(anchor.signature)
    note = open_note(anchor.signature, [Verifier(name, key) for key in keys])
    return note.text == note_text(anchor.raw, anchor.head)


def _signer_name(note: bytes) -> str:
    """Return the name on the first signature line; it is only a claim until a key holds it true."""
    for line in note.decode("utf-8", "replace").split("\n\n")[-1].splitlines():
        if line.startswith("— "):
            return line[2:].partition(" ")[0]
    return "unsigned"
