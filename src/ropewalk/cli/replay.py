"""`ropewalk ledger replay`: fold a channel into a state and name it by its root."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import click

from ropewalk.cli.manners import Command, emit, progress, say, session, write_output
from ropewalk.cli.places import here, signing_key

__all__ = ["replay"]


@click.command(
    "replay",
    cls=Command,
    epilog="Examples:\n  ropewalk ledger replay --channel audit --reducer counts\n"
    "  ropewalk ledger replay --channel audit --reducer deployments --snapshot-every 1000\n"
    "  ropewalk ledger replay --channel audit --reducer mine:fold --guard --json\n",
)
@click.option("--channel", required=True, metavar="C", help="The channel.")
@click.option(
    "--reducer",
    "name",
    required=True,
    metavar="R",
    help="counts, registers, deployments, or module:function (looked up here too).",
)
@click.option("--to", "until", type=click.IntRange(0), metavar="H", help="Last height; default: the head.")
@click.option(
    "--snapshot-every",
    type=click.IntRange(1),
    metavar="N",
    help="Sign a snapshot every N blocks, on the channel C.snapshots.",
)
@click.option(
    "--from-snapshot", is_flag=True, help="Go on from the last snapshot instead of the first block."
)
@click.option(
    "--guard", is_flag=True, help="Refuse a reducer that asks the clock, chance, files or the network."
)
@click.option("-o", "--output", metavar="F", help="Also write the state, as canonical JSON.")
def replay(
    channel: str,
    name: str,
    until: int | None,
    snapshot_every: int | None,
    from_snapshot: bool,
    guard: bool,
    output: str | None,
) -> None:
    """Verify every block, fold its events, and print the state's root. Recorded snapshots are compared on the way."""
    from ropewalk.errors import NotFound
    from ropewalk.kernel import jcs
    from ropewalk.node.ledger import read_settings
    from ropewalk.node.replay import find_reducer, replay_channel

    if ":" in name:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` would
    reducer = find_reducer(name)
    home = here().home
    try:
        key = signing_key(read_settings(home, channel).key)
    except NotFound:
        if snapshot_every is not None:
            raise
        read_settings(home, channel)
        key = None  # an auditor's copy: replay needs no key, only snapshots do
    done = replay_channel(
        home,
        channel,
        reducer,
        key=key,
        until=until,
        snapshot_every=snapshot_every,
        from_snapshot=from_snapshot,
        guard=guard,
        watch=partial(progress, label=channel),
    )
    if output is not None:
        write_output(output, jcs.encode(done.state))
    if not session().json:
        if from_snapshot:
            where = "the first block" if done.started_from is None else f"the snapshot at {done.started_from}"
            say(f"started from {where}")
        if done.snapshots:
            say(f"{len(done.snapshots)} snapshots on {channel}.snapshots")
    emit(
        done.to_json(),
        lambda: (
            f"ok  {channel}  height={done.height} envelopes={done.envelopes} state_root={done.state_root.hex()}\n"
            + json.dumps(done.state, indent=2, ensure_ascii=False, sort_keys=True)
        ),
    )
