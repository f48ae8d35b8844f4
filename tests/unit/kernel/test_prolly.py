"""The tree: row for row what okra writes, whatever the order and the batches its entries came in."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from pathlib import Path

import pytest
from tests.prolly import Tree, build

from ropewalk.errors import Damaged, Invalid, NotFound, RangeExceeded
from ropewalk.kernel.prolly import tree as module
from ropewalk.kernel.prolly.memory import MemoryStore
from ropewalk.kernel.prolly.node import ANCHOR, ANCHOR_HASH, Node, is_boundary, leaf_hash, node_hash
from ropewalk.kernel.prolly.tree import INDEX_V3, STORE_V1, STORE_V3, ProllyReader

VECTORS = Path(__file__).parents[3] / "vectors" / "gossiplog"


def load(name):
    return json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))


def okra_entry(i):
    """The rule that `v0.6-okra.json` states."""
    blocks = (hashlib.sha256(f"shared-okra-val-{i}/{block}".encode()).digest() for block in range(4))
    return hashlib.sha256(f"shared-okra-key-{i}".encode()).digest()[:20], b"".join(blocks)[: i * 7 % 97]


def entries(count, seed=0):
    chance = random.Random(seed)
    return [(chance.randbytes(20), chance.randbytes(8)) for _ in range(count)]


def rows(store):
    return list(store.scan())


def in_order(tree, made):
    for key, value in made:
        tree.insert(key, value)


def backwards(tree, made):
    in_order(tree, reversed(made))


def all_at_once(tree, made):
    tree.insert_many(made)


def in_batches(tree, made):
    for at in range(0, len(made), 7):
        tree.insert_many(made[at : at + 7])


def with_detours(tree, made):
    """Values that are replaced must leave no trace."""
    in_order(tree, [(key, b"first thought") for key, _ in made[:50]])
    tree.insert_many([(key, b"second thought") for key, _ in made[25:]])
    all_at_once(tree, made)


@pytest.mark.parametrize("way", [in_order, backwards, all_at_once, in_batches, with_detours])
@pytest.mark.parametrize("case", load("v0.6-okra")["trees"], ids=lambda case: f"{case['n']}_entries")
def test_okra_gives_the_same_tree(case, way):
    store = MemoryStore()
    tree = Tree(store, STORE_V1)
    way(tree, [okra_entry(i) for i in range(case["n"])])
    assert (tree.root.level, tree.root.hash.hex()) == (case["root_level"], case["root_hash"])
    if "nodes" in case:
        assert [[key.hex(), value.hex()] for key, value in rows(store)] == case["nodes"]


def message_entry(message):
    return base64.b32hexdecode(message["id"].upper()), bytes.fromhex(message["signed_message_cbor"])


@pytest.mark.parametrize("name", ["v0.6-dag-small", "v0.6-dag-large", "v0.13-dag-small", "v0.13-dag-large"])
def test_merged_logs_have_the_recorded_root(name):
    stored = load(name)
    made = [message_entry(message) for message in stored["messages"]]
    recorded = stored["roots"][-1]
    for root in (build(made).root, build(made, form=STORE_V1).root):
        assert (root.level, root.hash.hex()) == (recorded["level"], recorded["hash"])


@pytest.mark.parametrize("name", ["v0.6-messages", "v0.13-messages"])
def test_logs_of_one_message_have_the_recorded_root(name):
    messages = [message for message in load(name)["messages"] if "root_hash" in message]
    assert messages
    for message in messages:
        root = build([message_entry(message)]).root
        assert (root.level, root.hash.hex()) == (message["root_level"], message["root_hash"])


def test_a_recorded_sync_ends_at_the_recorded_root():
    stored = load("v0.6-sync")
    tree = build(
        [message_entry(message) for side in ("server", "client") for message in stored["before"][side]]
    )
    recorded = stored["after"]["root_client"]
    assert (tree.root.level, tree.root.hash.hex()) == (recorded["level"], recorded["hash"])


def test_the_empty_tree_is_its_anchor():
    tree = Tree()
    assert tree.root == Node(0, ANCHOR, ANCHOR_HASH) == ProllyReader(MemoryStore()).get_root()
    assert ANCHOR_HASH.hex() == "af1349b9f5f9a1a6a0404dea36dcc949"
    assert list(tree.entries()) == []


def test_the_first_four_bytes_decide_what_a_boundary_is():
    for first in (0, 1, 2**27 - 1, 2**27, 2**27 + 1, 2**32 - 1):
        assert is_boundary(first.to_bytes(4, "big") + bytes(12)) == (first < 2**32 // 32)


def test_equal_entries_change_nothing_and_new_values_replace():
    tree = build([(b"a", b"1")])
    assert not tree.insert(b"a", b"1")
    assert tree.insert_many([(b"a", b"1"), (b"b", b"2")]) == 1
    assert tree.insert(b"a", b"2")
    assert tree.root == build([(b"a", b"2"), (b"b", b"2")]).root


@pytest.mark.parametrize("form", [STORE_V1, STORE_V3, INDEX_V3])
def test_values_are_hashed_in_every_form_and_kept_where_it_says_so(form):
    made = entries(100)
    tree = build(made, form=form)
    assert tree.root == build(made).root
    leaves = list(tree.entries())
    assert [leaf.key for leaf in leaves] == sorted(key for key, _ in made)
    for leaf in leaves:
        value = dict(made)[leaf.key]
        assert leaf.hash == leaf_hash(leaf.key, value)
        assert leaf.value == (value if form.keeps_values else None)


def test_children_are_what_a_node_hashes():
    tree = build(entries(2000), form=STORE_V3)
    todo = [tree.root]
    leaves = 0
    while todo:
        node = todo.pop()
        assert tree.get_node(node.level, node.key) == node
        if node.level == 0:
            leaves += node.key != ANCHOR
            continue
        children = tree.get_children(node.level, node.key)
        assert node_hash(child.hash for child in children) == node.hash
        assert children[0].key == node.key
        todo += children
    assert leaves == 2000


def test_nodes_that_are_not_there_are_said_to_be_missing():
    tree = build(entries(10))
    assert tree.get_node(0, b"nobody") is None
    assert tree.get_node(300, ANCHOR) is None
    assert tree.get_node(-1, ANCHOR) is None
    with pytest.raises(NotFound):
        tree.get_children(1, b"nobody")
    with pytest.raises(NotFound):
        tree.get_children(9, ANCHOR)
    for level in (0, -1, 255, 256):
        with pytest.raises(RangeExceeded):
            tree.get_children(level, ANCHOR)


@pytest.mark.parametrize("key", [b"", bytes(511)])
def test_keys_that_no_store_can_hold_are_refused(key):
    tree = build([(b"a", b"1")])
    before = tree.root
    for act in (
        lambda: tree.insert(key, b""),
        lambda: tree.insert_many([(b"b", b""), (key, b"")]),
    ):
        with pytest.raises(Invalid, match="1 to 510"):
            act()
    assert tree.root == before


def test_a_tree_is_found_again_in_its_store():
    store = MemoryStore()
    made = entries(1000)
    for at in range(0, 1000, 100):
        Tree(store).insert_many(made[at : at + 100])
    again = Tree(store)
    again.insert(*entries(1, seed=3)[0])
    assert again.root == ProllyReader(store).get_root() == build(made + entries(1, seed=3)).root


def test_a_store_of_another_form_is_not_touched():
    store = MemoryStore()
    build(entries(3), store, STORE_V1)
    before = rows(store)
    with pytest.raises(Invalid, match="6f6b7261011000000020"):
        Tree(store, INDEX_V3)
    assert rows(store) == before
    store.put(b"\xff", b"okra\x07")
    for act in (lambda: Tree(store), lambda: ProllyReader(store)):
        with pytest.raises(Invalid, match="not the metadata"):
            act()


def test_a_tree_that_remembers_little_is_the_same_tree(monkeypatch):
    monkeypatch.setattr(module, "SPANS_KEPT", 3)
    monkeypatch.setattr(module, "BATCH_ROWS", 100)
    made = entries(1500)
    for way in (in_order, in_batches, all_at_once, with_detours):
        store = MemoryStore()
        way(Tree(store), made)
        want = MemoryStore()
        build(made, want)
        assert rows(store) == rows(want)


def test_keys_of_one_prefix_and_of_all_lengths_keep_their_order():
    made = [(b"k" * length, bytes((length % 256,))) for length in range(1, 300)]
    assert build(made).root == build(reversed(made)).root
    assert [leaf.key for leaf in build(made).entries()] == [key for key, _ in made]


def test_tree_without_children_is_damaged():
    """A sector of a store was zeroed (seed 100013): an insert ended in an IndexError."""
    store = MemoryStore()
    tree = Tree(store)
    tree.insert_many(entries(200))
    for key in [key for key, _ in rows(store) if key[0] == tree.root.level - 1]:
        store.delete(key)
    with pytest.raises(Damaged, match="has no children"):
        Tree(store).insert(b"a", b"1")


def test_tree_with_empty_row_is_damaged():
    """A sector of a store was zeroed (sync, seed 100007): a row without bytes ended in an IndexError."""
    store = MemoryStore()
    Tree(store).insert_many(entries(200))
    for key in [key for key, _ in rows(store) if key[0] == 0 and key != b"\0"]:
        store.put(key, b"")
    with pytest.raises(Damaged, match="has 0 bytes"):
        Tree(store).insert(b"\xfe", b"1")
