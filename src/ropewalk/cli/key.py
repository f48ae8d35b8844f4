"""`ropewalk key`: create, list and show keys. A private key is never printed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import click

from ropewalk.cli.common.command import Group, emit
from ropewalk.cli.common.locations import key_folder, key_folders

if TYPE_CHECKING:
    from ropewalk.disk.key_files import KeyFile

# Written out so that `key --help` need not load the key library; a test compares it with the store's list.
ALGORITHMS = ("ed25519", "p256", "secp256k1", "xchacha20poly1305")


@click.group("key", cls=Group, epilog="Examples:\n  ropewalk key new ada\n  ropewalk key show ada --did\n")
def key() -> None:
    """Create, list and show keys.

    Private keys are files of mode 0600 in the user's configuration directory ($ROPEWALK_CONFIG overrides it).
    """


@key.command(
    "new",
    epilog="Examples:\n  ropewalk key new ada\n  ropewalk key new vault --alg xchacha20poly1305\n"
    "  ropewalk key new ada --if-missing\n",
)
@click.argument("name")
@click.option("--alg", type=click.Choice(ALGORITHMS), default="ed25519", help="Key algorithm.")
@click.option(
    "--if-missing",
    is_flag=True,
    help="Keep an existing key of the same name and algorithm instead of failing.",
)
def new(name: str, alg: str, if_missing: bool) -> None:
    """Create the key NAME. The first three algorithms sign; xchacha20poly1305 seals pointers.

    An existing key is never overwritten: the command ends with exit code 4.
    """
    from ropewalk.disk import key_files
    from ropewalk.errors import Conflict

    folder, kept = key_folders(name), False
    try:
        key = key_files.make(
            folder, name, cast(key_files.KeyAlgorithm, alg), os.urandom(key_files.SECRET_BYTES)
        )
    except Conflict:
        if not if_missing:
            raise
        key, kept = key_files.read(folder, name), True
        if key.alg != alg:
            raise Conflict(
                f'key "{name}" must have the algorithm {alg}, got {key.alg}',
                name=name,
                advice="Keys are never overwritten: choose another name, or use the existing key with --alg.",
            ) from None
    known = "  (it was there already)" if kept else ""
    emit({**_shown(key), "kept": kept}, f"ok  {key.name}  {key.alg}  {_public_text(key)}{known}")


@key.command("ls", epilog="Examples:\n  ropewalk key ls --json\n")
def ls() -> None:
    """List your keys."""
    from ropewalk.disk import key_files

    found = key_files.ls(key_folder())
    emit(
        {"keys": [_shown(each) for each in found]},
        (f"{each.name:<20} {each.alg:<18} {_public_text(each)}" for each in found),
        "no keys yet; make one with `ropewalk key new NAME`",
    )


@key.command("show", epilog="Examples:\n  ropewalk key show ada\n  ropewalk key show ada --public\n")
@click.argument("name")
@click.option("--did", "form", flag_value="did", help="Print only the did:key.")
@click.option("--public", "form", flag_value="public", help="Print only the public key, as JSON.")
def show(name: str, form: str | None) -> None:
    """Show the public part of the key NAME."""
    from ropewalk.disk import key_files
    from ropewalk.errors import NotFound

    found = key_files.read(key_folders(name), name)
    if form and found.public is None:
        raise NotFound(
            f'key "{name}" is symmetric and has no public key',
            name=name,
            advice="Only signing keys have a public key.",
        )
    if form == "did":
        emit(_shown(found), lambda: cast(str, _shown(found)["did"]))
    elif form == "public":
        from ropewalk.kernel import jcs

        emit(_shown(found), lambda: jcs.encode(_shown(found)["public"]).decode())
    else:
        emit(_shown(found), lambda: "\n".join(f"{k:8}{v}" for k, v in _shown(found).items() if k != "public"))


def _shown(found: KeyFile) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": found.name, "alg": found.alg, "key_id": found.key_id}
    if found.public is not None:
        shown |= {"did": found.public.did(), "public": found.public.to_json()}
    return shown


def _public_text(found: KeyFile) -> str:
    return found.public.did() if found.public is not None else f"id {found.key_id}"
