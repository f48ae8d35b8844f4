"""Append to the git logs for coroutines: what arrives while a batch is written shares the next one.

A log has one batch under way at a time, written by one thread; several logs share packs and syncs through the group
commit of the repository. The queue is bounded: what finds no room is refused before anything is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from ropewalk.errors import SPELLINGS, NotFound, OutOfOrder, RopewalkError, Unavailable
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import MESSAGES, Layout
from ropewalk.gitlog.core.objects import Oid
from ropewalk.gitlog.core.planning import Receipt
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.kernel.ulid import Ulid
from ropewalk.server.idempotency import IdempotencyKeys, KeyedRequest, is_final

THREADS = 8  # logs that are written at once
WAITING_MAX = 8_192  # events
WAITING_BYTES_MAX = 128 << 20  # of request bodies
BATCH_MAX = 1_024  # events of one log that share a commit
# Clients that were just answered often send again at once: the next batch waits for them, at most for a share of the
# time that the last one took. Else two halves of the clients take turns, with twice as many syncs. A single client
# never waits.
GATHER_SHARE = 0.5
GATHER_S_MAX = 0.25
TRIES_MAX = 8  # where another process appends between planning and writing

Outcome = Receipt | RopewalkError
Answer = Callable[[list[Outcome] | BaseException], None]
T = TypeVar("T")
_journal = logging.getLogger("ropewalk.server")


@dataclass(slots=True)
class _Request:
    drafts: Sequence[Draft | RopewalkError]
    key: KeyedRequest | None
    answer: Answer
    size: int


@dataclass(slots=True)
class _Lane:
    """What waits for one log. While `timer` runs, as many as `expected` requests begin the next batch at once."""

    waiting: list[_Request]
    expected: int = 0
    timer: asyncio.TimerHandle | None = None


class AppendQueue:
    """The appends of one repository. `waiting` is how many events have no answer yet."""

    def __init__(self, log: GitRepository, keys: IdempotencyKeys, *, waiting_max: int = WAITING_MAX) -> None:
        self._log = log
        self._keys = keys
        self._waiting_max = waiting_max
        self._threads = ThreadPoolExecutor(THREADS, "ropewalk-append")
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self.waiting = self._bytes = 0
        self.closed = False

    async def append(
        self,
        layout: Layout,
        topic: str,
        drafts: Sequence[Draft | RopewalkError],
        key: KeyedRequest | None = None,
        size: int = 0,
    ) -> list[Outcome]:
        """Put, for a coroutine: return the outcomes, or raise what refused all of them."""
        done: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()

        def answer(found: list[Outcome] | BaseException) -> None:
            if done.done():  # the client has left; that does not undo a batch
                return
            if isinstance(found, BaseException):
                done.set_exception(found)
            else:
                done.set_result(found)

        self.put(layout, topic, drafts, answer, key, size)
        return await done

    def put(
        self,
        layout: Layout,
        topic: str,
        drafts: Sequence[Draft | RopewalkError],
        answer: Answer,
        key: KeyedRequest | None = None,
        size: int = 0,
    ) -> None:
        """Record drafts, then call `answer` with one outcome each, in order. A receipt means that the event is on disk.

        A refusal among the drafts is its outcome. If another request with the key was faster, no outcome is given,
        and `key.outcomes` has those of the other request.
        """
        layout.head_ref(topic)  # refuse the name before anything waits for it
        full = self.waiting + len(drafts) > self._waiting_max or self._bytes + size > WAITING_BYTES_MAX
        if self.closed or full:
            raise Unavailable(
                "the server is stopping" if self.closed else f"{self.waiting} events wait to be written",
                advice="Nothing was written; send it again after Retry-After.",
            )
        request = _Request(drafts, key, answer, size)
        self.waiting += len(drafts)
        self._bytes += size
        name = layout.name, topic
        lane = self._lanes.get(name)
        if lane is None:
            self._lanes[name] = _Lane([request])
            # After all who are ready in this turn.
            asyncio.get_running_loop().call_soon(self._begin, layout, topic)
            return
        lane.waiting.append(request)
        if lane.timer is not None and len(lane.waiting) >= lane.expected:
            self._begin(layout, topic)

    async def drain(self) -> None:
        """Refuse what is new, and wait until all that waits is answered."""
        self.closed = True
        while self.waiting:
            await asyncio.sleep(0.01)
        self._threads.shutdown()

    def _begin(self, layout: Layout, topic: str) -> None:
        """Write what waits for a log, or forget the log."""
        lane = self._lanes[layout.name, topic]
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        count, stop, waiting = 0, 0, lane.waiting
        names: set[bytes] = set()
        while stop < len(waiting) and (stop == 0 or count + len(waiting[stop].drafts) <= BATCH_MAX):
            key = waiting[stop].key
            if key is not None:
                if key.name in names:  # the next batch answers it from what this one writes
                    break
                names.add(key.name)
            count += len(waiting[stop].drafts)
            stop += 1
        if not stop:
            del self._lanes[layout.name, topic]
            return
        batch, lane.waiting = waiting[:stop], waiting[stop:]
        loop = asyncio.get_running_loop()
        begun = loop.time()
        written = loop.run_in_executor(self._threads, self._write, layout, topic, batch)
        written.add_done_callback(lambda done: self._answer(layout, topic, batch, begun, done))

    def _answer(
        self,
        layout: Layout,
        topic: str,
        batch: Sequence[_Request],
        begun: float,
        written: asyncio.Future[list[list[Outcome] | RopewalkError]],
    ) -> None:
        loop = asyncio.get_running_loop()
        took = loop.time() - begun
        error = written.exception()
        lane = self._lanes[layout.name, topic]
        lane.expected = len(lane.waiting) + len(batch)
        for at, request in enumerate(batch):
            self.waiting -= len(request.drafts)
            self._bytes -= request.size
            try:
                request.answer(error if error is not None else written.result()[at])
            except Exception:  # the others of the batch are answered all the same
                _journal.exception("an append was not answered")
        if self.closed or lane.expected == 1 or len(lane.waiting) >= lane.expected:
            self._begin(layout, topic)
        else:
            wait_s = min(GATHER_S_MAX, GATHER_SHARE * took)
            lane.timer = loop.call_later(wait_s, self._begin, layout, topic)

    # In the thread

    def _write(
        self, layout: Layout, topic: str, batch: Sequence[_Request]
    ) -> list[list[Outcome] | RopewalkError]:
        found: dict[int, list[Outcome] | RopewalkError] = {}
        keyed: list[_Request] = []
        for each in batch:
            if each.key is not None:
                try:  # a request with the same key may have been written since this one was looked up
                    self._keys.refresh(each.key)
                    if each.key.outcomes is None:
                        keyed.append(each)
                    else:
                        found[id(each)] = []
                except RopewalkError as error:
                    found[id(each)] = error
        if keyed:
            found |= dict(zip(map(id, keyed), self._write_keyed(layout, topic, keyed), strict=True))
        plain = [each for each in batch if each.key is None]
        if plain:
            written = self._append(layout, topic, [each.drafts for each in plain])
            found |= dict(zip(map(id, plain), written, strict=True))
        return [found[id(each)] for each in batch]

    def _append(
        self, layout: Layout, topic: str, requests: Sequence[Sequence[Draft | RopewalkError]]
    ) -> list[list[Outcome]]:
        fit = [draft for drafts in requests for draft in drafts if isinstance(draft, Draft)]
        written = iter(self._log.append_all(topic, fit, layout=layout) if fit else ())
        return [
            [next(written) if isinstance(draft, Draft) else draft for draft in drafts] for drafts in requests
        ]

    def _write_keyed(self, layout: Layout, topic: str, requests: Sequence[_Request]) -> list[list[Outcome]]:
        """Append with ULIDs that are written down first; after a crash the log shows which of them it has."""
        answers: list[list[Outcome | None]] = [self._standing(layout, topic, each) for each in requests]
        for _ in range(TRIES_MAX):
            missing = [
                (row, column)
                for row, answer in enumerate(answers)
                for column, outcome in enumerate(answer)
                if outcome is None
            ]
            if not missing:
                break
            drafts = self._plan(layout, topic, requests, missing)
            (outcomes,) = self._append(layout, topic, [drafts])
            for (row, column), outcome in zip(missing, outcomes, strict=True):
                draft = requests[row].drafts[column]
                again = (
                    isinstance(outcome, OutOfOrder)
                    and isinstance(draft, Draft)
                    and "ulid" not in draft.document
                )
                answers[row][column] = None if again else outcome
        full = [
            [
                each if each is not None else Unavailable(f"another process keeps appending to {topic}")
                for each in answer
            ]
            for answer in answers
        ]
        for request, answer in zip(requests, full, strict=True):
            rows = [outcome_json(spelled(layout, each)) for each in answer]
            if request.key is not None and is_final(rows):
                request.key.outcomes = rows
        self._keys.keep([each.key for each in requests if each.key is not None])
        return full

    def _standing(self, layout: Layout, topic: str, request: _Request) -> list[Outcome | None]:
        """Return the receipts of what an earlier try of this request has appended."""
        assert request.key is not None
        planned = request.key.planned or [""] * len(request.drafts)
        line = self._log.lines.line(layout, topic, must_exist=False)
        found: list[Outcome | None] = []
        for name, draft in zip(planned, request.drafts, strict=True):
            slot = line.find(Ulid(name)) if name else None
            if slot is not None:
                found.append(Receipt(topic, slot.ulid, slot.content_id, Oid(slot.commit)))
            else:
                found.append(draft if isinstance(draft, RopewalkError) else None)
        return found

    def _plan(
        self, layout: Layout, topic: str, requests: Sequence[_Request], missing: Sequence[tuple[int, int]]
    ) -> list[Draft]:
        line = self._log.lines.line(layout, topic, must_exist=False)
        last = line.span(line.count - 1, line.count)[0].ulid if line.count else None
        drafts = []
        for row, column in missing:
            request = requests[row]
            assert request.key is not None
            draft = request.drafts[column]
            assert isinstance(draft, Draft)
            request.key.planned = request.key.planned or [""] * len(request.drafts)
            if "ulid" not in draft.document:
                last = self._log.new_ulid(last)
                draft = replace(draft, document={**draft.document, "ulid": last})
                request.key.planned[column] = last
            drafts.append(draft)
        self._keys.keep([each.key for each in requests if each.key is not None])
        return drafts


def spelled(layout: Layout, outcome: T) -> T:
    """Give errors of the message plane the codes of S1."""
    if layout is MESSAGES and isinstance(outcome, RopewalkError):
        spelling = SPELLINGS.get(outcome.code)
        if spelling is not None and not (isinstance(outcome, NotFound) and "topic" not in outcome.fields):
            vars(outcome)["code"] = spelling.messages
    return outcome


def outcome_json(outcome: Outcome) -> dict[str, object]:
    """Return a receipt, without the name of its log, or the problem that refused it."""
    if isinstance(outcome, RopewalkError):
        return outcome.to_problem()
    return {
        "ulid": outcome.ulid,
        "content_id": outcome.content_id,
        "commit": outcome.commit,
        "replayed": outcome.replayed,
    }
