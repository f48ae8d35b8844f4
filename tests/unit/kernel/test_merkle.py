"""Trees grow, remember every size they had, and prove it to somebody who has only the root."""

from __future__ import annotations

import pickle

import pymerkle
import pytest
from scitt_cose import merkle as scitt

from ropewalk.errors import InvalidDigest, InvalidProof, ProofRefused, RangeExceeded
from ropewalk.kernel.merkle import (
    LEDGER,
    RANGE,
    SHA256,
    Frontier,
    MerkleTree,
    RangeProof,
    inclusion_proof,
    root,
    root_seed,
    verify_consistency,
    verify_inclusion,
    verify_range,
)

LEAVES = [LEDGER.leaf(bytes([i])) for i in range(8)]
PUBLISHED = {
    0: "a8ca33485a4d8d444ad00bbc1215aa073278746cda966a9343c48a0de915573e",
    1: "746a0f0fc63ff8990483a4c75c861ab0cb163fd47c32d40b913a3f22f29747f0",
    2: "55721cd8dc3ae895ccfa639922d6c66919c9dd2718e224c02422c26ae814149e",
    3: "ea0e47a3559333198034582b45a8619ce3a0d367f7fc5a3f357ad5e21eb06167",
    5: "d4043f28041a63b5b47a6b4638f85d78a27a203ab42732024fdebc8e6a653c20",
    7: "251f0c3405916a146f004f29d28ae34d9e8fa36094d19101a679d50d7bee205d",
    8: "28759320f34935b94cc1f6e29c419b5595a052b5eb8369489dd1da445449aeb4",
}


@pytest.mark.parametrize("size", PUBLISHED)
def test_ledger_roots_are_the_published_ones(size):
    assert root(LEAVES[:size]).hex() == PUBLISHED[size]
    assert MerkleTree(LEAVES).root(size).hex() == PUBLISHED[size]
    assert MerkleTree(LEAVES[:size]).root().hex() == PUBLISHED[size]


@pytest.mark.parametrize("hasher", [LEDGER, RANGE, SHA256], ids=lambda hasher: hasher.name)
def test_a_hasher_is_a_value_that_travels_to_workers(hasher):
    again = pickle.loads(pickle.dumps(hasher))
    assert again == hasher
    assert again.node(LEAVES[0], LEAVES[1]) == hasher.node(LEAVES[0], LEAVES[1])


def test_the_three_trees_never_share_a_node():
    assert len({hasher.node(LEAVES[0], LEAVES[1]) for hasher in (LEDGER, RANGE, SHA256)}) == 3
    assert len({hasher.leaf(b"") for hasher in (LEDGER, RANGE, SHA256)}) == 3


def test_an_odd_leaf_is_not_doubled():
    a, b, c = LEAVES[:3]
    assert root_seed([a, b, c]) == root_seed([a, b, c, c])
    assert root([a, b, c]) != root([a, b, c, c])
    assert root_seed([]) == root([])
    assert root_seed([a]) == root([a])


def test_a_frontier_survives_a_restart_at_every_size():
    edge = Frontier()
    for size, leaf in enumerate(LEAVES):
        edge = Frontier.from_bytes(edge.to_bytes())
        assert (edge.size, edge.root()) == (size, root(LEAVES[:size]))
        edge.append(leaf)
    assert edge.root().hex() == PUBLISHED[8]


@pytest.mark.parametrize("add", [Frontier().append, MerkleTree().append], ids=["frontier", "tree"])
def test_a_leaf_of_wrong_length_is_refused_and_changes_nothing(add):
    with pytest.raises(InvalidDigest, match="leaf 0 has 31 bytes"):
        add(bytes(31))
    assert add.__self__.size == 0


def test_wrong_lengths_that_cancel_out_are_refused():
    with pytest.raises(InvalidDigest, match="leaf 1 has 31 bytes"):
        root([bytes(32), bytes(31), bytes(33)])


def test_a_tree_grown_by_one_equals_a_tree_made_at_once():
    one_by_one, halves = MerkleTree(), MerkleTree(LEAVES[:3])
    for leaf in LEAVES:
        one_by_one.append(leaf)
    halves.extend(iter(LEAVES[3:]))
    at_once = MerkleTree(LEAVES)
    for height, count in ((0, 8), (1, 4), (2, 2), (3, 1)):
        packed = at_once.nodes(height, 0, count)
        assert one_by_one.nodes(height, 0, count) == packed == halves.nodes(height, 0, count)


def test_functions_over_lists_agree_with_the_tree():
    tree = MerkleTree(LEAVES)
    assert inclusion_proof(LEAVES, 3) == tree.inclusion(3)


@pytest.mark.parametrize(
    "ask",
    [
        lambda tree: tree.leaf(8),
        lambda tree: tree.leaf(-1),
        lambda tree: tree.root(9),
        lambda tree: tree.root(-1),
        lambda tree: tree.inclusion(8),
        lambda tree: tree.inclusion(3, 3),
        lambda tree: tree.inclusion(-1),
        lambda tree: tree.inclusion(0, 9),
        lambda tree: tree.consistency(5, 4),
        lambda tree: tree.consistency(-1),
        lambda tree: tree.range(3, 3),
        lambda tree: tree.range(3, 2),
        lambda tree: tree.range(0, 9),
        lambda tree: tree.range(3, 6, 5),
        lambda tree: tree.nodes(4, 0, 1),
        lambda tree: tree.nodes(-1, 0, 1),
        lambda tree: tree.nodes(1, 0, 5),
    ],
)
def test_a_tree_is_not_asked_beyond_what_it_has(ask):
    with pytest.raises(RangeExceeded):
        ask(MerkleTree(LEAVES))


