"""Cases for the root of a replayed state as a map, and for its leaves in order.

Trees and hashes are made here from the rules of `docs/reference/ledger.md`, not with the product.
"""

from __future__ import annotations

import json
from typing import Any

from blake3 import blake3

STATES: dict[str, tuple[str, Any]] = {
    "empty": ("an empty state is one leaf without a key", {}),
    "not_an_object": ("a state may be any JSON value", [1, 2]),
    "one_member": ("one leaf: the tree is its hash", {"total": 6}),
    "nested": (
        "a key is the list of names that lead to a value",
        {"web": {"prod": "1.2", "test": "1.3"}, "n": 3},
    ),
    "empty_object_inside": ("an empty object is a value", {"a": {}, "b": {"c": {}}}),
    "arrays_are_values": ("an array has no members", {"a": [{"b": 1}], "c": []}),
    "shorter_key_first": (
        "a list of names comes before its extensions and after smaller names",
        {"a": {"b": 1}, "a/b": 2, "": 3},
    ),
    "code_points": (
        "names are compared by code points, not by UTF-16 units",
        {"\uffff": 1, "\U0001f600": 2, "é": 3, "z": 4},
    ),
    "odd_sizes": ("seven leaves", {str(number): number for number in range(7)}),
}


def leaves_of(key: list[str], value: Any) -> list[tuple[list[str], bytes]]:
    if isinstance(value, dict) and value:
        return [leaf for name in value for leaf in leaves_of([*key, name], value[name])]
    return [(key, blake3(b"ea:state-value:v1" + canonical(value)).digest())]


def canonical(value: Any) -> bytes:
    """RFC 8785 for what these cases hold: small integers, strings, arrays and empty objects."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def tree(hashes: list[bytes]) -> bytes:
    if len(hashes) == 1:
        return hashes[0]
    half = 1
    while 2 * half < len(hashes):
        half *= 2
    return blake3(b"ea:state-node:v1" + tree(hashes[:half]) + tree(hashes[half:])).digest()


def state_root(state: Any) -> tuple[list[list[str]], bytes]:
    """Return the keys in order and the root."""
    ordered = sorted(leaves_of([], state), key=lambda leaf: [name.encode() for name in leaf[0]])
    hashes = [blake3(b"ea:state-leaf:v1" + canonical([key, each.hex()])).digest() for key, each in ordered]
    root = blake3(b"ea:state-map:v1" + len(hashes).to_bytes(8, "big") + tree(hashes)).digest()
    return [key for key, _ in ordered], root


def state_map() -> dict[str, Any]:
    cases = []
    for name, (why, state) in STATES.items():
        keys, root = state_root(state)
        cases.append({"name": name, "why": why, "input": state, "expect": {"keys": keys, "root": root.hex()}})
    return {"about": "root of a replayed state as a map (ledger state prove)", "cases": cases}


def generate() -> dict[str, object]:
    return {"ledger/state_map.json": state_map()}
