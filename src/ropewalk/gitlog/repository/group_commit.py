"""Appends that arrive while one is being written share the next pack, its fsync and its ref move.

How writers wait and who leads is `kernel.group_commit`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from ropewalk.errors import HeadMoved, RopewalkError, Unavailable
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import Layout, anchors_ref
from ropewalk.gitlog.core.log import Repo, append
from ropewalk.gitlog.core.planning import AppendContext, Plan, Receipt, all_objects, plan
from ropewalk.gitlog.repository.tracked_logs import TrackedLogs
from ropewalk.kernel.group_commit import GroupCommit, Ticket

BATCH_EVENTS_MAX = 4_096  # bounds memory and the wait of the first in line


@dataclass(frozen=True, slots=True)
class _Drafts:
    layout: Layout
    topic: str
    drafts: Sequence[Draft]


class _Request(Ticket[_Drafts, list[Receipt | RopewalkError]]):
    __slots__ = ()


class Writer:
    """The one queue of a process for one repository."""

    def __init__(self, repo: Repo, lines: TrackedLogs, setting: Callable[[], AppendContext]) -> None:
        self._repo = repo
        self._lines = lines
        self._setting = setting
        self._commit: GroupCommit[_Request] = GroupCommit("this repository", self._write_round)

    def submit(self, layout: Layout, topic: str, drafts: Sequence[Draft]) -> list[Receipt | RopewalkError]:
        """Record drafts and return one outcome for each; receipts are durable."""
        request = _Request(_Drafts(layout, topic, drafts))
        self._commit.submit((request,))
        return request.result()

    def _write_round(self) -> None:
        batch: list[_Request] = []
        room, arrivals = BATCH_EVENTS_MAX, self._commit.arrivals
        try:
            while arrivals and (not batch or len(arrivals[0].item.drafts) <= room):
                room -= len(arrivals[0].item.drafts)
                self._commit.take(batch)
            self._write([request for request in batch if not request.abandoned])
        except RopewalkError as error:
            self._fail(batch, error)
        except BaseException as error:
            interrupted = Unavailable("the append was interrupted before it was durable")
            interrupted.__cause__ = error
            self._fail(batch, interrupted)
            raise

    def _write(self, batch: Sequence[_Request]) -> None:
        logs: dict[str, list[_Request]] = {}
        for request in batch:
            logs.setdefault(request.item.layout.head_ref(request.item.topic), []).append(request)
        left = self._write_together(logs) if len(logs) > 1 else logs
        for requests in left.values():
            try:
                self._write_log(requests)
            except RopewalkError as error:
                self._fail(requests, error)

    def _write_log(self, requests: Sequence[_Request]) -> None:
        layout, topic = requests[0].item.layout, requests[0].item.topic
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
                    self._fail(requests, error)
            left: dict[str, list[_Request]] = {}
            try:
                with self._repo.put(all_objects(plans.values())):
                    for ref, made in plans.items():
                        if not self._move(ref, made, logs[ref]):
                            left[ref] = logs[ref]
            except RopewalkError as error:
                self._fail([r for ref in plans if ref not in left for r in logs[ref]], error)
            return left

    def _plan(self, ref: str, requests: Sequence[_Request]) -> Plan:
        layout, topic = requests[0].item.layout, requests[0].item.topic
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
            self._fail(requests, error)
        return True

    def _settle(self, requests: Sequence[_Request], made: Plan) -> None:
        """Remember what was written, and give everybody their outcomes."""
        if made.places:
            self._lines.grown(
                requests[0].item.layout, requests[0].item.topic, made.start, made.tip, made.places
            )
        at = 0
        for request in requests:
            count = len(request.item.drafts)
            request.settle(made.outcomes[at : at + count], self._commit.settled)
            at += count

    def _fail(self, requests: Sequence[_Request], error: RopewalkError) -> None:
        for request in requests:
            if not request.settled:
                request.settle(error, self._commit.settled)


def _drafts(requests: Sequence[_Request]) -> list[Draft]:
    return [draft for request in requests for draft in request.item.drafts]


def _pause(attempt: int) -> None:
    time.sleep(random.random() * 0.01 * 2**attempt)  # noqa: S311 - jitter, not a secret