def test_a_refusal_names_the_step_and_both_hashes():
    tree = MerkleTree(LEAVES)
    with pytest.raises(ProofRefused) as refusal:
        verify_inclusion(LEAVES[2], 3, 8, tree.inclusion(3), tree.root())
    assert refusal.value.fields["step"] == "root"
    assert refusal.value.fields["expected"] == PUBLISHED[8]
    assert refusal.value.exit_code == 5


def test_any_changed_byte_of_a_proof_is_caught():
    tree = MerkleTree(LEAVES[:7])
    path = tree.inclusion(4)
    for step in range(len(path)):
        for byte in range(32):
            changed = list(path)
            changed[step] = path[step][:byte] + bytes([path[step][byte] ^ 0x80]) + path[step][byte + 1 :]
            with pytest.raises(ProofRefused):
                verify_inclusion(LEAVES[4], 4, 7, changed, tree.root())


def test_a_long_path_is_left_where_the_root_is_reached():
    with pytest.raises(InvalidProof, match="path has 10000 hashes; leaf 0 of 2 takes 1"):
        verify_inclusion(LEAVES[0], 0, 2, [bytes(32)] * 10_000, root(LEAVES[:2]))


def test_a_range_of_one_leaf_is_its_inclusion_proof():
    tree = MerkleTree(LEAVES[:7])
    for index in range(7):
        proof = tree.range(index, index + 1)
        assert sorted(proof.left + proof.right) == sorted(tree.inclusion(index))


@pytest.mark.parametrize("side", ["left", "right"])
def test_range_proof_with_a_spare_hash_is_refused(side):
    tree = MerkleTree(LEAVES[:7])
    proof = tree.range(2, 5)
    sides = {"left": proof.left, "right": proof.right}
    longer = RangeProof(**{**sides, side: (*sides[side], LEAVES[0])})
    verify_range(LEAVES[2:5], 2, 7, proof, tree.root())
    with pytest.raises(InvalidProof, match="too many"):
        verify_range(LEAVES[2:5], 2, 7, longer, tree.root())


def test_a_large_range_proof_stays_small():
    leaves = [RANGE.leaf(i.to_bytes(4, "big")) for i in range(1000)]
    tree = MerkleTree(leaves, RANGE)
    proof = tree.range(123, 901)
    assert len(proof.left) + len(proof.right) <= 20
    verify_range(leaves[123:901], 123, 1000, proof, tree.root(), RANGE)
    with pytest.raises(ProofRefused):
        verify_range([*leaves[123:900], leaves[0]], 123, 1000, proof, tree.root(), RANGE)
    assert tree.range(0, 1000) == RangeProof((), ())


# Published code that we did not write must agree, on the SHA-256 tree.
SIZE = 33
DATA = [bytes([i]) * (i + 1) for i in range(SIZE)]
ENTRIES = [data.hex() for data in DATA]
OURS = MerkleTree(map(SHA256.leaf, DATA), SHA256)
PYMERKLE = pymerkle.InmemoryTree(algorithm="sha256")
PYMERKLE.append_entries(DATA)


def test_independent_trees_have_our_roots():
    for size in range(1, SIZE + 1):
        assert OURS.root(size) == PYMERKLE.get_root(size)
        assert OURS.root(size).hex() == scitt.merkle_root(ENTRIES[:size])
    assert OURS.root(0).hex() == scitt.merkle_root([])


def test_scitt_accepts_our_proofs_and_we_accept_theirs():
    for size in (1, 2, 7, 16, 33):
        for index in range(size):
            path = OURS.inclusion(index, size)
            theirs = [bytes.fromhex(text) for text in scitt.inclusion_proof(ENTRIES[:size], index)]
            assert list(path) == theirs
            assert scitt.verify_inclusion(
                ENTRIES[index], index, size, [each.hex() for each in path], OURS.root(size).hex()
            )
            verify_inclusion(OURS.leaf(index), index, size, theirs, OURS.root(size), SHA256)


def test_scitt_accepts_our_consistency():
    for old in range(1, SIZE + 1):
        path = OURS.consistency(old)
        theirs = [bytes.fromhex(text) for text in scitt.consistency_proof(ENTRIES, old, SIZE)]
        assert list(path) == theirs
        assert scitt.verify_consistency(
            OURS.root(old).hex(), OURS.root().hex(), old, SIZE, [each.hex() for each in path]
        )
        verify_consistency(old, SIZE, theirs, OURS.root(old), OURS.root(), SHA256)


def test_pymerkle_makes_the_same_inclusion_proofs():
    for index in range(SIZE):
        proof = PYMERKLE.prove_inclusion(index + 1)
        assert proof.path[0] == OURS.leaf(index)
        assert tuple(proof.path[1:]) == OURS.inclusion(index)
        pymerkle.verify_inclusion(OURS.leaf(index), OURS.root(), proof, index + 1, SIZE)
