"""`ropewalk consumer`: show the positions of consumer groups, their lag, and move them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropewalk.cli.common.command import emit, group
from ropewalk.cli.common.locations import here
from ropewalk.cli.common.options import flag, option, required
from ropewalk.cli.git.events import announcing_group, opened
from ropewalk.errors import NotFound
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG

if TYPE_CHECKING:
    from ropewalk.gitlog.repository.repository import GitRepository


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
@required("--group", "GROUP", "The consumer group.")
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
