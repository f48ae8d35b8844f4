"""Cases for remote channels: what two sides agree on, its transcript, and messages as bytes on the wire.

The initiator's key is the Ed25519 seed 00 01 … 1f, the responder's is thirty-two times ff.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ropewalk.errors import RopewalkError
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.remote.messages import RemoteMessage, parse_message
from ropewalk.ledger.remote.negotiate import Capabilities, advertise, answer, choose
from ropewalk.net.frames import FrameDecoder, frame, pack_parts, unpack_parts

INITIATOR = SigningKey.generate("ed25519", bytes(range(32)))
RESPONDER = SigningKey.generate("ed25519", b"\xff" * 32)
NOON = "2024-11-01T12:00:00Z"
PLAIN = Capabilities(("tls",))
PAIRS: tuple[tuple[str, str, Capabilities, Capabilities], ...] = (
    ("same", "two sides that can do the same", PLAIN, PLAIN),
    (
        "initiator_prefers_zstd",
        "of what both can do, what the initiator names first",
        replace(PLAIN, compression=("zstd", "none"), attestation_formats=("slsa.v1", "tee.report")),
        PLAIN,
    ),
    (
        "highest_minor_by_number",
        "1.10 is above 1.9, and a minor that only one side knows is not chosen",
        replace(PLAIN, supported_versions=("1.0.x", "1.9.x", "1.10.x", "1.11.x")),
        replace(PLAIN, supported_versions=("1.0.x", "1.9.x", "1.10.x")),
    ),
    (
        "without_streaming",
        "one request at a time, whatever both say about more",
        replace(PLAIN, features=frozenset({"append"})),
        PLAIN,
    ),
    (
        "grace_only_reads",
        "a version past its sunset is common: nothing may be appended",
        replace(PLAIN, supported_versions=("1.0.x",)),
        replace(PLAIN, supported_versions=("1.1.x",), grace_versions=("1.0.x",)),
    ),
    ("no_transport", "nothing in common", replace(PLAIN, transports=("quic", "grpc")), PLAIN),
    ("no_version", "nothing in common", replace(PLAIN, supported_versions=("2.0.x",)), PLAIN),
    (
        "no_compression",
        "nothing in common",
        replace(PLAIN, compression=("zstd",)),
        replace(PLAIN, compression=()),
    ),
)
BROKEN = (
    ("length_beyond_the_limit", "00010001"),
    ("part_longer_than_the_frame", "000000050000000261"),
    ("frame_ends_inside_a_length", "000000020000"),
    ("no_parts", "00000000"),
    ("first_part_is_no_json", frame(pack_parts([b"x"])).hex()),
    ("first_part_is_no_object", frame(pack_parts([b"[]"])).hex()),
    ("op_nobody_knows", frame(pack_parts([b'{"number":1,"op":"dance"}'])).hex()),
    ("number_is_no_natural", frame(pack_parts([b'{"number":-1,"op":"head"}'])).hex()),
    ("number_is_missing", frame(pack_parts([b'{"op":"head"}'])).hex()),
    ("op_is_no_text", "00000018000000147b226e756d626572223a312c226f70223a5b5d7d"),
)
LIMIT = 65_536


def _choice(name: str, why: str, ours: Capabilities, theirs: Capabilities) -> dict[str, Any]:
    case: dict[str, Any] = {
        "name": name,
        "why": why,
        "input": {"initiator": ours.to_json(), "responder": theirs.to_json()},
    }
    try:
        case["expect"] = choose(ours, theirs).to_json()
    except RopewalkError as error:
        case["error"] = type(error).__name__
    return case


def _negotiation() -> dict[str, Any]:
    asked = advertise(INITIATOR, PLAIN, timestamp=NOON, correlation_id="c-1")
    told = answer(RESPONDER, asked, PLAIN, timestamp=NOON)
    return {
        "name": "whole",
        "why": "both advertisements and what is agreed, every byte of them",
        "input": {"initiator": asked.raw.decode(), "responder": told.advertisement.raw.decode()},
        "expect": {
            "initiator_id": asked.hex_id,
            "responder_id": told.advertisement.hex_id,
            "transcript": dict(told.agreed.value["payload"])["transcript"],
            "agreed": told.agreed.raw.decode(),
        },
    }


def _message(name: str, message: RemoteMessage) -> dict[str, Any]:
    raw = frame(pack_parts(message.parts_out()))
    head = {**message.facts, "op": message.op, "number": message.number}
    return {
        "name": name,
        "input": raw.hex(),
        "expect": {"head": head, "parts": [part.hex() for part in message.parts]},
    }


def _error(raw: str) -> str:
    try:
        (body,) = FrameDecoder(LIMIT).receive(bytes.fromhex(raw))
        parse_message(unpack_parts(body, 8_194))
    except RopewalkError as error:
        return type(error).__name__
    raise SystemExit(f"ledger_remote vectors: {raw} was taken")


def generate() -> dict[str, object]:
    """Every file, by its path."""
    messages = (
        ("head", RemoteMessage("head", 1)),
        ("append_two", RemoteMessage("append", 7, {}, (b"{}", b"\xa0"))),
        ("blocks_from", RemoteMessage("blocks", 2, {"from": 5})),
        ("open", RemoteMessage("open", 0, {"channel": "audit"}, (b"{}",))),
    )
    return {
        "ledger_remote/choice.json": {
            "name": "choice",
            "why": "S4 §5 and §8: what follows from two advertisements, so that both sides can compute it",
            "cases": [_choice(*pair) for pair in PAIRS],
        },
        "ledger_remote/negotiation.json": {
            "name": "negotiation",
            "why": "the responder signs the transcript over both ids and the choice, so that a downgrade shows",
            "cases": [_negotiation()],
        },
        "ledger_remote/messages.json": {
            "name": "messages",
            "why": f"one frame each, with a limit of {LIMIT} bytes",
            "cases": [
                *(_message(name, message) for name, message in messages),
                *({"name": name, "input": raw, "error": _error(raw)} for name, raw in BROKEN),
            ],
        },
    }
