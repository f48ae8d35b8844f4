"""Small true things for ledger tests: keys, envelopes, channels."""

from __future__ import annotations

import copy
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block.block import GENESIS, Block, seal
from ropewalk.ledger.channel.channel import open_log
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.envelope.envelope import build, parse
from ropewalk.ledger.envelope.fields import STRICT_SIGNED
from ropewalk.ledger.envelope.model import Envelope, payload_hash, signature_preimage
from ropewalk.ledger.versions.rehearsal import rehearsal_envelope
from ropewalk.ledger.versions.rehearse import policy_hashes, rehearse, versions_for
from ropewalk.ledger.versions.statements import ShippedDocuments, VersionAct
from ropewalk.ledger.versions.versions import parse_range

ADA = SigningKey.generate("ed25519", b"ada" + bytes(29))
NODE = SigningKey.generate("ed25519", b"node" + bytes(28))
P256 = SigningKey.generate("p256", b"p256" + bytes(28))
SECP = SigningKey.generate("secp256k1", b"secp" + bytes(28))
NOON = "2024-11-01T12:00:00Z"
NOON_NS = 1_730_462_400 * 10**9


def observed(number: int = 0, key: SigningKey = ADA, **members: Any) -> Envelope:
    """An Observation; different numbers make different envelopes."""
    options: dict[str, Any] = {
        "domain": "ea.core",
        "event_class": "Observation",
        "event_type": "test.seen",
        "payload": {"n": number},
        "timestamp": NOON,
        **members,
    }
    return build(key, **options)


def command(correlation_id: str, **members: Any) -> Envelope:
    """A Command with a correlation id."""
    return observed(event_class="Command", event_type="test.do", correlation_id=correlation_id, **members)


def resigned(value: dict[str, Any], key: SigningKey = ADA) -> bytes:
    """The value with a fresh signature, as bytes, so that only the change itself is wrong."""
    value = copy.deepcopy(value)
    value["signature"]["alg"] = key.alg
    value["signature"]["sig"] = b64encode(key.sign(signature_preimage(value))).decode()
    return jcs.encode(value)


def changed(envelope: Envelope, key: SigningKey = ADA, **members: Any) -> Envelope:
    """The envelope with other members, signed again; a member given as None is left out."""
    value = {**envelope.value, **members}
    value = {name: each for name, each in value.items() if each is not None or name == "payload"}
    return parse(resigned(value, key))


def payload_resigned(value: dict[str, Any], key: SigningKey) -> Envelope:
    """The value with the hash of its payload and a fresh signature."""
    return parse(resigned({**value, "payload_hash": payload_hash(value["payload"])}, key))


def chain_of_blocks(count: int, per_block: int = 3, channel: str = "ea.core") -> list[Block]:
    """A sealed, linked chain."""
    blocks: list[Block] = []
    for height in range(count):
        blocks.append(
            seal(
                NODE,
                channel=channel,
                height=height,
                prev_block_hash=blocks[-1].hash if blocks else GENESIS,
                envelopes=[observed(height * per_block + i).raw for i in range(per_block)],
                timestamp_ns=NOON_NS + height,
            )
        )
    return blocks


def opened(home: Path, channel: str = "ea.core", policy: Any = None, **options: Any) -> Any:
    """A channel open for writing, made if it is missing."""
    if not (home / "ledger" / channel / "channel.json").exists():
        create_channel(home, channel, "node", NODE.public, policy)
    return open_log(home, channel, NODE, **{"now_ns": lambda: NOON_NS, **options})


def rehearsed(home: Path, channel: str, version: str, key: SigningKey = NODE, **options: Any) -> str:
    """Rehearse a version and seal the result, signed by a node; return the envelope's id."""
    downgrade = options.pop("downgrade", parse_range(version) == (1, 0))
    done = rehearse(home, channel, *versions_for(home, version, downgrade=downgrade), **options)
    made = rehearsal_envelope(done, key, NOON)
    with open_log(home, channel, NODE, now_ns=lambda: NOON_NS) as ledger:
        ledger.log.submit(made.raw)
    return made.hex_id


def shipped(home: Path, act: VersionAct, **options: Any) -> VersionAct:
    """The act with a guide, a fresh rehearsal and the policies in force."""
    name = rehearsed(home, act.channel, act.protocol_version, **options)
    return replace(act, documents=ShippedDocuments("ab" * 32, name, policy_hashes(home)))


__all__ = [
    "ADA",
    "NODE",
    "NOON",
    "NOON_NS",
    "P256",
    "SECP",
    "STRICT_SIGNED",
    "chain_of_blocks",
    "changed",
    "command",
    "observed",
    "opened",
    "payload_resigned",
    "rehearsed",
    "resigned",
    "shipped",
]
