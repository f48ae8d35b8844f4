"""Requests with an `Idempotency-Key`: one key, one append, also for requests that arrive at the same time."""

from __future__ import annotations

import asyncio

from tests.asgi import served

from ropewalk.kernel import cbor, jcs
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.envelope.envelope import build

EVENT = {"type": "t", "payload": {}}
KEY = {"idempotency-key": "k1"}


def test_concurrent_requests_with_a_key_append_once(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as client:
            calls = [client("POST", "/shiplog/prod/events", [EVENT, 3], headers=KEY) for _ in range(6)]
            answers = await asyncio.gather(*calls)
            assert {answer.body for answer in answers} == {answers[0].body}
            assert [row.get("status") for row in answers[0].json["receipts"]] == [None, 400]
            assert len(client.node.log.read("prod").events) == 1

    asyncio.run(main())


def test_key_with_two_bodies_at_once_is_refused(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as client:
            bodies = [EVENT, {**EVENT, "type": "u"}]
            calls = [client("POST", "/shiplog/prod/events", each, headers=KEY) for each in bodies]
            assert sorted(answer.status for answer in await asyncio.gather(*calls)) == [201, 422]
            assert len(client.node.log.read("prod").events) == 1

    asyncio.run(main())


def test_replayed_refusal_keeps_the_code_of_s1(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as client:
            calls = [client("POST", "/messages?topic=jobs", [{"payload": {}}], headers=KEY) for _ in range(2)]
            first, again = [await each for each in calls]
            assert first.json == again.json
            assert first.json["receipts"][0]["code"] == "invalid_envelope"

    asyncio.run(main())


def test_concurrent_gossip_with_a_key_appends_once(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as client:
            calls = [client("POST", "/gossip/com.x/messages", {"payload": 1}, headers=KEY) for _ in range(4)]
            answers = await asyncio.gather(*calls)
            assert {answer.status for answer in answers} == {201} and len(
                {each.body for each in answers}
            ) == 1
            again = await client("POST", "/gossip/com.x/messages", {"payload": 1}, headers=KEY)
            assert again.status == 201
            assert len((await client("GET", "/gossip/com.x/messages")).json["messages"]) == 1

    asyncio.run(main())


def test_keyed_cbor_array_is_replayed_as_an_array(tmp_path):
    key = SigningKey.generate("ed25519", bytes(range(32)))
    made = build(
        key,
        domain="ops",
        event_class="Observation",
        event_type="disk.full",
        payload={"n": 1},
        timestamp="2024-11-01T12:00:00Z",
    )
    sent = {**KEY, "content-type": "application/cbor"}

    async def main() -> None:
        async with served(tmp_path) as client:
            raw = cbor.encode([jcs.parse(made.raw)])
            first = await client("POST", "/channels/audit/envelopes", body=raw, headers=sent)
            again = await client("POST", "/channels/audit/envelopes", body=raw, headers=sent)
            assert first.status == again.status == 201, first
            assert first.json == again.json and len(first.json["receipts"]) == 1

    asyncio.run(main())
