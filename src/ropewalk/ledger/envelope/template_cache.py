"""Moulds: the bytes around a payload, checked once.

An author says many things in the same words: between two plain envelopes only payload, payload_hash, sig and timestamp
differ. All other bytes were checked with the first one (strict JSON, schema, key) and need no second look; what was put
in their place is checked here. Whatever does not fit a known mould exactly, or does not hold, is read in full by who
asked, and refused there in the right words: a mould can spare work, it never decides against an envelope.

Why the parts may be judged apart: canonical members stand sorted, so the bytes are
`head payload ,"payload_hash":"hash" middle sig tail timestamp "}`. With head, middle and tail known byte for byte, a
canonical value between them makes canonical bytes, and the schema asks nothing that spans two members.
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from blake3 import blake3

from ropewalk.errors import RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SIGNATURE_BYTES, PublicKey
from ropewalk.ledger.envelope.fields import parse_timestamp

_FIRST: Final = b'{"domain":"'  # evidence, chains, tags and correlation ids would stand in front of it
_PAYLOAD: Final = b',"payload":'
_HASH: Final = b',"payload_hash":"'
_SIG: Final = b'"sig":"'
_STAMP: Final = b'"timestamp":"'
_HASH_TEXT: Final = 64
_SIG_TEXT: Final = 88

# Members with a value of their own in every envelope would make a mould that is never used again.
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
_MOULDS_MAX: Final = 1024  # authors times kinds of events; a flood of new ones only costs time
_MOULD_BYTES_MAX: Final = 4096
_BRACKETS_MAX: Final = jcs.DEPTH_MAX - 1  # the envelope is the outermost


class _Cut(NamedTuple):
    """Where the four parts that differ begin and end."""

    mould: tuple[bytes, bytes, bytes]
    payload: bytes
    hash: bytes
    sig: bytes
    stamp: bytes


@dataclass(frozen=True, slots=True)
class _Mould:
    """What is known of every envelope with these bytes around its payload; its preimage is cut at hash and time."""

    fields: dict[str, Any]
    public_key: PublicKey
    preimage: tuple[bytes, bytes, bytes]
    hash_first: bool


_moulds: dict[tuple[bytes, bytes, bytes], _Mould] = {}


def recast(raw: bytes) -> dict[str, Any] | None:
    """The facts of an envelope from a known mould; None says nothing about it."""
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
        stamp = cut.stamp.decode()
        parse_timestamp(stamp)
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
        "timestamp": stamp,
        "preimage": b"".join((before, first, between, second, after)),
        "hash_holds": True,
    }


def learn(raw: bytes, value: dict[str, Any], public_key: PublicKey, preimage: bytes) -> None:
    """Keep the mould of an envelope that was read in full, if it may have more of its kind."""
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
        fields,
        public_key,
        (preimage[:one], preimage[one_end:two], preimage[two_end:]),
        spans[0] < spans[1],
    )


def _cut(raw: bytes) -> _Cut | None:
    """The bytes taken apart where a plain envelope would have its four parts; None if they are not there."""
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
