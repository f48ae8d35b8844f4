"""Read messages for a consumer group (S1): its checkpoint moves behind a page, after the page was handed over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from ropewalk.errors import RopewalkError
from ropewalk.gitlog.consumers.consumers import open_cursor
from ropewalk.gitlog.consumers.cursor import height_of, move_cursor
from ropewalk.gitlog.core.layout import MESSAGES
from ropewalk.gitlog.core.reading import EventPage
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.net.threads import in_thread

SETTLE_S = 2.0


def read_for_group(
    log: GitRepository,
    topic: str,
    since: str | None,
    limit: int,
    group: str | None,
    bytes_max: int | None = None,
) -> tuple[EventPage, Callable[[], None] | None]:
    """Return a page, and what moves the group's checkpoint behind it; None where the checkpoint stays.

    It stays where messages before the page were not read by the group.
    """
    cursor = open_cursor(log, group, topic, MESSAGES) if group is not None else None
    start = cursor.ulid if cursor is not None and since is None else since
    page = log.read(topic, start, limit, layout=MESSAGES, bytes_max=bytes_max)
    if group is None or not page.events:
        return page, None
    line = log.lines.line(MESSAGES, topic)
    # A group whose own checkpoint is not in the topic begins anew; reading old messages again moves nothing.
    lost = page.restarted and since is None
    position = -1 if lost else height_of(line, cursor)
    if page.events[0].height > position + 1 or page.events[-1].height <= position:
        return page, None
    (place,) = line.span(page.events[-1].height, page.events[-1].height + 1)

    def move() -> None:
        move_cursor(log.store, MESSAGES, group, topic, place, cursor, backwards=lost)

    return page, move


class GroupMoves:
    """The checkpoints that are about to move: the next read of a group waits for them, but not for ever."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[str, str], asyncio.Event] = {}

    async def settled(self, group: str, topic: str) -> None:
        """Wait until the last page of the group was handed over and counted."""
        moving = self._under_way.get((group, topic))
        if moving is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    await moving.wait()

    def begin(self, group: str, topic: str) -> None:
        """Note that a page is on its way."""
        self._under_way[group, topic] = asyncio.Event()

    async def carry_out(self, group: str, topic: str, move: Callable[[], None]) -> None:
        """Move the checkpoint. Where it has moved meanwhile, another reader of the group was faster."""
        try:
            with contextlib.suppress(RopewalkError):
                await in_thread(move)
        finally:
            moving = self._under_way.pop((group, topic), None)
            if moving is not None:
                moving.set()
