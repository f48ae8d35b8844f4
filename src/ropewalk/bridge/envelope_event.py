"""A ledger envelope as an event of a git log: the same on every machine, for it depends on the channel alone.

The event is a new one, with a new ULID; it names the envelope by its id, and its place in the channel. Its ULID
is made of that place:

    time        milliseconds of the block's timestamp, which never goes back from block to block
    40 bits     the block's height
    16 bits     the envelope's index in the block
    24 bits     the beginning of the BLAKE3 digest of the channel's name, so that channels do not collide

so ULIDs rise strictly along a channel, and nothing has to be known of the envelope before.

A git history is pushed and fetched, and cannot forget. What must not travel that way stays in the ledger: payloads of
confidential and restricted envelopes, detached ones (they can be erased where they lie), those that hold what looks
like a secret, and those the privacy rules of the repository would change. So does what is nested as deep as JSON may
be: the event around it would be deeper still, and one such envelope must not stop a mirror for ever. Then the event
is marked `withheld`, and not even the payload's hash is shown: a short payload can be guessed from it. The envelope's
id still binds everything.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from ropewalk.errors import Invalid, InvalidJson
from ropewalk.gitlog.privacy.rules import PrivacyPolicy, is_private
from ropewalk.gitlog.privacy.secrets import scan_json
from ropewalk.kernel import jcs, ulid
from ropewalk.kernel.digest import blake3
from ropewalk.kernel.ulid import Ulid
from ropewalk.ledger.block.block import Header
from ropewalk.ledger.envelope.model import Envelope

HEIGHT_BITS: Final = 40
INDEX_BITS: Final = 16
MARK_BITS: Final = 24

Withheld = Literal["confidential", "deep", "detached", "private", "restricted", "secret"]
"""Why an event does not show the payload of its envelope."""


def ulid_of(header: Header, index: int) -> Ulid:
    """Return the ULID of the event that mirrors the envelope at an index of a block.

    >>> from dataclasses import replace
    >>> block = Header("audit", 7, bytes(32), bytes(32), 1_700_000_000_123_456_789, bytes(32), 3)
    >>> ulid_of(block, 0), ulid_of(block, 1)
    ('01HF7YAT3V000000070006C2XM', '01HF7YAT3V00000007000PC2XM')
    >>> ulid_of(block, 2) < ulid_of(replace(block, height=8), 0)
    True
    """
    if header.height >> HEIGHT_BITS or index >> INDEX_BITS:
        raise Invalid(
            f"block {header.height}, envelope {index}: a ULID has no room for it", height=header.height
        )
    place = header.height << INDEX_BITS | index
    return ulid.make(header.timestamp_ns // 1_000_000, place << MARK_BITS | channel_mark(header.channel))


def channel_mark(channel: str) -> int:
    """Return what ULIDs of one channel's events have in common.

    >>> hex(channel_mark("audit"))
    '0x660bb4'
    """
    return int.from_bytes(blake3(channel.encode())[: MARK_BITS // 8], "big")


def mark_of(name: Ulid) -> int:
    """Return the bytes of a ULID that hold the channel's mark.

    >>> mark_of(ulid.parse("01HF7YAT3V000000070006C2XM")) == channel_mark("audit")
    True
    """
    return ulid.randomness(name) & ((1 << MARK_BITS) - 1)


def withheld(envelope: Envelope, policy: PrivacyPolicy | None = None) -> Withheld | None:
    """Return why the payload must not be shown in a git log; None if it may be."""
    if envelope.level == "confidential" or envelope.level == "restricted":
        return envelope.level
    if envelope.is_detached:
        return "detached"
    if _is_deep(envelope):
        return "deep"
    if scan_json(envelope.payload):
        return "secret"
    return "private" if policy is not None and is_private(policy, envelope.payload) else None


def document_of(
    header: Header, index: int, envelope: Envelope, ns: str, policy: PrivacyPolicy | None = None
) -> dict[str, Any]:
    """Return the event that mirrors an envelope at its place, to be recorded under a namespace.

    >>> from ropewalk.kernel.keys import SigningKey
    >>> from ropewalk.ledger.envelope.envelope import build
    >>> key = SigningKey.generate("ed25519", bytes(range(32)))
    >>> one = build(key, domain="ea.core", event_class="Observation", event_type="disk.full", payload={"n": 1},
    ...             timestamp="2024-11-01T12:00:00Z")
    >>> made = document_of(Header("audit", 0, bytes(32), bytes(32), 1, bytes(32), 1), 0, one, "audit")
    >>> made["type"], made["payload"]["payload"], made["refs"]["envelope"] == f"blake3:{one.hex_id}"
    ('disk.full', {'n': 1}, True)
    """
    payload: dict[str, Any] = {
        "channel": header.channel,
        "height": header.height,
        "index": index,
        "block_hash": header.hash.hex(),
        "envelope_id": envelope.hex_id,
        "class": envelope.event_class,
        "domain": envelope.domain,
        "timestamp": envelope.timestamp,
        "author": envelope.public_key.did(),
    }
    reason = withheld(envelope, policy)
    if reason is None:
        payload["payload"] = envelope.payload
    else:
        payload["withheld"] = reason
    return {
        "ulid": ulid_of(header, index),
        "ns": ns,
        "type": envelope.event_type,
        "payload": payload,
        "refs": {"block": f"blake3:{header.hash.hex()}", "envelope": f"blake3:{envelope.hex_id}"},
    }


def _is_deep(envelope: Envelope) -> bool:
    """Return whether a payload that fits its envelope does not fit the event, which holds it one step further in."""
    if envelope.raw.count(b"[") + envelope.raw.count(b"{") < jcs.DEPTH_MAX:  # of nearly all, this is enough
        return False
    try:
        jcs.encode_foreign({"payload": {"payload": envelope.payload}})
    except InvalidJson:
        return True
    return False
