"""Encrypt the secret of a key file with a passphrase: scrypt (RFC 7914), then XChaCha20-Poly1305.

    {"version":2,"alg","public_key" or "key_id",
     "kdf":{"name":"scrypt","log2_n":17,"r":8,"p":1,"salt":"<32 hex digits>"},"encrypted":"<96 hex digits>"}

scrypt derives 56 bytes from passphrase and salt: the cipher's key and its nonce. Every other member is authenticated as
associated data, in canonical JSON. Passphrases come from the caller or from `passphrase_source`, which the command line
sets: only it reads the environment or a terminal.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ropewalk.errors import Invalid, SigInvalid, Unavailable
from ropewalk.kernel.seal import KEY_BYTES, NONCE_BYTES, SealingKey

PASSPHRASE_MIN: Final = 8
PASSPHRASE_BYTES_MAX: Final = 1024
LOG2_N = 17  # 128 MiB and about 0.3 s for each guess
LOG2_N_MIN: Final = 14
LOG2_N_MAX: Final = 20
_SALT_BYTES: Final = 16
_BLOCK: Final = 8

PassphraseSource = Callable[[str], bytes]
_source: PassphraseSource | None = None
_lock = threading.Lock()
_opened: dict[bytes, bytes] = {}  # secrets by their encrypted documents, so that a server derives each once


def passphrase_source(ask: PassphraseSource | None) -> None:
    """Set where the passphrase of a key comes from, for the whole process: called with the key's name."""
    global _source
    _source = ask


def encrypt(document: dict[str, Any], secret: bytes, passphrase: bytes) -> dict[str, Any]:
    """Return a key document with the secret encrypted."""
    if not PASSPHRASE_MIN <= len(passphrase) <= PASSPHRASE_BYTES_MAX:
        raise Invalid(
            f"a passphrase must have {PASSPHRASE_MIN} to {PASSPHRASE_BYTES_MAX} bytes, got {len(passphrase)}",
            advice="Use several random words, or `openssl rand -base64 24 > FILE` for a service.",
        )
    kdf = {"name": "scrypt", "log2_n": LOG2_N, "r": _BLOCK, "p": 1, "salt": os.urandom(_SALT_BYTES).hex()}
    bound = {**document, "version": 2, "kdf": kdf}
    key, nonce = _derive(kdf, passphrase)
    return {**bound, "encrypted": key.seal(nonce, secret, _canonical(bound)).hex()}


def is_encrypted(document: dict[str, Any]) -> bool:
    """Return whether a document is an encrypted key; raise ValueError if its parameters are out of bounds."""
    if "encrypted" not in document:
        return False
    kdf = document["kdf"]
    if (
        kdf.keys() != {"name", "log2_n", "r", "p", "salt"}
        or (kdf["name"], kdf["r"], kdf["p"]) != ("scrypt", _BLOCK, 1)
        or type(kdf["log2_n"]) is not int
        or not LOG2_N_MIN <= kdf["log2_n"] <= LOG2_N_MAX
        or len(bytes.fromhex(kdf["salt"])) != _SALT_BYTES
        or len(bytes.fromhex(document["encrypted"])) > PASSPHRASE_BYTES_MAX
    ):
        raise ValueError("kdf")
    return True


def decrypt(document: dict[str, Any], name: str, passphrase: bytes | None = None) -> bytes:
    """Return the secret of an encrypted key; ask the process's passphrase source if no passphrase is given."""
    bound = {member: value for member, value in document.items() if member != "encrypted"}
    whole = _canonical(document)
    with _lock:  # one prompt and one derivation, however many threads ask
        if passphrase is None and whole in _opened:
            return _opened[whole]
        if passphrase is None:
            passphrase = ask_passphrase(name)
        key, nonce = _derive(document["kdf"], passphrase)
        try:
            secret = key.open(nonce, bytes.fromhex(document["encrypted"]), _canonical(bound))
        except SigInvalid as error:
            raise Unavailable(
                f'key "{name}": the passphrase is wrong, or the key file was changed',
                name=name,
                advice="Check the passphrase; a file that was changed comes back from a backup.",
            ) from error
        _opened[whole] = secret
        return secret


def check_private(descriptor: int, path: Path, refused: int = 0o077) -> None:
    """Refuse a file that the group or others can read or write."""
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & refused:
        raise Unavailable(
            f"{path} must be readable by its owner only, got mode {mode:04o}",
            path=str(path),
            advice=f"Run `chmod 600 {shlex.quote(str(path))}`; if others may have read it, replace the key.",
        )


def read_private_line(path: Path, refused: int = 0o077) -> bytes:
    """Read a passphrase or PIN from a file that only its owner can read; a line break at the end is not part of it."""
    with path.open("rb") as stream:
        check_private(stream.fileno(), path, refused)
        raw = stream.read(PASSPHRASE_BYTES_MAX + 2)
    found = raw.removesuffix(b"\n").removesuffix(b"\r")
    if not found or b"\n" in found or len(found) > PASSPHRASE_BYTES_MAX:
        raise Invalid(
            f"{path} must have one line of 1 to {PASSPHRASE_BYTES_MAX} bytes, the passphrase or PIN",
            advice="`openssl rand -base64 24 > FILE` makes a passphrase.",
        )
    return found


def ask_passphrase(name: str) -> bytes:
    """Return what the process's source gives for a key; raise if there is no source."""
    if _source is None:
        raise locked(name)
    return _source(name)


def locked(name: str) -> Unavailable:
    """Return the error for a key whose passphrase or PIN is not available."""
    return Unavailable(
        f'key "{name}" needs a passphrase or PIN',
        name=name,
        advice="Run the command in a terminal, or give --passphrase-file F or $ROPEWALK_PASSPHRASE_FILE.",
    )


def _canonical(value: dict[str, Any]) -> bytes:
    """Return canonical JSON (RFC 8785) of a key document, which has ASCII strings and small integers only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _derive(kdf: dict[str, Any], passphrase: bytes) -> tuple[SealingKey, bytes]:
    import hashlib  # every command loads this module, and few derive a key

    n = 1 << kdf["log2_n"]
    made = hashlib.scrypt(
        passphrase,
        salt=bytes.fromhex(kdf["salt"]),
        n=n,
        r=_BLOCK,
        p=1,
        maxmem=128 * _BLOCK * (n + 2) + (1 << 20),
        dklen=KEY_BYTES + NONCE_BYTES,
    )
    return SealingKey(made[:KEY_BYTES]), made[KEY_BYTES:]
