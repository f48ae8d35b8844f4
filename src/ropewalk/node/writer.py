"""Group commit: appends that arrive while one is being written share the next pack, its fsync and its ref move.

The first writer leads. Whoever comes while the leader waits for the disk joins the queue; when the leader is done,
one of them leads the next batch. Nobody waits for a timer, so a single writer pays nothing.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ropewalk.errors import RopewalkError, Unavailable
from ropewalk.gitlog.envelope import Draft
from ropewalk.gitlog.layout import Layout
from ropewalk.gitlog.log import Receipt, Repo, Setting, append
from ropewalk.node.lines import Lines

__all__ = ["Writer"]

BATCH_EVENTS_MAX = 4_096  # bounds memory and the wait of the first in line


@dataclass(slots=True)
class _Request:
    layout: Layout
    topic: str
    drafts: Sequence[Draft]
    woken: threading.Event = field(default_factory=threading.Event)
    outcomes: list[Receipt | RopewalkError] | None = None
    failure: BaseException | None = None


class Writer:
    """The one queue of a process for one repository."""

    def __init__(self, repo: Repo, lines: Lines, setting: Callable[[], Setting]) -> None:
        self._repo = repo
        self._lines = lines
        self._setting = setting
        self._guard = threading.Lock()
        self._queue: deque[_Request] = deque()
        self._led = False

    def submit(self, layout: Layout, topic: str, drafts: Sequence[Draft]) -> list[Receipt | RopewalkError]:
        """Record drafts and return one outcome for each; receipts are durable."""
        request = _Request(layout, topic, drafts)
        with self._guard:
            self._queue.append(request)
            leads, self._led = not self._led, True
        if not leads:
            request.woken.wait()
        if request.outcomes is None and request.failure is None:
            self._lead()
        if request.failure is not None:
            if leads or isinstance(request.failure, RopewalkError):
                raise request.failure
            raise Unavailable("the append was interrupted before it was durable") from request.failure
        assert request.outcomes is not None
        return request.outcomes

    def _lead(self) -> None:
        """Write one batch, wake those it served, and pass the lead on."""
        with self._guard:
            batch = [self._queue.popleft()]
            room = BATCH_EVENTS_MAX - len(batch[0].drafts)
            while self._queue and len(self._queue[0].drafts) <= room:
                room -= len(self._queue[0].drafts)
                batch.append(self._queue.popleft())
        try:
            self._write(batch)
        except BaseException as error:
            for request in batch:
                if request.outcomes is None and request.failure is None:
                    request.failure = error
        finally:
            for request in batch:
                request.woken.set()
            with self._guard:
                self._led = bool(self._queue)
                if self._queue:
                    self._queue[0].woken.set()

    def _write(self, batch: Sequence[_Request]) -> None:
        logs: dict[tuple[str, str], list[_Request]] = {}
        for request in batch:
            logs.setdefault((request.layout.name, request.topic), []).append(request)
        for requests in logs.values():
            try:
                self._write_log(requests)
            except BaseException as error:
                for request in requests:
                    request.failure = error
                if not isinstance(error, RopewalkError):
                    raise

    def _write_log(self, requests: Sequence[_Request]) -> None:
        layout, topic = requests[0].layout, requests[0].topic
        drafts = [draft for request in requests for draft in request.drafts]
        ref = layout.head_ref(topic)
        with self._repo.turn(ref):
            made = append(
                self._repo,
                layout,
                topic,
                drafts,
                self._setting(),
                tip_of=partial(self._lines.tip, layout, topic),
                pause=_pause,
            )
            if made.slots:
                self._lines.grown(layout, topic, made.start, made.tip, made.slots)
        at = 0
        for request in requests:
            request.outcomes = made.outcomes[at : at + len(request.drafts)]
            at += len(request.drafts)


def _pause(attempt: int) -> None:
    time.sleep(random.random() * 0.01 * 2**attempt)  # noqa: S311 - jitter, not a secret
