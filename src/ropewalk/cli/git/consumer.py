"""`ropewalk consumer` and `ropewalk shiplog checkpoint`: positions of consumer groups, stored as refs (S0 §7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import emit, group
from ropewalk.cli.common.locations import here
from ropewalk.cli.common.options import flag, option, required
from ropewalk.cli.git.events import announcing_group, opened, short, suggesting_names
from ropewalk.errors import NotFound
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG

if TYPE_CHECKING:
    from ropewalk.gitlog.consumers.cursor import Cursor
    from ropewalk.gitlog.repository.repository import GitRepository

group_option = required("--group", "GROUP", "The consumer group.")


@group("consumer", "ropewalk consumer lag")
def consumer() -> None:
    """Show and move the positions of consumer groups."""


@consumer.command("ls", "ropewalk consumer ls --json")
def ls() -> None:
    """List every group with its position."""
    with opened() as log:
        rows = _rows(log)
        lines = (f"{r['group']:<20} {r['ns']:<24} {r['ulid'] or 'cannot be read'}" for r in rows)
        emit({"consumers": rows}, lines, "no consumers")


@consumer.command("lag", "ropewalk consumer lag --group analytics")
@option("--group", "GROUP", "Only this group.")
@option("--ns", "NS", "Only this namespace or topic.")
def lag(group: str | None, ns: str | None) -> None:
    """Show how many events each group is behind."""
    with opened() as log:
        rows = [row for row in _rows(log) if group in (None, row["group"]) and ns in (None, row["ns"])]
        if group is not None and not rows:
            raise NotFound(f"there is no group {group!r}" + (f" in {ns!r}" if ns else ""), group=group, ns=ns)
        if ns is not None and not rows and ns not in {*log.topics(SHIPLOG), *log.topics(MESSAGES)}:
            raise NotFound(f"there is no log {ns!r}", ns=ns)
        lines = (f"{r['group']:<20} {r['ns']:<24} {_behind(r['behind'])}" for r in rows)
        emit({"consumers": rows}, lines, "no consumers")


@consumer.command(
    "reset", "ropewalk consumer reset --group analytics --ns governance --to beginning --dry-run"
)
@group_option
@required("--ns", "NS", "The namespace or topic.")
@required("--to to", "ULID|beginning|now", "Last event that counts as handled.")
@flag("--dry-run", "Print what would change, and change nothing.")
def reset(group: str, ns: str, to: str, dry_run: bool) -> None:
    """Move a group to another position, forwards or backwards."""
    from ropewalk.bridge.governance.guard import require_ungoverned
    from ropewalk.gitlog.consumers.consumers import reset_cursor

    if not dry_run:
        require_ungoverned(here(), "consumer.reset")
    with opened() as log, announcing_group(log, group):
        change = reset_cursor(log, group, ns, to, dry_run=dry_run)
        said = "would move" if dry_run else "ok "
        emit(
            {**change, "dry_run": dry_run},
            f"{said} {change['ref']}: {change['old'] or 'beginning'} -> {change['ulid'] or 'beginning'}"
            f" ({change['behind']} behind)",
        )


def _rows(log: GitRepository) -> list[dict[str, Any]]:
    from ropewalk.gitlog.consumers.consumers import cursor_status, cursors

    return [cursor_status(log, cursor) for cursor in cursors(log)]


def _behind(count: int | None) -> str:
    return "        ?" if count is None else f"{count:>8} behind"


@group("checkpoint", "ropewalk shiplog checkpoint ls")
def checkpoint() -> None:
    """Set and show checkpoints: the last event each consumer group has handled. They are advisory."""


@checkpoint.command(
    "set", "ropewalk shiplog checkpoint set --group analytics --ns governance --commit 8b1c1e4"
)
@group_option
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
@group_option
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
def ls_checkpoints() -> None:
    """List every checkpoint."""
    from ropewalk.gitlog.consumers.consumers import cursors

    with opened() as log:
        found = cursors(log)
        rows = [{"group": cursor.group, "ns": cursor.topic, **_json(cursor)} for cursor in found]
        lines = (f"{c.ref} -> {short(c.commit or '-')}  {c.ulid or 'cannot be read'}" for c in found)
        emit({"checkpoints": rows}, lines, "no checkpoints")


def _json(cursor: Cursor) -> dict[str, Any]:
    return {"ref": cursor.ref, "ulid": cursor.ulid or None, "commit": cursor.commit}
