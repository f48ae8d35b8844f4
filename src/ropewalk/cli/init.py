"""`ropewalk init`: prepare a git repository for ropewalk."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ropewalk.cli.common.command import command, emit
from ropewalk.cli.common.locations import NODE_KEY, here
from ropewalk.disk.repository_paths import RepositoryPaths, make_repository
from ropewalk.errors import Unavailable


@command("init", "ropewalk init", "ropewalk init my.git")
@click.argument("path", required=False)
def init(path: str | None) -> None:
    """Create a bare repository at PATH, or add what is missing to an existing one.

    Without PATH, prepare the repository around the current directory (or --repo). Also create the repository's signing
    key, `node`, the default for ledger blocks and bundles, and set the refspecs that fetch the logs of its remotes.
    """
    place, done = make_repository(Path(path) if path is not None else here().git_dir)
    done += prepare(place)
    lines = [f"ok  {place.git_dir}", *(f"    {line}" for line in done or ["nothing was missing"])]
    emit({"repository": str(place.git_dir), "did": _node_did(place), "done": done}, lines)


def prepare(place: RepositoryPaths) -> list[str]:
    """Add the key and the refspecs that are missing; return what was done."""
    from ropewalk.disk import key_files
    from ropewalk.gitlog.sharing.remotes import configure, remotes

    done = []
    if not (place.keys / f"{NODE_KEY}.json").exists():
        key_files.make(place.keys, NODE_KEY, "ed25519", os.urandom(key_files.SECRET_BYTES))
        done.append(f"made the repository's key {NODE_KEY}")
    try:
        known = remotes(place.git_dir)
    except Unavailable:  # without git there is nothing to fetch with
        known = []
    fresh = [remote for remote in known if configure(place.git_dir, remote)]
    return done + [f"set the refspecs of {each}: `ropewalk pull` and `push` share its logs" for each in fresh]


def _node_did(place: RepositoryPaths) -> str:
    from ropewalk.disk import key_files

    node = key_files.read(place.keys, NODE_KEY)
    assert node.public is not None
    return node.public.did()
