"""The cases any implementation of mailboxes can be held to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropewalk import errors
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.mailbox.agreement import sign_root
from ropewalk.ledger.mailbox.ring import Ring, RingReader, RingWriter, ring_bytes

HOST = SigningKey.generate("ed25519", bytes(range(32)))
VECTORS = Path(__file__).parents[3] / "vectors" / "ledger_mailbox"


def cases(name: str) -> list[Any]:
    found = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))["cases"]
    return [pytest.param(case, id=case["name"]) for case in found]


@pytest.mark.parametrize("case", cases("ring"))
def test_every_byte_of_the_memory(case):
    given = case["input"]
    memory = bytearray(ring_bytes(given["slots"], given["slot_bytes"]))
    ring = Ring.format(memory, given["slots"], given["slot_bytes"], bytes.fromhex(given["id"]))
    writer, reader = RingWriter(ring), RingReader(ring)
    for step in given["steps"]:
        if "put" in step:
            writer.put(bytes.fromhex(step["put"]))
            continue
        first, found = reader.head, reader.take(step["let_go"])
        digests = [each[0] for each in found if isinstance(each, tuple)]
        reader.acknowledge(len(digests), sign_root(HOST, ring.id, first, digests).to_bytes())
    assert memory.hex() == case["expect"]


@pytest.mark.parametrize("case", cases("slot"))
def test_what_lies_in_the_first_slot(case):
    memory = bytearray.fromhex(case["input"])
    if "error" in case:
        with pytest.raises(getattr(errors, case["error"])):
            Ring(memory).look(0)
        return
    assert Ring(memory).look(0)[1].hex() == case["expect"]


@pytest.mark.parametrize("case", cases("root"))
def test_roots_and_their_signatures(case):
    given = case["input"]
    digests = [bytes.fromhex(each) for each in given["digests"]]
    signed = sign_root(HOST, bytes.fromhex(given["id"]), given["from"], digests)
    assert {"root": signed.root.hex(), "signature": signed.signature.hex()} == case["expect"]
