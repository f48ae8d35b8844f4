"""Flip every bit of the indexes of a ledger channel and of a git log: no wrong answer, no double seal, no crash.

`python -m tests.torture.index [SHARE]` flips one bit in SHARE. Each part runs in a process of its own, so that one that
dies is seen and counted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ropewalk.disk.repository_paths import RepositoryPaths, make_repository
from ropewalk.errors import Replayed, RopewalkError
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import SHIPLOG
from ropewalk.gitlog.core.objects import Kind
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.repository.tracked_logs import IndexedLog, TrackedLogs
from ropewalk.gitlog.store.object_store import GitStore
from ropewalk.kernel import ulid
from ropewalk.ledger.block.index_keys import BlockIndexKeys, derive
from ropewalk.ledger.channel.channel import open_log
from ropewalk.ledger.channel.index.check import check_index
from ropewalk.ledger.channel.index.index import LedgerIndex
from ropewalk.ledger.channel.maintenance import rebuild_index, verify_stored
from ropewalk.ledger.channel.segments.reader import Segments
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from tests.unit.ledger.making import NODE, NOON_NS, command, observed, opened

__all__ = ["GitScene", "LedgerScene", "Scene", "flip", "flip_all", "run"]

CHANNEL = "ea.core"
BLOCKS, PER_BLOCK = 10, 6  # 160 rows
EVENTS = 40
PARTS = 24
CHECK_EVERY, SEAL_EVERY = 16, 256  # flips between two that also verify the index, or that also seal


@dataclass(slots=True)
class Count:
    """What came of some flips."""

    flips: int = 0
    acts: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class Scene(ABC):
    """A log that is whole and whose index is damaged again and again."""

    index: Path
    turn = 0  # number of the flip: questions of which a share is enough take turns

    def remember(self) -> None:
        """Take the index as it is now for what is restored."""
        self.files = {path: path.read_bytes() for path in sorted(self.index.rglob("*")) if path.is_file()}

    def bits(self) -> list[tuple[Path, int]]:
        """Every bit there is to flip."""
        return [(path, bit) for path, raw in self.files.items() for bit in range(8 * len(raw))]

    def restore(self) -> None:
        """Put back the whole index."""
        for folder, _, names in os.walk(self.index):
            for name in names:
                if (path := Path(folder, name)) not in self.files:
                    path.unlink()
        for path, raw in self.files.items():
            path.write_bytes(raw)

    @abstractmethod
    def look(self) -> str | None:
        """Ask for everything; what was answered wrongly."""

    def acts(self, number: int) -> list[Callable[[], str | None]]:
        """What is done about one of the flips."""
        self.turn = number
        return [self.look]


class _WholeStore(GitStore):
    """A store whose objects are never damaged: each is read once for all flips."""

    def __init__(self, place: RepositoryPaths) -> None:
        super().__init__(place)
        self._known: dict[str, tuple[Kind, bytes]] = {}

    def get(self, oid: str) -> tuple[Kind, bytes]:
        if oid not in self._known:
            self._known[oid] = super().get(oid)
        return self._known[oid]


class GitScene(Scene):
    """A git log."""

    def __init__(self, folder: Path) -> None:
        self.place = (
            make_repository(folder / "log.git")[0]
            if not folder.exists()
            else RepositoryPaths(folder / "log.git")
        )
        self.index = self.place.home / "index"
        if not self.index.exists():
            self._make()
        self.remember()
        self.store = _WholeStore(self.place)
        with open_repository(self.place.git_dir) as log:
            self.truth = list(log.lines.line(SHIPLOG, "demo").span(0, EVENTS))
        self.fresh = [_never_recorded(slot.ulid) for slot in self.truth]

    def acts(self, number: int) -> list[Callable[[], str | None]]:
        return [*super().acts(number), *([self.reopen] if number % CHECK_EVERY == 0 else [])]

    def _make(self) -> None:
        drafts = [Draft({"type": "t", "payload": {"n": number}}) for number in range(EVENTS)]
        for first, last in ((0, EVENTS - 10), (EVENTS - 10, EVENTS - 2), (EVENTS - 2, EVENTS)):
            with open_repository(self.place.git_dir) as log:
                log.append_all("demo", drafts[first:last])
                log.read("demo")

    def look(self) -> str | None:
        lines = TrackedLogs(self.store)
        try:
            return next(self._wrong(lines.line(SHIPLOG, "demo")), None)
        finally:
            lines.close()

    def reopen(self) -> str | None:
        """Ask the same of a repository that is opened as a user opens it."""
        with open_repository(self.place.git_dir) as log:
            return next(self._wrong(log.lines.line(SHIPLOG, "demo")), None)

    def _wrong(self, line: IndexedLog) -> Iterator[str]:
        if (line.count, line.head) != (EVENTS, self.truth[-1].commit):
            yield "the head"
        if list(line.span(0, EVENTS)) != self.truth:
            yield "the places"
        for slot, fresh in zip(self.truth, self.fresh, strict=True):
            if line.find(slot.ulid) != slot:
                yield f"the place of {slot.ulid}"
            if (slot.height + self.turn) % 4 == 0 and line.first_above(slot.ulid) != slot.height + 1:
                yield f"the place above {slot.ulid}"
            if line.find(fresh) is not None:
                yield "an event that was never recorded"


class LedgerScene(Scene):
    """A ledger channel."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.segments = Segments(folder / "ledger" / CHANNEL)
        self.index = self.segments.folder / "index"
        if not self.index.exists():
            self._make()
        self.remember()
        # The segments stay whole: what a block says is worked out once for all flips.
        self.known = {tuple(record.lines): derive(record.lines) for record in self.segments.scan()}
        self.marks = list(self.known.values())

    def acts(self, number: int) -> list[Callable[[], str | None]]:
        checked = [self.check] if number % CHECK_EVERY == 0 else []
        return [*super().acts(number), *checked, *([self.seal] if number % SEAL_EVERY == 0 else [])]

    def _make(self) -> None:
        for blocks in (range(7), range(7, 9), range(9, BLOCKS)):  # stored three times: three runs of rows
            with opened(self.folder, CHANNEL) as ledger:
                for block in blocks:
                    numbers = range(block * PER_BLOCK, (block + 1) * PER_BLOCK)
                    ledger.log.submit_many((command(f"c-{n}") if n % 2 else observed(n)).raw for n in numbers)

    def look(self) -> str | None:
        index = LedgerIndex(self.segments, self._derive)
        try:
            index.catch_up()
            return next(self._wrong(index), None)
        finally:
            index.close()

    def _derive(self, lines: Sequence[bytes]) -> BlockIndexKeys:
        return self.known.get(tuple(lines)) or derive(lines)

    def _wrong(self, index: LedgerIndex) -> Iterator[str]:
        if index.state.block_hash != self.marks[-1].block_hash or index.state.height != BLOCKS:
            yield "the head"
        for height, marks in enumerate(self.marks):
            entry = index.block(height)
            if (entry.block_hash, entry.leaves) != (marks.block_hash, b"".join(marks.ids)):
                yield f"block {height}"
            if index.leaves(marks.root) != PER_BLOCK:
                yield f"the root of block {height}"
            for number in range(PER_BLOCK):
                place, claim = (height, number), marks.claims[number]
                if index.position(marks.ids[number]) != place:
                    yield f"the id at {place}"
                if index.intent(marks.intents[number]) != place:
                    yield f"the intent at {place}"
                if claim is not None and index.claim(claim) != place:
                    yield f"the claim at {place}"
                absent = (index.position, index.claim, index.intent, index.leaves)[(number + self.turn) % 4]
                if absent(bytes(reversed(marks.ids[number]))) is not None:
                    yield "an envelope that was never sealed"

    def check(self) -> str | None:
        """Hold the index against the log, as `verify --deep` does; damage must name its remedy."""
        found = check_index(self.segments)
        return None if found.ok or "ledger reindex" in found.explain() else found.explain()

    def seal(self) -> str | None:
        """Append a replay, a Command with a used correlation id, and a new envelope, to a copy of the channel."""
        copy = Path(tempfile.mkdtemp(dir=self.folder.parent))
        try:
            shutil.copytree(self.folder, copy, dirs_exist_ok=True)
            with open_log(copy, CHANNEL, NODE, now_ns=lambda: NOON_NS) as ledger:
                again, other, new = ledger.log.submit_many(
                    [command("c-7").raw, command("c-9", payload="other").raw, command("c-new").raw]
                )
            if not isinstance(again, LedgerReceipt) or (again.replayed, again.height, again.index) != (
                True,
                1,
                1,
            ):
                return f"the replay: {again!r}"
            if not isinstance(other, Replayed):
                return f"the second Command: {other!r}"
            if getattr(new, "height", None) != BLOCKS:
                return f"the new envelope: {new!r}"
            report = verify_stored(copy, CHANNEL, deep=True)
            if any(step.status == "failed" and "ledger reindex" not in step.detail for step in report.steps):
                return f"verify --deep: {report}"
            rebuild_index(copy, CHANNEL)  # a page that no answer needed may be damaged still
            return None if verify_stored(copy, CHANNEL, deep=True).ok else "verify --deep after reindex"
        finally:
            shutil.rmtree(copy)


