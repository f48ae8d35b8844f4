"""A channel in another home, as a replica reaches it without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ropewalk.errors import Unavailable
from ropewalk.ledger.block.block import Block
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.settings import read_settings

__all__ = ["Line"]


class Line:
    """The origin, or another home, as a replica reaches it: all of it, a part, or until the line breaks."""

    key_proofs = ()

    def __init__(
        self, home: Path, channel: str, *, shown: int | None = None, breaks: int | None = None
    ) -> None:
        self._home, self._channel, self._shown, self._breaks = home, channel, shown, breaks

    def settings(self) -> Any:
        return read_settings(self._home, self._channel)

    def head(self) -> dict[str, Any]:
        found = list(self._lines(0, None))
        last = Block.from_lines(found[-1][1]) if found else None
        return {} if last is None else {"height": found[-1][0], "block_hash": last.hash.hex()}

    def blocks(self, start: int, end: int | None = None) -> Iterator[tuple[int, list[bytes]]]:
        for count, found in enumerate(self._lines(start, end)):
            if count == self._breaks:
                raise Unavailable("the line breaks")
            yield found

    def _lines(self, start: int, end: int | None) -> Iterator[tuple[int, list[bytes]]]:
        with open_channel(self._home, self._channel) as channel:
            for height, lines in channel.lines(start, end):
                if self._shown is None or height < self._shown:
                    yield height, lines
