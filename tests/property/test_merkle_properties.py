"""For trees of any size: our fast code against the recursive definition, and forgeries against the verifiers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vectors.generate.merkle import DEFINITIONS

from ropewalk.errors import InvalidProof, ProofRefused
from ropewalk.kernel.merkle import (
    LEDGER,
    RANGE,
    SHA256,
    Frontier,
    MerkleTree,
    RangeProof,
    root,
    verify_consistency,
    verify_inclusion,
    verify_range,
)

HASHERS = {hasher.name: hasher for hasher in (LEDGER, RANGE, SHA256)}
BOTH = [(HASHERS[definition.name], definition) for definition in DEFINITIONS]
SIZE_MAX = 130  # past two powers of two in both directions

both = st.sampled_from(BOTH)


@st.composite
def places(draw: st.DrawFn) -> tuple[int, int]:
    size = draw(st.integers(1, SIZE_MAX))
    return draw(st.integers(0, size - 1)), size


def leaves_of(definition, size):
    return [definition.leaf(i.to_bytes(2, "big")) for i in range(size)]


@settings(deadline=None, max_examples=60)
@given(both, st.lists(st.integers(0, 40), max_size=5))
def test_however_a_tree_grows_its_root_is_the_defined_one(pair, steps):
    hasher, definition = pair
    leaves = leaves_of(definition, sum(steps))
    tree, edge, at = MerkleTree(hasher=hasher), Frontier(hasher), 0
    for step in steps:
        tree.extend(leaves[at : at + step])
        for leaf in leaves[at : at + step]:
            edge.append(leaf)
        at += step
        want = definition.root(leaves[:at])
        assert tree.root() == edge.root() == root(leaves[:at], hasher) == want
        edge = Frontier.from_bytes(edge.to_bytes(), hasher)
    assert all(tree.root(size) == definition.root(leaves[:size]) for size in {0, at // 3, at // 2, at})


@settings(deadline=None, max_examples=80)
@given(both, places(), st.integers(0, 20))
def test_inclusion_is_the_defined_path_and_verifies_at_its_place_only(pair, place, more):
    hasher, definition = pair
    index, size = place
    leaves = leaves_of(definition, size + more)
    tree = MerkleTree(leaves, hasher)
    path, top = tree.inclusion(index, size), tree.root(size)
    assert list(path) == definition.inclusion(index, leaves[:size])
    verify_inclusion(leaves[index], index, size, path, top, hasher)
    for other in {0, index - 1, index + 1, size - 1, index ^ 1, index ^ 2} - {index}:
        with pytest.raises((InvalidProof, ProofRefused)):
            verify_inclusion(leaves[index], other, size, path, top, hasher)


@settings(deadline=None, max_examples=80)
@given(both, places(), st.integers(0, 20))
def test_consistency_is_the_defined_path(pair, place, more):
    hasher, definition = pair
    old, new = place[0] + 1, place[1]
    leaves = leaves_of(definition, new + more)
    tree = MerkleTree(leaves, hasher)
    path = tree.consistency(old, new)
    assert list(path) == definition.consistency(old, leaves[:new])
    verify_consistency(old, new, path, tree.root(old), tree.root(new), hasher)
    if old != new:
        with pytest.raises((InvalidProof, ProofRefused)):
            verify_consistency(old, new, path, tree.root(old - 1), tree.root(new), hasher)
        with pytest.raises((InvalidProof, ProofRefused)):
            verify_consistency(old, new, [*path, path[0]], tree.root(old), tree.root(new), hasher)


@settings(deadline=None, max_examples=80)
@given(both, places(), st.integers(1, SIZE_MAX))
def test_a_range_is_what_surrounds_it_and_nothing_can_be_left_out(pair, place, width):
    hasher, definition = pair
    start, size = place
    end = min(size, start + width)
    leaves = leaves_of(definition, size)
    tree = MerkleTree(leaves, hasher)
    proof, top = tree.range(start, end), tree.root()
    left, right = definition.range(start, end, leaves)
    assert proof == RangeProof(tuple(left), tuple(right))
    run = leaves[start:end]
    verify_range(run, start, size, proof, top, hasher)
    refused = pytest.raises((InvalidProof, ProofRefused))
    if start:
        with refused:
            verify_range(run, start - 1, size, proof, top, hasher)
    with refused:
        verify_range(run[1:], start + 1, size, proof, top, hasher)
    with refused:
        verify_range([*run[:-1], definition.leaf(b"forged")], start, size, proof, top, hasher)


@settings(deadline=None, max_examples=60)
@given(places(), st.data())
def test_a_proof_changed_anywhere_is_refused(place, data):
    index, size = place
    leaves = leaves_of(DEFINITIONS[0], size)
    tree = MerkleTree(leaves)
    parts = [leaves[index], *tree.inclusion(index), tree.root()]
    which = data.draw(st.integers(0, len(parts) - 1))
    bit = data.draw(st.integers(0, 255))
    parts[which] = (int.from_bytes(parts[which], "big") ^ 1 << bit).to_bytes(32, "big")
    leaf, *path, top = parts
    with pytest.raises(ProofRefused):
        verify_inclusion(leaf, index, size, path, top)
