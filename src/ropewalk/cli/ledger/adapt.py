"""`ropewalk ledger adapt`: sign an envelope of a newer version again, with the original inside."""

from __future__ import annotations

import click

from ropewalk.cli.common.command import Command, emit, read_input, say, write_output
from ropewalk.cli.common.locations import signing_key


@click.command(
    "adapt",
    cls=Command,
    epilog="Examples:\n  ropewalk ledger adapt --file newer.json --key ada -o adapted.json\n"
    "  ropewalk ledger append --channel audit --file adapted.json\n",
)
@click.option("--file", "file", required=True, metavar="F", help="Envelope; `-` reads stdin.")
@click.option("--key", required=True, metavar="NAME", help="Key that signs the converted envelope.")
@click.option("--timestamp", metavar="TIME", help="Time in RFC 3339, UTC (default: now).")
@click.option("-o", "--output", default="-", metavar="F", help="Output file (default: stdout).")
def adapt(file: str, key: str, timestamp: str | None, output: str) -> None:
    """Convert an envelope of a newer minor version to one this ledger accepts; the original is embedded."""
    from ropewalk.cli.ledger.channel import now_text
    from ropewalk.ledger.envelope.adapt import adapt as adapt_envelope

    done = adapt_envelope(read_input(file), signing_key(key), timestamp or now_text())
    write_output(output, done.envelope.raw + (b"\n" if output == "-" else b""))
    for change in done.changes:
        say(change)
    if output != "-":
        emit(
            {
                "envelope_id": done.envelope.hex_id,
                "legacy_envelope_id": done.legacy_envelope_id,
                "changes": list(done.changes),
                "path": output,
            },
            f"ok  {done.envelope.hex_id}  was {done.legacy_envelope_id}  {output}",
        )
