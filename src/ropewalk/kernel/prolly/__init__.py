"""The tree that two peers compare: equal entries give equal roots, and different roots lead to what differs.

`node` defines the hashes, `tree` keeps a tree in an ordered store, `diff` finds what one tree lacks.
"""

from __future__ import annotations

from ropewalk.kernel.prolly.diff import (
    CHILDREN_MAX,
    ChildrenQuery,
    MissingLeaves,
    RootQuery,
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
    ProllySource,
    is_boundary,
    leaf_hash,
    node_hash,
)
from ropewalk.kernel.prolly.tree import (
    INDEX_V3,
    STORE_V1,
    STORE_V3,
    Form,
    ProllyReader,
    ProllyTree,
    Rows,
    Store,
    build,
)

__all__ = [
    "ANCHOR",
    "ANCHOR_HASH",
    "CHILDREN_MAX",
    "HASH_BYTES",
    "INDEX_V3",
    "STORE_V1",
    "STORE_V3",
    "ChildrenQuery",
    "Form",
    "MemoryStore",
    "MissingLeaves",
    "Node",
    "ProllyReader",
    "ProllySource",
    "ProllyTree",
    "RootQuery",
    "Rows",
    "Step",
    "Store",
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
