"""A git log for programs: a namespace of shiplog or a topic of the message plane."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ropewalk.errors import RopewalkError
from ropewalk.gitlog.core.envelope import Draft, Event
from ropewalk.gitlog.core.layout import Layout
from ropewalk.gitlog.core.planning import Receipt
from ropewalk.gitlog.core.reading import LIMIT_DEFAULT, EventPage
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.handles.handle import Handle
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.report import Report


class EventLog(Handle):
    """Events of one namespace or topic, each one commit. Safe to share between threads.

    >>> import ropewalk, tempfile
    >>> with tempfile.TemporaryDirectory() as folder, ropewalk.init(folder) as repo:
    ...     governance = repo.events("governance")
    ...     receipt = governance.append({"type": "proposal.created", "payload": {"id": 7}})
    ...     [event.payload for event in governance]
    [{'id': 7}]
    """

    columns = ("ulid", "type", "payload", "commit")

    def __init__(
        self, git: GitRepository, layout: Layout, name: str, check_repository: Callable[[], None]
    ) -> None:
        layout.check(name)
        super().__init__(name)
        self.kind = "namespace" if layout.name == "shiplog" else "topic"
        self._opened, self._layout, self._check_repository = git, layout, check_repository

    def check_open(self) -> None:
        """Raise `Usage` if the handle or its repository is closed."""
        super().check_open()
        self._check_repository()

    @property
    def _git(self) -> GitRepository:
        self.check_open()
        return self._opened

    def append(
        self,
        event: Mapping[str, Any],
        *,
        trailer: Mapping[str, Any] | None = None,
        attachments: Mapping[str, bytes] | None = None,
    ) -> Receipt:
        """Record one event, a mapping with `type` and `payload`. It is on disk when this returns.

        Appends that arrive while one is written share the next pack, its fsync and its ref update. `trailer` holds
        deployment fields of the commit message, `attachments` become git notes.
        """
        return self._git.append(
            self.name, event, trailer=trailer, attachments=attachments, layout=self._layout
        )

    def append_all(self, events: Iterable[Mapping[str, Any] | Draft]) -> list[Receipt | RopewalkError]:
        """Record many events with one fsync; return a receipt or an error for each. An error affects no other."""
        drafts = [each if isinstance(each, Draft) else Draft(each) for each in events]
        return self._git.append_all(self.name, drafts, layout=self._layout)

    def read(self, since: str | None = None, limit: int = LIMIT_DEFAULT) -> EventPage:
        """Return a page of events after the ULID `since`, oldest first; `page.next_since` continues behind it."""
        return self._git.read(self.name, since, limit, layout=self._layout)

    def tail(self, limit: int = 10) -> list[Event]:
        """Return the newest events, oldest first."""
        return self._git.tail([self.name], None, limit, layout=self._layout)

    def events(self, since: str | None = None) -> Iterator[Event]:
        """Yield every event after the ULID `since`, oldest first; memory does not grow with the log."""
        return self._git.events(self.name, since, layout=self._layout)

    def __iter__(self) -> Iterator[Event]:
        return self.events()

    def __len__(self) -> int:
        return self._git.lines.line(self._layout, self.name, must_exist=False).count

    def follow(self, since: str | None = None, stop: threading.Event | None = None) -> Iterator[Event]:
        """Yield events as they are appended by any process, until `stop` is set.

        Without `since`, start behind the newest event at the time of this call.
        """
        after = None if since is None else {self.name: since}
        return self._git.follow([self.name], after, layout=self._layout, stop=stop)

    def consume(self, group: str, limit: int = LIMIT_DEFAULT) -> AbstractContextManager[Iterator[Event]]:
        """Hand out the events that `group` has not handled; its cursor moves after the `with` block.

        If the block raises, or the process dies, the cursor stays and the events come again.
        """
        return self._git.consume(group, self.name, limit, layout=self._layout)

    def head(self) -> Event | None:
        """Return the newest event, or None if the log is empty."""
        line = self._git.lines.line(self._layout, self.name, must_exist=False)
        return self.tail(1)[0] if line.count else None

    def newest(self) -> Iterable[Sequence[object]]:
        """Return the newest events for a notebook."""
        events = self.tail() if len(self) else []
        return [(each.ulid, each.type, each.payload, each.commit) for each in events]

    def verify(self, *, deep: bool = False, keys: Iterable[PublicKey] = ()) -> Report:
        """Verify the whole log. With `keys`, anchors and signed heads must be signed by one of them."""
        from ropewalk.disk.key_files import public_keys
        from ropewalk.repository_check import verify_gitlogs

        store, trusted = self._git.store, tuple(keys)
        return verify_gitlogs(
            store,
            self.name,
            layouts=(self._layout,),
            deep=deep,
            keys=trusted,
            own_keys=() if trusted else public_keys(store.place.keys),
        )
