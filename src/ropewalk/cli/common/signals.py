"""Forward the signals sent to a wrapper to the command that it runs."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)  # a terminal sends these to the command as well


class SignalForwarder:
    """Forwards signals to one command. The second signal is a kill, because the command may ignore the first.

    Without a terminal, the command runs in a new process group: a signal then reaches all its processes exactly once.
    With a terminal it stays in our group, so that it can read from the terminal.
    """

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self._grouped = not _has_terminal()
        self._early: list[signal.Signals] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._sent: signal.Signals | None = None

    def start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start the command with its output in a pipe; forward signals received meanwhile."""
        group = 0 if self._grouped else None
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=group
        )
        self._child = child
        while self._early:
            self._forward(child, self._early.pop(0))
        return child

    def ended(self) -> None:
        """Stop forwarding: the command has ended, and its record must be written before we end."""
        self._child = None

    @property
    def is_ending(self) -> bool:
        """Return whether the process group got a signal other than SIGKILL and may still be cleaning up."""
        return self._grouped and self._sent not in (None, signal.SIGKILL)

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal. Nothing is printed here: this is a signal handler."""
        received = signal.Signals(number)
        if self._child is None:
            self._early.append(received)
            return
        self._forward(self._child, received)

    def _forward(self, child: subprocess.Popen[bytes], received: signal.Signals) -> None:
        if received not in self.received:
            self.received.append(received)
        if received in FROM_TERMINAL and _is_foreground():
            return  # Ctrl-C: the terminal has sent it to the command, too
        if self._sent is None:
            self._send(child, received)
        elif received != signal.SIGHUP:  # shell and kernel may both report the same closed terminal
            self._send(child, signal.SIGKILL)

    def _send(self, child: subprocess.Popen[bytes], number: signal.Signals) -> None:
        self._sent = number
        with suppress(ProcessLookupError, PermissionError):  # it has ended, or runs as another user
            if self._grouped:
                os.killpg(child.pid, number)
            else:
                child.send_signal(number)


@contextmanager
def forwarded_signals() -> Iterator[SignalForwarder]:
    """Forward signals to the command within. Signals that are ignored (`nohup`) stay ignored."""
    forwarder = SignalForwarder()
    before = {number: signal.getsignal(number) for number in FORWARDED}
    taken = [number for number in FORWARDED if before[number] is not signal.SIG_IGN]
    try:
        for number in taken:
            signal.signal(number, forwarder.on_signal)
        yield forwarder
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


def _is_foreground() -> bool:
    """Return whether our process group, and so the command, is in the foreground of the terminal."""
    with _terminal() as terminal, suppress(OSError):
        return terminal is not None and os.tcgetpgrp(terminal) == os.getpgrp()
    return False
