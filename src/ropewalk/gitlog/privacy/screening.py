"""What every event passes before it is hashed: a log cannot forget, so what must not be in it is refused here."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ropewalk.errors import RopewalkError
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.privacy.secrets import are_plainly_free, refuse_secrets

LOOK_TOGETHER = 64  # drafts; bounds the text that is looked at


def screen_drafts(
    drafts: Sequence[Draft | RopewalkError], allow: Collection[str] = ()
) -> list[Draft | RopewalkError]:
    """Screen many drafts: return each as it is, or why it is refused. What was refused before stays so."""
    judged: list[Draft | RopewalkError] = []
    for start in range(0, len(drafts), LOOK_TOGETHER):
        some = drafts[start : start + LOOK_TOGETHER]
        documents = [each.document for each in some if isinstance(each, Draft)]
        free = len(documents) > 1 and are_plainly_free(documents)
        judged += [each if free and _is_document(each) else _judged(each, allow) for each in some]
    return judged


def _is_document(draft: Draft | RopewalkError) -> bool:
    return isinstance(draft, RopewalkError) or (draft.trailer is None and not draft.attachments)


def _judged(draft: Draft | RopewalkError, allow: Collection[str]) -> Draft | RopewalkError:
    try:
        if isinstance(draft, Draft):
            screen_draft(draft, allow)
        return draft
    except RopewalkError as error:
        return error


def screen_draft(draft: Draft, allow: Collection[str] = ()) -> None:
    """Refuse an event that holds what looks like a secret: in its document, its trailer or its attachments.

    `allow` names kinds that may pass.
    """
    refuse_secrets(draft.document, "the event", allow)
    if draft.trailer is not None:
        refuse_secrets(draft.trailer, "the trailer", allow)
    for name, raw in draft.attachments.items():
        refuse_secrets(raw.decode("utf-8", "replace"), f"attachment {name!r}", allow)
