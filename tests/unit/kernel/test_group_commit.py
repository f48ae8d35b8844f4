"""The group commit that git logs and ledger channels share."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from tests.waiting import LIMIT_S, Crew, until

from ropewalk.errors import Conflict, Unavailable, Usage
from ropewalk.kernel.group_commit import GroupCommit, Ticket

Commit = GroupCommit[Ticket[int, int]]


class Doubling:
    """A log that doubles numbers, one round at a time; a round waits while `gate` is closed."""

    def __init__(self) -> None:
        self.commit: Commit = GroupCommit("numbers", self.write_round)
        self.rounds: list[list[int]] = []
        self.gate, self.inside = threading.Event(), threading.Event()
        self.gate.set()

    def write_round(self) -> None:
        batch: list[Ticket[int, int]] = []
        while self.commit.arrivals:
            self.commit.take(batch)
        self.rounds.append([ticket.item for ticket in batch if not ticket.abandoned])
        self.inside.set()
        self.gate.wait(LIMIT_S)
        for ticket in batch:
            ticket.settle(
                ticket.item * 2 if ticket.item >= 0 else Unavailable("negative"), self.commit.settled
            )

    def submit(self, *numbers: int) -> list[int]:
        tickets = [Ticket[int, int](number) for number in numbers]
        self.commit.submit(tickets)
        return [ticket.result() for ticket in tickets]


def test_arrivals_during_a_round_share_the_next():
    log = Doubling()
    log.gate.clear()
    with Crew(9) as crew:
        first = crew.submit(log.submit, 0)
        assert log.inside.wait(LIMIT_S)
        others = [crew.submit(log.submit, number) for number in range(1, 9)]
        until(lambda: len(log.commit.arrivals) == 8)
        log.gate.set()
        assert first.result(LIMIT_S) == [0]
        assert [other.result(LIMIT_S) for other in others] == [[2 * number] for number in range(1, 9)]
    assert [len(batch) for batch in log.rounds] == [1, 8]


def test_every_thread_gets_its_own_outcomes():
    log = Doubling()

    def write(start: int) -> list[int]:
        return [log.submit(start + step)[0] for step in range(50)]

    with Crew(16) as crew:
        written = [crew.submit(partial(write, 1000 * number)) for number in range(16)]
        for number, each in enumerate(written):
            assert each.result(LIMIT_S) == [2 * (1000 * number + step) for step in range(50)]


def test_an_error_is_raised_to_its_submitter():
    log = Doubling()
    assert log.submit(1, 2) == [2, 4]
    with pytest.raises(Unavailable, match="negative"):
        log.submit(-1)


def test_a_round_cannot_submit():
    commit: Commit = GroupCommit("numbers", lambda: commit.submit([Ticket(2)]))
    with pytest.raises(Usage, match="numbers: submit must not be called from within a commit round"):
        commit.submit([Ticket(1)])


def test_exclusive_use_waits_for_no_round():
    log = Doubling()
    log.gate.clear()
    with Crew(2) as crew:
        running = crew.submit(log.submit, 1)
        assert log.inside.wait(LIMIT_S)
        with pytest.raises(Conflict, match="numbers is being appended to"), log.commit.exclusive():
            pass
        log.gate.set()
        assert running.result(LIMIT_S) == [2]
    with log.commit.exclusive():
        log.commit.check_idle()
