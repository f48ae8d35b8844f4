"""What a subscriber is handed, held to the kind that a test expects."""

from __future__ import annotations

from ropewalk.stream.core.frames import BusEvent
from ropewalk.stream.core.subscriber import Item


def bus_event(item: Item) -> BusEvent:
    """The item, which is a message of a topic and nothing else."""
    assert isinstance(item, BusEvent), item
    return item
