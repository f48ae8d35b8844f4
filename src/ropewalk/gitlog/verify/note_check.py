"""Hold the notes on a log's commits against the digests their events name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ropewalk.errors import RopewalkError
from ropewalk.gitlog.core.layout import LOG_NOTES
from ropewalk.gitlog.core.log import Repo, get_object
from ropewalk.gitlog.core.notes import check_log, list_notes, named_log
from ropewalk.gitlog.core.objects import Oid
from ropewalk.kernel.report import Step


@dataclass(slots=True)
class NoteCheck:
    """The notes of a repository while a log is walked; each is looked at when its commit comes by."""

    repo: Repo
    hung: dict[Oid, Oid] = field(default_factory=dict)
    unreadable: str = ""
    failure: str = ""
    checked: int = 0
    missing: int = 0  # named by an event, but not here: notes travel only where they are fetched
    unbound: int = 0  # on events that name none, as imported ones

    @classmethod
    def of(cls, repo: Repo) -> NoteCheck:
        """List the notes; if they cannot be read, the step fails."""
        try:
            return cls(repo, list_notes(repo, LOG_NOTES))
        except RopewalkError as error:
            return cls(repo, unreadable=f"{LOG_NOTES}: {error.detail}")

    def take(self, commit: Oid, document: Mapping[str, Any]) -> None:
        """Check the note on one event. The walk goes downwards: of several failures the first in the log stays."""
        bound = named_log(document) is not None
        blob = self.hung.get(commit)
        if blob is None:
            self.missing += bound
        elif not bound:
            self.unbound += 1
        else:
            try:
                check_log(document, commit, get_object(self.repo, blob, "blob"))
                self.checked += 1
            except RopewalkError as error:
                self.failure = error.detail

    def step(self) -> Step | None:
        """Return what came of it, None where a log has no notes."""
        if self.unreadable:
            if self.missing:
                return Step("notes", "failed", self.unreadable)
            return Step.optional("notes", self.unreadable)
        if self.failure:
            return Step("notes", "failed", self.failure)
        said = f"{self.checked} notes are those their events name"
        if self.missing or self.unbound:
            return Step.optional(
                "notes",
                f"{said}; {self.missing} that events name are not here, {self.unbound} are on events that name none",
            )
        return Step("notes", "passed", said) if self.checked else None
