"""Hash many short messages in one call, and fold hashes to a Merkle root. Python does the same without it."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from itertools import accumulate

from blake3 import blake3

from ropewalk.native.library import library
from ropewalk.native.object_batch import address

HASH_BYTES = 32
RUN = 128  # messages in a call: their copy stays in the cache
CHUNK_BYTES = 1024  # a message with its prefix; longer ones are the caller's


def hash_all(prefix: bytes, messages: Sequence[bytes]) -> tuple[bytearray, list[int]] | None:
    """Return the BLAKE3 hashes of the messages behind a prefix, end to end, and the numbers of those left out."""
    loaded = library()
    assert loaded is not None
    out = bytearray(HASH_BYTES * len(messages))
    room, left = CHUNK_BYTES - len(prefix), 0
    for first in range(0, len(messages), RUN):
        run = messages[first : first + RUN]
        ends = array("Q", accumulate(map(len, run)))
        into = address(out, HASH_BYTES * first)
        missed = loaded.ropewalk_hash_all(prefix, len(prefix), b"".join(run), address(ends), len(run), into)
        if missed < 0:
            return None
        left += missed
    return out, [at for at, each in enumerate(messages) if len(each) > room] if left else []


def hash_lines(prefix: bytes, text: bytes, start: int, stop: int, most: int) -> bytes | None:
    """Return the BLAKE3 hashes of the lines of a part of a text behind a prefix; None if one is long, or too many."""
    loaded = library()
    assert loaded is not None
    out = bytearray(HASH_BYTES * most)
    raw = ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value or 0
    found = loaded.ropewalk_hash_lines(prefix, len(prefix), raw + start, stop - start, most, address(out))
    return None if found < 0 else bytes(out[: HASH_BYTES * found])


def levels(prefix: bytes, hashes: bytes | bytearray) -> list[bytes] | None:
    """Return the levels of the Merkle tree over at least one hash: the hashes first, the root last."""
    loaded = library()
    assert loaded is not None
    sizes = [len(hashes) // HASH_BYTES]
    while sizes[-1] > 1:
        sizes.append((sizes[-1] + 1) // 2)
    room = sum(sizes)
    nodes = bytearray(HASH_BYTES * room)
    nodes[: len(hashes)] = hashes
    if loaded.ropewalk_levels(prefix, len(prefix), address(nodes), sizes[0], room):
        return None
    whole = memoryview(nodes)
    return [
        bytes(whole[HASH_BYTES * (end - size) : HASH_BYTES * end])
        for size, end in zip(sizes, accumulate(sizes), strict=True)
    ]


def state_leaves(text: bytes, value_prefix: bytes, leaf_prefix: bytes) -> bytes | None:
    """Return the leaf hashes of a state map from the state's canonical JSON, in the order of its members.

    None if the names that lead to a leaf are too long for the loop.
    """
    loaded = library()
    assert loaded is not None
    room = text.count(b'":') + 1
    out = bytearray(HASH_BYTES * room)
    spans = array("Q", bytes(16 * (len(text) // (CHUNK_BYTES - len(value_prefix)) + 1)))
    known = b""
    while True:
        found = loaded.ropewalk_state_leaves(
            text,
            len(text),
            value_prefix + leaf_prefix,
            len(value_prefix),
            len(leaf_prefix),
            known,
            len(known) // HASH_BYTES,
            address(spans),
            len(spans) // 2,
            address(out),
            room,
        )
        if found < 0:
            return None
        places = [(begin, end) for begin, end in zip(spans[::2], spans[1::2], strict=True) if end]
        if len(known) == HASH_BYTES * len(places):
            return bytes(memoryview(out)[: HASH_BYTES * found])
        # Values above a chunk: hash them here, and let the loop begin again with their hashes.
        known = b"".join([blake3(value_prefix + text[begin:end]).digest() for begin, end in places])
