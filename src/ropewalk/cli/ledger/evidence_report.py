"""`ropewalk ledger evidence report-data`, `wrap` and `provenance`: make evidence for envelopes."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import command, emit, parse_input, read_input, write_output, write_result
from ropewalk.cli.common.locations import signing_key
from ropewalk.cli.common.options import choice, option, repeated, required, together
from ropewalk.cli.ledger.channel import now_text
from ropewalk.errors import Invalid, located
from ropewalk.kernel import jcs

if TYPE_CHECKING:
    from ropewalk.ledger.evidence.allowed import CollateralTexts

FORMATS = ("slsa.v1", "tee.report", "snark.v1")
HARDWARE = ("aws_nitro", "sev", "sgx", "tdx")
DOCUMENT_BYTES_MAX = 1 << 16

# Intel's collateral files.
collateral_options: Callable[[Any], Any] = together(
    option("--tcb-info", "F", "Intel's TCB info for the platform, as downloaded."),
    option("--qe-identity", "F", "Intel's QE identity, as downloaded."),
    repeated(
        "--collateral-cert signers",
        "F",
        "Certificates of the signer of the collateral, PEM or DER; repeatable.",
    ),
)


def read_collateral(
    tcb_info: str | None, qe_identity: str | None, signers: tuple[str, ...]
) -> CollateralTexts | None:
    """Read Intel's collateral files."""
    if tcb_info is None and qe_identity is None and not signers:
        return None
    if tcb_info is None or qe_identity is None or not signers:
        raise click.UsageError("--tcb-info, --qe-identity and --collateral-cert go together")
    from ropewalk.ledger.evidence.allowed import CollateralTexts
    from ropewalk.ledger.evidence.certificates import parse_certificates
    from ropewalk.ledger.evidence.tee.intel_collateral import parse_statement

    chain = tuple(each for signer in signers for each in parse_input(signer, parse_certificates))
    texts = []
    for name, file in (("tcbInfo", tcb_info), ("enclaveIdentity", qe_identity)):
        text = read_input(file).decode("utf-8", "replace")
        with located(file):
            parse_statement(text, name)
        texts.append(text)
    return CollateralTexts(texts[0], texts[1], chain)


@command(
    "report-data",
    "ropewalk ledger evidence report-data --payload body.json --correlation-id c-1",
    "ropewalk ledger evidence report-data --payload body.json -o request.bin",
)
@required("--payload", "F", "Payload of the envelope.")
@option("--correlation-id", "TEXT", "Correlation id of the envelope.")
@option("-o --output", "F", "Write the 64 bytes to a file (default: print them as hex).")
def report_data(payload: str, correlation_id: str | None, output: str | None) -> None:
    """Print the 64 bytes that hardware must sign so that its report covers an envelope.

    They bind payload and correlation id. To answer a challenge, use its nonce in hex as the correlation id.
    """
    from ropewalk.ledger.envelope.model import payload_hash
    from ropewalk.ledger.evidence.binding import report_data as bound

    raw = bound(bytes.fromhex(payload_hash(parse_input(payload, jcs.parse))), correlation_id)
    if output is not None:
        write_output(output, raw)
    emit({"report_data": raw.hex(), "path": output}, raw.hex() if output is None else f"ok  {output}")


