"""The two wire profiles: v0.6 (S3 as written) and v0.13 (what npm ships), as two values of one kind.

They agree on everything but the tuple, the clock code and what is signed; those are separate functions here, so
that no flag inside one function can turn one profile into the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from ropewalk.errors import BrokenLink, Invalid, InvalidCbor, InvalidKey, TooLarge
from ropewalk.gossip.core import dag_json
from ropewalk.gossip.core.ids import CLOCKS, KEY_BYTES, ClockCode, Key, MessageId, ProfileName, id_of
from ropewalk.kernel import cbor, keys
from ropewalk.kernel.digest import DAG_CBOR, cid

PARENTS_MAX = 4096  # a merge of that many heads is already an attack or an accident
SIGNATURE_BYTES = 64
AUTHORS_CACHED = 4096  # parsed public keys kept; parsing one costs about as much as a hash
TOPICS_CACHED = 64  # compiled patterns kept

_CONTAINERS = bytes(range(0x80, 0xC0))  # CBOR heads of lists and maps; every level of a value has one

SignatureCodec = Literal["dag-cbor", "dag-json"]


class Parts(NamedTuple):
    """The parts of a signed message; `clock` is None where the profile does not write it."""

    codec: SignatureCodec
    public_key: str
    signature: bytes
    topic: str
    clock: int | None
    parents: tuple[Key, ...]
    payload: Any
    parent_ids: tuple[MessageId, ...] | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """One wire form of the log. `pack` and `unpack` are inverse; `unpack` also returns where the payload begins."""

    name: ProfileName
    code: ClockCode
    topic: re.Pattern[str]
    algorithms: frozenset[str]
    pack: Callable[[Parts, bytes], bytes]
    unpack: Callable[[bytes, str], tuple[Parts, int]]
    signing_input: Callable[[Parts, bytes], bytes]
    sign: Callable[[keys.SigningKey, bytes], bytes]
    verify: Callable[[str, bytes, bytes], None]

    @staticmethod
    def did(public: keys.PublicKey) -> str:
        """Return the name of an author."""
        return _did_of(public)


# CBOR heads of the fixed shapes. The payload's bytes follow them untouched: they are never encoded twice.


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes((major << 5 | number,))
    for extra, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * size:
            return bytes((major << 5 | extra,)) + number.to_bytes(size, "big")
    raise TooLarge(f"{number} does not fit a CBOR head", size=number)


@lru_cache(AUTHORS_CACHED)
def _text(text: str) -> bytes:
    raw = text.encode("utf-8")
    return _head(3, len(raw)) + raw


def _head_bytes(number: int) -> int:
    if number < 24:
        return 1
    if number < 1 << 8:
        return 2
    if number < 1 << 16:
        return 3
    return 5 if number < 1 << 32 else 9


def _parents(keys_: tuple[Key, ...]) -> bytes:
    return _head(4, len(keys_)) + b"".join([b"\x54" + key for key in keys_])


def _message_cbor(parts: Parts, payload_raw: bytes) -> bytes:
    """Encode `{clock, topic, parents, payload}` as DAG-CBOR: the keys are in that canonical order in both profiles."""
    assert parts.clock is not None
    ids = parts.parent_ids if parts.parent_ids is not None else [id_of(key) for key in parts.parents]
    return b"\xa4\x65clock%b\x65topic%b\x67parents%b%b\x67payload%b" % (
        _head(0, parts.clock),
        _text(parts.topic),
        _head(4, len(ids)),
        b"".join([b"\x78\x20" + text.encode("ascii") for text in ids]),
        payload_raw,
    )


def _shape(raw: bytes, name: ProfileName, length: int) -> list[Any]:
    value = cbor.dag_decode(raw)
    if type(value) is not list or len(value) != length:
        found = len(value) if isinstance(value, list) else type(value).__name__
        raise Invalid(f"a {name} message must be a list of {length}, got {found}", reason="shape")
    return value


def check_parents(value: Any) -> tuple[Key, ...]:
    """Return the parents of a message, if they are keys in the one order they may have, and not too many."""
    if type(value) is not list:
        raise Invalid("parents must be a list", reason="parents")
    if len(value) > PARENTS_MAX:
        raise TooLarge(
            f"a message must have at most {PARENTS_MAX} parents, got {len(value)}",
            size=len(value),
            limit=PARENTS_MAX,
        )
    for parent in value:
        if type(parent) is not bytes or len(parent) != KEY_BYTES:
            raise Invalid(f"a parent must be a key of {KEY_BYTES} bytes", reason="parents")
    # Strictly ascending in the wire's own order: one spelling per set of parents, and none twice.
    if len(value) > 1 and any(a >= b for a, b in pairwise(value)):
        raise BrokenLink("parents must be strictly ascending", reason="parents unsorted or doubled")
    return tuple(value)


def _check_signature(value: Any) -> bytes:
    if type(value) is not bytes or len(value) != SIGNATURE_BYTES:
        raise Invalid(f"a signature must have {SIGNATURE_BYTES} bytes", reason="signature length")
    return value


# v0.6: [public key, signature, [parents…], payload]; the clock follows from the parents, the topic from the log.


def _pack_v06(parts: Parts, payload_raw: bytes) -> bytes:
    public = _public_bytes(parts.public_key)
    if parts.codec != "dag-cbor":
        # The codec is not stored, so a peer could never check such a signature again.
        raise Invalid(f"v0.6 signs dag-cbor, not {parts.codec}", reason="codec")
    return b"".join(
        (
            b"\x84",
            _head(2, len(public)) + public,
            _head(2, len(parts.signature)) + parts.signature,
            _parents(parts.parents),
            payload_raw,
        )
    )


def _unpack_v06(raw: bytes, topic: str) -> tuple[Parts, int]:
    public, signature, parents, payload = _shape(raw, "v0.6", 4)
    if type(public) is not bytes:
        raise InvalidKey("the public key is not bytes", reason="public key")
    checked = check_parents(parents)
    at = 1 + _head_bytes(len(public)) + len(public) + 66 + _head_bytes(len(checked)) + 21 * len(checked)
    did = _did(public)
    return Parts("dag-cbor", did, _check_signature(signature), topic, None, checked, payload), at


def _signing_input_v06(parts: Parts, payload_raw: bytes) -> bytes:
    return cid(DAG_CBOR, _message_cbor(parts, payload_raw))


def _sign_v06(signer: keys.SigningKey, message: bytes) -> bytes:
    if signer.alg == "secp256k1":
        return keys.sign_digest(signer, message[:32])
    _check_algorithm(signer.alg, "v0.6", V06.algorithms)
    return signer.sign(message)


def _verify_v06(did: str, message: bytes, signature: bytes) -> None:
    public = _author(did)
    if public.alg == "secp256k1":
        # The original hands the 36 bytes of the CID to ECDSA as a digest, which keeps the leftmost 32.
        keys.verify_digest(public, message[:32], signature)
        return
    _check_algorithm(public.alg, "v0.6", V06.algorithms)
    public.verify(message, signature)


# v0.13: [[codec, did:key, signature], topic, clock, [parents…], payload].


def _pack_v13(parts: Parts, payload_raw: bytes) -> bytes:
    _check_codec(parts.codec)
    _check_clock(parts.clock)
    assert parts.clock is not None
    return b"\x85\x83%b%b%b%b%b%b%b%b" % (
        _text(parts.codec),
        _text(parts.public_key),
        _head(2, len(parts.signature)),
        parts.signature,
        _text(parts.topic),
        _head(0, parts.clock),
        _parents(parts.parents),
        payload_raw,
    )


def _unpack_v13(raw: bytes, topic: str) -> tuple[Parts, int]:
    return _unpack_usual_v13(raw, topic) or _unpack_any_v13(raw, topic)


@lru_cache(TOPICS_CACHED)
def _usual_v13(topic: str) -> re.Pattern[bytes]:
    """Match what precedes the payload in most messages: signed as dag-cbor with Ed25519, one parent or none.

    Every byte is fixed but the author, the signature, the clock in its shortest form and the parent.
    """
    return re.compile(
        rb"\x85\x83\x68dag-cbor\x78\x38(did:key:z[!-~]{47})\x58\x40(.{64})"
        + re.escape(_text(topic))
        + rb"([\x01-\x17]|\x18[\x18-\xff]|\x19[\x01-\xff].)(?:\x80|\x81\x54(.{20}))",
        re.DOTALL,
    )


def _unpack_usual_v13(raw: bytes, topic: str) -> tuple[Parts, int] | None:
    """Read a message of the usual shape, decoding only its payload; None for others, and for all that is wrong."""
    found = _usual_v13(topic).match(raw)
    if found is None:
        return None
    at = found.end()
    payload_raw = raw[at:]
    if len(payload_raw) - len(payload_raw.translate(None, _CONTAINERS)) >= cbor.DEPTH_MAX:
        return None  # the message counts as a level above its payload
    try:
        payload = cbor.dag_decode(payload_raw)
    except InvalidCbor:
        return None
    did, signature, clock, parent = found.groups()
    number = clock[0] if len(clock) == 1 else int.from_bytes(clock[1:], "big")
    parents = () if parent is None else (Key(parent),)
    return Parts("dag-cbor", str(did, "ascii"), signature, topic, number, parents, payload), at


def _unpack_any_v13(raw: bytes, topic: str) -> tuple[Parts, int]:
    who, named, clock, parents, payload = _shape(raw, "v0.13", 5)
    if type(who) is not list or len(who) != 3:
        raise Invalid("the signature is not a list of codec, public key and bytes", reason="shape")
    codec, did, signature = who
    _check_codec(codec)
    if type(did) is not str or not did.startswith("did:key:z"):
        raise InvalidKey("the public key is not a did:key", reason="public key")
    if named != topic:
        raise Invalid(
            f"the message belongs to topic {_short(named)}, not to {topic!r}", reason="foreign topic"
        )
    _check_clock(clock)
    checked = check_parents(parents)
    at = 2 + 1 + len(codec) + _head_bytes(len(did)) + len(did) + 66
    at += _head_bytes(len(topic)) + len(topic) + _head_bytes(clock)
    at += _head_bytes(len(checked)) + 21 * len(checked)
    return Parts(codec, did, _check_signature(signature), topic, clock, checked, payload), at


def _signing_input_v13(parts: Parts, payload_raw: bytes) -> bytes:
    _check_codec(parts.codec)
    if parts.codec == "dag-cbor":
        return _message_cbor(parts, payload_raw)
    ids = parts.parent_ids if parts.parent_ids is not None else [id_of(key) for key in parts.parents]
    return dag_json.encode(
        {"clock": parts.clock, "parents": list(ids), "payload": parts.payload, "topic": parts.topic}
    )


def _check_codec(codec: Any) -> None:
    if codec not in ("dag-cbor", "dag-json"):
        raise Invalid(f"signature codec {_short(codec)} is unknown", reason="codec")


def _check_clock(clock: Any) -> None:
    if type(clock) is not int or clock < 1:
        raise Invalid(f"clock {_short(clock)} is not a positive number", reason="clock")


def _short(value: Any) -> str:
    """Return a short form of a peer's value for an error."""
    text = repr(value) if isinstance(value, (str, int)) else type(value).__name__
    return text if len(text) <= 80 else text[:79] + "…"


