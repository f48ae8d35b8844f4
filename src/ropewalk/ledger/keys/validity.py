"""The life of one key of a channel: for which blocks its seal counts, which it sealed, since when it is revoked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.envelope.fields import format_timestamp


@dataclass(frozen=True, slots=True)
class KeyValidity:
    """For which blocks a key's seal counts. `named`: the trust file says so, or a rotation of a key it names.

    `ends` are times from which it no longer does, each with the height above which that holds.
    """

    key: PublicKey
    above: int = -1
    since_ns: int = 0
    ends: tuple[tuple[int, int], ...] = ()
    named: bool = True
    successor: PublicKey | None = None

    def is_valid(self, height: int, at_ns: int) -> bool:
        """Whether a block of that height and time may be sealed with it.

        >>> from ropewalk.kernel.keys import SigningKey
        >>> validity = KeyValidity(SigningKey.generate("ed25519", bytes(32)).public, ends=((5, 100),))
        >>> validity.is_valid(5, 200), validity.is_valid(6, 99), validity.is_valid(6, 100)
        (True, True, False)
        """
        if height <= self.above or at_ns < self.since_ns:
            return False
        return not self.ends or all(height <= above or at_ns < until_ns for above, until_ns in self.ends)

    @property
    def until_ns(self) -> int | None:
        """When it ends for blocks to come; None if nothing says so."""
        return min((until for _, until in self.ends), default=None)

    def explain(self) -> str:
        """Since when and until when it counts, for people."""
        words = [f"above block {self.above}"] if self.above >= 0 else []
        words += [f"since {format_timestamp(self.since_ns)}"] if self.since_ns else []
        words += [f"until {format_timestamp(self.until_ns)}"] if self.until_ns is not None else []
        return f"counts {' '.join(words)}" if words else "counts"

    def to_json(self) -> dict[str, Any]:
        """As `ledger key ls` prints it."""
        until = self.until_ns
        return {
            "key": self.key.to_json(),
            "did": self.key.did(),
            "fingerprint": self.key.identity().hex(),
            "above": self.above,
            "since": format_timestamp(self.since_ns) if self.since_ns else None,
            "until": format_timestamp(until) if until is not None else None,
            "successor": self.successor.did() if self.successor is not None else None,
        }


@dataclass(slots=True)
class SigningRun:
    """Blocks one after another that one key sealed."""

    key: PublicKey
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class KeyRevocation:
    """Since when a key is not believed, and above which height that holds."""

    above: int
    since_ns: int
    reason: str
