"""Find the repository and the keys of a command: options first, then the environment, then the current directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.cli.common.command import session

if TYPE_CHECKING:
    from ropewalk.disk.repository_paths import RepositoryPaths
    from ropewalk.kernel.keys import SealingKey, SigningKey
    from ropewalk.kernel.note.ml_dsa import MlDsaSigningKey

NODE_KEY = "node"  # the repository's own key, made by `ropewalk init`


def here() -> RepositoryPaths:
    """Return the repository: `--repo`, `$ROPEWALK_REPO`, else the one around the current directory."""
    from ropewalk.disk.repository_paths import find_repository

    return find_repository(named_repository() or Path())


def named_writer() -> tuple[str, str]:
    """Return name and mail of the author from git's environment variables, or empty strings."""
    return os.environ.get("GIT_AUTHOR_NAME", ""), os.environ.get("GIT_AUTHOR_EMAIL", "")


def login() -> tuple[str, str]:
    """Return name and mail of the account, the fallback where git has no identity configured."""
    import getpass
    import socket

    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # an account without a name, as containers have them
        name = str(os.getuid())
    return name, f"{name}@{socket.gethostname()}"


def named_repository() -> Path | None:
    """Return the repository named with `--repo` or `$ROPEWALK_REPO`, or None."""
    named = os.environ.get("ROPEWALK_REPO")
    return session().repo or (Path(named) if named else None)


def key_folder() -> Path:
    """Return the folder of the user's keys: `$ROPEWALK_CONFIG/keys`, else in the configuration directory."""
    named = os.environ.get("ROPEWALK_CONFIG")
    if named:
        return Path(named) / "keys"
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "ropewalk" / "keys"


def key_folders(name: str) -> Path:
    """Return the folder of a key: `node` belongs to the repository, all others to the user."""
    return here().keys if name == NODE_KEY else key_folder()


def signing_key(name: str) -> SigningKey:
    """Return the signing key of that name."""
    from ropewalk.disk.key_files import load_signing

    return load_signing(key_folders(name), name)


def cosigning_key(name: str) -> SigningKey | MlDsaSigningKey:
    """Return the key of that name for a witness."""
    from ropewalk.disk.key_files import load_cosigning

    return load_cosigning(key_folders(name), name)


def sealing_key(name: str) -> SealingKey:
    """Return the symmetric key of that name."""
    from ropewalk.disk.key_files import load_sealing

    return load_sealing(key_folders(name), name)
