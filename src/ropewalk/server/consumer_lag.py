"""How far consumer groups were behind, sampled while the server runs. A restart begins anew."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from ropewalk.gitlog.consumers.consumers import cursor_status, cursors
from ropewalk.gitlog.repository.repository import GitRepository

EVERY_S: Final = 5.0
SAMPLES_MAX: Final = 720  # an hour of constant change; a lag that stays the same takes two
GROUPS_MAX: Final = 200


def consumer_rows(
    log: GitRepository, may_read: Callable[[str], bool] = lambda _log: True
) -> list[dict[str, Any]]:
    """Return every consumer group with its log, its position and how far it is behind."""
    found = []
    for cursor in cursors(log):
        name = f"{'messages' if cursor.by == 'blob' else 'shiplog'}/{cursor.topic}"
        if may_read(name):
            found.append(cursor_status(log, cursor) | {"log": name})
    return found


class ConsumerLag:
    """The newest samples of each group in each log.

    >>> lag = ConsumerLag()
    >>> for at_ms, behind in enumerate([3, 0, 0, 0, 1]):
    ...     lag.take([{"group": "g", "log": "shiplog/a", "behind": behind}], at_ms)
    >>> lag.rows(lambda log: True)[0]["samples"]
    [{'at_ms': 0, 'behind': 3}, {'at_ms': 1, 'behind': 0}, {'at_ms': 3, 'behind': 0}, {'at_ms': 4, 'behind': 1}]
    """

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], deque[tuple[int, int | None]]] = {}

    def take(self, rows: Iterable[dict[str, Any]], now_ms: int) -> None:
        """Add a sample of each group; groups that have gone are forgotten, as are those beyond the limit."""
        kept: dict[tuple[str, str], deque[tuple[int, int | None]]] = {}
        for row in rows:
            if len(kept) == GROUPS_MAX:
                break
            key, behind = (row["group"], row["log"]), row["behind"]
            ring = kept[key] = self._samples.get(key) or deque(maxlen=SAMPLES_MAX)
            if len(ring) > 1 and ring[-1][1] == ring[-2][1] == behind:
                ring.pop()  # the two ends of a time without change are enough
            ring.append((now_ms, behind))
        self._samples = kept

    def rows(self, may_read: Callable[[str], bool]) -> list[dict[str, Any]]:
        """Return the samples of every group in the logs that the caller may read, oldest first."""
        return [
            {"group": group, "log": log, "samples": [{"at_ms": at, "behind": behind} for at, behind in ring]}
            for (group, log), ring in list(self._samples.items())
            if may_read(log)
        ]
