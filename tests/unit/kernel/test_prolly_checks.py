"""The checks of a peer's nodes: what is missing is found by them, and no lie of the other side is believed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest
from tests.prolly import build, missing

from ropewalk.errors import BrokenLink, DigestMismatch, ProofRefused, TooLarge, Unverified
from ropewalk.kernel.prolly import checks
from ropewalk.kernel.prolly.checks import LEVEL_MAX, check_children
from ropewalk.kernel.prolly.node import ANCHOR, ANCHOR_HASH, Node, is_boundary, leaf_hash, node_hash
from ropewalk.kernel.prolly.tree import STORE_V3, ProllyReader, ProllyTree


def entries(size, seed=0):
    chance = random.Random(seed)
    return [(chance.randbytes(20), chance.randbytes(8)) for _ in range(size)]


ENTRIES = entries(3000)
HONEST = build(ENTRIES, form=STORE_V3)
SOME = build(ENTRIES[::2])


def keys(leaves):
    return [leaf.key for leaf in leaves]


def test_exactly_the_missing_entries_come_in_key_order():
    assert keys(missing(HONEST, SOME)) == sorted(key for key, _ in ENTRIES[1::2])


def test_missing_leaves_bring_their_values_where_the_source_keeps_them():
    assert {leaf.key: leaf.value for leaf in missing(HONEST, ProllyTree())} == dict(ENTRIES)


def test_a_source_that_has_less_gives_nothing():
    assert list(missing(SOME, HONEST)) == []


@pytest.mark.parametrize(
    ("source_size", "target_size"), [(3000, 1), (3000, 0), (1, 3000), (40, 3000), (3000, 40)]
)
def test_trees_of_different_heights_are_compared(source_size, target_size):
    chosen = random.Random(1).sample(ENTRIES, source_size)
    held = random.Random(2).sample(ENTRIES, target_size)
    assert keys(missing(build(chosen), build(held))) == sorted(
        {key for key, _ in chosen} - {key for key, _ in held}
    )


def test_an_entry_with_another_value_counts_as_missing():
    key, _ = ENTRIES[7]
    target = build(ENTRIES)
    target.insert(key, b"something else")
    assert keys(missing(HONEST, target)) == [key]


def test_what_is_found_may_be_inserted_at_once():
    target = build(ENTRIES[::3])
    for leaf in missing(HONEST, target):
        assert leaf.value is not None
        target.insert(leaf.key, leaf.value)
    assert target.root == HONEST.root


# Lies. Each source below is honest but for one answer.


class Liar(ProllyReader):
    """A source that spoils the answers it is told to."""

    def __init__(self, spoil_root=None, spoil_children=None):
        super().__init__(HONEST._rows)
        self.spoil_root = spoil_root or (lambda root: root)
        self.spoil_children = spoil_children or (lambda level, key, children: children)

    def get_root(self):
        return self.spoil_root(super().get_root())

    def get_children(self, level, key):
        return self.spoil_children(level, key, super().get_children(level, key))


def on_level(wanted, spoil):
    """Spoil the first answer of that level that has enough children to be spoilt."""
    done: list[int] = []

    def spoil_children(level, _key, children):
        if level == wanted and len(children) > 3 and not done:
            done.append(level)
            return spoil(list(children))
        return children

    return spoil_children


def refused(source, error, step=None, target=SOME):
    with pytest.raises(error) as caught:
        list(missing(source, target))
    assert isinstance(caught.value, Unverified)
    assert step is None or caught.value.fields["step"] == step


def test_a_root_above_every_honest_tree_is_refused():
    for level in (LEVEL_MAX + 1, 254, 10**9, -1):
        with pytest.raises(TooLarge):
            list(missing(Liar(lambda root, level=level: replace(root, level=level)), SOME))


def test_a_root_that_is_no_anchor_is_refused():
    refused(Liar(lambda root: replace(root, key=b"k")), BrokenLink, "root")


def test_an_empty_tree_with_another_hash_is_refused():
    refused(Liar(lambda root: Node(0, ANCHOR, root.hash)), DigestMismatch)


def test_a_root_on_another_level_is_refused():
    top = HONEST.root.level
    refused(Liar(lambda root: replace(root, level=top - 1)), Unverified)


def test_a_root_with_another_hash_is_refused():
    refused(Liar(lambda root: replace(root, hash=bytes(16))), DigestMismatch)


LEVELS = [1, 2]
assert HONEST.root.level >= 2


@pytest.mark.parametrize("level", LEVELS)
def test_a_child_left_out_is_missed(level):
    refused(Liar(spoil_children=on_level(level, lambda children: children[:-1])), DigestMismatch)
    refused(
        Liar(spoil_children=on_level(level, lambda children: children[:1] + children[2:])), DigestMismatch
    )


@pytest.mark.parametrize("level", LEVELS)
def test_no_children_at_all_are_refused(level):
    refused(Liar(spoil_children=on_level(level, lambda children: [])), BrokenLink, "count")


@pytest.mark.parametrize("level", LEVELS)
def test_a_child_slipped_in_is_refused(level):
    def slip(children):
        extra = Node(level - 1, children[1].key + b"\0", b"\xff" * 16)
        return [*children[:2], extra, *children[2:]]

    refused(Liar(spoil_children=on_level(level, slip)), DigestMismatch)


@pytest.mark.parametrize("level", LEVELS)
def test_a_child_with_another_hash_is_refused(level):
    def change(children):
        return [children[0], replace(children[1], hash=b"\xff" * 16, value=None), *children[2:]]

    refused(Liar(spoil_children=on_level(level, change)), DigestMismatch)


@pytest.mark.parametrize("level", LEVELS)
def test_children_out_of_order_are_refused(level):
    """Hashes above the leaves do not cover keys, so the order must be checked for itself."""

    def swap_keys(children):
        one, two = children[1], children[2]
        return [
            children[0],
            replace(one, key=two.key, value=None),
            replace(two, key=one.key, value=None),
            *children[3:],
        ]

    refused(Liar(spoil_children=on_level(level, swap_keys)), BrokenLink, "order")


@pytest.mark.parametrize("level", LEVELS)
def test_one_key_twice_is_refused(level):
    def double(children):
        return [*children[:2], replace(children[2], key=children[1].key, value=None), *children[3:]]

    refused(Liar(spoil_children=on_level(level, double)), BrokenLink, "order")


def test_keys_that_reach_into_the_next_node_are_refused():
    def stretch(children):
        return [*children[:-1], replace(children[-1], key=b"\xff" * 20, value=None)]

    refused(Liar(spoil_children=on_level(1, stretch)), BrokenLink, "order")


@pytest.mark.parametrize("level", LEVELS)
def test_a_first_child_with_another_key_is_refused(level):
    def rename(children):
        return [replace(children[0], key=children[0].key + b"\0"), *children[1:]]

    refused(Liar(spoil_children=on_level(level, rename)), BrokenLink, "first")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shift", [-1, 1, 100])
def test_children_of_another_level_are_refused(level, shift):
    def move(children):
        return [replace(child, level=child.level + shift) for child in children]

    refused(Liar(spoil_children=on_level(level, move)), ProofRefused, "level")


@pytest.mark.parametrize("length", [0, 15, 17, 32])
def test_hashes_of_another_length_are_refused(length):
    def cut(children):
        return [children[0], replace(children[1], hash=b"\xff" * length), *children[2:]]

    refused(Liar(spoil_children=on_level(2, cut)), ProofRefused, "length")


def test_endless_keys_are_refused():
    def lengthen(children):
        return [*children[:-1], replace(children[-1], key=children[-1].key + bytes(1000))]

    refused(Liar(spoil_children=on_level(2, lengthen)), ProofRefused, "length")


def test_another_value_under_a_leaf_is_refused():
    def change(children):
        return [*children[:-1], replace(children[-1], value=b"forged")]

    refused(Liar(spoil_children=on_level(1, change)), DigestMismatch)


def test_a_value_above_the_leaves_is_refused():
    def load(children):
        return [*children[:-1], replace(children[-1], value=bytes(1000))]

    refused(Liar(spoil_children=on_level(2, load)), ProofRefused, "value")


def test_a_value_on_the_anchor_is_refused():
    source = Made({(1, ANCHOR): [Node(0, ANCHOR, ANCHOR_HASH, b"hidden"), leaf(b"a")]})
    refused(source, ProofRefused, "value")


def test_more_children_than_allowed_are_refused(monkeypatch):
    largest = max(len(HONEST.get_children(node.level, node.key)) for node in nodes_above_leaves(HONEST))
    monkeypatch.setattr(checks, "CHILDREN_MAX", largest)
    assert list(missing(HONEST, SOME))
    monkeypatch.setattr(checks, "CHILDREN_MAX", largest - 1)
    with pytest.raises(TooLarge) as caught:
        list(missing(HONEST, SOME))
    assert caught.value.fields["limit"] == largest - 1


def nodes_above_leaves(tree) -> Iterator[Node]:
    todo = [tree.root]
    while todo:
        node = todo.pop()
        yield node
        if node.level > 1:
            todo += tree.get_children(node.level, node.key)


# Trees whose hashes all agree, but which no honest builder would make.


class Made:
    """A source given by the children of each node; the root is the highest, hashed from its children."""

    def __init__(self, children):
        self.children = children

    def get_root(self):
        level, key = max(self.children)
        return Node(level, key, node_hash(child.hash for child in self.children[level, key]))

    def get_node(self, level, key):
        raise AssertionError("the source is never asked for single nodes")

    def get_children(self, level, key):
        return self.children[level, key]


def leaf(key, boundary=False):
    """A leaf under `key` with a value chosen so that it is, or is not, a boundary."""
    for value in (i.to_bytes(2, "big") for i in count()):
        if is_boundary(leaf_hash(key, value)) == boundary:
            return Node(0, key, leaf_hash(key, value), value)
    raise AssertionError


def above(children):
    return Node(children[0].level + 1, children[0].key, node_hash(child.hash for child in children))


ANCHOR_LEAF = Node(0, ANCHOR, ANCHOR_HASH)


def test_a_node_that_swallows_a_boundary_is_refused():
    source = Made({(1, ANCHOR): [ANCHOR_LEAF, leaf(b"a"), leaf(b"b", boundary=True), leaf(b"c")]})
    refused(source, ProofRefused, "boundary")


def test_a_node_that_starts_without_a_boundary_is_refused():
    left, right = [ANCHOR_LEAF, leaf(b"a")], [leaf(b"b"), leaf(b"c")]
    source = Made({(2, ANCHOR): [above(left), above(right)], (1, ANCHOR): left, (1, b"b"): right})
    assert not is_boundary(above(right).hash)
    refused(source, ProofRefused, "boundary")


def test_an_anchor_with_the_hash_of_something_else_is_refused():
    refused(Made({(1, ANCHOR): [replace(ANCHOR_LEAF, hash=b"\xff" * 16), leaf(b"a")]}), DigestMismatch)


def test_a_child_with_the_key_of_the_next_node_is_refused():
    """Two nodes must not both claim one key: what lies below a node stays below the next one's key."""
    tree = build(ENTRIES)
    level = 1
    first, second = tree.get_children(level + 1, ANCHOR)[:2]
    children = tree.get_children(level, first.key)
    check_children(first, second.key, children)
    with pytest.raises(BrokenLink, match="reach into the next node"):
        check_children(first, children[-1].key, children)
