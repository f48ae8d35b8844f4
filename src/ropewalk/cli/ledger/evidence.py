"""`ropewalk ledger evidence`: set the trusted evidence of a channel, and check evidence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ropewalk.cli.common.command import MARKS, emit, group, parse_input, read_input, say
from ropewalk.cli.common.locations import here, signing_key
from ropewalk.cli.common.options import channel_option, integer, option, repeated, required
from ropewalk.cli.ledger.channel import WRITER_WAIT_S, channel_keys, now_text, read_channel
from ropewalk.cli.ledger.evidence_report import (
    collateral_options,
    provenance,
    read_collateral,
    report_data,
    wrap,
)
from ropewalk.cli.ledger.key import check_fits, given_proposal, proposal_options, reason_option
from ropewalk.cli.ledger.proposal import write_proposal
from ropewalk.errors import Conflict, NotFound, Unverified
from ropewalk.kernel.terminal_text import printable
from ropewalk.ledger.envelope.fields import parse_timestamp

if TYPE_CHECKING:
    from ropewalk.kernel.keys import PublicKey, SigningKey


@group(
    "evidence",
    "ropewalk ledger evidence set --channel audit --root aws-root.pem --pcr 0=8a1f… ",
    "ropewalk ledger evidence wrap --format slsa.v1 --report build.dsse.json -o evidence.json",
    "ropewalk ledger evidence check --channel audit --file envelope.json",
)
def evidence() -> None:
    """Set the evidence that a channel trusts; wrap and check evidence."""


for _command in (report_data, wrap, provenance):
    evidence.add_command(_command)


@evidence.command(
    "set",
    "ropewalk ledger evidence set --channel audit --key ci --builder https://builder.example/v1",
    "ropewalk ledger evidence set --channel audit --root root.pem --pcr 0=$PCR0 --max-age 86400",
    "ropewalk ledger evidence set --channel audit --root ark.pem --measurement sev.measurement=$DIGEST \\",
    "    --sev-tcb snp=24",
    "ropewalk ledger evidence set --channel audit --root sgx-root.pem --measurement tdx.mrtd=$MRTD \\",
    "    --tcb-status UpToDate --tcb-status SWHardeningNeeded --crl pck.crl",
    "ropewalk ledger evidence set --channel audit --snark-vk verification_key.json",
)
@channel_option
@repeated("--root roots", "PEM", "Trusted root certificate; repeatable.")
@repeated("--key names", "KEY", "Trusted signer of provenance: a key name or a did:key; repeatable.")
@repeated("--builder builders", "ID", "Trusted builder; repeatable.")
@repeated("--pcr pcrs", "N=HEX", "Trusted PCR value, such as 0=8a1f…; repeatable.")
@repeated(
    "--measurement measurements",
    "NAME=HEX",
    "Required value of a hardware register, such as sev.measurement=5a1f…; repeatable.",
)
@repeated(
    "--sev-tcb levels",
    "NAME=N",
    "Minimum level of a part of the AMD platform: fmc, bootloader, tee, snp or microcode.",
)
@repeated(
    "--sgx-isv products",
    "NAME=N",
    "Required product of an SGX enclave (prodid), or its minimum version (svn).",
)
@repeated(
    "--tcb-status statuses",
    "STATUS",
    "Accepted Intel TCB status, such as SWHardeningNeeded (default: only UpToDate); repeatable.",
)
@collateral_options
@repeated("--crl crls", "F", "Revocation list in PEM or DER; repeatable.")
@repeated(
    "--snark-vk snark_keys",
    "FILE",
    "Trusted verification key of Groth16 proofs, as snarkjs exports it; repeatable.",
)
@integer(
    "--max-age", "SECONDS", "Maximum age of a document, report or provenance (default: unlimited).", least=1
)
@reason_option
@proposal_options
def set_(
    channel: str,
    roots: tuple[str, ...],
    names: tuple[str, ...],
    builders: tuple[str, ...],
    pcrs: tuple[str, ...],
    measurements: tuple[str, ...],
    levels: tuple[str, ...],
    products: tuple[str, ...],
    statuses: tuple[str, ...],
    tcb_info: str | None,
    qe_identity: str | None,
    signers: tuple[str, ...],
    crls: tuple[str, ...],
    snark_keys: tuple[str, ...],
    max_age: int | None,
    reason: str,
    propose: str | None,
    proposal: str | None,
    approvals: tuple[str, ...],
) -> None:
    """Set the evidence that a channel trusts, replacing earlier settings. Rule 5 then also checks evidence.

    Only what is named here is trusted: without options, all evidence fails. A change of earlier settings is recorded in
    the channel, with fingerprints and date. If the policy requires approvals for `evidence`, give the same options with
    --propose, and again with --proposal and --approval.
    """
    from ropewalk.ledger.channel.guards import EVIDENCE_FILE
    from ropewalk.ledger.evidence.allowed import EvidenceAllowList
    from ropewalk.ledger.evidence.crls import CRL_BYTES_MAX, crl_text
    from ropewalk.ledger.evidence.rotation import propose_evidence, rotate_evidence
    from ropewalk.ledger.evidence.snark import KEY_BYTES_MAX, key_text
    from ropewalk.ledger.evidence.trust import EvidenceSettings

    pins = EvidenceAllowList(
        tuple(_key(name) for name in names),
        builders,
        {_number(number, "--pcr"): texts for number, texts in _named(pcrs, "--pcr").items()},
        max_age,
        _named(measurements, "--measurement"),
        _numbers(levels, "--sev-tcb"),
        _numbers(products, "--sgx-isv"),
        statuses,
        () if (given := read_collateral(tcb_info, qe_identity, signers)) is None else (given,),
        tuple(parse_input(crl, crl_text, limit=CRL_BYTES_MAX) for crl in crls),
        tuple(parse_input(key, key_text, limit=KEY_BYTES_MAX) for key in snark_keys),
    )
    settings = EvidenceSettings(tuple(read_input(root).decode("ascii", "replace") for root in roots), pins)
    home = here().home
    act, signed = given_proposal(proposal, approvals)
    if act is None and (propose or reason):
        with read_channel(channel) as reading:
            act = propose_evidence(reading, settings, reason=reason)
    if act is not None:
        check_fits(act, "evidence", channel)
        if propose is not None:
            write_proposal(propose, act.to_json())
            return
    keys: tuple[SigningKey, ...] = ()
    try:
        keys = channel_keys(channel)
    except (Conflict, NotFound):  # a copy; its origin records what it trusts
        say("not recorded: the key of the channel is not here")
    receipt = rotate_evidence(home, channel, settings, keys, act=act, approvals=signed, wait_s=WRITER_WAIT_S)
    if receipt is not None:
        say(f"recorded in {channel} at height {receipt.height}")
    emit(
        {
            "channel": channel,
            "path": str(home / "ledger" / channel / EVIDENCE_FILE),
            "evidence": json.loads(settings.to_bytes()),
            "recorded": None if receipt is None else receipt.height,
        },
        f"ok  {channel}  {len(roots)} roots, {len(names)} keys, {len(builders)} builders, "
        f"{len(pcrs) + len(measurements)} measurements",
    )


@evidence.command("show", "ropewalk ledger evidence show --channel audit --json")
@channel_option
def show(channel: str) -> None:
    """Print the evidence that the channel trusts."""
    from ropewalk.ledger.evidence.settings import read_evidence

    found = read_evidence(here().home, channel)
    if found is None:
        raise NotFound(
            f"channel {channel} has no evidence.json: that evidence speaks of its envelope is judged, nothing more",
            channel=channel,
            advice="Make one with `ropewalk ledger evidence set --channel C`.",
        )
    lines = [f"evidence under {len(found.roots)} roots", *found.pins.explain()]
    emit(json.loads(found.to_bytes()), "\n".join(f"believes {line}" for line in lines))


@evidence.command(
    "check",
    "ropewalk ledger evidence check --file envelope.json --channel audit",
    "ropewalk ledger evidence check --file envelope.json --trust trust.json --at 2026-11-01T12:00:00Z",
)
@required("--file file", "F", "Envelope; `-` reads stdin.")
@option("--channel", "C", "Check with the settings of this channel.")
@option("--trust", "F", "Check with a trust file.")
@option("--at", "TIME", "Time of the check in RFC 3339, UTC (default: now).")
@option("--nonce", "HEX", "Required nonce: exit 0 only if the evidence passed and has it.")
def check(file: str, channel: str | None, trust: str | None, at: str | None, nonce: str | None) -> None:
    """Check the evidence of an envelope: passed, failed or not checked, and why. Exit 5 if it failed.

    With --nonce the exit code is 0 only if it passed; not checked counts as failed.
    """
    from ropewalk.ledger.envelope.envelope import parse_wire
    from ropewalk.ledger.evidence.recheck import EvidenceTally
    from ropewalk.ledger.evidence.settings import channel_trust
    from ropewalk.ledger.proof.trust import Trust, parse_trust

    if (channel is None) == (trust is None):
        raise click.UsageError("exactly one of --channel and --trust must be given")
    believed: Trust = (
        channel_trust(here().home, channel) if channel is not None else parse_input(str(trust), parse_trust)
    )
    one = parse_input(file, parse_wire)
    status, detail = EvidenceTally(believed).judge(one, parse_timestamp(at or now_text()), _nonce(nonce))
    emit(
        {"envelope_id": one.hex_id, "status": status, "detail": detail, "at": at or now_text()},
        f"{MARKS[status]} {printable(detail) or status}",
    )
    if status == "failed" or (nonce is not None and status != "passed"):
        raise click.exceptions.Exit(Unverified.exit_code)


def _nonce(text: str | None) -> bytes | None:
    try:
        return None if text is None else bytes.fromhex(text)
    except ValueError:
        raise click.UsageError(f"--nonce {text!r}: expected hex digits") from None


def _key(name: str) -> PublicKey:
    from ropewalk.kernel.keys import PublicKey

    return PublicKey.from_did(name) if name.startswith("did:") else signing_key(name).public


def _named(texts: tuple[str, ...], option: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value:
            raise click.UsageError(f"{option} {text[:40]!r}: expected a name, =, and a value")
        found[name] = (*found.get(name, ()), value)
    return found


def _numbers(texts: tuple[str, ...], option: str) -> dict[str, int]:
    return {name: _number(values[-1], option) for name, values in _named(texts, option).items()}


def _number(text: str, option: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise click.UsageError(f"{option}: {text[:40]!r} is no number")
    return int(text)
