"""Record a change of the trusted evidence of a channel in the channel itself (S4 §13).

A `CapabilityAdvertisement` of type `ledger.evidence.rotated`, signed by the channel's key:

    {"version":1, "channel", "since":"<time>", "settings":"<blake3>", "replaces":"<blake3>",
     "roots":["<sha256>"…], "keys":["<fingerprint>"…], "builders":[…]}

`settings` is the digest of the new evidence.json; `verify` compares it with the file that is in use.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from ropewalk.errors import RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import blake3
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.report import Step
from ropewalk.ledger.block.block import Block
from ropewalk.ledger.channel.channel import open_log
from ropewalk.ledger.envelope.envelope import build, parse_stored
from ropewalk.ledger.envelope.fields import format_timestamp
from ropewalk.ledger.evidence.settings import read_evidence, write_evidence
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.versions.lifecycle import seals_channel, version_to_write

if TYPE_CHECKING:  # it loads a large library, as only channels with evidence should
    from ropewalk.ledger.evidence.trust import EvidenceSettings

ROTATED_TYPE: Final = "ledger.evidence.rotated"
DOMAIN: Final = "ropewalk.evidence"
_HINT: Final = ROTATED_TYPE.encode()


def rotate_evidence(
    home: Path,
    channel: str,
    settings: EvidenceSettings,
    keys: Sequence[SigningKey],
    *,
    now_ns: Callable[[], int] = time.time_ns,
    wait_s: float = 0.0,
) -> LedgerReceipt | None:
    """Replace the trusted evidence; record it first if the channel had other settings. The first ones are no rotation.

    Without `keys` nothing is recorded: a copy may trust other evidence than its origin.
    """
    old, raw = read_evidence(home, channel), settings.to_bytes()
    receipt: LedgerReceipt | None = None
    if old is not None and old.to_bytes() != raw and keys:
        payload = _payload(channel, settings, blake3(old.to_bytes()).hex(), format_timestamp(now_ns()))
        with open_log(home, channel, keys[0], also=keys[1:], now_ns=now_ns, wait_s=wait_s) as opened:
            current = opened.log.key_history.current.key
            made = build(
                next((key for key in keys if key.public == current), keys[0]),
                domain=DOMAIN,
                event_class="CapabilityAdvertisement",
                event_type=ROTATED_TYPE,
                payload=cast(jcs.Json, payload),
                timestamp=payload["since"],
                protocol_version=version_to_write(home, opened.log.policy, now_ns()),
            )
            receipt = opened.log.submit(made.raw)
    write_evidence(home, channel, settings)
    return receipt


def _payload(channel: str, settings: EvidenceSettings, replaces: str, since: str) -> dict[str, Any]:
    from cryptography.hazmat.primitives.serialization import Encoding

    from ropewalk.ledger.evidence.certificates import parse_pem

    ders = (parse_pem(root).public_bytes(Encoding.DER) for root in settings.roots)
    return {
        "version": 1,
        "channel": channel,
        "since": since,
        "settings": blake3(settings.to_bytes()).hex(),
        "replaces": replaces,
        "roots": [hashlib.sha256(der).hexdigest() for der in ders],
        "keys": [key.identity().hex() for key in settings.pins.keys],
        "builders": list(settings.pins.builders),
    }


def rotated_settings(lines: Sequence[bytes], channel: str) -> str | None:
    """Return the digest of the settings that a block records last, if the key of the block signed it."""
    found = None
    if any(_HINT in raw for raw in lines[1:]):
        try:
            block = Block.from_lines(lines)
            for envelope in map(parse_stored, block.envelopes):
                said = envelope.payload
                if envelope.event_type == ROTATED_TYPE and envelope.public_key == block.record.signer:
                    found = (
                        said["settings"] if isinstance(said, dict) and said["channel"] == channel else found
                    )
        except (RopewalkError, KeyError):
            return None  # verification of the block reports it
    return cast("str | None", found)


def evidence_settings_step(home: Path, channel: str, recorded: str | None) -> Step | None:
    """Compare the settings in use with the last recorded ones; None if the channel records none."""
    if recorded is None:
        return None
    try:
        found = read_evidence(home, channel)
    except RopewalkError as error:
        return Step("evidence_settings", "failed", error.detail)
    if found is not None and blake3(found.to_bytes()).hex() == recorded:
        return Step("evidence_settings", "passed", "evidence.json is the one that the channel recorded")
    what = f"evidence.json is {'missing' if found is None else 'not the one that the channel recorded'}"
    ours = seals_channel(home, channel)
    return Step("evidence_settings", "failed", what) if ours else Step.optional("evidence_settings", what)
