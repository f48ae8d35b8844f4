"""What a stream is for is settled in one exchange, and guessing has an end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropewalk.errors import Invalid, TooLarge, Unavailable
from ropewalk.gossip.peer.multistream import PROPOSALS_MAX, Dialer, ProtocolListener

VECTOR = Path(__file__).parents[3] / "vectors" / "gossiplog" / "v0.13-websocket.json"
NAME = b"\x13/multistream/1.0.0\n"


def test_the_recorded_dialer_says_the_same_bytes():
    frames = [bytes.fromhex(frame["hex"]) for frame in json.loads(VECTOR.read_text())["frames"]]
    dialed = [raw[12:] for raw in frames if raw[12:].startswith(NAME) and len(raw) > 40]
    assert dialed[0] == Dialer("/canvas/v1/com.example.shared/push").data_to_send()
    assert dialed[1] == Dialer("/canvas/v1/com.example.shared/sync").data_to_send()


def test_what_follows_the_agreement_is_kept():
    listener = ProtocolListener(["/a"])
    listener.receive(Dialer("/a").data_to_send() + b"first bytes")
    assert (listener.chosen, listener.rest) == ("/a", b"first bytes")


def test_bytes_may_come_one_by_one():
    dialer, listener = Dialer("/" + "x" * 300), ProtocolListener(["/" + "x" * 300])
    for byte in dialer.data_to_send():
        listener.receive(bytes([byte]))
    for byte in listener.data_to_send():
        dialer.receive(bytes([byte]))
    assert dialer.chosen == listener.chosen == "/" + "x" * 300


def test_an_unknown_protocol_is_declined_and_another_may_be_proposed():
    listener = ProtocolListener(["/b"])
    listener.receive(NAME + b"\x03/a\n")
    assert listener.data_to_send() == NAME + b"\x03na\n"
    listener.receive(b"\x03/b\n")
    assert listener.chosen == "/b"
    with pytest.raises(Unavailable, match="does not speak"):
        Dialer("/a").receive(NAME + b"\x03na\n")


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"\x13/multistream/2.0.0\n", Invalid),
        (b"\x04abcd", Invalid),
        (b"\x02\xff\n", Invalid),
        (b"\xff\xff\xff", TooLarge),
        (NAME + b"\x03/x\n" * (PROPOSALS_MAX + 1), TooLarge),
    ],
)
def test_garbage_is_refused(raw: bytes, error: type[Exception]):
    with pytest.raises(error):
        ProtocolListener(["/a"]).receive(raw)
