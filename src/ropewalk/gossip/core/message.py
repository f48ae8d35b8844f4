"""A signed message: payload, parents, author and signature.

The bytes that travel are the bytes that are hashed and stored. Everything else here is read from them once.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from ropewalk.errors import BrokenLink, Invalid, InvalidCbor, InvalidName, TooLarge
from ropewalk.gossip.core import dag_json
from ropewalk.gossip.core.ids import Key, MessageId, ProfileName, id_of, key_of, make_key
from ropewalk.gossip.core.profiles import PROFILES, Parts, Profile, SignatureCodec, check_parents
from ropewalk.kernel import cbor
from ropewalk.kernel.cbor import Link
from ropewalk.kernel.digest import sha256
from ropewalk.kernel.keys import SigningKey

if TYPE_CHECKING:  # bare `GossipLog` then means one of any payload and result (PEP 696)
    from typing_extensions import TypeVar

    Payload = TypeVar("Payload", default=Any)
    Result = TypeVar("Result", default=Any)
else:
    from typing import TypeVar

    Payload, Result = TypeVar("Payload"), TypeVar("Result")

MESSAGE_BYTES_MAX = 4 << 20  # one message with its signature; larger things are linked, not carried
TOPIC_CHARS_MAX = 200  # a topic is also the name of a folder
_SLASH = b"\x61/"  # the text "/" in CBOR: no map has that key without it


# Named tuples, because a log is read in long runs and a tuple is made at a fraction of a frozen dataclass's price.


class GossipMessage(NamedTuple, Generic[Payload]):
    """What is signed (S3 § Messages). `clock` is the length of the longest path down to a message without parents."""

    topic: str
    clock: int
    parents: tuple[MessageId, ...]
    payload: Payload


class GossipSignature(NamedTuple):
    """The signer and the signature; `codec` is the form in which the message was signed."""

    public_key: str
    signature: bytes
    codec: SignatureCodec = "dag-cbor"

    @property
    def cid(self) -> Link | None:
        """The CID of the message that was signed; None for a signature that was not read with its message."""
        return None


class _SignatureOf(GossipSignature):
    """A signature that was read or made with its message. It is equal to one without."""

    # The CID is made from these on demand: logs are read in long runs, and few readers need it.
    _signed: tuple[Parts, int, tuple[MessageId, ...], bytes, int]

    @property
    def cid(self) -> Link | None:
        parts, clock, ids, raw, payload_at = self._signed
        whole = parts._replace(clock=clock, parent_ids=ids)
        return Link(PROFILES["v0.6"].signing_input(whole, raw[payload_at:]))


class SignedMessage(NamedTuple):
    """A message with its signature, its bytes and the key that follows from them."""

    key: Key
    raw: bytes
    signature: GossipSignature
    message: GossipMessage
    parent_keys: tuple[Key, ...]
    payload_at: int  # where the payload's bytes begin in `raw`; they are its end

    @property
    def id(self) -> MessageId:
        """Return the key as text."""
        return id_of(self.key)


def check_topic(profile: Profile, topic: str) -> str:
    """Return the topic, if the profile allows it.

    >>> check_topic(PROFILES["v0.13"], "com.example.chat#main")
    'com.example.chat#main'
    """
    if profile.topic.fullmatch(topic) is None or len(topic) > TOPIC_CHARS_MAX:
        raise InvalidName(
            f"topic {topic[:80]!r} is not allowed in profile {profile.name}",
            name=topic[:80],
            advice=f"Use letters, digits, `.` and `-`, at most {TOPIC_CHARS_MAX} characters.",
        )
    return topic


def next_clock(profile: Profile, parent_keys: tuple[Key, ...]) -> int:
    """Return one more than the highest clock among the parents; 1 without parents.

    >>> next_clock(PROFILES["v0.13"], (Key(b"\\x07" + bytes(19)),))
    8
    """
    if len(parent_keys) == 1:  # most messages
        return 1 + profile.code.split(parent_keys[0])[0]
    return 1 + max(map(profile.code.clock, parent_keys), default=0)


def encode_payload(payload: Any) -> bytes:
    """Return the DAG-CBOR of a payload; tuples are written as lists, dataclasses as maps of their fields.

    >>> encode_payload((1, {"a": (2,)})) == encode_payload([1, {"a": [2]}])
    True
    """
    try:
        return cbor.dag_encode(payload)
    except InvalidCbor:
        plain = _plain(payload)
        if plain is payload:
            raise
        return cbor.dag_encode(plain)


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > cbor.DEPTH_MAX:
        return value  # too deep to encode, with the error that belongs to it
    if is_dataclass(value) and not isinstance(value, type | Link):
        return {field.name: _plain(getattr(value, field.name), depth + 1) for field in fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item, depth + 1) for name, item in value.items()}
    return value


def sign(
    profile: Profile,
    signer: SigningKey,
    topic: str,
    parent_keys: tuple[Key, ...],
    payload: Any,
    codec: SignatureCodec = "dag-cbor",
) -> SignedMessage:
    """Make a message on top of its parents and sign it.

    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> made = sign(PROFILES["v0.13"], key, "com.example", (), {"n": 1})
    >>> decode(PROFILES["v0.13"], "com.example", made.raw) == made
    True
    """
    parents = check_parents(sorted(parent_keys))
    ids = tuple(map(id_of, parents))
    clock = next_clock(profile, parents)
    profile.code.encode(clock)  # refuses a clock this profile cannot write
    payload_raw = encode_payload(payload)
    settled = cbor.dag_decode(payload_raw)  # what every reader will see: 1.0 is 1
    if _SLASH in payload_raw and profile.name == "v0.13":
        # The JavaScript side keeps payloads as dag-json: a map with that key comes back as something else, or not.
        dag_json.encode(settled)
    author = profile.did(signer.public)
    unsigned = Parts(codec, author, b"", topic, clock, parents, settled, ids)
    signature = profile.sign(signer, profile.signing_input(unsigned, payload_raw))
    parts = Parts(codec, author, signature, topic, clock, parents, settled, ids)
    raw = profile.pack(parts, payload_raw)
    return _made(profile, parts, clock, ids, _check_size(raw), len(raw) - len(payload_raw))


def assemble(profile: Profile, signature: GossipSignature, message: GossipMessage) -> SignedMessage:
    """Put a signature and a message, as an application holds them, into their one binary form.

    Parents in another order than the signed one are refused, not sorted: sorting would break the signature.

    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> made = sign(PROFILES["v0.6"], key, "com.example", (), None)
    >>> assemble(PROFILES["v0.6"], made.signature, made.message) == made
    True
    """
    parents = tuple(key_of(parent) for parent in message.parents)
    payload_raw = encode_payload(message.payload)
    who = signature.public_key
    parts = Parts(
        signature.codec, who, signature.signature, message.topic, message.clock, parents, message.payload
    )
    built = _build(profile, profile.pack(parts, payload_raw), message.topic)
    if built.message.clock != message.clock:
        raise BrokenLink(
            f"clock must be {built.message.clock} for these parents, got {message.clock}", reason="clock"
        )
    return built


def decode(profile: Profile, topic: str, raw: bytes) -> SignedMessage:
    """Read a signed message, refusing every form but the canonical one; the signature is not checked yet.

    >>> decode(PROFILES["v0.13"], "com.example", b"\\x80")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: a v0.13 message must be a list of 5, got 0
    """
    return _build(profile, raw, topic)


def _build(profile: Profile, raw: bytes, topic: str) -> SignedMessage:
    parts, payload_at = profile.unpack(_check_size(raw), topic)
    expected = next_clock(profile, parts.parents)
    if parts.clock is not None and parts.clock != expected:
        raise BrokenLink(f"clock must be {expected} for these parents, got {parts.clock}", reason="clock")
    return _made(profile, parts, expected, tuple(map(id_of, parts.parents)), raw, payload_at)


def _check_size(raw: bytes) -> bytes:
    if len(raw) > MESSAGE_BYTES_MAX:
        raise TooLarge(
            f"a message must have at most {MESSAGE_BYTES_MAX} bytes, got {len(raw)}",
            size=len(raw),
            limit=MESSAGE_BYTES_MAX,
        )
    return raw


def _made(
    profile: Profile, parts: Parts, clock: int, ids: tuple[MessageId, ...], raw: bytes, payload_at: int
) -> SignedMessage:
    new = tuple.__new__  # skips the slower __new__ of the named tuple: runs are long
    codec, author, signed, topic, _, parents, payload, _ = parts
    signature = new(_SignatureOf, (author, signed, codec))
    signature._signed = parts, clock, ids, raw, payload_at
    message = new(GossipMessage, (topic, clock, ids, payload))
    key = make_key(profile.code, clock, sha256(raw))
    return new(SignedMessage, (key, raw, signature, message, parents, payload_at))


def verify(profile: Profile, signed: SignedMessage) -> None:
    """Check the signature over the message; SigInvalid if it does not hold.

    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> verify(PROFILES["v0.13"], sign(PROFILES["v0.13"], key, "com.example", (), [1, b"2"]))
    """
    profile.verify(signed.signature.public_key, _signed_bytes(profile, signed), signed.signature.signature)


def cid_of(signed: SignedMessage) -> Link:
    """Return the CID of a message, which v0.6 signs; its signature object carries it (S3 § Message signatures).

    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> cid_of(sign(PROFILES["v0.6"], key, "com.example", (), None)).text()[:7]
    'bafyrei'
    """
    return Link(_signed_bytes(PROFILES["v0.6"], signed))


def _signed_bytes(profile: Profile, signed: SignedMessage) -> bytes:
    signature, message = signed.signature, signed.message
    parts = Parts(
        signature.codec,
        signature.public_key,
        signature.signature,
        message.topic,
        message.clock,
        signed.parent_keys,
        message.payload,
        message.parents,
    )
    return profile.signing_input(parts, signed.raw[signed.payload_at :])


def profile_of(topic: str, raw: bytes) -> Profile:
    """Return the profile in which these bytes are a valid message of the topic; raise if there is none.

    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> profile_of("com.example", sign(PROFILES["v0.6"], key, "com.example", (), 1).raw).name
    'v0.6'
    """
    shape = cbor.dag_decode(_check_size(raw))
    profile = PROFILES["v0.6" if isinstance(shape, list) and len(shape) == 4 else "v0.13"]
    verify(profile, decode(profile, check_topic(profile, topic), raw))
    return profile


def profile_named(name: ProfileName | str) -> Profile:
    """Return the wire profile of that name."""
    for profile in PROFILES.values():
        if profile.name == name:
            return profile
    raise Invalid(f"no wire profile {name!r}", advice="The profiles are v0.6 and v0.13.")
