"""`ropewalk ledger adapt`: an envelope of another version as one we accept, carrying the original."""

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
@click.option("--file", "file", required=True, metavar="F", help="The envelope, `-` for stdin.")
@click.option("--key", required=True, metavar="NAME", help="The key that signs it again.")
@click.option("--timestamp", metavar="TIME", help="RFC 3339 in UTC; default: now.")
@click.option("-o", "--output", default="-", metavar="F", help="Where to write it; default: stdout.")
def adapt(file: str, key: str, timestamp: str | None, output: str) -> None:
    """Sign an envelope of a newer minor version again, as one this ledger accepts. The original travels inside."""
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
