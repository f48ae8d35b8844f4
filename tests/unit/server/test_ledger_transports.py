"""Channels of a node over gRPC and QUIC: what the rights and the rate of a peer depend on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.asgi import Client, served

from ropewalk.errors import RateLimited
from ropewalk.ledger.remote.conversation import Peer
from ropewalk.ledger.remote.negotiate import FEATURES
from ropewalk.server.ledger_transports import rights_of

PAIRS = {
    "ipv4": ("grpc:ipv4:192.0.2.1:4000", "quic://192.0.2.2:4000"),
    "ipv6": ("grpc:ipv6:%5B2001:db8::1%5D:4000", "quic://2001:db8:0:1::1:4000"),
}


@pytest.mark.parametrize("auth", ["anonymous", "none"])
@pytest.mark.parametrize("family", PAIRS)
def test_peers_without_identity_have_a_rate_each_address(tmp_path, family, auth):
    """One that sends without a pause does not use up the rate of the others, over HTTP neither."""
    busy, other = PAIRS[family]
    options: dict[str, Any] = {"requests_per_second": 0.001, "burst": 2}
    if auth == "anonymous":
        path = tmp_path / "auth.json"
        rights = [{"logs": ["**"], "actions": ["read", "append"]}]
        path.write_text(json.dumps({"version": 1, "clients": [], "anonymous": rights}))
        options["auth"] = path

    async def main() -> None:
        client: Client
        async with served(tmp_path, **options) as client:
            for _ in range(2):
                assert rights_of(client.node, Peer(busy), "audit") == FEATURES
            with pytest.raises(RateLimited):
                rights_of(client.node, Peer(busy), "audit")
            assert rights_of(client.node, Peer(other), "audit") == FEATURES
            same = busy.replace("4000", "4001").replace(
                "::1", "::2"
            )  # another port; of IPv6, another host of the /64
            with pytest.raises(RateLimited):
                rights_of(client.node, Peer(same), "audit")
            assert (await client("GET", "/channels")).status == 200

    asyncio.run(main())