def _never_recorded(name: ulid.Ulid) -> ulid.Ulid:
    raw = ulid.to_bytes(name)
    return ulid.from_bytes(raw[:6] + raw[:5:-1])


def flip(scene: Scene, path: Path, bit: int, act: Callable[[], str | None]) -> str | None:
    """Flip a bit, do something, and restore what was there; what went wrong."""
    raw = bytearray(scene.files[path])
    raw[bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)
    try:
        return act()
    except RopewalkError as error:
        return f"{error.code}: {error.detail}"
    finally:
        scene.restore()


def run(quick: bool) -> dict[str, Any]:
    """The run `make torture` does."""
    return flip_all(997, 2) if quick else flip_all(1)


def flip_all(share: int, parts: int = PARTS) -> dict[str, Any]:
    """Flip one bit in `share` of both indexes, in processes of their own."""
    started = time.monotonic()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # syncing is not what is tested here
    report: dict[str, Any] = {"ok": True, "what": "flip single bits of indexes", "share": f"1 in {share}"}
    with tempfile.TemporaryDirectory(dir=memory) as folder, ThreadPoolExecutor(os.cpu_count()) as crew:
        for name, kind in SCENES.items():
            template = Path(folder) / name
            scene = kind(template)
            counts = list(crew.map(partial(_spawn, template, parts=parts, share=share), range(parts)))
            wrong = [each for count in counts for each in count.wrong]
            flips = sum(count.flips for count in counts)
            report[name] = {
                "bytes": {path.suffix or path.name: len(raw) for path, raw in scene.files.items() if raw},
                "flips": flips,
                "acts": sum((Counter(count.acts) for count in counts), Counter()),
                "wrong": wrong[:50],
            }
            report["ok"] = report["ok"] and flips > 0 and not wrong
    return {**report, "seconds": round(time.monotonic() - started, 1)}


