"""`ropewalk init`: a repository with what ropewalk needs in it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ropewalk.cli.common.command import Command, emit
from ropewalk.cli.common.locations import NODE_KEY


@click.command("init", cls=Command, epilog="Examples:\n  ropewalk init my.git\n  ropewalk init .\n")
@click.argument("path")
def init(path: str) -> None:
    """Make a new bare repository at PATH, or add to an existing one only what is missing.

    The repository gets a key of its own, `node`, which signs ledger blocks and bundles unless told otherwise.
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
