"""gossip (S3): a signed log that every peer may append to offline, and that syncs by comparing trees.

core   messages, ids, wire profiles, the log, rules, ancestors, verification: pure
sync   questions and answers of a pull, the live protocol, wire messages: state machines without I/O
peer   stores, connections, servers: the edges

`ropewalk.open(path).gossip(topic)` opens a topic of a repository. `open(topic, path=None, signer=…, apply=…)` opens one
in memory or in any folder; `connect(log, url)` keeps it connected to a peer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk._lazy import lazy_exports

if TYPE_CHECKING:
    from ropewalk.gossip.core.access import make_grant as make_grant
    from ropewalk.gossip.core.access import make_revocation as make_revocation
    from ropewalk.gossip.core.access import make_session as make_session
    from ropewalk.gossip.core.access import owners as owners
    from ropewalk.gossip.core.access import roles as roles
    from ropewalk.gossip.core.access import sessions as sessions
    from ropewalk.gossip.core.events import Committed as Committed
    from ropewalk.gossip.core.events import MessageRefused as MessageRefused
    from ropewalk.gossip.core.events import Stored as Stored
    from ropewalk.gossip.core.events import Synced as Synced
    from ropewalk.gossip.core.log import Bound as Bound
    from ropewalk.gossip.core.log import Cursor as Cursor
    from ropewalk.gossip.core.log import GossipLog as GossipLog
    from ropewalk.gossip.core.message import GossipMessage as GossipMessage
    from ropewalk.gossip.core.message import GossipSignature as GossipSignature
    from ropewalk.gossip.core.message import SignedMessage as SignedMessage
    from ropewalk.gossip.core.writing import Inserted as Inserted
    from ropewalk.gossip.peer.async_log import AsyncLog as AsyncLog
    from ropewalk.gossip.peer.connection import PeerConnection
    from ropewalk.gossip.peer.follow import follow as follow
    from ropewalk.gossip.peer.server import GossipServer
    from ropewalk.gossip.peer.signers import Ed25519Signer as Ed25519Signer
    from ropewalk.gossip.peer.signers import Secp256k1Signer as Secp256k1Signer
    from ropewalk.gossip.peer.topics import open_log
    from ropewalk.gossip.sync.session import pull_from as pull_from
    from ropewalk.gossip.sync.session import sync_both as sync_both

    connect = PeerConnection
    open = open_log
    serve = GossipServer

__getattr__, __dir__ = lazy_exports(__name__, __file__)
