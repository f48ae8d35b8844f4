"""Checks that are the only one to catch what they catch: each test here fails when its check is taken away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.gossip.conftest import key, memory_log, raws

from ropewalk.errors import BrokenLink, Conflict, Invalid, InvalidJson, InvalidKey, NotFound, TooLarge
from ropewalk.gossip.core import ancestors, dag_json
from ropewalk.gossip.core.access import owners
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.message import decode, sign
from ropewalk.gossip.core.profiles import V06, V13, Profile, check_parents
from ropewalk.gossip.core.table import Transaction
from ropewalk.gossip.core.verify import verify_log
from ropewalk.gossip.sync.questions import AbortResponse, RootResponse
from ropewalk.gossip.sync.session import pull_from
from ropewalk.gossip.sync.wire import Insert, decode_event, decode_response, encode_event, encode_response
from ropewalk.kernel import cbor
from ropewalk.kernel.prolly.node import ANCHOR, Node

BOTH = pytest.mark.parametrize("profile", [V06, V13], ids=lambda profile: profile.name)
TOPIC = "com.example"


def waiting_log() -> GossipLog:
    """Three messages in a row, and a fourth whose parents are elsewhere."""
    log, other = memory_log(), memory_log(signer=key(2))
    log.append_many("abc")
    other.append_many("xyz")
    log.insert(raws(other)[-1])
    assert verify_log(log).ok
    return log


def found(log: GossipLog, change: Callable[[Transaction], None]) -> dict[str, str]:
    """The steps that fail after a change of the tables, with what they say."""
    log.table.transact(change)
    return {step.name: step.detail for step in verify_log(log).steps if step.status == "failed"}


def test_a_gap_in_the_arrivals_is_found_though_every_message_arrived():
    def move_the_last(change: Transaction) -> None:
        seq, named = list(change.scan("arrivals"))[-1]
        change.delete("arrivals", seq)
        change.put("arrivals", (int.from_bytes(seq, "big") + 1).to_bytes(len(seq), "big"), named)

    assert found(waiting_log(), move_the_last) == {"arrivals": "arrival 4 is doubled or out of place"}


def test_missing_message_found_despite_count():
    def forget_the_last(change: Transaction) -> None:
        change.delete("arrivals", list(change.scan("arrivals"))[-1][0])
        change.put("meta", b"arrivals", (2).to_bytes(8, "big"))

    assert found(waiting_log(), forget_the_last) == {"arrivals": "2 arrivals of 3 messages"}


def test_a_message_that_arrived_before_its_parent_is_found():
    def swap_the_first_two(change: Transaction) -> None:
        (one, first), (two, second), *_ = change.scan("arrivals")
        change.put("arrivals", one, second)
        change.put("arrivals", two, first)

    assert found(waiting_log(), swap_the_first_two)["arrivals"].endswith("arrived before its parents")


def test_a_parent_that_is_gone_is_named_with_its_child():
    log = waiting_log()
    first, second, _ = log.iterate()

    def lose_the_first(change: Transaction) -> None:
        change.delete("messages", log.profile.code.order(first.key))

    assert found(log, lose_the_first)["parents"] == f"parent {first.id} of {second.id} is missing"


def test_links_to_other_ancestors_than_its_own_are_found():
    log = waiting_log()
    *_, last = log.iterate()
    assert log.get_ancestors(last.id, 1)

    def link_elsewhere(change: Transaction) -> None:
        (_, other), *_, (row, links) = change.scan("ancestors")
        assert links != other
        change.put("ancestors", row, other)

    assert found(log, link_elsewhere) == {"ancestors": f"the links of {last.id} are wrong"}


def test_a_message_that_waits_for_nothing_is_found():
    log = waiting_log()
    ready = sign(log.profile, key(3), TOPIC, (), "ready")

    def add(change: Transaction) -> None:
        change.put("pending", ready.key, ready.raw)

    assert found(log, add) == {"pending": f"{ready.id} waits for nothing"}


def test_a_waiting_message_under_another_key_is_found():
    def rename(change: Transaction) -> None:
        row, raw = next(change.scan("pending"))
        change.delete("pending", row)
        change.put("pending", bytes(20), raw)

    assert found(waiting_log(), rename)["pending"].endswith("waits for nothing")


def test_a_list_of_parents_that_fits_no_waiting_message_is_found():
    def forget_whom_it_waits_for(change: Transaction) -> None:
        row = next(row for row, _ in change.scan("waiting") if len(row) > 20)
        change.delete("waiting", row)

    said = "the list of what is waited for does not fit the waiting messages"
    assert found(waiting_log(), forget_whom_it_waits_for) == {"pending": said}


def test_a_wrong_sum_of_waiting_bytes_is_found():
    def free_the_room(change: Transaction) -> None:
        change.put("meta", b"pending_bytes", bytes(8))

    assert found(waiting_log(), free_the_room)["pending"].endswith("counter is 0")


def test_a_message_that_was_never_indexed_has_no_links_to_follow():
    log = memory_log()
    log.append_many("abc")
    signed = list(log.iterate())
    with log.view() as view, pytest.raises(NotFound, match="not in the ancestor index"):
        ancestors.ancestors(view, log.profile, signed[2].key, 1)


def test_a_peer_of_which_our_rules_refuse_too_much_is_given_up_on(monkeypatch):
    monkeypatch.setattr("ropewalk.gossip.sync.session.REFUSED_MAX", 5)
    source = memory_log(signer=key(2))
    source.append_many(range(6))
    with pytest.raises(TooLarge, match="more than 5 messages of the peer were refused"):
        pull_from(memory_log(access=owners(key(1).public.did())), source)


@pytest.mark.parametrize("inner", [b"\x0a\x01x", b"\x08\x80\x80\x80\x80\x10"], ids=["bytes", "33 bits"])
def test_a_cooldown_that_is_no_32_bit_number_is_refused(inner):
    with pytest.raises(Invalid, match="cooldown"):
        decode_response(b"\x2a" + bytes([len(inner)]) + inner, "v0.13")


def test_an_answer_of_an_unknown_kind_is_no_root_whatever_it_holds():
    root = encode_response(RootResponse(Node(0, ANCHOR, bytes(16))), "v0.13")
    assert isinstance(decode_response(root, "v0.13"), RootResponse)
    for number in (6, 7):
        with pytest.raises(Invalid, match=f"response {number} is unknown"):
            decode_response(bytes([number << 3 | 2]) + root[1:], "v0.13")


def test_a_push_of_an_unknown_kind_is_no_message_whatever_it_holds():
    push = encode_event(Insert(b"\x01" + bytes(19), b"x"))
    assert isinstance(decode_event(push), Insert)
    with pytest.raises(Invalid, match="event 3 is unknown"):
        decode_event(bytes([3 << 3 | 2]) + push[1:])


@BOTH
def test_children_of_refused_message_are_refused(profile, monkeypatch):
    monkeypatch.setattr("ropewalk.gossip.sync.session.CHUNK_MESSAGES", 1)
    source = memory_log(profile=profile.name)
    source.append("first", signer=key(2))
    source.append_many(range(5))
    target = memory_log(profile=profile.name, access=owners(key(1).public.did()))
    pulled = pull_from(target, source)
    assert (pulled.received, pulled.refused, pulled.complete) == (0, 6, True)
    assert target.pending() == []


def test_the_longest_cooldown_is_read():
    assert decode_response(bytes.fromhex("2a0608ffffffff0f"), "v0.13") == AbortResponse(2**32 - 1)


def changed(profile: Profile, at: int, value: Any) -> bytes:
    """A good message with one of its fields replaced."""
    fields: Any = cbor.dag_decode(sign(profile, key(1), TOPIC, (), "x").raw)
    fields[at] = value
    return cbor.dag_encode(fields)


@pytest.mark.parametrize("public", [None, "did:key:z6Mk", 7, [b"\xed\x01" + bytes(32)]])
def test_a_v06_author_that_is_no_bytes_is_refused(public):
    with pytest.raises(InvalidKey, match="not bytes"):
        decode(V06, TOPIC, changed(V06, 0, public))


@pytest.mark.parametrize("who", [None, b"", [], ["dag-cbor", "did:key:z6Mk"], {"codec": "dag-cbor"}])
def test_a_v13_signature_that_is_no_list_of_three_is_refused(who):
    with pytest.raises(Invalid, match="not a list of codec"):
        decode(V13, TOPIC, changed(V13, 0, who))


@pytest.mark.parametrize("did", [None, 7, b"did:key:z6Mk", "", "did:web:example.com", "did:key:m7QE"])
def test_a_v13_author_that_is_no_did_key_is_refused(did):
    with pytest.raises(InvalidKey, match="not a did:key"):
        decode(V13, TOPIC, changed(V13, 0, ["dag-cbor", did, bytes(64)]))


@BOTH
@pytest.mark.parametrize("parent", [None, "0" * 32, b"", b"\x01" + bytes(18), b"\x01" + bytes(20)])
def test_a_parent_that_is_no_key_is_refused(profile, parent):
    with pytest.raises(Invalid, match="must be a key of 20 bytes"):
        decode(profile, TOPIC, changed(profile, -2, [parent]))


@BOTH
@pytest.mark.parametrize("parents", [b"", "", {}, None, 0, False])
def test_no_parents_have_one_spelling(profile, parents):
    good = sign(profile, key(1), TOPIC, (), "x").raw
    assert changed(profile, -2, []) == good  # the signature does not cover how parents are written
    with pytest.raises(Invalid, match="parents must be a list"):
        decode(profile, TOPIC, changed(profile, -2, parents))


@BOTH
def test_message_signed_for_other_topic_not_stored(profile):
    log = memory_log(profile=profile.name)
    made = sign(profile, key(1), TOPIC, (), "x")
    with pytest.raises(Invalid, match=r"'com\.other', not to"):
        log.insert_signed(made.signature, made.message._replace(topic="com.other"))
    assert len(log) == 0


def test_apply_that_writes_is_rolled_back(make_table):
    def apply(id, signature, message):
        log.append("from inside")

    log = GossipLog(make_table(), TOPIC, signer=key(1), apply=apply)
    with pytest.raises(Conflict, match="inside apply"):
        log.append("outer")
    assert len(log) == 0


def test_parents_in_one_order_are_taken_and_doubled_ones_refused():
    low, high = b"\x01" + bytes(19), b"\x02" + bytes(19)
    assert check_parents([low, high]) == (low, high)
    for parents in ([high, low], [low, low]):
        with pytest.raises(BrokenLink, match="strictly ascending"):
            check_parents(parents)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_dag_json_is_written_as_deep_as_it_is_read_and_no_deeper():
    dag_json.encode(nested(dag_json.DEPTH_MAX))
    with pytest.raises(InvalidJson, match="nested deeper"):
        dag_json.encode(nested(dag_json.DEPTH_MAX + 1))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, {b"k": 2}])
def test_what_dag_json_has_no_form_for_is_refused(value):
    with pytest.raises(InvalidJson, match=r"DAG-JSON form|not text"):
        dag_json.encode(value)


@pytest.mark.parametrize("text", ["cm9wZQ==", "cm9wZR", "cm9w ZQ", "cm9wZ", "cm-_"])
def test_bytes_in_a_second_spelling_are_no_dag_json(text):
    with pytest.raises(InvalidJson, match="not base64"):
        dag_json.from_json({"/": {"bytes": text}})
