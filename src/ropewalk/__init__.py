"""Append-only event logs you can prove: in git, between peers, or as a sealed ledger.

`init` makes a repository and `open` opens one; a `Repository` gives access to event logs, ledger channels and gossip
topics. `verify` verifies repositories, proofs, bundles and checkpoints offline; `simulate` tests reducers and policies.
Each engine offers more in its package:
`from ropewalk import gitlog, gossip, ledger, pipeline, stream`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk._lazy import lazy_exports

if TYPE_CHECKING:
    from ropewalk.errors import RopewalkError as RopewalkError
    from ropewalk.gitlog.consumers.cursor import Cursor as Cursor
    from ropewalk.gitlog.core.envelope import Event as Event
    from ropewalk.gitlog.core.planning import Receipt as Receipt
    from ropewalk.handles.channel import LedgerChannel as LedgerChannel
    from ropewalk.handles.events import EventLog as EventLog
    from ropewalk.handles.gossip import GossipTopic as GossipTopic
    from ropewalk.kernel.keys import PublicKey as PublicKey
    from ropewalk.kernel.keys import SealingKey as SealingKey
    from ropewalk.kernel.keys import SigningKey as SigningKey
    from ropewalk.kernel.report import Report as Report
    from ropewalk.ledger.proof.proof import Proof as Proof
    from ropewalk.ledger.proof.trust import Trust as Trust
    from ropewalk.repository import Repository as Repository
    from ropewalk.repository import init as init
    from ropewalk.repository import open_repository
    from ropewalk.simulation import simulate as simulate
    from ropewalk.verification import verify as verify

    open = open_repository

__version__ = "0.1.0"

__getattr__, __dir__ = lazy_exports(__name__, __file__)
