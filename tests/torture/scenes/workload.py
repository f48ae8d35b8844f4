"""What is sent, made from a seed: the same number gives the same envelopes, byte for byte, on every machine."""

from __future__ import annotations

import random
from typing import Any

from blake3 import blake3

from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.envelope.model import Envelope

__all__ = ["Workload"]

NOON = "2024-11-01T12:00:00Z"
ROOM = 720  # what an envelope takes beside its text, so that 1024 asks for about one kibibyte


class Workload:
    """The envelopes of one scene. `digest` names all that were made, in order."""

    def __init__(self, seed: int, scene: str) -> None:
        self.chance = random.Random(f"{seed}/{scene}")
        self.key = SigningKey.generate("ed25519", self.chance.randbytes(32))
        self._made = blake3()
        self._count = 0

    @property
    def digest(self) -> str:
        """BLAKE3 over everything that was made so far."""
        return self._made.hexdigest()

    def envelopes(self, count: int, size: int = 1024, **members: Any) -> list[Envelope]:
        """So many Observations of about so many bytes, each another."""
        return [self._envelope(size, members) for _ in range(count)]

    def raws(self, count: int, size: int = 1024, **members: Any) -> list[bytes]:
        """The same, as they are sent."""
        return [each.raw for each in self.envelopes(count, size, **members)]

    def told(self, **members: Any) -> Envelope:
        """One envelope with members of its own, which need not be the same every time: `drawn` says what is."""
        return build(self.key, domain="ea.core", timestamp=NOON, **members)

    def drawn(self, value: object) -> None:
        """Something else was drawn that decides what happens: the digest covers it too."""
        self._made.update(repr(value).encode())

    def _envelope(self, size: int, members: dict[str, Any]) -> Envelope:
        self._count += 1
        text = self.chance.randbytes(max(8, size - ROOM) // 2).hex()
        options: dict[str, Any] = {
            "domain": "ea.core",
            "event_class": "Observation",
            "event_type": "scene.seen",
            "payload": {"n": self._count, "text": text},
            "timestamp": NOON,
            **members,
        }
        made = build(self.key, **options)
        self._made.update(made.id)
        return made
