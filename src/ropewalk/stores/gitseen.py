"""The last head of every ref that was verified here: a memory, not an index.

Git's history can be rewritten by whoever may push. Whoever has read a log before notices, because the head they saw is
no longer below the new one.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from datetime import UTC, datetime
from pathlib import Path

from ropewalk.stores.durable import Disk, unavailable

__all__ = ["SeenHeads"]

OBJECT_ID = re.compile(r"[0-9a-f]{40}")


class SeenHeads:
    """Ref → the commit last verified as its head, one small file each."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk

    def get(self, ref: str) -> str | None:
        """The head seen last, None if this ref was never read here."""
        with contextlib.suppress(OSError):
            text = (self._folder / ref).read_text(encoding="ascii", errors="replace").strip()
            if OBJECT_ID.fullmatch(text):
                return text
        return None

    def refs(self, prefix: str) -> list[str]:
        """Every ref below a prefix (ending with `/`) whose head was seen, whether it still exists or not."""
        found = []
        for folder, _, files in os.walk(self._folder / prefix):
            names = ((Path(folder) / file).relative_to(self._folder).as_posix() for file in files)
            found += [name for name in names if self.get(name) is not None]
        return sorted(found)

    def set(self, ref: str, head: str) -> None:
        """Remember a verified head. A repository we may only read is remembered nowhere, which is no error."""
        path = self._folder / ref
        beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        with contextlib.suppress(OSError):
            for attempt in range(2):
                try:
                    beside.write_text(head + "\n", encoding="ascii")
                    beside.replace(path)
                    return
                except FileNotFoundError:
                    if attempt:
                        raise
                    path.parent.mkdir(parents=True, exist_ok=True)

    def accept(self, ref: str, head: str | None, who: str) -> None:
        """Take a rewritten history as the truth, and write down who did, when, and from what to what."""
        old = self.get(ref)
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
