"""Sealed blobs and what is needed to open them, in `<gitdir>/ropewalk/private/`, which only its owner may enter.

One blob is two files: the sealed bytes, and a record with the names that were bound. Neither is ever a git object,
so no push carries them. Erasing takes the bytes away and leaves a tombstone: the public pointer still shows that
there was something.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.disk.durable import Disk, read_file, unavailable
from ropewalk.errors import Conflict, Damaged, DigestMismatch, NotFound, Unavailable
from ropewalk.kernel.digest import ContentId, content_id, parse_content_id

FOLDER_MODE, FILE_MODE = 0o700, 0o600


@dataclass(frozen=True, slots=True)
class PrivateRecord:
    """What was bound when a blob was sealed, and with which key. `digest` may be easy to guess: it stays here."""

    ciphertext_digest: str
    digest: str
    actor: str
    policy: str
    key: str
    sealed_at: str


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What is left of a blob that was erased."""

    ciphertext_digest: str
    erased_at: str
    reason: str
    by: str


class PrivateStore:
    """The private blobs of one repository."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.folder = folder
        self._disk = disk or Disk()

    def put(self, blob: bytes, record: PrivateRecord) -> None:
        """Keep a blob and its record, durably. The same blob again changes nothing; an erased one stays erased."""
        if content_id(blob) != record.ciphertext_digest:
            raise DigestMismatch(
                "the record names other bytes",
                expected=record.ciphertext_digest,
                got=content_id(blob),
                where="record",
            )
        old = self._read(record.ciphertext_digest)
        if isinstance(old, Tombstone):
            raise Conflict(
                f"{record.ciphertext_digest} was erased at {old.erased_at}; sealing it again would bring it back",
                advice="Seal it for another actor or policy version if it must be kept after all.",
                ciphertext_digest=record.ciphertext_digest,
            )
        try:
            self._open_folder()
            if old is None or not self._blob_path(record.ciphertext_digest).exists():
                # The bytes go first: a record without them would promise what is not there.
                self._disk.replace(self._blob_path(record.ciphertext_digest), blob, mode=FILE_MODE)
                self._disk.replace(
                    self._record_path(record.ciphertext_digest), _encoded(record), mode=FILE_MODE
                )
        except OSError as error:
            raise unavailable(error, "keeping a sealed blob") from error

    def find(self, ciphertext_digest: str | None, digest: str | None = None) -> PrivateRecord:
        """Return the record of a blob, by the digest of its sealed bytes or, failing that, of its plaintext."""
        found = self._read(ciphertext_digest) if ciphertext_digest is not None else None
        if found is None and ciphertext_digest is None:
            found = next((each for each in self.records() if each.digest == digest), None)
        if isinstance(found, Tombstone):
            raise NotFound(
                f"the private bytes were erased at {found.erased_at}: {found.reason or 'no reason given'}",
                advice="Nothing brings them back; the pointer stays as the mark that they existed.",
                ciphertext_digest=found.ciphertext_digest,
                erased_at=found.erased_at,
            )
        if found is None:
            raise NotFound(
                f"no private bytes for {ciphertext_digest or digest} in this repository",
                advice="Open the pointer where it was sealed; private bytes are never pushed.",
            )
        return found

    def blob(self, ciphertext_digest: str) -> bytes:
        """Return the sealed bytes, hashed again."""
        try:
            raw = read_file(self._blob_path(ciphertext_digest))
        except FileNotFoundError as error:
            raise NotFound(f"the sealed bytes of {ciphertext_digest} are not here") from error
        except OSError as error:
            raise unavailable(error, "reading a sealed blob") from error
        if content_id(raw) != ciphertext_digest:
            raise DigestMismatch(
                f"the sealed bytes of {ciphertext_digest} have changed",
                expected=ciphertext_digest,
                got=content_id(raw),
                where=str(self._blob_path(ciphertext_digest)),
            )
        return raw

    def erase(self, ciphertext_digest: str, *, at: str, reason: str, by: str) -> Tombstone:
        """Take the sealed bytes and their record away; a tombstone stays. Doing it again finishes what was begun."""
        old = self._read(ciphertext_digest)
        if old is None and not self._blob_path(ciphertext_digest).exists():
            raise NotFound(f"no private bytes for {ciphertext_digest} in this repository")
        stone = old if isinstance(old, Tombstone) else Tombstone(ciphertext_digest, at, reason, by)
        try:
            # The tombstone goes first: from then on nothing opens, even if the bytes stay.
            self._disk.replace(self._record_path(ciphertext_digest), _encoded(stone), mode=FILE_MODE)
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(self._blob_path(ciphertext_digest))
            self._disk.fsync_directory(self.folder)
        except OSError as error:
            raise unavailable(error, "erasing a sealed blob") from error
        return stone

    def records(self) -> Iterator[PrivateRecord]:
        """Yield every record that can still be opened."""
        for path in sorted(self.folder.glob("*.json")) if self.folder.is_dir() else ():
            found = self._read(ContentId("blake3:" + path.stem))
            if isinstance(found, PrivateRecord):
                yield found

    def _read(self, ciphertext_digest: str) -> PrivateRecord | Tombstone | None:
        path = self._record_path(ciphertext_digest)
        try:
            document = json.loads(read_file(path))
            if document.get("ciphertext_digest") != ciphertext_digest:
                raise ValueError("it is the record of another blob")
            kind: Any = Tombstone if "erased_at" in document else PrivateRecord
            record: PrivateRecord | Tombstone = kind(**{name: document[name] for name in kind.__slots__})
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror}", path=str(path)) from error
        except (ValueError, KeyError, AttributeError, RecursionError) as error:
            raise Damaged(
                f"{path} is no record of a sealed blob", reason=str(error), path=str(path)
            ) from error
        return record

    def _open_folder(self) -> None:
        if not self.folder.is_dir():
            self._disk.make_directories(self.folder.parent, FOLDER_MODE)
            self._disk.make_directories(self.folder, FOLDER_MODE)
        if self.folder.stat().st_mode & 0o077:
            self.folder.chmod(FOLDER_MODE)

    def _blob_path(self, ciphertext_digest: str) -> Path:
        return self.folder / f"{parse_content_id(ciphertext_digest).hex()}.sealed"

    def _record_path(self, ciphertext_digest: str) -> Path:
        return self.folder / f"{parse_content_id(ciphertext_digest).hex()}.json"


def _encoded(record: PrivateRecord | Tombstone) -> bytes:
    document = {name: getattr(record, name) for name in record.__slots__}
    return json.dumps(document, ensure_ascii=False, sort_keys=True).encode() + b"\n"
