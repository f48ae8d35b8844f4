"""Rate-limit log lines triggered by remote peers: some lines a minute, then a count of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LINES_MAX = 20
EVERY_S = 60.0


class LogRateLimit:
    """Pass on at most so many lines in a period, in an event loop. `close` reports those still held back."""

    def __init__(
        self, say: Callable[[str], None], *, lines_max: int = LINES_MAX, every_s: float = EVERY_S
    ) -> None:
        self._say, self._lines_max, self._every_s = say, lines_max, every_s
        self._said = self._left_out = 0
        self._turn: asyncio.TimerHandle | None = None

    def __call__(self, text: str) -> None:
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_later(self._every_s, self.close)
        if self._said < self._lines_max:
            self._said += 1
            self._say(text)
        else:
            self._left_out += 1

    def close(self) -> None:
        """Say how many lines were left out, and begin anew."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        if self._left_out:
            self._say(f"{self._left_out} more were refused within {self._every_s:g} s")
        self._said = self._left_out = 0
