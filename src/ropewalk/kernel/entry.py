"""The one idea: canonical bytes → content id → an entry that names its parents → heads.

A log is a set of entries closed under *parents*. An entry's id covers its parents' ids, so a head vouches for
everything below it. How heads move is for the engines: a line by compare-and-swap, a graph by union.

Checking a line is associative. A checked run of entries is a span: what it needs below, what it offers above. Spans
join where one offers what the next needs. So a line may be cut anywhere, its parts checked anywhere, in any grouping,
and the joined result is the same as if one reader had walked it from end to end. Git logs join `Span`, which raises at
a broken link; channels join `BlockSpan`, which also counts envelopes and keeps its first fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import NewType, Protocol, Self, TypeAlias, TypeVar

from ropewalk.errors import BrokenLink, DigestMismatch

EntryId = NewType("EntryId", bytes)
"""The name of an entry in its engine: a commit id, a message id, a block hash."""

DeriveId: TypeAlias = Callable[[tuple[EntryId, ...], bytes], EntryId]
"""How an engine names an entry from its parents and its body. It must cover both, or a head vouches for nothing."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a log: its id, its parents and its body."""

    id: EntryId
    parents: tuple[EntryId, ...]
    body: bytes


class Joinable(Protocol):
    """A span of any engine; it is false if it holds no entries."""

    def __bool__(self) -> bool: ...

    def joined(self, upper: Self) -> Self:
        """Return the run of this span and the one above it; neither is empty."""


S = TypeVar("S", bound=Joinable)


@dataclass(frozen=True, slots=True)
class Span:
    """A checked run of a line: what it needs below, what it offers above, and how many entries lie between."""

    below: tuple[EntryId, ...] = ()
    above: tuple[EntryId, ...] = ()
    count: int = 0
    first: EntryId | None = None  # so that a broken link can name the entry that hangs loose

    def __bool__(self) -> bool:
        return self.count > 0

    def joined(self, upper: Span) -> Span:
        """Return two spans as one, if the parent of the upper is the head of the lower."""
        if self.above != upper.below:
            assert upper.first is not None
            raise BrokenLink(
                f"the parent of entry {upper.first.hex()} is {_names(upper.below)}, "
                f"but {_names(self.above)} comes before it",
                entry=upper.first.hex(),
                expected=[parent.hex() for parent in upper.below],
                got=[head.hex() for head in self.above],
            )
        return Span(self.below, upper.above, self.count + upper.count, self.first)


EMPTY = Span()
"""The span of no entries: joining it changes nothing."""


def join(lower: S, upper: S) -> S:
    """Return two spans of one engine as one. Joining is associative, and an empty span changes nothing.

    >>> a, b = Span((), (EntryId(b"a"),), 1, EntryId(b"a")), Span((EntryId(b"a"),), (EntryId(b"b"),), 1, EntryId(b"b"))
    >>> join(a, b).count, join(EMPTY, b) == b
    (2, True)
    >>> join(b, a)
    Traceback (most recent call last):
    ropewalk.errors.BrokenLink: the parent of entry 61 is none, but 62 comes before it
    """
    if not lower:
        return upper
    return lower.joined(upper) if upper else lower


def check_entry(entry: Entry, derive_id: DeriveId) -> Span:
    """Return the span of one entry: its id is the one its parents and body give, and it fits in a line.

    >>> from ropewalk.kernel.digest import sha256
    >>> def derive(parents, body):
    ...     return EntryId(sha256(b"".join(parents) + body)[:4])
    >>> check_entry(Entry(derive((), b"hello"), (), b"hello"), derive).count
    1
    >>> check_entry(Entry(EntryId(b"a"), (), b"hello"), derive)
    Traceback (most recent call last):
    ropewalk.errors.DigestMismatch: entry 61 has the parents and body of 2cf24dba
    """
    derived = derive_id(entry.parents, entry.body)
    if derived != entry.id:
        raise DigestMismatch(
            f"entry {entry.id.hex()} has the parents and body of {derived.hex()}",
            entry=entry.id.hex(),
            expected=entry.id.hex(),
            got=derived.hex(),
            where="entry",
        )
    if len(entry.parents) > 1:
        raise BrokenLink(
            f"entry {entry.id.hex()} has {len(entry.parents)} parents; a line has one way down",
            entry=entry.id.hex(),
            got=[parent.hex() for parent in entry.parents],
        )
    return Span(entry.parents, (entry.id,), 1, entry.id)


def check_span(entries: Iterable[Entry], derive_id: DeriveId) -> Span:
    """Return a run of entries, oldest first, checked one by one and joined; holds one entry at a time.

    The result proves the run hangs together. That it is the *right* run is for the caller to see: compare `above`
    with a head you trust, and `below` with `()` if it should reach the beginning.

    >>> from ropewalk.kernel.digest import sha256
    >>> def derive(parents, body):
    ...     return EntryId(sha256(b"".join(parents) + body))
    >>> a = Entry(derive((), b"1"), (), b"1")
    >>> b = Entry(derive((a.id,), b"2"), (a.id,), b"2")
    >>> check_span([a, b], derive) == join(check_span([a], derive), check_span([b], derive))
    True
    """
    return reduce(join, (check_entry(entry, derive_id) for entry in entries), EMPTY)


def _names(ids: Iterable[EntryId]) -> str:
    return ", ".join(name.hex() for name in ids) or "none"
