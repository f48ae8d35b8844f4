"""Private keys as files of mode 0600, one JSON object each, never overwritten.

A file is `{"version":1,"alg","secret"}` and, for keys that sign, `"public_key"`, so that a listing need not touch
a signing library. Secrets are hex and leave this module only inside a key object.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from ropewalk.disk.durable import read_file, sync, sync_folder
from ropewalk.errors import Conflict, InvalidKey, InvalidName, NotFound, Unavailable
from ropewalk.kernel.digest import Tag, tagged
from ropewalk.kernel.keys import Algorithm, PublicKey, SealingKey, SigningKey

KeyAlgorithm = Literal["ed25519", "p256", "secp256k1", "xchacha20poly1305"]
ALGORITHMS: tuple[KeyAlgorithm, ...] = get_args(KeyAlgorithm)
SEALING = "xchacha20poly1305"
SECRET_BYTES = 32
REPOSITORY_KEY = "node"  # the one that `ropewalk init` makes
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class KeyFile:
    """What may be shown of a key: never the secret. A sealing key has no public half, only an id."""

    name: str
    alg: KeyAlgorithm
    key_id: str
    public: PublicKey | None


def make(folder: Path, name: str, alg: KeyAlgorithm, entropy: bytes) -> KeyFile:
    """Write a new key made from 32 bytes of entropy; a name that is taken is refused."""
    path = _path(folder, name)
    if alg == SEALING:
        document = {"version": 1, "alg": alg, "secret": SealingKey(entropy).secret.hex()}
    else:
        key = SigningKey.generate(cast(Algorithm, alg), entropy)
        document = {"version": 1, "alg": alg, "secret": key.secret.hex(), "public_key": key.public.raw.hex()}
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_new(path, json.dumps(document, separators=(",", ":")).encode() + b"\n")
    except FileExistsError as error:
        raise Conflict(
            f'a key "{name}" exists already',
            name=name,
            advice="Keys are never overwritten: choose another name, or keep that one with --if-missing.",
        ) from error
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}", path=str(path)) from error
    return read(folder, name)


def destroy(folder: Path, name: str) -> None:
    """Take a key away for good. It is written over first, which helps on disks that write in place."""
    path = _path(folder, name)
    _document(folder, name)
    try:
        with path.open("r+b") as stream:
            stream.write(bytes(path.stat().st_size))
            stream.flush()
            sync(stream.fileno())
        path.unlink()
        sync_folder(folder)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}", path=str(path)) from error


def ls(folder: Path) -> list[KeyFile]:
    """Every key in the folder, by name."""
    if not folder.is_dir():
        return []
    return [read(folder, path.stem) for path in sorted(folder.glob("*.json"))]


def read(folder: Path, name: str) -> KeyFile:
    """What may be shown of one key."""
    document = _document(folder, name)
    alg = cast(KeyAlgorithm, document["alg"])
    if alg == SEALING:
        # An id of a symmetric key must not help to guess it: a tagged hash of 256 random bits does not.
        return KeyFile(name, alg, tagged(Tag.KEY_ID, bytes.fromhex(document["secret"])).hex()[:16], None)
    try:
        public = PublicKey(cast(Algorithm, alg), bytes.fromhex(document["public_key"]))
    except InvalidKey as error:
        raise _damaged(_path(folder, name)) from error
    return KeyFile(name, alg, tagged(Tag.KEY_ID, public.raw).hex()[:16], public)


def load_signing(folder: Path, name: str) -> SigningKey:
    """The signing key of that name."""
    document = _document(folder, name)
    if document["alg"] == SEALING:
        raise InvalidKey(f'key "{name}" seals pointers and cannot sign', alg=SEALING)
    return SigningKey(cast(Algorithm, document["alg"]), bytes.fromhex(document["secret"]))


def load_sealing(folder: Path, name: str) -> SealingKey:
    """The symmetric key of that name."""
    document = _document(folder, name)
    if document["alg"] != SEALING:
        raise InvalidKey(
            f'key "{name}" is a {document["alg"]} signing key and cannot seal',
            alg=document["alg"],
            advice=f"Make one with `ropewalk key new NAME --alg {SEALING}`.",
        )
    return SealingKey(bytes.fromhex(document["secret"]))


def _path(folder: Path, name: str) -> Path:
    if NAME.match(name) is None:
        raise InvalidName(
            f'key name "{name}" is not usable as a file name',
            name=name,
            advice="Use up to 64 letters, digits, `.`, `_` and `-`, starting with a letter or digit.",
        )
    return folder / f"{name}.json"


def _write_new(path: Path, raw: bytes) -> None:
    """Create the file with its final mode, whole and durable, or leave nothing."""
    # mkstemp gives mode 0600 and an unused name, even after a crash of a process with our number.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(raw)
            stream.flush()
            sync(stream.fileno())
        os.link(temporary, path)  # unlike rename, a link never replaces a key that is there
    finally:
        Path(temporary).unlink(missing_ok=True)
    sync_folder(path.parent)


def _document(folder: Path, name: str) -> dict[str, str]:
    path = _path(folder, name)
    try:
        raw = read_file(path)
    except FileNotFoundError as error:
        raise NotFound(
            f'no key "{name}"',
            name=name,
            advice="`ropewalk init` makes the repository's own key; where a command takes --key, name another."
            if name == REPOSITORY_KEY
            else f"Make one with `ropewalk key new {name}`; `ropewalk key ls` lists them.",
        ) from error
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}", path=str(path)) from error
    try:
        document = json.loads(raw)
        well_formed = (
            document["version"] == 1
            and document["alg"] in ALGORITHMS
            and len(bytes.fromhex(document["secret"])) == SECRET_BYTES
            and (document["alg"] == SEALING or bytes.fromhex(document["public_key"]) != b"")
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        well_formed = False
    if not well_formed:
        raise _damaged(path)
    return cast(dict[str, str], document)


def _damaged(path: Path) -> InvalidKey:
    return InvalidKey(
        f"{path} is no key file of ropewalk", path=str(path), advice="Restore it from a backup."
    )
