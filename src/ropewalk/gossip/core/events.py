"""The events of a log. Listeners are called after the commit, so no event is taken back."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple

from ropewalk.errors import Damaged, Usage
from ropewalk.gossip.core.ids import MessageId
from ropewalk.gossip.core.message import GossipMessage, GossipSignature, Payload, Result
from ropewalk.gossip.core.table import Transaction, View
from ropewalk.kernel import cbor
from ropewalk.kernel.prolly.node import ANCHOR, Node

_SYNC = b"sync"
_journal = logging.getLogger("ropewalk.gossip")


class Stored(NamedTuple, Generic[Payload, Result]):
    """A message is in the log, with what `apply` returned for it."""

    id: MessageId
    signature: GossipSignature
    message: GossipMessage[Payload]
    result: Result


@dataclass(frozen=True, slots=True)
class MessageRefused:
    """A message that waited for its parents was refused when they came."""

    id: MessageId
    error: Exception


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction is durable; the root covers the whole log."""

    root: Node


@dataclass(frozen=True, slots=True)
class Synced:
    """A sync with a peer came to its end."""

    peer: str
    received: int
    root: Node


def record_sync(change: Transaction, event: Synced) -> None:
    """Write the newest sync down, numbered, for other processes that have the log open."""
    number = newest_sync(change)[0] + 1
    row = [number, event.peer, event.received, event.root.level, event.root.hash]
    change.put("meta", _SYNC, cbor.encode(row))


def newest_sync(view: View) -> tuple[int, Synced | None]:
    """Return how many syncs brought messages, and the newest of them."""
    raw = view.get("meta", _SYNC)
    if raw is None:
        return 0, None
    match cbor.decode(raw):
        case [int(number), str(peer), int(received), int(level), bytes(digest)]:
            return number, Synced(peer, received, Node(level, ANCHOR, digest))
    raise Damaged("the record of the newest sync must be five values of a sync", reason="sync")


Event = Stored | MessageRefused | Committed | Synced
Listener = Callable[[Event], None]


class Listeners:
    """The listeners of a log, called in the order they came."""

    def __init__(self) -> None:
        self._all: list[tuple[type[Event] | None, Listener]] = []

    def add(self, listener: Listener, kind: type[Event] | None) -> Callable[[], None]:
        """Add a listener, for one kind of event or for all; the returned function removes it."""
        if inspect.iscoroutinefunction(listener):
            raise Usage(
                "a listener must be a plain function, got a coroutine function",
                advice="Start a task from a plain function, in the event loop that it belongs to.",
            )
        entry = (kind, listener)
        self._all.append(entry)

        def remove() -> None:
            if entry in self._all:
                self._all.remove(entry)

        return remove

    def tell(self, event: Event) -> None:
        """Tell everybody. The log has already changed, so a listener's error cannot undo it and must not hide it."""
        for kind, listener in list(self._all):
            if kind is None or isinstance(event, kind):
                try:
                    listener(event)
                except Exception:
                    _journal.exception("a listener of the log raised for %s", type(event).__name__)