@command(
    "wrap",
    "ropewalk ledger evidence wrap --format slsa.v1 --report build.dsse.json -o evidence.json",
    "ropewalk ledger evidence wrap --format tee.report --tee sev --document report.bin \\",
    "    --cert vcek.der --cert cert_chain.pem -o evidence.json",
    "ropewalk ledger evidence wrap --format tee.report --tee tdx --document quote.bin --tcb-info tcb.json \\",
    "    --qe-identity qe.json --collateral-cert signing_chain.pem -o evidence.json",
    "ropewalk ledger envelope --channel audit --domain ops --class Attestation --type build.attested \\",
    "    --payload body.json --key ada --evidence evidence.json",
)
@choice("--format kind", FORMATS, "Kind of evidence.", required=True)
@option("--report", "F", "Report as JSON: a DSSE envelope, or a TEE report.")
@choice("--tee", HARDWARE, "Hardware that made the document.")
@option("--document", "F", "Document signed by the hardware, unchanged.")
@option("--timestamp", "TIME", "Time of the document in RFC 3339, UTC.")
@repeated("--cert certs", "F", "Certificates in PEM or DER, the leaf first; repeatable.")
@collateral_options
@option("--nonce", "TEXT", "Nonce of the challenge.")
@option("-o --output", "F", "Output file (default: stdout).", default="-")
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
    """Make evidence for an envelope from a report, or from a hardware document and its certificates."""
    from ropewalk.ledger.evidence.binding import wrap_report
    from ropewalk.ledger.evidence.certificates import parse_certificates

    if (report is None) == (document is None):
        raise click.UsageError("one of --report and --document is needed")
    if (document is None) != (tee is None) or (document is not None and kind != "tee.report"):
        raise click.UsageError("--document goes with --tee and --format tee.report")
    value = _report(str(report)) if document is None else _document(str(tee), document)
    if timestamp is not None:
        from ropewalk.ledger.envelope.fields import parse_timestamp

        parse_timestamp(timestamp)
        value["timestamp"] = timestamp
    given = read_collateral(tcb_info, qe_identity, signers)
    if given is not None:
        value["collateral"] = given.to_json()
    more: dict[str, Any] = {}
    if certs:
        more["cert_chain"] = [each for cert in certs for each in parse_input(cert, parse_certificates)]
    if nonce is not None:
        more["nonce"] = nonce
    _write(output, wrap_report(kind, value, **more))


def _report(name: str) -> dict[str, Any]:
    value = parse_input(name, jcs.parse)
    if not isinstance(value, dict):
        raise Invalid(f"{name}: a report is a JSON object", name=name)
    return value


def _document(tee: str, name: str) -> dict[str, Any]:
    return {"tee_type": tee, "document": b64encode(read_input(name, limit=DOCUMENT_BYTES_MAX)).decode()}


@command(
    "provenance",
    "ropewalk ledger evidence provenance --payload image.json --key ci \\",
    "    --builder https://builder.example/v1 --build-type https://builder.example/image -o evidence.json",
)
@required("--payload", "F", "Payload of the envelope: what was built.")
@required("--key", "NAME", "Key of the builder.")
@required("--builder", "ID", "URI of the builder.")
@required("--build-type", "ID", "URI of the build type.")
@option("--parameters", "F", "Build parameters, a JSON object.")
@option("--finished-on", "TIME", "End of the build in RFC 3339, UTC (default: now).")
@option("-o --output", "F", "Output file (default: stdout).", default="-")
def provenance(
    payload: str,
    key: str,
    builder: str,
    build_type: str,
    parameters: str | None,
    finished_on: str | None,
    output: str,
) -> None:
    """Make and sign SLSA provenance for a payload, as the evidence of its envelope."""
    from ropewalk.ledger.envelope.model import payload_hash
    from ropewalk.ledger.evidence.binding import make_provenance

    asked = parse_input(parameters, jcs.parse) if parameters is not None else {}
    if not isinstance(asked, dict):
        raise Invalid(f"{parameters}: parameters are a JSON object", name=parameters)
    made = make_provenance(
        signing_key(key),
        payload_hash(parse_input(payload, jcs.parse)),
        builder=builder,
        build_type=build_type,
        parameters=asked,
        finished_on=finished_on or now_text(),
    )
    _write(output, made)


def _write(output: str, made: dict[str, Any]) -> None:
    name = made["evidence_hash"]
    write_result(output, jcs.encode(made), {"evidence_hash": name, "path": output}, f"ok  {name}  {output}")
