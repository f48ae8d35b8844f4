"""What a workload is: work that may be cut off, and what must hold when a writer opens the disk afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from ropewalk.errors import Replayed, RopewalkError

__all__ = ["Acknowledge", "Workload", "held", "in_log_order", "together"]

Acknowledge = Callable[[str], None]
LAST = 99  # the number of the entry that a check appends


class Workload(ABC):
    """Something that is done to a log and may be cut off."""

    engine: ClassVar[str]
    own_process: ClassVar[bool] = False  # a damaged file may end the process that reads it
    away: ClassVar[str] = ""  # a folder on a machine that keeps its power
    share: ClassVar[int] = 4  # of the disks of its engine, in parts like those of the others
    without: ClassVar[frozenset[str]] = frozenset()  # faults of calls that are left out
    rot: ClassVar[frozenset[str]] = frozenset(("bit", "zeros", "stale", "misdirected", "cut", "gone"))

    @abstractmethod
    def prepare(self, root: Path) -> None: ...

    @abstractmethod
    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        """Do the work, and pass every receipt on."""

    @abstractmethod
    def append(self, root: Path, number: int) -> str:
        """Open a writer, append an entry, and return its receipt."""

    @abstractmethod
    def read(self, root: Path) -> list[str]:
        """Return the receipts of all entries, in order."""

    @abstractmethod
    def verify(self, root: Path, deep: bool) -> str:
        """Return what verification finds wrong, empty if nothing."""

    def examine(self, root: Path, deep: bool) -> tuple[list[str], str]:
        """Return the receipts of all entries and what verification finds wrong."""
        return self.read(root), self.verify(root, deep)

    def retry(self, root: Path) -> None:  # noqa: B027 - most logs have no ids that a client chooses
        """Send acknowledged entries again, as a client without receipts does."""

    def again(self, root: Path, acknowledge: Acknowledge) -> None:
        """Go on in the same process after an error."""
        for number in (50, 51):
            acknowledge(self.append(root, number))

    def check(self, root: Path, acknowledged: list[str]) -> Iterator[str]:
        """Yield what does not hold on a disk after a cut; an exception is wrong too."""
        last = self.append(root, LAST)
        found, wrong = self.examine(root, deep=len(acknowledged) % 4 == 3)  # deep takes most of the time
        yield from held(acknowledged, found)
        if found[-1] != last:
            yield "the new entry is not the last"
        if wrong:
            yield f"verify: {wrong}"

    def check_damaged(self, root: Path, acknowledged: list[str], before: list[str]) -> Iterator[str]:
        """Yield what does not hold on a disk with damage: it may refuse, but never answer or seal wrongly.

        `before` is all that the log held; what verifies must be that.
        """
        new = _asked(lambda: self.append(root, LAST))
        if isinstance(new, Replayed):
            yield f"a new entry is refused as an old one: {new}"
        again = _asked(lambda: self.retry(root))
        found = _asked(lambda: self.read(root))
        wrong = _asked(lambda: self.verify(root, deep=True))
        for each in (new, again, found, wrong):
            if isinstance(each, Exception) and not isinstance(each, RopewalkError | OSError):
                yield f"not an error of ours: {type(each).__name__}: {each}"
        expected = [*before, new] if isinstance(new, str) else before
        if isinstance(found, list):
            if strange := [each for each in found if each not in expected and new in expected]:
                yield f"{len(strange)} entries that were never appended, {strange[0]} first"
            if len(set(found)) != len(found):
                yield "an entry is there twice"
        if (
            wrong == ""
            and found != expected
            and not (isinstance(new, Exception) and self._late(found, before))
        ):
            yield f"verification finds nothing wrong, but {_difference(found, expected)}"

    def _late(self, found: object, before: list[str]) -> bool:
        """Return whether only an append whose answer was an error came on top."""
        return isinstance(found, list) and found[:-1] == before


def together(append: Callable[[int], str], acknowledge: Acknowledge) -> None:
    """Append from four threads at once, three entries each; raise the first error when all have ended.

    After an error all go on with the open log, as a server does.
    """
    errors: list[Exception] = []

    def several(start: int) -> None:
        for number in range(start, start + 3):
            try:
                acknowledge(append(number))
            except (RopewalkError, OSError) as error:
                errors.append(error)

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(several, 100 + 10 * n) for n in range(4)]:
            each.result()
    if errors:
        raise errors[0]


def in_log_order(acknowledged: list[str], found: list[str]) -> list[str]:
    """Return receipts that threads got in any order as they are in the log, lost ones first."""
    places = {each: place for place, each in enumerate(found)}
    return sorted(acknowledged, key=lambda each: places.get(each, -1))


def held(acknowledged: Sequence[str], found: Sequence[str]) -> Iterator[str]:
    """Yield which receipts do not hold: each entry once, in the order of the receipts."""
    if len(set(found)) != len(found):
        yield "an entry is there twice"
    places = {each: place for place, each in enumerate(found)}
    lost = [each for each in acknowledged if each not in places]
    if lost:
        yield f"{len(lost)} acknowledged entries are lost, {lost[0]} first"
    order = [places[each] for each in acknowledged if each in places]
    if order != sorted(order):
        yield "acknowledged entries are in another order"


def _asked(question: Callable[[], object]) -> object:
    try:
        return question()
    except Exception as error:
        return error


def _difference(found: object, expected: list[str]) -> str:
    if not isinstance(found, list):
        return f"reading ends with {type(found).__name__}: {found}"
    missing = [each for each in expected if each not in found]
    return f"{len(found)} entries are read instead of {len(expected)}; missing: {missing[:2]}"
