"""Messages between the two sides of a remote channel.

A message is a list of parts. The first is an object, `{"op", "number", …}`; the others are envelopes, lines of blocks,
receipts or problems, as bytes. Requests are numbered from 1 and answered in order; an answer carries the number of its
request, 0 concerns the whole session.

    →                                   ←
    open      channel, advertisement    opened     its advertisement, the agreement
    append    envelopes                 outcomes   receipts and problems, one for each envelope, from `first` on
    head                                head       the end of the channel
    settings                            settings   signer and policy of the channel
    blocks    from a height             block      lines of one block, from `first` on, of `lines`
                                        blocks     no more for now; continue at `height`
    prove     an envelope's id          prove      the proof that it lies in a block
                                        problem    the error
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal, cast, get_args

import orjson
import zstandard

from ropewalk.errors import DigestMismatch, Invalid, InvalidJson, RopewalkError, TooLarge
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.ledger.envelope.envelope import parse_wire
from ropewalk.ledger.ingest.ticket import LedgerReceipt

Op = Literal[
    "open", "opened", "append", "outcomes", "head", "settings", "blocks", "block", "prove", "problem"
]
PROTOCOL: Final = "ea-ledger/1"  # S4 §5, the name in TLS
PARTS_MAX: Final = 8_192 + 2  # a block's envelopes, its record, and what is said about them
ROOM: Final = 512  # maximum bytes of a message in addition to its parts
PROBLEM_CHARS_MAX: Final = 2_000
_OPS: Final = frozenset(get_args(Op))


@dataclass(frozen=True, slots=True)
class RemoteMessage:
    """One message: what is wanted or answered, the number of the request, facts, and parts.

    >>> parse_message(RemoteMessage("head", 7).parts_out()).number
    7
    """

    op: Op
    number: int
    facts: dict[str, Any] = field(default_factory=dict)
    parts: tuple[bytes, ...] = ()

    def parts_out(self) -> list[bytes]:
        """Return the parts as they travel."""
        head: dict[str, Any] = {**self.facts, "op": self.op, "number": self.number}
        return [jcs.encode(head), *self.parts]

    def natural(self, name: str) -> int:
        """Return a member that is a natural number."""
        found = self.facts.get(name)
        if type(found) is not int or found < 0:
            raise _wrong(f"{self.op}: {name} must be a natural number")
        return found

    def text(self, name: str) -> str:
        """Return a member that is a string."""
        found = self.facts.get(name)
        if not isinstance(found, str):
            raise _wrong(f"{self.op}: {name} must be a string")
        return found


def parse_message(parts: Sequence[bytes]) -> RemoteMessage:
    """Return a message from its parts.

    >>> parse_message([b'{"op":"dance","number":1}'])
    Traceback (most recent call last):
    ropewalk.errors.Invalid: message: "dance" is none we know
    """
    if not parts:
        raise _wrong("a frame without parts")
    try:
        head = jcs.parse(parts[0])
    except InvalidJson as error:
        raise _wrong(f"its first part is not JSON: {error.detail}") from error
    if not isinstance(head, dict):
        raise _wrong("its first part must be an object")
    op, number = head.pop("op", None), head.pop("number", None)
    if not isinstance(op, str) or op not in _OPS:
        raise _wrong(f'"{str(op)[:40]}" is none we know')
    if type(number) is not int or number < 0:
        raise _wrong("number must be a natural number")
    return RemoteMessage(cast(Op, op), number, cast("dict[str, Any]", head), tuple(parts[1:]))


def split_parts(parts: Sequence[bytes], limit: int) -> Iterator[tuple[int, tuple[bytes, ...]]]:
    """Yield the parts in runs that fit a message of at most `limit` bytes each, with the number of the first of each.

    >>> [(first, len(run)) for first, run in split_parts([bytes(400), bytes(400), b"z"], 1200)]
    [(0, 1), (1, 2)]
    """
    run: list[bytes] = []
    first, size = 0, ROOM
    for number, part in enumerate(parts):
        more = len(part) + 4
        if more + ROOM > limit:
            raise TooLarge(
                f"{len(part)} bytes in one piece; this session takes messages of at most {limit}",
                size=len(part),
                limit=limit,
            )
        if run and (size + more > limit or len(run) >= PARTS_MAX - 1):
            yield first, tuple(run)
            run, first, size = [], number, ROOM
        run.append(part)
        size += more
    if run:
        yield first, tuple(run)


def problem_message(error: RopewalkError, number: int = 0) -> RemoteMessage:
    """Return an error as the answer to a request, or with 0 as the end of a session."""
    return RemoteMessage("problem", number, {}, (outcome_part(error),))


def outcome_part(outcome: LedgerReceipt | RopewalkError) -> bytes:
    """Return what became of one envelope, as a part: the receipt or the problem, as `ledger append` prints them."""
    if isinstance(outcome, LedgerReceipt):
        return jcs.encode(outcome.to_json())
    try:
        raw = jcs.encode(outcome.to_problem())
        if len(raw) <= PROBLEM_CHARS_MAX * 8:
            return raw
    except RopewalkError:  # facts that no JSON can say
        pass
    short = type(outcome)(outcome.detail[:PROBLEM_CHARS_MAX], advice=outcome.advice_now[:PROBLEM_CHARS_MAX])
    return jcs.encode(short.to_problem())


def outcome_of(raw: bytes) -> LedgerReceipt | RopewalkError:
    """Return a receipt or an error from its part.

    >>> outcome_of(outcome_part(LedgerReceipt(bytes(32), 1, 2, bytes(32)))).height
    1
    """
    value = jcs.parse(raw)
    if not isinstance(value, dict):
        raise _wrong("an outcome must be an object")
    if "code" in value:
        return error_of(cast("dict[str, Any]", value))
    name, block = hash_from_hex(value.get("envelope_id")), hash_from_hex(value.get("block_hash"))
    height, index, replayed = value.get("height"), value.get("index"), value.get("replayed")
    if name is None or block is None or type(height) is not int or type(index) is not int:
        raise _wrong("a receipt has envelope_id, height, index and block_hash")
    audit = value.get("audit", [])
    if not isinstance(audit, list) or not all(isinstance(text, str) for text in audit):
        raise _wrong("the audit of a receipt must be a list of strings")
    return LedgerReceipt(name, height, index, block, replayed is True, tuple(map(str, audit)))


def error_of(problem: dict[str, Any]) -> RopewalkError:
    """Return the error of a problem, as if it had been raised here.

    >>> error_of(DigestMismatch("no", where="x").to_problem())
    DigestMismatch('no')
    """
    kind = _kinds().get(str(problem.get("code")), RopewalkError)
    advice, instance = problem.get("advice"), problem.get("instance")
    told = ("type", "title", "status", "code", "detail", "instance", "advice", "aliases", "self")
    return kind(
        str(problem.get("detail", "refused without a reason"))[: PROBLEM_CHARS_MAX * 4],
        advice=advice if isinstance(advice, str) else "",
        instance=instance if isinstance(instance, str) else None,
        **{name: value for name, value in problem.items() if name not in told and name.isidentifier()},
    )


@cache
def _kinds() -> dict[str, type[RopewalkError]]:
    """Return every code with its class; where two share one, the ledger means a digest that differs."""
    kinds: dict[str, type[RopewalkError]] = {}
    left: list[type[RopewalkError]] = [RopewalkError]
    while left:
        kind = left.pop()
        kinds.setdefault(kind.code, kind)
        left += kind.__subclasses__()
    return {**kinds, DigestMismatch.code: DigestMismatch}


def correlation_of(raw: bytes) -> str | None:
    """Return the correlation id of an envelope; None without one, and for bytes that are no envelope.

    >>> correlation_of(b'{"correlation_id":"c"}'), correlation_of(b"{"), correlation_of(b"[]")
    ('c', None, None)
    >>> correlation_of(rb'{"correlation\\u005fid":"c"}')
    'c'
    """
    if raw[:1] == b"{" and b"correlation_id" not in raw and b"\\" not in raw:
        return None  # no member has the name, which only an escape could spell otherwise
    try:
        value = orjson.loads(raw) if raw[:1] == b"{" else parse_wire(raw).value
    except (orjson.JSONDecodeError, RopewalkError):
        return None
    found = value.get("correlation_id") if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def compress(raw: bytes) -> bytes:
    """Return a frame's bytes, packed.

    >>> decompress(compress(b"x" * 1000), 1000) == b"x" * 1000
    True
    """
    return zstandard.ZstdCompressor(level=1).compress(raw)


def decompress(raw: bytes, limit: int) -> bytes:
    """Decompress; the declared size must be right and at most `limit`.

    >>> decompress(compress(b"x" * 1000), 999)
    Traceback (most recent call last):
    ropewalk.errors.TooLarge: a message of 1000 bytes; at most 999
    """
    try:
        size = zstandard.frame_content_size(raw)
        if size < 0:
            raise _wrong("packed, and does not say how large it is")
        if size > limit:
            raise TooLarge(f"a message of {size} bytes; at most {limit}", size=size, limit=limit)
        return zstandard.ZstdDecompressor().decompress(raw, max_output_size=limit)
    except zstandard.ZstdError as error:
        raise _wrong("not packed with zstd") from error


def _wrong(what: str) -> Invalid:
    return Invalid(f"message: {what}")
