"""Signals sent to a wrapper while a command runs inside it: they are meant for the command, and are passed on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

PASSED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
TYPED = (signal.SIGINT, signal.SIGQUIT)  # a terminal sends these to the command as well


class Passing:
    """Passes signals on to one command; the second one is a kill, for the first may be ignored.

    Where there is no terminal, the command gets a process group of its own: then a signal reaches all it started, and
    reaches it once, whether it was sent to us or to our whole group. With a terminal it stays in ours, to be typed to.
    """

    def __init__(self) -> None:
        self.heard: list[signal.Signals] = []
        self._grouped = not _has_terminal()
        self._early: list[signal.Signals] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._sent: signal.Signals | None = None

    def start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start the command, its output in a pipe; what was heard meanwhile is passed on at once."""
        group = 0 if self._grouped else None
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=group
        )
        self._child = child
        while self._early:
            self._pass_on(child, self._early.pop(0))
        return child

    def ended(self) -> None:
        """The command has ended: from now on signals are heard, and wait until it is recorded."""
        self._child = None

    @property
    def is_ending(self) -> bool:
        """Whether what the command started was told to end, and may still be tidying up."""
        return self._grouped and self._sent not in (None, signal.SIGKILL)

    def hear(self, number: int, _frame: FrameType | None) -> None:
        """Take a signal; a handler, so nothing is printed here."""
        heard = signal.Signals(number)
        if self._child is None:
            self._early.append(heard)
            return
        self._pass_on(self._child, heard)

    def _pass_on(self, child: subprocess.Popen[bytes], heard: signal.Signals) -> None:
        if heard not in self.heard:
            self.heard.append(heard)
        if heard in TYPED and _is_in_front():
            return  # Ctrl-C: the command got it too, and decides
        if self._sent is None:
            self._send(child, heard)
        elif heard != signal.SIGHUP:  # shell and kernel may both tell of one terminal that has gone
            self._send(child, signal.SIGKILL)

    def _send(self, child: subprocess.Popen[bytes], number: signal.Signals) -> None:
        self._sent = number
        with suppress(ProcessLookupError, PermissionError):  # it has ended; it belongs to somebody else
            if self._grouped:
                os.killpg(child.pid, number)
            else:
                child.send_signal(number)


@contextmanager
def passing_signals() -> Iterator[Passing]:
    """Within, signals go to the command; one that is ignored (`nohup`) stays so, here and in the command."""
    passing = Passing()
    before = {number: signal.getsignal(number) for number in PASSED}
    taken = [number for number in PASSED if before[number] is not signal.SIG_IGN]
    try:
        for number in taken:
            signal.signal(number, passing.hear)
        yield passing
    finally:
        for number in taken:
            signal.signal(number, before[number])


@contextmanager
def _terminal() -> Iterator[int | None]:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        yield None
        return
    try:
        yield terminal
    finally:
        os.close(terminal)


def _has_terminal() -> bool:
    with _terminal() as terminal:
        return terminal is not None


def _is_in_front() -> bool:
    """Whether keys typed at the terminal reach us, and so the command in our group."""
    with _terminal() as terminal, suppress(OSError):
        return terminal is not None and os.tcgetpgrp(terminal) == os.getpgrp()
    return False
