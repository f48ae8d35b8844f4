"""`ropewalk ledger repair`: show the damage of a channel, and repair it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import command, emit, parse_input, say
from ropewalk.cli.common.locations import here
from ropewalk.cli.common.options import channel_option, flag, option
from ropewalk.disk.repository_paths import find_repository

if TYPE_CHECKING:
    from ropewalk.ledger.channel.repair import RepairResult

NOT_REPAIRED = 5
LISTED = 20  # lost blocks that are shown to people; --json has them all


@command(
    "repair",
    "ropewalk ledger repair --channel audit",
    "ropewalk ledger repair --channel audit --from-archive /mnt/cold",
    "ropewalk ledger repair --channel audit --from-replica /srv/copy.git",
)
@channel_option
@option(
    "--from-archive archive", "DIR", "Restore missing blocks from archives: a folder or s3://BUCKET/PREFIX."
)
@option("--from-replica replica", "REPO", "Restore missing blocks from a repository with a replica.")
@option("--trust", "F", "Trust file (default: the channel's own settings).")
@flag(
    "--accept-loss",
    "Accept the loss of blocks. If a receipt was given for one of them, the channel is closed for writing.",
)
def repair(
    channel: str, archive: str | None, replica: str | None, trust: str | None, accept_loss: bool
) -> None:
    """Show the damage of a channel, and repair it.

    Intact blocks come from the damaged log, missing ones from archives (default: the channel's cold tier) or a replica.
    All are verified as one chain before anything is replaced; the damaged files stay in the channel, in damaged/. If
    blocks are still lost, nothing is changed unless --accept-loss is given: exit 5. Blocks in a cold tier that cannot
    be reached are never given up: exit 7.
    """
    from ropewalk.ledger.channel.repair import repair_channel
    from ropewalk.ledger.proof.trust import parse_trust

    done = repair_channel(
        here().home,
        channel,
        archive=archive,
        replica=None if replica is None else find_repository(Path(replica)).home,
        trust=None if trust is None else parse_input(trust, parse_trust),
        accept_loss=accept_loss,
    )
    emit(done.to_json(), _lines(done))
    if done.done:
        return
    say("nothing was changed: bring the blocks back with --from-archive or --from-replica, or give them up")
    say("with --accept-loss; a channel that gives up receipted blocks is closed for writing")
    raise click.exceptions.Exit(NOT_REPAIRED)


def _lines(done: RepairResult) -> list[str]:
    damage = done.damage
    if not damage.problems:
        return [f"ok  {damage.channel}  {damage.whole} blocks, nothing to repair"]
    out = [f"  \u2717 {each}" for each in damage.problems]
    if not damage.sure:
        out.append("  ? the mark of receipted blocks is lost: more blocks may have been receipted")
    out += [f"  lost  {_block(each)}" for each in done.lost[:LISTED]]
    if len(done.lost) > LISTED:
        out.append(f"  lost  {len(done.lost) - LISTED} more blocks; --json lists them")
    if not done.done:
        return [
            f"DAMAGED  {damage.channel}  {done.blocks} of {damage.receipted} receipted blocks can be kept",
            *out,
        ]
    end = "closed for writing" if done.closed else "open for writing"
    return [f"ok  {damage.channel}  {done.blocks} blocks, {end}", *out, f"  kept  {done.kept}"]


def _block(each: dict[str, Any]) -> str:
    names = each["envelopes"]
    known = "envelopes unknown" if names is None else f"envelopes {' '.join(names)}"
    return f"block {each['height']}  {each['block_hash'] or 'hash unknown'}  {known}"
