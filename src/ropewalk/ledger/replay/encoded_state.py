"""A state by its canonical bytes: encoded once, however many roots and copies are taken of it."""

from __future__ import annotations

from functools import cached_property

from ropewalk.kernel import jcs
from ropewalk.kernel.digest import Tag, tagged
from ropewalk.ledger.replay.reducers import State
from ropewalk.ledger.replay.state_map import state_map_root


def state_root(state: State) -> bytes:
    """Return the id of a state: BLAKE3 of its tag and its canonical JSON.

    >>> state_root({"b": 1, "a": 2}) == state_root({"a": 2, "b": 1})
    True
    """
    return EncodedState(state).root


class EncodedState:
    """The canonical bytes of a state as it is now: a reducer that changes the state later does not change them.

    >>> EncodedState({"b": 1, "a": 2}).raw
    b'{"a":2,"b":1}'
    """

    def __init__(self, state: State) -> None:
        self.raw = jcs.encode(state)

    @cached_property
    def root(self) -> bytes:
        """The state root."""
        return tagged(Tag.STATE, self.raw)

    @cached_property
    def map_root(self) -> bytes:
        """The root of the state as a map."""
        return state_map_root(self.raw)
