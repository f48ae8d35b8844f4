"""The checker of histories against brute force, and real histories of many processes."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.linearizable import Operation, is_linearizable, wrong_reads

CLIENTS, CALLS = 4, 12


def by_brute_force(history: list[Operation]) -> bool:
    """Try every subset of unanswered calls in every order."""
    answered = [call for call in history if call.end is not None]
    unanswered = [call for call in history if call.end is None and call.entry is not None]
    for count in range(len(unanswered) + 1):
        for extra in itertools.combinations(unanswered, count):
            for order in itertools.permutations([*answered, *extra]):
                if explains(order):
                    return True
    return False


def explains(order: tuple[Operation, ...]) -> bool:
    log: list[str] = []
    for number, call in enumerate(order):
        if any(later.end is not None and later.end < call.begin for later in order[number + 1 :]):
            return False
        if call.entry is None:
            if list(call.seen) != log:
                return False
        else:
            if call.place not in (None, len(log)):
                return False
            log.append(call.entry)
    return True


@st.composite
def histories(draw) -> list[Operation]:
    """Small histories: true ones, and ones with a wrong answer."""
    names = iter("abcde")
    found = []
    for _ in range(draw(st.integers(1, 5))):
        begin = draw(st.integers(0, 8))
        end = draw(st.none() | st.integers(begin + 1, begin + 5))
        if draw(st.booleans()):
            place = draw(st.none() | st.integers(0, 2)) if end is not None else None
            found.append(Operation(begin, end, entry=next(names), place=place))
        else:
            found.append(
                Operation(begin, end, seen=tuple(draw(st.permutations("abc"))[: draw(st.integers(0, 2))]))
            )
    return found


@settings(max_examples=150, deadline=None)
@given(histories())
def test_checker_agrees_with_brute_force(history):
    assert is_linearizable(history) == by_brute_force(history)


def test_reads_that_go_back_are_found():
    assert wrong_reads([["a"], ["a", "b"], ["a"]]) == [
        "read 2 has 1 entries and does not begin with the 2 of the one before"
    ]
    assert wrong_reads([[], ["a"], ["a", "b"]]) == []


def client(engine: str, root: Path, number: int) -> None:
    """Append and read in turn; print every call with its times, which all processes share."""
    from tests.sim.power.workloads import WORKLOADS

    workload = WORKLOADS[engine]
    for call in range(CALLS):
        begin = time.monotonic_ns()
        if call % 3 < 2:
            entry = workload.append(root, 1000 + number * CALLS + call)
            print(json.dumps({"begin": begin, "end": time.monotonic_ns(), "entry": entry}))
        else:
            seen = workload.read(root)
            print(json.dumps({"begin": begin, "end": time.monotonic_ns(), "seen": seen}))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["gitlog", "ledger"])
def test_log_of_many_processes_is_linearizable(engine, tmp_path):
    from tests.sim.power.workloads import WORKLOADS

    WORKLOADS[engine].prepare(tmp_path)
    first = WORKLOADS[engine].read(tmp_path)
    command = [sys.executable, "-m", "tests.sim.test_linearizable", engine, str(tmp_path)]
    clients = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(CLIENTS)
    ]
    history = [Operation(-2, -1, entry=entry, place=place) for place, entry in enumerate(first)]
    for each in clients:
        said, _ = each.communicate(timeout=100)
        assert each.returncode == 0
        calls = [json.loads(line) for line in said.splitlines()]
        assert len(calls) == CALLS
        assert wrong_reads([call["seen"] for call in calls if "seen" in call]) == []
        history += [Operation(**{**call, "seen": tuple(call.get("seen", ()))}) for call in calls]
    assert is_linearizable(history)
    read = next(call for call in history if call.seen)
    lost = Operation(read.begin, read.end, seen=read.seen[1:])
    assert not is_linearizable([lost if call is read else call for call in history])


if __name__ == "__main__":
    client(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
