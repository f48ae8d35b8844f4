"""Heads, proofs and receipts of a channel in files, also in the formats of other tools (COSE, C2SP, RFC 3161)."""

from __future__ import annotations

from pathlib import Path

import click

from ropewalk.cli.common.command import (
    command,
    emit,
    parse_input,
    read_input,
    say,
    write_output,
    write_result,
)
from ropewalk.cli.common.options import channel_option, choice, flag, integer, option, required
from ropewalk.cli.ledger.channel import channel_key, channel_of, read_channel
from ropewalk.cli.ledger.channel import envelope_id as parse_id
from ropewalk.errors import RangeExceeded

DEFAULT_HOST = "ropewalk.invalid"


def _host(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter("must be a host name, such as log.example.org")
    return value


host_option = option(
    "--host", "H", "Host name, the first part of the log's origin.", default=DEFAULT_HOST, callback=_host
)


def warn_default_host(host: str, channel: str) -> None:
    """Warn that a head was signed for the placeholder host: a key should sign for one origin only."""
    source = click.get_current_context().get_parameter_source("host")
    if source is click.core.ParameterSource.DEFAULT:
        say(
            f"no --host given: signed for the placeholder origin {host}/{channel}; set your host name with --host"
        )


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


@command(
    "prove",
    "ropewalk ledger prove $(ropewalk ledger read --channel audit | awk 'END {print $NF}') -o proof.json",
)
@click.argument("envelope_id")
@required("-o --output", "F", "Output file for the proof.")
@option("--channel", "C", "Channel (default: search all).")
def prove(envelope_id: str, output: str, channel: str | None) -> None:
    """Write the inclusion proof of an envelope. `ropewalk verify F` checks it offline."""
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


@command(
    "receipt",
    "ropewalk ledger receipt -o receipt.cose \\",
    "    $(ropewalk ledger read --channel audit | awk 'END {print $NF}')",
    "ropewalk ledger receipt --form tlog -o entry.tlog-proof \\",
    "    $(ropewalk ledger read --channel audit | awk 'END {print $NF}')",
)
@click.argument("envelope_id")
@required("-o --output", "F", "Output file.")
@option("--channel", "C", "Channel (default: search all).")
@choice("--form", ["cose", "tlog"], "Format: COSE receipt (RFC 9942), or C2SP tlog-proof.", default="cose")
@host_option
def receipt(envelope_id: str, output: str, channel: str | None, form: str, host: str) -> None:
    """Write a receipt: an inclusion proof of the envelope's block under a root signed by the channel's key.

    A tlog-proof is under the newest head that the channel's witnesses have cosigned, if that covers the block.
    """
    from ropewalk.ledger.transparency.publish import make_cose_receipt, make_tlog_proof

    name = parse_id(envelope_id)
    make = make_cose_receipt if form == "cose" else make_tlog_proof
    with channel_of(name, channel) as reading:
        raw, found_in = (
            make(reading, name, channel_key(reading.settings.channel), host),
            reading.settings.channel,
        )
    warn_default_host(host, found_in)
    write_output(output, raw)
    if output == "-":
        return
    emit(
        {"envelope_id": envelope_id, "channel": found_in, "form": form, "bytes": len(raw), "path": output},
        f"ok  {found_in}  {form}  {len(raw)} bytes  {output}",
    )


@command("tiles", "ropewalk ledger tiles --channel audit --host log.example.org -o public/")
@channel_option
@required("-o --output", "DIR", "The folder to publish.")
@host_option
def tiles(channel: str, output: str, host: str) -> None:
    """Publish the block headers as a C2SP tiled log: checkpoint, hash tiles, entries. A second run adds new blocks.

    Damaged files are rewritten. A folder with the checkpoint of another log, or of a history that this channel does not
    extend, is not changed: exit 4, or 5 for a fork. Two publishers of one folder take turns.

    Also print the verifier key (vkey) of the log. Distribute it separately from the folder; any C2SP client can check
    the checkpoint with it.
    """
    from ropewalk.ledger.transparency.head_signers import list_names
    from ropewalk.ledger.transparency.publish import publish_tiles

    with read_channel(channel) as reading:
        done = publish_tiles(reading, channel_key(reading.settings.channel), host, Path(output))
    warn_default_host(host, channel)
    files = f"{done.written} files written, {done.kept} kept"
    if done.mended:
        files += f", {len(done.mended)} damaged and written anew: {list_names(done.mended)}"
    emit(
        {"channel": channel, **done.to_json()},
        f"ok  {channel}  size={done.size} root={done.root.hex()}  {files}\n"
        f"check {done.folder / 'checkpoint'} with the vkey {done.vkey}",
    )


@command(
    "timestamp",
    "ropewalk ledger timestamp head.note --tsa https://tsa.example/ --tsa-root root.pem",
    "ropewalk verify head.note --trust trust.json --timestamp head.note.tsr --tsa-root root.pem",
)
@click.argument("file", metavar="FILE")
@required("--tsa", "URL", "Address of the time stamp authority.")
@required("--tsa-root roots", "PEM", "Its root; repeatable.", multiple=True)
@option("-o --output", "F", "Output file (default: FILE.tsr).")
def timestamp(file: str, tsa: str, roots: tuple[str, ...], output: str | None) -> None:
    """Have an authority sign the time of FILE (RFC 3161): a head, a bundle, the manifest of an archive, a proof.

    Only the SHA-256 of FILE is sent. The answer is verified before it is written; `openssl ts -verify` reads it too.
    """
    from ropewalk.ledger.evidence.certificates import parse_certificates
    from ropewalk.ledger.transparency.timestamps import check_timestamp, fetch_timestamp
    from ropewalk.net.http_post import check_url

    trusted = [pem for name in roots for pem in parse_input(name, parse_certificates)]
    message = read_input(file)
    raw = fetch_timestamp(check_url(tsa), message, trusted)
    time, path = check_timestamp(raw, message, trusted).isoformat(), output or f"{file}.tsr"
    write_output(path, raw)
    if path != "-":
        emit({"path": path, "time": time, "bytes": len(raw)}, f"ok  {time}  {path}")
