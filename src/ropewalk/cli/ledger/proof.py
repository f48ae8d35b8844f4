"""Proofs in files: `ropewalk ledger prove` and `consistency` write them, `ropewalk verify` reads them."""

from __future__ import annotations

import click

from ropewalk.cli.common.command import Command, emit, write_output
from ropewalk.cli.common.locations import here


@click.command(
    "prove",
    cls=Command,
    epilog="Examples:\n"
    "  ropewalk ledger prove $(ropewalk ledger read --channel audit | awk 'END {print $NF}') -o proof.json\n",
)
@click.argument("envelope_id")
@click.option("-o", "--output", required=True, metavar="F", help="Where to write the proof.")
@click.option("--channel", metavar="C", help="The channel; default: look in all.")
def prove(envelope_id: str, output: str, channel: str | None) -> None:
    """Write the proof that an envelope stands in its block. `ropewalk verify F` checks it, offline."""
    from ropewalk.cli.ledger.channel import channel_of
    from ropewalk.cli.ledger.channel import envelope_id as parse_id

    name = parse_id(envelope_id)
    with channel_of(name, channel) as reading:
        proof, found_in = reading.prove(name), reading.settings.channel
    write_output(output, proof.to_bytes() + (b"\n" if output == "-" else b""))
    if output == "-":
        return
    emit(
        {
            "envelope_id": envelope_id,
            "channel": found_in,
            "height": proof.height,
            "index": proof.index,
            "path": output,
        },
        f"ok  {found_in} {proof.height}/{proof.index}  {len(proof.path)} hashes  {output}",
    )


@click.command(
    "consistency",
    cls=Command,
    epilog="Examples:\n  ropewalk ledger consistency --channel audit --old 100 --new 200 -o c.json\n",
)
@click.option("--channel", required=True, metavar="C", help="The channel.")
@click.option("--old", required=True, type=click.IntRange(0), help="How many blocks the older head has.")
@click.option("--new", required=True, type=click.IntRange(0), help="How many blocks the newer head has.")
@click.option("-o", "--output", default="-", metavar="F", help="Where to write the proof.")
def consistency(channel: str, old: int, new: int, output: str) -> None:
    """Write the proof that a newer head extends an older one."""
    from ropewalk.errors import RangeExceeded
    from ropewalk.ledger.channel.channel import open_channel

    with open_channel(here().home, channel) as reading:
        size = reading.head().height
        if not old <= new <= size:
            raise RangeExceeded(
                f"from {old} to {new} blocks of a channel of {size}",
                channel=channel,
                advice="Name an older and a newer head by how many blocks each has.",
            )
        proof = reading.prove_consistency(old, new)
    write_output(output, proof.to_bytes() + (b"\n" if output == "-" else b""))
    if output != "-":
        answer = {"channel": channel, "old": old, "new": new, "path": output}
        emit(answer, f"ok  {channel}  {old} blocks are the beginning of {new}  {output}")
