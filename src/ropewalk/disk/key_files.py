"""Private keys as files of mode 0600, one JSON object each, never overwritten.

A file is `{"version":1,"alg","secret"}` and, for keys that sign, `"public_key"`, so that a listing need not touch
a signing library. Secrets are hex and leave this module only inside a key object. `key_encryption` has the form of
an encrypted key. A file that others can read or write is never used to sign or open anything.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast, get_args

from ropewalk.disk import key_encryption
from ropewalk.disk.durable import Disk, open_file, sync, sync_folder
from ropewalk.errors import Conflict, InvalidKey, InvalidName, NotFound, RopewalkError, Unavailable
from ropewalk.kernel.digest import Tag, tagged
from ropewalk.kernel.keys import Algorithm, PublicKey, SealingKey, SigningKey
from ropewalk.kernel.note.ml_dsa import MlDsaSigningKey

KeyAlgorithm = Literal["ed25519", "p256", "secp256k1", "xchacha20poly1305", "ml-dsa-44"]
Protection = Literal["none", "passphrase", "token"]
ALGORITHMS: tuple[KeyAlgorithm, ...] = get_args(KeyAlgorithm)
SEALING = "xchacha20poly1305"
COSIGNING = "ml-dsa-44"
SECRET_BYTES = 32
REPOSITORY_KEY = "node"  # the one that `ropewalk init` makes
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class KeyFile:
    """What may be shown of a key: never the secret. `public` is None for a key that seals or only cosigns."""

    name: str
    alg: KeyAlgorithm
    key_id: str
    public: PublicKey | None
    protection: Protection = "none"


def make(
    folder: Path, name: str, alg: KeyAlgorithm, entropy: bytes, passphrase: bytes | None = None
) -> KeyFile:
    """Write a new key made from 32 bytes of entropy; a name that is taken is refused."""
    path = _path(folder, name)
    if alg == SEALING:
        secret, public = SealingKey(entropy).secret, None
    elif alg == COSIGNING:
        secret, public = entropy, MlDsaSigningKey(entropy).public.raw
    else:
        key = SigningKey.generate(cast(Algorithm, alg), entropy)
        secret, public = key.secret, key.public.raw
    return _store(folder, name, path, _encode(alg, secret, public, passphrase))


def make_in_token(folder: Path, name: str, alg: Algorithm, uri: str) -> tuple[KeyFile, bool]:
    """Write a key that a PKCS#11 token holds, generated there if it is missing; return whether it was there."""
    from ropewalk.disk.token_keys import make_token_key

    path = _path(folder, name)
    if path.exists():
        raise _taken(name)
    public, found = make_token_key(uri, alg, lambda: key_encryption.ask_passphrase(name))
    document = {"version": 3, "alg": public.alg, "public_key": public.raw.hex(), "pkcs11": uri}
    return _store(folder, name, path, json.dumps(document, separators=(",", ":")).encode() + b"\n"), found


def _taken(name: str) -> Conflict:
    return Conflict(
        f'a key "{name}" exists already',
        name=name,
        advice="Keys are never overwritten: choose another name, or keep that one with --if-missing.",
    )


def _store(folder: Path, name: str, path: Path, raw: bytes) -> KeyFile:
    try:
        Disk().make_directories(folder, mode=0o700)
        _write_new(path, raw)
    except FileExistsError as error:
        raise _taken(name) from error
    except OSError as error:
        raise _refused(path, error) from error
    return read(folder, name)


def _refused(path: Path, error: OSError) -> Unavailable:
    return Unavailable(f"{path}: {error.strerror}", path=str(path), advice="Check its owner and mode.")


def protect(folder: Path, name: str, new: bytes | None, old: bytes | None = None) -> KeyFile:
    """Encrypt a key with the passphrase `new`, or store it without one if that is None.

    `old` opens a key that is encrypted. The file is replaced whole; the old one is written over afterwards.
    """
    path = _path(folder, name)
    secret = load_secret(folder, name, old)
    document = _document(folder, name)
    alg = cast(KeyAlgorithm, document["alg"])
    public = bytes.fromhex(document["public_key"]) if alg != SEALING else None
    raw = _encode(alg, secret, public, new)
    try:
        with path.open("r+b") as before:
            _write_new(path, raw, replace=True)
            _write_over(before)
    except OSError as error:
        raise _refused(path, error) from error
    return read(folder, name)


