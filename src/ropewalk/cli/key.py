"""`ropewalk key`: create, list, show and encrypt keys. A private key is never printed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import click

from ropewalk.cli.common.command import emit, group, session
from ropewalk.cli.common.locations import key_folder, key_folders
from ropewalk.cli.common.options import choice, flag, option
from ropewalk.cli.common.passphrase import new_passphrase
from ropewalk.errors import Conflict, NotFound

if TYPE_CHECKING:
    from ropewalk.disk.key_files import KeyFile
    from ropewalk.kernel.keys import Algorithm

# Written out so that `key --help` need not load the key library; a test compares it with the store's list.
ALGORITHMS = ("ed25519", "p256", "secp256k1", "xchacha20poly1305", "ml-dsa-44")


@group("key", "ropewalk key new ada", "ropewalk key show ada --did")
def key() -> None:
    """Create, list, show and encrypt keys.

    Private keys are files of mode 0600 in the user's configuration directory ($ROPEWALK_CONFIG overrides it). The
    passphrase of an encrypted key comes from --passphrase-file, $ROPEWALK_PASSPHRASE_FILE, $ROPEWALK_PASSPHRASE, or the
    terminal.
    """


new_passphrase_option = option("--new-passphrase-file", "F", "File with the new passphrase.")


@key.command(
    "new",
    "ropewalk key new ada",
    "ropewalk key new vault --alg xchacha20poly1305",
    "ropewalk key new ada --if-missing",
    "ropewalk key new ada --encrypt",
    "ropewalk key new hsm --pkcs11 'pkcs11:token=ops;object=node?module-path=/usr/lib/softhsm/libsofthsm2.so'",
)
@click.argument("name")
@choice("--alg", ALGORITHMS, "Key algorithm.", default="ed25519")
@flag("--if-missing", "Keep an existing key of the same name and algorithm instead of failing.")
@flag("--encrypt", "Encrypt the key with a passphrase.")
@new_passphrase_option
@option("--pkcs11", "URI", "Keep the key in a PKCS#11 token, and generate it there if it is missing.")
def new(
    name: str, alg: str, if_missing: bool, encrypt: bool, new_passphrase_file: str | None, pkcs11: str | None
) -> None:
    """Create the key NAME. The first three algorithms sign; xchacha20poly1305 seals pointers; ml-dsa-44 signs for a
    witness only.

    An existing key is never overwritten: the command ends with exit code 4.
    """
    from ropewalk.disk import key_files

    folder, kept = key_folders(name), False
    passphrase = None
    if pkcs11 is not None and (
        encrypt or new_passphrase_file or alg in (key_files.SEALING, key_files.COSIGNING)
    ):
        raise click.UsageError("--pkcs11 is for signing keys, and the token encrypts them")
    if (encrypt or new_passphrase_file) and not (folder / f"{name}.json").exists():
        passphrase = new_passphrase(session(), name, new_passphrase_file, change=False)
    try:
        if pkcs11 is not None:
            key, kept = key_files.make_in_token(folder, name, cast("Algorithm", alg), pkcs11)
        else:
            kind, secret = cast(key_files.KeyAlgorithm, alg), os.urandom(key_files.SECRET_BYTES)
            key = key_files.make(folder, name, kind, secret, passphrase)
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
    emit({**_shown(key), "kept": kept}, f"{_done(key)}{known}")


@key.command("encrypt", "ropewalk key encrypt ada", "ropewalk key encrypt node")
@click.argument("name")
@new_passphrase_option
def encrypt_(name: str, new_passphrase_file: str | None) -> None:
    """Encrypt the key NAME with a passphrase, or change its passphrase.

    The file is replaced and the old one overwritten. Backups and copies of the old file are not encrypted.
    """
    from ropewalk.disk import key_files

    folder = key_folders(name)
    change = key_files.read(folder, name).protection == "passphrase"
    if change:
        key_files.load_secret(folder, name)  # ask for the old passphrase first
    new = new_passphrase(session(), name, new_passphrase_file, change=change)
    found = key_files.protect(folder, name, new)
    emit(_shown(found), _done(found))


@key.command("decrypt", "ropewalk key decrypt ada --passphrase-file ada.pass")
@click.argument("name")
def decrypt(name: str) -> None:
    """Store the key NAME without a passphrase. Only the mode of its file protects it then."""
    from ropewalk.disk import key_files

    found = key_files.protect(key_folders(name), name, None)
    emit(_shown(found), _done(found))


@key.command("ls", "ropewalk key ls --json")
def ls() -> None:
    """List your keys."""
    from ropewalk.disk import key_files

    found = key_files.ls(key_folder())
    emit(
        {"keys": [_shown(each) for each in found]},
        (f"{each.name:<20} {each.alg:<18} {_public_text(each)}{_how(each)}" for each in found),
        "no keys yet; make one with `ropewalk key new NAME`",
    )


@key.command("show", "ropewalk key show ada", "ropewalk key show ada --public")
@click.argument("name")
@click.option("--did", "form", flag_value="did", help="Print only the did:key.")
@click.option("--public", "form", flag_value="public", help="Print only the public key, as JSON.")
def show(name: str, form: str | None) -> None:
    """Show the public part of the key NAME."""
    from ropewalk.disk import key_files
    from ropewalk.kernel import jcs

    found = key_files.read(key_folders(name), name)
    if form and found.public is None:
        raise NotFound(
            f'key "{name}" has no did:key',
            name=name,
            advice="Only signing keys have one. The key of a witness is shown by `ropewalk witness show`.",
        )
    shown = _shown(found)
    if form == "did":
        emit(shown, shown["did"])
    elif form == "public":
        emit(shown, jcs.encode(shown["public"]).decode())
    else:
        emit(shown, (f"{name:<12}{value}" for name, value in shown.items() if name != "public"))


def _shown(found: KeyFile) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": found.name, "alg": found.alg, "key_id": found.key_id}
    if found.protection != "none":
        shown["protection"] = found.protection
    if found.public is not None:
        shown |= {"did": found.public.did(), "public": found.public.to_json()}
    return shown


def _done(found: KeyFile) -> str:
    return f"ok  {found.name}  {found.alg}  {_public_text(found)}{_how(found)}"


def _how(found: KeyFile) -> str:
    return {"none": "", "passphrase": "  (encrypted)", "token": "  (in a token)"}[found.protection]


def _public_text(found: KeyFile) -> str:
    return found.public.did() if found.public is not None else f"id {found.key_id}"
