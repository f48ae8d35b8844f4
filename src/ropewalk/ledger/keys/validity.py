"""Validity of one key of a channel, the blocks it signed, and its revocation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.envelope.fields import format_timestamp


@dataclass(frozen=True, slots=True)
class KeyValidity:
    """For which blocks a key's signature is valid. `named`: by the trust file, or by a rotation of a key it names.

    `ends` are times from which it is not, each with the height above which that applies.
    """

    key: PublicKey
    above: int = -1
    since_ns: int = 0
    ends: tuple[tuple[int, int], ...] = ()
    named: bool = True
    successor: PublicKey | None = None

    def is_valid(self, height: int, at_ns: int) -> bool:
        """Return whether the key may sign a block of that height and time.

        >>> from ropewalk.kernel.keys import SigningKey
        >>> validity = KeyValidity(SigningKey.generate("ed25519", bytes(32)).public, ends=((5, 100),))
        >>> validity.is_valid(5, 200), validity.is_valid(6, 99), validity.is_valid(6, 100)
        (True, True, False)
        """
        return height > self.above and at_ns >= self.since_ns and not self.has_ended(height, at_ns)

    def has_ended(self, height: int, at_ns: int) -> bool:
        """Return whether the key has ended for a block of that height and time, wherever it began."""
        return any(height > above and at_ns >= until_ns for above, until_ns in self.ends)

    @property
    def until_ns(self) -> int | None:
        """When it ends for future blocks; None if it does not end."""
        return min((until for _, until in self.ends), default=None)

    def explain(self) -> str:
        """Return a readable description of the validity."""
        words = [f"above block {self.above}"] if self.above >= 0 else []
        words += [f"since {format_timestamp(self.since_ns)}"] if self.since_ns else []
        words += [f"until {format_timestamp(self.until_ns)}"] if self.until_ns is not None else []
        return f"is valid {' '.join(words)}" if words else "is valid"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `ledger key ls` prints."""
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
    """Consecutive blocks signed by one key."""

    key: PublicKey
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class KeyRevocation:
    """Since when a key is not trusted, and above which height that applies."""

    above: int
    since_ns: int
    reason: str


def reason_text(revoked: KeyRevocation) -> str:
    """Return the reason of a revocation in brackets; empty without one."""
    return f" ({revoked.reason[:80]})" if revoked.reason else ""
