"""A ring in shared memory: what comes out is what was put in, in order, whoever is killed and whatever is changed."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import DigestMismatch, Invalid, TooLarge, Unverified, Usage
from ropewalk.ledger.mailbox.ring import HEADER_BYTES, Ring, RingReader, RingWriter, ring_bytes

SLOTS, SLOT_BYTES, NAME = 5, 80, b"the mailbox's id"


def made(slots: int = SLOTS, slot_bytes: int = SLOT_BYTES, name: bytes = NAME) -> Ring:
    return Ring.format(bytearray(ring_bytes(slots, slot_bytes)), slots, slot_bytes, name)


def text(number: int) -> bytes:
    return b"%d" % number * (number % 20)


def half_written(ring: Ring, place: int, raw: bytes, stores: int) -> None:
    """What a writer leaves that is killed after so many of its stores."""
    whole = made(ring.slots, ring.slot_bytes, ring.id)
    whole.memory[:] = ring.memory
    writer = RingWriter(whole)
    assert writer.tail == place
    writer.put(raw)
    at = HEADER_BYTES + place % ring.slots * ((48 + ring.slot_bytes + 63) // 64 * 64)
    pieces = [(at, bytes(8)), (at + 8, bytes(whole.memory[at + 8 : at + 48])), (at + 48, raw)]
    for start, piece in pieces[:stores]:
        ring.memory[start : start + len(piece)] = piece


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "take", "let go", "new writer", "new reader"]), st.integers(0, 3))
    )
)
@settings(deadline=None, max_examples=300)
def test_ring_keeps_order_through_any_crashes(steps):
    ring = made()
    writer, reader = RingWriter(ring), RingReader(ring)
    number, kept = 0, list[bytes]()
    taken: deque[bytes] = deque()
    for step, count in steps:
        if step == "put" and writer.room:
            writer.put(text(number))
            number += 1
        elif step == "take":
            found = reader.take(min(count, ring.published(reader.taken) - reader.taken))
            assert all(isinstance(each, tuple) for each in found)
            taken.extend(each[1] for each in found if isinstance(each, tuple))
        elif step == "let go":
            for _ in range(min(count, len(taken))):
                reader.acknowledge(1)
                kept.append(taken.popleft())
        elif step == "new writer":
            if writer.room:
                half_written(ring, writer.tail, b"never there", count)
            writer = RingWriter(ring)
            assert writer.tail == number
        elif step == "new reader":
            reader, taken = RingReader(ring), deque()
        assert writer.room == SLOTS - (number - len(kept))
    assert kept == [text(i) for i in range(len(kept))]
    assert ring.published() == ring.tail == number


@pytest.mark.parametrize("bits", [0x01, 0x80, 0xFF])
def test_a_changed_byte_is_seen_or_changes_nothing(bits):
    ring = made()
    writer = RingWriter(ring)
    for number in range(SLOTS):
        writer.put(text(number + 1))
    for at in range(HEADER_BYTES, len(ring.memory)):
        ring.memory[at] ^= bits
        changed, in_slot = divmod(at - HEADER_BYTES, 128)
        for place in range(SLOTS):
            filled = 48 + len(text(place + 1))
            if place == changed and in_slot < filled:
                with pytest.raises(DigestMismatch):
                    ring.look(place)
            else:
                assert ring.look(place)[1] == text(place + 1)
        ring.memory[at] ^= bits


def test_stale_or_foreign_slot_contents_fail():
    ring, other = made(), made(name=b"another mailbox!")
    writer, reader = RingWriter(ring), RingReader(ring)
    writer.put(b"old")
    old = bytes(ring.memory[HEADER_BYTES : HEADER_BYTES + 128])
    reader.take(1)
    reader.acknowledge(1)
    for number in range(SLOTS):
        writer.put(text(number))
    ring.memory[HEADER_BYTES + 8 : HEADER_BYTES + 128] = old[8:]  # with the number of the new one
    with pytest.raises(DigestMismatch):
        ring.look(SLOTS)
    other.memory[HEADER_BYTES : HEADER_BYTES + 128] = old
    with pytest.raises(DigestMismatch):
        other.look(0)


def test_a_full_ring_takes_nothing_more_until_something_was_let_go_of():
    ring = made()
    writer, reader = RingWriter(ring), RingReader(ring)
    for number in range(SLOTS):
        writer.put(text(number))
    before = bytes(ring.memory)
    with pytest.raises(Usage, match="full"):
        writer.put(b"more")
    reader.take(2)
    assert writer.room == 0 and bytes(ring.memory) == before
    reader.acknowledge(1)
    assert writer.room == 1
    with pytest.raises(TooLarge):
        writer.put(bytes(SLOT_BYTES + 1))
    writer.put(bytes(SLOT_BYTES))
    with pytest.raises(Invalid):
        reader.take(SLOTS)  # more than there can be
    with pytest.raises(Usage):
        reader.acknowledge(2)


def test_a_writer_does_not_believe_a_head_that_cannot_be():
    ring = made()
    writer = RingWriter(ring)
    writer.put(b"one")
    ring.memory[64] = 2
    with pytest.raises(Unverified, match="head 2 must not be above tail 1"):
        writer.put(b"two")


@pytest.mark.parametrize("at", [0, 7, 8, 12, 16, 20])
def test_a_ring_whose_header_was_changed_is_none(at):
    ring = made()
    ring.memory[at] ^= 1
    with pytest.raises(Invalid):
        Ring(ring.memory)


def test_a_ring_of_another_size_than_its_header_says_is_none():
    ring = made()
    for memory in (ring.memory[:-64], ring.memory[:100], memoryview(bytearray(4096))):
        with pytest.raises(Invalid):
            Ring(memory)
    for slots, slot_bytes in ((0, 64), (4097, 64), (1, 63), (1, (8 << 20) + 1), (4096, 8 << 20)):
        with pytest.raises(Usage):
            ring_bytes(slots, slot_bytes)
