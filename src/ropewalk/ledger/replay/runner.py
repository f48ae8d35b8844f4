"""Run a reducer in this process, or in a child process with a fixed hash seed.

The order of a set follows the hash seed of its process, which differs from run to run; a state made from that order has
another root each time. The seed is set when an interpreter starts, so a reducer that is not built in runs in a child
with `PYTHONHASHSEED=0`, under the guard. Blocks are verified, and snapshots signed, on this side: the child sees
verified events and no key.

    child                    messages, each four bytes of length and canonical JSON
    {"path","module","name","fold","state"} → {}     begin with a state
    {"events","moment"} → {}                         fold the events of a block
    {} → {"state"}                                   the state now
    any → {"problem"}                                the error
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from operator import attrgetter
from typing import IO, Any, cast

from ropewalk.errors import Invalid, Unavailable
from ropewalk.kernel import jcs
from ropewalk.ledger.remote.messages import error_of
from ropewalk.ledger.replay.guard import guarded
from ropewalk.ledger.replay.reducers import REDUCERS, FoldContext, Reducer, State
from ropewalk.ledger.replay.replay import FoldRunner, LocalFoldRunner

SEED = "0"


def open_fold_runner(reducer: Reducer, *, unsafe_no_guard: bool = False) -> FoldRunner:
    """Return the runner of a reducer: guarded, with a fixed hash seed, unless the caller disables that.

    The built-in reducers are pure, as tests show, and run in this process.
    """
    if unsafe_no_guard or REDUCERS.get(reducer.name) is reducer:
        return LocalFoldRunner(reducer)
    if not sys.flags.hash_randomization:
        return LocalFoldRunner(guarded(reducer))
    address = _address(reducer)
    if address is None:
        raise Invalid(
            f"reducer {reducer.name} must be a function of a module that a child process can import",
            reducer=reducer.name,
            advice="Put it into a module and name it module:function, or set PYTHONHASHSEED=0 for this process.",
        )
    return ChildFoldRunner(reducer, *address)


def _address(reducer: Reducer) -> tuple[str, str] | None:
    """Return module and name under which a child finds the same function."""
    fold = reducer.fold
    module, _, name = reducer.name.partition(":")
    named = (
        (module, name) if name else (getattr(fold, "__module__", None), getattr(fold, "__qualname__", None))
    )
    if not named[0] or not named[1] or named[0] == "__main__" or "<" in named[1]:
        return None
    try:
        found = attrgetter(named[1])(import_module(named[0]))
    except (ImportError, AttributeError):
        return None
    return cast("tuple[str, str]", named) if found is fold else None


class ChildFoldRunner:
    """A reducer in a child process. Close it when the replay is over."""

    def __init__(self, reducer: Reducer, module: str, fold: str) -> None:
        self._reducer, self._module, self._fold = reducer, module, fold
        self._child: subprocess.Popen[bytes] | None = None
        self._state: State = reducer.initial()
        self._known = True  # whether `_state` is the child's

    def begin(self, state: State) -> None:
        self.close()
        self._state, self._known = state, True

    def fold(self, events: Sequence[dict[str, Any]], moment: FoldContext) -> None:
        if self._child is None:
            self._start()
        self._known = False
        place = [moment.channel, moment.height, str(moment.now_ns)]
        self._ask({"events": list(events), "moment": place})

    def state(self) -> State:
        if not self._known:
            self._state, self._known = self._ask({})["state"], True
        return self._state

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    stream.close()
            child.wait()

    def _start(self) -> None:
        # -P: the current directory is on the path only if it is on ours.
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "ropewalk.ledger.replay.child_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # No other part of our environment: a reducer must not read it.
            env={"PYTHONHASHSEED": SEED, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._ask(
            {
                "path": [each for each in sys.path if isinstance(each, str)],
                "module": self._module,
                "fold": self._fold,
                "name": self._reducer.name,
                "state": self._state,
            }
        )

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        child = self._child
        assert child is not None and child.stdin is not None and child.stdout is not None
        try:
            send(child.stdin, question)
            answer = receive(child.stdout)
        except OSError:
            answer = None
        if answer is None:
            raise Unavailable(
                f"reducer {self._reducer.name}: its process ended",
                advice="See what it printed; a reducer must not end its process.",
            )
        if "problem" in answer:
            raise error_of(answer["problem"])
        return answer


def send(stream: IO[bytes], value: dict[str, Any]) -> None:
    """Write one message."""
    raw = jcs.encode(value)
    stream.write(len(raw).to_bytes(4, "big") + raw)
    stream.flush()


def receive(stream: IO[bytes]) -> dict[str, Any] | None:
    """Read one message; None at the end."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    raw = stream.read(int.from_bytes(head, "big"))
    return cast("dict[str, Any]", jcs.parse(raw))
