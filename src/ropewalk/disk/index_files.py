"""The files of a log's index: disposable, shared by processes, and checked whenever they are read.

    <folder>/lock                   held by the process that writes
    <folder>/current                how far the index reaches, which files hold it, and a checksum; replaced whole
    <folder>/<token>.entries        one entry after another; each carries its own checksum, which covers its number
    <folder>/<token>.places         where the entry of a number begins, and its length
    <folder>/<token>.<n>.rows       runs of rows: `indexpages`

What `current` names is never changed, only added to. So a reader needs no lock, and one that has the files open goes on
reading when they are replaced. What does not hold raises `IndexDamaged`; the caller then builds the index again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ropewalk.disk.durable import Disk, sync
from ropewalk.disk.folder_lock import hold_file
from ropewalk.disk.index_pages import (
    FILTERED,
    ROWS_MAX,
    IndexDamaged,
    IndexRun,
    find_row,
    key_digest,
    page_and_bit,
    read_filter,
    read_rows,
    write_run,
)
from ropewalk.kernel.digest import blake3

CURRENT: Final = "current"
VERSION: Final = 4
_DISK: Final = Disk()
_READ_ONLY: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
# Bytes of merged runs that are left in the file at least before it is written anew.
WASTE_MIN: Final = 1 << 20
SYNC_FROM: Final = 1 << 20  # bytes of an index that a power cut should not make us build again
FILTERS_MAX: Final = 4096  # kept in memory once checked, 2 KiB each
_PLACE: Final = struct.Struct(">QI")


@dataclass(frozen=True, slots=True)
class IndexExtent:
    """What an index holds; a new one holds nothing."""

    token: bytes
    salt: bytes
    state: bytes = b""
    count: int = 0  # entries
    entry_bytes: int = 0
    rows_file: int = 0
    next_run: int = 0
    runs: tuple[IndexRun, ...] = ()

    @classmethod
    def new(cls) -> IndexExtent:
        """Return an empty one that no other index is mistaken for."""
        return cls(secrets.token_bytes(8), secrets.token_bytes(16))

    @property
    def names(self) -> tuple[str, str, str]:
        """The names of its files: entries, places, rows."""
        token = self.token.hex()
        return f"{token}.entries", f"{token}.places", f"{token}.{self.rows_file}.rows"

    @property
    def row_bytes(self) -> int:
        """Where the next run is written."""
        return max((run.end for run in self.runs), default=0)

    def to_bytes(self) -> bytes:
        """Return the content of `current`."""
        value = {
            "version": VERSION,
            "token": self.token.hex(),
            "salt": self.salt.hex(),
            "state": self.state.hex(),
            "count": self.count,
            "entry_bytes": self.entry_bytes,
            "rows_file": self.rows_file,
            "next_run": self.next_run,
            "runs": [[run.number, run.offset, run.pages, run.rows] for run in self.runs],
        }
        raw = json.dumps(value, separators=(",", ":")).encode("ascii")
        return blake3(raw).hex().encode("ascii") + b"\n" + raw

    @classmethod
    def parse(cls, raw: bytes) -> IndexExtent:
        """Read the content of `current`. Raises `IndexDamaged`."""
        if blake3(raw[65:]).hex().encode("ascii") + b"\n" != raw[:65]:
            raise IndexDamaged(f"{CURRENT} differs from its checksum")
        value = json.loads(raw[65:])
        if value.pop("version") != VERSION:
            raise IndexDamaged("it is of another version")
        runs = tuple(IndexRun(*run) for run in value.pop("runs"))
        value |= {name: bytes.fromhex(value[name]) for name in ("token", "salt", "state")}
        return cls(**value, runs=runs)


class IndexFiles:
    """One index as it was when it was last loaded. Close it."""

    def __init__(self, folder: Path, mode: int = 0o600) -> None:
        """Open the files in a folder; `mode` is that of the files it makes."""
        self.folder, self._mode = folder, mode
        self._current = str(folder / CURRENT)
        self.extent = IndexExtent.new()
        self.damage: str | None = None  # why what lies here cannot be used
        self.replaced = b""  # token of a stored index that must not be used
        self._open: tuple[int, ...] = ()
        self._searched: tuple[
            tuple[int, dict[int, bytes], IndexRun], ...
        ] = ()  # runs with the filters that were checked
        self.load()

    def refresh(self) -> None:
        """Load it again if another process has changed it since."""
        if self._stamp != _stamp(self._current):
            self.load()

    def load(self) -> None:
        """Take what is stored by now; nothing, if that is nothing or cannot be read."""
        self.close()
        self.extent, self.damage = IndexExtent.new(), None
        self._stamp = _stamp(self._current)
        before = None
        while True:
            try:
                raw = (self.folder / CURRENT).read_bytes()
            except FileNotFoundError:
                return
            except OSError as error:
                self.damage = f"{CURRENT}: {error.strerror}"
                return
            try:
                extent = IndexExtent.parse(raw)
            except IndexDamaged as error:
                self.damage = str(error)
                return
            try:
                self._use(extent, self._open_files(extent))
                return
            except OSError as error:
                if raw == before:  # else its files were replaced between the two
                    self.damage, self.replaced = f"{error.filename}: {error.strerror}", extent.token
                    return
                before = raw

    def _use(self, extent: IndexExtent, opened: tuple[int, ...]) -> None:
        kept = {run: filters for _, filters, run in self._searched}
        self.extent, self._open = extent, opened
        self._searched = tuple((run.pages, kept.get(run, {}), run) for run in extent.runs)

    def start_over(self) -> None:
        """Go on with an empty index; the stored one is replaced by the next write."""
        self.close()
        if self.extent.count:
            self.replaced = self.extent.token
        self.extent, self.damage = IndexExtent.new(), None

    def close(self) -> None:
        self._searched = ()
        descriptors, self._open = self._open, ()
        for descriptor in descriptors:
            os.close(descriptor)

    def __del__(self) -> None:
        # A reader that was dropped without close() must not keep descriptors: the pipeline opens an index per query.
        self.close()

    # --- reading ----------------------------------------------------------------------------------------------------

    def find(self, name: bytes) -> bytes | None:
        """Return the value of a name; the oldest if there are several. Raises `IndexDamaged`."""
        digest = key_digest(self.extent.salt, name)
        high, low = page_and_bit(digest)
        at, bit = low >> 3, 1 << (low & 7)
        for pages, filters, run in self._searched:
            group = (high * pages >> 64) // FILTERED
            bits = filters.get(group) or self._read_filter(run, filters, group)
            if bits[at] & bit:
                found = find_row(self._open[2], self.extent.token, run, digest)
                if found is not None:
                    return found
        return None

    def _read_filter(self, run: IndexRun, filters: dict[int, bytes], group: int) -> bytes:
        if len(filters) >= FILTERS_MAX:
            filters.clear()
        found = filters[group] = read_filter(self._open[2], self.extent.token, run, group)
        return found

    def entry(self, number: int) -> bytes:
        """Return the bytes stored for an entry; the caller checks them. Raises `IndexDamaged`."""
        try:
            raw = os.pread(self._open[1], _PLACE.size, number * _PLACE.size)
            offset, length = _PLACE.unpack(raw)
            if offset + length > self.extent.entry_bytes:
                raise IndexDamaged(f"entry {number} ends beyond the others")
            return os.pread(self._open[0], length, offset)
        except (OSError, struct.error) as error:
            raise IndexDamaged(f"the place of entry {number} cannot be read") from error

    def entries(self, start: int, stop: int) -> list[bytes]:
        """Return the bytes stored for some entries, read at once; the caller checks them. Raises `IndexDamaged`."""
        if start >= stop:
            return []
        try:
            raw = os.pread(self._open[1], (stop - start) * _PLACE.size, start * _PLACE.size)
            places = list(_PLACE.iter_unpack(raw))
            first, (offset, length) = places[0][0], places[-1]
            if (
                len(places) != stop - start
                or not first <= offset <= offset + length <= self.extent.entry_bytes
            ):
                raise IndexDamaged(f"the places of entries {start} to {stop} do not hold")
            raw = os.pread(self._open[0], offset + length - first, first)
        except (OSError, IndexError, struct.error) as error:
            raise IndexDamaged(f"the places of entries {start} to {stop} cannot be read") from error
        return [raw[at - first : at - first + size] for at, size in places]

    def check_pages(self) -> int:
        """Read every page and return how many rows there are. Raises `IndexDamaged`."""
        count = 0
        for run in self.extent.runs:
            for number in range(run.filters):
                read_filter(self._open[2], self.extent.token, run, number)
            for page in range(run.pages):
                count += len(read_rows(self._open[2], self.extent.token, run, page, page + 1))
        return count

    # --- writing ----------------------------------------------------------------------------------------------------

    def drop(self) -> None:
        """Remove what is stored. Raises `OSError`."""
        with self.hold():
            (self.folder / CURRENT).unlink(missing_ok=True)
        self.load()

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep other writers out, of this process and others. Raises `OSError`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with hold_file(self.folder / "lock", self._mode):
            yield

    def stored(self) -> IndexExtent:
        """Return what a write must add to: what lies on disk by now, or nothing if that does not hold. Hold it."""
        with contextlib.suppress(OSError, IndexDamaged):
            extent = IndexExtent.parse((self.folder / CURRENT).read_bytes())
            if extent.token != self.replaced:
                return extent
        return self.extent if not self.extent.count else IndexExtent.new()

    def write(
        self, base: IndexExtent, entries: Sequence[bytes], rows: Iterable[tuple[bytes, bytes]], state: bytes
    ) -> None:
        """Add entries and rows (by name) to `base`, which is what `stored` returned. Raises `OSError`, `IndexDamaged`.

        Runs grow by merging, four of a size into one, so that there are few to look into.
        """
        if base != self.extent or not self._open:
            self.close()
            self._use(base, self._open_files(base, create=True))
        of_entries, of_places, of_rows = self._open
        offset, places = base.entry_bytes, []
        for entry in entries:
            places.append(_PLACE.pack(offset, len(entry)))
            offset += len(entry)
        _DISK.write_at(of_entries, b"".join(entries), base.entry_bytes)
        _DISK.write_at(of_places, b"".join(places), base.count * _PLACE.size)
        extent = replace(base, state=state, count=base.count + len(entries), entry_bytes=offset)
        extent, opened = self._write_rows(extent, _rows(base.salt, rows), of_rows)
        try:
            self._replace_current(extent, (of_entries, of_places, opened))
        except BaseException:
            if opened != of_rows:
                os.close(opened)
            raise
        if opened != of_rows:
            os.close(of_rows)
        self._use(extent, (of_entries, of_places, opened))
        self._stamp = _stamp(self._current)
        self._drop_others()

    def _replace_current(self, extent: IndexExtent, descriptors: Sequence[int]) -> None:
        """Make what was written count. A large index is synced first; a small one is soon built again."""
        path, raw = self.folder / CURRENT, extent.to_bytes()
        if extent.entry_bytes + extent.row_bytes >= SYNC_FROM:
            for descriptor in descriptors:
                sync(descriptor)
            _DISK.replace(path, raw, mode=self._mode)
            return
        temporary = path.with_name(f".{CURRENT}")  # one process writes at a time
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode)
        try:
            _DISK.write_at(descriptor, raw, 0)
        finally:
            os.close(descriptor)
        temporary.replace(path)

    def _write_rows(self, extent: IndexExtent, fresh: list[bytes], of_rows: int) -> tuple[IndexExtent, int]:
        """Write the fresh rows together with runs of their size, at the end or, if most of the file is waste, anew."""
        if not fresh:
            return extent, of_rows
        runs = list(extent.runs)
        merged = [(of_rows, runs.pop()) for _ in range(_alike(runs, len(fresh)))]
        kept, used = (sum(run.end - run.offset for run in some) for some in (runs, extent.runs))
        if extent.row_bytes - kept <= used + WASTE_MIN:
            run = write_run(of_rows, extent.row_bytes, merged, fresh, self.extent.token, extent.next_run)
            return replace(extent, runs=(*runs, run), next_run=extent.next_run + 1), of_rows
        merged += [(of_rows, run) for run in runs]
        anew = replace(extent, rows_file=extent.rows_file + 1)
        descriptor = self._open_file(anew.names[2], create=True)
        try:
            run = write_run(descriptor, 0, merged, fresh, self.extent.token, extent.next_run)
        except BaseException:
            os.close(descriptor)
            raise
        return replace(anew, runs=(run,), next_run=extent.next_run + 1), descriptor

    def _open_files(self, extent: IndexExtent, *, create: bool = False) -> tuple[int, ...]:
        opened: list[int] = []
        try:
            for name in extent.names:  # one by one: those opened before a failure are closed
                opened += [self._open_file(name, create=create)]
        except BaseException:
            for descriptor in opened:
                os.close(descriptor)
            raise
        return tuple(opened)

    def _open_file(self, name: str, *, create: bool) -> int:
        path = self.folder / name
        try:
            return os.open(path, os.O_RDWR | (os.O_CREAT if create else 0) | os.O_CLOEXEC, self._mode)
        except OSError as error:
            if create or not is_read_only(error):
                raise
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _drop_others(self) -> None:
        """Remove what an earlier index was made of; readers that have it open may go on reading."""
        kept = self.extent.names
        for path in self.folder.iterdir():
            if path.suffix in (".entries", ".places", ".rows") and path.name not in kept:
                with contextlib.suppress(OSError):
                    path.unlink()


def is_read_only(error: OSError) -> bool:
    """Tell whether an error means that the folder is read-only."""
    return error.errno in _READ_ONLY


def _rows(salt: bytes, rows: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    return sorted([key_digest(salt, name) + value for name, value in rows])


def _alike(runs: Sequence[IndexRun], rows: int) -> int:
    """Return how many of the newest runs are merged with fresh rows.

    >>> some = [IndexRun(0, 0, 1, rows) for rows in (9000, 900, 900, 900, 3)]
    >>> [_alike(some, rows) for rows in (1, 900, 10_000)]
    [1, 4, 5]
    """
    count = 0
    while True:
        size, found = _size(rows), count
        while found < len(runs) and _size(runs[-1 - found].rows) <= size:
            found += 1
        if found == count or (size and found - count < 3):  # what fits into one page is merged at once
            return count
        rows += sum(run.rows for run in runs[len(runs) - found : len(runs) - count])
        count = found


def _size(rows: int) -> int:
    """Return the class of a run: those of one class differ by less than a factor of four."""
    return ((rows // ROWS_MAX).bit_length() + 1) // 2


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116  each read asks; a Path costs more than the call
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
