"""Run a command, forward its output as it comes, and keep the beginning and the end of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator, Sequence
from typing import IO

from ropewalk.cli.common.command import say
from ropewalk.cli.common.signals import SignalForwarder

CAPTURE_BYTES_MAX = 1 << 20  # of output to keep; the middle of a longer output is left out
READ_BYTES = 65_536
LOOK_S = 0.1  # how often to check whether a process that got a signal was killed instead
NOT_FOUND, NOT_STARTED = 127, 126  # exit codes of a shell for a missing or not executable command


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
            with contextlib.suppress(OSError):
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
