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
    from ropewalk.ledger.archive.check import verify_archives
    from ropewalk.ledger.archive.drill import run_drill
    from ropewalk.ledger.archive.pack import pack_channel
    from ropewalk.ledger.archive.restore import restore_channel
    from ropewalk.ledger.archive.write import archive_channel
    from ropewalk.ledger.channel.channel import open_channel, open_log
    from ropewalk.ledger.channel.maintenance import verify_stored as verify_channel
    from ropewalk.ledger.channel.repair import find_damage, repair_channel
    from ropewalk.ledger.channel.settings import create_channel
    from ropewalk.ledger.envelope.envelope import build
    from ropewalk.ledger.envelope.model import Envelope
    from ropewalk.ledger.ingest.async_log import ServedLog
    from ropewalk.ledger.keys.rotate import rotate_key
    from ropewalk.ledger.mailbox.client import MailboxClient
    from ropewalk.ledger.mailbox.server import MailboxServer
    from ropewalk.ledger.proof.proof import Proof
    from ropewalk.ledger.proof.trust import Trust
    from ropewalk.ledger.remote.client import LedgerClient
    from ropewalk.ledger.remote.replica import pull_channel
    from ropewalk.ledger.remote.server import LedgerServer
    from ropewalk.ledger.remote.sync_client import connect_channel
    from ropewalk.ledger.transparency.head_check import HeadTrust, verify_head
    from ropewalk.ledger.transparency.witness_folder import make_witness, open_witness

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
    "Envelope": ("ropewalk.ledger.envelope.envelope", "Envelope"),
    "HeadTrust": ("ropewalk.ledger.transparency.head_check", "HeadTrust"),
    "LedgerClient": ("ropewalk.ledger.remote.client", "LedgerClient"),
    "LedgerServer": ("ropewalk.ledger.remote.server", "LedgerServer"),
    "MailboxClient": ("ropewalk.ledger.mailbox.client", "MailboxClient"),
    "MailboxServer": ("ropewalk.ledger.mailbox.server", "MailboxServer"),
    "Proof": ("ropewalk.ledger.proof.proof", "Proof"),
    "ServedLog": ("ropewalk.ledger.ingest.async_log", "ServedLog"),
    "Trust": ("ropewalk.ledger.proof.trust", "Trust"),
    "archive_channel": ("ropewalk.ledger.archive.write", "archive_channel"),
    "build": ("ropewalk.ledger.envelope.envelope", "build"),
    "connect_channel": ("ropewalk.ledger.remote.sync_client", "connect_channel"),
    "create_channel": ("ropewalk.ledger.channel.settings", "create_channel"),
    "find_damage": ("ropewalk.ledger.channel.repair", "find_damage"),
    "make_witness": ("ropewalk.ledger.transparency.witness_folder", "make_witness"),
    "open_channel": ("ropewalk.ledger.channel.channel", "open_channel"),
    "open_log": ("ropewalk.ledger.channel.channel", "open_log"),
    "open_witness": ("ropewalk.ledger.transparency.witness_folder", "open_witness"),
    "pack_channel": ("ropewalk.ledger.archive.pack", "pack_channel"),
    "pull_channel": ("ropewalk.ledger.remote.replica", "pull_channel"),
    "repair_channel": ("ropewalk.ledger.channel.repair", "repair_channel"),
    "restore_channel": ("ropewalk.ledger.archive.restore", "restore_channel"),
    "rotate_key": ("ropewalk.ledger.keys.rotate", "rotate_key"),
    "run_drill": ("ropewalk.ledger.archive.drill", "run_drill"),
    "verify_archives": ("ropewalk.ledger.archive.check", "verify_archives"),
    "verify_channel": ("ropewalk.ledger.channel.maintenance", "verify_stored"),
    "verify_head": ("ropewalk.ledger.transparency.head_check", "verify_head"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