def destroy(folder: Path, name: str) -> None:
    """Take a key away for good. It is written over first, which helps on disks that write in place."""
    path = _path(folder, name)
    _document(folder, name)
    try:
        with path.open("r+b") as stream:
            _write_over(stream)
        path.unlink()
        sync_folder(folder)
    except OSError as error:
        raise _refused(path, error) from error


def ls(folder: Path) -> list[KeyFile]:
    """Return every key in the folder, by name."""
    if not folder.is_dir():
        return []
    return [read(folder, path.stem) for path in sorted(folder.glob("*.json"))]


def public_keys(folder: Path) -> list[PublicKey]:
    """Return the public keys in the folder, none if one cannot be read; `ropewalk doctor` names that one."""
    try:
        return [each.public for each in ls(folder) if each.public is not None]
    except RopewalkError:
        return []


def read(folder: Path, name: str) -> KeyFile:
    """Return what may be shown of one key."""
    document = _document(folder, name)
    alg = cast(KeyAlgorithm, document["alg"])
    protection: Protection = "passphrase" if "encrypted" in document else "none"
    if "pkcs11" in document:
        protection = "token"
    if alg == SEALING:
        return KeyFile(name, alg, document.get("key_id") or _sealing_id(document["secret"]), None, protection)
    if alg == COSIGNING:
        raw = bytes.fromhex(document["public_key"])
        return KeyFile(name, alg, tagged(Tag.KEY_ID, raw).hex()[:16], None, protection)
    try:
        public = PublicKey(cast(Algorithm, alg), bytes.fromhex(document["public_key"]))
    except InvalidKey as error:
        raise _damaged(_path(folder, name)) from error
    return KeyFile(name, alg, tagged(Tag.KEY_ID, public.raw).hex()[:16], public, protection)


def load_signing(folder: Path, name: str, passphrase: bytes | None = None) -> SigningKey:
    """Return the signing key of that name. Every signature of a stored key goes through here.

    An encrypted key is opened with `passphrase`, or with the one of the process's source; once opened, it stays open
    for the process.
    """
    document = _document(folder, name, private=True)
    if document["alg"] == SEALING:
        raise InvalidKey(f'key "{name}" seals pointers and cannot sign', alg=SEALING)
    if document["alg"] == COSIGNING:
        raise InvalidKey(
            f'key "{name}" cosigns heads of logs and signs nothing else',
            alg=COSIGNING,
            advice="Use it with `ropewalk witness init`; make another key for this.",
        )
    if "pkcs11" in document:
        from ropewalk.disk.token_keys import open_token_key  # few have a token, and its library is large

        public = PublicKey(cast(Algorithm, document["alg"]), bytes.fromhex(document["public_key"]))
        return open_token_key(
            document["pkcs11"], public, lambda: passphrase or key_encryption.ask_passphrase(name)
        )
    key = SigningKey(cast(Algorithm, document["alg"]), _secret(document, name, passphrase))
    if key.public.raw.hex() != document["public_key"]:
        raise _damaged(_path(folder, name))
    return key


def load_cosigning(folder: Path, name: str) -> SigningKey | MlDsaSigningKey:
    """Return the key of that name for a witness: a signing key, or one that only cosigns."""
    document = _document(folder, name, private=True)
    if document["alg"] != COSIGNING:
        return load_signing(folder, name)
    key = MlDsaSigningKey(_secret(document, name, None))
    if key.public.raw.hex() != document["public_key"]:
        raise _damaged(_path(folder, name))
    return key


def load_secret(folder: Path, name: str, passphrase: bytes | None = None) -> bytes:
    """Return the secret of a key of any kind, to store it again."""
    return _secret(_document(folder, name, private=True), name, passphrase)


