"""`ropewalk ledger enclave`: seal envelopes for an attested enclave, and open them there."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import emit, group, parse_input, write_output, write_result
from ropewalk.cli.common.locations import here, sealing_key, signing_key
from ropewalk.cli.common.options import flag, option, required, together
from ropewalk.cli.common.tls_options import tls_files, tls_options
from ropewalk.cli.ledger.append import answer_lines, receipt_line
from ropewalk.cli.ledger.channel import open_for_append
from ropewalk.kernel import jcs

if TYPE_CHECKING:
    from ropewalk.ledger.mailbox.enclave import EnclaveKey

key_options: Callable[[Any], Any] = together(
    required("--key", "NAME", "Secret of the enclave, a sealing key."),
    required("--enclave-ref", "REF", "Name of the enclave."),
)


@group(
    "enclave",
    "ropewalk ledger enclave offer --key box --enclave-ref pay-1 -o offer.json",
    "ropewalk ledger enclave seal --to advertisement.json --trust trust.json --channel pay --file envelope.json",
)
def enclave() -> None:
    """Seal envelopes so that only an attested enclave can read them.

    The enclave offers a key, and its hardware report binds the key to its measurement. Envelopes for the enclave are
    sealed to that key and opened inside it.
    """


@enclave.command("offer", "ropewalk ledger enclave offer --key box --enclave-ref pay-1 -o offer.json")
@key_options
@option("-o --output", "F", "Output file (default: stdout).", default="-")
def offer(key: str, enclave_ref: str, output: str) -> None:
    """Write the offer of an enclave: the payload of an advertisement, with the public key for sealing.

    Next: `ledger evidence report-data --payload offer.json` prints what the hardware must sign, `ledger evidence wrap`
    wraps its report, and `ledger envelope --class CapabilityAdvertisement --type transport.capability --payload
    offer.json --evidence evidence.json` makes the advertisement.
    """
    from ropewalk.ledger.mailbox.enclave import offer_payload

    made = _key(key, enclave_ref).offer
    answer = {"enclave_ref": made.enclave_ref, "key_id": made.key_id, "path": output}
    write_result(output, jcs.encode(offer_payload(made)), answer, f"ok  {output}")


@enclave.command(
    "seal",
    "ropewalk ledger enclave seal --to advertisement.json --trust trust.json --channel pay \\",
    "    --file envelope.json -o sealed.json",
)
@required("--to advertisement", "F", "The enclave's advertisement.")
@required("--trust", "F", "A trust file with roots and measurements: whose enclave it may be.")
@option("--nonce", "HEX", "The nonce you had asked for; only evidence that has it will do.")
@required("--channel", "C", "The channel in the enclave.")
@required("--file file", "F", "Envelope as JSON or CBOR; `-` reads stdin.")
@option("-o --output", "F", "Output file (default: stdout).", default="-")
def seal(advertisement: str, trust: str, nonce: str | None, channel: str, file: str, output: str) -> None:
    """Seal an envelope for the enclave that it names, after checking the attestation of the enclave.

    Nothing is sealed unless valid evidence binds the key to hardware and a measurement in the trust file.
    """
    from ropewalk.ledger.envelope.envelope import parse_wire
    from ropewalk.ledger.mailbox.enclave import check_offer
    from ropewalk.ledger.mailbox.enclave_channel import seal_envelope
    from ropewalk.ledger.proof.trust import parse_trust

    try:
        asked = None if nonce is None else bytes.fromhex(nonce)
    except ValueError:
        raise click.UsageError("--nonce is hex") from None
    believed = parse_input(trust, parse_trust)
    found = check_offer(parse_input(advertisement, parse_wire), believed, time.time_ns(), asked)
    made = seal_envelope(parse_input(file, parse_wire), channel, found)
    write_output(output, made.to_bytes() + b"\n")
    if output != "-":
        emit(
            {"envelope_id": made.envelope_id.hex(), "key_id": made.key_id, "path": output},
            f"ok  {made.envelope_id.hex()}  sealed for {made.enclave_ref}  {output}",
        )


@enclave.command(
    "append",
    "ropewalk ledger enclave append --channel pay --key box --enclave-ref pay-1 --file sealed.json",
    "bridge | ropewalk ledger enclave append --channel pay --key box --enclave-ref pay-1 --file - --jsonl --json",
)
@key_options
@required("--channel", "C", "The channel; it must be there.")
@required("--file file", "F", "What was sealed; `-` for stdin.")
@flag("--jsonl", "Read one per line; print one result per line, once it is durable.")
@flag("--stop-on-error", "With --jsonl: stop at the first rejected line (slower: one block per line).")
def append(key: str, enclave_ref: str, channel: str, file: str, jsonl: bool, stop_on_error: bool) -> None:
    """Open sealed envelopes inside the enclave, and append them as `ledger append` does."""
    from ropewalk.ledger.channel.settings import read_settings
    from ropewalk.ledger.mailbox.enclave import SEALED_BYTES_MAX
    from ropewalk.ledger.mailbox.enclave_channel import DecryptingLog

    read_settings(here().home, channel)  # NotFound: what is refused makes no channel
    own = _key(key, enclave_ref)
    with ExitStack() as stack:

        def begin() -> DecryptingLog:
            return DecryptingLog(stack.enter_context(open_for_append(channel)).log, channel, own)

        if jsonl:
            code = answer_lines(file, begin, stop_on_error)
            if code:
                raise click.exceptions.Exit(code)
            return
        receipt = begin().submit(parse_input(file, bytes, limit=SEALED_BYTES_MAX))
        emit(receipt.to_json(), receipt_line(receipt))


def _key(name: str, enclave_ref: str) -> EnclaveKey:
    from ropewalk.ledger.mailbox.enclave import EnclaveKey

    return EnclaveKey(enclave_ref, sealing_key(name))


@enclave.command(
    "bridge",
    "carrier | ropewalk ledger enclave bridge --inbox pay --key box --enclave-ref pay-1 --file - \\",
    "    --public quic://ledger.example:7400 --public-channel anchors --tls pki/pay --attest-command ./attest",
)
@key_options
@required("--inbox", "C", "Channel inside the enclave; it must be there.")
@required("--file file", "F", "Sealed envelopes, one a line; `-` for stdin.")
@required("--public url", "URL", "Server of the public channel.")
@required("--public-channel", "C", "Channel that takes the anchors.")
@required("--attest-command", "CMD", "Gets report data in hex on stdin, prints the evidence.")
@option("--sign-key", "NAME", "Key that signs the anchors.", default="node")
@tls_options("--server-ca", "server")
def bridge(
    key: str, enclave_ref: str, inbox: str, file: str, url: str, public_channel: str, attest_command: str,
    sign_key: str, **certificates: Any,
) -> None:  # fmt: skip
    """Open sealed envelopes inside the enclave, seal them into blocks, and anchor the blocks in a public channel.

    An anchor names height, Merkle root and hash of a block, with evidence of the enclave. Blocks that were sealed
    before and have no anchor get one, too.
    """
    from ropewalk.cli.ledger.remote.remote import attest_by
    from ropewalk.ledger.channel.settings import read_settings
    from ropewalk.ledger.mailbox.anchoring import anchor_blocks
    from ropewalk.ledger.mailbox.enclave_channel import DecryptingLog
    from ropewalk.ledger.remote.sync_client import connect_channel

    home = here().home
    read_settings(home, inbox)
    own, attest = _key(key, enclave_ref), attest_by(attest_command)
    assert attest is not None
    with ExitStack() as stack:
        code = answer_lines(
            file, lambda: DecryptingLog(stack.enter_context(open_for_append(inbox)).log, inbox, own), False
        )
    with connect_channel(url, public_channel, files=tls_files(certificates, "--server-ca")) as remote:
        count, height = anchor_blocks(home, inbox, remote, public_channel, signing_key(sign_key), attest)
    emit({"anchored": count, "height": height}, f"ok  {inbox}  {count} blocks anchored in {public_channel}")
    if code:
        raise click.exceptions.Exit(code)


@enclave.command(
    "check-anchor",
    "ropewalk ledger enclave check-anchor --anchor public.json --block inner.json --trust trust.json",
)
@required("--anchor", "F", "Proof of the anchor, as `ledger prove` writes it.")
@required("--block inner", "F", "Proof of an inner envelope, or a block record.")
@required("--trust", "F", "Trust file: public signer, roots and measurements.")
def check_anchor_command(anchor: str, inner: str, trust: str) -> None:
    """Verify offline that an anchor in a public channel leads to a block of an enclave."""
    from ropewalk.ledger.block.block import BlockRecord, parse_record
    from ropewalk.ledger.mailbox.enclave_bridge import check_anchor
    from ropewalk.ledger.proof.proof import parse_proof
    from ropewalk.ledger.proof.trust import parse_trust

    def record_of(raw: bytes) -> BlockRecord:
        value = jcs.parse(raw)
        inside = value.get("block") if isinstance(value, dict) else None
        return parse_record(jcs.encode(inside) if inside is not None else raw.strip())

    record = parse_input(inner, record_of)
    check_anchor(parse_input(anchor, parse_proof), record, parse_input(trust, parse_trust))
    facts = {"channel": record.header.channel, "height": record.height, "block_hash": record.hash.hex()}
    emit(facts, f"ok  {record.header.channel}  block {record.height} {record.hash.hex()} is anchored")
