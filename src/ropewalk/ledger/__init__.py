"""ledger (S4): typed, signed envelopes in sealed, linked blocks, with proofs that verify offline.

`ropewalk.open(path).channel(name)` is the front door for one channel of a repository. This package offers more:
`build` makes an envelope; `archive_channel`, `restore_channel`, `run_drill` and `pack_channel` keep old blocks;
`LedgerServer`, `connect_channel`, `LedgerClient` and `pull_channel` reach a channel over a network; `MailboxServer` and
`MailboxClient` through shared memory; `make_witness`, `open_witness` and `verify_head` work with signed heads;
`find_damage` and `repair_channel` deal with a damaged channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk._lazy import lazy_exports

if TYPE_CHECKING:
    from ropewalk.ledger.archive.drill import run_drill as run_drill
    from ropewalk.ledger.archive.pack import pack_channel as pack_channel
    from ropewalk.ledger.archive.restore import restore_channel as restore_channel
    from ropewalk.ledger.archive.write import archive_channel as archive_channel
    from ropewalk.ledger.bundle.files import export_bundle as export_bundle
    from ropewalk.ledger.bundle.head_proofs import AnchorCollector as AnchorCollector
    from ropewalk.ledger.channel.channel import open_channel as open_channel
    from ropewalk.ledger.channel.channel import open_log as open_log
    from ropewalk.ledger.channel.damage import find_damage as find_damage
    from ropewalk.ledger.channel.maintenance import verify_stored
    from ropewalk.ledger.channel.repair import repair_channel as repair_channel
    from ropewalk.ledger.channel.settings import create_channel as create_channel
    from ropewalk.ledger.envelope.envelope import build as build
    from ropewalk.ledger.envelope.model import Envelope as Envelope
    from ropewalk.ledger.ingest.async_log import ServedLog as ServedLog
    from ropewalk.ledger.keys.rotate import rotate_key as rotate_key
    from ropewalk.ledger.mailbox.client import MailboxClient as MailboxClient
    from ropewalk.ledger.mailbox.enclave import EnclaveKey as EnclaveKey
    from ropewalk.ledger.mailbox.enclave import open_sealed as open_sealed
    from ropewalk.ledger.mailbox.enclave import parse_sealed as parse_sealed
    from ropewalk.ledger.mailbox.enclave_channel import seal_envelope as seal_envelope
    from ropewalk.ledger.mailbox.server import MailboxServer as MailboxServer
    from ropewalk.ledger.proof.proof import Proof as Proof
    from ropewalk.ledger.proof.proof import head_signer as head_signer
    from ropewalk.ledger.proof.proof import signed_head as signed_head
    from ropewalk.ledger.proof.trust import Trust as Trust
    from ropewalk.ledger.proof.trust import parse_trust as parse_trust
    from ropewalk.ledger.remote.client import LedgerClient as LedgerClient
    from ropewalk.ledger.remote.replica import pull_channel as pull_channel
    from ropewalk.ledger.remote.server import LedgerServer as LedgerServer
    from ropewalk.ledger.remote.sync_client import connect_channel as connect_channel
    from ropewalk.ledger.rules.policy import Policy as Policy
    from ropewalk.ledger.rules.policy import parse_policy as parse_policy
    from ropewalk.ledger.transparency.head_check import HeadTrust as HeadTrust
    from ropewalk.ledger.transparency.head_check import verify_head as verify_head
    from ropewalk.ledger.transparency.witness import parse_request as parse_request
    from ropewalk.ledger.transparency.witness_folder import make_witness as make_witness
    from ropewalk.ledger.transparency.witness_folder import open_witness as open_witness
    from ropewalk.ledger.versions.lifecycle import move_version as move_version
    from ropewalk.ledger.versions.lifecycle import open_minors as open_minors

    verify_channel = verify_stored

__getattr__, __dir__ = lazy_exports(__name__, __file__)
