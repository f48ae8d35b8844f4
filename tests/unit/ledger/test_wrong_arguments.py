"""What a program hands over by mistake is refused in words, and harms nobody else who submits."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.ledger.making import NODE, observed

from ropewalk.errors import InvalidDigest, InvalidEnvelope, Unavailable
from ropewalk.gitlog.repository.opening import init_repository, open_repository
from ropewalk.ledger import create_channel, open_channel, open_log

WRONG: list[Any] = ["text", None, 7, {"a": 1}, observed(1)]


@pytest.fixture
def home(tmp_path):
    create_channel(tmp_path, "audit", "node", NODE.public)
    return tmp_path


@pytest.mark.parametrize("wrong", WRONG, ids=lambda each: type(each).__name__)
def test_only_bytes_are_submitted(home, wrong):
    with open_log(home, "audit", NODE) as opened:
        with pytest.raises(InvalidEnvelope, match="submitted as bytes"):
            opened.log.submit(wrong)
        with pytest.raises(InvalidEnvelope, match="submitted as bytes"):
            opened.log.submit_many([observed(1).raw, wrong])
        assert opened.log.submit(bytearray(observed(2).raw)).height == 0  # type: ignore[arg-type]


def test_a_closed_channel_says_so(home):
    with open_log(home, "audit", NODE) as opened:
        log = opened.log
        log.submit(observed(1).raw)
    for act in (lambda: log.submit(observed(2).raw), lambda: log.submit_many([observed(2).raw])):
        with pytest.raises(Unavailable, match="was closed"):
            act()
    with open_channel(home, "audit") as channel:
        assert channel.index.state.envelopes == 1


@pytest.mark.parametrize("wrong", ["00" * 32, b"short", None])
def test_an_envelope_is_proved_by_the_bytes_of_its_id(home, wrong):
    with open_log(home, "audit", NODE) as opened:
        opened.log.submit(observed(1).raw)
    with open_channel(home, "audit") as channel:
        assert channel.prove(observed(1).id).envelope.id == observed(1).id
        with pytest.raises(InvalidDigest, match="32 bytes"):
            channel.prove(wrong)


@pytest.mark.parametrize("wrong", ["text", None, [1], b"{}"])
def test_an_event_is_a_mapping(tmp_path, wrong):
    init_repository(tmp_path / "log.git")
    with open_repository(tmp_path / "log.git") as log, pytest.raises(InvalidEnvelope, match="mapping"):
        log.append("demo", wrong)
