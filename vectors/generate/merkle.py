"""Cases for the tree: roots, the three proofs, the frontier, and the forgeries each must refuse.

Everything is computed here from the recursive definitions of RFC 9162 §2.1, by slow code that shares nothing with
the product but the tags, so that a vector can disagree with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from ropewalk.kernel.digest import Tag

Hashes = list[bytes]


@dataclass(frozen=True)
class Definition:
    """One kind of tree, by its definition."""

    name: str
    digest: Callable[[bytes], bytes]
    leaf_prefix: bytes
    node_prefix: bytes
    empty_input: bytes

    def leaf(self, data: bytes) -> bytes:
        return self.digest(self.leaf_prefix + data)

    def root(self, leaves: Hashes) -> bytes:
        """MTH of RFC 9162 §2.1.1, over leaf hashes."""
        if not leaves:
            return self.digest(self.empty_input)
        if len(leaves) == 1:
            return leaves[0]
        k = split(len(leaves))
        return self.digest(self.node_prefix + self.root(leaves[:k]) + self.root(leaves[k:]))

    def inclusion(self, index: int, leaves: Hashes) -> Hashes:
        """PATH of RFC 9162 §2.1.3.1."""
        if len(leaves) == 1:
            return []
        k = split(len(leaves))
        if index < k:
            return [*self.inclusion(index, leaves[:k]), self.root(leaves[k:])]
        return [*self.inclusion(index - k, leaves[k:]), self.root(leaves[:k])]

    def consistency(self, old: int, leaves: Hashes, whole: bool = True) -> Hashes:
        """SUBPROOF of RFC 9162 §2.1.4.1."""
        if old == len(leaves):
            return [] if whole else [self.root(leaves)]
        k = split(len(leaves))
        if old <= k:
            return [*self.consistency(old, leaves[:k], whole), self.root(leaves[k:])]
        return [*self.consistency(old - k, leaves[k:], False), self.root(leaves[:k])]

    def range(self, start: int, end: int, leaves: Hashes) -> tuple[Hashes, Hashes]:
        """What surrounds a run: subtrees wholly before it and wholly after it, smallest first."""
        if len(leaves) == 1 or (start == 0 and end == len(leaves)):
            return [], []
        k = split(len(leaves))
        left: Hashes = []
        right: Hashes = []
        if start < k:
            below = self.range(start, min(end, k), leaves[:k])
            left += below[0]
            right += below[1] if end <= k else []
        else:
            left.append(self.root(leaves[:k]))
        if end > k:
            below = self.range(max(start, k) - k, end - k, leaves[k:])
            left = below[0] + left if start >= k else left
            right += below[1]
        else:
            right.append(self.root(leaves[k:]))
        return left, right


def split(size: int) -> int:
    """The largest power of two below the size."""
    k = 1
    while k * 2 < size:
        k *= 2
    return k


def _sha256(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()


def _blake3(raw: bytes) -> bytes:
    return bytes(blake3(raw).digest())


DEFINITIONS = [
    Definition("ledger", _blake3, Tag.ENVELOPE, Tag.NODE, Tag.EMPTY),
    Definition("range", _blake3, Tag.BLOCK, Tag.RANGE_NODE, Tag.EMPTY),
    Definition("sha256", _sha256, b"\x00", b"\x01", b""),
]


def texts(hashes: Hashes) -> list[str]:
    return [each.hex() for each in hashes]


def leaves_of(tree: Definition, size: int) -> Hashes:
    return [tree.leaf(bytes([i])) for i in range(size)]


def roots() -> dict[str, Any]:
    cases = [
        {
            "name": f"{tree.name}_{size}",
            "input": {"hasher": tree.name, "leaves": texts(leaves_of(tree, size))},
            "expect": {"root": tree.root(leaves_of(tree, size)).hex()},
        }
        for tree in DEFINITIONS
        for size in (0, 1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 17)
    ]
    cases.append(
        {
            "name": "leaf_of_31_bytes",
            "why": "a short leaf would shift every hash after it",
            "input": {"hasher": "ledger", "leaves": ["00" * 32, "00" * 31]},
            "error": {"code": "InvalidDigest"},
        }
    )
    return {
        "name": "roots",
        "why": "Leaf i is the leaf hash of the byte i. A tree splits at the largest power of two below its size.",
        "cases": cases,
    }


def leaves() -> dict[str, Any]:
    return {
        "name": "leaves",
        "why": "What a leaf hash is made of: the prefix of its tree, then the data.",
        "cases": [
            {
                "name": f"{tree.name}_{len(data)}_bytes",
                "input": {"hasher": tree.name, "data": data.hex()},
                "expect": {"leaf": tree.leaf(data).hex()},
            }
            for tree in DEFINITIONS
            for data in (b"", b"\x00", b"ropewalk")
        ],
    }


def inclusion() -> dict[str, Any]:
    cases: list[dict[str, Any]] = []

    def claim(name: str, verdict: dict[str, Any], why: str | None = None, **given: Any) -> None:
        cases.append({"name": name, **({"why": why} if why else {}), "input": given, **verdict})

    for tree in DEFINITIONS:
        for size, indices in ((1, [0]), (2, [0, 1]), (7, range(7)), (8, [0, 5, 7])):
            all_leaves = leaves_of(tree, size)
            for index in indices:
                claim(
                    f"{tree.name}_{index}_of_{size}",
                    {"expect": {"holds": True}},
                    hasher=tree.name,
                    leaf=all_leaves[index].hex(),
                    index=index,
                    size=size,
                    path=texts(tree.inclusion(index, all_leaves)),
                    root=tree.root(all_leaves).hex(),
                )

    tree, size, index = DEFINITIONS[0], 7, 4
    all_leaves = leaves_of(tree, size)
    path = texts(tree.inclusion(index, all_leaves))
    good: dict[str, Any] = {
        "hasher": "ledger",
        "leaf": all_leaves[index].hex(),
        "index": index,
        "size": size,
        "path": path,
        "root": tree.root(all_leaves).hex(),
    }
    invalid = {"error": {"code": "InvalidProof"}}
    refused = {"error": {"code": "ProofRefused", "step": "root"}}

    def forge(name: str, verdict: dict[str, Any], why: str, **changes: Any) -> None:
        claim(name, verdict, why, **{**good, **changes})

    forge("wrong_leaf", refused, "another leaf of the same tree", leaf=all_leaves[5].hex())
    forge("wrong_root", refused, "the root of the tree before", root=tree.root(all_leaves[:6]).hex())
    forge(
        "wrong_index",
        refused,
        "the path is right, the place is not: the first ledger code passed this",
        index=5,
    )
    forge("mirrored_index", invalid, "a place whose path is shorter", index=6)
    forge("wrong_size", invalid, "a tree in which this path stops below the root", size=9)
    forge(
        "size_of_same_shape",
        {"expect": {"holds": True}},
        "leaf 4 has a path of one shape in trees of 7 and 8: no path proves a size, a signed head does",
        size=8,
    )
    forge("smaller_size", invalid, "a tree in which this path has a step too many", size=5)
    forge("index_is_size", invalid, "the first place outside", index=7)
    forge("index_beyond_size", invalid, "", index=4 + 8)
    forge("negative_index", invalid, "", index=-1)
    forge("size_zero", invalid, "the empty tree includes nothing", index=0, size=0, path=[])
    forge("swapped_siblings", refused, "order is part of the proof", path=[path[1], path[0], *path[2:]])
    forge("extra_element", invalid, "trailing hashes are not ignored", path=[*path, "00" * 32])
    forge("extra_element_in_front", invalid, "", path=["00" * 32, *path])
    forge("missing_element", invalid, "a path that stops below the root", path=path[:-1])
    forge("empty_path", invalid, "", path=[])
    forge("short_element", invalid, "31 bytes", path=[path[0], path[1][:-2], *path[2:]])
    forge("long_element", invalid, "33 bytes", path=[path[0], path[1] + "00", *path[2:]])
    forge(
        "two_elements_as_one",
        invalid,
        "64 bytes would hash to the same node as two",
        path=[path[0] + path[1], path[2]],
    )
    forge("short_leaf", invalid, "", leaf=good["leaf"][:-2])
    forge("short_root", invalid, "", root=good["root"][:-2])
    forge("other_tags", refused, "hashed as another tree", hasher="range")
    forge(
        "inner_node_as_leaf",
        invalid,
        "a node one level up, with the rest of the path: index and size fix the depth",
        leaf=tree.digest(tree.node_prefix + all_leaves[4] + all_leaves[5]).hex(),
        index=2,
        path=path[1:],
    )
    forge(
        "flipped_bit", refused, "one bit of one sibling", path=[*path[:-1], f"{int(path[-1], 16) ^ 1:064x}"]
    )
    for case in cases:
        if case.get("why") == "":
            del case["why"]
    return {
        "name": "inclusion",
        "why": "The leaf stands at this index under the root of that many leaves; RFC 9162 §2.1.3.2 and nothing less.",
        "cases": cases,
    }


def consistency() -> dict[str, Any]:
    cases: list[dict[str, Any]] = []
    for tree in DEFINITIONS:
        all_leaves = leaves_of(tree, 8)
        for old, new in (
            (0, 0),
            (0, 5),
            (1, 1),
            (1, 2),
            (1, 8),
            (2, 5),
            (3, 7),
            (4, 7),
            (6, 8),
            (7, 8),
            (8, 8),
        ):
            cases.append(
                {
                    "name": f"{tree.name}_{old}_to_{new}",
                    "input": {
                        "hasher": tree.name,
                        "old": old,
                        "new": new,
                        "path": texts(tree.consistency(old, all_leaves[:new])) if old else [],
                        "old_root": tree.root(all_leaves[:old]).hex(),
                        "new_root": tree.root(all_leaves[:new]).hex(),
                    },
                    "expect": {"holds": True},
                }
            )
    tree = DEFINITIONS[0]
    all_leaves = leaves_of(tree, 8)
    path = texts(tree.consistency(3, all_leaves[:7]))
    good = {
        "hasher": "ledger",
        "old": 3,
        "new": 7,
        "path": path,
        "old_root": tree.root(all_leaves[:3]).hex(),
        "new_root": tree.root(all_leaves[:7]).hex(),
    }
    rewritten = [tree.leaf(b"rewritten"), *all_leaves[1:7]]
    invalid = {"code": "InvalidProof"}
    old_refused = {"code": "ProofRefused", "step": "old_root"}
    new_refused = {"code": "ProofRefused", "step": "new_root"}
    forgeries: list[tuple[str, str, dict[str, str], dict[str, Any]]] = [
        ("wrong_old_root", "the log showed another tree before", old_refused, {"old_root": "00" * 32}),
        ("wrong_new_root", "", new_refused, {"new_root": "00" * 32}),
        (
            "history_rewritten",
            "an honest proof inside a log whose first leaf was replaced",
            old_refused,
            {"path": texts(tree.consistency(3, rewritten)), "new_root": tree.root(rewritten).hex()},
        ),
        ("sizes_swapped", "a tree does not extend a larger one", invalid, {"old": 7, "new": 3}),
        ("negative_old", "", invalid, {"old": -1}),
        ("extra_element", "trailing hashes are not ignored", invalid, {"path": [*path, "00" * 32]}),
        ("missing_element", "", invalid, {"path": path[:-1]}),
        ("empty_path", "", invalid, {"path": []}),
        ("swapped_siblings", "", old_refused, {"path": [path[1], path[0], *path[2:]]}),
        ("short_element", "31 bytes", invalid, {"path": [path[0][:-2], *path[1:]]}),
        ("wrong_new_size", "same path, other shape", invalid, {"new": 4}),
        ("wrong_old_size", "a power of two brings its own first node", invalid, {"old": 2}),
        (
            "same_size_other_root",
            "equal sizes mean equal roots",
            old_refused,
            {"old": 7, "path": []},
        ),
        (
            "same_size_with_path",
            "nothing to prove, so nothing to send",
            invalid,
            {"old": 7, "old_root": good["new_root"], "path": ["00" * 32]},
        ),
        ("from_empty_with_path", "", invalid, {"old": 0, "old_root": tree.root([]).hex(), "path": path}),
        ("from_empty_other_root", "only one tree is empty", old_refused, {"old": 0, "path": []}),
        (
            "empty_to_empty_other_root",
            "",
            new_refused,
            {"old": 0, "new": 0, "path": [], "old_root": tree.root([]).hex()},
        ),
        ("other_tags", "hashed as another tree", old_refused, {"hasher": "range"}),
    ]
    cases += [
        {"name": name, **({"why": why} if why else {}), "input": {**good, **changes}, "error": error}
        for name, why, error, changes in forgeries
    ]
    return {
        "name": "consistency",
        "why": "The new tree keeps every leaf of the old one, in place; RFC 9162 §2.1.4.2.",
        "cases": cases,
    }


def ranges() -> dict[str, Any]:
    cases: list[dict[str, Any]] = []

    def given(tree: Definition, start: int, end: int, size: int) -> dict[str, Any]:
        all_leaves = leaves_of(tree, size)
        left, right = tree.range(start, end, all_leaves)
        return {
            "hasher": tree.name,
            "leaves": texts(all_leaves[start:end]),
            "start": start,
            "size": size,
            "left": texts(left),
            "right": texts(right),
            "root": tree.root(all_leaves).hex(),
        }

    for tree in DEFINITIONS:
        for start, end, size in (
            (0, 1, 1),
            (0, 2, 3),
            (2, 3, 3),
            (1, 6, 7),
            (3, 4, 7),
            (0, 7, 7),
            (5, 8, 13),
            (9, 13, 13),
        ):
            cases.append(
                {
                    "name": f"{tree.name}_{start}_to_{end}_of_{size}",
                    "input": given(tree, start, end, size),
                    "expect": {"holds": True},
                }
            )
    good = given(DEFINITIONS[1], 1, 6, 7)
    run, left, right = good["leaves"], good["left"], good["right"]
    invalid = {"code": "InvalidProof"}
    refused = {"code": "ProofRefused", "step": "root"}
    forgeries: list[tuple[str, str, dict[str, str], dict[str, Any]]] = [
        ("missing_leaf", "a run with a hole", refused, {"leaves": [*run[:2], *run[3:], run[-1]]}),
        ("last_leaf_missing", "", invalid, {"leaves": run[:-1]}),
        ("doubled_leaf", "", invalid, {"leaves": [*run, run[-1]]}),
        ("reordered_leaves", "", refused, {"leaves": [run[1], run[0], *run[2:]]}),
        ("no_leaves", "nothing proves nothing", invalid, {"leaves": []}),
        ("wrong_start", "", invalid, {"start": 0}),
        ("start_beyond_size", "", invalid, {"start": 3}),
        ("negative_start", "", invalid, {"start": -1}),
        ("wrong_size", "a taller tree", invalid, {"size": 9}),
        ("extra_left", "", invalid, {"left": [*left, "00" * 32]}),
        ("extra_right", "", invalid, {"right": [*right, "00" * 32]}),
        ("missing_left", "", invalid, {"left": left[:-1]}),
        ("missing_right", "", invalid, {"right": right[:-1]}),
        ("sides_swapped", "", refused, {"left": right, "right": left}),
        ("short_element", "", invalid, {"left": [left[0][:-2]]}),
        (
            "short_leaf",
            "two lengths that add up are still wrong",
            invalid,
            {"leaves": [run[0][:-2], run[1] + "00", *run[2:]]},
        ),
        ("wrong_root", "", refused, {"root": "00" * 32}),
        ("other_tags", "hashed as another tree", refused, {"hasher": "ledger"}),
    ]
    cases += [
        {"name": name, **({"why": why} if why else {}), "input": {**good, **changes}, "error": error}
        for name, why, error, changes in forgeries
    ]
    return {
        "name": "range",
        "why": (
            "Consecutive leaves from `start` under the root of `size` leaves. `left` and `right` are the hashes of "
            "what surrounds them, bottom up. Level by level: take one from the left when the first place is odd, one "
            "from the right when the last place is even and not the end of the level; pair; an odd node rises."
        ),
        "cases": cases,
    }


def odd_leaf_duplication() -> dict[str, Any]:
    tree = DEFINITIONS[0]
    a, b, c, d, e, f = leaves_of(tree, 6)

    def seed(level: Hashes) -> bytes:
        while len(level) > 1:
            level = [*level, level[-1]] if len(level) % 2 else level
            pairs = zip(level[::2], level[1::2], strict=True)
            level = [tree.digest(tree.node_prefix + left + right) for left, right in pairs]
        return level[0]

    cases = []
    for name, shorter in (("three", [a, b, c]), ("five", [a, b, c, d, e]), ("six", [a, b, c, d, e, f])):
        longer = [*shorter, *(shorter[-2:] if name == "six" else shorter[-1:])]
        assert seed(shorter) == seed(longer)
        cases.append(
            {
                "name": name,
                "input": {"hasher": "ledger", "leaves": texts(shorter), "doubled": texts(longer)},
                "expect": {
                    "root": tree.root(shorter).hex(),
                    "root_of_doubled": tree.root(longer).hex(),
                    "seed_root_of_both": seed(shorter).hex(),
                },
            }
        )
    return {
        "name": "odd_leaf_duplication",
        "why": "Pairing an odd node with itself gives two lists one root. Ours gives two; the seed's form does not.",
        "cases": cases,
    }


def frontier() -> dict[str, Any]:
    cases: list[dict[str, Any]] = []
    for tree in DEFINITIONS:
        for size in (0, 1, 3, 6, 7, 8):
            all_leaves = leaves_of(tree, size)
            peaks, at = b"", 0
            for bit in reversed(range(4)):
                if size >> bit & 1:
                    peaks += tree.root(all_leaves[at : at + (1 << bit)])
                    at += 1 << bit
            cases.append(
                {
                    "name": f"{tree.name}_{size}",
                    "input": {"hasher": tree.name, "frontier": (size.to_bytes(8, "big") + peaks).hex()},
                    "expect": {"size": size, "root": tree.root(all_leaves).hex()},
                }
            )
    for name, raw in (
        ("no_bytes", b""),
        ("seven_bytes", bytes(7)),
        ("missing_peak", (3).to_bytes(8, "big") + bytes(32)),
        ("extra_peak", (1).to_bytes(8, "big") + bytes(64)),
        ("torn_peak", (1).to_bytes(8, "big") + bytes(31)),
        ("size_beyond_63_bits", (1 << 63).to_bytes(8, "big") + bytes(32)),
    ):
        cases.append(
            {
                "name": name,
                "input": {"hasher": "ledger", "frontier": raw.hex()},
                "error": {"code": "InvalidProof"},
            }
        )
    return {
        "name": "frontier",
        "why": "A growing tree's right edge on disk: size in 8 bytes, then roots of full subtrees, largest first.",
        "cases": cases,
    }


def generate() -> dict[str, object]:
    return {
        "merkle/leaves.json": leaves(),
        "merkle/roots.json": roots(),
        "merkle/inclusion.json": inclusion(),
        "merkle/consistency.json": consistency(),
        "merkle/range.json": ranges(),
        "merkle/odd_leaf_duplication.json": odd_leaf_duplication(),
        "merkle/frontier.json": frontier(),
    }
