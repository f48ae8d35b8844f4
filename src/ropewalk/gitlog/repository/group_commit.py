"""Group commit: appends that arrive while one is being written share the next pack, its fsync and its ref move.

The first writer leads. Writers that arrive while the leader waits for the disk join the queue; when the leader is done,
one of them leads the next batch. There is no timer, so a single writer pays nothing.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from ropewalk.errors import HeadMoved, RopewalkError, Unavailable
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import Layout, anchors_ref
from ropewalk.gitlog.core.log import Repo, append
from ropewalk.gitlog.core.planning import AppendContext, Plan, Receipt, all_objects, plan
from ropewalk.gitlog.repository.tracked_logs import TrackedLogs

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

    def __init__(self, repo: Repo, lines: TrackedLogs, setting: Callable[[], AppendContext]) -> None:
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
        try:
            if not leads:
                request.woken.wait()
            if request.outcomes is None and request.failure is None:
                self._lead()
        except BaseException:  # Ctrl-C while waiting: no other writer may wait for us
            self._leave(request, leads=leads)
            raise
        if request.failure is not None:
            if leads or isinstance(request.failure, RopewalkError):
                raise request.failure
            raise Unavailable("the append was interrupted before it was durable") from request.failure
        assert request.outcomes is not None
        return request.outcomes

    def _leave(self, request: _Request, *, leads: bool) -> None:
        """Take back a request that is not being written; if it was to lead, another one does."""
        with self._guard:
            if not any(each is request for each in self._queue):
                return
            self._queue = deque(each for each in self._queue if each is not request)
            if leads or request.woken.is_set():
                self._led = bool(self._queue)
                if self._queue:
                    self._queue[0].woken.set()

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
        logs: dict[str, list[_Request]] = {}
        for request in batch:
            logs.setdefault(request.layout.head_ref(request.topic), []).append(request)
        left = self._write_together(logs) if len(logs) > 1 else logs
        for requests in left.values():
            try:
                self._write_log(requests)
            except RopewalkError as error:
                _fail(requests, error)

    def _write_log(self, requests: Sequence[_Request]) -> None:
        layout, topic = requests[0].layout, requests[0].topic
        with self._repo.turn(layout.head_ref(topic)):
            made = append(
                self._repo,
                layout,
                topic,
                _drafts(requests),
                self._setting(),
                tip_of=partial(self._lines.tip, layout, topic),
                pause=_pause,
            )
            self._settle(requests, made)

    def _write_together(self, logs: dict[str, list[_Request]]) -> dict[str, list[_Request]]:
        """Write several logs as one pack; returns those whose head moved under it, to be written one by one."""
        with ExitStack() as turns:
            for ref in sorted(logs):  # one order for all writers prevents a deadlock
                turns.enter_context(self._repo.turn(ref))
            plans: dict[str, Plan] = {}
            for ref, requests in logs.items():
                try:
                    plans[ref] = self._plan(ref, requests)
                except RopewalkError as error:
                    _fail(requests, error)
            left: dict[str, list[_Request]] = {}
            try:
                with self._repo.put(all_objects(plans.values())):
                    for ref, made in plans.items():
                        if not self._move(ref, made, logs[ref]):
                            left[ref] = logs[ref]
            except RopewalkError as error:
                _fail(
                    [r for ref in plans for r in logs[ref] if r.outcomes is None and ref not in left], error
                )
            return left

    def _plan(self, ref: str, requests: Sequence[_Request]) -> Plan:
        layout, topic = requests[0].layout, requests[0].topic
        tip = self._lines.tip(layout, topic, self._repo.head(ref))
        anchor = self._repo.head(anchors_ref(layout, topic))
        return plan(layout, topic, tip, _drafts(requests), self._setting(), anchor)

    def _move(self, ref: str, made: Plan, requests: Sequence[_Request]) -> bool:
        """Move one head to where its plan ends; False if it was no longer where the plan began."""
        try:
            if made.tip.commit is not None and made.places:
                self._repo.move_head(ref, made.start.commit, made.tip.commit)
            self._settle(requests, made)
        except HeadMoved:
            return False
        except RopewalkError as error:
            _fail(requests, error)
        return True

    def _settle(self, requests: Sequence[_Request], made: Plan) -> None:
        """Remember what was written, and give everybody their outcomes."""
        if made.places:
            self._lines.grown(requests[0].layout, requests[0].topic, made.start, made.tip, made.places)
        at = 0
        for request in requests:
            request.outcomes = made.outcomes[at : at + len(request.drafts)]
            at += len(request.drafts)


def _drafts(requests: Sequence[_Request]) -> list[Draft]:
    return [draft for request in requests for draft in request.drafts]


def _fail(requests: Sequence[_Request], error: BaseException) -> None:
    for request in requests:
        request.failure = error


def _pause(attempt: int) -> None:
    time.sleep(random.random() * 0.01 * 2**attempt)  # noqa: S311 - jitter, not a secret
