"""Parsers of remote channels: frames, messages, packed messages, outcomes, advertisements; and of two short texts."""

from __future__ import annotations

from ropewalk.disk.token_keys import parse_uri
from ropewalk.errors import Invalid, RopewalkError
from ropewalk.ledger.envelope import envelope
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.remote import messages as message
from ropewalk.ledger.remote import negotiate
from ropewalk.ledger.remote.dialing import parse_address
from ropewalk.ledger.remote.negotiate import Capabilities
from ropewalk.ledger.versions.versions import parse_minor
from ropewalk.net import frames
from tests.fuzz.offering import Parser
from tests.unit.ledger.making import ADA, NOON

__all__ = ["PARSERS"]

LIMIT = 4096


def _frames(raw: bytes) -> None:
    cutter = frames.FrameDecoder(LIMIT)
    bodies = cutter.receive(raw)
    again = b"".join(map(frames.frame, bodies))
    assert raw.startswith(again) and cutter.held == len(raw) - len(again)
    for body in bodies:
        found = message.parse_message(frames.unpack_parts(body, 100))
        assert message.parse_message(found.parts_out()) == found


def _packed(raw: bytes) -> None:
    found = message.decompress(raw, LIMIT)
    assert len(found) <= LIMIT and message.decompress(message.compress(found), LIMIT) == found


def _outcome(raw: bytes) -> None:
    found = message.outcome_of(raw)
    again = message.outcome_of(message.outcome_part(found))
    if isinstance(found, RopewalkError):
        assert isinstance(again, type(found))
    else:
        assert again == found


def _advertisement(raw: bytes) -> None:
    found = negotiate.capabilities_of(envelope.parse_wire(raw))
    own = Capabilities(("tls",))
    assert negotiate.choose(found, own).max_message_bytes <= own.max_message_bytes


def _address(raw: bytes) -> None:
    scheme, host, port = parse_address(raw.decode("utf-8", "replace"))
    assert scheme in ("tls", "tcp") and host and 0 < port < 65_536


def _token_uri(raw: bytes) -> None:
    found = parse_uri(raw.decode("utf-8", "replace"))
    assert {"object", "module-path"} <= found.keys() and "pin-value" not in found


def _minor(raw: bytes) -> None:
    major, minor = parse_minor(raw.decode("utf-8", "replace"))
    assert parse_minor(f"{major}.{minor}") == (major, minor)


def _wired(*messages: message.RemoteMessage) -> bytes:
    return b"".join(frames.frame(frames.pack_parts(each.parts_out())) for each in messages)


PARSERS = (
    Parser(
        "remote_frames",
        _frames,
        (
            _wired(message.RemoteMessage("head", 1)),
            _wired(
                message.RemoteMessage("append", 1, {}, (b"{}", b"")),
                message.RemoteMessage("blocks", 2, {"from": 5}),
            ),
            _wired(message.RemoteMessage("outcomes", 7, {"first": 0}, (b"{}",))),
            frames.frame(frames.pack_parts([b'{"number":1,"op":[]}'])),
        ),
    ),
    Parser("remote_packed", _packed, (message.compress(b""), message.compress(b"x" * 4000))),
    Parser(
        "remote_outcome",
        _outcome,
        (
            message.outcome_part(LedgerReceipt(bytes(32), 3, 1, bytes(32), replayed=True)),
            message.outcome_part(Invalid("wrong", advice="Do better.", instance="urn:x", where="/a")),
            b'{"code":"Novel","detail":7,"self":1,"class":2}',
        ),
    ),
    Parser("remote_address", _address, (b"tls://ledger.example:7443", b"tcp://[::1]:1/", b"tls://a:0")),
    Parser(
        "token_uri", _token_uri, (b"pkcs11:token=a%20b;object=node?module-path=/lib/x.so&pin-source=file:x",)
    ),
    Parser("minor_version", _minor, (b"1.10", b"0.0")),
    Parser(
        "remote_advertisement",
        _advertisement,
        (
            negotiate.advertise(ADA, Capabilities(("tls",)), timestamp=NOON, correlation_id="c").raw,
            negotiate.advertise(
                ADA,
                Capabilities(("tls",), ("1.0.x",), compression=("zstd", "none")),
                timestamp=NOON,
                correlation_id="d",
            ).raw,
        ),
    ),
)
