"""Export, summaries and health over real Spark: idempotent, checked against the originals."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ropewalk.disk import key_files
from ropewalk.errors import DigestMismatch, Unverified
from ropewalk.ledger.block.block import GENESIS, Block, seal
from ropewalk.ledger.bundle.files import export_blocks, verify_bundle
from ropewalk.ledger.channel.channel import open_log
from ropewalk.ledger.channel.settings import create_channel, read_settings
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.evidence.allowed import EvidenceAllowList
from ropewalk.ledger.evidence.trust import EvidenceSettings
from ropewalk.ledger.proof.trust import Trust
from ropewalk.pipeline.jobs.compact import summarise
from ropewalk.pipeline.jobs.export import export_channels
from ropewalk.pipeline.jobs.health import measure, measure_channels, observation
from ropewalk.pipeline.jobs.metrics import metrics_text
from ropewalk.pipeline.tables.warehouse import Warehouse
from tests.pipeline.tampering import change_payload
from tests.pipeline.world import ADA, BOB, NODE, NOON_MS, World
from tests.unit.ledger.attesting import NOON, PCR0, Authority, attested, dsse, nitro, nitro_document
from tests.unit.ledger.making import observed
from tests.unit.ledger.quoting import revocations

NOON_NS = NOON_MS * 10**6

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def export(spark: Any, world: World, folder: Path) -> Any:
    if not (world.place.keys / "node.json").exists():
        key_files.make(world.place.keys, "node", "ed25519", b"node" + bytes(28))
    return export_channels(
        spark,
        world.path,
        folder,
        export_blocks,
        key_folder=world.place.keys,
        key_name="node",
        blocks_per_bundle=2,
    )


def test_bundles_are_named_by_range_and_root_and_made_once(spark: Any, world: World, tmp_path: Path):
    done = export(spark, world, tmp_path / "bundles")
    assert [(each.start, each.end, each.kept) for each in done] == [
        (0, 1, False),
        (2, 3, False),
        (4, 4, False),
    ]
    trust = read_settings(world.place.home, "ea.core").trust()
    for each in done:
        assert each.root[:32] in each.path
        assert verify_bundle(Path(each.path), trust).report.ok
    Path(done[1].path).unlink()  # as if a run had been killed before it
    assert [each.kept for each in export(spark, world, tmp_path / "bundles")] == [True, False, True]


def test_an_export_refuses_blocks_that_do_not_verify(spark: Any, world: World, tmp_path: Path):
    change_payload(world)
    with pytest.raises(Unverified, match="block 2"):
        export(spark, world, tmp_path / "bundles")
    assert not list((tmp_path / "bundles").glob("*-0000000002-*.tar.zst"))


def test_summaries_are_signed_and_held_against_their_blocks(spark: Any, world: World, tmp_path: Path):
    store = Warehouse(tmp_path / "tables").make()
    made = summarise(spark, world.path, store, NODE, blocks_per_summary=2)
    assert [(each.start, each.end, each.kept) for each in made] == [(0, 1, False), (2, 3, False)]
    assert parse_stored(Path(made[0].path).read_bytes()).event_type == "ledger.summary"
    assert all(each.kept for each in summarise(spark, world.path, store, NODE, blocks_per_summary=2))
    Path(made[1].path).write_bytes(Path(made[0].path).read_bytes())
    with pytest.raises(DigestMismatch, match="must have root"):
        summarise(spark, world.path, store, NODE, blocks_per_summary=2)


def test_health_is_measured_by_channel_and_told_as_an_observation(spark: Any, world: World):
    provenance = attested(dsse(ADA), "slsa.v1")
    create_channel(world.place.home, "ea.built", "node", NODE.public)
    with open_log(world.place.home, "ea.built", NODE, now_ns=lambda: NOON_NS) as opened:
        opened.log.submit(provenance.raw)
    built, health = measure_channels(spark, world.path, NOON_NS)
    assert (health.channel, health.domain, health.envelopes, health.attested) == ("ea.core", "ea.core", 20, 0)
    assert health.attestation_age_seconds is None and not health.stale
    assert built.attestation_chain_valid is None and built.evidence_unknown == 1  # unknown is not valid
    pins = EvidenceAllowList((ADA.public,), ("https://builder.example/v1",))
    (built,) = measure_channels(
        spark, world.path, NOON_NS, channels="ea.built", trust=Trust((), (), evidence=pins)
    )
    assert built.attestation_chain_valid is True
    folder = world.place.home / "ledger" / "ea.built"
    (folder / "evidence.json").write_bytes(EvidenceSettings(pins=EvidenceAllowList((BOB.public,))).to_bytes())
    (built,) = measure_channels(spark, world.path, NOON_NS, channels="ea.built")
    assert built.attestation_chain_valid is False and str(built.evidence_detail).startswith("block 0")
    told = observation(built, NODE, NOON_NS)
    assert (told.event_class, told.payload["channel"]) == ("Observation", "ea.built")  # type: ignore[index,call-overload]


def sealed(*envelopes: Envelope) -> Block:
    raws = [each.raw for each in envelopes]
    return seal(
        NODE, channel="ea.core", height=0, prev_block_hash=GENESIS, envelopes=raws, timestamp_ns=NOON_NS
    )


def test_evidence_judged_at_block_time_and_now():
    root = Authority("root")
    leaf = Authority("leaf", root, ca=False)
    trust = Trust((NODE.public,), (), roots=(root.pem,), evidence=EvidenceAllowList(pcrs={0: (PCR0.hex(),)}))

    def health(document: bytes, now_ns: int) -> Any:
        (found,) = measure("ea.core", [sealed(nitro(document))], trust, now_ns)
        return found

    good = nitro_document(leaf, [root])
    assert health(good, NOON_NS).attestation_chain_valid is True
    late = health(good, NOON_NS + 3 * 86_400 * 10**9)
    assert late.attestation_chain_valid is False and "no longer" in str(late.evidence_detail) and late.stale
    other = nitro_document(leaf, [root], pcrs={0: b"\1" * 48})
    assert health(other, NOON_NS).attestation_chain_valid is False


def test_a_revoked_certificate_is_bad_news_at_once():
    root = Authority("root")
    leaf = Authority("leaf", root, ca=False)
    block = sealed(nitro(nitro_document(leaf, [root])))

    def valid(now_ns: int, *crls: str) -> bool | None:
        pins = EvidenceAllowList(pcrs={0: (PCR0.hex(),)}, crls=crls)
        (found,) = measure("ea.core", [block], Trust((), (), roots=(root.pem,), evidence=pins), now_ns)
        return found.attestation_chain_valid

    assert valid(NOON_NS, revocations(root)) is True
    assert valid(NOON_NS, revocations(root, leaf)) is False
    # Revoked an hour after the block: it held then, and pages from then on.
    later = revocations(root, leaf, when=NOON + timedelta(hours=1))
    assert valid(NOON_NS, later) is True
    assert valid(NOON_NS + 2 * 3600 * 10**9, later) is False


def test_evidence_is_stale_at_four_fifths_of_its_budget():
    block = sealed(attested(dsse(ADA), "slsa.v1"))
    for age_s, stale in ((0, False), (79, False), (80, True), (500, True)):
        (found,) = measure("ea.core", [block], Trust((), ()), NOON_NS + age_s * 10**9, 100)
        assert (found.attestation_age_seconds, found.stale) == (age_s, stale)


def test_metrics_carry_channel_domain_and_version():
    block = sealed(attested(dsse(ADA), "slsa.v1"), observed(9, domain='a "place"'))
    now_ns = NOON_NS + 90 * 10**9
    text = metrics_text(measure("ea.core", [block], Trust((), ()), now_ns, 100), now_ns)
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    labels = 'channel="ea.core",domain="ea.core",protocol_version="1.0.0"'
    assert samples[f"attestation_age_seconds{{{labels}}}"] == "90"
    assert samples[f"attestation_stale{{{labels}}}"] == "1"
    assert samples[f"attestation_chain_valid{{{labels}}}"] == "0"  # unknown is not valid
    other = labels.replace('domain="ea.core"', r'domain="a \"place\""')
    assert samples[f"policy_hash_mismatch{{{other}}}"] == "0"
    assert f"attestation_age_seconds{{{other}}}" not in samples
    assert samples[f"channel_envelopes{{{labels}}}"] == "1"
    assert float(samples["health_measured_timestamp_seconds"]) == now_ns / 1e9


def test_another_policy_in_a_tag_is_counted():
    tags = [{"policy_hash": "11" * 32, "decision": "allow"}, {"policy_hash": "22" * 32, "decision": "allow"}]
    block = sealed(*(observed(number, policy_tag=tag) for number, tag in enumerate(tags)), observed(9))
    (found,) = measure("ea.core", [block], Trust((), (), bytes.fromhex("11" * 32)), NOON_NS)
    assert (found.envelopes, found.policy_hash_mismatch) == (3, 1)


def test_health_of_blocks_that_do_not_verify_is_not_measured(spark: Any, world: World):
    change_payload(world)
    with pytest.raises(Unverified, match="root"):
        measure_channels(spark, world.path, NOON_NS)
