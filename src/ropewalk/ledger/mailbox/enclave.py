"""The enclave bridge (S4 §5): envelopes that only a named, measured environment can read.

An enclave advertises a key in the payload of a CapabilityAdvertisement, and its evidence binds that payload, hence the
key, to a measurement (S4 §7.5). An envelope names its enclave by `confidentiality_tag.enclave_ref`; it is sealed as a
whole to the key of that enclave with HPKE (RFC 9180, base mode: X25519, HKDF-SHA256, ChaCha20-Poly1305). A carrier
sees the channel, the enclave, the key and the envelope's id. All four are bound into the seal: with another value it
does not open.
"""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ropewalk.errors import Denied, Invalid, SigInvalid, Unverified
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import Tag, hash_from_hex
from ropewalk.kernel.keys import SealingKey, identity_digest
from ropewalk.kernel.seal import hkdf_sha256
from ropewalk.ledger.block.block import check_channel_name
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.envelope.fields import decode_base64
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.evidence.recheck import EvidenceTally
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.remote.negotiate import Capabilities, capabilities_of

TRANSPORT: Final = "enclave_bridge"  # its name in advertisements, S4 §5
SUITE: Final = "x25519-hkdf-sha256-chacha20poly1305"
SEALED_BYTES_MAX: Final = 8 << 20  # the largest envelope in base64, and what is said about it
REF_CHARS_MAX: Final = 256
_PUBLIC: Final = re.compile("[0-9a-f]{64}")


def hpke() -> Suite:
    """Return the suite; it draws its own randomness for sealing, so that is for the edge to call."""
    return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


@dataclass(frozen=True, slots=True)
class EnclaveOffer:
    """What an enclave offers: its name, and the key that envelopes for it are sealed to."""

    enclave_ref: str
    public: bytes

    @property
    def key_id(self) -> str:
        """The name of the key: its digest together with its type."""
        return identity_digest("x25519", self.public).hex()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form in an advertisement."""
        return {"enclave_ref": self.enclave_ref, "public_key": self.public.hex(), "suite": SUITE}


@dataclass(frozen=True, slots=True)
class EnclaveKey:
    """The key of an enclave, derived from its secret and its name.

    >>> key = EnclaveKey("pay", SealingKey(bytes(32)))
    >>> key.offer.enclave_ref, len(key.offer.public)
    ('pay', 32)
    """

    enclave_ref: str
    secret: SealingKey

    @property
    def private(self) -> X25519PrivateKey:
        context = Tag.ENCLAVE_KEY + self.enclave_ref.encode()
        return X25519PrivateKey.from_private_bytes(hkdf_sha256(self.secret.secret, context, 32))

    @property
    def offer(self) -> EnclaveOffer:
        """What can be shown of it."""
        raw = self.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return EnclaveOffer(_checked_ref(self.enclave_ref), raw)


def offer_payload(offer: EnclaveOffer) -> dict[str, Any]:
    """Return the payload of the advertisement an enclave makes; evidence about it binds the key."""
    return {**Capabilities((TRANSPORT,), compression=("none",)).to_json(), TRANSPORT: offer.to_json()}


def offer_of(advertisement: Envelope) -> EnclaveOffer:
    """Return the offer of a signed advertisement. `check_offer` checks that the key is an enclave's."""
    capabilities_of(advertisement)
    payload = advertisement.payload
    said = payload.get(TRANSPORT) if isinstance(payload, dict) else None
    if not isinstance(said, dict):
        raise Invalid(f"capability advertisement: it offers no {TRANSPORT}")
    name, public, suite = said.get("enclave_ref"), said.get("public_key"), said.get("suite")
    if suite != SUITE or not isinstance(public, str) or _PUBLIC.fullmatch(public) is None:
        raise Invalid(f"capability advertisement: {TRANSPORT} has a public_key in hex for the suite {SUITE}")
    return EnclaveOffer(_checked_ref(name), bytes.fromhex(public))


def check_offer(
    advertisement: Envelope, trust: Trust, at_ns: int, nonce: bytes | None = None
) -> EnclaveOffer:
    """Return the offer if valid evidence binds its key to trusted hardware and a trusted measurement.

    Not checked is not enough here: the holder of the key can read everything sealed to it.
    """
    offer = offer_of(advertisement)
    evidence = advertisement.fields.get("attestation_evidence")
    if evidence is None or evidence["format"] != "tee.report":
        raise Unverified(
            f"no report of hardware binds the key of {offer.enclave_ref}",
            advice="An enclave attaches a tee.report over its offer: `ropewalk ledger evidence report-data`.",
        )
    status, detail = EvidenceTally(trust).judge(advertisement, at_ns, nonce)
    if status != "passed":
        raise Unverified(
            f"no valid attestation binds this key to enclave {offer.enclave_ref}: {detail}",
            advice="Name roots and measurements in the trust file: `ropewalk ledger evidence set`.",
        )
    return offer


