"""A checker of histories: is there one order of appends and reads of a log that explains what every client saw?

Linearizability after Wing and Gong, with Lowe's memory of configurations that were tried, as in Porcupine. Pure.

The log is a list. An append puts its entry at the end and returns its place, or None if the client knows no place. A
read returns the whole list. An operation without an end may have happened at any time after its start, or never.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Operation", "is_linearizable", "wrong_reads"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a client: when it began and ended (None: no answer), and what it was."""

    begin: int
    end: int | None
    entry: str | None = None  # of an append; None for a read
    place: int | None = None  # that an append returned
    seen: tuple[str, ...] = ()  # by a read


def is_linearizable(history: Iterable[Operation]) -> bool:
    """Return whether some order, in which no call comes before one that had ended earlier, explains all answers.

    >>> append = Operation(0, 1, entry="a", place=0)
    >>> is_linearizable([append, Operation(2, 3, seen=("a",))])
    True
    >>> is_linearizable([append, Operation(2, 3, seen=())])
    False
    """
    calls = sorted(
        (
            call for call in history if call.end is not None or call.entry is not None
        ),  # an unanswered read says nothing
        key=lambda call: call.begin,
    )
    # The longest read fixes the order of its entries; without it, orders of concurrent appends would be tried.
    known = max((call.seen for call in calls), key=len, default=())
    tried: set[tuple[int, tuple[str, ...]]] = set()
    stack: list[tuple[int, tuple[str, ...]]] = [(0, ())]
    answered = sum(1 << number for number, call in enumerate(calls) if call.end is not None)
    while stack:
        done, log = stack.pop()
        if done & answered == answered:
            return True
        for number in _possible(calls, done):
            after = _apply(calls[number], log, known)
            if after is not None and (state := (done | 1 << number, after)) not in tried:
                tried.add(state)
                stack.append(state)
    return False


def _possible(calls: Sequence[Operation], done: int) -> list[int]:
    """Return the calls that may come next: those that began before any other open one had ended."""
    open_calls = [number for number in range(len(calls)) if not done >> number & 1]
    first_end = min((end for number in open_calls if (end := calls[number].end) is not None), default=None)
    return [number for number in open_calls if first_end is None or calls[number].begin <= first_end]


def _apply(call: Operation, log: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the log after a call, None if the call cannot have happened now."""
    if call.entry is None:
        return log if call.seen == log else None
    place = len(log)
    if call.place not in (None, place) or (place < len(known) and known[place] != call.entry):
        return None
    return (*log, call.entry)


def wrong_reads(reads: Sequence[Sequence[str]]) -> list[str]:
    """Return what is wrong with reads of one client, one after another: heads never go back, history never changes."""
    return [
        f"read {number} has {len(later)} entries and does not begin with the {len(earlier)} of the one before"
        for number, (earlier, later) in enumerate(pairwise(reads), 1)
        if list(later[: len(earlier)]) != list(earlier)
    ]
