"""Send and receive whole frames over a pipe, with limits on their size and on idle time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ropewalk.errors import Unavailable
from ropewalk.net.pipe import Pipe

IDLE_S = 30.0  # without progress; a session as a whole may take as long as it likes
RATE_MIN = 4096  # bytes a second that count as progress inside one frame
SLICE_BYTES = 64 << 10  # sent at a time, so that a slow reader shows progress


class FrameSplitter(Protocol):
    """Split a stream of bytes into frames."""

    @property
    def held(self) -> int:
        """How many bytes of an unfinished frame are held."""

    def receive(self, data: bytes) -> list[bytes]:
        """Take bytes and return the frames they complete."""


class FramePipe:
    """Frames over a pipe: a splitter reads them, and `wrap` encodes those that are sent."""

    def __init__(
        self,
        pipe: Pipe,
        cutter: FrameSplitter,
        wrap: Callable[[bytes], bytes],
        *,
        idle_s: float = IDLE_S,
        rest: bytes = b"",
    ) -> None:
        self.pipe = pipe
        self._cutter = cutter
        self._wrap = wrap
        self._ready: list[bytes] = cutter.receive(rest)
        self._idle_s = idle_s
        self._ended = False

    @property
    def held(self) -> int:
        """How many bytes of an unfinished frame are held."""
        return self._cutter.held

    async def receive(self, *, patient: bool = False) -> bytes | None:
        """Return the next frame, or None at the end. A patient reader waits for ever for a frame to begin."""
        if not self._ready:
            await self._fill(patient)
        return self._ready.pop(0) if self._ready else None

    async def receive_some(self) -> list[bytes]:
        """Return all frames that have come, at least one; none at the end."""
        if not self._ready:
            await self._fill(True)
        some, self._ready = self._ready, []
        return some

    async def send(self, raw: bytes) -> None:
        """Send one frame; a peer that reads none of it for the idle limit raises Unavailable."""
        data = self._wrap(raw)
        for at in range(0, len(data), SLICE_BYTES):
            try:
                async with asyncio.timeout(self._idle_s):
                    await self.pipe.send(data[at : at + SLICE_BYTES])
            except TimeoutError as error:
                raise Unavailable(f"{self.pipe.name} has read nothing for {self._idle_s:g} s") from error

    async def _fill(self, patient: bool) -> None:
        if self._cutter.held:
            self._ready = self._cutter.receive(b"")  # what is held may be wrong already
        now = asyncio.get_running_loop().time
        start, received = now(), 0
        while not self._ready and not self._ended:
            begun = self._cutter.held > 0
            # Bytes buy time, at a rate: one now and then does not keep a frame open for ever.
            allowed = None if patient and not begun else start + self._idle_s + received / RATE_MIN
            try:
                async with asyncio.timeout_at(allowed):
                    data = await self.pipe.receive()
            except TimeoutError as error:
                raise Unavailable(f"{self.pipe.name} made no progress for {self._idle_s:g} s") from error
            if patient and not begun:
                start = now()
            received += len(data)
            self._ended = not data
            self._ready = self._cutter.receive(data)
        if self._ended and self._cutter.held:
            raise Unavailable(f"{self.pipe.name} ended in the middle of a frame")
