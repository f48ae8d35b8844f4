"""Gossip (S3): a signed log that any peer may append to offline, and that syncs by comparing trees.

ids, message, profiles   what a message is, in both wire profiles     log, writing, pending   how it gets in
questions, sync          how two peers come to the same log           ancestors, verify       looking back, checking
access, validate         who may say what                             table                   the port of a store

`open(topic, path=None, signer=…, apply=…)` is the way in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropewalk.gossip.core.access import everybody_may_append, make_session, owners, sessions
from ropewalk.gossip.core.events import Committed, Refused, Stored, Synced
from ropewalk.gossip.core.ids import MessageId
from ropewalk.gossip.core.log import Bound, Cursor, Log
from ropewalk.gossip.core.message import Message, Signature, SignedMessage
from ropewalk.gossip.core.writing import Inserted
from ropewalk.gossip.sync.session import pull_from, sync_both

if TYPE_CHECKING:
    from ropewalk.gossip.peer.topics import open_log as open

__all__ = [
    "Bound",
    "Committed",
    "Cursor",
    "Inserted",
    "Log",
    "Message",
    "MessageId",
    "Refused",
    "Signature",
    "SignedMessage",
    "Stored",
    "Synced",
    "everybody_may_append",
    "make_session",
    "open",
    "owners",
    "pull_from",
    "sessions",
    "sync_both",
]


def __getattr__(name: str) -> Any:
    # The engine does no I/O; its front door hands on to the composition behind it, on first use only (PEP 562).
    if name == "open":
        from ropewalk.gossip.peer.topics import open_log

        return open_log
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
