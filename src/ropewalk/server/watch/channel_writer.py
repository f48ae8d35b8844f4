"""Write the envelopes of a watch into channels, which are made if they are missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ropewalk.errors import NotFound, Replayed
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.channel.settings import ChannelSettings, create_channel, read_settings
from ropewalk.ledger.keys.rotate import open_sealing
from ropewalk.ledger.versions.lifecycle import version_to_write
from ropewalk.server.auth.audit import CHANNEL as AUDIT_CHANNEL
from ropewalk.server.auth.audit import audit_envelope

WRITER_WAIT_S = 30.0
NODE_KEY = "node"


class ChannelWriter:
    """Appends to channels of one repository with the keys that it has."""

    def __init__(
        self,
        home: Path,
        channel_keys: Callable[[str], Sequence[SigningKey]],
        signing_key: Callable[[str], SigningKey],
    ) -> None:
        self._home, self.keys, self._key = home, channel_keys, signing_key

    @property
    def key(self) -> SigningKey:
        """The key of this repository."""
        return self._key(NODE_KEY)

    def append(self, channel: str, raw: bytes) -> None:
        """Seal an envelope; one that the channel has already counts as sealed."""
        if self._settings(channel) is None:
            create_channel(self._home, channel, NODE_KEY, self.key.public)
        with open_sealing(self._home, channel, lambda: self.keys(channel), wait_s=WRITER_WAIT_S) as opened:
            try:
                opened.log.submit(raw)
            except Replayed:
                return  # it was sealed before a crash

    def _settings(self, channel: str) -> ChannelSettings | None:
        try:
            return read_settings(self._home, channel)
        except NotFound:
            return None

    def version(self, channel: str, now_ns: int) -> str:
        """Return the protocol version to write."""
        found = self._settings(channel)
        return version_to_write(self._home, None if found is None else found.policy, now_ns)

    def record(self, act: str, facts: dict[str, Any], now_ns: int) -> None:
        """Record an act of a schedule in the audit channel."""
        self.append(
            AUDIT_CHANNEL, audit_envelope(self.key, act, "watch", facts, self.version(AUDIT_CHANNEL, now_ns))
        )
