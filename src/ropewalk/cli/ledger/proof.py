"""Proofs in files: `ropewalk ledger prove` and `consistency` write them, `ropewalk verify` reads them."""

from __future__ import annotations

import click

from ropewalk.cli.common.command import command, write_result
from ropewalk.cli.common.options import channel_option, integer, option, required
from ropewalk.cli.ledger.channel import channel_of, read_channel
from ropewalk.errors import RangeExceeded


@command(
    "prove",
    "ropewalk ledger prove $(ropewalk ledger read --channel audit | awk 'END {print $NF}') -o proof.json",
)
@click.argument("envelope_id")
@required("-o --output", "F", "Output file for the proof.")
@option("--channel", "C", "Channel (default: search all).")
def prove(envelope_id: str, output: str, channel: str | None) -> None:
    """Write the inclusion proof of an envelope. `ropewalk verify F` checks it offline."""
    from ropewalk.cli.ledger.channel import envelope_id as parse_id

    name = parse_id(envelope_id)
    with channel_of(name, channel) as reading:
        proof, found_in = reading.prove(name), reading.settings.channel
    write_result(
        output,
        proof.to_bytes(),
        {
            "envelope_id": envelope_id,
            "channel": found_in,
            "height": proof.height,
            "index": proof.index,
            "path": output,
        },
        f"ok  {found_in} {proof.height}/{proof.index}  {len(proof.path)} hashes  {output}",
    )


@command("consistency", "ropewalk ledger consistency --channel audit --old 100 --new 200 -o c.json")
@channel_option
@integer("--old", "N", "Number of blocks of the older head.", required=True)
@integer("--new", "N", "Number of blocks of the newer head.", required=True)
@option("-o --output", "F", "Output file for the proof (default: stdout).", default="-")
def consistency(channel: str, old: int, new: int, output: str) -> None:
    """Write the consistency proof that a newer head extends an older one."""
    with read_channel(channel) as reading:
        size = reading.head().height
        if not old <= new <= size:
            raise RangeExceeded(
                f"--old and --new must satisfy old <= new <= {size}, got {old} and {new}",
                channel=channel,
                advice="Give the number of blocks of an older and of a newer head.",
            )
        proof = reading.prove_consistency(old, new)
    answer = {"channel": channel, "old": old, "new": new, "path": output}
    said = f"ok  {channel}  {old} blocks are the beginning of {new}  {output}"
    write_result(output, proof.to_bytes(), answer, said)
