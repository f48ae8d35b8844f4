"""A witness in its folder: the largest head it has seen of each log, and evidence of forks.

witness.json          {"version":1,"name","key","vkey"}: its name, and the user's key
log-<hash>.json       one per log, by its origin: its keys, the largest head, when it was cosigned
fork-<hash>.json      two heads of a log that do not agree
lock                  held by the process that changes these files

The new head is stored before it is signed. If killed in between, a witness has signed
less than it has stored, and needs only the same checkpoint again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.disk.durable import Disk
from ropewalk.disk.state_folder import StateFolder
from ropewalk.errors import Conflict, Damaged, Invalid, InvalidKey, NotFound, RopewalkError
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import sha256
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.note.key import SignatureType, Signer, Verifier
from ropewalk.kernel.note.ml_dsa import MlDsaSigningKey
from ropewalk.kernel.note.note import claimed_head, cosign_head
from ropewalk.kernel.terminal_text import printable
from ropewalk.ledger.transparency.head_fork import HeadFork, parse_head_fork
from ropewalk.ledger.transparency.heads import tile_tree
from ropewalk.ledger.transparency.witness import (
    WatchedLog,
    WitnessRequest,
    accept_head,
    parse_watched,
    watch_log,
)

WAIT_S = 5.0
SETTINGS = "witness.json"


@dataclass(frozen=True, slots=True)
class CosignResult:
    """A head with the witness's signature, and the previous one."""

    note: bytes
    log: WatchedLog
    before: int

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `witness cosign` prints."""
        head = self.log.head
        return {
            "origin": head.origin,
            "size": head.size,
            "root": head.root.hex(),
            "before": self.before,
            "time_s": self.log.time_s,
        }


class Witness:
    """One witness, with the logs it watches. Clock and key are arguments."""

    def __init__(self, state: StateFolder, vkey: Verifier, key: str, wait_s: float = WAIT_S) -> None:
        self.state = state
        self.vkey = vkey
        self.key = key
        self._wait_s = wait_s

    def add(self, key: Verifier, origin: str | None = None) -> WatchedLog:
        """Watch a log, or accept another key of a watched log."""
        name = _file_of(key.name if origin is None else origin)
        with self.state.locked(self._wait_s):
            log = watch_log(self._read(name), key, origin)
            self.state.replace(name, log.to_bytes())
        return log

    def cosign(
        self,
        request: WitnessRequest,
        secret: SigningKey | MlDsaSigningKey,
        now_s: int | Callable[[], int],
        tiles: Path | None = None,
    ) -> CosignResult:
        """Check a head against the largest one seen, store it, and only then sign it.

        The clock is read under the lock: an earlier reading might be behind the previous signature.

        `NotFound` if the log is not watched, `Conflict` if the head is smaller, `Forked` if it disagrees with the
        known one, `ProofRefused` if no proof shows that it agrees; the last two store both heads.
        """
        signer = Signer(self.vkey.name, secret, SignatureType.of_witness(secret.alg))
        if signer.verifier != self.vkey:
            raise InvalidKey(f'the key must be that of the witness "{self.vkey.name}"', name=self.vkey.name)
        head, _ = claimed_head(request.note)
        name = _file_of(head.origin)
        with self.state.locked(self._wait_s):
            seen = self._read(name)
            if seen is None:
                raise NotFound(
                    f'the log "{printable(head.origin, 200)}" is not watched here',
                    advice="Watch it with `ropewalk witness add DIR VKEY`.",
                )
            time_s = now_s if isinstance(now_s, int) else now_s()
            size = max(head.size, seen.head.size)
            tree: merkle.Nodes | None = tile_tree(tiles, size) if tiles is not None else None
            taken = accept_head(seen, request, time_s, tree)
            if isinstance(taken, HeadFork):
                raw = taken.to_bytes()
                self.state.replace(f"fork-{sha256(raw).hex()[:32]}.json", raw)
                raise taken.error()
            self.state.replace(name, taken.to_bytes())
            # Inside the lock: a later head must not be stored before this one is signed.
            return CosignResult(cosign_head(request.note, signer, time_s), taken, seen.head.size)

    def log(self, origin: str) -> WatchedLog | None:
        """Return the watched log of that origin; None if it is not watched."""
        return self._read(_file_of(origin))

    def logs(self) -> list[WatchedLog]:
        """Return every watched log, by origin."""
        found = [self._read(name) for name in self.state.names("log-")]
        return sorted((log for log in found if log is not None), key=lambda log: log.origin)

    def forks(self) -> list[tuple[Path, HeadFork]]:
        """Return the stored evidence of forks."""
        found = []
        for name in self.state.names("fork-"):
            path = self.state.folder / name
            try:
                found.append((path, parse_head_fork(self.state.read(name))))
            except Invalid as error:
                raise Damaged(f"{path} is not what was written: {error.detail}", reason="state") from error
        return found

    def _read(self, name: str) -> WatchedLog | None:
        try:
            raw = self.state.read(name)
        except NotFound:
            return None
        try:
            log = parse_watched(raw)
        except Damaged as error:
            path = self.state.folder / name
            raise Damaged(f"{path}: {error.detail}", advice=error.advice_now, **error.fields) from error
        if _file_of(log.origin) != name:
            raise Damaged(f"{self.state.folder / name} is of another log, {log.origin}", reason="state")
        return log


def make_witness(
    folder: Path, name: str, key: str, secret: SigningKey | MlDsaSigningKey, *, disk: Disk | None = None
) -> Witness:
    """Create a witness in a new or empty folder. `key` is the user's name of the secret."""
    vkey = Signer(name, secret, SignatureType.of_witness(secret.alg)).verifier
    state = StateFolder(folder, disk)
    state.make()
    value: dict[str, Any] = {"version": 1, "name": name, "key": key, "vkey": vkey.to_text()}
    with state.locked(WAIT_S):
        if state.names(""):
            raise Conflict(
                f"{folder} is not empty",
                path=str(folder),
                advice="A witness keeps its folder; choose a new one, or use the existing witness.",
            )
        state.replace(SETTINGS, jcs.encode(value))
    return Witness(state, vkey, key)


def open_witness(folder: Path, *, wait_s: float = WAIT_S, disk: Disk | None = None) -> Witness:
    """Open the witness in a folder. `wait_s` is how long to wait for another process."""
    state = StateFolder(folder, disk)
    try:
        value: Any = jcs.parse(state.read(SETTINGS))
        vkey, key = Verifier.from_text(value["vkey"]), value["key"]
        if (
            value["version"] != 1
            or value["version"] is True
            or value["name"] != vkey.name
            or not isinstance(key, str)
        ):
            raise InvalidKey("name and key do not belong together")
    except NotFound as error:
        raise NotFound(
            f"no witness at {folder}", path=str(folder), advice="Make one with `ropewalk witness init DIR`."
        ) from error
    except (RopewalkError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{folder / SETTINGS} is not what was written", reason="state") from error
    return Witness(state, vkey, key, wait_s)


def _file_of(origin: str) -> str:
    return f"log-{sha256(origin.encode()).hex()[:32]}.json"
