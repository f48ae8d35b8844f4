"""Messages that wait for parents: what may wait, for how long, and what a full table means for honest messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.gossip.conftest import key, memory_log

from ropewalk import gossip
from ropewalk.errors import Denied, InvalidEnvelope, TooLarge
from ropewalk.gossip.core.ids import Key
from ropewalk.gossip.core.message import SignedMessage, sign
from ropewalk.gossip.core.pending import PendingLimits
from ropewalk.gossip.core.profiles import V13
from ropewalk.gossip.core.verify import verify_log

TOPIC = "com.example"
ADA, EVE = key(1), key(2)


def orphans(signer: Any, count: int, payload: Any = 1) -> list[SignedMessage]:
    """Messages whose parents nobody has."""
    below = (Key(V13.code.encode(1) + bytes([n]) * 19) for n in range(count))
    return [sign(V13, signer, TOPIC, (parent,), payload) for parent in below]


def chain(count: int) -> list[bytes]:
    log = memory_log()
    return [log.get(stored.id).raw for stored in log.append_many(range(count))]  # type: ignore[union-attr]


def test_full_pending_is_an_error_for_the_message():
    log = memory_log(pending_limits=PendingLimits(count=1))
    raws = chain(4)
    assert log.insert(raws[3]).pending
    (outcome,) = log.insert_many([raws[2]])
    assert (outcome.status, type(outcome.error)) == ("refused", TooLarge)
    assert outcome.missing and not log.has(outcome.id)
    assert [id for id, _ in log.pending()] != [outcome.id]


def test_batch_out_of_order_needs_no_pending_room():
    log = memory_log(pending_limits=PendingLimits(count=0))
    outcomes = log.insert_many(reversed(chain(5)))
    assert [(each.status, each.error) for each in outcomes] == [("stored", None)] * 5
    assert len(log) == 5 and log.pending() == []


def test_closed_log_keeps_strangers_out_of_pending():
    log = memory_log(access=gossip.owners(ADA.public.did()))
    (stranger,), (owner,) = orphans(EVE, 1), orphans(ADA, 1)
    with pytest.raises(Denied):
        log.insert(stranger.raw)
    (outcome,) = log.insert_many([stranger.raw])
    assert (outcome.status, type(outcome.error)) == ("refused", Denied)
    assert log.insert(owner.raw).pending
    assert len(log.pending()) == 1


def test_validate_is_asked_before_waiting():
    log = memory_log(validate=lambda payload: payload == "good")
    with pytest.raises(InvalidEnvelope):
        log.insert(orphans(EVE, 1, "bad")[0].raw)
    assert log.insert(orphans(EVE, 1, "good")[0].raw).pending


def test_rule_that_needs_a_missing_parent_waits():
    log = memory_log(access=gossip.sessions(ADA.public.did()))
    session = sign(V13, ADA, TOPIC, (), gossip.make_session(ADA, TOPIC, EVE.public.did(), 9))
    delegate = sign(V13, EVE, TOPIC, (session.key,), {"via": session.id})
    assert log.insert(delegate.raw).pending  # the session that allows it has not arrived
    assert log.insert(session.raw).status == "stored"
    assert log.has(delegate.id) and log.pending() == []
    with pytest.raises(Denied):
        log.insert(orphans(EVE, 1)[0].raw)  # names no session: nothing that arrives can allow it


def test_one_author_cannot_fill_pending():
    log = memory_log(pending_limits=PendingLimits(per_author=2))
    first, second, third = orphans(EVE, 3)
    assert log.insert(first.raw).pending and log.insert(second.raw).pending
    with pytest.raises(TooLarge, match=f"2 messages of {EVE.public.did()}"):
        log.insert(third.raw)
    assert log.insert(orphans(ADA, 1)[0].raw).pending
    assert log.drop_pending([first.id]) == 1
    assert log.insert(third.raw).pending  # the place that was given back is free
    assert verify_log(log).ok


def test_quota_is_given_back_when_parents_come():
    log = memory_log(pending_limits=PendingLimits(per_author=1))
    raws = chain(3)
    assert log.insert(raws[1]).pending
    assert log.insert(raws[0]).status == "stored"
    assert len(log) == 2
    other = memory_log()
    other.append_many(range(10))
    assert log.insert(orphans(key(1), 1)[0].raw).pending


@pytest.fixture
def clock() -> Iterator[list[int]]:
    yield [1_000_000]


def test_expired_messages_make_room(clock: list[int]):
    log = memory_log(pending_limits=PendingLimits(count=2, age_s=100), now_s=lambda: clock[0])
    old = orphans(EVE, 2)
    for each in old:
        log.insert(each.raw)
    fresh = orphans(ADA, 2)
    with pytest.raises(TooLarge):
        log.insert(fresh[0].raw)
    clock[0] += 101
    assert log.insert(fresh[0].raw).pending
    assert [id for id, _ in log.pending()] == [fresh[0].id]
    assert verify_log(log).ok


def test_drop_pending_by_age_and_all(clock: list[int]):
    log = memory_log(now_s=lambda: clock[0])
    first, second, third = orphans(EVE, 3)
    log.insert(first.raw)
    clock[0] += 50
    log.insert(second.raw)
    log.insert(third.raw)
    assert log.drop_pending(older_than_s=50) == 1
    assert {id for id, _ in log.pending()} == {second.id, third.id}
    assert log.drop_pending() == 2
    assert log.pending() == []
    assert verify_log(log).ok


def test_pending_quota_survives_a_restart(tmp_path: Path):
    with gossip.open(TOPIC, tmp_path / "log", pending_limits=PendingLimits(per_author=1)) as log:
        assert log.insert(orphans(EVE, 1)[0].raw).pending
    with (
        gossip.open(TOPIC, tmp_path / "log", pending_limits=PendingLimits(per_author=1)) as log,
        pytest.raises(TooLarge),
    ):
        log.insert(orphans(EVE, 2)[1].raw)
