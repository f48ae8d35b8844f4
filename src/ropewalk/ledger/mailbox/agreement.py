"""Mailboxes (S4 §5): limits agreed before envelopes go through shared memory, and the root signed by the host.

The host agent, which has the channel, signs a root over every run of slots it has answered: it took these envelopes,
in this order, from this mailbox. The sender compares it with the digests of what it put in.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ropewalk.errors import Invalid, Unverified
from ropewalk.kernel import merkle
from ropewalk.kernel.digest import Tag, hash_from_hex, tagged
from ropewalk.kernel.keys import PublicKey, SigningKey
from ropewalk.ledger.json_form import members_of

TRANSPORT: Final = "vm_mailbox"  # its name in advertisements, S4 §5
DAMAGED: Final = bytes(32)  # digest of a slot whose content was changed
_RUN: Final = struct.Struct("<QQ")
_SIGNATURE: Final = re.compile("[0-9a-f]{128}")
_SEAL: Final = struct.Struct("<QQ32s64s16x")


@dataclass(frozen=True, slots=True)
class MailboxLimits:
    """How many slots a mailbox has, how many bytes fit into one, and how many envelopes a second are taken out.

    >>> MailboxLimits(8, 1000, 50).within(MailboxLimits(16, 500))
    MailboxLimits(slots=8, slot_bytes=500, burst_per_s=50)
    """

    slots: int = 512
    slot_bytes: int = 32 << 10
    burst_per_s: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form in an advertisement and in the transcript."""
        said = {"slots": self.slots, "slot_bytes": self.slot_bytes}
        return said if self.burst_per_s is None else {**said, "burst_per_s": self.burst_per_s}

    @classmethod
    def from_json(cls, said: object) -> MailboxLimits:
        """Parse the limits of an advertisement; raise Invalid if they are inconsistent.

        >>> MailboxLimits.from_json({"slots": 8, "slot_bytes": 0})
        Traceback (most recent call last):
        ropewalk.errors.Invalid: capability advertisement: slot_bytes of vm_mailbox must be a number above 0
        """
        if not isinstance(said, dict):
            raise Invalid("capability advertisement: vm_mailbox must be an object")
        for name in ("slots", "slot_bytes", "burst_per_s"):
            found = said.get(name, 1 if name == "burst_per_s" else None)
            if type(found) is not int or found < 1:
                raise Invalid(f"capability advertisement: {name} of vm_mailbox must be a number above 0")
        return cls(said["slots"], said["slot_bytes"], said.get("burst_per_s"))

    def within(self, other: MailboxLimits) -> MailboxLimits:
        """Return the smaller of each limit; a side without a rate accepts the other's."""
        rates = [each.burst_per_s for each in (self, other) if each.burst_per_s is not None]
        return MailboxLimits(
            min(self.slots, other.slots),
            min(self.slot_bytes, other.slot_bytes),
            min(rates) if rates else None,
        )


class BurstLimiter:
    """A rate that is kept: what comes faster waits, and nothing is refused.

    >>> pace = BurstLimiter(10)
    >>> pace.wait_s(5, now_s=0.0), pace.wait_s(1, now_s=0.0), pace.wait_s(1, now_s=2.0)
    (0.0, 0.5, 0.0)
    """

    def __init__(self, per_s: int | None) -> None:
        self._per_s = per_s
        self._free_s = 0.0  # when those let through so far are paid for

    def wait_s(self, count: int, now_s: float) -> float:
        """Return how long to wait before this many more go through."""
        if self._per_s is None:
            return 0.0
        wait_s = max(0.0, self._free_s - now_s)
        self._free_s = now_s + wait_s + count / self._per_s
        return wait_s


@dataclass(frozen=True, slots=True)
class SignedRoot:
    """The host agent's statement about a run of slots: first place, count, root, and signature.

    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> signed = sign_root(key, b"i" * 16, 7, [bytes(32)])
    >>> SignedRoot.from_bytes(signed.to_bytes()) == SignedRoot.from_json(signed.to_json()) == signed
    True
    >>> signed.check(key.public, b"i" * 16, 7, [bytes(32)])
    """

    first: int
    count: int
    root: bytes
    signature: bytes

    def to_bytes(self) -> bytes:
        """Return the bytes stored in the mailbox."""
        return _SEAL.pack(self.first, self.count, self.root, self.signature)

    @classmethod
    def from_bytes(cls, raw: bytes) -> SignedRoot | None:
        """Parse the bytes stored in the mailbox; None before anything was taken."""
        return cls(*_SEAL.unpack(raw)) if any(raw) else None

    def to_json(self) -> dict[str, Any]:
        """Return the form that travels with receipts."""
        return members_of(self, first="from")

    @classmethod
    def from_json(cls, said: object) -> SignedRoot:
        """Read the form that travels with receipts."""
        found = said if isinstance(said, dict) else {}
        first, count, root = found.get("from"), found.get("count"), hash_from_hex(found.get("root"))
        signature = found.get("signature")
        if (
            not (type(first) is int and 0 <= first < 2**64 and type(count) is int and 0 <= count < 2**64)
            or root is None
            or not (isinstance(signature, str) and _SIGNATURE.fullmatch(signature))
        ):
            raise Invalid("message: a mailbox's root has from, count, root and signature")
        return cls(first, count, root, bytes.fromhex(signature))

    def check(self, signer: PublicKey, mailbox: bytes, first: int, digests: Sequence[bytes]) -> None:
        """Raise Unverified unless the signer states that exactly these slots were taken."""
        root = mailbox_root(mailbox, first, digests)
        if (self.first, self.count, self.root) != (first, len(digests), root):
            raise Unverified(
                f"mailbox: from place {first} on, other slots were taken than were put in",
                advice="Another process writes into the mailbox.",
            )
        signer.verify(root, self.signature)


def mailbox_root(mailbox: bytes, first: int, digests: Sequence[bytes]) -> bytes:
    """Return the root over a run of slots: which mailbox, from which place on, how many, and their tree.

    >>> mailbox_root(bytes(16), 0, []) == tagged(Tag.MAILBOX, bytes(32), merkle.root([]))
    True
    """
    return tagged(Tag.MAILBOX, mailbox, _RUN.pack(first, len(digests)), merkle.root(digests))


def sign_root(key: SigningKey, mailbox: bytes, first: int, digests: Sequence[bytes]) -> SignedRoot:
    """Sign a root over a run of slots that the host has taken."""
    root = mailbox_root(mailbox, first, digests)
    return SignedRoot(first, len(digests), root, key.sign(root))
