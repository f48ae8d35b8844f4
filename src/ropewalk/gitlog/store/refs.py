"""Refs of a git repository, moved by compare-and-swap with git's own `<ref>.lock`.

Two locks, for two kinds of writers. Ropewalk processes queue on a kernel lock (`turn`), which ends
with its holder. Git and other programs respect `<ref>.lock`; ours is a hard link to a *claim* file, so the holder of
the turn can tell a lock that a killed ropewalk process left behind (same inode as the claim: remove it) from a lock
that belongs to another program (wait, and break it only when it is older than any living writer would need).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ropewalk.disk.durable import Disk, file_errors, read_file, unavailable
from ropewalk.disk.folder_lock import hold_file
from ropewalk.errors import BrokenLink, Conflict, HeadMoved, Invalid, InvalidName, Unavailable

# git holds a ref lock for milliseconds; a minute of silence means its owner is gone
FOREIGN_LOCK_AGE_MAX_S = 60.0
FOREIGN_LOCK_WAIT_S = 10.0
ZERO = "0" * 40
REF_BYTES_MAX = 4_096  # a ref has 41 bytes; what is longer is none
OBJECT_ID = re.compile(rb"[0-9a-f]{40}")
LOGGED_BY_DEFAULT = ("refs/heads/", "refs/remotes/", "refs/notes/")


class GitRefs:
    """The refs of one repository (git's files backend)."""

    def __init__(
        self,
        git_dir: Path,
        locks: Path,
        disk: Disk,
        *,
        log_updates: Callable[[], str] = lambda: "false",
        signature: Callable[[], str] = lambda: "ropewalk <ropewalk@localhost> 0 +0000",
        lock_wait_s: float = FOREIGN_LOCK_WAIT_S,
    ) -> None:
        self._git_dir = git_dir
        self._locks = locks
        self._disk = disk
        self._log_updates = log_updates
        self._signature = signature
        self._lock_wait_s = lock_wait_s
        self._packed: tuple[tuple[int, int, int] | None, dict[str, str]] = (None, {})
        self._turns: dict[str, threading.RLock] = {}
        self._depths: dict[str, int] = {}
        self._guard = threading.Lock()

    def read(self, name: str) -> str | None:
        """Return what a ref points to, None if there is no such ref."""
        # Loose first, packed second: packing writes the packed file before it removes the loose one.
        loose = self._read_loose(name)
        return loose if loose is not None else self._read_packed().get(name)

    def under(self, prefix: str) -> dict[str, str]:
        """Return every ref below a prefix that ends with `/`, by name, in order of name."""
        found = ((name, self.read(name)) for name in self.names(prefix))
        return {name: oid for name, oid in found if oid is not None}

    def names(self, prefix: str) -> list[str]:
        """Return the names of the refs below a prefix, also of those whose value cannot be read."""
        found = {name for name in self._read_packed() if name.startswith(prefix)}
        for folder, _, files in os.walk(self._git_dir / prefix):
            names = ((Path(folder) / file).relative_to(self._git_dir).as_posix() for file in files)
            found.update(name for name in names if not name.endswith(".lock"))
        return sorted(found)

    @contextlib.contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """Wait for one's turn among the ropewalk writers of this ref; re-entrant within a thread."""
        with self._guard:
            mutex = self._turns.setdefault(name, threading.RLock())
        with mutex:
            if self._depths.get(name, 0):
                self._depths[name] += 1
                try:
                    yield
                finally:
                    self._depths[name] -= 1
                return
            with contextlib.ExitStack() as held:
                with file_errors("locking the repository"):
                    self._locks.mkdir(parents=True, exist_ok=True)
                    held.enter_context(hold_file(self._lock_path(name)))
                self._depths[name] = 1
                try:
                    yield
                finally:
                    self._depths[name] = 0

    def move(self, name: str, expected: str | None, new: str) -> None:
        """Move a ref from `expected` to `new`; `expected=None` means the ref must not exist yet.

        Raises `HeadMoved` if the ref has another value. When this returns, the new value is on disk.
        """
        _check_ref_name(name)
        path, moved = self._git_dir / name, False
        try:
            with self._locked(name, new.encode() + b"\n") as held:
                self._refuse_directory_conflict(name, path)
                self._check_value(name, expected)
                self._write_reflog(name, expected, new)
                self._rename_over(path.with_name(path.name + ".lock"), path, name)
                moved = True
                held.pop_all()  # the lock is the ref now; what has its name next belongs to another program
                self._disk.fsync_directory(path.parent)
        except OSError as error:
            refusal = unavailable(error, f"moving {name}")
            if moved:
                refusal.advice_now = (
                    "The ref moved but may not survive a power cut. Append again with the same ULID: "
                    "it is recorded once in any case."
                )
            raise refusal from error

    def delete(self, name: str, expected: str) -> None:
        """Remove a ref that is at `expected`, loose and packed."""
        _check_ref_name(name)
        path = self._git_dir / name
        with file_errors(f"removing {name}"), self._locked(name):
            self._check_value(name, expected)
            with self._locked("packed-refs", breaking=False):
                # Packed first: a crash in between leaves the ref, not an old value of it. The lock is held
                # to the end, or `git pack-refs` could take the loose value over just before it goes.
                self._unpack(name)
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(path)
            self._disk.fsync_directory(path.parent)

    @contextlib.contextmanager
    def _locked(
        self, name: str, raw: bytes = b"", *, breaking: bool = True
    ) -> Iterator[contextlib.ExitStack]:
        """Hold the turn and git's lock of a file, which has `raw` in it; the stack removes that lock."""
        lock = self._git_dir / f"{name}.lock"
        claim = self._lock_path(name).with_suffix(".claim")
        with self.turn(name):
            self._clear_own_leftovers(claim, lock)
            try:
                self._disk.write_new(claim, raw, mode=0o666)
                self._take(lock, claim, name, breaking=breaking)
                with contextlib.ExitStack() as held:
                    held.callback(self._drop, lock)
                    yield held
            finally:
                self._drop(claim)

    def _drop(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            self._disk.unlink(path)

    def _check_value(self, name: str, expected: str | None) -> None:
        current = self.read(name)
        if current != expected:
            raise HeadMoved(
                f"{name} is at {_short(current)}, not at {_short(expected)}",
                ref=name,
                expected=expected,
                got=current,
                instance=f"urn:commit:{current}" if current else None,
            )

    def _unpack(self, name: str) -> None:
        """Take a ref out of `packed-refs`, if it is there; its lock is held."""
        packed = self._git_dir / "packed-refs"
        try:
            lines = read_file(packed).splitlines(keepends=True)
        except FileNotFoundError:
            return
        kept: list[bytes] = []
        dropping = False
        for line in lines:
            # A line that starts with ^ belongs to the ref before it.
            dropping = dropping if line.startswith(b"^") else line.split(b" ", 1)[-1].strip() == name.encode()
            if not dropping:
                kept.append(line)
        if len(kept) == len(lines):
            return
        temporary = self._lock_path("packed-refs").with_suffix(".new")
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(temporary)  # of a process that died here
        self._disk.write_new(temporary, b"".join(kept), mode=0o666)
        self._disk.rename(temporary, packed)
        self._disk.fsync_directory(packed.parent)

    def _take(self, lock: Path, claim: Path, name: str, *, breaking: bool = True) -> None:
        """Make the lock ours; `breaking` also ends one that is older than any living owner would let it grow."""
        deadline = time.monotonic() + self._lock_wait_s
        pause_s = 0.001
        while True:
            try:
                self._disk.make_directories(lock.parent)
                self._link(claim, lock)
                return
            except FileNotFoundError:
                pass  # git removes empty ref directories; make it again
            except (FileExistsError, NotADirectoryError) as error:
                self._refuse_directory_conflict(name, self._git_dir / name)
                if not lock.exists():
                    if isinstance(error, NotADirectoryError):
                        raise unavailable(error, f"locking {name}") from error
                elif breaking:
                    self._break_if_abandoned(lock)
            except OSError as error:
                raise unavailable(error, f"locking {name}") from error
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{name} is locked by another program ({lock})",
                    ref=name,
                    lock=str(lock),
                    advice=f"If no git process is at work, wait until the lock is {FOREIGN_LOCK_AGE_MAX_S:.0f} "
                    "seconds old (ropewalk then removes it) or remove that file."
                    if breaking
                    else "Wait for the git process that holds it; if none is at work, remove that file.",
                )
            time.sleep(pause_s * (0.5 + random.random()))  # noqa: S311 - jitter, not a secret
            pause_s = min(pause_s * 2, 0.1)

    def _link(self, claim: Path, lock: Path) -> None:
        """Make the lock a second name of the claim; on file systems without hard links, a separate file.

        The latter cannot be distinguished from another program's lock once its maker is dead: it is broken by age.
        """
        try:
            self._disk.link(claim, lock)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
                raise
            self._disk.write_new(lock, claim.read_bytes(), mode=0o666)

    def break_abandoned(self, prefix: str) -> None:
        """Remove the locks below a prefix that a git process left when it was ended or the power failed."""
        with file_errors("removing an abandoned lock"):
            for lock in (self._git_dir / prefix).rglob("*.lock"):
                self._break_if_abandoned(lock)

    def _break_if_abandoned(self, lock: Path) -> None:
        """Move a foreign lock out of the way if it is older than any living owner would let it grow."""
        try:
            seen = lock.stat()
        except FileNotFoundError:
            return
        if time.time() - seen.st_mtime < FOREIGN_LOCK_AGE_MAX_S:
            return
        aside = self._locks / f"abandoned-{os.getpid()}-{threading.get_ident()}"
        with contextlib.suppress(FileNotFoundError):
            self._disk.rename(lock, aside)
            if aside.stat().st_ino != seen.st_ino:
                # Another process broke it first and this one is alive: give it back.
                with contextlib.suppress(FileExistsError):
                    self._disk.link(aside, lock)
            self._disk.unlink(aside)

    def _clear_own_leftovers(self, claim: Path, lock: Path) -> None:
        """Remove, with the turn held, a lock that is the claim's own inode: a process that died left it."""
        try:
            ours = claim.stat()
        except FileNotFoundError:
            return
        with contextlib.suppress(OSError):
            if os.path.samestat(ours, lock.stat()):
                self._disk.unlink(lock)
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(claim)

    def _rename_over(self, lock: Path, path: Path, name: str) -> None:
        try:
            self._disk.rename(lock, path)
        except OSError as error:
            if error.errno not in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST):
                raise
            _remove_empty_directories(path)
            if path.is_dir():
                raise _conflict(name, f"{name}/…") from error
            self._disk.rename(lock, path)

    def _write_reflog(self, name: str, old: str | None, new: str) -> None:
        path = self._git_dir / "logs" / name
        said = self._log_updates()
        wanted = said == "always" or (said == "true" and name.startswith(LOGGED_BY_DEFAULT))
        if not wanted and not path.is_file():
            return
        _remove_empty_directories(path)
        self._disk.make_directories(path.parent)
        line = f"{old or ZERO} {new} {self._signature()}\tropewalk\n"
        self._disk.append(path, line.encode())

    def _refuse_directory_conflict(self, name: str, path: Path) -> None:
        """Refuse a ref that would be both a file and a folder of refs, loose or packed."""
        packed = self._read_packed()
        parts = name.split("/")
        for depth in range(2, len(parts)):
            above = "/".join(parts[:depth])
            if above in packed or (self._git_dir / above).is_file():
                raise _conflict(name, above)
        if path.is_dir() and any(files for _, _, files in os.walk(path)):
            raise _conflict(name, f"{name}/…")
        below = next((other for other in packed if other.startswith(name + "/")), None)
        if below is not None:
            raise _conflict(name, below)

    def _read_loose(self, name: str) -> str | None:
        path = self._git_dir / name
        try:
            raw = read_file(path, REF_BYTES_MAX)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        except OSError as error:
            raise unavailable(error, f"reading {name}") from error
        if OBJECT_ID.match(raw) and raw[40:].strip() == b"":
            return raw[:40].decode()
        if raw.startswith(b"ref:"):
            raise Invalid(
                f"{name} is a symbolic ref; a log's head is a plain ref", ref=name, advice=_mend(path, name)
            )
        raise BrokenLink(
            f"{name} holds no object id ({len(raw)} bytes, starts {raw[:8]!r})",
            ref=name,
            advice=f"A crash of another program tore it. {_mend(path, name)}",
        )

    def _read_packed(self) -> dict[str, str]:
        path = self._git_dir / "packed-refs"
        try:
            stat = path.stat()
            signature = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if self._packed[0] == signature:
                return self._packed[1]
            text = read_file(path).decode("utf-8", "surrogateescape")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise unavailable(error, "reading packed-refs") from error
        refs: dict[str, str] = {}
        for line in text.split("\n"):  # `splitlines` also breaks where git does not, as at U+2028
            if line[:1] in ("#", "^", ""):
                continue
            oid, _, name = line.partition(" ")
            if not OBJECT_ID.fullmatch(oid.encode("utf-8", "replace")) or not name:
                raise BrokenLink(
                    f"packed-refs holds a line that is no ref: {line[:60]!r}",
                    ref="packed-refs",
                    advice=f"Take that line out of {path}, or put back a good one; until then no packed ref is read.",
                )
            refs[name] = oid
        self._packed = (signature, refs)
        return refs

    def _lock_path(self, name: str) -> Path:
        return self._locks / hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()


