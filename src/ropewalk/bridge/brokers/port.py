"""What a bridge needs of a message broker. An adapter is one class; it keeps no state that the broker does not hold."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

START: Final = "0"  # the position before the first message of every stream
POSITION: Final = re.compile(r"[0-9]{1,20}(-[0-9]{1,20})?")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One event on its way to a broker."""

    id: str  # log and ULID, for the broker's own deduplication
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Incoming:
    """One message of a stream."""

    position: str
    body: bytes
    headers: Mapping[str, str]
    number: int | None = None  # among all that the stream ever took; None: it follows the message before it


class Moved(Exception):
    """Another publisher was faster: nothing of the rest of the batch is in the stream."""


class Broker(Protocol):
    """One stream (or subject of a stream) of a broker. Positions are decimal numbers joined by `-`."""

    stream: str  # its name, recorded with every event that comes from it
    mark: str  # tells it from streams of the same name: at other servers, or made anew

    async def last(self) -> str:
        """Return the position of the newest message, `START` if there is none."""

    async def publish(self, batch: Sequence[Outgoing], expected: str) -> str:
        """Append a batch in order behind `expected` and return the new last position once all is acknowledged.

        Raise `Moved` if the stream no longer ends at `expected`. A failure may leave a prefix of the batch in the
        stream, never a part with a gap.
        """

    async def fetch(self, after: str, limit: int, wait_s: float) -> Sequence[Incoming]:
        """Return the next messages behind a position in order; none if nothing comes within `wait_s`."""

    async def close(self) -> None:
        """Close the connection."""


def order(position: str) -> tuple[int, ...]:
    """Return what positions are compared by.

    >>> order("9") < order("10"), order("5-2") < order("5-11")
    (True, True)
    """
    return tuple(int(part) for part in position.split("-"))


def mark_of(identity: str) -> str:
    """Return the mark of a stream, from what only this stream has."""
    return hashlib.blake2b(identity.encode(), digest_size=4).hexdigest()


def address_of(kind: str, url: str, name: str) -> str:
    """Return the address of a stream or subject, as records and errors show it: without credentials and options.

    >>> address_of("redis", "redis://:p@ss/w@127.0.0.1:6379/1?password=x", "jobs")
    'redis://127.0.0.1:6379/1/jobs'
    """
    places = (re.sub("^[a-z+]*://", "", each).partition("?")[0].rpartition("@")[2] for each in url.split(","))
    return f"{kind}://{','.join(each.rstrip('/') for each in places)}/{name}"
