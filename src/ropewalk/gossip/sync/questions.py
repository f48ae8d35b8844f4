"""The questions of a sync and their answers: what travels, in both profiles, before anybody encodes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ropewalk.errors import Invalid, TooLarge
from ropewalk.gossip.core.ids import KEY_BYTES
from ropewalk.gossip.core.profiles import Profile
from ropewalk.gossip.core.table import View
from ropewalk.gossip.core.tree import children_of, node_of, root_of
from ropewalk.kernel.prolly.node import ANCHOR, Node

VALUES_MAX = 4096  # keys in one request that we answer
CARRIED_BYTES_MAX = 32 << 20  # of messages in the leaves of one v0.6 answer; others are asked for singly


@dataclass(frozen=True, slots=True)
class RootRequest:
    """Ask for the root of the tree."""


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """Ask for one node."""

    level: int
    key: bytes


@dataclass(frozen=True, slots=True)
class ChildrenRequest:
    """Ask for the nodes below a node. In v0.6 leaves carry their messages, unless these are too many bytes."""

    level: int
    key: bytes


@dataclass(frozen=True, slots=True)
class ValuesRequest:
    """Ask for the messages under some keys (v0.13; in v0.6 leaves carry them)."""

    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class RootResponse:
    """The root of the answering side."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeResponse:
    """The node asked for, or None."""

    node: Node | None


@dataclass(frozen=True, slots=True)
class ChildrenResponse:
    """The nodes below a node."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ValuesResponse:
    """The messages asked for, in the order of the keys.

    `partial` is never on the wire: our own asking side stopped early because it holds enough, and the rest is to be
    asked for again.
    """

    values: tuple[bytes, ...]
    partial: bool = False


@dataclass(frozen=True, slots=True)
class AbortResponse:
    """The answering side ends this session; what came so far is good, and a later session goes on."""

    cooldown: int = 0


SyncRequest = RootRequest | NodeRequest | ChildrenRequest | ValuesRequest
SyncResponse = RootResponse | NodeResponse | ChildrenResponse | ValuesResponse | AbortResponse


def answer(view: View, profile: Profile, request: SyncRequest) -> SyncResponse:
    """Answer one question from one moment of the log; keep the view for the whole session."""
    match request:
        case RootRequest():
            return RootResponse(root_of(view))
        case NodeRequest(level, key):
            _check_key(key)
            return NodeResponse(_with_value(view, profile, node_of(view, level, key)))
        case ChildrenRequest(level, key):
            _check_key(key)
            nodes = children_of(view, level, key)
            if level == 1 and profile.name == "v0.6":
                return ChildrenResponse(tuple(_with_values(view, profile, nodes)))
            return ChildrenResponse(tuple(nodes))
        case ValuesRequest(keys):
            if len(keys) > VALUES_MAX:
                raise TooLarge(
                    f"{len(keys)} keys in one request; at most {VALUES_MAX}", size=len(keys), limit=VALUES_MAX
                )
            return ValuesResponse(tuple([_value(view, profile, key) for key in keys]))


def _check_key(key: bytes) -> None:
    if key != ANCHOR and len(key) != KEY_BYTES:
        raise Invalid(f"a node's key has no or {KEY_BYTES} bytes, not {len(key)}", reason="key length")


def _value(view: View, profile: Profile, key: bytes) -> bytes:
    raw = view.get("messages", profile.code.order(key)) if len(key) == KEY_BYTES else None
    if raw is None:
        raise Invalid(f"no message {key.hex()} to send", reason="unknown key")
    return raw


def _leaf_with_value(view: View, profile: Profile, node: Node) -> Node:
    return node if node.key == ANCHOR else Node(0, node.key, node.hash, _value(view, profile, node.key))


def _with_values(view: View, profile: Profile, leaves: list[Node]) -> Iterator[Node]:
    size = 0
    for leaf in leaves:
        if size < CARRIED_BYTES_MAX:
            leaf = _leaf_with_value(view, profile, leaf)
            size += len(leaf.value or b"")
        yield leaf


def _with_value(view: View, profile: Profile, node: Node | None) -> Node | None:
    if node is None or node.level or profile.name != "v0.6":
        return node
    return _leaf_with_value(view, profile, node)
