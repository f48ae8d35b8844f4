"""A ring of slots in shared memory: one process puts bytes in, the other takes them out, in order.

Little endian; `slots` slots of `slot_bytes` each at most:

    0     magic `EAMBOX1\\0`, version u32, slots u32, slot_bytes u32, zero u32, id (16 bytes), zero (16)
    56    tail u64: how many were put in           written by the writer only
    64    head u64: how many were acknowledged     written by the reader only, on a separate cache line
    128   seal (128 bytes): the reader's signed root over what it took; zero before
    256   slots, each `seq u64 | len u32 | flags u32 | digest (32) | bytes`, filled up to a multiple of 64

Entry `n` is in slot `n % slots`, and complete once `seq` is `n + 1`. That number is written last and atomically:
a writer that is killed before leaves nothing readable. The digest covers everything else, the number and the id
of the ring, so neither a changed byte nor an old slot is accepted. `tail` is informative: what
was put in follows from the slots. No fence is needed: a reader reads after a notification, and a system call is in
between.
"""

from __future__ import annotations

import struct
import sys
from typing import Final

from ropewalk.errors import DigestMismatch, Invalid, RopewalkError, TooLarge, Unverified, Usage
from ropewalk.kernel.digest import Tag, tagged

MAGIC: Final = b"EAMBOX1\0"
VERSION: Final = 1
HEADER_BYTES: Final = 256
SLOT_HEADER_BYTES: Final = 48
SEAL_BYTES: Final = 128
SLOTS_MAX: Final = 4_096
SLOT_BYTES_MAX: Final = 8 << 20  # twice the largest envelope
RING_BYTES_MAX: Final = 1 << 30
_FIXED: Final = struct.Struct("<8sIIII16s16s")
_SLOT: Final = struct.Struct("<II32s")  # after the number, which is written apart
_COVERED: Final = struct.Struct("<QII")
_TAIL, _HEAD, _SEAL = 56, 64, 128


def ring_bytes(slots: int, slot_bytes: int) -> int:
    """Return how much memory a ring takes; Usage where it would be none, or too much.

    >>> ring_bytes(4, 100)
    1024
    """
    if not 1 <= slots <= SLOTS_MAX or not 64 <= slot_bytes <= SLOT_BYTES_MAX:
        raise Usage(
            f"a ring of {slots} slots of {slot_bytes} bytes",
            advice=f"It has 1 to {SLOTS_MAX} slots of 64 to {SLOT_BYTES_MAX} bytes.",
        )
    size = HEADER_BYTES + slots * _stride(slot_bytes)
    if size > RING_BYTES_MAX:
        raise Usage(
            f"a ring of {size} bytes; at most {RING_BYTES_MAX}", advice="Take fewer or smaller slots."
        )
    return size


