"""Field names of an envelope (S4 §3, §4), which of them are signed, and the formats a schema cannot state."""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Literal

from ropewalk.errors import InvalidEnvelope

EventClass = Literal["Command", "Observation", "Result", "Alert", "Attestation", "CapabilityAdvertisement"]
Level = Literal["public", "internal", "confidential", "restricted"]

SCHEMA: Final = "ledger/envelope"
FIELDS: Final = (
    "protocol_version",
    "domain",
    "event_class",
    "event_type",
    "correlation_id",
    "causality_chain",
    "timestamp",
    "origin_identity",
    "attestation_evidence",
    "payload_hash",
    "payload_ref",
    "integrity_proof",
    "confidentiality_tag",
    "policy_tag",
    "signature",
    "payload",
)
OPTIONAL: Final = (
    "correlation_id",
    "causality_chain",
    "attestation_evidence",
    "payload_ref",
    "integrity_proof",
    "confidentiality_tag",
    "policy_tag",
)
# S4 §7.2, in its order.
DEFAULT_SIGNED: Final = (
    "protocol_version",
    "domain",
    "event_class",
    "event_type",
    "correlation_id",
    "causality_chain",
    "timestamp",
    "origin_identity",
    "payload_hash",
    "integrity_proof",
    "confidentiality_tag",
    "policy_tag",
)
# Evidence and the location of a detached payload could be stripped unless they are signed too.
STRICT_SIGNED: Final = (*DEFAULT_SIGNED, "payload_ref", "attestation_evidence")
# Without these a signature does not bind author, content, time and domain.
MINIMUM_SIGNED: Final = (
    "protocol_version",
    "domain",
    "event_class",
    "event_type",
    "timestamp",
    "origin_identity",
    "payload_hash",
)

NANOS: Final = 10**9

_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z", re.ASCII)


@lru_cache(maxsize=4096)
def parse_timestamp(text: str) -> int:
    """Return the nanoseconds since the epoch of an RFC 3339 time in UTC with `Z` and up to nine digits of fraction.

    >>> parse_timestamp("1970-01-01T00:00:01.5Z")
    1500000000
    """
    found = _TIMESTAMP.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        seconds = int(datetime.fromisoformat(found[1]).replace(tzinfo=UTC).timestamp())
    except ValueError as error:
        raise InvalidEnvelope(
            f"timestamp {text[:64]!r}: expected RFC 3339 in UTC, as 2024-11-01T12:00:00Z",
            where="/timestamp",
            schema=SCHEMA,
        ) from error
    return seconds * NANOS + int((found[2] or "").ljust(9, "0"))


def format_timestamp(ns: int) -> str:
    """Format a time as in envelopes; without a fraction if it is a whole second.

    >>> format_timestamp(1_730_462_400 * NANOS), format_timestamp(1_730_462_400_500_000_000)
    ('2024-11-01T12:00:00Z', '2024-11-01T12:00:00.500000000Z')
    """
    text = datetime.fromtimestamp(ns // NANOS, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{ns % NANOS:09d}Z" if ns % NANOS else f"{text}Z"


def decode_base64(text: str, where: str) -> bytes:
    """Decode canonical base64: padded, trailing bits zero.

    >>> decode_base64("AQ==", "/x")
    b'\\x01'
    >>> decode_base64("AR==", "/x")
    Traceback (most recent call last):
    ropewalk.errors.InvalidEnvelope: /x: not canonical base64 (padded, trailing bits zero)
    """
    try:
        raw = a2b_base64(text)
        # A lenient decoding would not encode to the same text.
        if b2a_base64(raw, newline=False) == text.encode():
            return raw
    except (Base64Error, ValueError):
        pass
    raise InvalidEnvelope(
        f"{where}: not canonical base64 (padded, trailing bits zero)", where=where, schema=SCHEMA
    )
