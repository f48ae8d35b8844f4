"""The ancestor index: from every message, links to its history 1, 2, 4, 8, … clocks earlier.

Link list i of a message with clock c is the frontier of its history at clock c − 2^i: the messages at or below that
clock that have a child above it. A lookup takes the longest link that does not overshoot, so it needs about as many
steps as the distance has bits. Nothing here recurses: a history may be deeper than any stack.

A row is a DAG-CBOR list of link lists. Concurrent writers have the same frontiers, so a list of several links is stored
once, under its digest, and rows hold the digest in its place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from ropewalk.errors import NotFound, RangeExceeded
from ropewalk.gossip.core.ids import KEY_BYTES, Key, id_of
from ropewalk.gossip.core.profiles import Profile
from ropewalk.gossip.core.table import Transaction, View
from ropewalk.kernel import cbor
from ropewalk.kernel.digest import sha256

TABLE = "ancestors"
LINK_BYTES = 1 + KEY_BYTES  # a CBOR head, then the key
SHARED_LINKS_MIN = 3  # links in a list that is stored once and named by its digest
FRONTIERS_CACHED = 4096
_SHARED = b"\xff"  # and a digest: the key of a shared list, one byte longer than that of a message
_DIGEST_HEAD = 0x40 | KEY_BYTES  # CBOR: 20 bytes, which is a digest; a list of links begins with another head
_COUNT_BYTES = {0x98: 1, 0x99: 2, 0x9A: 4}  # CBOR lists whose count follows; a frontier may pass 65,535
Links = list[list[Key]]


class FrontierCache:
    """Remembers the frontier of a list of links at a clock, which never changes: both are functions of the graph."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[bytes, int], list[Key]] = OrderedDict()

    def get(self, links: list[Key], clock: int, make: Callable[[], list[Key]]) -> list[Key]:
        """Return the frontier of these links at a clock; `make` computes one that is not remembered."""
        raw = b"".join(links)
        # Two links or fewer are their own name: no digest has the length of one link or of two.
        name = raw if len(raw) <= 2 * KEY_BYTES else sha256(raw), clock
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = make()
            if len(self._known) > FRONTIERS_CACHED:
                self._known.popitem(last=False)
        return known


def ancestors(view: View, profile: Profile, key: Key, clock: int) -> list[Key]:
    """Return the frontier of a message's history at a clock below its own, by clock and then by hash."""
    own = profile.code.clock(key)
    if not 0 < clock < own:
        raise RangeExceeded(
            f"clock must be at least 1 and below {own}, the clock of {id_of(key)}, got {clock}", clock=clock
        )
    return sorted(_frontier(view, profile, key, clock), key=profile.code.order)


def is_ancestor(view: View, profile: Profile, key: Key, ancestor: Key) -> bool:
    """Return whether `ancestor` is in the history of `key`; a message counts as its own ancestor."""
    clock_of = profile.code.clock
    target = clock_of(ancestor)
    todo, seen = [key], {key}
    expanded: set[bytes] = set()
    while todo:
        at = todo.pop()
        if at == ancestor:
            return True
        distance = clock_of(at) - target
        if distance <= 0:
            continue
        for link in _fresh_links(view, at, distance.bit_length() - 1, expanded):
            if link not in seen:
                seen.add(link)
                todo.append(link)
    return False


def make_links(
    view: View, profile: Profile, clock: int, parents: Iterable[Key], cache: FrontierCache | None = None
) -> Links:
    """Return the link lists of a message with these parents, all of which are indexed already."""
    cache = cache or FrontierCache()
    lists: Links = []
    step = 1
    while clock - step > 0:
        if step == 1:
            lists.append(list(parents))
        else:
            links, at = lists[-1], clock - step
            lists.append(cache.get(links, at, partial(_frontier_of, view, profile, links, at)))
        step *= 2
    return lists


def index(
    change: Transaction,
    profile: Profile,
    key: Key,
    parents: Iterable[Key],
    cache: FrontierCache | None = None,
) -> None:
    """Write the links of one message."""
    lists = make_links(change, profile, profile.code.clock(key), parents, cache)
    for links in lists:
        if len(links) >= SHARED_LINKS_MIN and change.get(TABLE, row := _SHARED + _digest(links)) is None:
            change.put(TABLE, row, b"".join(links))
    change.put(TABLE, key, _encode_row(lists))


def _encode_row(lists: Links) -> bytes:
    return cbor.dag_encode([links if len(links) < SHARED_LINKS_MIN else _digest(links) for links in lists])


