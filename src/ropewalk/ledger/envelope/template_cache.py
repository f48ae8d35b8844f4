"""Cache of envelope templates: the bytes around a payload, checked once.

Plain envelopes of one author and type differ only in payload, payload_hash, sig and timestamp. All other bytes were
checked with the first envelope (strict JSON, schema, key); this module checks only the four parts that differ. An
envelope that matches no template exactly, or fails a check here, is parsed in full by the caller, which reports the
error. So the cache saves work and never rejects an envelope.

Why the parts can be checked separately: canonical members are sorted, so the bytes are `head payload
,"payload_hash":"hash" middle sig tail timestamp "}`. With head, middle and tail known byte for byte, a canonical value
between them makes canonical bytes, and the schema has no rule that spans two members.
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from blake3 import blake3

from ropewalk import native
from ropewalk.errors import RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SIGNATURE_BYTES, PublicKey
from ropewalk.kernel.merkle import HASH_BYTES
from ropewalk.ledger.envelope.fields import parse_timestamp

if TYPE_CHECKING:
    from ropewalk.native.canonical import Cast, Templates

_FIRST: Final = b'{"domain":"'  # evidence, chains, tags and correlation ids would come before it
_PAYLOAD: Final = b',"payload":'
_HASH: Final = b',"payload_hash":"'
_SIG: Final = b'"sig":"'
_STAMP: Final = b'"timestamp":"'
_HASH_TEXT: Final = 64
_SIG_TEXT: Final = 88
_PAYLOAD_HASHED: Final = 1  # what the loop says of a line
_STATEMENT_HASHED: Final = 2
_ALL_HASHED: Final = 3

# Members with a different value in every envelope would make a template that is never used again.
_MEMBERS: Final = frozenset(
    (
        "domain",
        "event_class",
        "event_type",
        "origin_identity",
        "payload",
        "payload_hash",
        "policy_tag",
        "protocol_version",
        "signature",
        "timestamp",
    )
)
_MOULDS_MAX: Final = 1024  # authors times event types; more only cost time
_MOULD_BYTES_MAX: Final = 4096
_PACKED_MAX: Final = 64  # templates that the loop tries
_FEW: Final = 8  # below this, the loop costs more than it saves
_BRACKETS_MAX: Final = jcs.DEPTH_MAX - 1  # the envelope is the outermost object


class _Cut(NamedTuple):
    """Where the four variable parts begin and end."""

    mould: tuple[bytes, bytes, bytes]
    payload: bytes
    hash: bytes
    sig: bytes
    stamp: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Mould:
    """Facts shared by all envelopes with these bytes around their payload; the preimage is split at hash and time."""

    fields: dict[str, Any]
    public_key: PublicKey
    preimage: tuple[bytes, bytes, bytes]
    hash_first: bool


_moulds: dict[tuple[bytes, bytes, bytes], Mould] = {}
_packed: _Packed | None = None


def recast(raw: bytes) -> dict[str, Any] | None:
    """Return the facts of an envelope that matches a cached template; None if there is none."""
    cut = _cut(raw)
    mould = _moulds.get(cut.mould) if cut is not None else None
    if cut is None or mould is None:
        return None
    payload = cut.payload
    if blake3(payload).hexdigest().encode() != cut.hash or payload == b"null":
        return None
    if payload.count(b"{") + payload.count(b"[") > _BRACKETS_MAX:
        return None
    try:
        jcs.parse_canonical(payload)
        signature = a2b_base64(cut.sig)
        parse_timestamp(cut.stamp.decode())
    except (RopewalkError, Base64Error, UnicodeDecodeError):
        return None
    if len(signature) != SIGNATURE_BYTES or b2a_base64(signature, newline=False) != cut.sig:
        return None
    before, between, after = mould.preimage
    first, second = (cut.hash, cut.stamp) if mould.hash_first else (cut.stamp, cut.hash)
    return {
        "raw": raw,
        "fields": mould.fields,
        "public_key": mould.public_key,
        "signature_bytes": signature,
        "timestamp": cut.stamp.decode(),
        "preimage": b"".join((before, first, between, second, after)),
        "hash_holds": True,
    }


@dataclass(frozen=True, slots=True)
class _Packed:
    """The newest templates, as the loop takes them, and the keys of their authors; -1 for one that is not Ed25519."""

    count: int  # of all templates when these were packed
    heads: list[int]
    moulds: list[Mould]
    templates: Templates
    keys: bytes
    key_of: list[int]


@dataclass(frozen=True, slots=True)
class CastLines:
    """Lines as one compiled loop found them: which template each fits, its signature, and what it signs."""

    raws: Sequence[bytes]
    packed: _Packed
    found: Cast

    def mould(self, at: int) -> Mould | None:
        """Return the template that a line fits, with its payload's hash; None if that is not sure."""
        number, end = self.found.templates[at], self.found.stops[at]
        if number < 0:
            return None
        if not self.found.hashed[at] & _PAYLOAD_HASHED:
            digest = end + len(_HASH)
            hashed = blake3(self.payload(at)).hexdigest().encode()
            if hashed != self.raws[at][digest : digest + _HASH_TEXT]:
                return None
        return self.packed.moulds[number]

    def moulds(self) -> list[Mould] | None:
        """Return the templates of all lines; None if one fits none."""
        if min(self.found.templates) < 0:
            return None
        if min(self.found.hashed) == _ALL_HASHED:
            return [self.packed.moulds[number] for number in self.found.templates]
        moulds = [self.mould(at) for at in range(len(self.raws))]
        return None if None in moulds else cast(list[Mould], moulds)

    def facts(self, at: int, mould: Mould) -> dict[str, Any]:
        """Return the facts of a line that fits a template."""
        raw, only = self.raws[at], range(at, at + 1)
        signed, _ = self.signed(only)
        return {
            "raw": raw,
            "fields": mould.fields,
            "public_key": mould.public_key,
            "signature_bytes": signed[:SIGNATURE_BYTES],
            "timestamp": self.timestamp(at),
            "preimage": signed[SIGNATURE_BYTES:],
            "hash_holds": True,
            "_intent": self.intents(only),
        }

    def timestamp(self, at: int) -> str:
        """Return the time stamp of a line that fits a template: its last member."""
        raw = self.raws[at]
        return raw[raw.rindex(b'"', 0, -2) + 1 : -2].decode()

    def payload(self, at: int) -> bytes:
        """Return the canonical payload of a line that fits a template."""
        return self.raws[at][self.packed.heads[self.found.templates[at]] : self.found.stops[at]]

    def signed(self, lines: range) -> tuple[bytes, Sequence[int]]:
        """Return the signatures of some lines, each with what it signs behind it, and where each of these ends."""
        ends = self.found.ends
        if len(lines) == len(ends):
            return self.found.signed, ends
        begin = ends[lines.start - 1] if lines.start else 0
        return self.found.signed[begin : ends[lines.stop - 1]], [ends[at] - begin for at in lines]

    def intents(self, lines: range) -> bytes:
        """Return the digests of what was signed in some lines, end to end."""
        if all(self.found.hashed[at] & _STATEMENT_HASHED for at in lines):
            return self.found.intents[HASH_BYTES * lines.start : HASH_BYTES * lines.stop]
        signed = (self.signed(range(at, at + 1))[0] for at in lines)
        return b"".join(blake3(each[SIGNATURE_BYTES:]).digest() for each in signed)

    def key_of(self, at: int) -> int:
        """Return which of the packed keys signed a line, -1 if it is not Ed25519."""
        return self.packed.key_of[self.found.templates[at]]


