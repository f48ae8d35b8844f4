"""Objects that are closed at the end of a `with`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """A base for what has a `close`."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds; doing so twice is no error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
