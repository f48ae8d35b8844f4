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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from blake3 import blake3

from ropewalk import native
from ropewalk.errors import RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SIGNATURE_BYTES, PublicKey
from ropewalk.ledger.envelope.fields import parse_timestamp

if TYPE_CHECKING:
    from ropewalk.native.canonical import Templates

_FIRST: Final = b'{"domain":"'  # evidence, chains, tags and correlation ids would come before it
_PAYLOAD: Final = b',"payload":'
_HASH: Final = b',"payload_hash":"'
_SIG: Final = b'"sig":"'
_STAMP: Final = b'"timestamp":"'
_HASH_TEXT: Final = 64
_SIG_TEXT: Final = 88

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


@dataclass(frozen=True, slots=True)
class _Mould:
    """Facts shared by all envelopes with these bytes around their payload; the preimage is split at hash and time."""

    fields: dict[str, Any]
    public_key: PublicKey
    preimage: tuple[bytes, bytes, bytes]
    hash_first: bool


_moulds: dict[tuple[bytes, bytes, bytes], _Mould] = {}
_packed: tuple[int, list[tuple[tuple[int, ...], _Mould]], Templates] | None = None


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
    return _facts(raw, mould, signature, cut.hash, cut.stamp)


def recast_all(raws: Sequence[bytes]) -> list[dict[str, Any] | None]:
    """Return what `recast` returns for each of them, or None, by one compiled loop; all None without it."""
    facts: list[dict[str, Any] | None] = [None] * len(raws)
    if len(raws) < _FEW or not _moulds or not native.is_here():
        return facts
    moulds, templates = _pack()
    found = templates.cast(raws)
    if found is None:
        return facts
    numbers, signatures = found
    for at, raw in enumerate(raws):
        number, end, hashed = numbers[3 * at : 3 * at + 3]
        if number < 0:
            continue
        (head, middle, tail), mould = moulds[number]
        digest = end + len(_HASH)
        hash_ = raw[digest : digest + _HASH_TEXT]
        if not hashed and blake3(raw[head:end]).hexdigest().encode() != hash_:
            continue
        stamp = raw[digest + _HASH_TEXT + middle + _SIG_TEXT + tail : -2]
        signature = signatures[SIGNATURE_BYTES * at : SIGNATURE_BYTES * (at + 1)]
        facts[at] = _facts(raw, mould, signature, hash_, stamp)
    return facts


def _facts(raw: bytes, mould: _Mould, signature: bytes, hash_: bytes, stamp: bytes) -> dict[str, Any]:
    before, between, after = mould.preimage
    first, second = (hash_, stamp) if mould.hash_first else (stamp, hash_)
    return {
        "raw": raw,
        "fields": mould.fields,
        "public_key": mould.public_key,
        "signature_bytes": signature,
        "timestamp": stamp.decode(),
        "preimage": b"".join((before, first, between, second, after)),
        "hash_holds": True,
    }


def _pack() -> tuple[list[tuple[tuple[int, ...], _Mould]], Templates]:
    """Return the newest templates with the sizes of their parts, and as the loop takes them."""
    global _packed
    count = len(_moulds)
    if _packed is None or _packed[0] != count:
        from ropewalk.native.canonical import Templates

        newest = list(_moulds.items())[-_PACKED_MAX:]
        sizes = [(tuple(map(len, parts)), mould) for parts, mould in newest]
        _packed = count, sizes, Templates([parts for parts, _ in newest])
    return _packed[1:]


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
    _moulds[cut.mould] = _Mould(
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
