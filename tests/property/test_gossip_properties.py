"""Gossip for any payload, any clock, any graph and any order of arrival."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ropewalk.disk.memory_tables import MemoryTables
from ropewalk.gossip.core import dag_json
from ropewalk.gossip.core.ids import CLOCKS, id_of, key_of
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.message import SignedMessage, decode, sign, verify
from ropewalk.gossip.core.profiles import PROFILES, V13
from ropewalk.gossip.core.table import TABLES
from ropewalk.gossip.core.verify import verify_log
from ropewalk.gossip.sync.session import sync_both
from ropewalk.kernel.cbor import Link
from ropewalk.kernel.digest import DAG_CBOR, cid
from ropewalk.kernel.keys import SigningKey

TOPIC = "com.example"
KEYS = [SigningKey.generate("ed25519", bytes([n + 1] * 32)) for n in range(3)]

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary()
    | st.binary(max_size=8).map(lambda raw: Link(cid(DAG_CBOR, raw)))
)
names = st.text(max_size=8).filter(lambda name: name != "/")
payloads = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(["v0.6", "v0.13"]), st.data())
def test_clock_codes_round_trip_and_order_sorts(name: Any, data: st.DataObject):
    code = CLOCKS[name]
    clocks = data.draw(st.lists(st.integers(0, code.clock_max), min_size=2, max_size=6))
    keys = [(code.encode(clock) + bytes(20))[:20] for clock in clocks]
    assert [code.clock(key) for key in keys] == clocks
    assert [code.clock(key) for key in sorted(keys, key=code.order)] == sorted(clocks)
    assert all(code.from_order(code.order(key)) == key for key in keys)


@settings(deadline=None, max_examples=100)
@given(st.binary(min_size=20, max_size=20))
def test_ids_round_trip(key: bytes):
    assert key_of(id_of(key)) == key


@settings(deadline=None, max_examples=120)
@given(payloads, st.sampled_from([("v0.6", "dag-cbor"), ("v0.13", "dag-cbor"), ("v0.13", "dag-json")]))
def test_any_payload_is_signed_read_and_verified(payload: Any, form: Any):
    name, codec = form
    made = sign(PROFILES[name], KEYS[0], TOPIC, (), payload, codec)
    again = decode(PROFILES[name], TOPIC, made.raw)
    verify(PROFILES[name], again)
    assert again == made
    assert again.raw[again.payload_at :] == made.raw[made.payload_at :]


@settings(deadline=None, max_examples=120)
@given(payloads)
def test_dag_json_reads_back_what_cbor_reads_back(payload: Any):
    settled = sign(V13, KEYS[0], TOPIC, (), payload).message.payload
    assert dag_json.from_json(dag_json.to_json(settled)) == settled


def graph(seed: int, size: int) -> list[SignedMessage]:
    chance = random.Random(seed)
    made: list[SignedMessage] = []
    for n in range(size):
        recent = made[-6:]
        parents = chance.sample(recent, chance.randint(0, min(3, len(recent))))
        made.append(sign(V13, chance.choice(KEYS), TOPIC, tuple(one.key for one in parents), n))
    return made


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 25), st.randoms(use_true_random=False))
def test_any_order_of_arrival_ends_in_the_same_log(seed: int, size: int, chance: random.Random):
    messages = graph(seed, size)
    straight = GossipLog(MemoryTables(TABLES), TOPIC)
    straight.insert_many(signed.raw for signed in messages)
    mixed = GossipLog(MemoryTables(TABLES), TOPIC)
    shuffled = messages * 2  # everything arrives twice
    chance.shuffle(shuffled)
    for signed in shuffled:
        mixed.insert(signed.raw)
    assert mixed.root() == straight.root()
    assert mixed.heads() == straight.heads()
    assert mixed.pending() == []
    assert [one.id for one in mixed.iterate()] == [one.id for one in straight.iterate()]


class TwoPeers(RuleBasedStateMachine):
    """Two logs against the simplest model of a log: a set of messages."""

    def __init__(self) -> None:
        super().__init__()
        self.logs = [
            GossipLog(MemoryTables(TABLES), TOPIC, signer=KEYS[n], index_ancestors=bool(n)) for n in range(2)
        ]
        self.model: list[set[str]] = [set(), set()]

    @rule(who=st.integers(0, 1), payloads=st.lists(st.integers(0, 9), min_size=1, max_size=3))
    def append(self, who: int, payloads: list[int]) -> None:
        self.model[who] |= {stored.id for stored in self.logs[who].append_many(payloads)}

    @rule(who=st.integers(0, 1), pick=st.integers(0, 50))
    def push_one(self, who: int, pick: int) -> None:
        messages = list(self.logs[who].iterate())
        if not messages:
            return
        signed = messages[pick % len(messages)]
        other = self.logs[1 - who]
        outcome = other.insert(signed.raw)
        known = self.model[1 - who]
        if signed.id in known:
            assert outcome.status == "known"
        elif set(signed.message.parents) <= known:
            assert outcome.status == "stored"
        else:
            assert outcome.status == "pending"
        self.model[1 - who] = {one.id for one in other.iterate()}
        assert known <= self.model[1 - who] <= known | self.model[who]

    @rule()
    def sync(self) -> None:
        sync_both(*self.logs)
        self.model = [self.model[0] | self.model[1] for _ in range(2)]
        assert self.logs[0].root() == self.logs[1].root()

    @rule(who=st.integers(0, 1))
    def restart(self, who: int) -> None:
        self.logs[who] = GossipLog(self.logs[who].table, TOPIC, signer=KEYS[who])

    @invariant()
    def logs_hold_what_the_model_holds(self) -> None:
        for log, model in zip(self.logs, self.model, strict=True):
            assert {signed.id for signed in log.iterate()} == model
            assert len(log) == len(model)

    def teardown(self) -> None:
        for log in self.logs:
            report = verify_log(log)
            assert report.ok, report


TestTwoPeers = TwoPeers.TestCase
TestTwoPeers.settings = settings(deadline=None, max_examples=20, stateful_step_count=15)
