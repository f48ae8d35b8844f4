"""Detached payloads in `<gitdir>/ropewalk/payloads/`: the ledger holds their hash, this folder their bytes.

Blocks are immutable, so erasable data never enters one (S4 §13). Erasing deletes the bytes and leaves a tombstone
under the same hash; the envelope, its id and its proofs are unchanged.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.disk.durable import Disk, file_errors, unavailable
from ropewalk.errors import Conflict, Damaged, DigestMismatch, InvalidDigest, NotFound, RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import blake3, hash_from_hex
from ropewalk.ledger.json_form import members_of

FOLDER_MODE, FILE_MODE = 0o700, 0o600


@dataclass(frozen=True, slots=True)
class PayloadTombstone:
    """The tombstone of an erased payload."""

    payload_hash: str
    erased_at: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form in its file and its event."""
        return members_of(self)


class PayloadStore:
    """The detached payloads of one repository, by the hash in their envelopes."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.folder = folder
        self._disk = disk or Disk()

    def put(self, raw: bytes) -> str:
        """Store the canonical bytes of a payload, durably; return their hash. An erased payload is not stored again."""
        name = blake3(raw).hex()
        tombstone = self.erased(name)
        if tombstone is not None:
            raise Conflict(
                f"payload {name} was erased at {tombstone.erased_at}; storing it again would restore it",
                advice="Leave it erased, or store the event's body in another place.",
                payload_hash=name,
            )
        with file_errors("keeping a payload"):
            self._disk.make_directories(self.folder)
            self.folder.chmod(FOLDER_MODE)
            if not self._path(name).exists():
                self._disk.replace(self._path(name), raw, mode=FILE_MODE)
        return name

    def get(self, payload_hash: str) -> bytes:
        """Return the bytes of a payload, hashed again; `NotFound` has the time and reason of an erasure."""
        tombstone = self.erased(payload_hash)
        if tombstone is not None:
            raise NotFound(
                f"the payload was erased at {tombstone.erased_at}: {tombstone.reason or 'no reason given'}",
                advice="It cannot be restored; its hash stays in the ledger.",
                **tombstone.to_json(),
            )
        try:
            raw = self._path(payload_hash).read_bytes()
        except FileNotFoundError as error:
            raise NotFound(
                f"no payload {payload_hash} is kept here",
                advice="Look at the location in the envelope's payload_ref.",
                payload_hash=payload_hash,
            ) from error
        except OSError as error:
            raise unavailable(error, "reading a payload") from error
        if blake3(raw).hex() != payload_hash:
            raise DigestMismatch(
                f"the payload {payload_hash} has changed",
                expected=payload_hash,
                got=blake3(raw).hex(),
                where=str(self._path(payload_hash)),
            )
        return raw

    def erase(self, payload_hash: str, *, at: str, reason: str) -> PayloadTombstone:
        """Delete the bytes; a tombstone stays. Repeating it completes an interrupted erasure."""
        tombstone = self.erased(payload_hash)
        if tombstone is None and not self._path(payload_hash).exists():
            raise NotFound(f"no payload {payload_hash} is kept here", payload_hash=payload_hash)
        with file_errors("erasing a payload"):
            if tombstone is None:
                # The tombstone comes first: from then on the bytes are not read, even if they are still there.
                tombstone = PayloadTombstone(payload_hash, at, reason)
                self._disk.replace(
                    self._tombstone_path(payload_hash),
                    jcs.encode({"version": 1, **tombstone.to_json()}),
                    mode=FILE_MODE,
                )
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(self._path(payload_hash))
            self._disk.fsync_directory(self.folder)
        return tombstone

    def put_tombstone(self, tombstone: PayloadTombstone) -> bool:
        """Store the tombstone of a payload erased in another repository; False if one exists, or the bytes are here."""
        path = self._path(tombstone.payload_hash)
        if path.exists() or self.erased(tombstone.payload_hash) is not None:
            return False
        with file_errors("writing a tombstone"):
            self._disk.make_directories(self.folder)
            self.folder.chmod(FOLDER_MODE)
            raw = jcs.encode({"version": 1, **tombstone.to_json()})
            self._disk.replace(self._tombstone_path(tombstone.payload_hash), raw, mode=FILE_MODE)
        return True

    def erased(self, payload_hash: str) -> PayloadTombstone | None:
        path = self._tombstone_path(payload_hash)
        try:
            value: Any = jcs.parse(path.read_bytes())
            if value["payload_hash"] != payload_hash:
                raise ValueError("it is the tombstone of another payload")
            return PayloadTombstone(payload_hash, str(value["erased_at"]), str(value["reason"]))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unavailable(error, "reading a tombstone") from error
        except (RopewalkError, ValueError, KeyError, TypeError) as error:
            raise Damaged(f"{path} is not a valid tombstone", reason=str(error), path=str(path)) from error

    def _path(self, payload_hash: str) -> Path:
        return self.folder / f"{_checked(payload_hash)}.json"

    def _tombstone_path(self, payload_hash: str) -> Path:
        return self.folder / f"{_checked(payload_hash)}.tombstone"


def _checked(payload_hash: str) -> str:
    if hash_from_hex(payload_hash) is None:
        raise InvalidDigest(f"payload hash {payload_hash[:80]!r}: must be 64 lowercase hex digits")
    return payload_hash
