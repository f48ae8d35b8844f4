"""Compact notes of what an envelope states, claims and needs, to find repetitions and missing causes across blocks.

A note is 33 bytes: what it is (1), height (8), index (4), key (16), a number (4). Keys are cut to half, which
still cannot be forged; big-endian, places compare as bytes do. A row of a table has its place in columns, so its notes
are without it: 21 bytes each, one after the other.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from typing import Any, Final

from ropewalk.errors import RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.ledger.block.block import Header
from ropewalk.ledger.block.index_keys import CLAIMING, claim_key
from ropewalk.ledger.envelope.fields import decode_base64
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.envelope.run import EnvelopeRun
from ropewalk.ledger.rules.policy_rules import tag_allows

NOTE: Final = struct.Struct(">cQI16sI")
ROW_NOTE: Final = struct.Struct(">c16sI")
MARK: Final = struct.Struct(">q24x")  # the front of a digest
KEY: Final = 16
NOTHING: Final = bytes(KEY)
ID, INTENT, CLAIM, ROOT = b"E", b"I", b"C", b"B"  # what the channel holds
ANSWERS, FOLLOWS, PROVES = b"R", b"N", b"T"  # what an envelope needs to stand there
MEANT: Final = {ANSWERS: CLAIM, FOLLOWS: ID, PROVES: ROOT}
NUMBER_MAX: Final = (1 << 32) - 1
AGAIN: Final = 1  # the number of a claim that may be made again


class Marks:
    """What one hand marks while it checks a run of blocks: short enough to cost nothing, never missing a repetition."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.asked = 0

    def take(self, _header: Header, _first: int, envelopes: Sequence[Envelope]) -> None:
        """Mark some envelopes of a block; as `check_block` hands them over."""
        if isinstance(envelopes, EnvelopeRun) and all(
            fields["event_class"] != "Result" for fields in envelopes.fields()
        ):
            self.made += [mark for (mark,) in MARK.iter_unpack(envelopes.intents())]
            return
        mark = self.made.append
        for envelope in envelopes:
            mark(int.from_bytes(envelope.intent[:8], "big", signed=True))
            fields = envelope.fields
            correlation_id, kind = fields.get("correlation_id"), fields["event_class"]
            if correlation_id is not None and kind in CLAIMING:
                mark(int.from_bytes(claim_key(kind, correlation_id)[:8], "big", signed=True))
            if kind == "Result" or "causality_chain" in fields or "integrity_proof" in fields:
                self.asked += len(_needs(envelope))


class Notes:
    """What the second pass notes of a run of blocks."""

    def __init__(self) -> None:
        self.made: list[bytes] = []

    def take(self, header: Header, first: int, envelopes: Sequence[Envelope]) -> None:
        """Note some envelopes of a block."""
        height, pack, note = header.height, NOTE.pack, self.made.append
        if not first:
            note(pack(ROOT, height, 0, *_root(header)))
        for index, envelope in enumerate(envelopes, first):
            note(pack(ID, height, index, envelope.id[:KEY], 0))
            for what, key, number in _said(envelope):
                note(pack(what, height, index, key, number))


class RowNotes:
    """The notes of one block's envelopes, as their rows keep them; ids have their own columns."""

    def __init__(self) -> None:
        self.made: list[bytes] = []

    def take(self, header: Header, first: int, envelopes: Sequence[Envelope]) -> None:
        """Note some envelopes of a block; as `check_block` hands them over."""
        pack = ROW_NOTE.pack
        for index, envelope in enumerate(envelopes, first):
            said = b"".join(pack(*each) for each in _said(envelope))
            self.made.append(said if index else pack(ROOT, *_root(header)) + said)


def keys_asked(envelope: Envelope) -> list[tuple[bytes, bytes]]:
    """Return everything the rules will ask the channel about an envelope."""
    return [(MEANT.get(what, what), key) for what, key, _ in _said(envelope)]


def _root(header: Header) -> tuple[bytes, int]:
    return header.merkle_root[:KEY], min(header.envelope_count, NUMBER_MAX)


def _said(envelope: Envelope) -> list[tuple[bytes, bytes, int]]:
    """Return what an envelope states, claims and needs."""
    found = [(INTENT, envelope.intent[:KEY], 0)]
    fields = envelope.fields
    correlation_id, kind = fields.get("correlation_id"), fields["event_class"]
    if correlation_id is not None and kind in CLAIMING:
        again = AGAIN if tag_allows(envelope) else 0
        found.append((CLAIM, claim_key(kind, correlation_id)[:KEY], again))
    if kind == "Result" or "causality_chain" in fields or "integrity_proof" in fields:
        found += _needs(envelope)
    return found


def _needs(envelope: Envelope) -> list[tuple[bytes, bytes, int]]:
    """Return what must stand in the channel before an envelope: its command, its ancestors, the root of its proof."""
    fields = envelope.fields
    kind, chain, proof = fields["event_class"], fields.get("causality_chain"), fields.get("integrity_proof")
    found: list[tuple[bytes, bytes, int]] = []
    if kind == "Result":
        found.append((ANSWERS, claim_key("Command", fields.get("correlation_id") or "")[:KEY], 0))
    if chain is not None and len(chain) > 1:
        found += [(FOLLOWS, _key(text), number) for number, text in enumerate(chain[:-1])]
    if proof is not None and proof["type"] == "merkle":
        # What cannot be read is refused by the rule itself, without the channel.
        with contextlib.suppress(RopewalkError, KeyError, TypeError, ValueError):
            value: Any = jcs.parse(decode_base64(proof["proof"], "/integrity_proof/proof"))
            if value["root"] != fields["payload_hash"]:  # a proof about its own payload needs no channel
                found.append((PROVES, _key(value["root"]), min(max(0, int(value["size"])), NUMBER_MAX)))
    return found


def _key(text: Any) -> bytes:
    """Return the key of an id, zeros for text that is none."""
    return (hash_from_hex(text) or NOTHING)[:KEY]
