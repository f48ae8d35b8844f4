"""The tree that two peers compare: equal entries give equal roots, and different roots lead to what differs.

`node` says what the hashes are, `tree` keeps a tree in an ordered store, `diff` finds what one tree lacks.
"""

from __future__ import annotations

from ropewalk.kernel.prolly.diff import (
    CHILDREN_MAX,
    GetChildren,
    GetRoot,
    Missing,
    Step,
    answer,
    check_children,
    check_root,
    compare,
    diff,
)
from ropewalk.kernel.prolly.memory import MemoryStore
from ropewalk.kernel.prolly.node import (
    ANCHOR,
    ANCHOR_HASH,
    HASH_BYTES,
    Node,
    Source,
    is_boundary,
    leaf_hash,
    node_hash,
)
from ropewalk.kernel.prolly.tree import INDEX_V3, STORE_V1, STORE_V3, Form, Reader, Rows, Store, Tree, build

__all__ = [
    "ANCHOR",
    "ANCHOR_HASH",
    "CHILDREN_MAX",
    "HASH_BYTES",
    "INDEX_V3",
    "STORE_V1",
    "STORE_V3",
    "Form",
    "GetChildren",
    "GetRoot",
    "MemoryStore",
    "Missing",
    "Node",
    "Reader",
    "Rows",
    "Source",
    "Step",
    "Store",
    "Tree",
    "answer",
    "build",
    "check_children",
    "check_root",
    "compare",
    "diff",
    "is_boundary",
    "leaf_hash",
    "node_hash",
]
