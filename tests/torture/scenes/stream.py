"""A healthy client: it sends one batch after the other, in a thread, as long as there are any."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from ropewalk.errors import RopewalkError
from tests.torture.scenes.house import House
from tests.waiting import Crew, until

__all__ = ["Stream", "gated"]

END_S = 600.0


class Stream:
    """Sends batches without a pause, until there are no more. A batch may come again: it gets the same receipts."""

    def __init__(self, house: House, url: str, channel: str, batches: Iterable[list[bytes]]) -> None:
        self.refused: list[str] = []
        self._sent: dict[bytes, None] = {}
        self._batches = batches
        self._crew = Crew(1)
        self._done = self._crew.submit(self._run, house, url, channel)

    @property
    def sent(self) -> list[bytes]:
        """What has an answer, in order."""
        return list(self._sent)

    def wait_for(self, count: int) -> None:
        """Wait until so many envelopes have an answer."""
        until(lambda: len(self._sent) >= count or self._done.done(), END_S)

    def end(self) -> None:
        """Wait until all is sent and answered."""
        self._done.result(END_S)
        self._crew.__exit__(None)

    def _run(self, house: House, url: str, channel: str) -> None:
        with house.connect(url, channel) as remote:
            for batch in self._batches:
                outcomes = remote.submit_many(batch)
                self.refused += [each.detail for each in outcomes if isinstance(each, RopewalkError)]
                self._sent.update(dict.fromkeys(batch))


def gated(pools: Iterable[list[list[bytes]]], gates: Iterable[threading.Event]) -> Iterator[list[bytes]]:
    """One pool of batches after the other, each at its gate; until it opens, the last batch is sent again."""
    for pool, gate in zip(pools, gates, strict=True):
        yield from pool
        while not gate.is_set():
            yield pool[-1]
