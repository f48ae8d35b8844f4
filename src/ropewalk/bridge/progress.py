"""How far each mirror, broker bridge and webhook is, and how its last run ended: one small JSON file each.

Logs and streams decide what is copied next. A file saves looking through both, and shows operators source, target,
position, lag and the last error. Only a webhook has no other record: its file is kept in its folder, and read strictly.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from ropewalk.disk.durable import Disk, read_file
from ropewalk.disk.folder_lock import hold_folder
from ropewalk.errors import Invalid, NotFound, RopewalkError, Usage
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.kernel.ulid import Ulid, is_ulid

FOLDER = "bridges"
FILE_BYTES_MAX = 1 << 20
HEARTBEAT_MS = 15_000  # between two records of a run that finds nothing to do
ERROR_MAX = 300
NAMES = ("kind", "source", "target")
LAYOUTS = {"shiplog": SHIPLOG, "messages": MESSAGES}


class Progress:
    """The record of one bridge. `kind` is mirror, nats, redis or webhook; source and target are logs or addresses."""

    def __init__(
        self, path: Path, disk: Disk, now_ms: Callable[[], int], *, kind: str, source: str, target: str
    ) -> None:
        self._path, self._disk, self._now_ms = path, disk, now_ms
        self._about = {"kind": kind, "source": source, "target": target}

    @classmethod
    def of(cls, git: GitRepository, kind: str, source: str, target: str) -> Self:
        """Return the record of a bridge of a repository."""
        digest = hashlib.blake2b(json.dumps([kind, source, target]).encode(), digest_size=16)
        path = git.store.place.home / FOLDER / digest.hexdigest() / "progress.json"
        return cls(path, git.store.disk, lambda: git.now_ms(), kind=kind, source=source, target=target)

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from running the same bridge."""
        return hold_folder(self._path.parent, 0.0, self._disk)

    def read(self) -> dict[str, Any]:
        """Return what was written; nothing if the file is missing or cannot be read."""
        return _read(self._path)

    def write(self, *, moved: int = 0, lost: int = 0, error: str | None = "", **values: Any) -> None:
        """Record durably some values and the end of a run, with what it moved or found lost, or why it failed.

        An error of None leaves the one before.
        """
        kept, now = self.read(), self._now_ms()
        facts: dict[str, Any] = {"run_ms": now}
        for name, count in (("moved", moved), ("lost", lost)):
            facts[name] = (_of_type(kept, name, int) or 0) + count
        if error is not None:
            facts |= {"error": error[:ERROR_MAX], **({"error_ms": now} if error else {})}
        raw = json.dumps({**kept, **values, **facts, **self._about}, sort_keys=True).encode()
        if self._about["kind"] != "webhook":  # whose folder is gone if it was removed
            self._disk.make_directories(self._path.parent)
        self._disk.replace(self._path, raw + b"\n", mode=0o600)

    def fail(self, error: RopewalkError) -> None:
        """Record why a run failed. A mistake in the names of a bridge that never ran leaves no record."""
        if self._path.exists() or not isinstance(error, (Usage, NotFound, Invalid)):
            self.seen(error.detail)

    def forget(self) -> None:
        """Remove the record, unless the bridge runs. Raises `NotFound` if there is none."""
        if not self._path.exists():
            raise NotFound(
                f"there is no bridge from {self._about['source']} to {self._about['target']}",
                advice="`ropewalk bridge ls` lists them.",
            )
        with self.held():
            self._disk.unlink(self._path)
        self._path.parent.rmdir()

    def seen(self, error: str | None = "") -> None:
        """Record a run that moved nothing, if that is news or was not recorded for a while. A full disk is no error."""
        kept = self.read()
        last = _of_type(kept, "run_ms", int)
        quiet = last is not None and 0 <= self._now_ms() - last < HEARTBEAT_MS
        if not quiet or error not in (None, _of_type(kept, "error", str)):
            with contextlib.suppress(OSError):
                self.write(error=error)


def list_progress(git: GitRepository) -> Iterator[dict[str, Any]]:
    """Yield one row for each bridge, in the order of kind, source and target. Unreadable files are left out."""
    home = git.store.place.home
    hooks = [each.with_name("state.json") for each in home.glob("webhooks/*/hook.json")]
    paths = [*home.glob(f"{FOLDER}/*/progress.json"), *hooks]
    found = [each for each in map(_read, paths) if all(isinstance(each.get(name), str) for name in NAMES)]
    for said in sorted(found, key=lambda each: [each[name] for name in NAMES]):
        yield {
            **{name: said[name] for name in NAMES},
            "position": _of_type(said, "position", str) or _of_type(said, "ulid", str) or None,
            "lag": _lag(git, said),
            "moved": _of_type(said, "moved", int) or 0,
            "lost": _of_type(said, "lost", int) or 0,
            "run_ms": _of_type(said, "run_ms", int),
            "error": _of_type(said, "error", str) or None,
            "error_ms": _of_type(said, "error_ms", int),
        }


def _lag(git: GitRepository, said: Mapping[str, Any]) -> int | None:
    """Return how many entries of a log of this machine wait for a bridge; None if that is not known."""
    with contextlib.suppress(RopewalkError, OSError):  # one log that cannot be read hides no other
        return _waiting(git, said)
    return None


def _waiting(git: GitRepository, said: Mapping[str, Any]) -> int | None:
    kind, _, name = said["source"].partition("/")
    done = _of_type(said, "height", int)
    if kind == "ledger":
        from ropewalk.ledger.channel.channel import Channel  # the ledger is loaded where there is one

        with Channel(git.store.place.home, name) as channel:
            return None if done is None else max(0, channel.head().envelopes - done)
    if kind == "file:":
        from ropewalk.gossip.peer.topics import open_topic

        home, topic = Path(name[1:], "ropewalk"), said["target"].removeprefix("gossip/")
        with open_topic(home, topic, create=False) as source:
            return None if done is None else max(0, len(source) - done)
    if kind not in LAYOUTS or name not in git.topics(LAYOUTS[kind]):
        return None
    line, ulid = git.lines.line(LAYOUTS[kind], name), _of_type(said, "ulid", str)
    if not ulid:
        return line.count
    slot = line.find(Ulid(ulid)) if is_ulid(ulid) else None
    return None if slot is None else line.count - slot.height - 1


def _of_type(said: Mapping[str, Any], name: str, kind: type) -> Any:
    value = said.get(name)
    return value if type(value) is kind else None


def _read(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        said = json.loads(read_file(path, FILE_BYTES_MAX))
        if isinstance(said, dict):
            return said
    return {}
