"""Where passphrases come from: `--passphrase-file`, the environment, or the terminal. Never from an argument."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from ropewalk.cli.common.command import Session, from_os_error
from ropewalk.disk.key_encryption import locked, read_private_line

FILE = "ROPEWALK_PASSPHRASE_FILE"
TEXT = "ROPEWALK_PASSPHRASE"
_given = ""  # of $ROPEWALK_PASSPHRASE


def take_from_environment() -> None:
    """Move $ROPEWALK_PASSPHRASE out of the environment, so that programs started from here do not inherit it."""
    global _given
    _given = os.environ.pop(TEXT, _given)


def current_passphrase(session: Session, name: str) -> bytes:
    """Return the passphrase that opens the key NAME; may be called from any thread."""
    return _configured(session) or _prompt(f'Passphrase or PIN of key "{name}"', name)


def new_passphrase(session: Session, name: str, path: str | None, *, change: bool) -> bytes:
    """Return the passphrase to encrypt with. For a `change`, the configured one is the old one."""
    if path is not None:
        return read_passphrase(path)
    configured = None if change else _configured(session)
    return configured or _prompt(f'New passphrase of key "{name}"', name, twice=True)


def read_passphrase(path: str) -> bytes:
    """Read a passphrase from a file that only its owner can read."""
    # systemd (LoadCredential=) grants access by an ACL, which shows as the group's right to read.
    credential = str(Path(path).parent) == os.environ.get("CREDENTIALS_DIRECTORY")
    try:
        return read_private_line(Path(path), 0o037 if credential else 0o077)
    except OSError as error:
        raise from_os_error(error) from error


def _configured(session: Session) -> bytes | None:
    path = session.passphrase_file or os.environ.get(FILE)
    if path:
        return read_passphrase(path)
    return os.fsencode(_given) or None


def _prompt(text: str, name: str, *, twice: bool = False) -> bytes:
    if not (sys.stdin.isatty() or sys.stderr.isatty()):
        raise locked(name)
    found: str = click.prompt(text, hide_input=True, err=True, confirmation_prompt=twice)
    return found.encode()