def check_row(view: View, lists: Links, raw: bytes) -> bool:
    """Return whether a row holds these link lists, whole as earlier versions wrote them or with shared ones."""
    if raw != _encode_row(lists):
        return raw == cbor.dag_encode(lists)
    shared = (links for links in lists if len(links) >= SHARED_LINKS_MIN)
    return all(view.get(TABLE, _SHARED + _digest(links)) is not None for links in shared)


def is_shared(row: bytes) -> bool:
    """Return whether a key of the table names a shared list and not a message."""
    return len(row) > KEY_BYTES


def check_shared(row: bytes, raw: bytes) -> bool:
    """Return whether a shared list is stored under its digest."""
    return row == _SHARED + _digest_of(raw)


def stored_links(view: View, key: Key) -> Links:
    """Return all link lists of a message as they are stored."""
    count, _ = _list_head(_row(view, key), 0)
    return [_expand(view, _links(view, key, at)) for at in range(count)]


def _frontier_of(view: View, profile: Profile, links: list[Key], clock: int) -> list[Key]:
    clock_of = profile.code.clock
    found: dict[Key, None] = {}
    expanded: set[bytes] = set()  # lists that several of these messages share
    for link in links:
        if clock_of(link) <= clock:
            found[link] = None
        else:
            found.update(_frontier(view, profile, link, clock, expanded))
    return list(found) if profile.name == "v0.6" else sorted(found)


def _frontier(
    view: View, profile: Profile, key: Key, clock: int, expanded: set[bytes] | None = None
) -> dict[Key, None]:
    """Return the frontier in the order in which a walk meets it; v0.6 stores its links in that order."""
    clock_of = profile.code.clock
    known = set() if expanded is None else expanded
    first = _fresh_links(view, key, (clock_of(key) - clock).bit_length() - 1, known)
    if len(first) == 1 and clock_of(first[0]) <= clock:
        return {first[0]: None}  # always so where messages form a chain

    def links(at: Key) -> Iterator[Key]:
        return iter(_fresh_links(view, at, (clock_of(at) - clock).bit_length() - 1, known))

    found: dict[Key, None] = {}
    seen = {key}
    path = [iter(first)]
    while path:
        link = next(path[-1], None)
        if link is None:
            path.pop()
        elif clock_of(link) <= clock:
            found[link] = None
        elif link not in seen:
            # The original gives up when it meets a message twice and loses results; going on is correct.
            seen.add(link)
            path.append(links(link))
    return found


def _fresh_links(view: View, key: Key, index: int, expanded: set[bytes]) -> list[Key]:
    """Return one link list of a message, or nothing if it is shared and was expanded before."""
    links = _links(view, key, index)
    if isinstance(links, bytes):
        if links in expanded:
            return []
        expanded.add(links)
    return _expand(view, links)


def _expand(view: View, links: list[Key] | bytes) -> list[Key]:
    if isinstance(links, list):
        return links
    raw = view.get(TABLE, _SHARED + links)
    if raw is None or len(raw) % KEY_BYTES:
        raise NotFound(f"link list {links.hex()} is not in the ancestor index", id=links.hex())
    return [Key(raw[at : at + KEY_BYTES]) for at in range(0, len(raw), KEY_BYTES)]


def _row(view: View, key: Key) -> bytes:
    raw = view.get(TABLE, key)
    if raw is None:
        raise NotFound(f"message {id_of(key)} is not in the ancestor index", id=id_of(key))
    return raw


def _links(view: View, key: Key, index: int) -> list[Key] | bytes:
    """Cut one link list, or the digest of a shared one, out of a row: a lookup decodes no others."""
    raw = _row(view, key)
    _, at = _list_head(raw, 0)
    for _ in range(index):
        if raw[at] == _DIGEST_HEAD:
            at += LINK_BYTES
            continue
        count, at = _list_head(raw, at)
        at += LINK_BYTES * count
    if raw[at] == _DIGEST_HEAD:
        return raw[at + 1 : at + LINK_BYTES]
    count, at = _list_head(raw, at)
    return [Key(raw[link + 1 : link + LINK_BYTES]) for link in range(at, at + LINK_BYTES * count, LINK_BYTES)]


def _digest(links: list[Key]) -> bytes:
    return _digest_of(b"".join(links))


def _digest_of(raw: bytes) -> bytes:
    return sha256(raw)[:KEY_BYTES]


def _list_head(raw: bytes, at: int) -> tuple[int, int]:
    """Return how many items the list at `at` has, and where they begin."""
    if raw[at] < 0x98:
        return raw[at] - 0x80, at + 1
    size = _COUNT_BYTES.get(raw[at], 0)
    return (int.from_bytes(raw[at + 1 : at + 1 + size], "big") if size else raw[at] - 0x80), at + 1 + size
