"""`ropewalk mirror`: what one log holds, also in another."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import Command, counting, emit
from ropewalk.cli.git.events import opened, short

if TYPE_CHECKING:
    from ropewalk.bridge.event_copy import MirrorResult
    from ropewalk.bridge.mirror import Mirror


@click.command(
    "mirror",
    cls=Command,
    epilog="Examples:\n  ropewalk mirror --from ns:prod --to topic:deploys\n"
    "  ropewalk mirror --from topic:governance --to ns:governance\n"
    "  ropewalk mirror --from ns:web --from ns:billing --to topic:all --follow\n"
    "  ropewalk mirror --from channel:audit --to ns:audit\n",
)
@click.option(
    "--from",
    "sources",
    required=True,
    multiple=True,
    metavar="LOG",
    help="ns:NAME, topic:NAME or channel:NAME; may be given again.",
)
@click.option("--to", required=True, metavar="LOG", help="ns:NAME or topic:NAME; made if it is not there.")
@click.option("--follow", is_flag=True, help="Go on with new events as they come.")
def mirror(sources: tuple[str, ...], to: str, follow: bool) -> None:
    """Copy the events of one log into another of this repository, in order; only what is new.

    Between namespaces and topics an event keeps its bytes, its ULID and its content id; only its commit is another. An
    envelope of a ledger channel becomes a new event that names it, the same on every machine; its block is verified
    first, and what is confidential stays behind.

    Run it again, or after a kill, and it goes on where it stopped. Several sources are merged by ULID, some seconds
    late, for something older may still be on its way from another. An event that would have to stand below the head, or
    does not fit the other log, is refused by name; what comes before it stays.
    """
    from ropewalk.bridge.mirror import Mirror, keep_mirroring

    with opened() as log:
        copying = Mirror(log, sources, to)
        if not follow:
            with counting(f"mirroring into {to}", "events") as progress:
                done = copying.catch_up(progress)
            emit(_answer(copying, done), lambda: _text(copying, done))
            return
        for done in keep_mirroring(copying):
            emit(_answer(copying, done), _text(copying, done))
            sys.stdout.flush()  # a reader at the other end of a pipe waits for it


def _answer(copying: Mirror, done: MirrorResult) -> dict[str, Any]:
    ref, head = copying.target.head()
    return {
        "mirrored": done.mirrored,
        "skipped": done.skipped,
        "withheld": done.withheld,
        "attachments_left": done.attachments_left,
        "waiting": done.waiting,
        "refs": {ref: head},
    }


def _text(copying: Mirror, done: MirrorResult) -> str:
    ref, head = copying.target.head()
    lines = [f"ok  {done.mirrored} mirrored, {done.skipped} there already"]
    if head is not None:
        lines.append(f"    {ref} -> {short(head)}")
    if done.waiting:
        lines.append(
            f"    {done.waiting} of the last seconds wait: another source may still bring something older"
        )
    if done.withheld:
        lines.append(f"    {done.withheld} without their payload; each says why in `withheld`")
    if done.attachments_left:
        lines.append(f"    {done.attachments_left} attachments left behind: a namespace holds envelopes only")
    return "\n".join(lines)