def load_sealing(folder: Path, name: str, passphrase: bytes | None = None) -> SealingKey:
    """Return the symmetric key of that name."""
    document = _document(folder, name, private=True)
    if document["alg"] != SEALING:
        raise InvalidKey(
            f'key "{name}" is a {document["alg"]} signing key and cannot seal',
            alg=document["alg"],
            advice=f"Make one with `ropewalk key new NAME --alg {SEALING}`.",
        )
    return SealingKey(_secret(document, name, passphrase))


def _encode(alg: KeyAlgorithm, secret: bytes, public: bytes | None, passphrase: bytes | None) -> bytes:
    document: dict[str, Any] = {"version": 1, "alg": alg}
    if public is not None:
        document["public_key"] = public.hex()
    if passphrase is None:
        document["secret"] = secret.hex()
    else:
        if public is None:
            document["key_id"] = _sealing_id(secret.hex())
        document = key_encryption.encrypt(document, secret, passphrase)
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _secret(document: dict[str, Any], name: str, passphrase: bytes | None) -> bytes:
    if "pkcs11" in document:
        raise InvalidKey(f'the secret of key "{name}" stays in its token', name=name)
    if "encrypted" in document:
        return key_encryption.decrypt(document, name, passphrase)
    return bytes.fromhex(document["secret"])


def _sealing_id(secret: str) -> str:
    """Return the id of a symmetric key, which does not help to guess it: a tagged hash of 256 random bits."""
    return tagged(Tag.KEY_ID, bytes.fromhex(secret)).hex()[:16]


def _path(folder: Path, name: str) -> Path:
    if NAME.match(name) is None:
        raise InvalidName(
            f'key name "{name}" is not usable as a file name',
            name=name,
            advice="Use up to 64 letters, digits, `.`, `_` and `-`, starting with a letter or digit.",
        )
    return folder / f"{name}.json"


def _write_over(stream: BinaryIO) -> None:
    stream.write(bytes(os.fstat(stream.fileno()).st_size))
    stream.flush()
    sync(stream.fileno())


def _write_new(path: Path, raw: bytes, *, replace: bool = False) -> None:
    """Create the file with its final mode, whole and durable, or leave nothing."""
    # mkstemp gives mode 0600 and an unused name, even after a crash of a process with our number.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(raw)
            stream.flush()
            sync(stream.fileno())
        if replace:
            Path(temporary).replace(path)
        else:
            os.link(temporary, path)  # unlike rename, a link never replaces a key that is there
    finally:
        Path(temporary).unlink(missing_ok=True)
    sync_folder(path.parent)


def _document(folder: Path, name: str, *, private: bool = False) -> dict[str, Any]:
    """Read a key file and check its form; with `private`, refuse one that others can read."""
    path = _path(folder, name)
    try:
        with open_file(path) as stream:
            if private:
                key_encryption.check_private(stream.fileno(), path)
            raw = stream.read()
    except FileNotFoundError as error:
        raise NotFound(
            f'no key "{name}"',
            name=name,
            key=name,
            advice="`ropewalk init` makes the repository's own key; where a command takes --key, name another."
            if name == REPOSITORY_KEY
            else f"Make one with `ropewalk key new {name}`; `ropewalk key ls` lists them.",
        ) from error
    except OSError as error:
        raise _refused(path, error) from error
    try:
        document = json.loads(raw)
        encrypted, token = key_encryption.is_encrypted(document), isinstance(document.get("pkcs11"), str)
        well_formed = (
            document["version"] == (3 if token else 1 + encrypted)
            and document["alg"] in ALGORITHMS
            and (token or encrypted or len(bytes.fromhex(document["secret"])) == SECRET_BYTES)
            and (
                not token and (not encrypted or isinstance(document["key_id"], str))
                if document["alg"] == SEALING
                else bytes.fromhex(document["public_key"]) != b""
            )
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        well_formed = False
    if not well_formed:
        raise _damaged(path)
    return cast(dict[str, Any], document)


def _damaged(path: Path) -> InvalidKey:
    return InvalidKey(
        f"{path} is no key file of ropewalk", path=str(path), advice="Restore it from a backup."
    )
