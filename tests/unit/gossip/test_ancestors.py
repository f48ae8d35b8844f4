"""The ancestor index against the recorded one, and against a plain walk of the graph."""

from __future__ import annotations

import random

import pytest
from tests.unit.gossip.conftest import key, memory_log

from ropewalk.disk.memory_tables import MemoryTables
from ropewalk.errors import RangeExceeded
from ropewalk.gossip.core import ancestors
from ropewalk.gossip.core.ids import Key, id_of, key_of
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.message import decode, sign
from ropewalk.gossip.core.profiles import PROFILES, V13
from ropewalk.gossip.core.table import TABLES, Transaction
from ropewalk.gossip.core.verify import verify_log
from ropewalk.kernel import cbor

BOTH = pytest.mark.parametrize("profile", ["v0.6", "v0.13"])
SIZES = pytest.mark.parametrize("size", ["small", "large"])


def merged(profile: str, data) -> GossipLog:
    log = memory_log(data["topic"], profile=profile)
    log.insert_many(bytes.fromhex(row["signed_message_cbor"]) for row in data["messages"])
    return log


def true_frontier(log: GossipLog, id: str, clock: int) -> set[str]:
    """What the definition says, found by walking every edge."""
    found: set[str] = set()
    todo, seen = [id], {id}
    while todo:
        signed = log.get(todo.pop())
        assert signed is not None
        for parent in signed.message.parents:
            if log.profile.code.clock(key_of(parent)) <= clock:
                found.add(parent)
            elif parent not in seen:
                seen.add(parent)
                todo.append(parent)
    return found


@BOTH
@SIZES
def test_the_stored_index_is_the_recorded_one(profile, size, vector):
    data = vector(f"{profile}-dag-{size}")
    log = merged(profile, data)
    log.is_ancestor(log.heads()[0], log.heads()[0])  # the first question builds the index
    with log.view() as view:
        for row in data.get("ancestor_index", []):
            links = ancestors.stored_links(view, key_of(row["id"]))
            assert cbor.dag_encode(links) == bytes.fromhex(row["value"])
        for row in data.get("ancestor_links", []):
            links = ancestors.stored_links(view, key_of(row["id"]))
            assert [[id_of(link) for link in level] for level in links] == row["links"]


@SIZES
def test_lookups_are_exact_where_the_original_drops_results(size, vector):
    data = vector(f"v0.6-dag-{size}")
    log = merged("v0.6", data)
    differ = 0
    for row in data["ancestors"]:
        found = log.get_ancestors(row["id"], row["at_or_before"])
        assert set(found) == true_frontier(log, row["id"], row["at_or_before"])
        assert set(row["result"]) <= set(found)
        differ += found != row["result"]
    assert differ == {"small": 0, "large": 7}[size]


@BOTH
@SIZES
def test_is_ancestor_agrees_with_the_original(profile, size, vector):
    data = vector(f"{profile}-dag-{size}")
    log = merged(profile, data)
    for row in data["is_ancestor"]:
        assert log.is_ancestor(row["id"], row["ancestor"]) == row["result"]


def test_random_graphs_give_exact_frontiers():
    random_ = random.Random(7)
    log = memory_log()
    keys: list[Key] = []
    for n in range(250):
        recent = keys[-12:]
        parents = tuple(sorted(random_.sample(recent, min(len(recent), random_.randint(1, 4)))))
        keys.append(sign(V13, key(1), "com.example", parents, n).key)
        log.insert(sign(V13, key(1), "com.example", parents, n).raw)
    for _ in range(120):
        chosen = random_.choice(keys[5:])
        clock = V13.code.clock(chosen)
        if clock > 1:
            at = random_.randint(1, clock - 1)
            assert set(log.get_ancestors(id_of(chosen), at)) == true_frontier(log, id_of(chosen), at)


def test_the_example_of_the_specification():
    log = memory_log()
    made: dict[str, Key] = {}

    def put(name: str, *parents: str) -> None:
        signed = sign(V13, key(1), "com.example", tuple(made[p] for p in parents), name)
        made[name] = signed.key
        log.insert(signed.raw)

    for line in ("a", "b a", "c b", "d c", "e c", "f d", "g e", "h f", "i g", "j i", "k j", "l h k"):
        put(*line.split())
    names = {id_of(key_): name for name, key_ in made.items()}
    assert {names[id] for id in log.get_ancestors(id_of(made["l"]), 6)} == {"h", "i"}
    assert {names[id] for id in log.get_ancestors(id_of(made["k"]), 6)} == {"i"}
    assert log.is_ancestor(id_of(made["l"]), id_of(made["a"]))
    assert not log.is_ancestor(id_of(made["k"]), id_of(made["h"]))


def test_deep_histories_do_not_recurse():
    log = memory_log()
    log.append_many(range(1500))
    ids = [signed.id for signed in log.iterate()]
    for clock in (1, 2, 700, 1499):
        assert log.get_ancestors(ids[-1], clock) == [ids[clock - 1]]
    assert log.is_ancestor(ids[-1], ids[0])
    assert not log.is_ancestor(ids[0], ids[-1])


@pytest.mark.parametrize("clock", [0, -1, 2, 99])
def test_a_clock_outside_the_past_is_refused(clock):
    log = memory_log()
    log.append_many("ab")
    with pytest.raises(RangeExceeded):
        log.get_ancestors(log.heads()[0], clock)


