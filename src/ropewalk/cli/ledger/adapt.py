"""`ropewalk ledger adapt`: convert an envelope of a newer version, or check a converted one."""

from __future__ import annotations

from ropewalk.cli.common.command import command, emit, read_input, say, write_result
from ropewalk.cli.common.locations import signing_key
from ropewalk.cli.common.options import flag, option, required
from ropewalk.cli.ledger.channel import now_text
from ropewalk.errors import Unverified, Usage


@command(
    "adapt",
    "ropewalk ledger adapt --file newer.json --key ada -o adapted.json",
    "ropewalk ledger append --channel audit --file adapted.json",
    "ropewalk ledger adapt --check --file adapted.json -o original.json",
)
@required("--file file", "F", "Envelope; `-` reads stdin.")
@option("--key", "NAME", "Key that signs the converted envelope.")
@flag(
    "--check", "Check a converted envelope: its signature, its original, and the author's signature on that."
)
@option("--timestamp", "TIME", "Time in RFC 3339, UTC (default: now).")
@option(
    "-o --output",
    "F",
    "Output file (default: stdout). With --check, where to write the original (default: nowhere).",
)
def adapt(file: str, key: str | None, check: bool, timestamp: str | None, output: str | None) -> None:
    """Convert an envelope of a newer minor version to one this ledger accepts; the original is embedded.

    Readers check a converted envelope with --check and get the original, which its author signed.
    """
    from ropewalk.ledger.envelope.adapt import adapt as adapt_envelope

    if check == (key is not None):
        raise Usage("give --key to convert an envelope, or --check to check a converted one")
    if check and timestamp is not None:
        raise Usage("--timestamp is the time of a conversion: it cannot be used with --check")
    if key is None:
        _check(read_input(file), output)
        return
    done = adapt_envelope(read_input(file), signing_key(key), timestamp or now_text())
    for change in done.changes:
        say(change)
    output = output or "-"
    write_result(
        output,
        done.envelope.raw,
        {
            "envelope_id": done.envelope.hex_id,
            "legacy_envelope_id": done.legacy_envelope_id,
            "changes": list(done.changes),
            "path": output,
        },
        f"ok  {done.envelope.hex_id}  was {done.legacy_envelope_id}  {output}",
    )


def _check(raw: bytes, output: str | None) -> None:
    from ropewalk.ledger.envelope.adapt import author_key, check_adapted, original_of
    from ropewalk.ledger.envelope.envelope import parse_wire
    from ropewalk.ledger.envelope.model import envelope_id
    from ropewalk.ledger.rules.rules import rule_1_canonical_hash, rule_2_signature_scope
    from ropewalk.ledger.rules.verdict import Context

    envelope = parse_wire(raw)
    payload, signature = rule_1_canonical_hash(envelope, Context()), rule_2_signature_scope(envelope)
    for finding in (payload, signature):
        if finding.status == "failed":
            raise Unverified(f"the converted envelope: {finding.detail}")
    author = author_key(check_adapted(envelope)).did()
    original = original_of(envelope) or b""
    legacy_id = envelope_id(original).hex()
    found = {
        "ok": True,
        "envelope_id": envelope.hex_id,
        "legacy_envelope_id": legacy_id,
        "author": author,
        "payload": payload.status,
        "path": output,
    }
    plain = f"ok  {envelope.hex_id}  was {legacy_id}, signed by {author}"
    if payload.status != "passed":
        unchecked = f"payload: not checked, {payload.detail}"
        plain += f"\n{unchecked}"
        if output == "-":  # stdout has the original alone
            say(unchecked)
    if output is None:
        emit(found, plain)
    else:
        write_result(output, original, found, plain)
