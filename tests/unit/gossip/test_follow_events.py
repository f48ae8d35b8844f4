"""Events of a log in one process while another one appends or syncs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from tests.unit.gossip.conftest import key, memory_log

import ropewalk
from ropewalk import gossip
from ropewalk.errors import Damaged
from ropewalk.gossip.core.events import Committed, Event, Stored, Synced
from ropewalk.gossip.peer.follow import follow_events

TOPIC = "com.example"
_ELSEWHERE = """
import sys
from pathlib import Path
from ropewalk import gossip
_, folder, verb = sys.argv
with gossip.open("com.example", Path(folder), signer=gossip.Ed25519Signer()) as log:
    if verb == "append":
        log.append_many("ab")
    else:
        source = gossip.open("com.example", signer=gossip.Ed25519Signer())
        source.append("theirs")
        gossip.pull_from(log, source)
        gossip.pull_from(log, source)  # brings nothing, so nothing is written down
"""


def elsewhere(folder: Path, verb: str) -> None:
    subprocess.run([sys.executable, "-c", _ELSEWHERE, folder, verb], check=True)


def payload(event: Event) -> object:
    assert isinstance(event, Stored)
    return event.message.payload


def test_commit_and_sync_of_another_process_are_events(tmp_path):
    with gossip.open(TOPIC, tmp_path, signer=key(1)) as log:
        log.append("earlier")
        events = follow_events(log)
        elsewhere(tmp_path, "append")
        one, two, commit = islice(events, 3)
        assert (payload(one), payload(two)) == ("a", "b")
        assert commit == Committed(log.root())
        elsewhere(tmp_path, "sync")
        pulled, commit, sync = islice(events, 3)
        assert payload(pulled) == "theirs"
        assert commit == Committed(log.root())
        assert sync == Synced("in-process", 1, log.root())
        log.append("ours")
        assert payload(next(events)) == "ours"  # the sync without messages is no event


def test_topic_of_a_repository_follows_events(tmp_path):
    with ropewalk.init(tmp_path / "repo") as repo:
        topic = repo.gossip(TOPIC, signer=repo.key())
        events = topic.follow_events()
        topic.append("ours")
        assert payload(next(events)) == "ours"


def test_asyncio_follows_events(tmp_path):
    async def run() -> list[Event]:
        async with gossip.AsyncLog(gossip.open(TOPIC, tmp_path, signer=key(1))) as log:
            events = log.follow_events()
            await asyncio.to_thread(elsewhere, tmp_path, "sync")
            return [await anext(events) for _ in range(3)]

    stored, commit, sync = asyncio.run(run())
    assert payload(stored) == "theirs"
    assert isinstance(commit, Committed)
    assert isinstance(sync, Synced) and sync.root == commit.root


def test_root_is_told_after_its_messages(monkeypatch):
    """More messages than one look reads: the commit that covers them comes after the last one."""
    monkeypatch.setattr("ropewalk.gossip.peer.follow.BATCH", 4)
    log = memory_log()
    events = follow_events(log)
    log.append_many(range(10))
    found = list(islice(events, 11))
    assert [payload(each) for each in found[:10]] == list(range(10))
    assert found[10] == Committed(log.root())


def test_damaged_record_of_a_sync_is_refused():
    log = memory_log()
    gossip.pull_from(log, memory_log(signer=key(2)))
    events = follow_events(log)
    log.table.transact(lambda change: change.put("meta", b"sync", b"\x81\x01"))
    with pytest.raises(Damaged, match="newest sync"):
        next(events)
