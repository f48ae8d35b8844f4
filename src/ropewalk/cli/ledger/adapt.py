"""`ropewalk ledger adapt`: sign an envelope of a newer version again, with the original inside."""

from __future__ import annotations

from ropewalk.cli.common.command import command, read_input, say, write_result
from ropewalk.cli.common.locations import signing_key
from ropewalk.cli.common.options import option, required
from ropewalk.cli.ledger.channel import now_text


@command(
    "adapt",
    "ropewalk ledger adapt --file newer.json --key ada -o adapted.json",
    "ropewalk ledger append --channel audit --file adapted.json",
)
@required("--file file", "F", "Envelope; `-` reads stdin.")
@required("--key", "NAME", "Key that signs the converted envelope.")
@option("--timestamp", "TIME", "Time in RFC 3339, UTC (default: now).")
@option("-o --output", "F", "Output file (default: stdout).", default="-")
def adapt(file: str, key: str, timestamp: str | None, output: str) -> None:
    """Convert an envelope of a newer minor version to one this ledger accepts; the original is embedded."""
    from ropewalk.ledger.envelope.adapt import adapt as adapt_envelope

    done = adapt_envelope(read_input(file), signing_key(key), timestamp or now_text())
    for change in done.changes:
        say(change)
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
