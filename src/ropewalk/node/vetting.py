"""What every event passes before it is hashed: a log cannot forget, so what must not be in it is refused here."""

from __future__ import annotations

from collections.abc import Collection

from ropewalk.gitlog.envelope import Draft
from ropewalk.gitlog.secrets import refuse_secrets

__all__ = ["vet_draft", "vet_output"]


def vet_draft(draft: Draft, allow: Collection[str] = ()) -> None:
    """Refuse an event that holds what looks like a secret: in its document, its trailer or its attachments.

    `allow` names kinds that may pass.
    """
    refuse_secrets(draft.document, "the event", allow)
    if draft.trailer is not None:
        refuse_secrets(draft.trailer, "the trailer", allow)
    for name, raw in draft.attachments.items():
        refuse_secrets(raw.decode("utf-8", "replace"), f"attachment {name!r}", allow)


def vet_output(output: bytes) -> None:
    """Refuse captured output that holds what looks like a secret."""
    refuse_secrets(output.decode("utf-8", "replace"), "the output")
