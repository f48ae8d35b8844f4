"""What reads a whole log: verifications and bundles."""

from __future__ import annotations

import asyncio
import threading

from tests.asgi import Client, served
from tests.waiting import LIMIT_S

from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.envelope.envelope import build
from ropewalk.server.http import gossip_routes

EVENT = {"type": "t", "payload": {}}


def left_over(client: Client) -> list[object]:
    return list((client.node.place.home / "server" / "bundles").iterdir())


def test_bundle_leaves_no_file(tmp_path):
    key = SigningKey.generate("ed25519", bytes(range(32)))
    made = build(
        key,
        domain="ops",
        event_class="Observation",
        event_type="disk.full",
        payload={"n": 1},
        timestamp="2024-11-01T12:00:00Z",
    )

    async def main() -> None:
        async with served(tmp_path) as client:
            create_channel(client.node.place.home, "empty", "node", client.node.signing_key("node").public)
            assert (await client("GET", "/channels/empty/bundle")).status == 404
            assert left_over(client) == []
            assert (await client("POST", "/channels/audit/envelopes", body=made.raw)).status == 201
            answer = await client("GET", "/channels/audit/bundle")
            assert answer.status == 200 and answer.body.startswith(b"\x28\xb5\x2f\xfd")
            assert (await client("GET", "/channels/audit/bundle?from=9&to=12")).status >= 400
            assert left_over(client) == []

    asyncio.run(main())


def test_reads_pass_verifications(tmp_path, monkeypatch):
    release = threading.Event()
    verify = gossip_routes._verify

    def slow(*arguments):
        assert release.wait(LIMIT_S)
        return verify(*arguments)

    monkeypatch.setattr(gossip_routes, "_verify", slow)

    async def main() -> None:
        async with served(tmp_path) as client:
            await client("POST", "/shiplog/prod/events", EVENT)
            checks = [asyncio.create_task(client("GET", "/verify?log=shiplog/prod")) for _ in range(10)]
            await asyncio.sleep(0)
            try:
                page = await asyncio.wait_for(client("GET", "/shiplog/prod/events"), 20)
                assert page.status == 200
            finally:
                release.set()
            assert {answer.status for answer in await asyncio.gather(*checks)} == {200}

    asyncio.run(main())
