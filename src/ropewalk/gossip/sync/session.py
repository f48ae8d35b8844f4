"""A pull as a state machine without I/O: requests out, responses in.

`pull` is a generator. It yields a `SyncRequest`, is sent the `SyncResponse`, and returns a `PullResult`. It walks the
peer's tree depth first, skips every node that the log has, checks every hash on the way down, and stores missing
messages in chunks. A pull that breaks off is continued by pulling again: equal parts are skipped.

No answer is trusted. Each one must match the hash it was announced under, every tree is bounded in height and width,
and a message counts only with its signature and its parents. The first mismatch raises.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ropewalk.errors import BrokenLink, DigestMismatch, Invalid, TooLarge
from ropewalk.gossip.core.ids import KEY_BYTES, id_of
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.message import SignedMessage
from ropewalk.gossip.core.tree import node_of, reader
from ropewalk.gossip.sync.questions import (
    AbortResponse,
    ChildrenRequest,
    ChildrenResponse,
    NodeRequest,
    NodeResponse,
    RootRequest,
    RootResponse,
    SyncRequest,
    SyncResponse,
    ValuesRequest,
    ValuesResponse,
    answer,
)
from ropewalk.kernel.prolly.checks import check_children, check_root
from ropewalk.kernel.prolly.node import ANCHOR, Node, leaf_hash

CHUNK_MESSAGES = 512  # stored in one transaction
CHUNK_BYTES = 4 << 20  # how much we ask for at once, judged by what came before
REFUSED_MAX = 100_000  # messages our own rules refuse in one pull before we give up on the peer


R = TypeVar("R", RootResponse, NodeResponse, ChildrenResponse, ValuesResponse)


@dataclass(frozen=True, slots=True)
class PullResult:
    """What a pull came to. `complete` is False if the other side ended it early: pull again."""

    received: int
    refused: int
    requests: int
    complete: bool


class _Ended(Exception):
    """The other side aborted the session."""


def pull(log: GossipLog) -> Generator[SyncRequest, SyncResponse, PullResult]:
    """Fetch everything the other side has and we lack; drive it with `send`."""
    return (yield from _Pull(log).run())


@dataclass(slots=True)
class _Pull:
    log: GossipLog
    received: int = 0
    requests: int = 0
    refused: set[bytes] = field(default_factory=set)
    wanted: list[Node] = field(default_factory=list)  # leaves we lack, not fetched yet
    held: int = 0  # bytes that came with them (v0.6)
    bytes_each: int = 64 << 10  # what a message weighed lately; the first guess is careful

    def run(self) -> Generator[SyncRequest, SyncResponse, PullResult]:
        try:
            root = (yield from self._ask(RootRequest(), RootResponse)).node
            check_root(root)
            if root.level > 0:
                yield from self._waves(root)
        except _Ended:
            return PullResult(self.received, len(self.refused), self.requests, False)
        return PullResult(self.received, len(self.refused), self.requests, True)

    def _ask(self, request: SyncRequest, expected: type[R]) -> Generator[SyncRequest, SyncResponse, R]:
        self.requests += 1
        response = yield request
        if isinstance(response, AbortResponse):
            raise _Ended
        if not isinstance(response, expected):
            raise Invalid(
                f"the peer answered {type(response).__name__} to {type(request).__name__}",
                reason="unexpected answer",
            )
        return response

    def _waves(self, root: Node) -> Generator[SyncRequest, SyncResponse, None]:
        """Walk the tree once for every length a clock's code has in it, shortest first.

        Keys with codes of one length sort by clock, and longer codes are later clocks, so parents always come first; in
        v0.13 all keys sort and one wave is enough.
        """
        size: int | None = 2
        while size is not None:
            size = yield from self._wave(root, None if self.log.profile.code.sorts else size)
            yield from self._fetch()

    def _wave(self, root: Node, size: int | None) -> Generator[SyncRequest, SyncResponse, int | None]:
        later: int | None = None
        # Nodes, each with the key where its range ends.
        todo: list[tuple[Node, bytes | None]] = [(root, None)]
        while todo:
            node, end = todo.pop()
            least = 1 if size is None else _least_size(node.key, end)
            if self._have(node):
                continue
            if size is not None and least > size:
                later = least if later is None else min(later, least)
                continue
            children = (yield from self._ask(ChildrenRequest(node.level, node.key), ChildrenResponse)).nodes
            check_children(node, end, children)
            _check_keys(node, children)
            if node.level > 1:
                ends = [child.key for child in children[1:]]
                todo.extend(reversed(list(zip(children, [*ends, end], strict=True))))
                continue
            for leaf in self._lacking(children[1:] if node.key == ANCHOR else children):
                code = self.log.profile.code.split(leaf.key)[1]
                if size is None or code <= size:
                    self.wanted.append(leaf)
                    self.held += len(leaf.value or b"")
                else:
                    later = code if later is None else min(later, code)
            if len(self.wanted) >= self._chunk() or self.held >= CHUNK_BYTES:
                yield from self._fetch()
        return later

    def _have(self, node: Node) -> bool:
        with self.log.view() as view:
            ours = node_of(view, node.level, node.key)
        return ours is not None and ours.hash == node.hash

    def _lacking(self, leaves: Sequence[Node]) -> list[Node]:
        """Return the leaves that we neither have nor have refused."""
        lacking = []
        with self.log.view() as view:
            tree = reader(view)
            for leaf in leaves:
                ours = tree.get_node(0, leaf.key)
                if ours is None:
                    if leaf.key not in self.refused:
                        lacking.append(leaf)
                elif ours.hash != leaf.hash:
                    raise DigestMismatch(
                        f"the peer has other bytes under {id_of(leaf.key)}, which names its own bytes",
                        expected=ours.hash.hex(),
                        got=leaf.hash.hex(),
                        where="leaf",
                    )
        return lacking

    def _chunk(self) -> int:
        return max(1, min(CHUNK_MESSAGES, CHUNK_BYTES // self.bytes_each))

    def _fetch(self) -> Generator[SyncRequest, SyncResponse, None]:
        """Get, check and store the leaves that wait to be fetched, a chunk at a time."""
        while self.wanted:
            count = self._chunk()
            leaves, self.wanted = self.wanted[:count], self.wanted[count:]
            values = yield from self._messages(leaves)
            leaves, self.wanted = leaves[: len(values)], leaves[len(values) :] + self.wanted
            self.bytes_each = max(64, sum(map(len, values)) // len(values))
            self._store(leaves, values)
        self.held = 0

    def _messages(self, leaves: list[Node]) -> Generator[SyncRequest, SyncResponse, list[bytes]]:
        """Fetch the messages of these leaves, or of the first of them, as many as may be held at once."""
        if self.log.profile.name == "v0.6":
            return (yield from self._carried(leaves))
        got = yield from self._ask(ValuesRequest(tuple(leaf.key for leaf in leaves)), ValuesResponse)
        if len(got.values) != len(leaves) and not (got.partial and got.values):
            raise BrokenLink(f"the peer sent {len(got.values)} messages where {len(leaves)} were asked for")
        return list(got.values)

    def _carried(self, leaves: list[Node]) -> Generator[SyncRequest, SyncResponse, list[bytes]]:
        """Take the messages that leaves carry in v0.6: all but those that did not fit the answer."""
        values: list[bytes] = []
        size = 0
        for leaf in leaves:
            if size >= CHUNK_BYTES:
                break
            node = (
                leaf
                if leaf.value is not None
                else (yield from self._ask(NodeRequest(0, leaf.key), NodeResponse)).node
            )
            if node is None or node.value is None:
                raise BrokenLink(f"the peer shows {id_of(leaf.key)} in its tree and does not send it")
            values.append(node.value)
            size += len(node.value)
        return values

    def _store(self, leaves: list[Node], values: list[bytes]) -> None:
        checked = []
        error: Exception | None = None
        for leaf, raw in zip(leaves, values, strict=True):
            try:
                checked.append(self._check(leaf, raw))
            except Exception as found:
                error = found  # the good messages before it are kept
                break
        for outcome, signed in zip(self.log.insert_grounded(checked), checked, strict=True):
            if outcome.status == "stored":
                self.received += 1
            elif outcome.status == "refused":
                self.refused.add(signed.key)
            elif outcome.status == "orphaned" and self.refused.isdisjoint(signed.parent_keys):
                error = error or BrokenLink(
                    f"parent {outcome.missing[0]} of message {outcome.id} is missing in the peer's tree",
                    id=outcome.id,
                )
            elif outcome.status == "orphaned":
                self.refused.add(signed.key)  # a parent of it was refused by our rules
        if error is not None:
            raise error
        if len(self.refused) > REFUSED_MAX:
            raise TooLarge(f"more than {REFUSED_MAX} messages of the peer were refused", limit=REFUSED_MAX)

    def _check(self, leaf: Node, raw: bytes) -> SignedMessage:
        if leaf_hash(leaf.key, raw) != leaf.hash:
            raise DigestMismatch(
                f"the peer's message under {leaf.key.hex()} does not have the hash of its leaf",
                expected=leaf.hash.hex(),
                got=leaf_hash(leaf.key, raw).hex(),
                where="message",
            )
        signed = self.log.check(raw)
        if signed.key != leaf.key:
            raise DigestMismatch(
                f"the peer keeps message {signed.id} under {leaf.key.hex()}",
                expected=leaf.key.hex(),
                got=signed.key.hex(),
                where="key",
            )
        return signed


def _check_keys(node: Node, children: tuple[Node, ...]) -> None:
    """Refuse keys that no message has; shape, order and hashes are the tree's own rules."""
    for child in children:
        if len(child.key) != KEY_BYTES and child.key != ANCHOR:
            raise BrokenLink(f"the key {child.key.hex()[:80]} below level {node.level} is no message's")


