"""A command that is run for somebody else: its output passed on as it comes, and the ends of it kept."""

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
from ropewalk.cli.common.signals import Passing

CAPTURE_BYTES_MAX = 1 << 20  # kept of the output; the middle of more is left out, the ends tell most
READ_BYTES = 65_536
LOOK_S = 0.1  # how often to see whether what was told to end has been killed instead
NOT_FOUND, NOT_STARTED = 127, 126  # what a shell answers for a command it cannot find, or may not run


def run_command(command: Sequence[str], sink: IO[bytes], passing: Passing) -> tuple[int, bytes]:
    """Run a command with its output passed on as it comes; returns its exit code and what was captured.

    It is over when the command itself ends: what it left running in the background may hold the output open for ever.
    """
    try:
        child = passing.start(command)
    except OSError as error:
        say(f"{command[0]}: {error.strerror}")
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED
        return code, os.fsencode(command[0]) + f": {error.strerror}\n".encode()
    assert child.stdout is not None
    kept = _Kept()
    try:
        for chunk in _output(child, child.stdout.fileno(), passing):
            with contextlib.suppress(OSError):
                sink.write(chunk)
                sink.flush()
            kept.add(chunk)
        code = child.wait()
    finally:
        passing.ended()
        child.stdout.close()
    return (128 - code if code < 0 else code), kept.bytes()


def _output(child: subprocess.Popen[bytes], pipe: int, passing: Passing) -> Iterator[bytes]:
    """What comes through a pipe until its end, or until the child's end: then all the child has written."""
    ended, tell = os.pipe()

    def wait() -> None:
        child.wait()
        os.close(tell)

    threading.Thread(target=wait, daemon=True).start()
    try:
        while ended not in select.select([pipe, ended], [], [])[0]:
            chunk = os.read(pipe, READ_BYTES)
            if not chunk:
                return
            yield chunk
        # A shell that is told to end leaves what it was running: that was told too, and is waited for.
        while passing.is_ending:
            if select.select([pipe], [], [], LOOK_S)[0]:
                chunk = os.read(pipe, READ_BYTES)
                if not chunk:
                    return
                yield chunk
        # The child wrote nothing after its end: what is its own is in the pipe now, and others may write on for ever.
        (left,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
        while left > 0 and (chunk := os.read(pipe, min(left, READ_BYTES))):
            left -= len(chunk)
            yield chunk
        if not select.select([pipe], [], [], 0)[0] or os.read(pipe, 1):
            say(
                "the command ended, but something it started goes on; what that writes from now on is not kept"
            )
    finally:
        os.close(ended)


class _Kept:
    """The beginning and the end of an output that may be endless."""

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
