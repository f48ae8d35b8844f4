"""`ropewalk init`: prepare a git repository for ropewalk."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ropewalk.cli.common.command import Command, emit
from ropewalk.cli.common.locations import NODE_KEY


@click.command("init", cls=Command, epilog="Examples:\n  ropewalk init my.git\n  ropewalk init .\n")
@click.argument("path")
def init(path: str) -> None:
    """Create a bare repository at PATH, or add what is missing to an existing one.

    Also create the repository's signing key, `node`, the default for ledger blocks and bundles.
    """
    from ropewalk.disk import key_files
    from ropewalk.disk.repository_paths import make_repository

    place, done = make_repository(Path(path))
    if not (place.keys / f"{NODE_KEY}.json").exists():
        key_files.make(place.keys, NODE_KEY, "ed25519", os.urandom(key_files.SECRET_BYTES))
        done.append(f"made the repository's key {NODE_KEY}")
    node = key_files.read(place.keys, NODE_KEY)
    assert node.public is not None
    emit(
        {"repository": str(place.git_dir), "did": node.public.did(), "done": done},
        lambda: "\n".join(
            [f"ok  {place.git_dir}", *(f"    {line}" for line in done or ["nothing was missing"])]
        ),
    )
