"""`ropewalk shiplog anchor`: statements about a head, kept outside the log."""

from __future__ import annotations

from ropewalk.cli.common.command import emit, group
from ropewalk.cli.common.locations import signing_key
from ropewalk.cli.common.options import option, required
from ropewalk.cli.git.events import opened, short, suggesting_names
from ropewalk.gitlog.core.layout import SHIPLOG


@group("anchor", "ropewalk shiplog anchor ls --ns prod")
def anchor() -> None:
    """Create and list anchors: statements about the head of a log at one moment."""


@anchor.command("create", "ropewalk shiplog anchor create --ns prod --label v1.2 --sign ada")
@required("--ns", "NS", "The namespace.")
@option("--label", "LABEL", "Label to show in lists.")
@option("--notes", "NOTES", "Free text to store with the anchor.")
@option("--sign key", "KEY", "Sign the anchor with this key (ed25519).")
def create(ns: str, label: str | None, notes: str | None, key: str | None) -> None:
    """Create an anchor on the head of a namespace."""
    from ropewalk.gitlog.repository.signing import set_anchor
    from ropewalk.kernel.note.key import Signer

    with opened() as log:
        signer = Signer(key, signing_key(key)) if key else None
        made = set_anchor(log, ns, label=label, notes=notes, signer=signer)
        answer = {"ulid": made.document["ulid"], "topic": ns, "head": made.head, "commit": made.commit}
        emit(answer, f"ok  {ns} anchored at {short(made.head)} ({short(made.commit)})")


@anchor.command("ls", "ropewalk shiplog anchor ls --ns prod")
@option("--ns", "NS", "Only this namespace.")
def ls(ns: str | None) -> None:
    """List the anchors of each namespace, newest first."""
    from ropewalk.gitlog.core.anchor import anchors
    from ropewalk.gitlog.core.reading import missing_topic

    with opened() as log, suggesting_names(log, SHIPLOG):
        names = [ns] if ns is not None else log.topics()
        found = [each for name in names for each in anchors(log.store, SHIPLOG, name)]
        if ns is not None and not found and log.store.head(SHIPLOG.head_ref(ns)) is None:
            raise missing_topic(SHIPLOG, ns)
        rows = [
            {**each.document, "commit": each.commit, "signed": each.signature is not None} for each in found
        ]
        lines = (
            f"{row.get('created_at', '-')}  {row.get('topic', '-')}  {short(each.head)}  {row.get('label', '')}"
            for each, row in zip(found, rows, strict=True)
        )
        emit({"anchors": rows}, lines, "no anchors")
