"""Ring files that two processes map, and a Unix socket as doorbell, so that no side polls.

A file on tmpfs is plain memory; on a disk the system writes it back at times, which blocks no process. It outlives the
processes that map it, so its entries are there after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from ropewalk.errors import Invalid, NotFound, Unavailable, Usage
from ropewalk.ledger.mailbox.ring import Ring, ring_bytes
from ropewalk.net.admission import ConnectionLimits, ConnectionSlot
from ropewalk.net.refusals import reason
from ropewalk.net.tcp import CHUNK_BYTES, ConnectionTasks, TcpListener, TcpPipe

PATH_BYTES_MAX = 100  # of a socket's address; systems differ between 104 and 108


class MappedRing:
    """A ring in a file."""

    def __init__(self, path: Path, mapped: mmap.mmap, ring: Ring) -> None:
        self.path, self.ring = path, ring
        self._mapped = mapped

    def close(self) -> None:
        """Unmap it; closing twice is no error."""
        if not self._mapped.closed:
            self.ring.release()
            self._mapped.close()

    def remove(self) -> None:
        """Unmap it and remove its file; other processes that have it mapped keep it."""
        self.close()
        self.path.unlink(missing_ok=True)


def make_ring(path: Path, slots: int, slot_bytes: int, name: bytes) -> MappedRing:
    """Make a file with an empty ring in it. It has its name once it is whole."""
    size = ring_bytes(slots, slot_bytes)
    making = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _reserve(descriptor, size)
            mapped = mmap.mmap(descriptor, size)
        except BaseException:
            making.unlink()
            raise
        finally:
            os.close(descriptor)
        ring = Ring.format(memoryview(mapped), slots, slot_bytes, name)
        making.rename(path)
    except OSError as error:
        raise Unavailable(f"{path}: no room for a mailbox of {size} bytes: {reason(error)}") from error
    return MappedRing(path, mapped, ring)


def map_ring(path: Path, *, write: bool = True) -> MappedRing:
    """Map a ring that is there; Invalid where the file holds none."""
    try:
        with path.open("r+b" if write else "rb") as file:
            size = os.fstat(file.fileno()).st_size
            access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
            mapped = mmap.mmap(file.fileno(), size, access=access) if size else None
    except FileNotFoundError as error:
        raise NotFound(f"no mailbox at {path}", name=str(path)) from error
    except OSError as error:
        raise Unavailable(f"{path}: {reason(error)}") from error
    if mapped is None:
        raise Invalid(f"{path} is empty, and no ring")
    view = memoryview(mapped)
    try:
        return MappedRing(path, mapped, Ring(view))
    except BaseException:
        view.release()
        raise


def _reserve(descriptor: int, size: int) -> None:
    """Allocate every page now: a page that is missing later would kill the process that touches it."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    for start in range(0, size, 1 << 20):
        os.pwrite(descriptor, bytes(min(1 << 20, size - start)), start)


class BellPipe(TcpPipe):
    """A connection on this machine: as one of TCP, but for its address."""

    def __init__(
        self,
        path: Path,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        slot: ConnectionSlot | None = None,
    ) -> None:
        super().__init__(reader, writer, slot)
        self.name = f"mailbox:{path.parent}"


class BellListening(TcpListener):
    """A bell that can be rung."""

    def __init__(self, server: asyncio.Server, accepted: ConnectionTasks) -> None:
        self._server, self._accepted, self.port = server, accepted, 0


async def serve_bell(
    accept: Callable[[TcpPipe], Awaitable[None]],
    path: Path,
    *,
    limits: ConnectionLimits,
    refused: Callable[[str, str], None] = lambda _who, _why: None,
) -> BellListening:
    """Listen at a path, replacing a listener that has ended; see `serve_tcp`."""
    accepted = ConnectionTasks(accept, limits, refused, pipe_of=lambda *given: BellPipe(path, *given))
    try:
        path.unlink(missing_ok=True)
        with _reachable(path) as name:
            server = await asyncio.get_running_loop().create_unix_server(accepted.protocol, name)
        path.chmod(0o600)
    except OSError as error:
        raise Unavailable(f"cannot listen at {path}: {reason(error)}") from error
    accepted.open()
    return BellListening(server, accepted)


async def connect_bell(path: Path, *, timeout_s: float) -> BellPipe:
    """Connect; raise Unavailable if no process listens there."""
    try:
        async with asyncio.timeout(timeout_s):
            with _reachable(path) as name:
                reader, writer = await asyncio.open_unix_connection(name, limit=CHUNK_BYTES)
    except TimeoutError as error:
        raise Unavailable(f"mailbox:{path.parent} does not answer within {timeout_s:g} s") from error
    except OSError as error:
        raise Unavailable(
            f"mailbox:{path.parent}: {reason(error)}",
            advice="Is `ropewalk ledger mailbox serve` running there?",
        ) from error
    return BellPipe(path, reader, writer)


@contextlib.contextmanager
def _reachable(path: Path) -> Iterator[Path]:
    """Return a name for the path that is short enough for a socket: through its folder, held open, if need be."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield path
        return
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        through = Path(f"/proc/self/fd/{descriptor}")
        if not through.is_dir():
            raise Usage(f"{path} is too long a name for a socket", advice=f"At most {PATH_BYTES_MAX} bytes.")
        yield through / path.name
    finally:
        os.close(descriptor)
