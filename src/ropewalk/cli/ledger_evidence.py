"""`ropewalk ledger evidence`: whose evidence a channel believes, and whether a piece of it holds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.manners import MARKS, Group, emit, parse_input, read_input, write_output
from ropewalk.cli.places import here
from ropewalk.kernel.plaintext import printable

if TYPE_CHECKING:
    from ropewalk.kernel.keys import PublicKey

__all__ = ["evidence"]

VERIFICATION_FAILED = 5
FORMATS = ("slsa.v1", "tee.report", "snark.v1")


@click.group(
    "evidence",
    cls=Group,
    epilog="Examples:\n  ropewalk ledger evidence set --channel audit --root aws-root.pem --pcr 0=8a1f… \n"
    "  ropewalk ledger evidence wrap --format slsa.v1 --report build.dsse.json -o evidence.json\n"
    "  ropewalk ledger evidence check --channel audit --file envelope.json\n",
)
def evidence() -> None:
    """Say whose evidence a channel believes; wrap and check evidence."""


@evidence.command(
    "set",
    epilog="Examples:\n  ropewalk ledger evidence set --channel audit --key ci --builder https://builder.example/v1\n"
    "  ropewalk ledger evidence set --channel audit --root root.pem --pcr 0=$PCR0 --max-age 86400\n",
)
@click.option("--channel", required=True, metavar="C", help="The channel.")
@click.option("--root", "roots", multiple=True, metavar="PEM", help="A root certificate; may be given again.")
@click.option(
    "--key",
    "names",
    multiple=True,
    metavar="KEY",
    help="Who may sign provenance: a key's name here, or a did:key; may be given again.",
)
@click.option("--builder", "builders", multiple=True, metavar="ID", help="A builder that is believed.")
@click.option(
    "--pcr", "pcrs", multiple=True, metavar="N=HEX", help="A measurement that is believed, as 0=8a1f…."
)
@click.option("--max-age", type=click.IntRange(1), metavar="SECONDS", help="How old a document may be.")
def set_(
    channel: str,
    roots: tuple[str, ...],
    names: tuple[str, ...],
    builders: tuple[str, ...],
    pcrs: tuple[str, ...],
    max_age: int | None,
) -> None:
    """Write the channel's evidence.json, in place of an earlier one. From then on rule 5 also judges evidence.

    Nothing is believed unless it is named here: without options no evidence holds.
    """
    from ropewalk.ledger.evidence import EvidenceSettings
    from ropewalk.ledger.trust import EvidencePins
    from ropewalk.node.evidence import write_evidence

    pins = EvidencePins(tuple(_key(name) for name in names), builders, _measurements(pcrs), max_age)
    settings = EvidenceSettings(tuple(read_input(root).decode("ascii", "replace") for root in roots), pins)
    path = write_evidence(here().home, channel, settings)
    emit(
        {"channel": channel, "path": str(path), "evidence": json.loads(settings.to_bytes())},
        f"ok  {channel}  {len(roots)} roots, {len(names)} keys, {len(builders)} builders, {len(pcrs)} measurements",
    )


@evidence.command("show", epilog="Examples:\n  ropewalk ledger evidence show --channel audit --json\n")
@click.option("--channel", required=True, metavar="C", help="The channel.")
def show(channel: str) -> None:
    """Print whose evidence the channel believes."""
    from ropewalk.errors import NotFound
    from ropewalk.node.evidence import read_evidence

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
    "wrap",
    epilog="Examples:\n  ropewalk ledger evidence wrap --format slsa.v1 --report build.dsse.json -o evidence.json\n"
    "  ropewalk ledger envelope --channel audit --domain ops --class Attestation --type build.attested \\\n"
    "      --payload body.json --key ada --evidence evidence.json\n",
)
@click.option(
    "--format", "kind", required=True, type=click.Choice(FORMATS), help="What kind of evidence it is."
)
@click.option(
    "--report", required=True, metavar="F", help="The report as JSON: a DSSE envelope, a TEE's report."
)
@click.option("--cert", "certs", multiple=True, metavar="PEM", help="Its certificates, the leaf first.")
@click.option("--nonce", metavar="TEXT", help="The nonce that was asked for.")
@click.option("-o", "--output", default="-", metavar="F", help="Where to write it; default: stdout.")
def wrap(kind: str, report: str, certs: tuple[str, ...], nonce: str | None, output: str) -> None:
    """Make the evidence of an envelope from a report: its hash, its certificates, its nonce."""
    from ropewalk.errors import Invalid
    from ropewalk.kernel import jcs
    from ropewalk.ledger.binding import wrap_report

    value = parse_input(report, jcs.parse)
    if not isinstance(value, dict):
        raise Invalid(f"{report}: a report is a JSON object", name=report)
    more: dict[str, Any] = {}
    if certs:
        more["cert_chain"] = [read_input(cert).decode("ascii", "replace") for cert in certs]
    if nonce is not None:
        more["nonce"] = nonce
    _write(output, wrap_report(kind, value, **more))


@evidence.command(
    "provenance",
    epilog="Examples:\n  ropewalk ledger evidence provenance --payload image.json --key ci \\\n"
    "      --builder https://builder.example/v1 --build-type https://builder.example/image -o evidence.json\n",
)
@click.option("--payload", required=True, metavar="F", help="What was built, as the envelope's payload.")
@click.option("--key", required=True, metavar="NAME", help="The key of the builder.")
@click.option("--builder", required=True, metavar="ID", help="Who built it, a URI.")
@click.option("--build-type", required=True, metavar="ID", help="How it was built, a URI.")
@click.option("--parameters", metavar="F", help="What the build was asked for, a JSON object.")
@click.option("-o", "--output", default="-", metavar="F", help="Where to write it; default: stdout.")
def provenance(
    payload: str, key: str, builder: str, build_type: str, parameters: str | None, output: str
) -> None:
    """Make and sign SLSA provenance for a payload, as the evidence of its envelope."""
    from ropewalk.cli.places import signing_key
    from ropewalk.errors import Invalid
    from ropewalk.kernel import jcs
    from ropewalk.ledger.binding import make_provenance
    from ropewalk.ledger.envelope import payload_hash

    asked = parse_input(parameters, jcs.parse) if parameters is not None else {}
    if not isinstance(asked, dict):
        raise Invalid(f"{parameters}: parameters are a JSON object", name=parameters)
    made = make_provenance(
        signing_key(key),
        payload_hash(parse_input(payload, jcs.parse)),
        builder=builder,
        build_type=build_type,
        parameters=asked,
    )
    _write(output, made)


def _write(output: str, made: dict[str, Any]) -> None:
    from ropewalk.kernel import jcs

    write_output(output, jcs.encode(made) + (b"\n" if output == "-" else b""))
    if output != "-":
        emit(
            {"evidence_hash": made["evidence_hash"], "path": output}, f"ok  {made['evidence_hash']}  {output}"
        )


@evidence.command(
    "check",
    epilog="Examples:\n  ropewalk ledger evidence check --file envelope.json --channel audit\n"
    "  ropewalk ledger evidence check --file envelope.json --trust trust.json --at 2026-11-01T12:00:00Z\n",
)
@click.option("--file", "file", required=True, metavar="F", help="An envelope, `-` for stdin.")
@click.option("--channel", metavar="C", help="Judge as this channel would.")
@click.option("--trust", metavar="F", help="Judge by a trust file.")
@click.option("--at", metavar="TIME", help="RFC 3339 in UTC; default: now.")
@click.option(
    "--nonce", metavar="HEX", help="The nonce you had asked for; only evidence that holds and has it will do."
)
def check(file: str, channel: str | None, trust: str | None, at: str | None, nonce: str | None) -> None:
    """Say whether an envelope's evidence holds: passed, failed or not checked, and why. Exit 5 if it failed.

    With --nonce the exit code is 0 only if it passed: an answer that nobody could check is no answer.
    """
    from ropewalk.cli.ledger_channel import now_text
    from ropewalk.ledger.envelope import parse_wire
    from ropewalk.ledger.evidencecheck import EvidenceTally
    from ropewalk.ledger.trust import Trust, parse_trust
    from ropewalk.node.evidence import channel_trust

    if (channel is None) == (trust is None):
        raise click.UsageError("one of --channel and --trust says whom to believe")
    from ropewalk.ledger.fields import parse_timestamp

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
        raise click.exceptions.Exit(VERIFICATION_FAILED)


def _nonce(text: str | None) -> bytes | None:
    try:
        return None if text is None else bytes.fromhex(text)
    except ValueError:
        raise click.UsageError(f"--nonce {text!r}: expected hex digits") from None


def _key(name: str) -> PublicKey:
    from ropewalk.cli.places import signing_key
    from ropewalk.kernel.keys import PublicKey

    return PublicKey.from_did(name) if name.startswith("did:") else signing_key(name).public


def _measurements(pcrs: tuple[str, ...]) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for text in pcrs:
        number, _, digest = text.partition("=")
        if not number.isascii() or not number.isdigit() or not digest:
            raise click.UsageError(f"--pcr {text[:40]!r}: expected a number, =, and hex digits")
        found[int(number)] = (*found.get(int(number), ()), digest)
    return found