def _least_size(key: bytes, end: bytes | None) -> int:
    """Return the fewest bytes a v0.6 clock code has between two keys: common bytes that say "more follows", and one."""
    size = 1
    for ours, theirs in zip(key, end or b"", strict=False):
        if ours != theirs or ours < 0x80:
            break
        size += 1
    return size


Ask = Callable[[SyncRequest], SyncResponse]


def drive(machine: Generator[SyncRequest, SyncResponse, PullResult], ask: Ask) -> PullResult:
    """Run a pull over any way to ask a question and wait for its answer."""
    try:
        request = next(machine)
        while True:
            request = machine.send(ask(request))
    except StopIteration as end:
        result: PullResult = end.value
        return result


def pull_from(log: GossipLog, source: GossipLog, *, peer: str = "in-process") -> PullResult:
    """Pull from a log in this process."""
    if log.topic != source.topic or log.profile is not source.profile:
        raise Invalid(
            f"{log.topic} ({log.profile.name}) cannot pull from {source.topic} ({source.profile.name})",
            reason="topic",
        )
    with source.view() as view:
        pulled = drive(pull(log), lambda request: answer(view, source.profile, request))
    log.tell(log.note_sync(peer, pulled.received))
    return pulled


def sync_both(one: GossipLog, two: GossipLog) -> tuple[PullResult, PullResult]:
    """Pull both ways; afterwards both have what either had, unless their rules refused something."""
    return pull_from(one, two), pull_from(two, one)