@dataclass(frozen=True, slots=True)
class EnclaveEnvelope:
    """A sealed envelope on its way: for which channel, enclave and key, its id, and the bytes only they can open."""

    channel: str
    enclave_ref: str
    key_id: str
    envelope_id: bytes
    sealed: bytes

    @property
    def info(self) -> bytes:
        """What the seal is bound to."""
        return Tag.ENCLAVE + jcs.encode(self._named())

    def to_bytes(self) -> bytes:
        """Return canonical JSON, as it travels."""
        return jcs.encode({**self._named(), "version": 1, "sealed": b64encode(self.sealed).decode()})

    def _named(self) -> dict[str, jcs.Json]:
        return {
            "channel": self.channel,
            "enclave_ref": self.enclave_ref,
            "envelope_id": self.envelope_id.hex(),
            "key_id": self.key_id,
            "suite": SUITE,
        }


def sealing_place(envelope: Envelope, channel: str, offer: EnclaveOffer) -> EnclaveEnvelope:
    """Return where an envelope goes, nothing sealed yet; Denied if it names another enclave, or none."""
    named = (envelope.fields.get("confidentiality_tag") or {}).get("enclave_ref")
    if named != offer.enclave_ref:
        who = "no enclave" if named is None else f"the enclave {str(named)[:80]!r}"
        raise Denied(
            f"it is for {who}, and {offer.enclave_ref!r} offers its key",
            advice="Name the enclave when the envelope is built: `ledger envelope --enclave-ref REF`.",
        )
    return EnclaveEnvelope(check_channel_name(channel), offer.enclave_ref, offer.key_id, envelope.id, b"")


def parse_sealed(raw: bytes) -> EnclaveEnvelope:
    """Return a sealed envelope from its bytes.

    >>> parse_sealed(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: sealed envelope: it has version 1 and the suite x25519-hkdf-sha256-chacha20poly1305
    """
    if len(raw) > SEALED_BYTES_MAX:
        raise Invalid(f"sealed envelope: {len(raw)} bytes; at most {SEALED_BYTES_MAX}")
    said = jcs.parse(raw)
    if not isinstance(said, dict) or said.get("version") != 1 or said.get("suite") != SUITE:
        raise Invalid(f"sealed envelope: it has version 1 and the suite {SUITE}")
    channel, key_id, name = said.get("channel"), said.get("key_id"), hash_from_hex(said.get("envelope_id"))
    sealed = said.get("sealed")
    if not isinstance(channel, str) or not isinstance(sealed, str) or name is None:
        raise Invalid("sealed envelope: it has channel, envelope_id and sealed")
    if not isinstance(key_id, str) or hash_from_hex(key_id) is None:
        raise Invalid("sealed envelope: key_id must be 64 hex digits")
    ref = _checked_ref(said.get("enclave_ref"))
    return EnclaveEnvelope(check_channel_name(channel), ref, key_id, name, decode_base64(sealed, "/sealed"))


def open_sealed(sealed: EnclaveEnvelope, key: EnclaveKey, channel: str) -> Envelope:
    """Open an envelope in its enclave; raise SigInvalid if it was sealed for another place, or changed."""
    offer = key.offer
    if (sealed.channel, sealed.enclave_ref) != (channel, offer.enclave_ref):
        raise Denied(
            f"sealed for {sealed.channel} in the enclave {sealed.enclave_ref!r}, "
            f"and this is {channel} in {offer.enclave_ref!r}"
        )
    if sealed.key_id != offer.key_id:
        raise Denied(
            f"sealed for the key {sealed.key_id[:16]}…, and this enclave has {offer.key_id[:16]}…",
            advice="Its sender has an older offer: send the newest, and let it seal again.",
        )
    try:
        raw = hpke().decrypt(sealed.sealed, key.private, info=sealed.info)
    except (InvalidTag, ValueError) as error:
        raise SigInvalid("the seal does not open: it was changed, or made for something else") from error
    envelope = parse_stored(raw)
    if envelope.id != sealed.envelope_id:
        raise Unverified(f"sealed as {sealed.envelope_id.hex()}, and {envelope.hex_id} is in it")
    sealing_place(envelope, channel, offer)
    return envelope


def public_key(offer: EnclaveOffer) -> X25519PublicKey:
    """Return the key of an offer, as the library wants it."""
    return X25519PublicKey.from_public_bytes(offer.public)


def _checked_ref(name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= REF_CHARS_MAX or not name.isprintable():
        raise Invalid(f"an enclave_ref must be printable text of at most {REF_CHARS_MAX} characters")
    return name
