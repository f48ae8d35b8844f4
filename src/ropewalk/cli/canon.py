"""`ropewalk canon` and `ropewalk hash`: canonical bytes and their content id."""

from __future__ import annotations

import sys

import click

from ropewalk.cli.common.command import command, emit, emit_line, parse_input, session
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import content_id


@command("canon", "ropewalk canon event.json > event.jcs", 'echo \'{"b":1,"a":2}\' | ropewalk canon -')
@click.argument("file", metavar="F")
def canon(file: str) -> None:
    """Print the canonical bytes (RFC 8785) of the JSON file F; `-` reads stdin.

    The output has no trailing newline, except on a terminal.
    """
    raw = parse_input(file, jcs.canonicalise)
    if session().json:
        emit_line({"canonical": raw.decode(), "bytes": len(raw)})
        return
    sys.stdout.buffer.write(raw + b"\n" if sys.stdout.isatty() else raw)
    sys.stdout.buffer.flush()


@command("hash", "ropewalk hash event.json", "ropewalk hash --json event.json")
@click.argument("file", metavar="F")
def hash_(file: str) -> None:
    """Print the content id of the JSON file F: blake3 over its canonical bytes; `-` reads stdin."""
    raw = parse_input(file, jcs.canonicalise)
    name = content_id(raw)
    emit({"content_id": name, "bytes": len(raw)}, name)
