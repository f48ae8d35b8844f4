"""Limit the requests of each client: a bucket of tokens that refills at a steady rate."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

CLIENTS_MAX: Final = 10_000  # buckets that are kept; a client that is dropped starts with a full one


class RateLimiter:
    """Buckets by client. `rate` requests a second on average, `burst` at once.

    >>> limiter = RateLimiter(rate=1, burst=2)
    >>> [limiter.wait_s("ada", now) for now in (0.0, 0.0, 0.0, 1.0)]
    [0.0, 0.0, 1.0, 0.0]
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # level, when

    def wait_s(self, client: str, now_s: float) -> float:
        """Take a token and return 0, or return how long the client has to wait for one."""
        level, then = self._buckets.pop(client, (self._burst, now_s))
        level = min(self._burst, level + (now_s - then) * self._rate)
        cost = min(1.0, self._burst)
        self._buckets[client] = (level - 1.0 if level >= cost else level), now_s
        if len(self._buckets) > CLIENTS_MAX:
            self._buckets.popitem(last=False)
        return 0.0 if level >= cost else (cost - level) / self._rate
