"""Addresses that lead nowhere: what is wrong is said, and the advice fits it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ropewalk.errors import RopewalkError, Unavailable, Usage
from ropewalk.gossip.peer.client import sync_with
from ropewalk.gossip.peer.topics import open_log

LONG = "a" * 70  # no label of a name is longer than 63


def refusal(url: Any, profile: Any) -> RopewalkError:
    with open_log("t", profile=profile) as log, pytest.raises(RopewalkError) as refused:
        asyncio.run(sync_with(log, url))
    return refused.value


@pytest.mark.parametrize("url", ["", "nonsense", "127.0.0.1:8080", "http://127.0.0.1", None, 5, b"ws://x"])
@pytest.mark.parametrize("profile", ["v0.13", "v0.6"])
def test_syncing_with_nonsense_is_told_how_addresses_are_written(url, profile):
    error = refusal(url, profile)
    assert isinstance(error, Usage) and "peer address must start with" in error.detail
    assert "ws://HOST:PORT" in error.advice_now and "tcp://HOST:PORT" in error.advice_now


@pytest.mark.parametrize(
    "rest", ["", "//", "//[::1:80", "//127.0.0.1:x", "//127.0.0.1:99999", f"//{LONG}:80"]
)
@pytest.mark.parametrize(("scheme", "profile"), [("ws", "v0.13"), ("tcp", "v0.6")])
def test_an_address_without_a_host_and_a_port_is_told_its_form(scheme, profile, rest):
    error = refusal(f"{scheme}:{rest}", profile)
    assert isinstance(error, Usage) and error.advice_now == f"Write {scheme}://HOST:PORT."


@pytest.mark.parametrize(("scheme", "profile"), [("ws", "v0.13"), ("tcp", "v0.6")])
def test_a_host_nobody_knows_is_not_waited_for(scheme, profile):
    only_looked_up_here = f"{scheme}://[fe80::1%no-such-interface]:80"
    error = refusal(only_looked_up_here, profile)
    assert isinstance(error, Unavailable) and error.advice_now == "Check the name of the host."
