"""A git repository as a store: objects in packs we write ourselves, heads moved by compare-and-swap.

Objects are read by us and not by libgit2, which spins for ever on truncated loose objects and crashes on damaged
packs; everything is hashed again before anybody sees it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import socket
import time
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from ropewalk import native
from ropewalk.disk.durable import Disk, read_file, unavailable
from ropewalk.disk.repository_paths import RepositoryPaths
from ropewalk.errors import Damaged, DigestMismatch, Invalid, NotFound, RopewalkError
from ropewalk.gitlog.core.clock_limit import SKEW_MS_DEFAULT
from ropewalk.gitlog.store.git_config import GitSettings
from ropewalk.gitlog.store.pack_reader import PackFolder
from ropewalk.gitlog.store.pack_writer import KIND_NUMBERS, Kind, build_pack
from ropewalk.gitlog.store.refs import FOREIGN_LOCK_WAIT_S, GitRefs

KEEP_MARK = "ropewalk in flight"
LOOSE_BYTES_MAX = 64 << 20  # inflated; a loose object of ours is an envelope or a note, far below
ALTERNATES_DEPTH_MAX = 5  # as git has it
OBJECT_ID = re.compile(r"[0-9a-f]{40}")
_counter = itertools.count()


class GitStore:
    """Objects and heads of one repository. Safe to share between threads; processes coordinate on disk."""

    def __init__(
        self, place: RepositoryPaths, *, disk: Disk | None = None, lock_wait_s: float = FOREIGN_LOCK_WAIT_S
    ) -> None:
        self.place = place
        self.disk = disk or Disk()
        self._settings = GitSettings(place.git_dir)
        self._settings.refuse_foreign_formats()
        self._objects = _object_folders(place.git_dir / "objects")
        self._writer = (("", ""), ("ropewalk", "ropewalk@localhost"))
        self._packs = [PackFolder(folder / "pack") for folder in self._objects]
        self.refs = GitRefs(
            place.git_dir,
            place.home / "locks",
            self.disk,
            log_updates=lambda: self._settings.log_updates,
            signature=lambda: f"{self.identity} {int(time.time())} +0000",
            lock_wait_s=lock_wait_s,
        )

    @property
    def pack_folder(self) -> Path:
        """Where new packs go."""
        return self._objects[0] / "pack"

    @property
    def pack_folders(self) -> list[Path]:
        """Where packs are read from: our own folder, and those of repositories objects are borrowed from."""
        return [folder / "pack" for folder in self._objects]

    @cached_property
    def identity(self) -> str:
        """Return the author, `Name <mail>`: the given one, else that of git's configuration, else a neutral name."""
        given, fallback = self._writer
        name = _clean(given[0] or self._settings.user("user.name")) or fallback[0]
        mail = _clean(given[1] or self._settings.user("user.email")) or fallback[1]
        return f"{name} <{mail}>"

    @cached_property
    def clock_skew_ms(self) -> int:
        """How far ahead of the clock a new event may be dated, by git's setting `ropewalk.maxClockSkew`."""
        return self._settings.span_ms("ropewalk.maxclockskew", SKEW_MS_DEFAULT)

    def identify(self, name: str, mail: str, *, fallback: tuple[str, str]) -> None:
        """Set the author, where it is known, and the one to use otherwise."""
        self._writer = ((name, mail), fallback)
        self.__dict__.pop("identity", None)

    def head(self, ref: str) -> str | None:
        """Return where a ref points, None if it does not exist."""
        return self.refs.read(ref)

    def heads(self, prefix: str) -> dict[str, str]:
        """Return every ref below a prefix."""
        return self.refs.under(prefix)

    def head_names(self, prefix: str) -> list[str]:
        """Return the names of the refs below a prefix, also of those that cannot be read."""
        return self.refs.names(prefix)

    def turn(self, ref: str) -> contextlib.AbstractContextManager[None]:
        """Queue among the ropewalk writers of a ref. Saves retries; compare-and-swap still decides."""
        return self.refs.turn(ref)

    def move_head(self, ref: str, expected: str | None, new: str) -> None:
        """Move a ref by compare-and-swap, durably; `expected=None` means it must not exist yet."""
        self.refs.move(ref, expected, new)

    def drop_head(self, ref: str, expected: str) -> None:
        """Remove a ref that is at `expected`. Heads of logs are never dropped; cursors may be."""
        self.refs.delete(ref, expected)

    def resolve(self, prefix: str) -> str:
        """Return the full id of the one object whose id begins with these hex digits (at least four)."""
        if not re.fullmatch(r"[0-9a-f]{4,40}", prefix):
            raise Invalid(
                f"{prefix[:60]!r} is no object id nor the beginning of one",
                oid=prefix[:60],
                advice="A commit is named by its hex digits: all 40, or at least the first 4.",
            )
        if len(prefix) == 40:
            return prefix
        found: set[str] = set()
        for packs in self._packs:
            packs.refresh()
            found.update(packs.resolve(prefix))
        for folder in self._objects:
            found.update(prefix[:2] + path.name for path in (folder / prefix[:2]).glob(prefix[2:] + "*"))
        if len(found) == 1:
            return found.pop()
        raise NotFound(f"{'no' if not found else 'more than one'} object begins with {prefix}", oid=prefix)

    def close(self) -> None:
        """Release the files of packs; the next read opens them again."""
        for packs in self._packs:
            packs.close()

    def get(self, oid: str) -> tuple[Kind, bytes]:
        """Return an object by id, hashed again; raise `NotFound`, or `DigestMismatch` if its bytes are wrong."""
        kind, raw = self._read(oid)
        named = hashlib.sha1(b"%s %d\x00" % (kind.encode(), len(raw)), usedforsecurity=False)
        named.update(raw)
        if named.hexdigest() != oid:
            raise DigestMismatch(
                f"object {oid} holds other bytes", expected=oid, got=named.hexdigest(), where=oid
            )
        return kind, raw

    def get_many(self, ids: bytes) -> list[tuple[Kind, bytes] | None]:
        """Return objects by ids of 20 bytes, hashed again; None for those that `get` must bring or explain."""
        if not native.is_here():
            return [None] * (len(ids) // 20)
        return self._packs[0].read_many(ids)

    @contextlib.contextmanager
    def put(self, objects: Sequence[tuple[str, Kind, bytes]]) -> Iterator[None]:
        """Make objects durable as one pack, and hold them until the block that names them ends.

        The pack carries a `.keep` while the block runs, so that no `git gc` finds it unreachable and drops it
        before the ref has moved.
        """
        if not objects:
            yield
            return
        keep = self._write_pack(objects)
        try:
            yield
        finally:
            if keep is not None:
                with contextlib.suppress(OSError):
                    self.disk.unlink(keep)

    def _write_pack(self, objects: Sequence[tuple[str, Kind, bytes]]) -> Path | None:
        """Write a pack; return its `.keep`, None if another writer of the same objects holds it."""
        name, pack, index = build_pack(objects)
        folder = self.pack_folder
        target = folder / f"pack-{name}.pack"
        keep, target_index = target.with_suffix(".keep"), target.with_suffix(".idx")
        # Not `.pack` and `.idx`: git takes every such file for a pack, also one that is being written.
        stem = f".ropewalk-{os.getpid()}-{next(_counter)}"
        temporary, temporary_index = folder / f"{stem}.new-pack", folder / f"{stem}.new-idx"
        made: list[Path] = [keep]
        try:
            try:
                self.disk.touch_new(keep, in_flight_mark())
            except FileExistsError:
                made.clear()
            # Packs are named by their objects: one that was here before belongs to a log.
            is_new = bool(made) and not target.exists()
            for path, raw in ((temporary, pack), (temporary_index, index)):
                self.disk.write_new(path, raw)
                made.append(path)
            self.disk.rename(temporary, target)
            made += [target] if is_new else []
            # The index goes last: a pack without one is invisible and harmless.
            self.disk.rename(temporary_index, target_index)
            made += [target_index] if is_new else []
            self.disk.fsync_directory(folder)
        except BaseException as error:  # also when interrupted: nothing half-written stays
            for path in reversed(made):
                with contextlib.suppress(OSError):
                    self.disk.unlink(path)
            if isinstance(error, OSError):
                raise unavailable(error, "writing a pack") from error
            raise
        return keep if keep in made else None

    def _read(self, oid: str) -> tuple[Kind, bytes]:
        if not OBJECT_ID.fullmatch(oid):  # untrusted text must become neither a path nor a crash
            raise NotFound(f"{oid[:60]!r} is no object id", oid=oid[:60])
        for attempt in range(4):
            for packs in self._packs:
                if not attempt or packs.refresh():
                    found = packs.read(oid)
                    if found is not None:
                        return found
            for folder in self._objects:
                found = _read_loose(folder / oid[:2] / oid[2:], oid)
                if found is not None:
                    return found
            # It may have been rolled into a pack, or written, since we looked: look again.
        raise NotFound(f"object {oid} is not in the repository", oid=oid)


def in_flight_mark() -> bytes:
    """Return what our `.keep` files say: who holds the pack, so that a sweeper can tell the dead from the living."""
    return f"{KEEP_MARK} {os.getpid()} {socket.gethostname()}\n".encode()


def _read_loose(path: Path, oid: str) -> tuple[Kind, bytes] | None:
    """Return a loose object, inflated with a bound; a torn one is named, never waited for."""
    try:
        packed = read_file(path, LOOSE_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unavailable(error, f"reading object {oid}") from error
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(packed, LOOSE_BYTES_MAX)
    except zlib.error as error:
        raise _torn(oid, path, str(error)) from error
    if not inflate.eof:
        raise _torn(oid, path, "it ends too early")
    header, _, body = raw.partition(b"\x00")
    kind, _, size = header.partition(b" ")
    name = kind.decode("ascii", "replace")
    if name not in KIND_NUMBERS or not size.isdigit() or int(size) != len(body):
        raise _torn(oid, path, "its header does not fit its bytes")
    known: Kind = name
    return known, body


def _torn(oid: str, path: Path, reason: str) -> RopewalkError:
    return DigestMismatch(
        f"loose object {oid} is damaged: {reason}",
        expected=oid,
        where=str(path),
        advice="Move that file away and fetch the object again from another clone.",
    )


def _object_folders(first: Path) -> list[Path]:
    """Return the object folder and those it borrows from (`info/alternates`)."""
    folders = [first]
    frontier = [first]
    for _ in range(ALTERNATES_DEPTH_MAX):
        found: list[Path] = []
        for folder in frontier:
            listing = folder / "info" / "alternates"
            found += [(folder / line).resolve() for line in _lines(listing) if not line.startswith("#")]
        frontier = [folder for folder in found if folder.is_dir() and folder not in folders]
        folders += frontier
    return folders


def _lines(listing: Path) -> list[str]:
    """Return the lines of `info/alternates`: paths, in the bytes of the file system."""
    try:
        raw = read_file(listing)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unavailable(error, "reading info/alternates") from error
    if b"\0" in raw:
        raise Damaged(
            f"{listing} must hold one path a line, found a zero byte",
            path=str(listing),
            advice=f"Correct or remove {listing}; it names the repositories objects are borrowed from.",
        )
    return [os.fsdecode(line.strip()) for line in raw.split(b"\n") if line.strip()]


def _clean(text: str) -> str:
    return "".join(letter for letter in text if letter not in "<>\n\r\x00").strip()
