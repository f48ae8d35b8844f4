"""Webhooks of a repository: one folder each, with its secret, its cursor, what it tries again and its dead letters."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ropewalk.bridge.progress import Progress
from ropewalk.bridge.webhooks.forms import check_secret
from ropewalk.disk.durable import Disk, read_file
from ropewalk.disk.folder_lock import hold_folder
from ropewalk.errors import Conflict, Damaged, NotFound, Usage

HOOK_ID = re.compile(r"[0-9a-f]{16}")
FILE_BYTES_MAX = 1 << 20
URL_CHARACTERS_MAX = 2000
HOOKS_MAX = 100
RETRIES_MAX = 256  # events of one hook that wait for another attempt; then new ones wait in the log
LOCK_WAIT_S = 30.0
LOG_BYTES_MAX = 1 << 20  # of the delivery log; then it starts again, with the old one beside it


@dataclass(frozen=True, slots=True)
class Webhook:
    """One endpoint of one log. `previous` is the secret before the last rotation; both sign for a while."""

    id: str
    url: str
    log: str
    secret: str  # hex
    form: str = "envelope"
    ordered: bool = False
    allow_private: bool = False
    previous: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return what may be shown of it: everything but the secrets."""
        return {"id": self.id, "url": self.url, "log": self.log, "format": self.form, "ordered": self.ordered}


@dataclass(frozen=True, slots=True)
class Retry:
    """An event that failed and is tried again."""

    ulid: str
    failed: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class HookState:
    """How far a hook has got: every event up to `ulid` was delivered, is in `retries`, or is a dead letter."""

    ulid: str = ""
    retries: tuple[Retry, ...] = field(default=())


