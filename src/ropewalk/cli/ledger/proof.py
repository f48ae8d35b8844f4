"""Proofs in files: `ropewalk ledger prove` and `consistency` write them, `ropewalk verify` reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ropewalk.cli.common.command import Command, emit, parse_input, read_input, telling, write_output
from ropewalk.cli.common.locations import here

if TYPE_CHECKING:
    from ropewalk.cli.audit.verify import Asked
    from ropewalk.kernel.report import Report


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


def verify_receipt_file(asked: Asked) -> Report:
    """The report on a receipt: of COSE, or a C2SP proof file."""
    from ropewalk.cli.audit.verify_head import head_trust
    from ropewalk.ledger.envelope.envelope import parse_wire
    from ropewalk.ledger.proof.trust import parse_trust
    from ropewalk.ledger.transparency.receipts import check_receipt
    from ropewalk.ledger.transparency.tlog_check import check_tlog_proof

    given = parse_input(asked.envelope, parse_wire) if asked.envelope is not None else None
    if read_input(str(asked.path)).startswith(b"c2sp.org/"):
        heads = head_trust(asked)
        return parse_input(str(asked.path), lambda raw: check_tlog_proof(raw, given, heads))
    believed = parse_input(asked.trust, parse_trust) if asked.trust is not None else None
    signers = believed.block_signers if believed is not None else ()
    return parse_input(str(asked.path), lambda raw: check_receipt(raw, given, signers))


def verify_proof_file(asked: Asked) -> Report:
    """The report on a proof: of an envelope, of a range of blocks, of one head under another, of a fork."""
    from ropewalk.cli.audit.verify_head import head_trust
    from ropewalk.kernel import jcs
    from ropewalk.ledger.block.fork import parse_fork, verify_fork
    from ropewalk.ledger.proof.proof import (
        PROOF_BYTES_MAX,
        Proof,
        parse_consistency,
        parse_proof,
        parse_range,
        verify_proof,
    )
    from ropewalk.ledger.proof.trust import parse_trust
    from ropewalk.ledger.transparency.head_fork import parse_head_fork, verify_head_fork

    raw = read_input(str(asked.path), limit=PROOF_BYTES_MAX)
    with telling(str(asked.path)):
        value = jcs.parse(raw, bytes_max=PROOF_BYTES_MAX)
        kind = value.get("kind") if isinstance(value, dict) else None
        if kind == "range":
            return parse_range(raw).report()
        if kind == "consistency":
            return parse_consistency(raw).report()
        if kind == "head_fork":
            return verify_head_fork(parse_head_fork(raw), head_trust(asked))
        found = parse_fork(raw) if kind == "fork" else parse_proof(raw)
    believed = parse_input(asked.trust, parse_trust) if asked.trust is not None else None
    return verify_proof(found, believed) if isinstance(found, Proof) else verify_fork(found, believed)
