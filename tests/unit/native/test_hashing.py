"""Hashing many messages and folding a tree in the compiled loops: the same bytes as the package and as Python."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tools import needs_that

from ropewalk import native
from ropewalk.errors import RangeExceeded
from ropewalk.kernel import merkle
from ropewalk.kernel.merkle import LEDGER
from ropewalk.ledger.block.leaves import StoredLines, leaf_hashes, leaves_path, leaves_root, split_hashes
from ropewalk.ledger.channel.segments.format import lines_of
from ropewalk.native.library import library

pytestmark = needs_that(library(), "no C compiler built the loops")
EDGES = (0, 1, 47, 48, 49, 63, 64, 65, 700, 1023, 1024, 1025, 5_000)


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(EDGES) | st.integers(0, 1_100), max_size=300), st.randoms(use_true_random=False)
)
def test_loops_hash_as_python_does(sizes: list[int], chance: random.Random):
    messages = [chance.randbytes(size) for size in sizes]
    wanted = list(map(LEDGER.leaf, messages))
    packed = leaf_hashes(messages)
    assert split_hashes(packed) == wanted
    assert leaves_root(packed) == merkle.root(wanted)
    with native.switched_off():
        assert leaf_hashes(messages) == packed and leaves_root(packed) == merkle.root(wanted)


def test_loops_hash_every_length_and_number():
    messages = [bytes([size % 251]) * size for size in range(1_040)]
    assert split_hashes(leaf_hashes(messages)) == list(map(LEDGER.leaf, messages))
    packed = leaf_hashes(messages[:64])
    for count in range(1, 65):
        assert leaves_root(packed[: 32 * count]) == merkle.root(split_hashes(packed)[:count])


def test_loops_refuse_sizes_they_do_not_know():
    loaded = library()
    assert loaded is not None
    out = bytearray(64)
    from ropewalk.native.hashing import hash_all, levels

    assert hash_all(bytes(65), [b"a"]) is None and levels(bytes(65), bytes(out)) is None
    assert levels(b"", b"") is None


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 31, 32, 33, 100])
def test_paths_are_those_of_the_kernel(count: int):
    leaves = [LEDGER.leaf(bytes([number])) for number in range(count)]
    for switch in (contextlib.nullcontext, native.switched_off):
        with switch():
            for index in range(count):
                assert leaves_path(b"".join(leaves), index) == merkle.inclusion_proof(leaves, index)
            with pytest.raises(RangeExceeded):
                leaves_path(b"".join(leaves), count)


@given(
    st.lists(st.binary(max_size=40).map(lambda raw: raw.replace(b"\n", b"")), min_size=1), st.integers(0, 3)
)
@settings(max_examples=60, deadline=None)
def test_stored_lines_are_those_of_the_body(lines: list[bytes], padding: int):
    body = b"\n".join(lines) + b"\n" * padding
    wanted = lines_of(body)
    for switch in (contextlib.nullcontext, native.switched_off):
        with switch():
            found = StoredLines(body)
            assert (len(found), found[0], found.size) == (len(wanted), wanted[0], sum(map(len, wanted)))
            assert leaf_hashes(found[1:]) == leaf_hashes(wanted[1:])
            assert len(found[1:]) == len(wanted) - 1 and list(found) == wanted


@pytest.mark.parametrize(("count", "size"), [(8_192, 3), (8_193, 3), (20, 1_100), (9, 1_000)])
def test_stored_lines_beyond_the_loops(count: int, size: int):
    """Lines above a chunk, and more lines than a block may have, are cut and hashed by Python."""
    wanted = [b"record", *[b"%0*d" % (size, n) for n in range(count)]]
    found = StoredLines(b"\n".join(wanted) + b"\n")
    assert (len(found), found.size) == (count + 1, sum(map(len, wanted)))
    assert leaf_hashes(found[1:]) == leaf_hashes(wanted[1:]) and found[1:][count - 1] == wanted[-1]
