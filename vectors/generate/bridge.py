"""Cases for mirrors: a ledger envelope at its place, and the git event everybody must make of it.

ULIDs and documents are written out here from their definition, so that a case can disagree with the product.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from ropewalk.kernel import jcs
from ropewalk.kernel.digest import blake3, content_id
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block.block import GENESIS, seal
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.envelope.model import Envelope

ADA = SigningKey.generate("ed25519", b"ada" + bytes(29))
NODE = SigningKey.generate("ed25519", b"node" + bytes(28))
NOON_NS = 1_730_462_400 * 10**9
CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# Looks like an access key of a cloud; taken apart, so that nothing takes this file for a leak.
LOOKS_SECRET = "AKIA" + "QRSTUVWX23456Z7A"


def observed(payload: jcs.Json, **members: Any) -> Envelope:
    return build(
        ADA,
        domain="ea.core",
        event_class="Observation",
        event_type="test.seen",
        payload=payload,
        timestamp="2024-11-01T11:59:58Z",
        **members,
    )


def ulid_text(channel: str, time_ns: int, height: int, index: int) -> str:
    """48 bits of milliseconds, 40 of height, 16 of index, 24 of the channel's digest, as 26 characters."""
    mark = int.from_bytes(blake3(channel.encode())[:3], "big")
    number = (((time_ns // 1_000_000 << 40 | height) << 16 | index) << 24) | mark
    return "".join(CROCKFORD[number >> (5 * place) & 31] for place in range(25, -1, -1))


def case(
    name: str,
    envelopes: list[Envelope],
    index: int,
    *,
    withheld: str | None = None,
    channel: str = "audit",
    height: int = 0,
    ns: str = "audit",
    time_ns: int = NOON_NS,
) -> dict[str, Any]:
    block = seal(
        NODE,
        channel=channel,
        height=height,
        prev_block_hash=GENESIS if height == 0 else bytes([height % 256]) * 32,
        envelopes=[each.raw for each in envelopes],
        timestamp_ns=time_ns,
    )
    envelope = envelopes[index]
    shown = {"payload": envelope.payload} if withheld is None else {"withheld": withheld}
    document = {
        "ulid": ulid_text(channel, time_ns, height, index),
        "ns": ns,
        "type": "test.seen",
        "payload": {
            "channel": channel,
            "height": height,
            "index": index,
            "block_hash": block.hash.hex(),
            "envelope_id": envelope.hex_id,
            "class": "Observation",
            "domain": "ea.core",
            "timestamp": "2024-11-01T11:59:58Z",
            "author": ADA.public.did(),
            **shown,
        },
        "refs": {"block": f"blake3:{block.hash.hex()}", "envelope": f"blake3:{envelope.hex_id}"},
    }
    return {
        "name": name,
        "input": {
            "block": block.record.raw.decode(),
            "envelope": b64encode(envelope.raw).decode(),
            "index": index,
            "ns": ns,
        },
        "expect": {"document": document, "content_id": content_id(jcs.encode(document))},
    }


def generate() -> dict[str, object]:
    three = [observed({"n": n}) for n in range(3)]
    tag = {"level": "confidential", "key_ref": "kms:one"}
    deep: jcs.Json = 0
    for _ in range(jcs.DEPTH_MAX - 1):  # the envelope around it is the last that JSON has room for
        deep = [deep]
    too_high = case("a height that no ULID has room for", three, 0, height=2**40 - 1)
    block = too_high["input"]["block"].replace(str(2**40 - 1), str(2**40))
    cases = [
        case("the first envelope of a channel", three, 0),
        case("the next one of its block", three, 1),
        case("the last one of its block", three, 2),
        case("a later block in the same millisecond", three, 0, height=1, time_ns=NOON_NS + 999_999),
        case("a later block in the next millisecond", three, 0, height=1, time_ns=NOON_NS + 1_000_000),
        case("the greatest height", three, 0, height=2**40 - 1),
        case("another channel at the same place", three, 0, channel="ops"),
        case("another namespace", three, 0, ns="else"),
        case("a payload that is no object", [observed([1, "two", None])], 0),
        case("internal is shown", [observed({"n": 1}, confidentiality={"level": "internal"})], 0),
        case("confidential", [observed({"n": 1}, confidentiality=tag)], 0, withheld="confidential"),
        case(
            "restricted",
            [observed({"n": 1}, confidentiality={**tag, "level": "restricted"})],
            0,
            withheld="restricted",
        ),
        case("detached", [observed({"n": 1}, detached={"locator": "file:///x"})], 0, withheld="detached"),
        case("nested so deep that an event around it is too deep", [observed(deep)], 0, withheld="deep"),
        case("what looks like a secret", [observed({"key": LOOKS_SECRET})], 0, withheld="secret"),
        {"name": too_high["name"], "input": {**too_high["input"], "block": block}, "error": "Invalid"},
    ]
    why = (
        "A ledger envelope at its place becomes one event of a git log, the same for everybody. `block` is the block "
        "record as stored, `envelope` the base64 of the envelope's canonical bytes. The ULID is, from the top: 48 bits "
        "of milliseconds of the block's timestamp, 40 of height, 16 of index, 24 of BLAKE3(channel). `withheld` stands "
        "in place of a payload that must not travel in a git history. No privacy rules apply here."
    )
    return {"bridge/mirror.json": {"name": "mirrors of ledger envelopes", "why": why, "cases": cases}}
