"""Sync between honest peers converges; every lie of a peer is cut off with its reason."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.prolly import build
from tests.unit.gossip.conftest import ground, key, memory_log, raws

from ropewalk.errors import (
    BrokenLink,
    DigestMismatch,
    Invalid,
    InvalidCbor,
    NotFound,
    ProofRefused,
    RangeExceeded,
    RopewalkError,
    SigInvalid,
    TooLarge,
)
from ropewalk.gossip.core.access import owners
from ropewalk.gossip.core.events import Event, Synced
from ropewalk.gossip.core.ids import Key, make_key
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.message import MESSAGE_BYTES_MAX, sign
from ropewalk.gossip.core.profiles import V06, V13
from ropewalk.gossip.sync import questions, session
from ropewalk.gossip.sync.questions import (
    AbortResponse,
    ChildrenRequest,
    ChildrenResponse,
    NodeRequest,
    NodeResponse,
    RootRequest,
    RootResponse,
    SyncRequest,
    SyncResponse,
    ValuesRequest,
    ValuesResponse,
    answer,
)
from ropewalk.gossip.sync.session import drive, pull, pull_from, sync_both
from ropewalk.kernel.digest import sha256
from ropewalk.kernel.prolly.checks import CHILDREN_MAX, LEVEL_MAX
from ropewalk.kernel.prolly.node import ANCHOR, ANCHOR_HASH, Node, leaf_hash, node_hash

BOTH = pytest.mark.parametrize("profile", ["v0.6", "v0.13"])
Ask = Callable[[SyncRequest], SyncResponse]


def filled(count: int, profile: str = "v0.13", signer: int = 1) -> GossipLog:
    log = memory_log(profile=profile, signer=key(signer))
    log.append_many({"n": n} for n in range(count))
    return log


@BOTH
def test_two_logs_come_to_one_root(profile, make_table):
    one = GossipLog(make_table(), "com.example", profile=profile, signer=key(1))
    two = GossipLog(make_table(), "com.example", profile=profile, signer=key(2))
    one.append_many(range(300))
    two.insert_many(raws(one)[:150])
    two.append_many(range(40))
    there, back = sync_both(one, two)
    assert (there.received, back.received) == (40, 150)
    assert one.root() == two.root()
    assert one.heads() == two.heads()
    assert sync_both(one, two)[0].requests == 1


@BOTH
def test_empty_logs_have_nothing_to_say(profile):
    one, two = memory_log(profile=profile), memory_log(profile=profile)
    assert pull_from(one, two) == session.PullResult(0, 0, 1, True)
    two.append(1)
    assert pull_from(two, one).received == 0
    assert pull_from(one, two).received == 1


@BOTH
def test_the_recorded_pull_ends_at_the_recorded_root(profile, vector):
    if profile == "v0.6":
        data = vector("v0.6-sync")
        before, root = data["before"], data["after"]["root_client"]
    else:
        data = vector("v0.13-websocket")
        before, root = data["before"], data["root_server"]
    server, client = (memory_log(data["topic"], profile=profile) for _ in range(2))
    server.insert_many(bytes.fromhex(row["signed_message_cbor"]) for row in before["server"])
    client.insert_many(bytes.fromhex(row["signed_message_cbor"]) for row in before["client"])
    pull_from(client, server)
    if "live" in data:
        client.insert(bytes.fromhex(data["live"]["signed_message_cbor"]))
    assert (client.root().level, client.root().hash.hex()) == (root["level"], root["hash"])


def test_what_differs_is_asked_for_and_little_else():
    shared = raws(filled(3000))
    one, two = memory_log(signer=key(1)), memory_log(signer=key(2))
    one.insert_many(shared)
    two.insert_many(shared)
    two.append("one more")
    pulled = pull_from(one, two)
    assert pulled.received == 1
    assert pulled.requests < 10


def test_v06_syncs_past_clock_16383_with_parents_first():
    one, two = (memory_log(profile="v0.6", signer=key(n)) for n in (1, 2))
    ground(one, 16_300)
    ground(two, 16_300)
    one.append_many(range(400))
    first = min(one.iterate(), key=lambda m: m.key)
    assert first.message.clock > 16_383, "raw keys lead to the wrong end"
    assert pull_from(two, one).received == 400
    assert two.root() == one.root()
    assert two.pending() == []
    two.append_many(range(50))
    assert pull_from(one, two).received == 50
    assert two.root() == one.root()


def test_an_aborted_session_is_resumed_where_it_stopped(monkeypatch):
    monkeypatch.setattr(session, "CHUNK_MESSAGES", 32)
    source, target = filled(500), memory_log()
    sessions = 0
    while target.root() != source.root():
        sessions += 1
        questions = 0

        def ask(request: SyncRequest) -> SyncResponse:
            nonlocal questions
            questions += 1
            if questions > 8:
                return AbortResponse(100)
            with source.view() as view:
                return answer(view, source.profile, request)

        before = len(target)
        pulled = drive(pull(target), ask)
        assert len(target) - before == pulled.received > 0
        assert sessions < 50
    assert sessions > 3


def test_a_source_that_grows_meanwhile_serves_one_moment(make_table):
    source = GossipLog(make_table(), "com.example", signer=key(1))
    source.append_many(range(200))
    root = source.root()
    target = memory_log()
    with source.view() as view:

        def ask(request: SyncRequest) -> SyncResponse:
            source.append("meanwhile")
            return answer(view, source.profile, request)

        drive(pull(target), ask)
    assert target.root() == root
    pull_from(target, source)
    assert target.root() == source.root()


def test_large_messages_are_asked_for_in_smaller_chunks():
    source = memory_log()
    source.append_many([bytes(1 << 20)] * 12)
    biggest = 0

    def ask(request: SyncRequest) -> SyncResponse:
        nonlocal biggest
        with source.view() as view:
            response = answer(view, source.profile, request)
        if isinstance(response, ValuesResponse):
            biggest = max(biggest, len(response.values))
        return response

    target = memory_log()
    drive(pull(target), ask)
    assert target.root() == source.root()
    assert biggest <= 12


def test_what_our_own_rules_refuse_is_not_the_peers_lie():
    source = memory_log(signer=key(1))
    source.append_many(range(20))
    bad = source.append("bad", signer=key(2))
    source.append("stands on bad")
    source.append_many(range(3))
    side = sign(V13, key(1), "com.example", (), "side")
    source.insert(side.raw)
    target = memory_log(access=owners(key(1).public.did()))
    pulled = pull_from(target, source)
    assert pulled == session.PullResult(21, 5, pulled.requests, True)
    assert not target.has(bad.id)
    assert target.has(side.id)
    assert target.pending() == []


def test_a_sync_is_an_event():
    heard: list[Event] = []
    log = memory_log()
    log.on(heard.append, Synced)
    pull_from(log, filled(3), peer="ada")
    assert heard == [Synced("ada", 3, log.root())]


def test_logs_of_two_topics_or_profiles_do_not_sync():
    with pytest.raises(Invalid):
        pull_from(memory_log("com.one"), memory_log("com.two"))
    with pytest.raises(Invalid):
        pull_from(memory_log(profile="v0.6"), memory_log(profile="v0.13"))


@BOTH
def test_answers_carry_values_as_the_profile_does(profile):
    log = filled(40, profile)
    with log.view() as view:
        root = log.root()
        assert answer(view, log.profile, RootRequest()) == RootResponse(root)
        below = answer(view, log.profile, ChildrenRequest(1, ANCHOR))
        assert isinstance(below, ChildrenResponse)
        leaves = below.nodes
        assert leaves[0] == Node(0, ANCHOR, ANCHOR_HASH)
        assert all((leaf.value is not None) == (profile == "v0.6") for leaf in leaves[1:])
        one = answer(view, log.profile, NodeRequest(0, leaves[1].key))
        assert one == NodeResponse(leaves[1])
        assert answer(view, log.profile, NodeRequest(root.level, ANCHOR)) == NodeResponse(root)
        assert answer(view, log.profile, NodeRequest(0, bytes(20))) == NodeResponse(None)
        value = answer(view, log.profile, ValuesRequest((leaves[1].key,)))
        assert isinstance(value, ValuesResponse)
        assert value == ValuesResponse((log.decode(value.values[0]).raw,))


def test_questions_we_do_not_answer():
    log = filled(5)
    with log.view() as view:
        for request, error in (
            (ValuesRequest((bytes(20),)), Invalid),
            (ValuesRequest((b"short",)), Invalid),
            (ValuesRequest((bytes(20),) * 5000), TooLarge),
            (ChildrenRequest(1, bytes(600)), Invalid),
            (NodeRequest(0, bytes(600)), Invalid),
            (ChildrenRequest(0, ANCHOR), RangeExceeded),
            (ChildrenRequest(1, bytes(20)), NotFound),
            (ChildrenRequest(300, ANCHOR), RangeExceeded),
        ):
            with pytest.raises(error):
                answer(view, V13, request)


# Lies. Each takes an honest source and changes one thing.


def honest(source: GossipLog) -> Ask:
    def ask(request: SyncRequest) -> SyncResponse:
        with source.view() as view:
            return answer(view, source.profile, request)

    return ask


def lie(source: GossipLog, change: Callable[[SyncRequest, SyncResponse], SyncResponse]) -> Ask:
    ask = honest(source)
    return lambda request: change(request, ask(request))


def cut(target: GossipLog, ask: Ask, error: type[RopewalkError], match: str | None = None) -> RopewalkError:
    before = len(target)
    with pytest.raises(error, match=match) as caught:
        drive(pull(target), ask)
    assert target.pending() == []
    assert len(target) >= before
    return caught.value


def test_children_with_another_hash():
    def change(request, response):
        if isinstance(response, ChildrenResponse):
            first, *rest = response.nodes
            return ChildrenResponse((replace(first, hash=bytes([255] * 16)), *rest))
        return response

    assert cut(memory_log(), lie(filled(100), change), DigestMismatch, "another hash").exit_code == 5


def test_missing_children():
    cut(
        memory_log(),
        lie(filled(9), lambda q, a: ChildrenResponse(()) if isinstance(a, ChildrenResponse) else a),
        BrokenLink,
        "no children",
    )


def test_a_root_that_is_too_high():
    tall = RootResponse(Node(LEVEL_MAX + 1, ANCHOR, bytes(16)))
    cut(memory_log(), lambda request: tall, TooLarge, "levels")


def test_an_endless_tree():
    """Every node has one child below it, honestly hashed, for ever; the height is announced and bounded."""
    levels = [Node(0, ANCHOR, ANCHOR_HASH)]
    for level in range(1, LEVEL_MAX + 1):
        levels.append(Node(level, ANCHOR, node_hash([levels[-1].hash])))
    asked = 0

    def ask(request: SyncRequest) -> SyncResponse:
        nonlocal asked
        asked += 1
        if isinstance(request, RootRequest):
            return RootResponse(levels[-1])
        assert isinstance(request, ChildrenRequest)
        return ChildrenResponse((levels[request.level - 1],))

    assert drive(pull(memory_log()), ask).received == 0
    assert asked <= LEVEL_MAX + 1


def test_an_endless_list_of_children():
    many = tuple(Node(0, n.to_bytes(20, "big"), bytes([200] * 16)) for n in range(1, CHILDREN_MAX + 1))
    nodes = (Node(0, ANCHOR, ANCHOR_HASH), *many)
    root = Node(1, ANCHOR, node_hash([node.hash for node in nodes]))
    answers: dict[type, SyncResponse] = {
        RootRequest: RootResponse(root),
        ChildrenRequest: ChildrenResponse(nodes),
    }
    cut(memory_log(), lambda request: answers[type(request)], TooLarge, "children")


def test_leaves_that_lead_nowhere_end_it_at_the_first_chunk():
    """A huge tree over invented messages: consistent in itself, and cut off at the first value."""
    fake = build((make_key(V13.code, 1, sha256(b"%d" % n)), b"%d" % n) for n in range(5000))
    asked = 0

    def ask(request: SyncRequest) -> SyncResponse:
        nonlocal asked
        asked += 1
        match request:
            case RootRequest():
                return RootResponse(fake.root)
            case ChildrenRequest(level, key_):
                return ChildrenResponse(tuple(fake.get_children(level, key_)))
            case ValuesRequest(keys):
                return ValuesResponse(tuple(bytes(10) for _ in keys))
        raise AssertionError

    cut(memory_log(), ask, DigestMismatch, "does not have the hash of its leaf")
    assert asked < 40


def serve(entries: list[tuple[bytes, bytes]]) -> Ask:
    """A source whose tree is consistent with whatever it holds."""
    tree = build(entries)
    values = dict(entries)

    def ask(request: SyncRequest) -> SyncResponse:
        match request:
            case RootRequest():
                return RootResponse(tree.root)
            case ChildrenRequest(level, key_):
                return ChildrenResponse(tuple(tree.get_children(level, key_)))
            case ValuesRequest(keys):
                return ValuesResponse(tuple(values[key_] for key_ in keys))
        raise AssertionError

    return ask


def test_a_bad_signature_keeps_what_came_before_it():
    good = sign(V13, key(1), "com.example", (), "good")
    other = sign(V13, key(1), "com.example", (good.key,), "other")
    forged = other.raw.replace(other.signature.signature, good.signature.signature)
    bad_key = make_key(V13.code, 2, sha256(forged))
    target = memory_log()
    cut(target, serve([(good.key, good.raw), (bad_key, forged)]), SigInvalid)
    assert [signed.id for signed in target.iterate()] == [good.id]


def test_a_message_whose_parents_the_peers_own_tree_lacks():
    parent = sign(V13, key(1), "com.example", (), "parent")
    child = sign(V13, key(1), "com.example", (parent.key,), "child")
    root = sign(V13, key(2), "com.example", (), "root")
    target = memory_log()
    error = cut(
        target,
        serve([(root.key, root.raw), (child.key, child.raw)]),
        BrokenLink,
        "is missing in the peer's tree",
    )
    assert error.exit_code == 5
    assert len(target) == 1


def test_a_message_under_a_key_that_is_not_its_own():
    made = sign(V13, key(1), "com.example", (), "x")
    cut(memory_log(), serve([(b"\x01" + bytes(19), made.raw)]), DigestMismatch, "keeps message")


def test_other_bytes_under_a_key_we_have():
    target = filled(1)
    mine = next(target.iterate())
    cut(target, serve([(mine.key, b"other")]), DigestMismatch, "names its own bytes")


def test_a_huge_value():
    fake = bytes(MESSAGE_BYTES_MAX + 1)
    cut(memory_log(), serve([(make_key(V13.code, 1, sha256(fake)), fake)]), TooLarge)


def test_a_value_that_is_not_canonical():
    made = sign(V13, key(1), "com.example", (), 1)
    raw = made.raw[:-1] + b"\x18\x01"
    cut(memory_log(), serve([(make_key(V13.code, 1, sha256(raw)), raw)]), InvalidCbor)


def test_a_message_of_a_foreign_topic():
    made = sign(V13, key(1), "com.other", (), 1)
    cut(memory_log(), serve([(made.key, made.raw)]), Invalid, "belongs to topic")


def test_too_few_values():
    def change(request, response):
        return ValuesResponse(response.values[:-1]) if isinstance(response, ValuesResponse) else response

    cut(memory_log(), lie(filled(9), change), BrokenLink, "asked for")


def test_values_in_another_order():
    def change(request, response):
        return ValuesResponse(response.values[::-1]) if isinstance(response, ValuesResponse) else response

    cut(memory_log(), lie(filled(9), change), DigestMismatch)


def test_replayed_nodes():
    """The children of one node, sent again for another: their hashes or keys give it away."""
    source = filled(2000)
    kept: list[ChildrenResponse] = []

    def change(request, response):
        if isinstance(request, ChildrenRequest) and request.level == 1:
            kept.append(response)
            return kept[0]
        return response

    cut(memory_log(), lie(source, change), BrokenLink)


def test_children_outside_their_parents_range():
    leaf = Node(0, b"\x05" * 20, bytes([2] * 16))  # a boundary whose parent is none
    low = Node(0, b"\x04" * 20, bytes([200] * 16))
    below = [(Node(0, ANCHOR, ANCHOR_HASH),), (leaf, low)]
    parents = tuple(Node(1, nodes[0].key, node_hash([node.hash for node in nodes])) for nodes in below)
    root = Node(2, ANCHOR, node_hash([node.hash for node in parents]))
    table = {(2, ANCHOR): parents, (1, ANCHOR): below[0], (1, leaf.key): below[1]}

    def ask(request: SyncRequest) -> SyncResponse:
        if isinstance(request, ChildrenRequest):
            return ChildrenResponse(table[request.level, request.key])
        return RootResponse(root)

    cut(memory_log(), ask, BrokenLink, "not in order")


@pytest.mark.parametrize(
    "which", ["boundary inside", "no boundary first", "first key", "level", "hash length", "key length"]
)
def test_children_of_the_wrong_shape(which):
    first = Node(0, ANCHOR, ANCHOR_HASH)
    second = Node(0, b"\x01" * 20, bytes([200] * 16))
    match which:
        case "boundary inside":
            second = replace(second, hash=bytes(16))
        case "first key":
            first = replace(first, key=b"\x00" * 20)
        case "level":
            second = replace(second, level=3)
        case "hash length":
            second = replace(second, hash=bytes([200] * 15))
        case "key length":
            second = replace(second, key=b"\x01" * 19)
    nodes = (first, second)
    parent = Node(1, ANCHOR, node_hash([node.hash for node in nodes]))
    if which == "no boundary first":
        head = Node(1, b"\x01" * 20, node_hash([second.hash]))
        answers = {
            (2, ANCHOR): (Node(1, ANCHOR, node_hash([ANCHOR_HASH])), replace(head, hash=head.hash)),
            (1, ANCHOR): (Node(0, ANCHOR, ANCHOR_HASH),),
            (1, head.key): (second,),
        }
        root = Node(2, ANCHOR, node_hash([node.hash for node in answers[2, ANCHOR]]))
    else:
        answers, root = {(1, ANCHOR): nodes}, parent

    def ask(request: SyncRequest) -> SyncResponse:
        if isinstance(request, ChildrenRequest):
            return ChildrenResponse(answers[request.level, request.key])
        return RootResponse(root)

    with pytest.raises((BrokenLink, ProofRefused)):
        drive(pull(memory_log()), ask)


def test_answers_to_another_question():
    cut(memory_log(), lambda request: ValuesResponse(()), Invalid, "answered ValuesResponse to RootRequest")


@pytest.mark.parametrize(
    "root",
    [
        Node(1, bytes(20), bytes(16)),
        Node(1, ANCHOR, bytes(15)),
        Node(-1, ANCHOR, bytes(16)),
        Node(0, ANCHOR, bytes(16)),
    ],
)
def test_roots_that_are_none(root):
    with pytest.raises(RopewalkError):
        drive(pull(memory_log()), lambda request: RootResponse(root))


def test_v06_leaves_with_other_values():
    def change(request, response):
        if isinstance(response, ChildrenResponse) and response.nodes[-1].value is not None:
            return ChildrenResponse((*response.nodes[:-1], replace(response.nodes[-1], value=b"other")))
        return response

    cut(memory_log(profile="v0.6"), lie(filled(9, "v0.6"), change), DigestMismatch)


def test_a_v06_key_with_a_clock_in_a_second_spelling():
    key_ = Key(b"\x80\x01" + bytes(18))
    leaf = Node(0, key_, leaf_hash(key_, b"x"), b"x")
    nodes = (Node(0, ANCHOR, ANCHOR_HASH), leaf)
    if leaf.hash[0] < 8:
        pytest.fail("choose another value: this leaf is a boundary")
    root = Node(1, ANCHOR, node_hash([node.hash for node in nodes]))
    answers: dict[type, SyncResponse] = {
        RootRequest: RootResponse(root),
        ChildrenRequest: ChildrenResponse(nodes),
    }
    cut(memory_log(profile="v0.6"), lambda request: answers[type(request)], Invalid, "clock")


def test_random_answers_never_get_through():
    """Whatever a peer sends, the log ends with verified messages or none."""
    source = filled(60)
    for seed in range(60):
        random_ = random.Random(seed)

        def change(request, response, random_=random_):
            if random_.random() < 0.5:
                return response
            match response:
                case ChildrenResponse(nodes):
                    shuffled = list(nodes)
                    random_.shuffle(shuffled)
                    return ChildrenResponse(tuple(shuffled[: random_.randint(0, len(nodes))]))
                case ValuesResponse(values):
                    return ValuesResponse(tuple(bytes(random_.sample(value, len(value))) for value in values))
                case RootResponse(node):
                    return RootResponse(
                        replace(node, level=random_.randint(0, 3), hash=random_.randbytes(16))
                    )
            return response

        target = memory_log()
        with contextlib.suppress(RopewalkError):
            drive(pull(target), lie(source, change))
        assert all(source.has(signed.id) for signed in target.iterate())


def test_v06_leaf_values_are_required_to_be_there():
    made = sign(V06, key(1), "com.example", (), "x")
    tree = build([(made.key, made.raw)])

    def ask(request: SyncRequest) -> SyncResponse:
        match request:
            case RootRequest():
                return RootResponse(tree.root)
            case ChildrenRequest(level, key_):
                return ChildrenResponse(tuple(tree.get_children(level, key_)))  # without values
            case _:
                return NodeResponse(None)

    cut(memory_log(profile="v0.6"), ask, BrokenLink, "does not send")


def test_v06_leaves_that_do_not_fit_one_answer_are_asked_for_singly(monkeypatch):
    monkeypatch.setattr(questions, "CARRIED_BYTES_MAX", 3000)
    monkeypatch.setattr(session, "CHUNK_BYTES", 2000)
    source, target = memory_log(profile="v0.6"), memory_log(profile="v0.6")
    source.append_many({"n": n, "text": "x" * 400} for n in range(400))
    asked: list[SyncRequest] = []

    def ask(request: SyncRequest) -> SyncResponse:
        asked.append(request)
        response = honest(source)(request)
        if isinstance(response, ChildrenResponse):
            assert sum(len(node.value or b"") for node in response.nodes) < 4000
        return response

    assert drive(pull(target), ask).received == 400
    assert target.root() == source.root()
    assert any(isinstance(request, NodeRequest) for request in asked)


def test_a_v06_leaf_asked_for_singly_is_not_believed_either(monkeypatch):
    monkeypatch.setattr(questions, "CARRIED_BYTES_MAX", 0)

    def change(request, response):
        if isinstance(response, NodeResponse) and response.node is not None:
            return NodeResponse(replace(response.node, value=b"other"))
        return response

    cut(memory_log(profile="v0.6"), lie(filled(9, "v0.6"), change), DigestMismatch)


def test_v06_leaves_with_huge_values_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(session, "CHUNK_BYTES", 50_000)
    source, target = filled(2000, "v0.6"), memory_log(profile="v0.6")
    answers = []

    def change(request, response):
        if isinstance(request, ChildrenRequest) and request.level == 1:
            answers.append(request)
            nodes = response.nodes
            return ChildrenResponse((*nodes[:-1], replace(nodes[-1], value=bytes(60_000))))
        return response

    monkeypatch.setattr(session, "CHUNK_MESSAGES", 1000)
    monkeypatch.setattr(session._Pull, "_chunk", lambda _: 1000)  # judged by small messages
    cut(target, lie(source, change), DigestMismatch)
    assert len(answers) == 1
