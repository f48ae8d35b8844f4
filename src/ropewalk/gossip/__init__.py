"""Gossip (S3): a signed log that every peer may append to offline, and that syncs by comparing trees.

core   messages, ids, wire profiles, the log, rules, ancestors, verification: pure
sync   questions and answers of a pull, the live protocol, wire messages: state machines without I/O
peer   stores, connections, servers: the edges

`open(topic, path=None, signer=…, apply=…)` opens a log, `connect(log, url)` keeps it connected to a peer.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ropewalk.gossip.core.access import everybody_may_append, make_session, owners, sessions
from ropewalk.gossip.core.events import Committed, MessageRefused, Stored, Synced
from ropewalk.gossip.core.ids import MessageId
from ropewalk.gossip.core.log import Bound, Cursor
from ropewalk.gossip.core.log import GossipLog as Log
from ropewalk.gossip.core.message import GossipMessage as Message
from ropewalk.gossip.core.message import GossipSignature as Signature
from ropewalk.gossip.core.message import SignedMessage
from ropewalk.gossip.core.pending import PendingLimits
from ropewalk.gossip.core.writing import Inserted
from ropewalk.gossip.sync.session import pull_from, sync_both

if TYPE_CHECKING:
    from ropewalk.gossip.peer.connection import PeerConnection as connect
    from ropewalk.gossip.peer.follow import follow
    from ropewalk.gossip.peer.server import GossipServer as serve
    from ropewalk.gossip.peer.tls import client_context as client_tls
    from ropewalk.gossip.peer.tls import server_context as server_tls
    from ropewalk.gossip.peer.topics import open_log as open

_LAZY = {  # the engine does no I/O; names that do are imported on first use (PEP 562)
    "client_tls": ("tls", "client_context"),
    "connect": ("connection", "PeerConnection"),
    "follow": ("follow", "follow"),
    "open": ("topics", "open_log"),
    "serve": ("server", "GossipServer"),
    "server_tls": ("tls", "server_context"),
}

__all__ = [
    "Bound",
    "Committed",
    "Cursor",
    "Inserted",
    "Log",
    "Message",
    "MessageId",
    "MessageRefused",
    "PendingLimits",
    "Signature",
    "SignedMessage",
    "Stored",
    "Synced",
    "client_tls",
    "connect",
    "everybody_may_append",
    "follow",
    "make_session",
    "open",
    "owners",
    "pull_from",
    "serve",
    "server_tls",
    "sessions",
    "sync_both",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        module, attribute = _LAZY[name]
        return getattr(import_module(f"ropewalk.gossip.peer.{module}"), attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
