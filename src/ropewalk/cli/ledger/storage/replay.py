"""`ropewalk ledger replay`: fold a channel into a state and name it by its root."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import click

from ropewalk.cli.common.command import Command, emit, parse_input, progress, say, session, write_output
from ropewalk.cli.common.locations import here, key_folder
from ropewalk.cli.common.options import channel_option, flag, option, required

to_option = option("--to until", "H", "Last height (default: the head).", type=click.IntRange(0))
snapshot_option = option(
    "--snapshot-every",
    "N",
    "Sign a snapshot every N blocks into the channel C.snapshots (default: none).",
    type=click.IntRange(1),
)
guard_option = click.option(
    "--unsafe-no-guard/--guard",
    "unsafe_no_guard",
    default=False,
    help="Run your own reducer without the guard; it may then use the clock, randomness, files and the network, and "
    "give another state each time. Default: --guard, which rejects such a reducer and fixes the hash seed.",
)


@click.command(
    "replay",
    cls=Command,
    epilog="Examples:\n  ropewalk ledger replay --channel audit --reducer counts\n"
    "  ropewalk ledger replay --channel audit --reducer deployments --snapshot-every 1000\n"
    "  ropewalk ledger replay --channel audit --reducer mine:fold --json\n",
)
@channel_option
@required(
    "--reducer name",
    "R",
    "Reducer: counts, registers, deployments, or module:function (also in the current directory).",
)
@to_option
@snapshot_option
@flag("--from-snapshot", "Start from the last snapshot instead of the first block.")
@guard_option
@option("--trust", "F", "Trust file (default: the channel's own settings).")
@option("-o --output", "F", "Also write the state, as canonical JSON.")
def replay(
    channel: str,
    name: str,
    until: int | None,
    snapshot_every: int | None,
    from_snapshot: bool,
    unsafe_no_guard: bool,
    trust: str | None,
    output: str | None,
) -> None:
    """Verify every block, fold its events into a state, compare recorded snapshots, and print the state's root."""
    from ropewalk.kernel import jcs
    from ropewalk.ledger.proof.trust import parse_trust
    from ropewalk.ledger.replay.channel_replay import replay_signing
    from ropewalk.ledger.replay.reducers import find_reducer

    if ":" in name:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` would
    reducer = find_reducer(name)
    place = here()
    done = replay_signing(
        place.home,
        channel,
        reducer,
        node_keys=place.keys,
        user_keys=key_folder(),
        until=until,
        snapshot_every=snapshot_every,
        from_snapshot=from_snapshot,
        unsafe_no_guard=unsafe_no_guard,
        watch=partial(progress, label=channel),
        trust=parse_input(trust, parse_trust) if trust is not None else None,
    )
    if output is not None:
        write_output(output, jcs.encode(done.state))
    if not session().json:
        if from_snapshot:
            where = "the first block" if done.started_from is None else f"the snapshot at {done.started_from}"
            say(f"started from {where}")
        for refused in done.refused:
            say(f"refused {refused.name}: {refused.reason}")
        if done.snapshots:
            say(f"{len(done.snapshots)} snapshots on {channel}.snapshots")
    emit(
        done.to_json(),
        lambda: (
            f"ok  {channel}  height={done.height} envelopes={done.envelopes} state_root={done.state_root.hex()}\n"
            + json.dumps(done.state, indent=2, ensure_ascii=False, sort_keys=True)
        ),
    )