def _spawn(template: Path, part: int, *, parts: int, share: int) -> Count:
    place = template.parent / f"part-{part}" / "home"
    shutil.copytree(template, place)
    arguments = [template.name, str(place), *map(str, (part, parts, share))]
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture.index", "--part", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    last = (place.parent / "last").read_text() if (place.parent / "last").exists() else "nothing"
    shutil.rmtree(place.parent)
    if done.returncode:
        return Count(wrong=[f"part {part} ended with {done.returncode} at {last}: {done.stderr[-500:]}"])
    count = Count(**json.loads(done.stdout))
    print(
        f"  {template.name}: part {part + 1} of {parts}, {count.flips:,} flips, {len(count.wrong)} wrong",
        file=sys.stderr,
        flush=True,
    )
    return count


def _part(name: str, place: Path, part: int, parts: int, share: int) -> Count:
    scene, count = SCENES[name](place), Count()
    last = place.parent / "last"
    for number, (path, bit) in enumerate(scene.bits()[part * share :: parts * share]):
        last.write_text(f"{path.name} bit {bit}")
        for act in scene.acts(number):
            wrong = flip(scene, path, bit, act)
            if wrong is not None:
                count.wrong.append(f"{path.name} bit {bit}, {act.__name__}: {wrong}")
            count.acts[act.__name__] = count.acts.get(act.__name__, 0) + 1
        count.flips += 1
    return count


SCENES: dict[str, Callable[[Path], Scene]] = {"ledger": LedgerScene, "gitlog": GitScene}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        print(json.dumps(asdict(_part(sys.argv[2], Path(sys.argv[3]), *map(int, sys.argv[4:])))))
        sys.exit(0)
    answer = flip_all(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    print(json.dumps(answer, indent=2))
    sys.exit(0 if answer["ok"] else 1)