class Ring:
    """The checked memory of a ring, for reading.

    >>> ring = Ring.format(bytearray(1024), 4, 100, b"i" * 16)
    >>> ring.slots, ring.slot_bytes, ring.head, ring.published()
    (4, 100, 0, 0)
    """

    def __init__(self, memory: bytearray | memoryview) -> None:
        if sys.byteorder != "little":
            raise Usage("a ring is read and written on little-endian machines only")
        self.memory = memoryview(memory)
        if len(self.memory) < HEADER_BYTES:
            raise Invalid("a ring: shorter than its header")
        magic, version, slots, slot_bytes, zero, name, _ = _FIXED.unpack_from(self.memory)
        if magic != MAGIC or version != VERSION or zero:
            raise Invalid("a ring: not one of version 1")
        try:
            size = ring_bytes(slots, slot_bytes)
        except Usage as error:
            raise Invalid(f"a ring: {error.detail}") from error
        if len(self.memory) != size:
            raise Invalid(f"a ring: {len(self.memory)} bytes where {size} belong")
        self.slots, self.slot_bytes, self.id = int(slots), int(slot_bytes), bytes(name)
        self._stride = _stride(self.slot_bytes)
        self._numbers = self.memory.cast("Q")  # read and written eight bytes at a time

    @classmethod
    def format(cls, memory: bytearray | memoryview, slots: int, slot_bytes: int, name: bytes) -> Ring:
        """Return a new ring in memory that holds zeros."""
        _FIXED.pack_into(memory, 0, MAGIC, VERSION, slots, slot_bytes, 0, name, bytes(16))
        return cls(memory)

    @property
    def head(self) -> int:
        """The number of acknowledged entries."""
        return self._numbers[_HEAD // 8]

    @property
    def tail(self) -> int:
        """The number of entries put in, by the writer's counter."""
        return self._numbers[_TAIL // 8]

    @property
    def seal(self) -> bytes:
        """What the reader last said about those it took."""
        return bytes(self.memory[_SEAL : _SEAL + SEAL_BYTES])

    def published(self, after: int | None = None) -> int:
        """Return how many were put in, as the slots say, from a place on that is known to be reached."""
        place = self.head if after is None else after
        for at in range(place, place + self.slots):
            if self._numbers[self._offset(at) // 8] != at + 1:
                return at
        return place + self.slots

    def look(self, place: int) -> tuple[bytes, bytes]:
        """Return the digest and the bytes of what was put in there; DigestMismatch if it is not what was put in."""
        at = self._offset(place)
        size, flags, digest = _SLOT.unpack_from(self.memory, at + 8)
        if self._numbers[at // 8] != place + 1 or size > self.slot_bytes or flags:
            raise _damaged(place)
        at += SLOT_HEADER_BYTES
        # A copy, before it is checked: memory that is shared may change.
        raw = bytes(self.memory[at : at + size])
        if self.digest(place, raw) != digest:
            raise _damaged(place)
        return digest, raw

    def digest(self, place: int, raw: bytes) -> bytes:
        return tagged(Tag.MAILBOX_SLOT, self.id, _COVERED.pack(place + 1, len(raw), 0), raw)

    def release(self) -> None:
        """Release the memory, so that it can be unmapped."""
        self._numbers.release()
        self.memory.release()

    def _offset(self, place: int) -> int:
        return HEADER_BYTES + place % self.slots * self._stride


class RingWriter:
    """The side that puts in. What it has put in it knows itself; of the other it believes nothing that cannot be.

    >>> ring = Ring.format(bytearray(1024), 4, 100, b"i" * 16)
    >>> writer, reader = RingWriter(ring), RingReader(ring)
    >>> digest = writer.put(b"one")
    >>> reader.take(1) == [(digest, b"one")], writer.room, reader.acknowledge(1), writer.room
    (True, 3, 1, 4)
    """

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.tail = ring.published()
        self._head = ring.head

    @property
    def room(self) -> int:
        """How many more can be put in now."""
        head = self.ring.head
        if not self._head <= head <= self.tail:
            raise Unverified(
                f"mailbox: head {head} must not be above tail {self.tail}",
                advice="Another process writes into it.",
            )
        self._head = head
        return self.ring.slots - (self.tail - head)

    def put(self, raw: bytes) -> bytes:
        """Put bytes in, and return their digest. There must be room."""
        ring, place = self.ring, self.tail
        if len(raw) > ring.slot_bytes:
            raise TooLarge(
                f"{len(raw)} bytes; a slot holds {ring.slot_bytes}", size=len(raw), limit=ring.slot_bytes
            )
        if self.room == 0:
            raise Usage("the ring is full")
        at = ring._offset(place)
        ring._numbers[at // 8] = 0  # the old entry must not be read as the new one while it is written
        digest = ring.digest(place, raw)
        _SLOT.pack_into(ring.memory, at + 8, len(raw), 0, digest)
        at += SLOT_HEADER_BYTES
        ring.memory[at : at + len(raw)] = raw
        ring._numbers[ring._offset(place) // 8] = place + 1  # last: now it is there
        self.tail = place + 1
        ring._numbers[_TAIL // 8] = self.tail
        return digest


class RingReader:
    """The reading side. A taken entry stays in its slot until it is acknowledged: a crash before loses nothing."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.head = ring.head
        self.taken = self.head

    def take(self, count: int) -> list[tuple[bytes, bytes] | RopewalkError]:
        """Return the next ones as digests and bytes, DigestMismatch in the place of what is damaged."""
        if count > self.ring.slots - (self.taken - self.head):
            raise Invalid(f"{count} more slots than there can be")
        found: list[tuple[bytes, bytes] | RopewalkError] = []
        for place in range(self.taken, self.taken + count):
            try:
                found.append(self.ring.look(place))
            except DigestMismatch as error:
                found.append(error)
        self.taken += count
        return found

    def rewind(self) -> None:
        """Take unacknowledged entries again."""
        self.taken = self.head

    def acknowledge(self, count: int, seal: bytes = b"") -> int:
        """Acknowledge the oldest taken entries, which may then be overwritten; `seal` is a signed root over them."""
        if count > self.taken - self.head:
            raise Usage("only taken entries can be acknowledged")
        if seal:
            self.ring.memory[_SEAL : _SEAL + len(seal)] = seal
        self.head += count
        self.ring._numbers[_HEAD // 8] = self.head
        return self.head


def _stride(slot_bytes: int) -> int:
    return -(-(SLOT_HEADER_BYTES + slot_bytes) // 64) * 64


def _damaged(place: int) -> DigestMismatch:
    return DigestMismatch(
        f"mailbox: slot {place} was changed after it was filled",
        where=f"slot {place}",
        advice="Send it again; if it happens again, another process writes into the mailbox.",
    )
