"""The Python API: typed logs, signers, payloads of tuples and dataclasses, and the log for asyncio."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass
from typing import NamedTuple, assert_type

import pytest
from tests.unit.gossip.conftest import key
from tests.waiting import LIMIT_S

from ropewalk import gossip
from ropewalk.errors import Denied, InvalidCbor, InvalidKey
from ropewalk.gossip.core.message import encode_payload

TOPIC = "com.example"


@dataclass(frozen=True)
class Move:
    player: str
    at: tuple[int, int]


class Point(NamedTuple):
    x: int
    y: int


def test_tuples_and_dataclasses_are_payloads():
    with gossip.open(TOPIC, signer=key(1)) as log:
        log.append(Move("ada", (1, 2)))
        log.append((Point(1, 2), {"moves": (Move("bob", (3, 4)),)}))
        assert [signed.message.payload for signed in log.iterate()] == [
            {"player": "ada", "at": [1, 2]},
            [[1, 2], {"moves": [{"player": "bob", "at": [3, 4]}]}],
        ]


def test_payloads_without_canonical_form_are_refused():
    deep: list[object] = []
    deep.append(deep)
    for wrong in ({1, 2}, Move, object(), (float("nan"),), deep, (deep,)):
        with pytest.raises(InvalidCbor):
            encode_payload(wrong)


def test_signers_need_no_entropy_argument():
    one, two = gossip.Ed25519Signer(), gossip.Ed25519Signer()
    assert one.public.did() != two.public.did()
    assert pickle.loads(pickle.dumps(one)).public == one.public
    with gossip.open(TOPIC, profile="v0.6", signer=gossip.Secp256k1Signer()) as log:
        assert log.append(1).signature.public_key.startswith("did:key:zQ3s")
        assert log.append(2, signer=one).signature.public_key == one.public.did()
    with gossip.open(TOPIC) as log, pytest.raises(InvalidKey) as refused:
        log.append(1, signer=gossip.Secp256k1Signer())
    assert "v0.6" in (refused.value.advice_now or "")


def test_open_is_generic_in_payload_and_result():
    def count(_id: str, _signature: gossip.GossipSignature, message: gossip.GossipMessage[str]) -> int:
        return len(message.payload)

    async def later(id: str, signature: gossip.GossipSignature, message: gossip.GossipMessage[str]) -> int:
        return count(id, signature, message)

    for log in (
        gossip.open(TOPIC, signer=key(1), apply=count),
        gossip.open(TOPIC, signer=key(1), apply=later),
    ):
        assert_type(log, gossip.GossipLog[str, int])
        stored = log.append("four")
        assert_type(stored.result, int)
        assert stored.result == 4


def test_async_log_has_the_verbs_of_the_log():
    async def run() -> None:
        async with (
            gossip.AsyncLog(gossip.open(TOPIC, signer=key(1))) as one,
            gossip.AsyncLog(gossip.open(TOPIC, signer=key(2))) as two,
        ):
            first = await one.append({"n": 1})
            assert await one.has(first.id) and (await one.get(first.id)) is not None
            assert (await two.insert(first.signature, first.message)).status == "stored"
            assert await one.get_clock() == (2, [first.id]) and await one.heads() == [first.id]
            async with one.serve() as server, two.connect(server.url) as peer:
                await peer.synced(LIMIT_S)
                following = two.follow()
                assert (await anext(following))[1].id == first.id
                second = await one.append({"n": 2})
                async with asyncio.timeout(LIMIT_S):
                    assert (await anext(following))[1].id == second.id
            assert await one.root() == await two.root()
            assert await one.count() == 2
            assert await one.get_ancestors(second.id, 1) == [first.id]
            assert await one.is_ancestor(second.id, first.id)
            assert await one.pending() == [] and await one.drop_pending() == 0
            assert await one.replay() == 2
            assert [signed.id async for signed in one.iterate(reverse=True)] == [second.id, first.id]

    asyncio.run(run())


def test_async_log_iterates_in_steps():
    async def run() -> None:
        async with gossip.AsyncLog(gossip.open(TOPIC, signer=key(1))) as log:
            stored = [each.id for each in await log.append_many(range(600))]
            assert [signed.id async for signed in log.iterate()] == stored
            lower, upper = gossip.Bound(stored[10]), gossip.Bound(stored[590], inclusive=False)
            found = [signed.id async for signed in log.iterate(lower, upper, reverse=True)]
            assert found == stored[10:590][::-1]

    asyncio.run(run())


def test_async_log_raises_what_rules_raise():
    async def read_only(_history: object, signed: gossip.SignedMessage) -> None:
        raise Denied("read only")

    async def run() -> None:
        async with gossip.AsyncLog(gossip.open(TOPIC, signer=key(1), access=read_only)) as log:
            with pytest.raises(Denied, match="read only"):
                await log.append(1)

    asyncio.run(run())