def cast_lines(raws: Sequence[bytes]) -> CastLines | None:
    """Return what one compiled loop finds of lines; None without it, or without templates."""
    if len(raws) < _FEW or not _moulds or not native.is_here():
        return None
    packed = _pack()
    found = packed.templates.cast(raws)
    return None if found is None else CastLines(raws, packed, found)


def _pack() -> _Packed:
    """Return the newest templates, packed again when there are more."""
    global _packed
    if _packed is None or _packed.count != len(_moulds):
        from ropewalk.native.canonical import Templates

        newest = list(_moulds.items())[-_PACKED_MAX:]
        parts, moulds = [each for each, _ in newest], [mould for _, mould in newest]
        templates = Templates(
            parts, [mould.preimage for mould in moulds], [mould.hash_first for mould in moulds]
        )
        plain = [mould.public_key.alg == "ed25519" for mould in moulds]
        keys = [mould.public_key.raw for mould, fits in zip(moulds, plain, strict=True) if fits]
        key_of = [at - 1 if fits else -1 for at, fits in zip(accumulate(plain), plain, strict=True)]
        heads = [len(head) for head, _, _ in parts]
        _packed = _Packed(len(_moulds), heads, moulds, templates, b"".join(keys), key_of)
    return _packed


def learn(raw: bytes, value: dict[str, Any], public_key: PublicKey, preimage: bytes) -> None:
    """Cache the template of a fully parsed envelope, if it can be reused."""
    cut = _cut(raw)
    if cut is None or not value.keys() <= _MEMBERS or sum(map(len, cut.mould)) > _MOULD_BYTES_MAX:
        return
    found = cut.hash.decode(), cut.sig.decode(), cut.stamp.decode()
    signature = value["signature"]
    if found != (value["payload_hash"], signature["sig"], value["timestamp"]):
        return
    if "payload" in signature["signed_fields"] or cut.payload != jcs.encode(value["payload"]):
        return
    pairs = b'["payload_hash","%b"]' % cut.hash, b'["timestamp","%b"]' % cut.stamp
    if [preimage.count(pair) for pair in pairs] != [1, 1]:
        return
    spans = [
        (preimage.index(pair) + pair.index(b',"') + 2, preimage.index(pair) + len(pair) - 2) for pair in pairs
    ]
    (one, one_end), (two, two_end) = sorted(spans)
    fields = {
        name: each for name, each in value.items() if name not in ("payload", "payload_hash", "timestamp")
    }
    fields["signature"] = {"alg": signature["alg"], "signed_fields": tuple(signature["signed_fields"])}
    if len(_moulds) >= _MOULDS_MAX:
        _moulds.clear()
    _moulds[cut.mould] = Mould(
        fields, public_key, (preimage[:one], preimage[one_end:two], preimage[two_end:]), spans[0] < spans[1]
    )


def _cut(raw: bytes) -> _Cut | None:
    """Split the bytes at the four variable parts of a plain envelope; None if they are not found."""
    if not raw.startswith(_FIRST) or not raw.endswith(b'"}'):
        return None
    payload, end = raw.find(_PAYLOAD), raw.rfind(_HASH)
    if payload < 0 or end < payload:
        return None
    payload += len(_PAYLOAD)
    digest = end + len(_HASH)
    sig = raw.find(_SIG, digest + _HASH_TEXT) + len(_SIG)
    stamp = raw.rfind(_STAMP) + len(_STAMP)
    if not digest + _HASH_TEXT < sig < sig + _SIG_TEXT < stamp:
        return None
    return _Cut(
        (raw[:payload], raw[digest + _HASH_TEXT : sig], raw[sig + _SIG_TEXT : stamp]),
        raw[payload:end],
        raw[digest : digest + _HASH_TEXT],
        raw[sig : sig + _SIG_TEXT],
        raw[stamp:-2],
    )
