"""The tree is a function of its entries, and comparing two trees finds exactly what differs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.prolly import Tree, build, missing

from ropewalk.errors import Unverified
from ropewalk.kernel.prolly.memory import MemoryStore
from ropewalk.kernel.prolly.node import ANCHOR, ANCHOR_HASH, Node, leaf_hash, node_hash
from ropewalk.kernel.prolly.tree import STORE_V3, ProllyReader, ProllyTree

QUICK = settings(max_examples=60, deadline=None)

# Large trees come from a seed: Hypothesis by itself would rarely draw enough entries for three levels.
seeds = st.integers(0, 2**32)
sizes = st.sampled_from([0, 1, 2, 30, 33, 200, 1200])
few = st.dictionaries(st.binary(min_size=1, max_size=3), st.binary(max_size=3), max_size=40)


def many(size: int, seed: int) -> dict[bytes, bytes]:
    chance = random.Random(seed)
    return {chance.randbytes(chance.choice((1, 2, 20))): chance.randbytes(4) for _ in range(size)}


entry_maps = few | st.builds(many, sizes, seeds)


def by_definition(entries: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Every row of the tree, from nothing but the rule: cut each level at its boundaries, hash, repeat."""
    level = [(ANCHOR, ANCHOR_HASH), *((key, leaf_hash(key, entries[key])) for key in sorted(entries))]
    rows: dict[bytes, bytes] = {}
    height = 0
    while True:
        rows |= {bytes((height,)) + key: hash for key, hash in level}
        if len(level) == 1:
            return rows
        groups: list[tuple[bytes, list[bytes]]] = []
        for key, hash in level:
            if key == ANCHOR or int.from_bytes(hash[:4], "big") < 2**32 // 32:
                groups.append((key, []))
            groups[-1][1].append(hash)
        level = [(key, node_hash(hashes)) for key, hashes in groups]
        height += 1


def rows(store: MemoryStore) -> dict[bytes, bytes]:
    return dict(store.scan(stop=b"\xff"))


@QUICK
@given(entry_maps, seeds)
def test_tree_is_independent_of_insertion_order(entries, seed):
    shuffled = list(entries.items())
    random.Random(seed).shuffle(shuffled)
    singly, together = MemoryStore(), MemoryStore()
    tree = ProllyTree(singly)
    for key, value in shuffled:
        assert tree.insert(key, value)
    build(entries.items(), together)
    assert rows(singly) == rows(together) == by_definition(entries)


@QUICK
@given(
    entry_maps,
    st.lists(st.tuples(st.sampled_from(["insert", "batch", "replace", "reopen"]), seeds), max_size=12),
)
def test_any_history_leaves_the_tree_of_what_is_left(entries, history):
    store = MemoryStore()
    tree = build(entries.items(), store)
    model = dict(entries)
    for act, seed in history:
        chance = random.Random(seed)
        if act == "insert":
            for key, value in many(3, seed).items():
                assert tree.insert(key, value) == (model.get(key) != value)
                model[key] = value
        elif act == "batch":
            batch = many(chance.choice((1, 20, 300)), seed)
            assert tree.insert_many(batch.items()) == sum(
                model.get(key) != value for key, value in batch.items()
            )
            model |= batch
        elif act == "replace":  # a boundary moves where a hash was one or becomes one
            chosen = chance.sample(sorted(model), len(model) // chance.choice((1, 2, 10)))
            anew = {key: model[key] + b"+" for key in chosen}
            assert tree.insert_many(anew.items()) == len(anew)
            model |= anew
        else:
            tree = Tree(store)
        assert rows(store) == by_definition(model)


@QUICK
@given(entry_maps, entry_maps, seeds, st.floats(0, 1))
def test_the_difference_is_exactly_what_the_other_side_lacks(mine, theirs, seed, shared):
    chance = random.Random(seed)
    theirs = theirs | {key: value for key, value in mine.items() if chance.random() < shared}
    source, target = build(mine.items(), form=STORE_V3), build(theirs.items())
    found = [(leaf.key, leaf.value or b"") for leaf in missing(source, target)]
    assert found == sorted((key, value) for key, value in mine.items() if theirs.get(key) != value)
    target.insert_many(found)
    assert list(missing(source, target)) == []


class Spoilt(ProllyReader):
    """A source that changes one thing in one answer."""

    def __init__(self, rows, at, spoil):
        super().__init__(rows)
        self.left = at
        self.spoil = spoil
        self.lied = False

    def get_children(self, level, key):
        children = super().get_children(level, key)
        self.left -= 1
        if self.left == 0:
            spoilt = self.spoil(list(children))
            self.lied = spoilt != children
            return spoilt
        return children


def spoils(seed: int):
    chance = random.Random(seed)

    def change(children: list[Node]) -> list[Node]:
        at = chance.randrange(len(children))
        node = children[at]
        other = children[chance.randrange(len(children))]
        lie = chance.choice(("hash", "drop", "double", "swap", "level", "add"))
        if lie == "hash":
            flipped = bytearray(node.hash)
            flipped[chance.randrange(16)] ^= 1 << chance.randrange(8)
            children[at] = Node(node.level, node.key, bytes(flipped), node.value)
        elif lie == "drop":
            del children[at]
        elif lie == "double":
            children.insert(at, node)
        elif lie == "swap":
            children[at] = Node(node.level, other.key, node.hash, node.value)
        elif lie == "level":
            children[at] = Node(node.level + chance.choice((-1, 1)), node.key, node.hash, node.value)
        else:
            children.append(Node(node.level, children[-1].key + b"\0", chance.randbytes(16)))
        return children

    return change


@QUICK
@given(st.integers(100, 1500), seeds, st.integers(1, 12))
def test_no_random_lie_is_believed(size, seed, at):
    store = MemoryStore()
    build(many(size, seed).items(), store, STORE_V3)
    source = Spoilt(store, at, spoils(seed))
    target = ProllyTree()
    try:
        leaves = list(missing(source, target))
    except Unverified:
        assert source.lied
    else:
        assert not source.lied
        assert len(leaves) == len(many(size, seed))


def test_a_lie_is_in_fact_told():
    """The test above would pass with a source that never lies."""
    store = MemoryStore()
    build(many(500, 1).items(), store, STORE_V3)
    with pytest.raises(Unverified):
        for seed in range(20):
            list(missing(Spoilt(store, 2, spoils(seed)), ProllyTree()))
