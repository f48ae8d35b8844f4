"""`ropewalk ledger evidence`: whose evidence a channel believes, and whether a piece of it holds."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ropewalk.cli.manners import MARKS, Group, emit, parse_input, read_input, telling, write_output
from ropewalk.cli.places import here
from ropewalk.kernel.plaintext import printable

if TYPE_CHECKING:
    from ropewalk.kernel.keys import PublicKey
    from ropewalk.ledger.pins import CollateralTexts

__all__ = ["evidence"]

VERIFICATION_FAILED = 5
FORMATS = ("slsa.v1", "tee.report", "snark.v1")
HARDWARE = ("aws_nitro", "sev", "sgx", "tdx")
DOCUMENT_BYTES_MAX = 1 << 16

Command = TypeVar("Command", bound=Callable[..., Any])


def collateral_options(command: Command) -> Command:
    """The files in which Intel says how its platforms stand."""
    for option in (
        click.option(
            "--collateral-cert",
            "signers",
            multiple=True,
            metavar="F",
            help="Who signed them, in PEM or DER.",
        ),
        click.option("--qe-identity", metavar="F", help="Intel's QE identity, as it was answered."),
        click.option(
            "--tcb-info", metavar="F", help="Intel's TCB info for the platform, as it was answered."
        ),
    ):
        command = option(command)
    return command


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
    "  ropewalk ledger evidence set --channel audit --root root.pem --pcr 0=$PCR0 --max-age 86400\n"
    "  ropewalk ledger evidence set --channel audit --root ark.pem --measurement sev.measurement=$DIGEST \\\n"
    "      --sev-tcb snp=24\n"
    "  ropewalk ledger evidence set --channel audit --root sgx-root.pem --measurement tdx.mrtd=$MRTD \\\n"
    "      --tcb-status UpToDate --tcb-status SWHardeningNeeded --crl pck.crl\n",
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
@click.option(
    "--measurement",
    "measurements",
    multiple=True,
    metavar="NAME=HEX",
    help="What a register of hardware must hold, as sev.measurement=5a1f….",
)
@click.option(
    "--sev-tcb",
    "levels",
    multiple=True,
    metavar="NAME=N",
    help="The least level of a part of AMD's platform: fmc, bootloader, tee, snp or microcode.",
)
@click.option(
    "--sgx-isv",
    "products",
    multiple=True,
    metavar="NAME=N",
    help="Which product of its signer an enclave must be (prodid), and its least level (svn).",
)
@click.option(
    "--tcb-status",
    "statuses",
    multiple=True,
    metavar="STATUS",
    help="What Intel may say of a platform, as SWHardeningNeeded; default: UpToDate only.",
)
@collateral_options
@click.option(
    "--crl", "crls", multiple=True, metavar="F", help="A revocation list in PEM or DER; may be given again."
)
@click.option("--max-age", type=click.IntRange(1), metavar="SECONDS", help="How old a document may be.")
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
    max_age: int | None,
) -> None:
    """Write the channel's evidence.json, in place of an earlier one. From then on rule 5 also judges evidence.

    Nothing is believed unless it is named here: without options no evidence holds.
    """
    from ropewalk.ledger.crls import CRL_BYTES_MAX, crl_text
    from ropewalk.ledger.evidencetrust import EvidenceSettings
    from ropewalk.ledger.pins import EvidencePins
    from ropewalk.node.evidence import write_evidence

    pins = EvidencePins(
        tuple(_key(name) for name in names),
        builders,
        {_number(number, "--pcr"): texts for number, texts in _named(pcrs, "--pcr").items()},
        max_age,
        _named(measurements, "--measurement"),
        _numbers(levels, "--sev-tcb"),
        _numbers(products, "--sgx-isv"),
        statuses,
        () if (given := _collateral(tcb_info, qe_identity, signers)) is None else (given,),
        tuple(parse_input(crl, crl_text, limit=CRL_BYTES_MAX) for crl in crls),
    )
    settings = EvidenceSettings(tuple(read_input(root).decode("ascii", "replace") for root in roots), pins)
    path = write_evidence(here().home, channel, settings)
    emit(
        {"channel": channel, "path": str(path), "evidence": json.loads(settings.to_bytes())},
        f"ok  {channel}  {len(roots)} roots, {len(names)} keys, {len(builders)} builders, "
        f"{len(pcrs) + len(measurements)} measurements",
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
    "report-data",
    epilog="Examples:\n  ropewalk ledger evidence report-data --payload body.json --correlation-id c-1\n"
    "  ropewalk ledger evidence report-data --payload body.json -o request.bin\n",
)
@click.option("--payload", required=True, metavar="F", help="The payload the envelope will have.")
@click.option("--correlation-id", metavar="TEXT", help="The correlation id it will have.")
@click.option(
    "-o", "--output", metavar="F", help="Write the 64 bytes into a file; default: print them as hex."
)
def report_data(payload: str, correlation_id: str | None, output: str | None) -> None:
    """Print the 64 bytes that hardware must sign for its report to speak of an envelope.

    They bind payload and correlation id. Who answers a challenge takes its nonce, in hex, as the correlation id.
    """
    from ropewalk.kernel import jcs
    from ropewalk.ledger.binding import report_data as bound
    from ropewalk.ledger.envelope import payload_hash

    raw = bound(bytes.fromhex(payload_hash(parse_input(payload, jcs.parse))), correlation_id)
    if output is not None:
        write_output(output, raw)
    emit({"report_data": raw.hex(), "path": output}, raw.hex() if output is None else f"ok  {output}")


@evidence.command(
    "wrap",
    epilog="Examples:\n  ropewalk ledger evidence wrap --format slsa.v1 --report build.dsse.json -o evidence.json\n"
    "  ropewalk ledger evidence wrap --format tee.report --tee sev --document report.bin \\\n"
    "      --cert vcek.der --cert cert_chain.pem -o evidence.json\n"
    "  ropewalk ledger evidence wrap --format tee.report --tee tdx --document quote.bin --tcb-info tcb.json \\\n"
    "      --qe-identity qe.json --collateral-cert signing_chain.pem -o evidence.json\n"
    "  ropewalk ledger envelope --channel audit --domain ops --class Attestation --type build.attested \\\n"
    "      --payload body.json --key ada --evidence evidence.json\n",
)
@click.option(
    "--format", "kind", required=True, type=click.Choice(FORMATS), help="What kind of evidence it is."
)
@click.option("--report", metavar="F", help="The report as JSON: a DSSE envelope, a TEE's report.")
@click.option("--tee", type=click.Choice(HARDWARE), help="Which hardware made the document.")
@click.option("--document", metavar="F", help="What the hardware signed, as it gave it.")
@click.option("--timestamp", metavar="TIME", help="When the document was made; RFC 3339 in UTC.")
@click.option(
    "--cert", "certs", multiple=True, metavar="F", help="Its certificates in PEM or DER, the leaf first."
)
@collateral_options
@click.option("--nonce", metavar="TEXT", help="The nonce that was asked for.")
@click.option("-o", "--output", default="-", metavar="F", help="Where to write it; default: stdout.")
def wrap(
    kind: str,
    report: str | None,
    tee: str | None,
    document: str | None,
    timestamp: str | None,
    certs: tuple[str, ...],
    tcb_info: str | None,
    qe_identity: str | None,
    signers: tuple[str, ...],
    nonce: str | None,
    output: str,
) -> None:
    """Make the evidence of an envelope from a report, or from the document of hardware, and its certificates."""
    from ropewalk.ledger.binding import wrap_report
    from ropewalk.ledger.certificates import parse_certificates

    if (report is None) == (document is None):
        raise click.UsageError("one of --report and --document is needed")
    if (document is None) != (tee is None) or (document is not None and kind != "tee.report"):
        raise click.UsageError("--document goes with --tee and --format tee.report")
    value = _report(str(report)) if document is None else _document(str(tee), document)
    if timestamp is not None:
        from ropewalk.ledger.fields import parse_timestamp

        parse_timestamp(timestamp)
        value["timestamp"] = timestamp
    given = _collateral(tcb_info, qe_identity, signers)
    if given is not None:
        value["collateral"] = given.to_json()
    more: dict[str, Any] = {}
    if certs:
        more["cert_chain"] = [each for cert in certs for each in parse_input(cert, parse_certificates)]
    if nonce is not None:
        more["nonce"] = nonce
    _write(output, wrap_report(kind, value, **more))


def _report(name: str) -> dict[str, Any]:
    from ropewalk.errors import Invalid
    from ropewalk.kernel import jcs

    value = parse_input(name, jcs.parse)
    if not isinstance(value, dict):
        raise Invalid(f"{name}: a report is a JSON object", name=name)
    return value


def _document(tee: str, name: str) -> dict[str, Any]:
    return {"tee_type": tee, "document": b64encode(read_input(name, limit=DOCUMENT_BYTES_MAX)).decode()}


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


def _collateral(
    tcb_info: str | None, qe_identity: str | None, signers: tuple[str, ...]
) -> CollateralTexts | None:
    """What Intel says of platforms, from the files it came in."""
    if tcb_info is None and qe_identity is None and not signers:
        return None
    if tcb_info is None or qe_identity is None or not signers:
        raise click.UsageError("--tcb-info, --qe-identity and --collateral-cert go together")
    from ropewalk.ledger.certificates import parse_certificates
    from ropewalk.ledger.collateral import parse_statement
    from ropewalk.ledger.pins import CollateralTexts

    chain = tuple(each for signer in signers for each in parse_input(signer, parse_certificates))
    texts = []
    for name, file in (("tcbInfo", tcb_info), ("enclaveIdentity", qe_identity)):
        text = read_input(file).decode("utf-8", "replace")
        with telling(file):
            parse_statement(text, name)
        texts.append(text)
    return CollateralTexts(texts[0], texts[1], chain)


def _number(text: str, option: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise click.UsageError(f"{option}: {text[:40]!r} is no number")
    return int(text)
