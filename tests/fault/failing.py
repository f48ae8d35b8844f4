"""A disk that fails once, at a call of one's choosing."""

from __future__ import annotations

import os

from ropewalk.disk.durable import Disk


class Countdown:
    """Counts calls that change the disk, and fails one of them."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(28, os.strerror(28))


class FailingDisk(Disk):
    """A disk whose n-th call fails, as a full one does."""

    def __init__(self, call: Countdown) -> None:
        self._call = call

    def open(self, path, flags):
        self._call()
        return super().open(path, flags)

    def write(self, descriptor, raw):
        self._call()
        super().write(descriptor, raw)

    def fsync(self, descriptor):
        self._call()
        super().fsync(descriptor)

    def rename(self, old, new):
        self._call()
        super().rename(old, new)

    def unlink(self, path):
        self._call()
        super().unlink(path)
