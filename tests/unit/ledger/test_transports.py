"""What holds for every transport: equal block hashes, and fallbacks that are seen."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.certifying import files_of
from tests.unit.ledger.making import ADA, NODE, NOON, observed
from tests.unit.ledger.test_quic import ANY
from tests.unit.ledger.test_remote import served

from ropewalk.errors import SigInvalid, Unauthenticated, Unavailable
from ropewalk.ledger.channel.channel import open_channel, open_log
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.envelope.envelope import parse_wire
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.mailbox.client import MailboxClient
from ropewalk.ledger.mailbox.server import MailboxServer
from ropewalk.ledger.remote.client import LedgerClient
from ropewalk.ledger.remote.conversation import Peer
from ropewalk.ledger.remote.negotiate import FEATURES, Capabilities, advertise, answer, check_answer
from ropewalk.ledger.rules.policy import STRICT

pytestmark = pytest.mark.timeout(300)
NOW_NS = 1_900_000_000 * 10**9
RAWS = [observed(i).raw for i in range(40)]


def hashes(home: Path) -> list[str]:
    with open_channel(home, "audit") as channel:
        return [block.hash.hex() for block in channel.blocks()]


def options_of(transport: str, own: Any) -> dict[str, Any]:
    return {
        "tcp": {},
        "tls": {"files": own},
        "grpc": {"files": own, "grpc": ANY, "port": None},
        "quic": {"files": own, "quic": ANY, "port": None},
    }[transport]


@pytest.mark.parametrize("transport", ["tcp", "tls", "grpc", "quic", "mailbox"])
def test_block_hashes_equal_over_every_transport(tmp_path, pki, transport):
    spot, there = tmp_path / "spot", tmp_path / "there"
    for home in (spot, there):
        create_channel(home, "audit", "node", NODE.public)
    with open_log(spot, "audit", NODE, now_ns=lambda: NOW_NS) as opened:
        opened.log.submit_many(RAWS)

    async def main() -> None:
        if transport == "mailbox":
            keys: Any = lambda _channel: [NODE]  # noqa: E731
            async with (
                MailboxServer(there, keys, tmp_path / "box", "audit", now_ns=lambda: NOW_NS) as host,
                MailboxClient(host.url, "audit") as box,
            ):
                await box.submit_many(RAWS)
            return
        own = files_of(pki.folder / "server")
        client: dict[str, Any] = {} if transport == "tcp" else {"files": files_of(pki.folder / "ada")}
        async with (
            served(there, now_ns=lambda: NOW_NS, **options_of(transport, own)) as server,
            LedgerClient(server.url, "audit", **client) as remote,
        ):
            assert remote.agreement.transport == transport
            assert all(isinstance(each, LedgerReceipt) for each in await remote.submit_many(RAWS))

    asyncio.run(main())
    assert hashes(there) == hashes(spot)


def test_fallback_is_used_and_said(tmp_path, pki):
    """QUIC is blocked, gRPC is not served: TLS is used, and both sides have it on record what was passed over."""
    create_channel(tmp_path, "sessions", "node", NODE.public)

    async def main() -> Any:
        own = files_of(pki.folder / "server")
        async with served(tmp_path, files=own, quic=ANY, record="sessions") as server:
            # A QUIC server that does not answer: as behind a firewall that drops UDP.
            quic, tls = "quic://127.0.0.1:9", server.urls["tls"]
            places = f"{quic},grpc://127.0.0.1:9,{tls}"
            files = files_of(pki.folder / "ada")
            async with LedgerClient(places, "audit", files=files, connect_s=0.5) as remote:
                await remote.submit_many(RAWS)
                return remote.agreement.transport, set(remote.missed), remote.downgraded

    transport, missed, downgraded = asyncio.run(main())
    assert (transport, missed, downgraded) == ("tls", {"quic", "grpc"}, ("quic",))
    with open_channel(tmp_path, "sessions") as channel:
        asked = next(parse_wire(raw) for block in channel.blocks() for raw in block.envelopes)
    assert asked.payload["unreachable_transports"] == ["quic", "grpc"]  # type: ignore[index,call-overload]


def test_refused_certificate_is_no_reason_to_fall_back(tmp_path, pki):
    async def main() -> None:
        own = files_of(pki.folder / "server")
        async with served(tmp_path, quic=ANY, files=own) as server:
            files = replace(files_of(pki.folder / "server"), crl=None)  # not a client's
            urls = f"{server.urls['quic']},{server.urls['tls']}"
            with pytest.raises(Unauthenticated, match="EKU"):
                await LedgerClient(urls, "audit", files=files, connect_s=5).__aenter__()

    asyncio.run(main())


def test_policy_pins_the_transport(tmp_path, pki):
    policy = replace(STRICT, capability_matrix={"transports": ["quic"]})

    async def main() -> None:
        own, files = files_of(pki.folder / "server"), files_of(pki.folder / "ada")
        async with served(tmp_path, policy=policy, quic=ANY, files=own) as server:
            with pytest.raises(Unavailable, match="no transport in common"):
                await LedgerClient(server.urls["tls"], "audit", files=files).__aenter__()
            async with LedgerClient(server.urls["quic"], "audit", files=files) as remote:
                assert (await remote.head())["envelopes"] == 0

    asyncio.run(main())


@pytest.mark.parametrize("side", ["initiator", "responder"])
def test_stripped_transport_is_noticed(side):
    """An attacker who strips QUIC from either advertisement breaks the negotiation before anything is sent."""
    asked = advertise(
        ADA,
        Capabilities(("grpc", "tls"), unreachable_transports=("quic",)),
        timestamp=NOON,
        correlation_id="c",
    )
    said = answer(NODE, asked, Capabilities(("quic", "grpc", "tls")), timestamp=NOON)
    assert check_answer(asked, said.advertisement, said.agreed).transport == "grpc"
    if side == "responder":
        value = json.loads(said.advertisement.raw)
        value["payload"]["transports"] = ["grpc", "tls"]
        with pytest.raises(SigInvalid):
            check_answer(asked, parse_wire(json.dumps(value).encode()), said.agreed)
    else:
        other = advertise(ADA, Capabilities(("tls",)), timestamp=NOON, correlation_id="c")
        stripped = answer(NODE, other, Capabilities(("quic", "grpc", "tls")), timestamp=NOON)
        with pytest.raises(SigInvalid):
            check_answer(asked, stripped.advertisement, stripped.agreed)


@pytest.mark.parametrize("transport", ["tls", "grpc", "quic"])
def test_peer_of_a_session_has_its_address(tmp_path, pki, transport):
    seen: list[Peer] = []

    async def main() -> None:
        options = options_of(transport, files_of(pki.folder / "server"))
        rights = lambda peer, _channel: seen.append(peer) or FEATURES  # type: ignore[func-returns-value]  # noqa: E731
        async with (
            served(tmp_path, rights=rights, **options) as server,
            LedgerClient(server.url, "audit", files=files_of(pki.folder / "ada")) as remote,
        ):
            await remote.head()

    asyncio.run(main())
    assert {each.address for each in seen} == {"127.0.0.1"}
