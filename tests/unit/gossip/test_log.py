"""The log: append, insert, read, refuse, wait, and come back after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.prolly import build
from tests.unit.gossip.conftest import ground, key, memory_log, raws
from tests.waiting import together

from ropewalk.disk.lmdb_tables import LmdbTables
from ropewalk.disk.memory_tables import MemoryTables
from ropewalk.errors import (
    Conflict,
    Damaged,
    Denied,
    Invalid,
    InvalidEnvelope,
    InvalidKey,
    InvalidName,
    NotFound,
    SigInvalid,
    TooLarge,
)
from ropewalk.gossip.core import message, writing
from ropewalk.gossip.core.access import make_session, owners, sessions
from ropewalk.gossip.core.events import Committed, Event, MessageRefused, Stored
from ropewalk.gossip.core.ids import key_of
from ropewalk.gossip.core.log import Bound, Cursor, GossipLog
from ropewalk.gossip.core.message import GossipMessage, SignedMessage, assemble, decode, sign
from ropewalk.gossip.core.pending import PendingLimits
from ropewalk.gossip.core.profiles import PROFILES, V13, Profile
from ropewalk.gossip.core.table import TABLES
from ropewalk.gossip.core.verify import verify_log
from ropewalk.kernel.keys import SigningKey

BOTH = pytest.mark.parametrize("profile", ["v0.6", "v0.13"])


def state(log: GossipLog) -> tuple[object, ...]:
    return log.root(), log.heads(), len(log), raws(log)


@BOTH
@pytest.mark.parametrize("size", ["small", "large"])
def test_replicas_go_through_the_recorded_history_step_by_step(profile, size, vector, make_table):
    data = vector(f"{profile}-dag-{size}")
    replicas: dict[int, GossipLog] = {}
    known = {row["id"]: bytes.fromhex(row["signed_message_cbor"]) for row in data["messages"]}
    for event in data["events"]:
        number = event["replica"]
        if number not in replicas:
            replicas[number] = GossipLog(make_table(), data["topic"], profile=profile, index_ancestors=True)
        log = replicas[number]
        ids = [event["id"]] if event["op"] == "append" else event["ids"]
        assert [log.insert(known[id]).status for id in ids] == ["stored"] * len(ids)
        assert log.get_clock() == (event["next_clock"], event["heads"])
    merged = GossipLog(make_table(), data["topic"], profile=profile, index_ancestors=True)
    merged.insert_many(known[row["id"]] for row in data["messages"])
    found = [log.root() for _, log in sorted(replicas.items())]
    roots = [(row["level"], row["hash"]) for row in data["roots"]]
    assert [(root.level, root.hash.hex()) for root in [*found, merged.root(), merged.root()]] == roots
    assert merged.get_clock() == (data["merged_next_clock"], data["merged_heads"])
    assert [signed.id for signed in merged.iterate()] == [row["id"] for row in data["messages"]]


@BOTH
def test_chains_come_to_the_recorded_roots(profile, vector):
    data = vector(f"{profile}-chains")
    signer = SigningKey("ed25519", bytes.fromhex(data["private_key"]))
    for chain in data["chains"]:
        if chain["store"] != "memory":
            continue
        log = memory_log(data["topic"], profile=profile, signer=signer)
        log.append_many({"index": i, "text": f"shared-{i}"} for i in range(chain["n"]))
        root = log.root()
        assert (root.level, root.hash.hex()) == (chain["root_level"], chain["root_hash"])
        assert log.heads() == ([chain["last_id"]] if chain["last_id"] else [])
        for row in chain.get("ancestors", []):
            assert log.get_ancestors(chain["last_id"], row["at_or_before"]) == row["result"]


def test_an_append_stands_on_all_heads(make_table):
    log = GossipLog(make_table(), "com.example", signer=key(1))
    assert log.get_clock() == (1, [])
    one = log.append({"n": 1})
    other = sign(V13, key(2), "com.example", (), {"n": 2})
    assert log.insert(other.raw).status == "stored"
    assert sorted(log.heads()) == sorted([one.id, other.id])
    two = log.append({"n": 3})
    assert (two.message.clock, sorted(two.message.parents)) == (2, sorted([one.id, other.id]))
    assert log.heads() == [two.id]
    found = log.get(two.id)
    assert found is not None
    assert (found.message, found.signature) == (two.message, two.signature)
    assert log.has(two.id)
    assert log.get("0" * 32) is None
    assert not log.has("0" * 32)
    assert len(log) == 3


def test_messages_are_given_in_causal_order_within_bounds(make_table):
    log = GossipLog(make_table(), "com.example", signer=key(1))
    ids = [log.append(n).id for n in range(10)]
    assert [signed.id for signed in log.iterate()] == ids
    assert [signed.id for signed in log.iterate(reverse=True)] == ids[::-1]

    def between(lower, upper, **options):
        return [signed.id for signed in log.iterate(lower, upper, **options)]

    assert between(Bound(ids[3]), Bound(ids[6])) == ids[3:7]
    assert between(Bound(ids[3], inclusive=False), Bound(ids[6], inclusive=False)) == ids[4:6]
    assert between(Bound(ids[3], inclusive=False), None, reverse=True) == ids[:3:-1]
    assert between(None, Bound(ids[2])) == ids[:3]
    assert between(Bound(ids[6]), Bound(ids[3])) == []


@BOTH
def test_iteration_goes_by_clock_where_raw_v06_keys_do_not_sort(profile):
    log = memory_log(profile=profile)
    log.insert_many(sign(log.profile, key(n), log.topic, (), n).raw for n in range(3))
    ground(log, 16_380)
    log.append_many(range(10))
    clocks = [1, 1, 1, *range(16_380, 16_391)]
    assert [signed.message.clock for signed in log.iterate()] == clocks
    assert [signed.message.clock for signed in log.iterate(reverse=True)] == clocks[::-1]
    head = log.heads()[0]
    assert [signed.id for signed in log.iterate(Bound(head), None)] == [head]
    if profile == "v0.6":
        keys = [signed.key for signed in log.iterate()]
        assert sorted(keys) != keys


def test_a_late_message_reaches_a_reader_past_its_clock(make_table):
    log = GossipLog(make_table(), "com.example", signer=key(1))
    log.append_many(range(5))
    *_, (cursor, _) = log.arrivals()
    late = sign(V13, key(2), "com.example", (), "late")
    log.insert(late.raw)
    assert [signed.id for _, signed in log.arrivals(cursor)] == [late.id]
    assert next(log.iterate()).message.clock == 1
    *_, (cursor, _) = log.arrivals()
    assert list(log.arrivals(cursor)) == []


def test_an_arrival_whose_message_is_gone_is_damage(make_table):
    log = GossipLog(make_table(), "com.example", signer=key(1))
    first = log.append_many("ab")[0]
    log.table.transact(lambda change: change.delete("messages", key_of(first.id)))
    with pytest.raises(Damaged, match=first.id):
        list(log.arrivals())
    with pytest.raises(Damaged, match=first.id):
        log.get_ancestors(log.heads()[0], 1)


@pytest.mark.parametrize(
    "text", ["", "7", "arrival:", "arrival:x", "arrival:-1", "other:1", "arrival:" + "9" * 30]
)
def test_what_is_no_cursor_is_refused(text):
    with pytest.raises(Invalid):
        next(memory_log().arrivals(Cursor(text)), None)


def test_a_duplicate_insert_changes_nothing(make_table):
    applied = []
    log = GossipLog(make_table(), "com.example", apply=lambda id, *_: applied.append(id))
    one = sign(V13, key(1), "com.example", (), 1)
    two = sign(V13, key(1), "com.example", (one.key,), 2)
    log.insert_many([one.raw, two.raw])
    before = state(log)
    assert log.insert(one.raw).status == "known"
    assert [outcome.status for outcome in log.insert_many([one.raw, two.raw, one.raw])] == ["known"] * 3
    assert applied == [one.id, two.id]
    assert state(log) == before
    assert log.heads() == [two.id]


def test_what_apply_raises_keeps_the_message_out_whole(make_table):
    calls = []

    def apply(id, signature, message):
        calls.append(message.payload)
        if message.payload == "bad":
            raise ValueError("no")
        return len(calls)

    log = GossipLog(make_table(), "com.example", signer=key(1), apply=apply)
    assert log.append("good").result == 1
    before = state(log)
    with pytest.raises(ValueError, match="no"):
        log.append("bad")
    with pytest.raises(ValueError, match="no"):
        log.append_many(["good", "good", "bad"])
    with pytest.raises(ValueError, match="no"):
        log.insert(sign(V13, key(2), "com.example", (), "bad").raw)
    assert state(log) == before
    assert log.append("good").message.clock == 2


def test_a_refused_message_does_not_hold_up_its_batch(make_table):
    def apply(id, signature, message):
        if message.payload == "bad":
            raise ValueError("no")

    log = GossipLog(make_table(), "com.example", apply=apply)
    made = [sign(V13, key(n), "com.example", (), payload) for n, payload in enumerate(["a", "bad", "b"])]
    outcomes = log.insert_many([signed.raw for signed in made])
    assert [outcome.status for outcome in outcomes] == ["stored", "refused", "stored"]
    assert isinstance(outcomes[1].error, ValueError)
    assert sorted(log.heads()) == sorted([made[0].id, made[2].id])


def test_signature_verified_before_transaction(monkeypatch):
    table = MemoryTables(TABLES)
    applied: list[object] = []
    log = GossipLog(
        table, "com.example", apply=lambda id, signature, message: applied.append(message.payload)
    )
    good = sign(V13, key(2), "com.example", (), 1)
    bad = sign(V13, key(2), "com.example", (), 2)
    opened: list[object] = []
    transact = table.transact

    def watched(body):
        opened.append(body)
        return transact(body)

    monkeypatch.setattr(table, "transact", watched)
    with pytest.raises(SigInvalid):
        log.insert(bad.raw.replace(bad.signature.signature, good.signature.signature))
    assert opened == [] and applied == []
    assert log.insert(good.raw).status == "stored"
    assert opened and applied == [1]


def test_message_with_parents_is_committed(make_table):
    table = make_table()
    applied: list[object] = []
    log = GossipLog(
        table, "com.example", apply=lambda id, signature, message: applied.append(message.payload)
    )
    parent = sign(V13, key(1), "com.example", (), "parent")
    child = sign(V13, key(2), "com.example", (parent.key,), "child")
    log.insert(parent.raw)
    done = log.insert(child.raw)
    assert (done.id, done.status, done.pending) == (child.id, "stored", False)
    assert applied == ["parent", "child"]
    again = GossipLog(table, "com.example")
    assert again.heads() == [child.id] and len(again) == 2


def test_one_bad_signature_stores_nothing_of_a_batch():
    log = memory_log()
    good = sign(V13, key(2), "com.example", (), 1)
    bad = sign(V13, key(2), "com.example", (), 2)
    swapped = bad.raw.replace(bad.signature.signature, good.signature.signature)
    with pytest.raises(SigInvalid):
        log.insert_many([good.raw, swapped])
    assert len(log) == 0


def test_apply_sees_what_its_own_batch_stored(make_table):
    seen: list[list[object]] = []

    def apply(id, signature, message):
        found = [log.get(parent) for parent in message.parents]
        seen.append([parent.message.payload for parent in found if parent is not None])
        with pytest.raises(Conflict):
            log.append("from inside")

    log = GossipLog(make_table(), "com.example", signer=key(1), apply=apply)
    log.append_many("abc")
    assert seen == [[], ["a"], ["b"]]


def test_events_come_after_the_commit_in_order(make_table):
    log = GossipLog(make_table(), "com.example", signer=key(1), apply=lambda *_: 7)
    heard = []
    stop = log.on(lambda event: heard.append((type(event), len(log))))
    only: list[Event] = []
    log.on(only.append, Committed)
    log.append_many("ab")
    assert heard == [(Stored, 2), (Stored, 2), (Committed, 2)]
    assert only == [Committed(log.root())]
    stop()
    log.append("c")
    assert len(heard) == 3


def test_a_listener_that_raises_does_not_undo_the_append(caplog):
    log = memory_log()

    def fails(event: Event) -> None:
        raise ValueError("no")

    log.on(fails, Stored)
    assert log.has(log.append("x").id)
    assert "listener" in caplog.text


def test_a_message_without_parents_waits_and_is_released_depth_first(make_table):
    order = []
    log = GossipLog(make_table(), "com.example", apply=lambda id, s, m: order.append(m.payload))
    a = sign(V13, key(1), "com.example", (), "a")
    b = sign(V13, key(1), "com.example", (a.key,), "b")
    b2 = sign(V13, key(2), "com.example", (a.key,), "b2")
    c = sign(V13, key(1), "com.example", (b.key,), "c")
    d = sign(V13, key(1), "com.example", (c.key, b2.key), "d")
    for waiting in (d, c, b2, b):
        assert log.insert(waiting.raw).pending
    assert log.insert(d.raw).pending  # again: still one
    assert len(log) == 0
    assert log.heads() == []
    assert {id: set(missing) for id, missing in log.pending()} == {
        b.id: {a.id}, b2.id: {a.id}, c.id: {b.id}, d.id: {b2.id, c.id}
    }  # fmt: skip
    assert log.insert(a.raw).status == "stored"
    assert log.pending() == []
    first, second = ("b", "b2") if b.key < b2.key else ("b2", "b")
    middle = {"b": ["c"], "b2": []}
    assert order == ["a", first, *middle[first], second, *middle[second], "d"]
    assert log.heads() == [d.id]
    with log.view() as view:
        assert view.count("waiting") == 0
        assert view.get("meta", b"pending_bytes") == bytes(8)


def test_a_child_that_is_refused_does_not_fail_its_parent(make_table):
    def apply(id, signature, message):
        if message.payload == "bad":
            raise ValueError("no")

    log = GossipLog(make_table(), "com.example", apply=apply)
    parent = sign(V13, key(1), "com.example", (), "good")
    child = sign(V13, key(1), "com.example", (parent.key,), "bad")
    sibling = sign(V13, key(2), "com.example", (parent.key,), "fine")
    heard: list[Event] = []
    log.on(heard.append, MessageRefused)
    assert log.insert(child.raw).pending
    assert log.insert(sibling.raw).pending
    assert log.insert(parent.raw).status == "stored"
    assert [event.id for event in heard if isinstance(event, MessageRefused)] == [child.id]
    assert log.pending() == []
    assert log.heads() == [sibling.id]


def test_pending_is_bounded_by_count_and_bytes():
    log = memory_log(pending_limits=PendingLimits(count=2, size=10_000))
    root = sign(V13, key(1), "com.example", (), None)
    orphans = [sign(V13, key(n), "com.example", (root.key,), n) for n in range(3)]
    assert [log.insert(orphan.raw).status for orphan in orphans[:2]] == ["pending"] * 2
    with pytest.raises(TooLarge):
        log.insert(orphans[2].raw)
    assert log.insert_many([orphans[2].raw])[0].status == "refused"
    tight = memory_log(pending_limits=PendingLimits(count=10, size=400))
    with pytest.raises(TooLarge):
        tight.insert(sign(V13, key(1), "com.example", (root.key,), bytes(400)).raw)
    log.insert(root.raw)
    assert len(log) == 3
    assert log.insert(orphans[2].raw).status == "stored"


def test_pending_survives_a_restart(tmp_path: Path):
    parent = sign(V13, key(1), "com.example", (), "p")
    child = sign(V13, key(1), "com.example", (parent.key,), "c")
    with GossipLog(LmdbTables(tmp_path, TABLES), "com.example") as log:
        log.insert(child.raw)
    with GossipLog(LmdbTables(tmp_path, TABLES), "com.example") as log:
        assert log.pending() == [(child.id, [parent.id])]
        log.insert(parent.raw)
        assert log.heads() == [child.id]


def test_a_deep_pending_chain_is_released_without_recursion():
    source = memory_log()
    source.append_many(range(1500))
    chain = raws(source)
    log = memory_log(pending_limits=PendingLimits(per_author=2_000))
    log.insert_many(reversed(chain[1:]))
    assert len(log.pending()) == 1499
    log.insert(chain[0])
    assert log.root() == source.root()
    assert log.pending() == []


def test_arriving_parent_reads_own_children(monkeypatch, make_table):
    """Else a few large messages with thousands of parents each would keep a log busy for hours."""
    parents = [sign(V13, key(1), "com.example", (), n) for n in range(200)]
    children = [
        sign(V13, key(n), "com.example", tuple(parent.key for parent in parents), "x" * 1000)
        for n in range(5)
    ]
    log = GossipLog(make_table(), "com.example")
    for child in children:
        assert log.insert(child.raw).pending
    read: list[bytes] = []

    def looked(profile: Profile, topic: str, raw: bytes) -> SignedMessage:
        read.append(raw)
        return decode(profile, topic, raw)

    monkeypatch.setattr(writing, "decode", looked)
    for parent in parents[:-1]:
        log.insert(parent.raw)
    assert read == []
    assert len(log.pending()[0][1]) == 1
    assert verify_log(log).ok
    log.insert(parents[-1].raw)
    assert len(read) == 5
    assert len(log) == 205
    assert verify_log(log).ok


def test_a_message_cannot_be_its_own_ancestor(make_table):
    """A cycle needs an id inside the bytes that make the id; what looks like one only waits for ever."""
    log = GossipLog(make_table(), "com.example")
    guess = key_of("04" + "0" * 30)
    a = sign(V13, key(1), "com.example", (guess,), "a")
    b = sign(V13, key(1), "com.example", (a.key,), "b")
    assert [log.insert(signed.raw).status for signed in (a, b)] == ["pending", "pending"]
    assert len(log) == 0


def test_a_thousand_heads_become_one(make_table):
    log = GossipLog(make_table(), "com.example", signer=key(1))
    roots = [sign(V13, key(1), "com.example", (), n).raw for n in range(1000)]
    log.insert_many(roots)
    assert len(log.heads()) == 1000
    merge = log.append("merge")
    assert len(merge.message.parents) == 1000
    assert log.heads() == [merge.id]
    other = memory_log()
    other.insert_many(raws(log))
    assert other.root() == log.root()


def test_more_heads_than_a_message_may_have_are_merged_in_turns(monkeypatch):
    monkeypatch.setattr("ropewalk.gossip.core.log.PARENTS_MAX", 3)
    log = memory_log()
    log.insert_many(sign(V13, key(1), "com.example", (), n).raw for n in range(7))
    for heads in (5, 3, 1):
        log.append("merge")
        assert len(log.heads()) == heads


def test_the_profile_and_the_topic_are_fixed_when_the_topic_is_made(make_table):
    table = make_table()
    GossipLog(table, "com.example", profile="v0.6")
    assert GossipLog(table, "com.example").profile.name == "v0.6"
    with pytest.raises(Conflict, match=r"stored in profile v0\.6"):
        GossipLog(table, "com.example", profile="v0.13")
    with pytest.raises(Conflict, match="belong to topic"):
        GossipLog(table, "com.other")
    assert GossipLog(make_table(), "com.example").profile.name == "v0.13"


def test_tables_of_another_version_are_left_alone(make_table):
    table = make_table()
    GossipLog(table, "com.example")
    table.transact(lambda change: change.put("meta", b"version", b"99"))
    with pytest.raises(Conflict, match="version 99"):
        GossipLog(table, "com.example")


def test_names_and_profiles_are_checked_before_anything_is_written(make_table):
    table = make_table()
    with pytest.raises(InvalidName):
        GossipLog(table, "not a topic")
    with pytest.raises(Invalid):
        GossipLog(table, "com.example", profile="v0.7")  # type: ignore[arg-type]
    with table.read() as view:
        assert view.count("meta") == 0


def test_without_a_signer_nothing_is_appended():
    with pytest.raises(InvalidKey):
        memory_log(signer=None).append(1)


def test_each_append_may_name_its_signer():
    log = memory_log(profile="v0.6")
    secp = SigningKey.generate("secp256k1", bytes([7] * 32))
    assert log.append(1).signature.public_key == key(1).public.did()
    assert log.append(2, signer=secp).signature.public_key == secp.public.did()
    other = memory_log(profile="v0.6")
    other.insert_many(raws(log))
    assert other.root() == log.root()


def test_a_message_signed_as_dag_json_is_accepted():
    log = memory_log()
    stored = log.append({"b": b"1", "a": 2.0**60}, codec="dag-json")
    assert memory_log().insert(raws(log)[0]).status == "stored"
    assert stored.signature.codec == "dag-json"


def test_insert_takes_signature_and_message_as_well():
    log = memory_log()
    made = sign(V13, key(3), "com.example", (), {"x": 1})
    assert log.insert_signed(made.signature, made.message).id == made.id
    with pytest.raises(Invalid):
        log.insert_signed(made.signature, GossipMessage("com.other", 1, (), None))


def test_a_predicate_or_a_schema_guards_payloads():
    for rule in (lambda payload: isinstance(payload, str), {"type": "string"}):
        log = memory_log(validate=rule)
        log.append("text")
        with pytest.raises(InvalidEnvelope):
            log.append(7)
        assert log.insert_many([sign(V13, key(2), "com.example", (), 7).raw])[0].status == "refused"
        assert len(log) == 1


def test_a_schema_names_the_place_and_fetches_nothing():
    log = memory_log(validate={"properties": {"n": {"type": "integer"}}})
    with pytest.raises(InvalidEnvelope, match="/n"):
        log.append({"n": "x"})
    with pytest.raises(Invalid):
        memory_log(validate={"type": 7})
    with pytest.raises(Invalid):
        memory_log(validate={"$ref": "https://example.com/schema.json"})


def test_only_owners_may_append():
    log = memory_log(access=owners(key(1).public.did()))
    log.append("mine")
    with pytest.raises(Denied):
        log.append("theirs", signer=key(2))
    assert log.insert_many([sign(V13, key(2), "com.example", (), 1).raw])[0].status == "refused"


def test_a_session_lets_a_temporary_key_write_for_a_while():
    owner, guest, stranger = key(1), key(2), key(3)
    log = memory_log(signer=guest, access=sessions(owner.public.did()))
    grant = make_session(owner, "com.example", guest.public.did(), until_clock=3)
    with pytest.raises(Denied, match="names no session"):
        log.append({"text": "too early"})
    via = log.append(grant).id
    log.append({"via": via, "text": "hello"})
    with pytest.raises(Denied, match="is for"):
        log.append({"via": via, "text": "hi"}, signer=stranger)
    log.append({"via": via, "text": "last"})
    with pytest.raises(Denied, match="ended at clock 3"):
        log.append({"via": via, "text": "too late"})
    replica = memory_log(access=sessions(owner.public.did()))
    replica.insert_many(raws(log))
    assert replica.root() == log.root()


def test_a_session_that_does_not_lie_below_counts_for_nothing():
    owner, guest = key(1), key(2)
    log = memory_log(signer=guest, access=sessions(owner.public.did()))
    via = log.append(make_session(owner, "com.example", guest.public.did(), 99)).id
    beside = sign(V13, guest, "com.example", (), {"via": via})
    assert log.insert_many([beside.raw])[0].status == "refused"
    wrong: list[object] = [{"via": "x"}, {"via": 7}, {"session": {}}, [], {"via": "0" * 32}]
    for payload in wrong:
        with pytest.raises(Denied):
            log.append(payload)


def test_a_forged_session_is_refused():
    owner, guest = key(1), key(2)
    log = memory_log(signer=guest, access=sessions(owner.public.did()))
    good = make_session(owner, "com.example", guest.public.did(), 9)
    changes = {"until_clock": 10, "owner": guest.public.did(), "topic": "com.other", "signature": bytes(64)}
    for name, value in changes.items():
        with pytest.raises(Denied):
            log.append({"session": {**good["session"], name: value}})


def test_replay_applies_everything_again_parents_first():
    seen = []
    log = memory_log(apply=lambda id, s, m: seen.append(m.payload))
    log.append_many("abc")
    seen.clear()
    assert log.replay() == 3
    assert seen == ["a", "b", "c"]
    again: list[str] = []
    GossipLog(log.table, "com.example", apply=lambda id, s, m: again.append(m.payload), replay=True)
    assert again == seen


def test_a_log_comes_back_as_it_was(tmp_path: Path):
    with GossipLog(LmdbTables(tmp_path, TABLES), "com.example", signer=key(1)) as log:
        log.append_many(range(50))
        before = state(log)
    with GossipLog(LmdbTables(tmp_path, TABLES), "com.example") as log:
        assert state(log) == before


def test_a_full_map_is_no_reason_to_lose_a_batch(tmp_path: Path):
    applied = []
    table = LmdbTables(tmp_path, TABLES, map_bytes=1 << 17)
    log = GossipLog(table, "com.example", signer=key(1), apply=lambda id, *_: applied.append(id))
    log.append_many([bytes(5000)] * 100)
    assert len(log) == 100
    assert len(applied) > 100  # at least once, as S3 says: the transaction ran again
    assert len(list(log.iterate())) == 100
    log.close()


def test_the_tree_is_the_tree_of_the_messages(make_table):
    log = GossipLog(make_table(), "com.example", signer=key(1))
    for n in range(40):
        log.append(n)
    log.append_many(range(40))
    assert log.root() == build((signed.key, signed.raw) for signed in log.iterate()).root


def test_unknown_messages_have_no_ancestors():
    log = memory_log()
    log.append(1)
    with pytest.raises(NotFound):
        log.get_ancestors("0" * 32, 1)
    with pytest.raises(NotFound):
        log.is_ancestor(log.heads()[0], "0" * 32)


def test_message_profiles_do_not_mix():
    log = memory_log()
    made = sign(PROFILES["v0.6"], key(1), "com.example", (), 1)
    with pytest.raises(Invalid):
        log.insert(made.raw)
    with pytest.raises(Invalid):
        message.profile_named("v1")
    assert assemble(PROFILES["v0.6"], made.signature, made.message).id == made.id


def test_two_handles_and_a_rolled_back_batch_keep_one_tree(make_table):
    """What a handle remembers of the tree counts only while the root is still its own."""
    table = make_table()
    refuse = []

    def apply(id, signature, message):
        if message.payload in refuse:
            raise ValueError("no")

    one = GossipLog(table, "com.example", signer=key(1), apply=apply)
    two = GossipLog(table, "com.example", signer=key(2))
    for n in range(60):
        (one if n % 3 else two).append(n)
        if n % 7 == 0:
            refuse.append("last")
            with pytest.raises(ValueError, match="no"):
                one.append_many([1000 + n, "last"])
    assert one.root() == two.root() == build((signed.key, signed.raw) for signed in one.iterate()).root


class Counting(MemoryTables):
    """Tables that count what is read from them."""

    reads = 0

    @contextmanager
    def read(self) -> Iterator[Any]:
        with super().read() as view:
            counts: dict[str, Any] = {}
            for name in ("get", "scan", "count"):
                real = getattr(view, name)

                def counted(*args: Any, real: Any = real, **kwargs: Any) -> Any:
                    self.reads += 1
                    return real(*args, **kwargs)

                counts[name] = counted
            yield SimpleNamespace(**counts)


def test_opening_reads_the_same_few_rows_whatever_the_size():
    seen = []
    for size in (0, 10, 2000):
        table = Counting(TABLES)
        GossipLog(table, "com.example", signer=key(1)).append_many(range(size))
        table.reads = 0
        GossipLog(table, "com.example")
        seen.append(table.reads)
    assert len(set(seen)) == 1
    assert seen[0] < 10


def test_the_index_of_a_long_log_is_built_in_steps(monkeypatch):
    monkeypatch.setattr("ropewalk.gossip.core.log.INDEX_STEP", 7)
    log = memory_log()
    log.append_many(range(50))
    ids = [signed.id for signed in log.iterate()]
    assert log.get_ancestors(ids[-1], 3) == [ids[2]]
    with log.view() as view:
        assert view.count("ancestors") == 50


def test_threads_share_a_log(make_table):
    """Four writers that also read, look back and follow: nothing is lost, and no reader sees an arrival twice."""
    log = GossipLog(make_table(), "com.example", index_ancestors=True)
    followed: list[list[str]] = [[] for _ in range(4)]

    def work(number: int) -> None:
        cursor: Cursor | None = None
        for n in range(15):
            mine = log.append({"by": number, "n": n}, signer=key(number + 1))
            assert log.has(mine.id)
            assert mine.message.clock == 1 or log.get_ancestors(mine.id, 1)
            assert sum(1 for _ in log.iterate()) > n
            for read, signed in log.arrivals(cursor):
                followed[number].append(signed.id)
                cursor = read

    together(*(partial(work, number) for number in range(4)))
    order = [signed.id for _, signed in log.arrivals()]
    assert len(order) == 60
    assert all(order[: len(each)] == each for each in followed)
    assert verify_log(log).ok
