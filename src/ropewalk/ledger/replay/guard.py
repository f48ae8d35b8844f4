"""The guard: run a reducer and detect when it depends on anything but its arguments.

Names can be bound in many ways (`from time import time`), so the calls themselves are watched: while the reducer runs,
every call of built-in code is checked. The guard looks for the clock, randomness, sockets, files, processes and the
environment. The order of sets cannot be watched; `runner` fixes the hash seed instead. The cost is speed, and only for
reducers that are not built in.
"""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Any, Final

from ropewalk.errors import Unverified
from ropewalk.ledger.replay.reducers import FoldContext, Reducer, State

# Modules of built-in functions, and what a call means.
_MODULES: Final = {
    "time": "the clock",
    "_socket": "the network",
    "socket": "the network",
    "_ssl": "the network",
    "select": "the network",
    "_random": "chance",
    "_uuid": "chance",
    "posix": "the operating system",
    "nt": "the operating system",
    "_io": "files",
    "io": "files",
    "_posixsubprocess": "processes",
    "_thread": "threads",
}
# Python code whose only use here would be I/O.
_FRAMES: Final = {
    "random": "chance",
    "secrets": "chance",
    "uuid": "chance",
    "socket": "the network",
    "ssl": "the network",
    "http.client": "the network",
    "urllib.request": "the network",
    "asyncio.runners": "the network",
    "subprocess": "processes",
    "os": "the environment",
    "pathlib": "files",
    "tempfile": "files",
    "threading": "threads",
}
_CLOCK_METHODS: Final = frozenset(("now", "utcnow", "today"))
_BUILTINS: Final = {
    "open": "files",
    "input": "files",
    "id": "memory addresses",
    "hash": "the process's hash seed",
}


class _Impure(BaseException):
    """Not an `Exception`: a reducer that catches all exceptions must not catch this."""


def guarded(reducer: Reducer) -> Reducer:
    """Return the reducer, watched: it raises `Unverified` if it depends on anything but its arguments.

    >>> import time
    >>> from ropewalk.ledger.replay.reducers import FoldContext
    >>> late = guarded(Reducer("late", lambda state, event, moment: {"at": time.time()}))
    >>> late.fold({}, {}, FoldContext("c", 0, 0))
    Traceback (most recent call last):
    ropewalk.errors.Unverified: reducer late must not use the clock: time.time
    """

    def fold(state: State, event: dict[str, Any], moment: FoldContext) -> State:
        found: list[tuple[str, str]] = []
        over = False

        def watch(frame: FrameType, kind: str, called: Any) -> None:
            what = None
            if over:  # the guard itself removes the watch
                return
            if kind == "c_call":
                what = _asks(called)
            elif kind == "call":
                module = frame.f_globals.get("__name__", "")
                if module in _FRAMES:
                    what = _FRAMES[module], f"{module}.{frame.f_code.co_name}"
            if what is not None:
                found.append(what)
                raise _Impure

        collects, before = gc.isenabled(), sys.getprofile()
        gc.disable()  # or what a collection calls would be taken for the reducer's doing
        sys.setprofile(watch)
        try:
            result = reducer.fold(state, event, moment)
        except _Impure:
            result = None
        finally:
            over = True
            sys.setprofile(before)
            if collects:
                gc.enable()
        if found:
            whom, name = found[0]
            raise Unverified(
                f"reducer {reducer.name} must not use {whom}: {name}",
                reducer=reducer.name,
                call=name,
                height=moment.height,
                advice="Take time from `moment` and everything else from the event.",
            )
        return result

    return Reducer(reducer.name, fold, reducer.initial)


def _asks(called: Any) -> tuple[str, str] | None:
    name = getattr(called, "__name__", "")
    owner = getattr(called, "__self__", None)
    module = getattr(called, "__module__", None) or ""
    if isinstance(owner, type):
        if name in _CLOCK_METHODS and owner.__mro__[-2].__module__ == "datetime":
            return "the clock", f"{owner.__name__}.{name}"
    elif owner is not None and not hasattr(owner, "__loader__"):
        for kind in type(owner).__mro__[:-1]:
            if kind.__module__ in _MODULES:
                return _MODULES[kind.__module__], f"{kind.__name__}.{name}"
    if module in _MODULES:
        return _MODULES[module], f"{module}.{name}"
    if module == "sys" and name in ("setprofile", "settrace", "_setprofileallthreads"):
        return "the guard itself", f"sys.{name}"
    if module == "builtins" and name in _BUILTINS:
        return _BUILTINS[name], name
    return None
