"""The ancestor index: from every message, links to its history 1, 2, 4, 8, … clocks earlier.

Link list i of a message with clock c is the frontier of its history at clock c − 2^i: the messages at or below that
clock that have a child above it. A lookup takes the longest link that does not overshoot, so it needs
about as many steps as the distance has bits. Nothing here recurses: a history may be deeper than any stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ropewalk.errors import NotFound, RangeExceeded
from ropewalk.gossip.core.ids import KEY_BYTES, Key, id_of
from ropewalk.gossip.core.profiles import Profile
from ropewalk.gossip.core.table import Transaction, View
from ropewalk.kernel import cbor

TABLE = "ancestors"
LINK_BYTES = 1 + KEY_BYTES  # a CBOR head, then the key
_COUNT_BYTES = {0x98: 1, 0x99: 2, 0x9A: 4}  # CBOR lists whose count follows; a frontier may pass 65,535
Links = list[list[Key]]


def ancestors(view: View, profile: Profile, key: Key, clock: int) -> list[Key]:
    """Return the frontier of a message's history at a clock below its own, by clock and then by hash."""
    own = profile.code.clock(key)
    if not 0 < clock < own:
        raise RangeExceeded(
            f"clock {clock} is not between 1 and {own - 1}, the past of {id_of(key)}", clock=clock
        )
    return sorted(_frontier(view, profile, key, clock), key=profile.code.order)


def is_ancestor(view: View, profile: Profile, key: Key, ancestor: Key) -> bool:
    """Return whether `ancestor` is in the history of `key`; a message counts as its own ancestor."""
    clock_of = profile.code.clock
    target = clock_of(ancestor)
    todo, seen = [key], {key}
    while todo:
        at = todo.pop()
        if at == ancestor:
            return True
        distance = clock_of(at) - target
        if distance <= 0:
            continue
        for link in _links(view, at, distance.bit_length() - 1):
            if link not in seen:
                seen.add(link)
                todo.append(link)
    return False


def make_links(view: View, profile: Profile, clock: int, parents: Iterable[Key]) -> Links:
    """The link lists of a message with these parents, all of which are indexed already."""
    clock_of = profile.code.clock
    lists: Links = []
    step = 1
    while clock - step > 0:
        if step == 1:
            lists.append(list(parents))
        else:
            found: dict[Key, None] = {}
            for link in lists[-1]:
                if clock_of(link) <= clock - step:
                    found[link] = None
                else:
                    found.update(_frontier(view, profile, link, clock - step))
            lists.append(list(found) if profile.name == "v0.6" else sorted(found))
        step *= 2
    return lists


def index(change: Transaction, profile: Profile, key: Key, parents: Iterable[Key]) -> None:
    """Write the links of one message."""
    links = make_links(change, profile, profile.code.clock(key), parents)
    change.put(TABLE, key, cbor.dag_encode(links))


def _frontier(view: View, profile: Profile, key: Key, clock: int) -> dict[Key, None]:
    """The frontier in the order in which a walk meets it; v0.6 stores its links in that order."""
    clock_of = profile.code.clock

    def links(at: Key) -> Iterator[Key]:
        return iter(_links(view, at, (clock_of(at) - clock).bit_length() - 1))

    found: dict[Key, None] = {}
    seen = {key}
    path = [links(key)]
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


def _links(view: View, key: Key, index: int) -> list[Key]:
    """One link list of a message, cut out of its row: a lookup needs one of them and decodes no others."""
    raw = view.get(TABLE, key)
    if raw is None:
        raise NotFound(f"message {id_of(key)} is not in the ancestor index", id=id_of(key))
    _, at = _list_head(raw, 0)
    for _ in range(index):
        count, at = _list_head(raw, at)
        at += LINK_BYTES * count
    count, at = _list_head(raw, at)
    return [Key(raw[link + 1 : link + LINK_BYTES]) for link in range(at, at + LINK_BYTES * count, LINK_BYTES)]


def _list_head(raw: bytes, at: int) -> tuple[int, int]:
    """How many items the list at `at` has, and where they begin."""
    size = _COUNT_BYTES.get(raw[at], 0)
    return (int.from_bytes(raw[at + 1 : at + 1 + size], "big") if size else raw[at] - 0x80), at + 1 + size
