"""Parsers of what others may write: the memory of a mailbox, its signed roots, and envelopes sealed for an enclave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ropewalk.errors import DigestMismatch
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SealingKey
from ropewalk.ledger.mailbox.agreement import MailboxLimits, SignedRoot, sign_root
from ropewalk.ledger.mailbox.enclave import EnclaveKey, open_sealed, parse_sealed
from ropewalk.ledger.mailbox.ring import Ring, RingReader, RingWriter, ring_bytes
from tests.fuzz.offering import Parser
from tests.unit.ledger.making import ADA

__all__ = ["PARSERS"]

CASE = json.loads((Path(__file__).parents[2] / "vectors/ledger_enclave/open.json").read_bytes())["cases"][0]
KEY = EnclaveKey("pay-1", SealingKey(bytes(range(0x40, 0x60))))


def _memory(raw: bytes) -> None:
    ring = Ring(bytearray(raw))
    reader = RingReader(ring)
    assert reader.head <= ring.published() <= reader.head + ring.slots
    for found in reader.take(ring.slots):
        assert isinstance(found, DigestMismatch) or len(found[1]) <= ring.slot_bytes  # type: ignore[index]


def _root(raw: bytes) -> None:
    value: Any = jcs.parse(raw)
    found = SignedRoot.from_json(value)
    assert SignedRoot.from_json(found.to_json()) == found
    if found.count or found.first:
        assert SignedRoot.from_bytes(found.to_bytes()) == found


def _limits(raw: bytes) -> None:
    found = MailboxLimits.from_json(jcs.parse(raw))
    assert MailboxLimits.from_json(found.to_json()) == found and found.within(MailboxLimits()).slots <= 512


def _sealed(raw: bytes) -> None:
    found = parse_sealed(raw)
    assert parse_sealed(found.to_bytes()) == found
    # Nothing else was sealed to this key.
    assert open_sealed(found, KEY, "pay").raw == CASE["expect"].encode()


def _filled(*raws: bytes) -> bytes:
    memory = bytearray(ring_bytes(2, 64))
    writer = RingWriter(Ring.format(memory, 2, 64, bytes(16)))
    for raw in raws:
        writer.put(raw)
    return bytes(memory)


PARSERS = (
    Parser("mailbox_memory", _memory, (_filled(), _filled(b"one"), _filled(b"one", bytes(64)))),
    Parser("mailbox_root", _root, (jcs.encode(sign_root(ADA, bytes(16), 3, [bytes(32)]).to_json()),)),
    Parser(
        "mailbox_limits",
        _limits,
        (b'{"slots":8,"slot_bytes":4096}', b'{"slots":8,"slot_bytes":4096,"burst_per_s":9}'),
    ),
    Parser("enclave_sealed", _sealed, (CASE["input"].encode(),)),
)
