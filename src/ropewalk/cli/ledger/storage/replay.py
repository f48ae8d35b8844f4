"""`ropewalk ledger replay` and `ledger state`: fold a channel into a state, name it by its root, prove its members."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropewalk.cli.common.command import (
    command,
    emit,
    group,
    parse_input,
    progress,
    say,
    session,
    write_output,
    write_result,
)
from ropewalk.cli.common.locations import here, key_folder
from ropewalk.cli.common.options import channel_option, flag, integer, option, required
from ropewalk.kernel import jcs

if TYPE_CHECKING:
    from ropewalk.ledger.replay.reducers import Reducer

to_option = integer("--to until", "H", "Last height (default: the head).")
snapshot_option = integer(
    "--snapshot-every",
    "N",
    "Sign a snapshot every N blocks into the channel C.snapshots (default: none).",
    least=1,
)
guard_option = click.option(
    "--unsafe-no-guard/--guard",
    "unsafe_no_guard",
    default=False,
    help="Run your own reducer without the guard; it may then use the clock, randomness, files and the network, and "
    "give another state each time. Default: --guard, which rejects such a reducer and fixes the hash seed.",
)

reducer_option = required(
    "--reducer name",
    "R",
    "Reducer: counts, registers, deployments, or module:function (also in the current directory).",
)


@command(
    "replay",
    "ropewalk ledger replay --channel audit --reducer counts",
    "ropewalk ledger replay --channel audit --reducer deployments --snapshot-every 1000",
    "ropewalk ledger replay --channel audit --reducer mine:fold --json",
)
@channel_option
@reducer_option
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
    from ropewalk.ledger.proof.trust import parse_trust
    from ropewalk.ledger.replay.channel_replay import replay_signing

    reducer, place = named_reducer(name), here()
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


@group("state", "ropewalk ledger state prove --channel audit --reducer counts --key /total -o state.json")
def state() -> None:
    """Prove single members of a replayed state."""


@state.command(
    "prove",
    "ropewalk ledger replay --channel audit --reducer deployments --snapshot-every 1",
    "ropewalk ledger state prove --channel audit --reducer deployments --key /prod/web -o state.json",
    "ropewalk verify state.json --trust trust.json",
)
@channel_option
@reducer_option
@required("--key pointer", "P", "Member of the state, as a JSON pointer such as /prod/web.")
@integer("--height", "H", "Height of the snapshot (default: the last one).")
@required("-o --output", "F", "Output file for the proof.")
def prove_state(channel: str, name: str, pointer: str, height: int | None, output: str) -> None:
    """Write a proof that a member of the state has its value, or is absent, at a signed snapshot."""
    from ropewalk.ledger.replay.prove_state import prove_state as prove
    from ropewalk.ledger.replay.state_map import parse_pointer

    proof = prove(here().home, channel, named_reducer(name), parse_pointer(pointer), height)
    answer = {"channel": channel, "height": proof.height, "key": list(proof.key), "path": output}
    answer |= {"value": proof.value[0]} if proof.value else {"absent": True}
    said = json.dumps(proof.value[0], ensure_ascii=False) if proof.value else "absent"
    said = f"ok  {channel} {proof.height}  {pointer or 'whole state'} = {said}  {output}"
    write_result(output, proof.to_bytes(), answer, said)


def named_reducer(name: str) -> Reducer:
    """Return a reducer by name; modules of the current directory are found too."""
    from ropewalk.ledger.replay.reducers import find_reducer

    if ":" in name:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` would
    return find_reducer(name)
