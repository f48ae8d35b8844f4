"""Bounded storage: what is archived and verified is dropped here, and read through; nothing else is."""

from __future__ import annotations

import hashlib
import os
import re
import time
from pathlib import Path

import boto3  # type: ignore[import-untyped]
import pytest
from moto.server import ThreadedMotoServer
from tests.unit.ledger.archiving import CHANNEL, TRUST, filled, writable
from tests.unit.ledger.making import NODE, NOON_NS, observed, opened
from tests.unit.ledger.witnesses import live_witness

from ropewalk.errors import Conflict, Damaged, Forked, Unavailable, Usage
from ropewalk.kernel import jcs, merkle
from ropewalk.ledger.archive.cold import cold_store
from ropewalk.ledger.archive.drill import run_drill
from ropewalk.ledger.archive.restore import restore_channel
from ropewalk.ledger.archive.retain import retain_channel, seal_summary
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.maintenance import rebuild_index, verify_stored
from ropewalk.ledger.channel.segments.cold import CACHED_MAX, parse_cold
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.proof.proof import head_signer
from ropewalk.ledger.transparency.witness_policy import SETTINGS, WitnessPolicy
from ropewalk.ledger.transparency.witnessing import WitnessClient
from ropewalk.server.watch.config import parse_watch
from ropewalk.server.watch.schedules import Schedules

BLOCKS = 40


@pytest.fixture
def home(tmp_path):
    """A channel of forty blocks in many segments."""
    with opened(tmp_path / "home", segment_bytes=4000) as ledger:
        for number in range(BLOCKS):
            ledger.log.submit(observed(number).raw)
    return tmp_path / "home"


def retain(home, location, **options):
    given = {"keep_blocks": 5, "now_ns": lambda: NOON_NS + 99, **options}
    return retain_channel(home, CHANNEL, lambda: (NODE,), str(location), **given)


def segment_names(home):
    return sorted(path.name for path in (home / "ledger" / CHANNEL / "segments").iterdir())


def everything(home):
    with open_channel(home, CHANNEL) as channel:
        return [lines for _, lines in channel.lines()][:BLOCKS]


def test_retain_drops_and_reads_through(home, tmp_path):
    before, size = everything(home), total(home)
    done = retain(home, tmp_path / "cold")
    assert done.dropped > 3 and done.archived == BLOCKS - 5 and total(home) < size
    names = segment_names(home)
    assert sum(name.endswith(".seg.cold") for name in names) == done.dropped
    assert everything(home) == before, "in order, out of the archives"
    with open_channel(home, CHANNEL) as channel:
        one = observed(3)
        assert channel.prove(one.id).envelope.raw == one.raw
        assert [block.height for block in channel.blocks(2, 4)] == [2, 3, 4]
    assert len(list((home / "ledger" / CHANNEL / "cache").glob("*.seg"))) <= CACHED_MAX
    report = verify_stored(home, CHANNEL, trust=TRUST, deep=True)
    assert report.ok, [step for step in report.steps if step.status != "passed"]
    assert rebuild_index(home, CHANNEL) == BLOCKS + 1


def total(home):
    return sum(path.stat().st_size for path in (home / "ledger" / CHANNEL / "segments").iterdir())


def test_retain_again_drops_only_what_is_new(home, tmp_path):
    first = retain(home, tmp_path / "cold")
    assert retain(home, tmp_path / "cold", keep_blocks=6).dropped == 0
    with opened(home, segment_bytes=4000, now_ns=lambda: NOON_NS + 100) as ledger:
        for number in range(BLOCKS, BLOCKS + 20):
            ledger.log.submit(observed(number).raw)
    again = retain(home, tmp_path / "cold", now_ns=lambda: NOON_NS + 101)
    assert again.dropped > 0 and again.summary is not None and first.summary is not None
    assert again.summary["start_height"] == first.summary["end_height"] + 1
    assert verify_stored(home, CHANNEL, trust=TRUST, deep=True).ok