class Webhooks:
    """All webhooks of a repository."""

    def __init__(self, home: Path, disk: Disk, now_ms: Callable[[], int]) -> None:
        self._folder, self._disk, self._now_ms = home / "webhooks", disk, now_ms

    def add(self, hook: Webhook, start: str) -> Webhook:
        """Keep a new hook; it delivers what comes after the ULID `start`."""
        check_hook(hook)
        if len(self.ids()) >= HOOKS_MAX:
            raise Conflict(f"a repository has at most {HOOKS_MAX} webhooks", advice="Remove one first.")
        self._disk.make_directories(self._folder / hook.id / "dead")
        (self._folder / hook.id).chmod(0o700)
        self.save_state(hook, HookState(start))
        self._write(self._folder / hook.id / "hook.json", asdict(hook))
        return hook

    def ids(self) -> list[str]:
        """Return the ids of the hooks in order."""
        found = sorted(self._folder.glob("*/hook.json")) if self._folder.is_dir() else []
        return [path.parent.name for path in found]

    def all(self) -> list[Webhook]:
        """Return the hooks, ordered by id."""
        hooks = []
        for each in self.ids():
            with contextlib.suppress(NotFound):  # removed meanwhile
                hooks.append(self.get(each))
        return hooks

    def get(self, hook: str) -> Webhook:
        """Return one hook. Raises `NotFound`."""
        path = self._folder / hook / "hook.json"
        if not HOOK_ID.fullmatch(hook) or not path.is_file():
            raise NotFound(
                f"there is no webhook {hook[:40]!r}", advice="ropewalk bridge webhook ls lists them."
            )
        try:
            return Webhook(**self._read(path))
        except TypeError as error:
            raise Damaged(f"{path.name} of webhook {hook} has unknown members") from error

    def remove(self, hook: str) -> None:
        """Forget a hook with its dead letters."""
        self.get(hook)
        self._disk.unlink(self._folder / hook / "hook.json")
        shutil.rmtree(self._folder / hook, ignore_errors=True)  # a delivery may end in it just now

    def rotate(self, hook: str, secret: bytes) -> Webhook:
        """Sign with a new secret; the one before signs as well until the next rotation."""
        old = self.get(hook)
        new = replace(old, secret=check_secret(secret).hex(), previous=old.secret)
        self._write(self._folder / hook / "hook.json", asdict(new))
        return new

    def folder(self, hook: str) -> Path:
        """Return the folder of a hook."""
        return self._folder / hook

    def state(self, hook: str) -> HookState:
        """Return how far a hook has got."""
        said = self._read(self._folder / hook / "state.json")
        return HookState(said["ulid"], tuple(Retry(**each) for each in said["retries"]))

    def save_state(
        self, hook: Webhook, state: HookState, *, moved: int = 0, error: str | None = None
    ) -> None:
        """Remember durably how far a hook has got, and how its last attempt ended."""
        self._progress(hook).write(moved=moved, error=error, **asdict(state))

    def seen(self, hook: str, error: str | None = None) -> None:
        """Record a round that delivered nothing, or could not. A state that cannot be read is left as it is."""
        found = self.get(hook)
        self.state(hook)
        self._progress(found).seen(error)

    def _progress(self, hook: Webhook) -> Progress:
        path = self._folder / hook.id / "state.json"
        ends = {"source": hook.log, "target": origin_of(hook.url)}  # a path is often a secret itself
        return Progress(path, self._disk, self._now_ms, kind="webhook", **ends)

    def bury(self, hook: str, ulid: str, facts: Mapping[str, Any]) -> None:
        """Keep a dead letter."""
        self._write(self._folder / hook / "dead" / f"{ulid}.json", {"ulid": ulid, **facts})

    def dead(self, hook: str) -> list[dict[str, Any]]:
        """Return the dead letters of a hook, oldest first."""
        self.get(hook)
        return [self._read(path) for path in sorted((self._folder / hook / "dead").glob("*.json"))]

    def raise_dead(self, hook: str, ulids: list[str]) -> list[str]:
        """Put dead letters back into the retries, those named or all, as far as there is room; return their ULIDs."""
        with hold_folder(self._folder / self.get(hook).id, LOCK_WAIT_S, self._disk):
            return self._raise(hook, ulids)

    def _raise(self, hook: str, ulids: list[str]) -> list[str]:
        there, ulids = [each["ulid"] for each in self.dead(hook)], list(dict.fromkeys(ulids))
        missing = [ulid for ulid in ulids if ulid not in there]
        if missing:
            raise NotFound(f"webhook {hook} has no dead letter {missing[0][:40]!r}")
        state = self.state(hook)
        chosen = (ulids or there)[: max(0, RETRIES_MAX - len(state.retries))]
        retries = (*state.retries, *(Retry(each, 0, 0) for each in chosen))
        self.save_state(self.get(hook), replace(state, retries=retries))
        for ulid in chosen:
            self._disk.unlink(self._folder / hook / "dead" / f"{ulid}.json")
        return chosen

    def record(self, hook: str, facts: Mapping[str, Any]) -> None:
        """Add a line to the delivery log of a hook."""
        path = self._folder / hook / "deliveries.jsonl"
        if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
            path.replace(path.with_suffix(".1.jsonl"))
        with path.open("a", encoding="utf-8") as log:
            log.write(json.dumps(dict(facts), sort_keys=True) + "\n")

    def deliveries(self, hook: str, limit: int) -> dict[str, Any]:
        """Return the newest attempts of a hook, newest first, what waits for another attempt, and the dead letters."""
        self.get(hook)
        lines: list[bytes] = []
        for name in ("deliveries.1.jsonl", "deliveries.jsonl"):
            with contextlib.suppress(FileNotFoundError):
                lines += read_file(self._folder / hook / name).splitlines()
        attempts: list[Any] = []
        for line in reversed(lines):
            with contextlib.suppress(
                ValueError, RecursionError
            ):  # the last line of a killed process may be cut
                attempts.append(json.loads(line))
            if len(attempts) == limit:
                break
        waiting = [asdict(each) for each in self.state(hook).retries]
        return {"deliveries": attempts, "retries": waiting, "dead": self.dead(hook)}

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            value = json.loads(read_file(path, FILE_BYTES_MAX))
        except (OSError, ValueError, RecursionError) as error:
            raise Damaged(f"{path.name} of webhook {path.parent.name} cannot be read: {error}") from error
        if not isinstance(value, dict):
            raise Damaged(f"{path.name} of webhook {path.parent.name} must be a JSON object")
        return value

    def _write(self, path: Path, value: Mapping[str, Any]) -> None:
        self._disk.replace(path, json.dumps(dict(value), sort_keys=True).encode() + b"\n", mode=0o600)


def check_hook(hook: Webhook) -> None:
    """Raise `Usage` unless address, secret and form are ones that can be used."""
    check_url(hook.url)
    check_secret(bytes.fromhex(hook.secret))
    if hook.form not in ("envelope", "cloudevents"):
        raise Usage(f"format must be envelope or cloudevents, got {hook.form[:40]!r}")


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def check_url(url: str) -> str:
    """Return the URL of an endpoint. Raises `Usage` unless it is http or https with a host and without credentials."""
    try:
        found = urlsplit(url)
        port = found.port
    except ValueError as error:
        raise Usage(f"URL cannot be parsed: {error}") from error
    good = found.scheme in ("http", "https") and found.hostname and "@" not in found.netloc and port != 0
    if not good or len(url) > URL_CHARACTERS_MAX or not (url.isascii() and url.isprintable()) or " " in url:
        raise Usage(
            f"URL must be http:// or https:// with a host, in ASCII and without credentials, got {url[:120]!r}",
            advice="Put a secret into the hook's secret file, not into its URL. Write other characters as %XX.",
        )
    return url
