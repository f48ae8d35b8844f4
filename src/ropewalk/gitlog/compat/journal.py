"""What an import knows: the journals it found, the logs it writes to, and the report it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from ropewalk.errors import Invalid, RopewalkError, Unverified
from ropewalk.gitlog.compat.conversion import Journals, Problem, source_of, ulid_of
from ropewalk.gitlog.compat.entries import parse_entry
from ropewalk.gitlog.core.envelope import Event
from ropewalk.gitlog.core.log import get_object
from ropewalk.gitlog.core.objects import Oid
from ropewalk.gitlog.core.planning import Plan, Tip
from ropewalk.kernel.ulid import Ulid

Note = Callable[[bytes], bytes | None]
"""What is kept of a note: its bytes, a pointer to them, or nothing."""


class ImportTarget(Protocol):
    """The logs that are written to, as the importer needs to see them."""

    def tip(self, topic: str) -> Tip: ...
    def find(self, topic: str, wanted: Ulid) -> Event | None: ...
    def events(self, topic: str, start: int) -> Iterator[Event]: ...
    def grown(self, topic: str, made: Plan) -> None: ...


@dataclass(slots=True)
class ImportReport:
    """What an import did, and everything it found odd. `refused` is the first journal that was not taken."""

    imported: int = 0
    skipped: int = 0
    problems: list[Problem] = field(default_factory=list)
    refs: dict[str, str] = field(default_factory=dict)
    anchors: list[dict[str, str]] = field(default_factory=list)
    notes: int = 0
    mapped: dict[str, str] = field(default_factory=dict)
    not_carried: list[dict[str, str]] = field(default_factory=list)
    refused: RopewalkError | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "imported": self.imported,
            "skipped": self.skipped,
            "problems": [problem.to_json() for problem in self.problems],
            "refs": dict(sorted(self.refs.items())),
            "anchors": self.anchors,
            "notes": self.notes,
            "mapped": self.mapped,
            "not_carried": self.not_carried,
        }


@dataclass(slots=True)
class Journal:
    """A journal, and the log it goes to."""

    ref: str
    root: str
    env: str
    head: str
    topic: str
    chain: list[Oid] = field(default_factory=list)  # oldest first
    places: dict[Oid, Oid] = field(default_factory=dict)  # source commit → our commit, of this run
    scanned: bool = False
    guest: bool = False  # nothing but an export of a log of another name


def heads_below(repo: Journals, prefix: str, report: ImportReport) -> Iterator[tuple[str, str]]:
    """Yield the refs below a prefix and where they point; one that cannot be read is listed."""
    for ref in repo.head_names(prefix):
        try:
            head = repo.head(ref)
        except (Unverified, Invalid) as error:
            problem = Problem(ref, error.detail)
            if problem not in report.problems:
                report.problems.append(problem)
            continue
        if head is not None:
            yield ref, head


def find_imported(repo: Journals, target: ImportTarget, journal: Journal, oid: Oid) -> Event | None:
    """Return the event a source commit became, if its ULID was not changed for the order."""
    time_s = parse_entry(oid, get_object(repo, oid, "commit")).commit.committer.time_s
    event = target.find(journal.topic, ulid_of(oid, time_s, None))
    return event if event is not None and source_of(event) == (journal.ref, oid) else None
