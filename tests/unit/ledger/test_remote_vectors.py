"""The cases any implementation of remote channels can be held to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.making import ADA, NOON

from ropewalk import errors
from ropewalk.kernel.digest import blake3
from ropewalk.kernel.jcs import encode
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.remote.messages import PARTS_MAX, parse_message
from ropewalk.ledger.remote.negotiate import Capabilities, advertise, capabilities_of, check_answer, choose
from ropewalk.net.frames import FrameDecoder, frame, pack_parts, unpack_parts

VECTORS = Path(__file__).parents[3] / "vectors" / "ledger_remote"


def cases(name: str) -> list[Any]:
    found = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))["cases"]
    return [pytest.param(case, id=case["name"]) for case in found]


def able(payload: dict[str, Any]) -> Capabilities:
    """What an advertisement with this payload says."""
    lists: dict[str, Any] = {name: tuple(value) for name, value in payload.items() if isinstance(value, list)}
    numbers = {name: payload[name] for name in ("max_message_bytes", "max_in_flight")}
    made = Capabilities(**lists, **numbers, features=frozenset(payload["features"]))
    assert made.to_json() == payload
    assert capabilities_of(advertise(ADA, made, timestamp=NOON, correlation_id="c")) == made
    return made


@pytest.mark.parametrize("case", cases("choice"))
def test_what_follows_from_two_advertisements(case):
    initiator, responder = able(case["input"]["initiator"]), able(case["input"]["responder"])
    if "error" in case:
        with pytest.raises(getattr(errors, case["error"])):
            choose(initiator, responder)
        return
    assert choose(initiator, responder).to_json() == case["expect"]


@pytest.mark.parametrize("case", cases("negotiation"))
def test_every_byte_of_a_negotiation(case):
    asked, own = (parse_stored(case["input"][name].encode()) for name in ("initiator", "responder"))
    expect = case["expect"]
    agreed = parse_stored(expect["agreed"].encode())
    assert (asked.hex_id, own.hex_id) == (expect["initiator_id"], expect["responder_id"])
    agreement = check_answer(asked, own, agreed, [own.public_key])
    covered = b"ea:capability:v1" + asked.id + own.id + encode(agreement.to_json())
    assert blake3(covered).hex() == expect["transcript"]


@pytest.mark.parametrize("case", cases("messages"))
def test_messages_as_bytes(case):
    raw = bytes.fromhex(case["input"])
    if "error" in case:
        with pytest.raises(getattr(errors, case["error"])):
            (body,) = FrameDecoder(65_536).receive(raw)
            parse_message(unpack_parts(body, PARTS_MAX))
        return
    (body,) = FrameDecoder(65_536).receive(raw)
    message = parse_message(unpack_parts(body, PARTS_MAX))
    assert {**message.facts, "op": message.op, "number": message.number} == case["expect"]["head"]
    assert [part.hex() for part in message.parts] == case["expect"]["parts"]
    assert frame(pack_parts(message.parts_out())) == raw
