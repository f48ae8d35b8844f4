"""Batches of git objects kept in columns, so that compiled loops build, name and pack them.

A batch is a sequence of `(id, kind, bytes)`.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple, TypeAlias, overload

from ropewalk.native.library import library

Kind: TypeAlias = Literal["blob", "tree", "commit", "tag"]
GitObject: TypeAlias = tuple[str, Kind, bytes]

KINDS: tuple[Kind, ...] = ("commit", "tree", "blob", "tag")  # packed as 1 to 4
NUMBERS = {kind: number for number, kind in enumerate(KINDS, 1)}
Packed: TypeAlias = tuple[bytearray, "array[int]", "array[int]"]
ALONE_MAX = 256 << 10  # bytes; more are packed by two threads


class Field(NamedTuple):
    """The event's own bytes in a column."""

    at: int


class IdOf(NamedTuple):
    """The id of an earlier object of the same event, as 20 bytes."""

    at: int


class HexOf(NamedTuple):
    """The id of an earlier object of the same event, as 40 digits."""

    at: int


class _Mark(NamedTuple):
    code: bytes


PREVIOUS = _Mark(b"P")  # the last object of the event before, as 40 digits
NUMBER = _Mark(b"N")  # the event's number, decimal
Piece: TypeAlias = bytes | Field | IdOf | HexOf | _Mark
Template: TypeAlias = Sequence[tuple[Kind, Sequence[Piece]]]
"""The objects of one event, and what each is made of."""


class Column(NamedTuple):
    """A column of all events: their bytes one behind the other, and where each event's end."""

    raw: bytes
    ends: array[int]


def column_of_bytes(values: Sequence[bytes]) -> Column:
    """Return a column of values of any length."""
    return Column(b"".join(values), array("Q", accumulate(map(len, values))))


def column_of_texts(values: Sequence[str], width: int) -> Column:
    """Return a column of texts that all have one width."""
    return Column("".join(values).encode("ascii"), array("Q", range(width, width * len(values) + 1, width)))


class CompiledTemplate(NamedTuple):
    """A template as the loops read it, and what one event of it takes helpers its columns."""

    code: bytes
    objects: int
    bytes_fixed: int
    columns_used: tuple[int, ...]


def compile_template(template: Template) -> CompiledTemplate:
    """Write a template down for the loops.

    >>> compile_template([("blob", [Field(0)]), ("tree", [b"40000 a\\x00", IdOf(0)])]).objects
    2
    """
    code, size, used = bytearray(), 0, []
    for kind, pieces in template:
        code += b"O" + bytes([NUMBERS[kind]])
        for piece in pieces:
            match piece:
                case bytes():
                    code += b"L" + struct.pack("=I", len(piece)) + piece
                    size += len(piece)
                case Field(at):
                    code += b"C" + bytes([at])
                    used.append(at)
                case IdOf(at):
                    code += b"I" + bytes([at])
                    size += 20
                case HexOf(at):
                    code += b"H" + bytes([at])
                    size += 40
                case _Mark(mark):
                    code += mark
                    size += 40
    return CompiledTemplate(bytes(code), len(template), size, tuple(used))


