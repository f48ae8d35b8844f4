"""`ropewalk ledger head`: print the head of a channel, plain, signed, or as a request to a witness."""

from __future__ import annotations

import click

from ropewalk.cli.common.command import command, emit
from ropewalk.cli.common.options import channel_option, flag, integer
from ropewalk.cli.ledger.channel import channel_key, read_channel
from ropewalk.cli.ledger.publish import host_option, warn_default_host


@command(
    "head",
    "ropewalk ledger head --channel audit",
    "ropewalk ledger head --channel audit --note --host log.example.org > head.note",
    "ropewalk ledger head --channel audit --note --host log.example.org --old 4 > request",
)
@channel_option
@flag("--note", "Print the head signed, as a C2SP note over the block headers.")
@host_option
@integer(
    "--old",
    "N",
    "With --note: print a request to a witness that has cosigned N blocks, with the consistency proof.",
)
def head(channel: str, note: bool, host: str, old: int | None) -> None:
    """Print the head of a channel: height, block hash, number of envelopes.

    With --old, print the body of a C2SP `add-checkpoint` request, for `witness cosign` and public witnesses.
    """
    from ropewalk.ledger.proof.proof import head_signer, signed_head
    from ropewalk.ledger.transparency.publish import header_tree
    from ropewalk.ledger.transparency.witness import WitnessRequest

    if old is not None and not note:
        raise click.UsageError("--old goes with --note")
    with read_channel(channel) as reading:
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
            warn_default_host(host, channel)
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
