"""Workloads of git logs: events, a roll-up of packs, a mirror."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ropewalk.bridge.mirror import mirror
from ropewalk.disk.repository_paths import make_repository
from ropewalk.errors import RopewalkError, Unavailable
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import MESSAGES
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.gitlog.sharing.exchange import push
from ropewalk.gitlog.store.rollup import roll_up
from ropewalk.repository_check import verify_gitlogs
from tests.sim.power.base import Acknowledge, Workload, in_log_order, together


def event(number: int) -> dict[str, object]:
    """Return a small event."""
    return {"type": "t", "payload": {"n": number}}


class GitAppends(Workload):
    """Single events, a batch and a cursor."""

    engine = "gitlog"
    without = frozenset(
        ("folder",)
    )  # readers note a head whose name is not synced: it may be gone after a cut

    def prepare(self, root: Path) -> None:
        with open_repository(make_repository(root / "log.git")[0].git_dir) as log:
            log.append("demo", event(-1))

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        with open_repository(root / "log.git") as log:
            for number in range(3):
                acknowledge(log.append("demo", event(number)).ulid)
            for receipt in log.append_all("demo", [Draft(event(n)) for n in range(10, 18)]):
                if isinstance(receipt, RopewalkError):
                    raise receipt
                acknowledge(receipt.ulid)
            with log.consume("group", "demo") as events:
                list(events)

    def append(self, root: Path, number: int) -> str:
        with open_repository(root / "log.git") as log:
            return log.append("demo", event(number)).ulid

    def read(self, root: Path) -> list[str]:
        with open_repository(root / "log.git") as log:
            return [each.ulid for each in log.events("demo")]

    def verify(self, root: Path, deep: bool) -> str:
        with open_repository(root / "log.git") as log:
            return verdict(log, deep)

    def examine(self, root: Path, deep: bool) -> tuple[list[str], str]:
        with open_repository(root / "log.git") as log:
            found: list[str] = [each.ulid for each in log.events("demo")]
            wrong = verdict(log, deep)
            with log.consume("group", "demo") as events:
                left = [each.ulid for each in events]
        if left != found[len(found) - len(left) :]:
            wrong += "the cursor passes events over"
        return found, wrong


def verdict(log: GitRepository, deep: bool) -> str:
    """Return what verification finds wrong, empty if nothing."""
    report = verify_gitlogs(log.store, deep=deep)
    return "" if report.ok else str(report.to_json())


class GitThreads(GitAppends):
    """Four threads share commits."""

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        with open_repository(root / "log.git") as log:
            together(lambda number: log.append("demo", event(number)).ulid, acknowledge)

    def check(self, root: Path, acknowledged: list[str]) -> Iterator[str]:
        yield from super().check(root, in_log_order(acknowledged, self.read(root)))


class GitNew(GitAppends):
    """A repository is made, gets its first events and a second log."""

    def prepare(self, root: Path) -> None:
        pass

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        for number in range(2):
            acknowledge(self.append(root, number))
        with open_repository(root / "log.git") as log:
            log.append("other", event(2))
            acknowledge(log.append("demo", event(3)).ulid)

    def append(self, root: Path, number: int) -> str:
        make_repository(root / "log.git")
        return super().append(root, number)

    def check(self, root: Path, acknowledged: list[str]) -> Iterator[str]:
        try:
            make_repository(root / "log.git")
        except Unavailable:
            if not acknowledged:  # it is half made; the advice is another folder
                shutil.rmtree(root / "log.git")
        yield from super().check(root, acknowledged)


class GitRollUp(GitAppends):
    """Small packs become one, while events are appended."""

    def prepare(self, root: Path) -> None:
        super().prepare(root)
        with open_repository(root / "log.git") as log:
            for number in range(5):
                log.append("demo", event(number))

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        with open_repository(root / "log.git") as log:
            acknowledge(log.append("demo", event(10)).ulid)
            roll_up(log.store.pack_folder, log.store.place.home / "locks", log.store.disk, at_most=2)
            acknowledge(log.append("demo", event(11)).ulid)


class GitMirror(GitAppends):
    """A bridge step: one log is copied into another, event by event once."""

    engine = "bridge"

    def prepare(self, root: Path) -> None:
        super().prepare(root)
        with open_repository(root / "log.git") as log:
            for number in range(3):
                log.append("demo", event(number))

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        with open_repository(root / "log.git") as log:
            mirror(log, "ns:demo", "topic:copy")
            acknowledge(log.append("demo", event(10)).ulid)
            mirror(log, "ns:demo", "topic:copy")

    def check(self, root: Path, acknowledged: list[str]) -> Iterator[str]:
        yield from super().check(root, acknowledged)
        with open_repository(root / "log.git") as log:
            mirror(log, "ns:demo", "topic:copy")
            copies = [each.ulid for each in log.events("copy", layout=MESSAGES)]
            if copies != [each.ulid for each in log.events("demo")]:
                yield "the mirror is not its source"


class GitPush(GitAppends):
    """Events are pushed to a remote on another machine, which keeps its power; then the next push goes on."""

    away = "remote.git"
    share = 1  # a disk takes seven times as long as others: it starts nine processes of git
    rot = frozenset(("bit",))

    def prepare(self, root: Path) -> None:
        subprocess.run(["git", "init", "-q", "--bare", root / self.away], check=True)
        super().prepare(root)
        subprocess.run(
            ["git", "-C", root / "log.git", "remote", "add", "origin", f"../{self.away}"], check=True
        )

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        with open_repository(root / "log.git") as log:
            acknowledge(log.append("demo", event(1)).ulid)
            push(log, "origin", who="ada")
            acknowledge(log.append("demo", event(2)).ulid)
            push(log, "origin", who="ada")

    def check(self, root: Path, acknowledged: list[str]) -> Iterator[str]:
        yield from super().check(root, acknowledged)
        with open_repository(root / "log.git") as log:
            push(log, "origin", who="ada")
            sent: list[str] = [each.ulid for each in log.events("demo")]
        with open_repository(root / self.away) as remote:
            if [each.ulid for each in remote.events("demo")] != sent:
                yield "the remote is not the log"
            if wrong := verdict(remote, deep=False):
                yield f"the remote does not verify: {wrong}"
