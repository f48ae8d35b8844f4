"""Clauses of S3 that need a provocation of their own: each test breaks if its clause does."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.gossip.conftest import ground, key, memory_log, raws
from tests.waiting import together

from ropewalk import gossip
from ropewalk.disk.lmdb_tables import LmdbTables
from ropewalk.disk.memory_tables import MemoryTables
from ropewalk.errors import Denied, Unavailable
from ropewalk.gossip.core.access import make_session, owners, sessions
from ropewalk.gossip.core.ids import CLOCKS, id_of, key_of
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.message import GossipMessage, GossipSignature, assemble, cid_of, sign, verify
from ropewalk.gossip.core.profiles import PROFILES, V13
from ropewalk.gossip.core.table import TABLES
from ropewalk.kernel import cbor
from ropewalk.kernel.keys import PublicKey

BOTH = pytest.mark.parametrize("profile", ["v0.6", "v0.13"])

# The table of the specification; v0.13 writes clocks in another way, which has vectors of its own.
CLOCK_BYTES = {0: "00", 1: "01", 127: "7f", 128: "8100", 255: "817f", 256: "8200", 1234: "8952"}


@pytest.mark.parametrize(("clock", "encoded"), CLOCK_BYTES.items())
def test_clocks_are_those_of_the_specifications_table(clock, encoded):
    assert CLOCKS["v0.6"].encode(clock).hex() == encoded
    raw = (bytes.fromhex(encoded) + bytes(20))[:20]
    assert CLOCKS["v0.6"].split(raw) == (clock, len(encoded) // 2)


@BOTH
def test_clock_follows_the_greatest_parent(profile, make_table):
    log = GossipLog(make_table(), "com.example", profile=profile, signer=key(1))
    for stored in log.append_many(range(4)):
        high = stored
    low = sign(log.profile, key(2), log.topic, (), "low")
    log.insert(low.raw)
    joined = log.append("joined")
    assert (low.message.clock, high.message.clock) == (1, 4)
    assert set(joined.message.parents) == {low.id, high.id}
    assert joined.message.clock == 5
    assert log.get_clock() == (6, [joined.id])


@BOTH
def test_cid_is_sha256_of_dag_cbor(profile):
    log = memory_log(profile=profile)
    log.append({"n": 1})
    signed = log.get(log.append({"text": "hi", "raw": b"12"}).id)
    assert signed is not None
    message = signed.message
    document = {"topic": message.topic, "clock": message.clock, "payload": message.payload}
    raw = cbor.dag_encode({**document, "parents": list(message.parents)})
    assert signed.signature.cid is not None
    assert signed.signature.cid.cid == b"\x01\x71\x12\x20" + hashlib.sha256(raw).digest()
    assert cid_of(signed) == signed.signature.cid
    if profile == "v0.6":  # and that is what is signed
        PublicKey.from_did(signed.signature.public_key).verify(
            signed.signature.cid.cid, signed.signature.signature
        )


def test_heads_are_read_inside_the_transaction(tmp_path):
    """Writers of many handles take turns from reading the heads on: the graph is one line."""
    LmdbTables(tmp_path / "log", TABLES).close()

    def write(n: int) -> None:
        with gossip.open("com.example", tmp_path / "log", signer=key(n)) as log:
            for at in range(10):
                log.append({"n": n, "at": at})

    together(*(functools.partial(write, n) for n in range(1, 5)))
    with gossip.open("com.example", tmp_path / "log") as log:
        assert [signed.message.clock for signed in log.iterate()] == [*range(1, 41)]
        assert len(log.heads()) == 1


@BOTH
def test_apply_gets_the_id_the_signature_and_the_message(profile, make_table):
    seen: list[tuple[str, GossipSignature, GossipMessage]] = []
    log = GossipLog(
        make_table(), "com.example", profile=profile, signer=key(1), apply=lambda *given: seen.append(given)
    )
    one = log.append({"n": 1})
    two = sign(log.profile, key(2), log.topic, (), {"n": 2})
    log.insert(two.raw)
    three = sign(log.profile, key(3), log.topic, (two.key,), {"n": 3})
    log.insert_many([three.raw])
    assert [id for id, _, _ in seen] == [one.id, two.id, three.id]
    assert seen[0] == (one.id, one.signature, one.message)
    for (id, signature, message), n in zip(seen, (1, 2, 3), strict=True):
        assert signature.public_key == key(n).public.did()
        assert (message.topic, message.payload) == ("com.example", {"n": n})
        whole = assemble(log.profile, signature, message)
        verify(log.profile, whole)  # what apply was handed is signed, and has the id it was called with
        assert whole.id == id


@BOTH
def test_apply_runs_before_message_is_stored(profile, make_table):
    table = make_table()
    moments: list[tuple[object, ...]] = []

    def apply(id: str, signature: GossipSignature, message: GossipMessage) -> str:
        verify(log.profile, assemble(log.profile, signature, message))
        assert (message.clock, list(message.parents)) == log.get_clock()
        moments.append((log.has(id), len(log), log.heads()))
        return f"result of {message.payload}"

    log = GossipLog(table, "com.example", profile=profile, signer=key(1), apply=apply)
    first, second = log.append("a"), log.append("b")
    assert moments == [(False, 0, []), (False, 1, [first.id])]
    assert (first.result, second.result) == ("result of a", "result of b")
    assert log.heads() == [second.id] and len(log) == 2


@BOTH
def test_waiting_children_applied_with_parent(profile, make_table):
    first = memory_log(profile=profile).append("parent")  # the same key, parents and payload make it again
    code = PROFILES[profile]
    parent = assemble(code, first.signature, first.message)
    child = sign(code, key(2), "com.example", (parent.key,), "child")
    grandchild = sign(code, key(3), "com.example", (child.key,), "grandchild")
    applied: list[object] = []
    log = GossipLog(
        make_table(),
        "com.example",
        profile=profile,
        signer=key(1),
        apply=lambda id, signature, message: applied.append(message.payload),
    )
    assert [log.insert(one.raw).status for one in (grandchild, child)] == ["pending", "pending"]
    assert applied == [] and len(log) == 0
    assert log.append("parent").id == first.id
    assert applied == ["parent", "child", "grandchild"]
    assert log.pending() == [] and log.heads() == [grandchild.id] and len(log) == 3


@BOTH
def test_replay_goes_parents_first_through_a_graph_whatever_came_when(profile):
    """Late, branching, and past the clock where the bytes of v0.6 keys stop sorting."""
    log = memory_log(profile=profile)
    ground(log, 16_380)
    log.append_many(range(6))
    late = sign(log.profile, key(2), log.topic, (), "late")
    beside = sign(log.profile, key(3), log.topic, (late.key,), "beside")
    log.insert(beside.raw)
    log.insert(late.raw)
    log.append("both")
    seen: list[str] = []

    def apply(id: str, _signature: GossipSignature, message: GossipMessage) -> None:
        if message.payload != "ground":  # stands on something that was never here
            assert set(message.parents) <= set(seen)
        seen.append(id)

    again = GossipLog(log.table, log.topic, profile=log.profile.name, apply=apply, replay=True)
    assert len(seen) == len(set(seen)) == len(log) == 10
    seen.clear()
    assert again.replay() == 10
    assert len(seen) == 10


def test_without_replay_opening_applies_nothing():
    log = memory_log()
    log.append_many("abc")
    seen: list[object] = []
    GossipLog(log.table, "com.example", apply=lambda *given: seen.append(given))
    assert seen == []


def test_only_a_log_that_asks_for_the_ancestor_index_keeps_it(make_table):
    with_index = GossipLog(make_table(), "com.example", signer=key(1), index_ancestors=True)
    without = GossipLog(make_table(), "com.example", signer=key(1))
    for log, rows in ((with_index, 5), (without, 0)):
        log.append_many(range(5))
        with log.view() as view:
            assert view.count("ancestors") == rows


def test_the_index_links_at_distances_of_powers_of_two():
    """In a line the frontier at every distance is one message, so each link can be named."""
    log = memory_log(index_ancestors=True)
    ids = [stored.id for stored in log.append_many(range(40))]
    with log.view() as view:
        for at in range(1, 40):
            links: Any = cbor.dag_decode(view.get("ancestors", key_of(ids[at])) or b"")
            distances = [1 << step for step in range(len(links))]
            assert [[id_of(link) for link in level] for level in links] == [
                [ids[at - distance]] for distance in distances
            ]
            assert at - (1 << len(links)) < 0  # as far back as there is a past


@BOTH
@pytest.mark.parametrize("seed", range(5))
def test_ids_alone_give_last_write_wins(profile, seed):
    """S3 promises it of the text of ids; beyond clock 16383 v0.6 needs decoded clocks, which its log sorts by."""
    chance = random.Random(seed)
    peers = [memory_log(profile=profile, signer=key(n + 1)) for n in range(3)]
    for n in range(60):
        writer = chance.choice(peers)
        writer.append(n)
        if chance.random() < 0.3:
            other = chance.choice(peers)
            other.insert_many(raws(writer))
    everything = {raw for log in peers for raw in raws(log)}
    values = set()
    for log in peers:
        won: list[tuple[str, GossipMessage]] = []

        def apply(id: str, _signature: GossipSignature, message: GossipMessage, won: Any = won) -> None:
            if not won or id > won[0][0]:
                won[:] = [(id, message)]

        shuffled = sorted(everything)
        chance.shuffle(shuffled)
        register = GossipLog(MemoryTables(TABLES), log.topic, profile=profile, apply=apply)
        register.insert_many(shuffled)
        (winner,) = won
        assert winner[1].clock == max(signed.message.clock for signed in register.iterate())
        values.add(winner[0])
        for signed in register.iterate():  # nothing loses to what it stands on
            assert all(signed.id > parent for parent in signed.message.parents)
    assert len(values) == 1


def test_a_writer_outside_the_fixed_set_leaves_no_trace():
    first, second, stranger = key(1), key(2), key(3)
    log = memory_log(access=owners(first.public.did(), second.public.did()))
    mine, yours = log.append("mine"), log.append("yours", signer=second)
    before = (log.root(), log.heads(), len(log), log.pending())
    with pytest.raises(Denied):
        log.append("theirs", signer=stranger)
    with pytest.raises(Denied):
        log.insert(sign(V13, stranger, "com.example", (), "theirs").raw)
    assert (log.root(), log.heads(), len(log), log.pending()) == before
    assert [signed.id for signed in log.iterate()] == [mine.id, yours.id]


def test_a_closed_log_says_so_and_opens_again_as_it_was(tmp_path: Path):
    with GossipLog(LmdbTables(tmp_path, TABLES), "com.example", signer=key(1)) as log:
        log.append_many("abc")
        before = (log.root(), log.heads(), len(log))
    log.close()  # again: nothing happens
    acts: tuple[Callable[[], object], ...] = (lambda: log.append("d"), lambda: list(log.iterate()), log.heads)
    for act in acts:
        with pytest.raises(Unavailable, match="closed"):
            act()
    with GossipLog(LmdbTables(tmp_path, TABLES), "com.example") as again:
        assert (again.root(), again.heads(), len(again)) == before


def test_a_session_for_one_topic_opens_no_other():
    """It is signed by the owner and holds; only the topic is another."""
    owner, guest = key(1), key(2)
    log = memory_log(signer=guest, access=sessions(owner.public.did()))
    with pytest.raises(Denied, match="topic"):
        log.append(make_session(owner, "com.other", guest.public.did(), until_clock=9))
    assert len(log) == 0
    log.append(make_session(owner, "com.example", guest.public.did(), until_clock=9))


def test_a_stranger_who_carries_a_session_says_nothing_beside_it():
    """Grants lie open in the log; copying one must not be a way to write."""
    owner, guest, stranger = key(1), key(2), key(3)
    log = memory_log(signer=stranger, access=sessions(owner.public.did()))
    grant = make_session(owner, "com.example", guest.public.did(), until_clock=9)
    with pytest.raises(Denied, match="alone"):
        log.append({**grant, "text": "spam"})
    via = log.append(grant).id
    log.append({"via": via, "text": "hello"}, signer=guest)
    log.append({**grant, "text": "mine to say"}, signer=owner)
    assert len(log) == 3


def test_only_an_owner_s_session_lets_anybody_in():
    """A stranger signs a session for itself: everything about it holds, but it has nothing to give."""
    owner, stranger = key(1), key(3)
    log = memory_log(signer=stranger, access=sessions(owner.public.did()))
    own = make_session(stranger, "com.example", stranger.public.did(), until_clock=9)
    with pytest.raises(Denied, match="is not an owner"):
        log.append(own)
    real = log.append(make_session(owner, "com.example", key(2).public.did(), until_clock=9), signer=owner)
    with pytest.raises(Denied, match="is for"):
        log.append({"via": real.id, "text": "hello"})
    smuggled = log.append(own, signer=owner)  # owners may write anything, and this grants nothing
    with pytest.raises(Denied, match="is not an owner"):
        log.append({"via": smuggled.id, "text": "hello"})
