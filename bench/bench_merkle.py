"""The tree beside pymerkle: same hash, leaves hashed, nodes kept, same root and same paths."""

from __future__ import annotations

import pymerkle

from bench.harness import Contestant, Result, compare
from ropewalk.kernel.merkle import SHA256, MerkleTree, verify_inclusion

__all__ = ["run"]

PROOFS = 10_000
ROUNDS = 3  # the peer takes twenty seconds for a million leaves


def run(quick: bool) -> list[Result]:
    """A log of a million leaves; with `quick`, fifty thousand."""
    size = 50_000 if quick else 1_000_000
    data = [i.to_bytes(8, "big") for i in range(size)]
    asked = [i * 7_919 % size for i in range(PROOFS)]  # spread over the whole tree, the same for both

    def ours_build() -> int:
        return len(MerkleTree(map(SHA256.leaf, data), SHA256).root()) and size

    def peer_build() -> int:
        tree = pymerkle.InmemoryTree(algorithm="sha256")
        tree.append_entries(data)
        return len(tree.get_root()) and size

    tree = MerkleTree(map(SHA256.leaf, data), SHA256)
    peer = pymerkle.InmemoryTree(algorithm="sha256")
    peer.append_entries(data)
    root = tree.root()
    if root != peer.get_root():
        raise AssertionError("the two trees disagree: the comparison would mean nothing")

    paths = [tree.inclusion(index) for index in asked]
    proofs = [peer.prove_inclusion(index + 1) for index in asked]
    if any(list(path) != proof.path[1:] for path, proof in zip(paths, proofs, strict=True)):
        raise AssertionError("the two trees prove differently: the comparison would mean nothing")
    leaves = [tree.leaf(index) for index in asked]

    def ours_prove() -> int:
        for index in asked:
            tree.inclusion(index)
        return PROOFS

    def peer_prove() -> int:
        for index in asked:
            peer.prove_inclusion(index + 1)
        return PROOFS

    def ours_verify() -> int:
        for leaf, index, path in zip(leaves, asked, paths, strict=True):
            verify_inclusion(leaf, index, size, path, root, SHA256)
        return PROOFS

    def peer_verify() -> int:
        for leaf, index, proof in zip(leaves, asked, proofs, strict=True):
            pymerkle.verify_inclusion(leaf, root, proof, index + 1, size)
        return PROOFS

    def job(
        name: str, ours: Contestant, peer: Contestant, target: float | None, unit: str, note: str = ""
    ) -> list[Result]:
        return compare(name, ours, [peer], target=target, rounds=ROUNDS, unit=unit, note=note)

    shown = f"{size // 1000}k leaves"
    return [
        *job(
            f"merkle root and nodes, {shown}",
            Contestant("ropewalk", ours_build),
            Contestant("pymerkle", peer_build),
            4.0,
            "leaves",
        ),
        *job(
            f"merkle inclusion proofs, {shown}",
            Contestant("ropewalk", ours_prove),
            Contestant("pymerkle", peer_prove),
            4.0,
            "proofs",
        ),
        *job(
            f"merkle proofs verified, {shown}",
            Contestant("ropewalk", ours_verify),
            Contestant("pymerkle", peer_verify),
            None,
            "proofs",
            "both spend most of it in the same hash function, so there is little to win",
        ),
    ]
