"""The child process in which a reducer runs under the guard; `runner` starts it and defines the messages.

The guard watches the calls of the reducer. An audit hook of the interpreter also blocks sockets, processes and files
from any thread or library.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from operator import attrgetter
from typing import Any

from ropewalk.errors import Invalid, RopewalkError
from ropewalk.ledger.replay.guard import guarded
from ropewalk.ledger.replay.reducers import FoldContext, Reducer
from ropewalk.ledger.replay.replay import FoldRunner, LocalFoldRunner
from ropewalk.ledger.replay.runner import receive, send

_REFUSED = (
    "socket.",
    "subprocess.",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "open",
    "ctypes.",
)


class _Watch:
    """An audit hook that blocks events while a reducer runs; hooks cannot be removed."""

    active = False

    def __call__(self, event: str, _arguments: tuple[Any, ...]) -> None:
        if self.active and event.startswith(_REFUSED):
            raise PermissionError(f"a reducer must not use {event}")


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a module prints must not mix with the messages
    questions, watch = sys.stdin.buffer, _Watch()
    sys.addaudithook(watch)
    folding: FoldRunner | None = None
    while (question := receive(questions)) is not None:
        answer: dict[str, Any] = {}
        try:
            if folding is None:
                folding = _begin(question)
            elif "events" in question:
                channel, height, now_ns = question["moment"]
                watch.active = True
                try:
                    folding.fold(question["events"], FoldContext(channel, height, int(now_ns)))
                finally:
                    watch.active = False
            else:
                answer = {"state": folding.state()}
            send(answers, answer)
        except RopewalkError as error:
            send(answers, {"problem": error.to_problem()})


def _begin(question: dict[str, Any]) -> LocalFoldRunner:
    sys.path[:] = question["path"]
    try:
        fold = attrgetter(question["fold"])(import_module(question["module"]))
    except Exception as error:
        raise Invalid(f"reducer {question['name']} cannot be imported: {error!r}") from error
    folding = LocalFoldRunner(guarded(Reducer(question["name"], fold)))
    folding.begin(question["state"])
    return folding


if __name__ == "__main__":
    _main()
