"""Addresses that peers announce: who is told, what is kept, and what is connected to."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from ipaddress import ip_address
from typing import Any

import pytest
from tests.unit.gossip.conftest import key, memory_log
from tests.waiting import soon

from ropewalk.errors import Invalid, TooLarge, Usage
from ropewalk.gossip.peer import server as server_module
from ropewalk.gossip.peer.connection import PeerConnection
from ropewalk.gossip.peer.multistream import Dialer
from ropewalk.gossip.peer.server import GossipServer
from ropewalk.gossip.sync.discovery import ANNOUNCED_MAX, LEARNED_MAX, AddressBook, Pattern, place_of
from ropewalk.gossip.sync.wire import decode_addresses, encode_addresses

LOCAL = "ws://127.0.0.1:7447"


def numbered(count: int, start: int = 0) -> list[str]:
    return [f"ws://n{n}.example.org:7447" for n in range(start, start + count)]


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example:1",
        "ws://a.example",
        "ws://user@a.example:1",
        "ws://a.example:1/path",
        "ws://a.example:1?query",
        "ws://a.example:0",
        "ws://a.example:70000",
        "ws://é.example:1",
        "ws://a.example:1\n",
        "ws://[a.example]:1",
        "ws://[203.0.113.5]:1",
        "ws://[1:2]:1",
        "ws://[fe80::1%eth0]:1",
        f"ws://{'a' * 200}:1",
        "",
    ],
)
def test_only_plain_addresses_are_taken(url):
    with pytest.raises(Invalid, match="announced address"):
        place_of(url)


@pytest.mark.parametrize(
    "text", ["", "a.example", "*:7447", "a.*:1", "**.b:1", "a.example:0", "a.example:x", "10.0.0.0/33:1"]
)
def test_pattern_without_host_or_port_is_refused(text):
    with pytest.raises(Usage, match="HOST:PORT"):
        Pattern.parse(text)


@pytest.mark.parametrize(
    ("text", "url", "covered"),
    [
        ("*.example.org:7447", "wss://a.b.example.org:7447", True),
        ("*.example.org:7447", "ws://example.org:7447", False),
        ("*.example.org:7447", "ws://evilexample.org:7447", False),
        ("*.example.org:7447", "ws://a.example.org:7448", False),
        ("a.example.org:7447", "ws://A.example.org:7447", True),
        ("203.0.113.0/24:7447", "ws://203.0.113.9:7447", True),
        ("203.0.113.0/24:7447", "ws://203.0.114.9:7447", False),
        ("[2001:db8::/32]:7447", "ws://[2001:db8::1]:7447", True),
        ("127.0.0.1:7447", "ws://localhost:7447", False),
    ],
)
def test_patterns_cover_hosts_and_networks(text, url, covered):
    assert Pattern.parse(text).covers(*place_of(url)) is covered


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"])
def test_private_address_needs_its_own_pattern(address):
    """A name that an operator allows may stand for any address."""
    assert not AddressBook(patterns=["*.example.org:7447"]).permits(ip_address(address), 7447)
    brackets = f"[{address}]" if ":" in address else address
    assert AddressBook(patterns=[f"{brackets}:7447"]).permits(ip_address(address), 7447)
    assert not AddressBook(patterns=[f"{brackets}:7447"]).permits(ip_address(address), 7448)


def test_without_patterns_nothing_is_wanted():
    book = AddressBook(announced=[LOCAL])
    book.hear("peer", encode_addresses([], numbered(3)))
    assert book.learned() == dict.fromkeys(numbered(3), False)
    assert list(book.wanted(())) == []


def test_learned_addresses_are_bounded():
    """Junk displaces junk: what a pattern allows stays."""
    book = AddressBook(patterns=["good.example.org:7447"])
    good = "ws://good.example.org:7447"
    book.hear("peer", encode_addresses([good], []))
    for start in range(0, 300, LEARNED_MAX):
        book.hear("liar", encode_addresses([], numbered(LEARNED_MAX, start)))
    assert len(book.learned()) == LEARNED_MAX
    assert book.learned()[good]
    with pytest.raises(TooLarge):
        book.hear("liar", encode_addresses([], numbered(LEARNED_MAX + 1)))
    with pytest.raises(TooLarge):
        book.hear("liar", encode_addresses(numbered(ANNOUNCED_MAX + 1), []))


def test_junk_displaces_no_allowed_address():
    book = AddressBook(patterns=["*.example.org:7447"])
    book.hear("peer", encode_addresses([], numbered(LEARNED_MAX)))
    book.hear("liar", encode_addresses([], ["ws://junk.example.net:7447"]))
    assert book.learned() == dict.fromkeys(numbered(LEARNED_MAX), True)
    book.hear("peer", encode_addresses([], numbered(1, LEARNED_MAX)))
    assert list(book.learned()) == numbered(LEARNED_MAX, 1)


def test_one_address_in_many_spellings_is_learned_once():
    """They would take all places and connections, so that other allowed peers had none."""
    book = AddressBook(patterns=["a.example.org:7447", "[2001:db8::/32]:7447"])
    spellings = ["wss://a.Example.org:7447", "WSS://A.EXAMPLE.ORG:07447", "wss://a.example.org:7447"]
    book.hear("liar", encode_addresses(spellings, ["ws://[2001:DB8:0::1]:7447", "ws://[2001:db8::1]:7447"]))
    assert book.learned() == dict.fromkeys((spellings[2], "ws://[2001:db8::1]:7447"), True)
    assert list(book.wanted((spellings[2],))) == ["ws://[2001:db8::1]:7447"]


def test_peers_that_left_are_not_passed_on():
    book = AddressBook(announced=[LOCAL])
    book.hear("one", encode_addresses(numbered(1), numbered(2, 5)))
    assert decode_addresses(book.told_to("two"), 9, 9) == ([LOCAL], numbered(1))
    assert decode_addresses(book.told_to("one"), 9, 9) == ([LOCAL], [])
    book.forget("one")
    assert decode_addresses(book.told_to("two"), 9, 9) == ([LOCAL], [])


async def meeting(
    stack: AsyncExitStack, announced: list[str], discover: list[str]
) -> tuple[GossipServer, GossipServer]:
    """Return a server that learns these addresses from a second one, which is connected to it."""
    learner = await stack.enter_async_context(GossipServer(memory_log(), discover=discover))
    teller = GossipServer(memory_log(signer=key(2)), announce=announced, upstreams=[learner.url])
    await stack.enter_async_context(teller)
    await soon(lambda: bool(learner._book.learned()))
    return learner, teller


@pytest.fixture
def unreached(monkeypatch) -> list[str]:
    """Collect the addresses of connections to learned peers, which are not made."""
    made: list[str] = []

    def connection_to(server: GossipServer, url: str) -> PeerConnection:
        made.append(url)
        return PeerConnection(server.log, url)

    monkeypatch.setattr(server_module, "RECHECK_S", 0.01)
    monkeypatch.setattr(GossipServer, "_connection_to", connection_to)
    return made


def test_connections_are_allowed_and_bounded(unreached):
    async def run() -> None:
        async with AsyncExitStack() as stack:
            learner, _ = await meeting(stack, numbered(1), ["*.allowed.test:1"])
            allowed = [f"ws://n{n}.allowed.test:1" for n in range(20)]
            learner._book.hear("other", encode_addresses([], allowed))
            await soon(lambda: len(unreached) >= server_module.FOUND_MAX)
            await asyncio.sleep(0.1)  # rounds in which a ninth would be connected
            assert unreached == allowed[: server_module.FOUND_MAX]

    asyncio.run(run())


def test_name_of_a_private_address_is_not_connected_to():
    """The operator allowed a name, and it stands for this machine."""

    async def run() -> str:
        async with AsyncExitStack() as stack:
            asked = 0

            def count(*_: object) -> None:
                nonlocal asked
                asked += 1

            trap = await asyncio.start_server(count, "127.0.0.1", 0)
            port = trap.sockets[0].getsockname()[1]
            learner = GossipServer(memory_log(), discover=[f"localhost:{port}"])
            learner._book.hear("liar", encode_addresses([f"ws://localhost:{port}"], []))
            learner._book.forget("liar")
            await stack.enter_async_context(learner)
            await soon(lambda: any(found.error for found, _ in learner._found.values()))
            ((found, _),) = learner._found.values()
            trap.close()
            assert found.error is not None
            assert asked == 0
            return found.error.detail

    assert "neither public nor allowed" in asyncio.run(run())


def test_discovery_unused_is_not_noticed(monkeypatch):
    """Without --announce and --discover no stream is opened, so that npm peers see what they saw before."""
    opened: list[str] = []

    def dialer(protocol: str) -> Dialer:
        opened.append(protocol)
        return Dialer(protocol)

    monkeypatch.setattr("ropewalk.gossip.peer.peer.Dialer", dialer)

    async def run() -> None:
        async with (
            GossipServer(memory_log()) as server,
            PeerConnection(memory_log(signer=key(2)), server.url) as link,
        ):
            await link.synced(60)
            await asyncio.sleep(0.1)

    asyncio.run(run())
    assert opened
    assert not any("ropewalk" in each for each in opened)


def test_peer_without_discovery_is_left_connected():
    async def run() -> str:
        async with GossipServer(memory_log()) as server, AsyncExitStack() as stack:
            teller = GossipServer(memory_log(signer=key(2)), announce=[LOCAL], upstreams=[server.url])
            await stack.enter_async_context(teller)
            (link,) = teller.connections
            await link.synced(60)
            await soon(lambda: link._peer is not None and not link._peer._exchanges)
            stored = await asyncio.to_thread(teller.log.append, "after")
            await soon(lambda: server.log.has(stored.id))
            return link.state

    assert asyncio.run(run()) == "connected"


def test_peer_that_stops_exchanging_is_forgotten_when_it_leaves():
    """What it announced before is passed on no longer than it is connected."""

    async def run() -> None:
        book = AddressBook(patterns=["*.example.org:7447"])
        teller = GossipServer(memory_log(), announce=numbered(1))
        async with (
            teller,
            PeerConnection(memory_log(signer=key(2)), teller.url, book=book, interval_s=0.05) as link,
        ):
            # The second exchange comes too early for the other side, which refuses it.
            await soon(lambda: link._peer is not None and not link._peer._exchanges)
            assert list(book.learned()) == numbered(1)
            assert decode_addresses(book.told_to("other"), 9, 9) == ([], numbered(1))
        assert decode_addresses(book.told_to("other"), 9, 9) == ([], [])

    asyncio.run(run())


def test_discovery_needs_a_new_profile():
    with pytest.raises(Usage, match=r"v0\.13"):
        GossipServer(memory_log(profile="v0.6"), announce=[LOCAL])
    with pytest.raises(Usage, match="announced address"):
        GossipServer(memory_log(), announce=["http://a.example:1"])
    for name in ("upstreams", "announce", "discover"):
        given: dict[str, Any] = {name: LOCAL}
        with pytest.raises(Usage, match="list of strings"):
            GossipServer(memory_log(), **given)
    with pytest.raises(Usage, match="at most 4"):
        GossipServer(memory_log(), announce=numbered(5))
