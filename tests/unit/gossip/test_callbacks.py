"""Callbacks of an application: coroutine functions are run, and a result that is not documented is an error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.gossip.conftest import key, memory_log

from ropewalk import gossip
from ropewalk.errors import Denied, InvalidEnvelope, InvalidKey, RopewalkError, Usage
from ropewalk.gossip.core.message import cid_of, sign
from ropewalk.gossip.core.profiles import V13
from ropewalk.kernel.keys import SigningKey

TOPIC = "com.example"


def opened(**options: Any) -> gossip.GossipLog:
    return gossip.open(TOPIC, signer=key(1), **options)


async def deny(_history: Any, _signed: Any) -> None:
    await asyncio.sleep(0)
    raise Denied("closed")


async def refuse(_payload: Any) -> bool:
    await asyncio.sleep(0)
    return False


async def fail(*_given: Any) -> None:
    await asyncio.sleep(0)
    raise InvalidEnvelope("out of range")


@pytest.mark.parametrize(
    ("options", "error"),
    [({"access": deny}, Denied), ({"validate": refuse}, InvalidEnvelope), ({"apply": fail}, InvalidEnvelope)],
)
def test_async_rules_are_enforced(options: dict[str, Any], error: type[RopewalkError]):
    with opened(**options) as log:
        with pytest.raises(error):
            log.append({"n": 1})
        (outcome,) = log.insert_many([sign(V13, key(2), TOPIC, (), 1).raw])
        assert (outcome.status, type(outcome.error)) == ("refused", error)
        assert len(log) == 0


def test_async_apply_result_is_its_value():
    with opened() as other:
        first = other.append(1)
        raw = other.get(first.id)
        assert raw is not None

    seen = []

    async def apply(id: str, _signature: Any, message: Any) -> int:
        await asyncio.sleep(0)
        seen.append((message.payload, log.get(id) is None, len(log)))  # reads its own transaction
        return 2 * int(message.payload)

    with opened(apply=apply) as log:
        assert [stored.result for stored in log.append_many([1, 2])] == [2, 4]
        assert seen == [(1, True, 0), (2, True, 1)]
        assert log.replay() == 2
        assert len(seen) == 4


def test_async_rules_run_inside_a_running_loop():
    async def main() -> None:
        with opened(access=deny) as log, pytest.raises(Denied):
            log.append(1)
        assert asyncio.get_running_loop().is_running()
        await asyncio.sleep(0)

    asyncio.run(main())


@pytest.mark.parametrize("result", [False, True, "no", 0])
def test_access_result_other_than_none_is_error(result: Any):
    log = memory_log(access=lambda _history, _signed: result)
    with pytest.raises(Usage, match="must return None or raise Denied"):
        log.append(1)
    assert len(log) == 0


@pytest.mark.parametrize("result", [None, 1, 0, "yes", []])
def test_validate_result_other_than_bool_is_error(result: Any):
    log = memory_log(validate=lambda _payload: result)
    with pytest.raises(Usage, match="must return True or False"):
        log.append(1)
    assert len(log) == 0


@pytest.mark.parametrize("name", ["access", "apply", "validate"])
def test_engine_alone_refuses_coroutines(name: str):
    rules: dict[str, Any] = {"access": deny, "apply": fail, "validate": refuse}
    log = memory_log(TOPIC, **{name: rules[name]})
    with pytest.raises(Usage, match=f"{name} returned a coroutine"):
        log.append(1)
    assert len(log) == 0


def test_async_listener_is_refused():
    async def listen(_event: Any) -> None: ...

    with pytest.raises(Usage, match="plain function"):
        memory_log().on(listen)  # type: ignore[arg-type]


def test_open_names_a_misspelt_option():
    with pytest.raises(Usage, match="no option 'acess'") as refused:
        gossip.open(TOPIC, acess=deny)  # type: ignore[call-overload]
    assert "'access'" in refused.value.advice_now


def test_insert_takes_signature_and_message():
    made = sign(V13, key(2), TOPIC, (), {"n": 1})
    log = memory_log()
    assert log.insert(made.signature, made.message).status == "stored"
    assert log.insert(made.raw).status == "known"
    for given in ((made.signature,), (made.message, made.signature), (made.raw, made.message), (made,)):
        with pytest.raises(Usage, match="a GossipSignature and a GossipMessage; got"):
            log.insert(*given)


def test_signature_names_the_message_cid():
    made = sign(V13, key(2), TOPIC, (), {"n": 1})
    log = memory_log()
    log.insert(made.raw)
    stored = log.get(made.id)
    assert stored is not None
    assert stored.signature.cid == cid_of(stored) == made.signature.cid
    assert (
        gossip.GossipSignature(*made.signature) == made.signature
    )  # one made by hand is equal, and knows no message
    assert gossip.GossipSignature(*made.signature).cid is None


def test_secp256k1_in_default_profile_has_advice():
    with pytest.raises(InvalidKey) as refused:
        memory_log().append(1, signer=SigningKey.generate("secp256k1", bytes([7] * 32)))
    assert "v0.6" in refused.value.advice_now
