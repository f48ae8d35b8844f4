"""`ropewalk shiplog checkpoint`: positions of consumer groups, stored as refs (S0 §7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import emit, group
from ropewalk.cli.common.locations import here
from ropewalk.cli.common.options import flag, required
from ropewalk.cli.git.events import announcing_group, opened, short, suggesting_names
from ropewalk.errors import NotFound
from ropewalk.gitlog.core.layout import SHIPLOG

if TYPE_CHECKING:
    from ropewalk.gitlog.consumers.cursor import Cursor


@group("checkpoint", "ropewalk shiplog checkpoint ls")
def checkpoint() -> None:
    """Set and show checkpoints: the last event each consumer group has handled. They are advisory."""


@checkpoint.command(
    "set", "ropewalk shiplog checkpoint set --group analytics --ns governance --commit 8b1c1e4"
)
@required("--group", "GROUP", "The consumer group.")
@required("--ns", "NS", "The namespace.")
@required("--commit", "OID", "Last handled commit; an unambiguous prefix is enough.")
@flag("--reset", "Allow moving backwards.")
def set_(group: str, ns: str, commit: str, reset: bool) -> None:
    """Move a consumer group to a commit."""
    from ropewalk.bridge.governance.guard import require_ungoverned
    from ropewalk.gitlog.consumers.consumers import set_cursor

    if reset:
        require_ungoverned(here(), "consumer.reset")
    with opened() as log, suggesting_names(log, SHIPLOG), announcing_group(log, group):
        cursor = set_cursor(log, group, ns, log.store.resolve(commit.lower()), reset=reset)
        assert cursor.commit is not None
        emit(_json(cursor), f"ok  {cursor.ref} -> {short(cursor.commit)}")


@checkpoint.command(
    "get",
    "ropewalk shiplog checkpoint get --group analytics --ns governance",
    "ropewalk shiplog checkpoint get --group analytics --ns governance --portable > checkpoint.json",
)
@required("--group", "GROUP", "The consumer group.")
@required("--ns", "NS", "The namespace.")
@flag("--portable", "Print the portable form of S0: ulid and commit_oid.")
def get(group: str, ns: str, portable: bool) -> None:
    """Print the checkpoint of a consumer group."""
    from ropewalk.gitlog.consumers.cursor import portable_form, read_cursor

    with opened() as log:
        cursor = read_cursor(log.store, group, ns)
        if cursor is None:
            raise NotFound(f"group {group!r} has no checkpoint in {ns!r}", group=group, ns=ns)
        if portable:
            click.echo(portable_form(cursor).decode())
            return
        emit(_json(cursor), f"{cursor.ref} -> {short(cursor.commit or '-')}  {cursor.ulid}")


@checkpoint.command("ls", "ropewalk shiplog checkpoint ls --json")
def ls() -> None:
    """List every checkpoint."""
    from ropewalk.gitlog.consumers.consumers import cursors

    with opened() as log:
        found = cursors(log)
        rows = [{"group": cursor.group, "ns": cursor.topic, **_json(cursor)} for cursor in found]
        lines = (f"{c.ref} -> {short(c.commit or '-')}  {c.ulid or 'cannot be read'}" for c in found)
        emit({"checkpoints": rows}, lines, "no checkpoints")


def _json(cursor: Cursor) -> dict[str, Any]:
    return {"ref": cursor.ref, "ulid": cursor.ulid or None, "commit": cursor.commit}
