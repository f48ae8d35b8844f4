"""The front door: every verb of every handle on real repositories, and what bad input raises."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import LIMIT_S

import ropewalk
from ropewalk import Repository, SigningKey, gitlog, ledger, stream
from ropewalk.errors import (
    Conflict,
    Denied,
    Invalid,
    InvalidEnvelope,
    InvalidName,
    NotFound,
    RopewalkError,
    Unavailable,
    Usage,
)

CREATED = {"type": "proposal.created", "payload": {"id": 7}}


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with ropewalk.init(tmp_path / "log.git") as opened:
        yield opened


@pytest.fixture(params=["events", "messages"])
def log(repo: Repository, request: pytest.FixtureRequest) -> ropewalk.EventLog:
    handle: ropewalk.EventLog = getattr(repo, request.param)("governance")
    return handle


# Event logs


def test_event_log_appends_reads_and_iterates(log):
    receipt = log.append(CREATED)
    receipts = log.append_all([{"type": "x", "payload": {"id": n}} for n in range(3)])
    assert [type(each) for each in receipts] == [ropewalk.Receipt] * 3
    first = log.read(limit=2)
    assert [event.ulid for event in first.events] == [receipt.ulid, receipts[0].ulid]
    assert [event.payload for event in log.read(first.next_since).events] == [{"id": 1}, {"id": 2}]
    assert [event.payload["id"] for event in log] == [7, 0, 1, 2]
    assert [event.payload for event in log.events(since=receipts[1].ulid)] == [{"id": 2}]
    assert [event.payload["id"] for event in log.tail(2)] == [1, 2]
    assert len(log) == 4 and log.head().ulid == receipts[2].ulid


def test_event_log_append_all_keeps_good_events(log):
    outcomes = log.append_all([CREATED, {"payload": {}}, gitlog.Draft(CREATED | {"payload": {"id": 2}})])
    assert isinstance(outcomes[1], InvalidEnvelope) and len(log) == 2


def test_event_log_verifies_itself_only(repo, log):
    log.append(CREATED)
    other = repo.messages if log.kind == "namespace" else repo.events
    other("governance").append_all([CREATED, CREATED])
    report = log.verify(deep=True)
    assert report.ok and report.entries == 1


def test_event_log_follows_other_writers(repo, log):
    log.append(CREATED)
    stop = threading.Event()
    following = log.follow(stop=stop)
    with ropewalk.open(repo.path) as other:
        getattr(other, "events" if log.kind == "namespace" else "messages")("governance").append(
            CREATED | {"payload": {"id": 8}}
        )
    assert next(following).payload == {"id": 8}
    stop.set()
    assert list(following) == []


def test_event_log_consumes_behind_the_cursor(log):
    log.append_all([CREATED] * 3)
    with pytest.raises(TimeoutError), log.consume("billing") as events:
        next(events)
        raise TimeoutError
    with log.consume("billing", limit=2) as events:
        assert len(list(events)) == 2
    with log.consume("billing") as events:
        assert len(list(events)) == 1


def test_empty_event_log_has_no_head_and_no_page(log):
    assert len(log) == 0 and log.head() is None
    with pytest.raises(NotFound):
        log.read()
    with pytest.raises(NotFound):
        log.tail()


@pytest.mark.parametrize("bad", [None, [], "text", {"type": 7, "payload": {}}, {}])
def test_event_log_rejects_bad_events(log, bad):
    with pytest.raises(Invalid):
        log.append(bad)


def test_names_are_checked_when_the_handle_is_made(repo):
    with pytest.raises(InvalidName):
        repo.events("../up")
    with pytest.raises(InvalidName):
        repo.messages("a b")
    with pytest.raises(NotFound, match="no channel"):
        repo.channel("missing")
    with pytest.raises(Invalid):
        repo.create_channel("../up")


# Ledger channels


@pytest.fixture
def channel(repo: Repository) -> ropewalk.LedgerChannel:
    return repo.create_channel("audit")


def test_channel_appends_proves_and_exports(repo, channel, tmp_path):
    first = channel.submit("deploy", {"v": 7}, domain="ops", event_class="Command", correlation_id="c-1")
    key = SigningKey.generate("ed25519", bytes(range(32)))
    envelope = ledger.build(
        key,
        domain="ops",
        event_class="Observation",
        event_type="seen",
        payload=1,
        timestamp="2024-11-01T12:00:00Z",
    )
    second = channel.append(envelope)
    again, refused = channel.append_all([envelope.raw, b"{}"])
    assert again.replayed and isinstance(refused, InvalidEnvelope)
    assert (
        [each.event_type for each in channel] == ["deploy", "seen"] == [e.event_type for e in channel.tail()]
    )
    assert [each.event_type for each in channel.tail(1)] == ["seen"]
    assert len(channel) == 2 and channel.head().height == 2
    assert [block.height for block in channel.read(1)] == [second.height]
    assert channel.read(2) == channel.read(0, limit=0) == []
    for name in (envelope, envelope.id, envelope.hex_id):
        assert channel.prove(name).envelope.id == second.envelope_id
    channel.export(tmp_path / "audit.tar.zst")
    report = ropewalk.verify(tmp_path / "audit.tar.zst", trust=channel.trust(), deep=True)
    assert report.verdict == "passed" and report.entries == 2
    (tmp_path / "proof.json").write_bytes(channel.prove(first.envelope_id).to_bytes())
    assert ropewalk.verify(tmp_path / "proof.json", trust=channel.trust()).verdict == "passed"
    assert ropewalk.verify(tmp_path / "proof.json").verdict == "untrusted"
    assert channel.verify(deep=True).verdict == "passed"
    assert repo.verify().entries == 2


def test_channel_key_of_the_caller_seals(repo):
    key = SigningKey.generate("ed25519", bytes(range(32)))
    with repo.create_channel("own", key=key) as own:
        own.submit("x", None, domain="d")
        assert own.trust().block_signers == (key.public,)
    with repo.channel("own") as other, pytest.raises(RopewalkError):  # its key is not in this repository
        other.submit("x", None, domain="d")


def test_channel_is_created_once(repo, channel):
    assert repo.channels() == ["audit"]
    with pytest.raises(Conflict, match="exists"):
        repo.create_channel("audit")


def test_channel_lock_is_released_by_close(repo, channel):
    channel.submit("x", None, domain="d")
    with repo.channel("audit", lock_wait_s=0) as second, pytest.raises((Conflict, Unavailable)):
        second.submit("x", None, domain="d")
    channel.close()
    with repo.channel("audit", lock_wait_s=0) as second:
        second.submit("x", None, domain="d")
    with repo.channel("audit") as reading:
        assert len(reading) == 2


# Gossip topics


def test_gossip_topic_verbs(repo):
    chat = repo.gossip("chat.example", signer=repo.key())
    chat.append({"n": 0})
    chat.append_all([{"n": 1}, {"n": 2}])
    assert [signed.message.payload["n"] for signed in chat] == [0, 1, 2]
    assert [signed.message.payload["n"] for signed in chat.tail(2)] == [1, 2]
    (cursor, _), *_ = chat.read(limit=1)
    assert [signed.message.payload["n"] for _, signed in chat.read(cursor)] == [1, 2]
    assert len(chat) == 3 and len(chat.heads()) == 1
    assert chat.verify().verdict == "passed"
    assert repo.gossip_topics() == ["chat.example"]


def test_gossip_rules_reject(repo):
    def access(_history: Any, _signed: Any) -> None:
        raise Denied("read only")

    topic = repo.gossip("rules.example", signer=repo.key(), access=access)
    with pytest.raises(Denied):
        topic.append({})
    assert len(topic) == 0


def test_gossip_topic_must_exist_without_create(repo):
    with pytest.raises(NotFound, match="no gossip topic"):
        repo.gossip("missing.example", create=False)
    assert repo.gossip_topics() == []


def test_gossip_syncs_with_a_served_topic(repo, tmp_path):
    async def exchange() -> None:
        ours = repo.gossip("sync.example", signer=repo.key())
        ours.append({"from": "us"})
        with ropewalk.init(tmp_path / "peer.git") as peer:
            theirs = peer.gossip("sync.example", signer=peer.key())
            theirs.append({"from": "them"})
            async with theirs.serve() as server:
                report = await ours.sync(server.url)
            assert (report.received, report.sent) == (1, 1)
            assert ours.log.root() == theirs.log.root()
            raw = next(iter(theirs)).raw
            assert repo.gossip("copy.example").log.has(ours.heads()[0]) is False
            assert ours.insert(raw).id

    asyncio.run(asyncio.wait_for(exchange(), LIMIT_S))


# Streams


def test_stream_delivers_messages(repo):
    async def subscribe() -> Any:
        async with repo.stream() as server, stream.Following(server.url, topics=["jobs.*"]) as frames:
            await asyncio.to_thread(repo.messages("jobs/pending").append, CREATED)
            return await anext(frames)

    frame = asyncio.run(asyncio.wait_for(subscribe(), LIMIT_S))
    assert isinstance(frame, stream.BusEvent) and frame.payload == {"id": 7}


# Repositories


def test_repository_lists_mirrors_tails_and_verifies(repo):
    repo.events("prod").append(CREATED)
    repo.events("test").append(CREATED)
    assert repo.mirror("ns:prod", "topic:deploys").mirrored == 1
    assert (repo.namespaces(), repo.topics()) == (["prod", "test"], ["deploys"])
    assert [event.topic for event in repo.tail(["prod", "test"])] == ["prod", "test"]
    stop = threading.Event()
    following = repo.follow(["prod", "test"], since={"prod": "", "test": ""}, stop=stop)
    assert {next(following).topic, next(following).topic} == {"prod", "test"}
    stop.set()
    assert repo.verify().verdict == "passed" and repo.verify("prod").entries == 1
    with pytest.raises(NotFound):
        repo.verify("absent")


def test_open_refuses_wrong_paths(tmp_path):
    with pytest.raises(NotFound, match="no git repository"):
        ropewalk.open(tmp_path / "missing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(Unavailable, match="no git repository"):
        ropewalk.init(tmp_path / "file")


def test_open_again_sees_everything(repo, tmp_path):
    repo.events("prod").append(CREATED)
    repo.create_channel("audit").submit("x", None, domain="d")
    repo.gossip("chat.example", signer=repo.key()).append({})
    repo.close()
    with ropewalk.open(tmp_path / "log.git") as again:
        assert (
            len(again.events("prod")) == len(again.channel("audit")) == len(again.gossip("chat.example")) == 1
        )
    assert ropewalk.init(tmp_path / "log.git").key().public == again_key(tmp_path)


def again_key(tmp_path: Path) -> ropewalk.PublicKey:
    with ropewalk.open(tmp_path / "log.git") as repo:
        return repo.key().public


def test_closed_handles_refuse(repo, channel):
    handles = [repo.events("a"), repo.messages("a"), channel, repo.gossip("a.example", signer=repo.key())]
    for handle in handles:
        with handle:
            assert "closed" not in repr(handle)
        assert repr(handle).endswith("closed>")
        for verb in (handle.verify, handle.tail, handle.read, handle.__len__, lambda: list(handle)):  # noqa: B023
            with pytest.raises(Usage, match="closed"):
                verb()
        handle.close()  # a second time
    for act in (
        lambda: channel.submit("x", None, domain="d"),
        lambda: channel.prove_state("registers", "/a"),
    ):
        with pytest.raises(Usage, match="closed"):
            act()


def test_closed_repository_closes_its_handles(repo, channel):
    events, gossip = repo.events("a"), repo.gossip("a.example", signer=repo.key())
    channel.submit("x", None, domain="d")
    repo.close()
    repo.close()
    assert repr(repo).endswith("closed>")
    for act in (
        lambda: events.append(CREATED),
        lambda: channel.submit("x", None, domain="d"),
        lambda: gossip.append({}),
        lambda: repo.events("b"),
        lambda: repo.channel("audit"),
        lambda: repo.gossip("a.example"),
        repo.namespaces,
        repo.topics,
        repo.channels,
        repo.gossip_topics,
        repo.verify,
        repo.stream,
        repo.key,
    ):
        with pytest.raises(Usage, match="closed"):
            act()


def test_secrets_are_refused_unless_allowed(repo, tmp_path):
    secret = {"type": "x", "payload": {"token": "ghp_" + "a1B2" * 9}}
    with pytest.raises(RopewalkError):
        repo.events("prod").append(secret)
    with ropewalk.open(repo.path, allow_secrets=True) as again:
        again.events("prod").append(secret)


# ropewalk.verify


def test_verify_refuses_options_of_another_kind(repo, tmp_path):
    with pytest.raises(Usage, match="origin applies to a checkpoint"):
        ropewalk.verify(repo.path, origin="x")
    with pytest.raises(NotFound):
        ropewalk.verify(tmp_path / "missing.json")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(Invalid, match="no repository, no proof"):
        ropewalk.verify(tmp_path / "text")
    with pytest.raises(NotFound, match="missing"):
        ropewalk.verify(repo.path, trust=tmp_path / "missing.json")


def test_verify_trusts_only_the_keys_given(repo, channel, tmp_path):
    channel.submit("x", None, domain="d")
    trust = tmp_path / "trust.json"
    trust.write_bytes(channel.trust().to_bytes())
    assert ropewalk.verify(repo.path, trust=trust).verdict == "passed"
    stranger = ledger.Trust((SigningKey.generate("ed25519", bytes(range(32))).public,), ())
    assert ropewalk.verify(repo.path, trust=stranger).verdict == "failed"


def test_verify_checks_archives_and_checkpoints(repo, channel, tmp_path):
    for n in range(3):
        channel.submit("x", n, domain="d")
    channel.close()
    ledger.archive_channel(repo.path / "ropewalk", "audit", repo.key(), tmp_path / "cold")
    with repo.channel("audit") as again:
        assert ropewalk.verify(tmp_path / "cold", trust=again.trust()).verdict == "passed"
    (damaged,) = (tmp_path / "cold").rglob("*.zst")
    damaged.chmod(0o600)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert ropewalk.verify(tmp_path / "cold").verdict == "failed"


def test_handles_opened_at_once_are_all_closed(repo: Repository):
    """Another thread opens a handle just while this one adds its own to the list."""
    opened: list[Any] = []
    other = threading.Thread(target=lambda: opened.append(repo.gossip("com.other")), daemon=True)

    class Pausing(type(repo.gossip("com.first"))):  # type: ignore[misc]
        @property
        def closed(self) -> bool:
            if other.ident is None:
                other.start()
                other.join(1)
            return bool(vars(self).get("shut"))

        @closed.setter
        def closed(self, value: bool) -> None:
            self.__dict__["shut"] = value

    repo._handles[0].__class__ = Pausing
    opened.append(repo.gossip("com.second"))
    other.join(LIMIT_S)
    repo.close()
    assert [handle.closed for handle in opened] == [True, True]
