"""The last head of every ref that was verified here: a memory, not an index.

Everyone who may push can rewrite git's history. A reader of the log notices, because the head it saw is
no longer below the new one.

    seen/<ref>    the commit id and a checksum of it, a line each; a file with the id alone is read, too

A file is replaced in place and not synced: it lies within one sector, which a disk writes whole. So a power cut leaves
an older memory, never half of one, and an append pays for no sync. A reader that meets a half-written file reads again.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path

from ropewalk.disk.durable import Disk, read_file, unavailable
from ropewalk.errors import Damaged
from ropewalk.kernel.digest import blake3

OBJECT_ID = re.compile(rb"[0-9a-f]{40}\n?")
READ_TRIES = 20  # a reader may see a half-written file


class SeenHeads:
    """Ref → the commit last verified as its head, one small file each."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk

    def get(self, ref: str) -> str | None:
        """Return the head seen last, None if this ref was never read here.

        A memory that cannot be read is not the same as none: a rewound log would pass for a new one.
        """
        path = self._folder / ref
        for _ in range(READ_TRIES):
            try:
                raw = read_file(path, 64)
            except (FileNotFoundError, NotADirectoryError):
                return None
            except IsADirectoryError:
                raw = b""
            except OSError as error:
                raise unavailable(error, f"reading the head of {ref} seen last") from error
            if OBJECT_ID.fullmatch(raw) or (OBJECT_ID.match(raw) and raw == _content(raw[:40])):
                return raw[:40].decode()
        raise Damaged(
            f"the head of {ref} seen last cannot be read: {path} must hold one commit id and its checksum, "
            f"found {raw[:48]!r}",
            ref=ref,
            path=str(path),
            advice="Compare the log with another clone (`git ls-remote`). If nothing is missing from it, "
            "`ropewalk heads accept` takes its head as seen.",
        )

    def refs(self, prefix: str) -> list[str]:
        """List the refs below a prefix (ending with `/`) whose head was seen, whether they still exist or not."""
        found = []
        for folder, _, files in os.walk(self._folder / prefix):
            names = ((Path(folder) / file).relative_to(self._folder).as_posix() for file in files)
            found += [name for name in names if not name.rpartition("/")[2].startswith(".")]
        return sorted(found)

    def set(self, ref: str, head: str) -> None:
        """Remember a verified head. A repository we may only read is remembered nowhere, which is no error."""
        path, raw = self._folder / ref, _content(head.encode())
        with contextlib.suppress(OSError):
            if self._replaced_in_place(path, raw):
                return
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        with contextlib.suppress(OSError):
            for attempt in range(2):
                try:
                    temporary.unlink(missing_ok=True)  # of a process of the same number that was killed
                    self._disk.write_new(temporary, raw, mode=0o644)
                    self._disk.rename(temporary, path)
                    return
                except FileNotFoundError:
                    if attempt:
                        raise
                    path.parent.mkdir(parents=True, exist_ok=True)

    def _replaced_in_place(self, path: Path, raw: bytes) -> bool:
        """Write over a file of the same size that has no other name; False if there is none."""
        try:
            descriptor = self._disk.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or (found.st_size, found.st_nlink) != (len(raw), 1):
                return False
            self._disk.write_at(descriptor, raw, 0)
            return True
        finally:
            os.close(descriptor)

    def accept(self, ref: str, head: str | None, who: str) -> None:
        """Take a rewritten history as the truth, and write down who did, when, and from what to what."""
        try:
            old = self.get(ref)
        except Damaged:
            old = "damaged"
        line = f"{datetime.now(UTC).isoformat(timespec='seconds')} {ref} {old or '-'} {head or '-'} {who}\n"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._disk.append(self._folder / "accepted.log", line.encode())
            if head is None:
                (self._folder / ref).unlink(missing_ok=True)
        except OSError as error:
            raise unavailable(error, "recording the acceptance") from error
        if head is not None:
            self.set(ref, head)


def _content(head: bytes) -> bytes:
    return b"%s\n%s\n" % (head, blake3(head)[:8].hex().encode())
