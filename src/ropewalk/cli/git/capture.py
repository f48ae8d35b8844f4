"""Run a command: forward its output and its signals, and keep the beginning and the end of the output."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO

from ropewalk.cli.common.command import say

CAPTURE_BYTES_MAX = 1 << 20  # of output to keep; the middle of a longer output is left out
READ_BYTES = 65_536
LOOK_S = 0.1  # how often to check whether a process that got a signal was killed instead
NOT_FOUND, NOT_STARTED = 127, 126  # exit codes of a shell for a missing or not executable command
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


def run_command(command: Sequence[str], sink: IO[bytes], forwarder: SignalForwarder) -> tuple[int, bytes]:
    """Run a command, forward its output, and return its exit code and the captured output.

    Return when the command itself ends: background processes may keep its output open for ever.
    """
    try:
        child = forwarder.start(command)
    except OSError as error:
        say(f"{command[0]}: {error.strerror}")
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED
        return code, os.fsencode(command[0]) + f": {error.strerror}\n".encode()
    assert child.stdout is not None
    kept = _HeadAndTail()
    try:
        for chunk in _output(child, child.stdout.fileno(), forwarder):
            with suppress(OSError):
                sink.write(chunk)
                sink.flush()
            kept.add(chunk)
        code = child.wait()
    finally:
        forwarder.ended()
        child.stdout.close()
    return (128 - code if code < 0 else code), kept.bytes()


def _output(child: subprocess.Popen[bytes], pipe: int, forwarder: SignalForwarder) -> Iterator[bytes]:
    """Yield chunks of a pipe until its end, or until the child has ended and all its output was read."""
    ended, notify = os.pipe()

    def wait() -> None:
        child.wait()
        os.close(notify)

    threading.Thread(target=wait, daemon=True).start()
    try:
        while ended not in select.select([pipe, ended], [], [])[0]:
            chunk = os.read(pipe, READ_BYTES)
            if not chunk:
                return
            yield chunk
        # A shell may end before its own children, which got the same signal: wait for them.
        while forwarder.is_ending:
            if select.select([pipe], [], [], LOOK_S)[0]:
                chunk = os.read(pipe, READ_BYTES)
                if not chunk:
                    return
                yield chunk
        # All output of the child is in the pipe now; background processes may continue to write.
        (left,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
        while left > 0 and (chunk := os.read(pipe, min(left, READ_BYTES))):
            left -= len(chunk)
            yield chunk
        if not select.select([pipe], [], [], 0)[0] or os.read(pipe, 1):
            say(
                "the command ended, but a process it started is still running; its further output is not kept"
            )
    finally:
        os.close(ended)


class _HeadAndTail:
    """The beginning and the end of an output of any length."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0

    def add(self, chunk: bytes) -> None:
        room = CAPTURE_BYTES_MAX // 2 - len(self._head)
        self._head += chunk[: max(0, room)]
        self._tail += chunk[max(0, room) :]
        excess = len(self._tail) - CAPTURE_BYTES_MAX // 2
        if excess > 0:
            del self._tail[:excess]
            self._left_out += excess

    def bytes(self) -> bytes:
        gap = f"\n[… {self._left_out} bytes left out …]\n".encode() if self._left_out else b""
        return bytes(self._head) + gap + bytes(self._tail)
