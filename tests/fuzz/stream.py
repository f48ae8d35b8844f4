"""Parsers of streams: what clients send, what servers send, patterns and rules."""

from __future__ import annotations

from ropewalk.stream.core import access, frames, patterns
from tests.fuzz.offering import Parser, as_text

__all__ = ["PARSERS"]

TS = "2026-01-02T03:04:05.678Z"


def _client_frame(raw: bytes) -> None:
    found = frames.parse_client(as_text(raw))
    assert frames.parse_client(frames.encode(found)) == found


def _server_frame(raw: bytes) -> None:
    found = frames.parse_server(as_text(raw))
    if found is not None:
        assert frames.parse_server(frames.encode(found)) == found


def _pattern(raw: bytes) -> None:
    kind, _, text = as_text(raw).partition(" ")
    found = patterns.parse_pattern("ref" if kind == "ref" else "topic", text)
    assert found.covers(found)
    found.matches("refs/gatos/state/public/main")
    rules = {"refs" if found.kind == "ref" else "topics": {"deny": [text]}}
    assert access.parse_access(rules).denies(found)


PARSERS = (
    Parser(
        "client_frame",
        _client_frame,
        (
            b'{"op":"sub","refs":["refs/gatos/**"],"topics":["jobs.*"],"sinceSeq":7}',
            b'{"op":"credit","credit":250}',
            b'{"kind":"pong","credit":3}',
        ),
    ),
    Parser(
        "server_frame",
        _server_frame,
        (
            b'{"kind":"ack","stream":"01HF","seq":77,"credit":1000,"ts":""}',
            frames.encode(frames.RefUpdate("refs/gatos/x", None, "8b1c", 9, TS, 3, 9, 100)).encode(),
            frames.encode(frames.BusEvent("jobs", {"id": 7.5}, 10, TS, {"ulid": "01HF"})).encode(),
            frames.encode(frames.ErrorFrame("REPLAY_EXPIRED", "gone", 1, 5, 9)).encode(),
        ),
    ),
    Parser("stream_pattern", _pattern, (b"ref refs/gatos/**/a*", b"topic gatos.jobs.>")),
)
