"""`ropewalk ledger receipt` and `ledger tiles`: proofs in the formats of other tools (COSE, C2SP)."""

from __future__ import annotations

from pathlib import Path

import click

from ropewalk.cli.common.command import command, emit, parse_input, read_input, say, write_output
from ropewalk.cli.common.options import channel_option, choice, option, required
from ropewalk.cli.ledger.channel import channel_key, channel_of, read_channel

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
    from ropewalk.cli.ledger.channel import envelope_id as parse_id
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
