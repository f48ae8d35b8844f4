"""What a demo stage talks through: a heading, plain lines, and the list of what was made."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropewalk.cli.common.command import say
from ropewalk.errors import NotFound

if TYPE_CHECKING:
    from ropewalk.disk.repository_paths import RepositoryPaths
    from ropewalk.kernel.keys import SigningKey

NODE = "node"  # the repository's own key


@dataclass(slots=True)
class Stage:
    """One run of the demo. `made` maps a noun (repository, bundle, report …) to a path."""

    directory: Path
    quiet: bool = False  # with --json, stdout belongs to the answer and the talk goes to stderr
    made: dict[str, str] = field(default_factory=dict)

    def heading(self, text: str) -> None:
        """Print the name of the next part."""
        self.say("")
        self.say(click.style(text, bold=True))

    def say(self, text: str) -> None:
        """Print one line."""
        if self.quiet:
            say(text)
        else:
            click.echo(text)

    def show(self, label: str, value: object) -> None:
        """Print a fact behind its name."""
        self.say(f"  {label:<14}{value}")

    def good(self, text: str) -> None:
        """Print what was verified."""
        self.say(f"  {click.style('✓', fg='green')} {text}")

    def refused(self, text: str) -> None:
        """Print what was refused."""
        self.say(f"  {click.style('✗', fg='red')} {text}")


def node_key(place: RepositoryPaths) -> SigningKey:
    """Return the repository's own key, made if it is missing; `ropewalk verify` trusts what it signs there."""
    from ropewalk.disk import key_files

    try:
        return key_files.load_signing(place.keys, NODE)
    except NotFound:
        key_files.make(place.keys, NODE, "ed25519", os.urandom(key_files.SECRET_BYTES))
        return key_files.load_signing(place.keys, NODE)