def _check_ref_name(name: str) -> None:
    """Refuse names that are no paths of refs; the grammar of topics is the engine's business."""
    parts = name.split("/")
    bad = any(
        part in ("", ".", "..") or part.startswith(".") or part.endswith((".lock", ".")) or ".." in part
        for part in parts
    )
    if parts[0] != "refs" or len(parts) < 3 or bad or re.search(r"[\x00-\x20\x7f~^:?*\[\\]|@\{", name):
        raise InvalidName(f"{name!r} is no ref name git accepts", name=name)


def _remove_empty_directories(path: Path) -> None:
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()


def _mend(path: Path, name: str) -> str:
    """Say what to do about a ref that holds something else: `git update-ref` alone refuses, as it reads it first."""
    place = shlex.quote(str(path.parents[name.count("/")]))  # the reader may be in another folder
    command = f"rm {shlex.quote(str(path))} && git --git-dir {place} update-ref {shlex.quote(name)} COMMIT"
    return (
        f"Put it back with `{command}`, where COMMIT is the head seen last (`ropewalk heads ls --json`) or the one of "
        "another clone."
    )


def _conflict(name: str, other: str) -> Conflict:
    return Conflict(
        f"{name} cannot exist together with {other}: git keeps one as a file and the other as a folder",
        ref=name,
        other=other,
        advice="Choose a name that is not the beginning of the other one.",
    )


def _short(oid: str | None) -> str:
    return oid[:7] if oid else "nothing"