class ObjectBatch(Sequence[GitObject]):
    """Objects in columns. Needs the compiled library."""

    def __init__(self, objects: Iterable[GitObject] = ()) -> None:
        loaded = library()
        assert loaded is not None
        self._library = loaded
        self._raw, self._ends = bytearray(), array("Q")
        self._ids, self._kinds = bytearray(), bytearray()
        self.extend(objects)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, at: int) -> GitObject: ...
    @overload
    def __getitem__(self, at: slice) -> list[GitObject]: ...
    def __getitem__(self, at: int | slice) -> GitObject | list[GitObject]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        begin = self._ends[at - 1] if at else 0
        raw = bytes(self._raw[begin : self._ends[at]])
        return self._ids[20 * at : 20 * at + 20].hex(), KINDS[self._kinds[at] - 1], raw

    def __iter__(self) -> Iterator[GitObject]:
        return (self[at] for at in range(len(self)))

    def ids(self) -> list[bytes]:
        """Return the ids of the objects, 20 bytes each."""
        return [bytes(self._ids[at : at + 20]) for at in range(0, len(self._ids), 20)]

    def append(self, one: GitObject) -> None:
        """Add an object whose name is known."""
        oid, kind, raw = one
        self._raw += raw
        self._ends.append(len(self._raw))
        self._ids += bytes.fromhex(oid)
        self._kinds.append(NUMBERS[kind])

    def extend(self, objects: Iterable[GitObject]) -> None:
        """Add objects; the columns of another batch are copied whole."""
        if isinstance(objects, ObjectBatch):
            base = len(self._raw)
            self._raw += objects._raw
            self._ends.extend([base + end for end in objects._ends])
            self._ids += objects._ids
            self._kinds += objects._kinds
            return
        for each in objects:
            self.append(each)

    def weave(
        self, compiled: CompiledTemplate, columns: Sequence[Column], first: int, previous: str
    ) -> tuple[list[str], list[str]]:
        """Build the objects of many events; return the ids of each event's first and last object.

        Events are numbered from `first`; the parent of the first is `previous`.
        """
        events = len(columns[0].ends)
        base, before = len(self._raw), len(self)
        grown = events * compiled.bytes_fixed + sum(len(columns[at].raw) for at in compiled.columns_used)
        made = events * compiled.objects
        if self._raw:
            self._raw += bytes(grown)
        else:  # nearly always, and it saves a copy of megabytes
            self._raw = bytearray(grown)
        self._ends.frombytes(bytes(8 * made))
        self._ids += bytes(20 * made)
        self._kinds += bytes(made)
        end = self._library.ropewalk_weave(
            compiled.code,
            len(compiled.code),
            len(columns),
            (ctypes.c_char_p * len(columns))(*(column.raw for column in columns)),
            (ctypes.c_void_p * len(columns))(*(column.ends.buffer_info()[0] for column in columns)),
            events,
            first,
            bytes.fromhex(previous),
            address(self._raw),
            base,
            base + grown,
            made,
            address(self._ends, 8 * before),
            address(self._ids, 20 * before),
            address(self._kinds, before),
        )
        if end < 0:
            raise ValueError("a template does not fit its events")
        del self._raw[end:]
        digits = self._ids[20 * before :].hex()
        starts = range(0, len(digits), 40 * compiled.objects)
        behind = 40 * (compiled.objects - 1)
        return [digits[at : at + 40] for at in starts], [
            digits[at + behind : at + behind + 40] for at in starts
        ]

    def pack(self, head: bytes) -> Packed | None:
        """Return the pack's bytes after its head, where each object begins, and the checksum of each.

        Return None if there is no memory for it.
        """
        if len(self._raw) <= ALONE_MAX:
            return self._pack(0, len(self), head)
        middle = bisect_left(self._ends, len(self._raw) // 2)
        behind: list[Packed | None] = []

        def pack_rest() -> None:
            # The caller's thread tries again and raises if that fails.
            with contextlib.suppress(MemoryError):
                behind.append(self._pack(middle, len(self), b""))

        helper = threading.Thread(target=pack_rest, daemon=True)
        with contextlib.suppress(RuntimeError):  # no more threads are to be had, or the interpreter is ending
            helper.start()
        before = self._pack(0, middle, head)
        if helper.ident is not None:
            helper.join()
        rest = behind[0] if behind else self._pack(middle, len(self), b"")
        if before is None or rest is None:
            return None
        (whole, begins, crcs), (entries, more_begins, more_crcs) = before, rest
        self._library.ropewalk_shift(address(more_begins), len(more_begins), len(whole))
        whole += entries
        return whole, begins + more_begins, crcs + more_crcs

    def _pack(self, first: int, last: int, head: bytes) -> Packed | None:
        begins, crcs = array("Q", bytes(8 * (last - first))), array("I", bytes(4 * (last - first)))
        size = (self._ends[last - 1] if last else 0) - (self._ends[first - 1] if first else 0)
        room = self._library.ropewalk_pack_bound(last - first, size)
        out = bytearray(len(head) + room)
        out[: len(head)] = head
        written = self._library.ropewalk_pack(
            address(self._raw),
            address(self._ends),
            address(self._kinds),
            first,
            last,
            address(out, len(head)),
            room,
            len(head),
            address(begins),
            address(crcs),
        )
        if written < 0:
            return None
        del out[len(head) + written :]
        return out, begins, crcs

    def columns(self, begins: array[int], crcs: array[int]) -> bytes | None:
        """Return fanout, ids, checksums and offsets of the index; None for doubled ids or offsets beyond 31 bits."""
        out = bytearray(1024 + 28 * len(self))
        verdict = self._library.ropewalk_index(
            len(self), address(self._ids), address(crcs), address(begins), address(out)
        )
        return None if verdict else bytes(out)


def address(buffer: bytearray | array[int], offset: int = 0) -> int | None:
    """Return the address of a buffer; it must not be resized while the address is used."""
    if not len(buffer):
        return None
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer, 0)) + offset
