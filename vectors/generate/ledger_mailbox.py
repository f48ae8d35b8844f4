"""Cases for mailboxes: every byte of a ring after some steps, what must not pass for one, and signed roots.

Computed from the definition with structs and hashes alone, apart from the signatures (Ed25519, the seed 00 01 … 1f).
"""

from __future__ import annotations

import struct
from typing import Any

from blake3 import blake3

from ropewalk.kernel.keys import SigningKey

HOST = SigningKey.generate("ed25519", bytes(range(32)))
NAME = bytes(range(0xA0, 0xB0))
SLOTS, SLOT_BYTES, STRIDE = 2, 64, 128  # 48 and 64 are 112, filled up to a multiple of 64


def _hash(*parts: bytes) -> bytes:
    return blake3(b"".join(parts)).digest()


def _header(slots: int = SLOTS, slot_bytes: int = SLOT_BYTES, tail: int = 0, head: int = 0) -> bytes:
    fixed = struct.pack("<8sIIII16s16xQ", b"EAMBOX1\0", 1, slots, slot_bytes, 0, NAME, tail)
    return fixed + struct.pack("<Q", head) + bytes(56)


def _digest(place: int, raw: bytes) -> bytes:
    return _hash(b"ea:mailbox-slot:v1", NAME, struct.pack("<QII", place + 1, len(raw), 0), raw)


def _slot(place: int, raw: bytes) -> bytes:
    return (struct.pack("<QII", place + 1, len(raw), 0) + _digest(place, raw) + raw).ljust(STRIDE, b"\0")


def _tree(digests: list[bytes]) -> bytes:
    """RFC 6962's shape, with the ledger's tags."""
    if not digests:
        return _hash(b"ea:empty:v1")
    if len(digests) == 1:
        return digests[0]
    cut = 1
    while cut * 2 < len(digests):
        cut *= 2
    return _hash(b"ea:node:v1", _tree(digests[:cut]), _tree(digests[cut:]))


def _root(first: int, digests: list[bytes]) -> bytes:
    return _hash(b"ea:mailbox:v1", NAME, struct.pack("<QQ", first, len(digests)), _tree(digests))


def _seal(first: int, digests: list[bytes]) -> bytes:
    root = _root(first, digests)
    return struct.pack("<QQ", first, len(digests)) + root + HOST.sign(root) + bytes(16)


def _rings() -> list[dict[str, Any]]:
    put: list[dict[str, Any]] = [{"put": b"one".hex()}, {"put": b"second".hex()}]
    both = [_digest(0, b"one"), _digest(1, b"second")]
    size = {"slots": SLOTS, "slot_bytes": SLOT_BYTES, "id": NAME.hex()}
    cases: tuple[tuple[str, str, list[dict[str, Any]], bytes], ...] = (
        ("empty", "a header of 256 bytes, then zeros", [], _header() + bytes(128 + 2 * STRIDE)),
        (
            "two_were_put_in",
            "the number of a slot is its place and one",
            put,
            _header(tail=2) + bytes(128) + _slot(0, b"one") + _slot(1, b"second"),
        ),
        (
            "two_were_let_go_of",
            "with a signed root; slots keep what they held",
            [*put, {"let_go": 2}],
            _header(tail=2, head=2) + _seal(0, both) + _slot(0, b"one") + _slot(1, b"second"),
        ),
        (
            "the_third_takes_the_place_of_the_first",
            "in the slot 2 mod 2; what is longer than the new one stays behind it, and means nothing",
            [*put, {"let_go": 1}, {"put": b"3".hex()}],
            _header(tail=3, head=1)
            + _seal(0, both[:1])
            + _slot(2, b"3")[:49]
            + _slot(0, b"one")[49:]
            + _slot(1, b"second"),
        ),
    )
    return [
        {"name": name, "why": why, "input": size | {"steps": steps}, "expect": memory.hex()}
        for name, why, steps, memory in cases
    ]


def _refused() -> list[dict[str, Any]]:
    rest = bytes(128) + _slot(0, b"one") + bytes(STRIDE)
    good = _header(tail=1) + rest
    cases: list[tuple[str, str, bytes, str | None]] = [
        ("whole", "as it was put in", good, None),
        ("other_magic", "not a ring", b"X" + good[1:], "Invalid"),
        ("other_version", "not of this version", good[:8] + b"\2" + good[9:], "Invalid"),
        ("cut", "shorter than its header says", good[:-64], "Invalid"),
        ("no_slots", "a ring has at least one", _header(slots=0) + rest, "Invalid"),
        ("number_of_another_place", "not there yet", _changed(good, 256, 2), "DigestMismatch"),
        ("length_changed", "the digest covers it", _changed(good, 264, 1), "DigestMismatch"),
        ("longer_than_a_slot", "refused before anything is read", _changed(good, 265, 1), "DigestMismatch"),
        ("flags", "none are known", _changed(good, 268, 1), "DigestMismatch"),
        ("byte_changed", "the digest covers it", _changed(good, 304, 1), "DigestMismatch"),
        ("of_another_mailbox", "the digest covers the id", _changed(good, 24, 1), "DigestMismatch"),
    ]
    return [
        {"name": name, "why": why, "input": memory.hex()}
        | ({"expect": b"one".hex()} if error is None else {"error": error})
        for name, why, memory, error in cases
    ]


def _changed(memory: bytes, at: int, flip: int) -> bytes:
    return memory[:at] + bytes([memory[at] ^ flip]) + memory[at + 1 :]


def _roots() -> list[dict[str, Any]]:
    cases = []
    for first, count in ((0, 0), (0, 1), (0, 2), (7, 3), (2**40, 5)):
        digests = [_digest(first + number, b"%d" % number) for number in range(count)]
        root = _root(first, digests)
        cases.append(
            {
                "name": f"{count}_from_{first}",
                "input": {"id": NAME.hex(), "from": first, "digests": [each.hex() for each in digests]},
                "expect": {"root": root.hex(), "signature": HOST.sign(root).hex()},
            }
        )
    return cases


def generate() -> dict[str, object]:
    """Every file, by its path."""
    return {
        "ledger_mailbox/ring.json": {
            "name": "ring",
            "why": "every byte of the shared memory after some steps; `let_go` signs a root over those it lets go of",
            "cases": _rings(),
        },
        "ledger_mailbox/slot.json": {
            "name": "slot",
            "why": "what the first slot of such a memory gives, or why it gives nothing",
            "cases": _refused(),
        },
        "ledger_mailbox/root.json": {
            "name": "root",
            "why": "BLAKE3(ea:mailbox:v1 ‖ id ‖ from u64 ‖ count u64 ‖ tree over the digests), and its signature",
            "cases": _roots(),
        },
    }