def test_retain_drops_nothing_that_archives_lack(home, tmp_path):
    cold_store(str(tmp_path / "cold")).archive(home, CHANNEL, NODE, keep_blocks=5)
    writable(tmp_path / "cold", tmp_path / "bent")
    blocks = next((tmp_path / "bent").rglob("blocks.seg.zst"))
    raw = bytearray(blocks.read_bytes())
    raw[len(raw) // 2] ^= 1
    blocks.write_bytes(raw)
    before = segment_names(home)
    with pytest.raises(Damaged):
        retain(home, tmp_path / "bent")
    assert segment_names(home) == before
    with open_channel(home, CHANNEL) as channel:
        assert channel.head().height == BLOCKS, "and no summary of it is sealed"
    with pytest.raises(Unavailable, match="no archive holds block 35"):
        list(cold_store(str(tmp_path / "cold")).blocks(CHANNEL, 0, BLOCKS))


def test_retain_refuses_archives_of_other_bytes(home, tmp_path):
    other = filled(tmp_path / "other", 12, segment_bytes=4000)
    retain(other, tmp_path / "cold", keep_blocks=1)
    before = segment_names(home)
    with pytest.raises(Forked):
        retain(home, tmp_path / "cold")
    assert segment_names(home) == before


def test_dropped_blocks_without_archives_are_unavailable(home, tmp_path):
    retain(home, tmp_path / "cold")
    (tmp_path / "cold").rename(tmp_path / "away")
    with pytest.raises(Unavailable, match="no archive holds block 0"):
        everything(home)
    with opened(home, segment_bytes=4000, now_ns=lambda: NOON_NS + 200) as ledger:  # writing goes on
        assert ledger.log.submit(observed(500).raw).height == BLOCKS + 1
    (tmp_path / "away").rename(tmp_path / "cold")
    assert len(everything(home)) == BLOCKS


def test_cold_segment_is_compared_by_its_digest(home, tmp_path):
    retain(home, tmp_path / "cold")
    stub = next((home / "ledger" / CHANNEL / "segments").glob("*.cold"))
    value = jcs.parse(stub.read_bytes())
    assert isinstance(value, dict) and parse_cold(stub.read_bytes()).start == value["start_height"]
    stub.write_bytes(jcs.encode({**value, "blake3": "00" * 32}))
    with pytest.raises(Damaged, match="do not hold the bytes"):
        everything(home)
    for wrong in (b"", b"{}", jcs.encode({**value, "bytes": "1"})):
        with pytest.raises(Damaged):
            parse_cold(wrong)


def test_retain_keeps_what_is_not_witnessed(home, tmp_path):
    folder = home / "ledger" / CHANNEL
    with live_witness(tmp_path / "w", "w.example") as live:
        policy = WitnessPolicy("log.example", ((live.url, live.vkey),), 1)
        (folder / SETTINGS).write_bytes(jcs.encode(policy.to_json()))
        done = retain(home, tmp_path / "cold")
        assert (done.dropped, done.limited_by) == (0, "only 0 blocks are under a witnessed head")
        live.witness.add(head_signer("log.example", CHANNEL, NODE).verifier)
        with open_channel(home, CHANNEL) as channel:
            WitnessClient(channel, NODE).collect().require()
        assert retain(home, tmp_path / "cold").dropped > 3


def test_summary_blocks_match_their_blocks(home, tmp_path):
    done = retain(home, tmp_path / "cold")
    assert done.summary is not None
    with open_channel(home, CHANNEL) as channel:
        block = next(iter(channel.blocks(done.summary["height"], done.summary["height"])))
        hashes = [
            each.hash for each in channel.blocks(done.summary["start_height"], done.summary["end_height"])
        ]
    said = parse_stored(block.envelopes[0])
    assert said.public_key == NODE.public and said.event_type == "ledger.summary"
    assert said.value["payload"]["summary_root"] == merkle.root(hashes, merkle.RANGE).hex()
    steps = {step.name: step.status for step in verify_stored(home, CHANNEL, trust=TRUST, deep=True).steps}
    assert steps["summaries"] == "passed"
    for wrong in ({"summary_root": "00" * 32}, {"end_height": 10**6}, {"channel": "other"}):
        payload = {k: v for k, v in {**done.summary, **wrong}.items() if k != "height"}
        seal_summary(home, CHANNEL, lambda: (NODE,), payload, lambda: NOON_NS + 200)
        report = verify_stored(home, CHANNEL, trust=TRUST, deep=True)
        assert {step.name: step.status for step in report.steps}["summaries"] == "failed"


def test_summary_of_an_author_does_not_count(home):
    """Any author may write an envelope of that type; it must not fail the verification of the channel."""
    payload = {"channel": CHANNEL, "start_height": 0, "end_height": 1, "summary_root": "00" * 32}
    with opened(home, CHANNEL) as ledger:
        ledger.log.submit(observed(1, event_type="ledger.summary", payload=payload).raw)
    report = verify_stored(home, CHANNEL, trust=TRUST, deep=True)
    assert report.ok and "summaries" not in {step.name for step in report.steps}


@pytest.fixture(scope="session")
def moto_server():
    """moto's S3 server: a stand-in that speaks the protocol, not a real object store."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(moto_server, monkeypatch, request):
    for name, value in {
        "AWS_ENDPOINT_URL": moto_server,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    name = "b" + hashlib.sha256(request.node.name.encode()).hexdigest()[:20]
    boto3.client("s3").create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
    return name


@pytest.mark.slow
def test_retain_to_object_storage_with_lock(home, tmp_path, bucket):
    before = everything(home)
    done = retain(home, f"s3://{bucket}/audit", lock_days=30)
    assert done.dropped > 3
    client = boto3.client("s3")
    names = [each["Key"] for each in client.list_objects_v2(Bucket=bucket)["Contents"]]
    assert all(re.match(rf"audit/{CHANNEL}/\d{{20}}-\d{{20}}/", name) for name in names)
    for name in names:
        held = client.head_object(Bucket=bucket, Key=name)
        assert held["ObjectLockMode"] == "COMPLIANCE" and held["ObjectLockRetainUntilDate"].year >= 2024
    assert everything(home) == before
    again = retain(home, f"s3://{bucket}/audit", keep_blocks=5, lock_days=30)
    assert again.archived == BLOCKS - 5 + 1, "its own summary is archived next"
    drill = None
    with cold_store(f"s3://{bucket}/audit").folder() as folder:
        drill = run_drill(folder, CHANNEL, home, trust=TRUST)
        restore_channel(folder, CHANNEL, tmp_path / "again", trust=TRUST)
    assert drill.ok, drill.report
    with open_channel(tmp_path / "again", CHANNEL) as channel:
        assert channel.head().height == BLOCKS - 4


def test_schedule_archives_to_object_storage(home, bucket):
    """`"archive": "s3://…"` of a watch: archives are written there, and a drill rebuilds the channel from them."""
    config = parse_watch(
        {"version": 1, "retention": {"keep_days": 1e-9, "archive": f"s3://{bucket}/w"}, "drills": {}}
    )
    schedules = Schedules(
        home, config, channel_keys=lambda _: (NODE,), signing_key=lambda _: NODE, now_ns=time.time_ns
    )
    acts = schedules.run_due()
    assert any(each.startswith(f"archived {CHANNEL}:") for each in acts), acts
    assert any(each.startswith(f"rehearsed recovery of {CHANNEL}") for each in acts), acts
    assert all(job["ok"] for job in schedules.state().values()), schedules.state()
    names = [each["Key"] for each in boto3.client("s3").list_objects_v2(Bucket=bucket)["Contents"]]
    assert names and all(name.startswith("w/") for name in names)


def test_object_written_over_is_found(home, bucket):
    before = everything(home)
    assert retain(home, f"s3://{bucket}").dropped > 3
    assert everything(home) == before
    client = boto3.client("s3")
    key = next(
        each["Key"]
        for each in client.list_objects_v2(Bucket=bucket)["Contents"]
        if each["Key"].endswith("blocks.seg.zst")
    )
    client.put_object(Bucket=bucket, Key=key, Body=b"other bytes")
    with pytest.raises(Damaged):
        everything(home)


def test_object_in_the_way_is_never_written_over(home, bucket):
    """An object of that name, left by a killed upload or by someone else, must have the same bytes."""
    client = boto3.client("s3")
    name = f"{CHANNEL}/{0:020d}-{BLOCKS - 6:020d}"
    client.put_object(Bucket=bucket, Key=f"{name}/blocks.seg.zst", Body=b"other bytes")
    with pytest.raises(Conflict, match="does not hold the bytes"):
        retain(home, f"s3://{bucket}")
    found = [each["Key"] for each in client.list_objects_v2(Bucket=bucket)["Contents"]]
    assert f"{name}/archive.manifest.json" not in found
    assert client.get_object(Bucket=bucket, Key=f"{name}/blocks.seg.zst")["Body"].read() == b"other bytes"
    assert not any(each.endswith(".cold") for each in segment_names(home))
    client.delete_object(Bucket=bucket, Key=f"{name}/blocks.seg.zst")
    assert retain(home, f"s3://{bucket}").dropped > 3, "what was uploaded before is kept"


def test_object_with_a_foreign_name_is_left_alone(home, bucket):
    """A name in the bucket must not choose a path here, nor stop a restore."""
    assert retain(home, f"s3://{bucket}").dropped > 3
    client = boto3.client("s3")
    (one,) = {each["Key"].rpartition("/")[0] for each in client.list_objects_v2(Bucket=bucket)["Contents"]}
    for name in ("..", ".", ".hidden", "../../outside", "sub/outside"):
        client.put_object(Bucket=bucket, Key=f"{one}/{name}", Body=b"other bytes")
    with cold_store(f"s3://{bucket}").folder() as folder:
        assert {path.name for path in (folder / one).iterdir()} >= {"archive.manifest.json", "blocks.seg.zst"}
        assert run_drill(folder, CHANNEL, home, trust=TRUST).ok


def test_object_storage_errors_name_the_place(home, bucket, monkeypatch):
    with pytest.raises(Unavailable, match="s3://absent-bucket"):
        retain(home, "s3://absent-bucket/x")
    assert not any(name.endswith(".cold") for name in segment_names(home))
    for wrong in ("s3://", "gs://x", "s3://UPPER/x"):
        with pytest.raises(Usage):
            cold_store(wrong)
    with pytest.raises(Usage, match="lock"):
        retain(home, Path("cold"), lock_days=1)


def test_retain_command_needs_one_limit(ropewalk):
    from tests.unit.ledger.calling import make

    make(ropewalk)
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", "one.json").code == 0
    assert ropewalk("ledger", "retain", "--channel", "audit", "--to", "cold").code == 2
    done = ropewalk("ledger", "retain", "--channel", "audit", "--to", "cold", "--keep-days", "0", "--json")
    assert (done.code, done.json["archived_blocks"], done.json["dropped_segments"]) == (0, 1, 0)