def _sign_v13(signer: keys.SigningKey, message: bytes) -> bytes:
    _check_algorithm(signer.alg, "v0.13", V13.algorithms)
    return signer.sign(message)


def _verify_v13(did: str, message: bytes, signature: bytes) -> None:
    public = _author(did)
    _check_algorithm(public.alg, "v0.13", V13.algorithms)
    public.verify(message, signature)


def _check_algorithm(alg: str, name: ProfileName, allowed: frozenset[str]) -> None:
    if alg not in allowed:
        raise InvalidKey(
            f"profile {name} takes {' or '.join(sorted(allowed))} keys, not {alg}",
            alg=alg,
            advice=(
                'Make the topic with profile="v0.6" (`--profile v0.6`), or sign with an ed25519 key.'
                if alg in V06.algorithms
                else "Sign with an ed25519 key."
            ),
        )


@lru_cache(AUTHORS_CACHED)
def _author(did: str) -> keys.PublicKey:
    return keys.PublicKey.from_did(did)


@lru_cache(AUTHORS_CACHED)
def _did_of(public: keys.PublicKey) -> str:
    return public.did()


@lru_cache(AUTHORS_CACHED)
def _public_bytes(did: str) -> bytes:
    return _author(did).to_multicodec()


@lru_cache(AUTHORS_CACHED)
def _did(public: bytes) -> str:
    key = keys.PublicKey.from_multicodec(public)
    _check_algorithm(key.alg, "v0.6", V06.algorithms)
    return key.did()


V06 = Profile(
    "v0.6",
    CLOCKS["v0.6"],
    re.compile(r"[a-zA-Z0-9.\-]+"),
    frozenset({"ed25519", "secp256k1"}),
    _pack_v06,
    _unpack_v06,
    _signing_input_v06,
    _sign_v06,
    _verify_v06,
)
V13 = Profile(
    "v0.13",
    CLOCKS["v0.13"],
    re.compile(r"[a-zA-Z0-9.\-]+(#[a-zA-Z0-9]+)?"),
    frozenset({"ed25519"}),
    _pack_v13,
    _unpack_v13,
    _signing_input_v13,
    _sign_v13,
    _verify_v13,
)
PROFILES: dict[ProfileName, Profile] = {"v0.6": V06, "v0.13": V13}
