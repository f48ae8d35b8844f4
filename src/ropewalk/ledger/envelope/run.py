"""A run of envelopes whose templates are all known, checked by one compiled loop; each is made only when it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from ropewalk import native
from ropewalk.kernel.signatures import ED25519_REFUSED, sodium_open
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.envelope.template_cache import CastLines, Mould


class EnvelopeRun(Sequence[Envelope]):
    """Envelopes that differ from a template only in payload, hash, signature and time; their form and hashes hold.

    None has evidence, a correlation id, a causality chain or a proof. `only` is the part of the lines that it covers.
    """

    def __init__(
        self, lines: CastLines, moulds: Sequence[Mould], ids: Sequence[bytes], only: range | None = None
    ) -> None:
        self._lines, self._moulds, self._ids = lines, moulds, ids
        self._only = range(len(ids)) if only is None else only

    def __len__(self) -> int:
        return len(self._only)

    @overload
    def __getitem__(self, at: int) -> Envelope: ...
    @overload
    def __getitem__(self, at: slice) -> EnvelopeRun: ...
    def __getitem__(self, at: int | slice) -> Envelope | EnvelopeRun:
        if isinstance(at, slice):
            return EnvelopeRun(self._lines, self._moulds, self._ids, self._only[at])
        return self._make(self._only[at])

    def __iter__(self) -> Iterator[Envelope]:
        return map(self._make, self._only)

    def _make(self, at: int) -> Envelope:
        return make_known(self._lines.facts(at, self._moulds[at]), self._ids[at])

    def ids(self) -> list[bytes]:
        """Return the id of each envelope."""
        return [self._ids[at] for at in self._only]

    def intents(self) -> bytes:
        """Return the digests of what the authors signed, end to end."""
        return self._lines.intents(self._only)

    def fields(self) -> list[dict[str, Any]]:
        """Return the fields that each envelope shares with all of its template."""
        return [self._moulds[at].fields for at in self._only]

    def timestamps(self) -> list[str]:
        """Return the time stamp of each envelope."""
        return [self._lines.timestamp(at) for at in self._only]

    def payloads(self) -> list[bytes]:
        """Return the canonical bytes of each payload."""
        return [self._lines.payload(at) for at in self._only]

    def one_of_each(self) -> list[Envelope]:
        """Return one envelope of each template."""
        return [self._make(at) for at in {self._moulds[at]: at for at in self._only}.values()]

    def surely_signed(self) -> bytes:
        """Return for each envelope 1 if a compiled loop found its Ed25519 signature to hold; 0 leaves it to its key."""
        sign_open = sodium_open() if native.is_here() else None
        if sign_open is None or not self._only:
            return bytes(len(self))
        from ropewalk.native.canonical import surely_signed

        signed, ends = self._lines.signed(self._only)
        key_of = [self._lines.key_of(at) for at in self._only]
        found = surely_signed(sign_open, signed, ends, self._lines.packed.keys, key_of, ED25519_REFUSED)
        return bytes(len(self)) if found is None else found


def make_known(facts: dict[str, Any], known_id: bytes) -> Envelope:
    """Return the envelope with these facts, of which the template cache checked each."""
    facts["id"] = known_id
    made = object.__new__(Envelope)
    # The generated `__init__` of a frozen class would cost as much as the rest of this function.
    object.__setattr__(made, "__dict__", facts)
    return made