def test_an_index_kept_from_the_start_equals_one_built_late(vector):
    data = vector("v0.13-dag-large")
    raws = [bytes.fromhex(row["signed_message_cbor"]) for row in data["messages"]]
    early = memory_log(data["topic"], index_ancestors=True)
    late = memory_log(data["topic"])
    for raw in raws:
        early.insert(raw)
    late.insert_many(raws)
    head = decode(PROFILES["v0.13"], data["topic"], raws[-1]).id
    late.get_ancestors(head, 1)
    with early.view() as one, late.view() as two:
        assert list(one.scan("ancestors")) == list(two.scan("ancestors"))


def test_wide_frontiers_are_found_whole():
    """Link lists of every width a CBOR head can have: below 24, below 256, and beyond."""
    for width in (3, 23, 24, 255, 256, 300):
        log = memory_log()
        base = [sign(V13, key(1), "com.example", (), n) for n in range(width)]
        middle = [sign(V13, key(1), "com.example", (one.key,), n) for n, one in enumerate(base)]
        top = sign(V13, key(1), "com.example", tuple(sorted(one.key for one in middle)), "top")
        last = sign(V13, key(1), "com.example", (top.key,), "last")
        log.insert_many(signed.raw for signed in (*base, *middle, top, last))
        assert set(log.get_ancestors(last.id, 2)) == {one.id for one in middle}
        assert set(log.get_ancestors(last.id, 1)) == {one.id for one in base}
        assert log.get_ancestors(last.id, 3) == [top.id]
        assert log.is_ancestor(last.id, base[-1].id)


@pytest.mark.parametrize("count", [0, 1, 23, 24, 255, 256, 65_535, 65_536])
def test_a_frontier_of_any_width_is_read_back(count):
    wide = [Key(number.to_bytes(20, "big")) for number in range(count)]
    last = Key(bytes([9] * 20))
    table = MemoryTables(TABLES)
    table.transact(lambda change: change.put("ancestors", last, cbor.dag_encode([[last], wide, [last]])))
    with table.read() as view:
        assert ancestors._links(view, last, 1) == wide
        assert ancestors._links(view, last, 2) == [last]


def wide(profile: str, writers: int, rounds: int, seed: int = 0) -> GossipLog:
    """A log of concurrent writers that each know some heads of the round before."""
    chance = random.Random(seed)
    log = memory_log(profile=profile, index_ancestors=True)
    heads: list[set[Key]] = [set() for _ in range(writers)]
    for number in range(rounds):
        made = [sign(log.profile, key(n + 1), log.topic, tuple(heads[n]), number) for n in range(writers)]
        log.insert_checked(made)
        for n in range(writers):
            known = chance.sample(made, chance.randint(1, writers)) if seed else made
            heads[n] = {signed.key for signed in known} | {made[n].key}
    return log


@BOTH
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_wide_graphs_give_exact_frontiers(profile, seed):
    log = wide(profile, 8, 10, seed)
    ids = [signed.id for signed in log.iterate()]
    for id in random.Random(seed).sample(ids, 30):
        own = log.profile.code.clock(key_of(id))
        for clock in range(1, own):
            assert set(log.get_ancestors(id, clock)) == true_frontier(log, id, clock)
        below = true_history(log, id)
        assert {other for other in ids if log.is_ancestor(id, other)} == below | {id}
    assert {step.name: step.status for step in verify_log(log).steps}["ancestors"] == "passed"


def true_history(log: GossipLog, id: str) -> set[str]:
    found: set[str] = set()
    todo = [id]
    while todo:
        signed = log.get(todo.pop())
        assert signed is not None
        fresh = [parent for parent in signed.message.parents if parent not in found]
        found.update(fresh)
        todo += fresh
    return found


def test_index_of_forty_writers_is_small():
    """Messages with the same frontiers share them: the rows stay below 1 kB a message."""
    log = wide("v0.13", 40, 16)
    with log.view() as view:
        size = sum(len(row) + len(raw) for row, raw in view.scan("ancestors"))
    assert size < 300 * len(log)


def test_tampered_shared_list_is_found():
    def tamper(change: Transaction) -> None:
        row, raw = next((row, raw) for row, raw in change.scan("ancestors") if len(row) > 20)
        change.put("ancestors", row, raw[20:] + raw[:20])

    def lose(change: Transaction) -> None:
        change.delete("ancestors", next(row for row, _ in change.scan("ancestors", b"\xff")))

    def garble(change: Transaction) -> None:
        change.put("ancestors", next(row for row, _ in change.scan("ancestors")), b"\xff\x9a")

    for act in (tamper, lose, garble):
        log = wide("v0.13", 8, 6)
        assert verify_log(log).ok
        log.table.transact(act)
        failed = {step.name for step in verify_log(log).steps if step.status == "failed"}
        assert failed == {"ancestors"}


def test_rows_of_earlier_versions_are_read_and_verified():
    log = wide("v0.13", 8, 6, 1)
    wanted = {
        signed.id: log.get_ancestors(signed.id, 1) for signed in log.iterate() if signed.message.clock > 1
    }

    def whole(change: Transaction) -> None:
        rows = {
            Key(row): ancestors.stored_links(change, Key(row))
            for row, _ in change.scan("ancestors", b"", b"\xff")
        }
        for row, links in rows.items():
            change.put("ancestors", row, cbor.dag_encode(links))
        for shared, _ in list(change.scan("ancestors", b"\xff")):
            change.delete("ancestors", shared)

    log.table.transact(whole)
    assert verify_log(log).ok
    assert {id: log.get_ancestors(id, 1) for id in wanted} == wanted
