"""The ledger (S4): typed, signed envelopes in sealed, linked blocks, and proofs a stranger can check.

envelope, binding   what is said, and evidence about it         rules, policy    whether it may be said here
block, proof        how it is sealed, and shown to be there     log, ticket      how it gets in
verify, steps       how all of it is checked again              trust            what a verifier believes before
headcheck           heads that somebody published               witness          who cosigns those that only grow
archive             old blocks where they are kept for good     keyline          whose seal counts, and when

`create_channel`, `open_log`, `open_channel` and `verify_channel` are the ways in; `build` makes what goes through them.
`ServedLog` is the way in for coroutines. `verify_head` checks a published checkpoint, `make_witness` and `open_witness`
see to it that a log has one history. `archive_channel` writes old blocks to write-once storage, where `verify_archives`
checks them; `restore_channel` rebuilds a channel from there, and `run_drill` rehearses it. `pack_channel` compresses
old blocks where they are. `LedgerServer` lets others in from elsewhere, `connect_channel` and, for coroutines,
`LedgerClient` go there; `pull_channel` keeps a verified copy. `MailboxServer` and `MailboxClient` are the same through
memory that two processes share. `find_damage` says what a damaged channel has lost, `repair_channel` makes it whole.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropewalk.ledger.envelope import Envelope, build
    from ropewalk.ledger.headcheck import HeadTrust, verify_head
    from ropewalk.ledger.proof import Proof
    from ropewalk.ledger.trust import Trust
    from ropewalk.node.archivecheck import verify_archives
    from ropewalk.node.archivedrill import run_drill
    from ropewalk.node.archivepack import pack_channel
    from ropewalk.node.archiverestore import restore_channel
    from ropewalk.node.archiving import archive_channel
    from ropewalk.node.keys import rotate_key
    from ropewalk.node.ledger import create_channel, open_channel, open_log
    from ropewalk.node.ledgercare import verify_stored as verify_channel
    from ropewalk.node.ledgerclient import LedgerClient
    from ropewalk.node.ledgercopy import pull_channel
    from ropewalk.node.ledgerremote import connect_channel
    from ropewalk.node.ledgerrepair import find_damage, repair_channel
    from ropewalk.node.ledgerserver import LedgerServer
    from ropewalk.node.mailbox import MailboxServer
    from ropewalk.node.mailboxclient import MailboxClient
    from ropewalk.node.served import ServedLog
    from ropewalk.node.witness import make_witness, open_witness

__all__ = [
    "Envelope",
    "HeadTrust",
    "LedgerClient",
    "LedgerServer",
    "MailboxClient",
    "MailboxServer",
    "Proof",
    "ServedLog",
    "Trust",
    "archive_channel",
    "build",
    "connect_channel",
    "create_channel",
    "find_damage",
    "make_witness",
    "open_channel",
    "open_log",
    "open_witness",
    "pack_channel",
    "pull_channel",
    "repair_channel",
    "restore_channel",
    "rotate_key",
    "run_drill",
    "verify_archives",
    "verify_channel",
    "verify_head",
]

# The engine does no I/O; its front door hands on to the composition behind it, on first use only (PEP 562).
_LAZY = {
    "Envelope": ("ropewalk.ledger.envelope", "Envelope"),
    "HeadTrust": ("ropewalk.ledger.headcheck", "HeadTrust"),
    "LedgerClient": ("ropewalk.node.ledgerclient", "LedgerClient"),
    "LedgerServer": ("ropewalk.node.ledgerserver", "LedgerServer"),
    "MailboxClient": ("ropewalk.node.mailboxclient", "MailboxClient"),
    "MailboxServer": ("ropewalk.node.mailbox", "MailboxServer"),
    "Proof": ("ropewalk.ledger.proof", "Proof"),
    "ServedLog": ("ropewalk.node.served", "ServedLog"),
    "Trust": ("ropewalk.ledger.trust", "Trust"),
    "archive_channel": ("ropewalk.node.archiving", "archive_channel"),
    "build": ("ropewalk.ledger.envelope", "build"),
    "connect_channel": ("ropewalk.node.ledgerremote", "connect_channel"),
    "create_channel": ("ropewalk.node.ledger", "create_channel"),
    "find_damage": ("ropewalk.node.ledgerrepair", "find_damage"),
    "make_witness": ("ropewalk.node.witness", "make_witness"),
    "open_channel": ("ropewalk.node.ledger", "open_channel"),
    "open_log": ("ropewalk.node.ledger", "open_log"),
    "open_witness": ("ropewalk.node.witness", "open_witness"),
    "pack_channel": ("ropewalk.node.archivepack", "pack_channel"),
    "pull_channel": ("ropewalk.node.ledgercopy", "pull_channel"),
    "repair_channel": ("ropewalk.node.ledgerrepair", "repair_channel"),
    "restore_channel": ("ropewalk.node.archiverestore", "restore_channel"),
    "rotate_key": ("ropewalk.node.keys", "rotate_key"),
    "run_drill": ("ropewalk.node.archivedrill", "run_drill"),
    "verify_archives": ("ropewalk.node.archivecheck", "verify_archives"),
    "verify_channel": ("ropewalk.node.ledgercare", "verify_stored"),
    "verify_head": ("ropewalk.ledger.headcheck", "verify_head"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
