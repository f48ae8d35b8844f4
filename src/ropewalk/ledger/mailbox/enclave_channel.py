"""The two ends of an enclave bridge: sealing, which draws randomness, and a channel that opens what it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ropewalk.errors import InvalidKey, RopewalkError
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.ingest.ticket import EnvelopeSink, LedgerReceipt
from ropewalk.ledger.mailbox.enclave import (
    EnclaveEnvelope,
    EnclaveKey,
    EnclaveOffer,
    hpke,
    open_sealed,
    parse_sealed,
    public_key,
    sealing_place,
)


def seal_envelope(envelope: Envelope, channel: str, offer: EnclaveOffer) -> EnclaveEnvelope:
    """Seal an envelope for the enclave it names. Check the offer first: the holder of its key reads the envelope."""
    place = sealing_place(envelope, channel, offer)
    try:
        return replace(place, sealed=hpke().encrypt(envelope.raw, public_key(offer), info=place.info))
    except ValueError as error:  # a point of small order: everybody could open it
        raise InvalidKey(f"the key of {offer.enclave_ref} seals nothing", alg="x25519") from error


class DecryptingLog:
    """A channel inside an enclave: sealed envelopes are opened, then judged and sealed into blocks as any."""

    def __init__(self, log: EnvelopeSink, channel: str, key: EnclaveKey) -> None:
        self._log, self._channel, self._key = log, channel, key

    def submit(self, raw: bytes) -> LedgerReceipt:
        """Open one and take it, or raise what refuses it."""
        return self._log.submit(self._open(raw))

    def submit_many(self, raws: Sequence[bytes]) -> list[LedgerReceipt | RopewalkError]:
        """Open these and take them, one outcome each, in order."""
        outcomes: list[RopewalkError | None] = []
        opened: list[bytes] = []
        for raw in raws:
            try:
                opened.append(self._open(raw))
                outcomes.append(None)
            except RopewalkError as error:
                outcomes.append(error)
        rest = iter(self._log.submit_many(opened) if opened else [])
        return [next(rest) if outcome is None else outcome for outcome in outcomes]

    def _open(self, raw: bytes) -> bytes:
        return open_sealed(parse_sealed(raw), self._key, self._channel).raw
