"""`ropewalk ledger head`: where a channel ends, plainly, as a signed head, or as a request for a witness."""

from __future__ import annotations

import click

from ropewalk.cli.common.command import Command, emit
from ropewalk.cli.common.locations import here
from ropewalk.cli.ledger.channel import channel_key
from ropewalk.cli.ledger.publish import host_option, tell_host


@click.command(
    "head",
    cls=Command,
    epilog="Examples:\n  ropewalk ledger head --channel audit\n"
    "  ropewalk ledger head --channel audit --note --host log.example.org > head.note\n"
    "  ropewalk ledger head --channel audit --note --host log.example.org --old 4 > request\n",
)
@click.option("--channel", required=True, metavar="C", help="The channel.")
@click.option("--note", is_flag=True, help="Print the signed head over the headers as a C2SP note instead.")
@host_option
@click.option(
    "--old",
    type=click.IntRange(0),
    metavar="N",
    help="With --note: a request for a witness that has cosigned N blocks, proof and all.",
)
def head(channel: str, note: bool, host: str, old: int | None) -> None:
    """Print where the channel ends.

    With --old it is the body of C2SP's `add-checkpoint`: `witness cosign` takes it, and so do public witnesses.
    """
    from ropewalk.ledger.channel.channel import open_channel
    from ropewalk.ledger.proof.proof import head_signer, signed_head
    from ropewalk.ledger.transparency.publish import header_tree
    from ropewalk.ledger.transparency.witness import WitnessRequest

    if old is not None and not note:
        raise click.UsageError("--old goes with --note")
    with open_channel(here().home, channel) as reading:
        found = reading.head()
        if note:
            size, root = reading.header_head()
            key = channel_key(channel)
            if size:
                reading.note_head(size, reading.index.block_hash(size - 1), "a signed head")
            text = signed_head(host, channel, size, root, key).decode()
            answer = {"note": text, "vkey": head_signer(host, channel, key).verifier.to_text()}
            if old is not None:
                path = header_tree(reading).consistency(old, size)
                text = WitnessRequest(text.encode(), old, path).to_bytes().decode()
                answer["request"] = text
            tell_host(host, channel)
            emit(answer, text.rstrip("\n"))
            return
    empty = found.height == 0
    emit(
        {
            "channel": channel,
            "height": None if empty else found.height - 1,
            "block_hash": None if empty else found.block_hash.hex(),
            "envelopes": found.envelopes,
        },
        f"{channel}  empty"
        if empty
        else f"{channel}  height={found.height - 1} envelopes={found.envelopes} block={found.block_hash.hex()}",
    )
