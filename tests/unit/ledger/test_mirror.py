"""Mirrors of a channel in git: new events that name old envelopes, the same on every machine, and only what holds."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tools import needs
from tests.unit.ledger.making import NODE, NOON_NS, P256, chain_of_blocks, observed, opened

from ropewalk.bridge.envelope_event import document_of, ulid_of
from ropewalk.bridge.event_copy import MirrorResult
from ropewalk.bridge.mirror import Mirror, keep_mirroring
from ropewalk.bridge.mirror import mirror as mirror_logs
from ropewalk.bridge.progress import list_progress
from ropewalk.disk.repository_paths import find_repository
from ropewalk.errors import HistoryRewritten, Invalid, NotFound, OutOfOrder, Unavailable, Unverified
from ropewalk.gitlog.core.envelope import Event
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG
from ropewalk.gitlog.privacy.apply import policy_file
from ropewalk.gitlog.repository.opening import init_repository, open_repository
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import content_id
from ropewalk.kernel.ulid import time_ms
from ropewalk.ledger.block.block import Block, Header, parse_record, seal
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.envelope.model import Envelope, payload_hash
from ropewalk.ledger.ingest.ports import IngestLimits
from ropewalk.ledger.rules.policy import parse_policy
from ropewalk.verification import verify as verify_repository

GIT = needs("git")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    init_repository(tmp_path / "one.git").close()
    return tmp_path / "one.git"


def add(folder: Path, *envelopes: Envelope, channel: str = "audit", at_ns: int = NOON_NS) -> None:
    """Seal envelopes, two to a block."""
    limits = IngestLimits(block_envelopes=2)
    with opened(find_repository(folder).home, channel, now_ns=lambda: at_ns, limits=limits) as channel_log:
        outcomes = channel_log.log.submit_many([envelope.raw for envelope in envelopes])
        assert not [each for each in outcomes if isinstance(each, Exception)]


def store(folder: Path, blocks: list[Block]) -> None:
    """Put blocks on disk as they are, whatever is wrong with them."""
    with opened(find_repository(folder).home, "audit") as channel_log:
        for block in blocks:
            channel_log.writer.append(block.height, block.lines())
        channel_log.writer.sync()


def mirror(folder: Path, to: str = "ns:audit", *sources: str) -> MirrorResult:
    with open_repository(folder) as log:
        return mirror_logs(log, sources or ["channel:audit"], to)


def events(folder: Path, topic: str = "audit", layout: Any = SHIPLOG) -> list[Event]:
    with open_repository(folder) as log:
        return list(log.events(topic, layout=layout))


@GIT
def test_every_envelope_becomes_an_event_that_names_it(folder):
    sent = [observed(n) for n in range(5)]
    add(folder, *sent)
    assert mirror(folder) == MirrorResult(mirrored=5)
    found = events(folder)
    assert [event.payload["envelope_id"] for event in found] == [each.hex_id for each in sent]
    assert [event.payload["payload"] for event in found] == [{"n": n} for n in range(5)]
    with open_channel(find_repository(folder).home, "audit") as channel:
        blocks = list(channel.blocks())
        for event in found:
            block = blocks[event.payload["height"]]
            assert event.payload["block_hash"] == block.hash.hex()
            assert event.envelope["refs"] == {
                "block": f"blake3:{block.hash.hex()}",
                "envelope": f"blake3:{event.payload['envelope_id']}",
            }
            proof = channel.prove(bytes.fromhex(event.payload["envelope_id"]))
            assert (proof.height, proof.index) == (event.payload["height"], event.payload["index"])
    assert {event.type for event in found} == {"test.seen"}
    assert verify_repository(folder, deep=True).ok
    fsck = subprocess.run(["git", "-C", folder, "fsck", "--strict"], capture_output=True, check=False)
    assert (fsck.returncode, fsck.stdout) == (0, b"")


def test_two_machines_make_the_same_events_and_the_same_commits(folder, tmp_path):
    add(folder, *[observed(n) for n in range(5)])
    shutil.copytree(folder, tmp_path / "two.git")
    for at in (folder, tmp_path / "two.git"):
        mirror(at)
    one, two = (events(at) for at in (folder, tmp_path / "two.git"))
    assert [(e.raw, e.commit) for e in one] == [(e.raw, e.commit) for e in two]


def test_a_namespace_and_a_topic_get_the_same_envelopes(folder):
    add(folder, *[observed(n) for n in range(3)])
    mirror(folder)
    mirror(folder, "topic:ledger/audit")
    assert [e.raw for e in events(folder)] == [e.raw for e in events(folder, "ledger/audit", MESSAGES)]


def test_a_second_run_does_nothing_and_a_third_brings_what_is_new(folder):
    add(folder, *[observed(n) for n in range(3)])
    mirror(folder)
    assert mirror(folder) == MirrorResult(skipped=3)
    add(folder, *[observed(n) for n in range(3, 6)], at_ns=NOON_NS + 10**9)
    assert mirror(folder) == MirrorResult(mirrored=3, skipped=3)
    assert [event.payload["payload"]["n"] for event in events(folder)] == list(range(6))


def test_a_mirror_that_stopped_inside_a_block_goes_on_inside_it(folder, tmp_path):
    add(folder, *[observed(n) for n in range(4)])
    mirror(folder, "topic:whole")
    whole = events(folder, "whole", MESSAGES)
    with open_repository(folder) as log:
        for event in whole[:3]:
            log.append("part", json.loads(event.raw), layout=MESSAGES)
    assert mirror(folder, "topic:part") == MirrorResult(mirrored=1, skipped=3)
    assert [e.raw for e in events(folder, "part", MESSAGES)] == [e.raw for e in whole]


def test_a_mirror_that_is_kept_up_brings_blocks_as_they_come(folder):
    add(folder, observed(0))
    with open_repository(folder) as log:
        rounds = keep_mirroring(Mirror(log, ["channel:audit"], "ns:audit"))
        assert next(rounds) == MirrorResult(mirrored=1)
        add(folder, *[observed(n) for n in range(1, 6)], at_ns=NOON_NS + 10**9)
        brought = 0
        while brought < 5:
            brought += next(rounds).mirrored
    assert [event.payload["payload"]["n"] for event in events(folder)] == list(range(6))


def test_two_channels_merge_into_one_topic(folder):
    for channel in ("audit", "ops"):
        add(folder, *[observed(n) for n in range(3)], channel=channel)  # same times, heights and indexes
    both = ("channel:audit", "channel:ops")
    assert mirror(folder, "topic:all", *both) == MirrorResult(mirrored=6)
    assert mirror(folder, "topic:all", *both) == MirrorResult(skipped=6)
    found = events(folder, "all", MESSAGES)
    assert sorted(event.envelope["ns"] for event in found) == ["audit"] * 3 + ["ops"] * 3
    add(folder, observed(9), channel="late", at_ns=NOON_NS - 10**9)
    with pytest.raises(OutOfOrder, match="of channel:late"):
        mirror(folder, "topic:all", "channel:late")


ALLOWING = parse_policy(
    b'{"version":1,"rules":[{"id":"r","name":"n","version":1,"kind":"confidentiality","decision":"allow",'
    b'"level":"restricted","requires":[]}]}'
)


@pytest.mark.parametrize("level", ["confidential", "restricted"])
def test_what_is_confidential_is_named_and_not_shown(folder, level):
    tag = {"level": level, "key_ref": "kms:one"}
    opened(find_repository(folder).home, "audit", ALLOWING).close()
    add(folder, observed(payload={"diagnosis": "measles"}, confidentiality=tag), observed(1))
    assert mirror(folder) == MirrorResult(mirrored=2, withheld=1)
    hidden, shown = events(folder)
    assert hidden.payload["withheld"] == level
    assert "payload" not in hidden.payload
    assert b"measles" not in hidden.raw
    assert payload_hash({"diagnosis": "measles"}).encode() not in hidden.raw
    assert shown.payload["payload"] == {"n": 1}


def test_detached_payloads_and_what_looks_like_a_secret_are_withheld(folder):
    detached = observed(payload={"n": 1}, detached={"locator": "file:///x"})
    secret = observed(payload={"key": "AKIA" + "QRSTUVWX23456Z7A"})
    add(folder, detached, secret)
    assert mirror(folder).withheld == 2
    assert [event.payload["withheld"] for event in events(folder)] == ["detached", "secret"]


@pytest.mark.parametrize("action", ["redact", "pointerize"])
def test_what_the_privacy_rules_of_the_repository_cover_is_withheld(folder, action):
    rules = {"privacy": {"rules": [{"select": "user.email", "action": action}]}}
    policy_file(find_repository(folder)).write_text(json.dumps(rules))
    add(folder, observed(payload={"user": {"email": "a@example.test"}}), observed(2))
    assert mirror(folder) == MirrorResult(mirrored=2, withheld=1)
    assert [event.payload.get("withheld") for event in events(folder)] == ["private", None]


def test_a_list_is_private_where_a_rule_covers_something_in_it(folder):
    rules = {"privacy": {"rules": [{"select": "**.password", "action": "redact"}]}}
    policy_file(find_repository(folder)).write_text(json.dumps(rules))
    add(folder, observed(1, payload=[{"password": "x"}]), observed(2, payload=["password"]))
    assert mirror(folder) == MirrorResult(mirrored=2, withheld=1)
    assert [event.payload.get("withheld") for event in events(folder)] == ["private", None]


def broken(how: str) -> list[Block]:
    """Three blocks, of which the last is wrong."""
    blocks = chain_of_blocks(3, 2, "audit")
    last = blocks[2]
    if how == "contents":
        return [*blocks[:2], Block(last.record, (observed(77).raw, last.envelopes[1]))]
    wrong: dict[str, Any] = {
        "channel": "audit",
        "height": 2,
        "prev_block_hash": blocks[1].hash,
        "envelopes": list(last.envelopes),
        "timestamp_ns": NOON_NS + 2,
    }
    if how == "link":
        wrong["prev_block_hash"] = bytes(32)
    if how == "time":
        wrong["timestamp_ns"] = NOON_NS - 1
    if how == "channel":
        wrong["channel"] = "else"
    if how == "envelope signature":
        value = observed(78).value
        forged = {**value, "event_type": "test.forged"}
        wrong["envelopes"] = [json.dumps(forged, sort_keys=True, separators=(",", ":")).encode()]
    return [*blocks[:2], seal(P256 if how == "signer" else NODE, **wrong)]


def test_of_two_channels_the_last_seconds_wait(folder):
    now_ns = time.time_ns() + 10**12
    add(folder, observed(0), channel="ops")
    add(folder, observed(0))
    add(folder, *[observed(n) for n in range(1, 4)], at_ns=now_ns)
    assert mirror(folder, "topic:all", "channel:audit", "channel:ops") == MirrorResult(mirrored=2, waiting=3)


@pytest.mark.parametrize("how", ["contents", "link", "time", "channel", "envelope signature", "signer"])
def test_a_block_that_does_not_hold_stops_the_mirror_before_it(folder, how):
    store(folder, broken(how))
    for _ in range(2):
        with pytest.raises(Unverified, match=r"channel audit: .*block") as refused:
            mirror(folder)
        assert refused.value.fields["height"] == 2
        assert len(events(folder)) == 4


def test_a_channel_that_does_not_begin_at_its_beginning_is_refused(folder):
    first = chain_of_blocks(2, 2, "audit")[1]
    with opened(find_repository(folder).home, "audit") as channel_log:
        channel_log.writer.append(0, first.lines())
        channel_log.writer.sync()
    with pytest.raises(Unverified):
        mirror(folder)


def test_bytes_that_rotted_on_disk_stop_the_mirror_and_are_named(folder):
    store(folder, chain_of_blocks(3, 2, "audit"))
    (segment,) = (path for path in (find_repository(folder).home / "ledger/audit/segments").iterdir())
    raw = bytearray(segment.read_bytes())
    raw[raw.rindex(b"ea.core")] ^= 1
    raw[raw.index(b"ea.core", len(raw) // 2)] ^= 1
    segment.write_bytes(raw)
    with pytest.raises(Unverified, match="block"):
        mirror(folder)
    assert len(events(folder)) in (2, 4)


def test_a_channel_that_is_another_than_the_one_mirrored_is_refused(folder):
    add(folder, *[observed(n) for n in range(2)])
    mirror(folder)
    shutil.rmtree(find_repository(folder).home / "ledger")
    add(folder, *[observed(n) for n in range(5, 7)])
    with pytest.raises(HistoryRewritten, match="block 0 is not the one that was mirrored"):
        mirror(folder)
    shutil.rmtree(find_repository(folder).home / "ledger")
    opened(find_repository(folder).home, "audit").close()
    with pytest.raises(HistoryRewritten, match="no longer there"):
        mirror(folder)
    assert len(events(folder)) == 2


def test_a_channel_that_is_not_there_is_named_and_makes_no_log(folder):
    with pytest.raises(NotFound, match="nowhere"):
        mirror(folder, "ns:audit", "channel:nowhere")
    with open_repository(folder) as log:
        assert log.topics() == []


VECTORS = json.loads((Path(__file__).parents[3] / "vectors/bridge/mirror.json").read_bytes())["cases"]


@pytest.mark.parametrize("case", VECTORS, ids=[case["name"] for case in VECTORS])
def test_everybody_makes_the_same_event_of_an_envelope(case):
    given = case["input"]
    header = parse_record(given["block"].encode()).header
    envelope = parse_stored(b64decode(given["envelope"]))
    if "error" in case:
        with pytest.raises(Invalid):
            document_of(header, given["index"], envelope, given["ns"])
        return
    document = document_of(header, given["index"], envelope, given["ns"])
    assert document == case["expect"]["document"]
    assert content_id(jcs.encode(document)) == case["expect"]["content_id"]


HEADER = Header("audit", 0, bytes(32), bytes(32), NOON_NS, bytes(32), 1)
PLACES = st.tuples(st.integers(0, 5), st.integers(0, 2**40 - 1), st.integers(0, 8191))


@given(PLACES, PLACES)
def test_ulids_rise_along_a_channel_and_tell_the_time_of_the_block(one, two):
    made = []
    for later_ms, height, index in (one, two):
        header = replace(HEADER, height=height, timestamp_ns=NOON_NS + later_ms * 10**6)
        made.append(ulid_of(header, index))
        assert time_ms(made[-1]) == NOON_NS // 10**6 + later_ms
    assert (made[0] < made[1]) == (one < two)


def test_a_height_no_ulid_has_room_for_is_refused():
    with pytest.raises(Invalid, match="no room"):
        ulid_of(replace(HEADER, height=2**40), 0)


def test_a_payload_too_deep_for_an_event_is_withheld_and_stops_nobody(folder):
    deep: Any = 0
    for _ in range(126):
        deep = [deep]
    add(folder, observed(1, payload={"d": deep}), observed(2, payload={"d": deep[0]}))
    assert mirror(folder) == MirrorResult(mirrored=2, withheld=1)
    first, second = (event.envelope["payload"] for event in events(folder))
    assert (first["withheld"], second["payload"]) == ("deep", {"d": deep[0]})


def test_a_channel_whose_copies_did_not_arrive_is_read_again(folder, monkeypatch):
    add(folder, observed(1), observed(2), observed(3))
    with open_repository(folder) as log:
        copying = Mirror(log, "channel:audit", "ns:audit")
        with monkeypatch.context() as broken:
            broken.setattr(type(log.store), "move_head", _disk_full)
            with pytest.raises(Unavailable):
                copying.catch_up()
        assert copying.catch_up() == MirrorResult(mirrored=3)
        assert copying.catch_up() == MirrorResult()


def _disk_full(*_: object) -> None:
    raise Unavailable("no space left on device")


def test_mirror_of_a_channel_records_its_block(folder):
    add(folder, *(observed(n) for n in range(3)))
    mirror(folder)
    add(folder, observed(3))
    with open_repository(folder) as log:
        (row,) = list_progress(log)
    assert (row["source"], row["target"], row["position"]) == ("ledger/audit", "shiplog/audit", "1")
    assert (row["lag"], row["moved"]) == (1, 3)
    mirror(folder)
    with open_repository(folder) as log:
        assert [(row["position"], row["lag"], row["moved"]) for row in list_progress(log)] == [("2", 0, 4)]
