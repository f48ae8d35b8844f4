"""Trust files decide about evidence wherever blocks are judged again: bundles, proofs, channels, commands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger import chips, quoting
from tests.unit.ledger.attesting import PCR0, Authority, attested, dsse, nitro, nitro_document
from tests.unit.ledger.bundling import statuses, verdict
from tests.unit.ledger.calling import make
from tests.unit.ledger.making import ADA, NODE, NOON_NS, observed, opened

from ropewalk.errors import Damaged, Invalid
from ropewalk.ledger.block.find_forks import compare_bundles, compare_with_channel
from ropewalk.ledger.block.fork import parse_fork, verify_fork
from ropewalk.ledger.bundle.files import export_bundle
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.maintenance import verify_stored
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.evidence.allowed import EvidenceAllowList
from ropewalk.ledger.evidence.settings import channel_trust, read_evidence, write_evidence
from ropewalk.ledger.evidence.trust import EvidenceSettings
from ropewalk.ledger.proof.proof import verify_proof
from ropewalk.ledger.proof.trust import Trust, parse_trust

BUILDER = "https://builder.example/v1"
BARE = Trust((NODE.public,), (NODE.public,))
PINS = EvidenceAllowList(keys=(ADA.public,), builders=(BUILDER,), pcrs={0: (PCR0.hex(),)})


class Vendor:
    """A root, and an enclave whose documents lead to it."""

    def __init__(self) -> None:
        self.root = Authority("root")
        self.leaf = Authority("enclave", self.root, ca=False)

    def attest(self) -> Envelope:
        return nitro(nitro_document(self.leaf, [self.root]))


VENDOR, STRANGER = Vendor(), Vendor()


def channel_with(home: Path, *envelopes: Envelope) -> Path:
    with opened(home) as ledger:
        for each in envelopes:
            ledger.log.submit(each.raw)
    return home


def bundle_of(home: Path, path: Path) -> Path:
    with open_channel(home, "ea.core") as channel:
        export_bundle(channel, NODE, 0, channel.head().height - 1, path)
    return path


def judged(home: Path, trust: Trust, tmp_path: Path) -> dict[str, tuple[str, str]]:
    """What bundle, proof and channel say about the evidence of the first envelope."""
    said: dict[str, tuple[str, str]] = {}
    report = verdict(bundle_of(home, tmp_path / "b.tar.zst"), trust, deep=True)
    said["bundle"] = next((s.status, s.detail) for s in report.steps if s.name == "evidence")
    with open_channel(home, "ea.core") as channel:
        first = next(iter(channel.blocks()))
        from ropewalk.ledger.envelope.envelope import parse_stored

        proof = channel.prove(parse_stored(first.envelopes[0]).id)
    said["proof"] = next(
        (s.status, s.detail) for s in verify_proof(proof, trust).steps if s.name == "evidence"
    )
    whole = verify_stored(home, "ea.core", trust=trust, deep=True)
    said["channel"] = next((s.status, s.detail) for s in whole.steps if s.name == "evidence")
    return said


@pytest.mark.parametrize(
    ("trust", "status", "words"),
    [
        (replace(BARE, roots=(VENDOR.root.pem,), evidence=PINS), "passed", ""),
        (replace(BARE, roots=(VENDOR.root.pem,)), "not_checked", "is not pinned"),
        (replace(BARE, roots=(STRANGER.root.pem,), evidence=PINS), "failed", "root"),
        (replace(BARE, roots=(STRANGER.root.pem,)), "failed", "root"),
        (
            replace(BARE, roots=(VENDOR.root.pem,), evidence=EvidenceAllowList(pcrs={0: ("ab" * 48,)})),
            "failed",
            "PCR0",
        ),
        (BARE, "not_checked", "no key is trusted"),
    ],
    ids=["pinned", "roots only", "another root, pinned", "another root", "another measurement", "no roots"],
)
def test_bundle_proof_and_channel_say_the_same_of_a_nitro_document(tmp_path, trust, status, words):
    home = channel_with(tmp_path / "home", VENDOR.attest())
    for where, (got, detail) in judged(home, trust, tmp_path).items():
        assert got == status, (where, detail)
        assert words in detail, (where, detail)


def on_amd() -> tuple[Envelope, str, EvidenceAllowList]:
    vendor = chips.Vendor()
    chip = vendor.chip()
    pins = EvidenceAllowList(
        measurements={"sev.measurement": (chips.MEASUREMENT.hex(),)}, sev_tcb={"snp": 24}
    )
    return chips.sev(chip.report(), chip.chain), chips.pem(vendor.ark), pins


def on_intel() -> tuple[Envelope, str, EvidenceAllowList]:
    vendor = quoting.Vendor()
    crls = (quoting.revocations(vendor.ca), quoting.revocations(vendor.root))
    pins = EvidenceAllowList(measurements={"tdx.mrtd": (quoting.MR_TD.hex(),)}, crls=crls)
    envelope = quoting.quoted(vendor.quote(), said={"collateral": vendor.collateral()})
    return envelope, vendor.root.pem, pins


@pytest.mark.parametrize(("made", "register"), [(on_amd, "sev.measurement"), (on_intel, "tdx.mrtd")])
def test_bundle_proof_and_channel_say_the_same_of_other_hardware(tmp_path, made, register):
    """Certificates, collateral and lists ended a day after the block was sealed, which is long ago."""
    envelope, root, pins = made()
    home = channel_with(tmp_path / "home", envelope)
    other = replace(pins, measurements={register: ("ab" * 48,)})
    for trust, status, words in (
        (replace(BARE, roots=(root,), evidence=pins), "passed", ""),
        (replace(BARE, roots=(root,)), "not_checked", "is not pinned"),
        (replace(BARE, roots=(VENDOR.root.pem,), evidence=pins), "failed", "root"),
        (replace(BARE, roots=(root,), evidence=other), "failed", register),
        (BARE, "not_checked", "no key is trusted"),
    ):
        assert parse_trust(trust.to_bytes()) == trust
        for where, (got, detail) in judged(home, trust, tmp_path).items():
            assert got == status and words in detail, (where, detail)


def test_provenance_is_judged_by_pinned_keys_and_builders(tmp_path):
    home = channel_with(tmp_path / "home", attested(dsse(ADA), "slsa.v1"))
    assert {got for got, _ in judged(home, replace(BARE, evidence=PINS), tmp_path).values()} == {"passed"}
    other = replace(PINS, builders=("urn:other",))
    assert {got for got, _ in judged(home, replace(BARE, evidence=other), tmp_path).values()} == {"failed"}
    stranger = replace(PINS, keys=(NODE.public,))
    assert {got for got, _ in judged(home, replace(BARE, evidence=stranger), tmp_path).values()} == {"failed"}


def test_evidence_judged_at_time_of_its_block(tmp_path):
    # The certificates ended a day after the block was sealed, which is long ago.
    home = channel_with(tmp_path / "home", VENDOR.attest())
    trust = replace(BARE, roots=(VENDOR.root.pem,), evidence=replace(PINS, max_age_s=60))
    assert {got for got, _ in judged(home, trust, tmp_path).values()} == {"passed"}
    late = tmp_path / "late"
    with opened(late, now_ns=lambda: NOON_NS + 10 * 86_400 * 10**9) as ledger:
        ledger.log.submit(VENDOR.attest().raw)
    assert {got for got, _ in judged(late, trust, tmp_path / "..").values()} == {"failed"}


def test_a_trust_file_with_roots_is_consulted_without_deep_too(tmp_path):
    home = channel_with(tmp_path / "home", VENDOR.attest())
    path = bundle_of(home, tmp_path / "b.tar.zst")
    assert statuses(verdict(path, replace(BARE, roots=(STRANGER.root.pem,))))["evidence"] == "failed"
    assert not verdict(path, replace(BARE, roots=(STRANGER.root.pem,))).ok
    assert "evidence" not in statuses(verdict(path, BARE))  # the five steps of the contract, and no more
    said = {s.name: s for s in verify_stored(home, "ea.core", trust=BARE).steps}
    assert said["evidence"].status == "not_checked" and "--deep" in said["evidence"].detail


def test_a_channel_without_evidence_says_so(tmp_path):
    home = channel_with(tmp_path / "home", observed(1))
    report = verify_stored(home, "ea.core", deep=True)
    assert next(s.detail for s in report.steps if s.name == "evidence") == "no envelope carries evidence"


def test_snapshots_vouch_for_themselves_with_the_key_of_the_blocks(tmp_path):
    from ropewalk.ledger.replay.channel_replay import replay_channel
    from ropewalk.ledger.replay.reducers import REDUCERS

    home = channel_with(tmp_path / "home", observed(1), observed(2))
    replay_channel(home, "ea.core", REDUCERS["counts"], key=NODE, snapshot_every=1)
    trust = replace(BARE, roots=(VENDOR.root.pem,), evidence=PINS)
    report = verify_stored(home, "ea.core.snapshots", trust=trust, deep=True)
    assert {s.name: s.status for s in report.steps}["evidence"] == "passed", report


def test_replay_folds_only_what_the_trust_file_lets_pass(tmp_path, ropewalk):
    from ropewalk.errors import SigInvalid, Unverified
    from ropewalk.ledger.replay.channel_replay import replay_channel
    from ropewalk.ledger.replay.reducers import REDUCERS

    home, counts = channel_with(tmp_path / "home", observed(1), VENDOR.attest()), REDUCERS["counts"]
    good = replace(BARE, roots=(VENDOR.root.pem,), evidence=PINS)
    assert replay_channel(home, "ea.core", counts, trust=good).envelopes == 2
    assert replay_channel(home, "ea.core", counts).envelopes == 2
    for trust, words in (
        (replace(good, roots=(STRANGER.root.pem,)), "evidence: block 1, envelope 0"),
        (replace(good, policy_hash=bytes(32)), "pins policy"),
        (replace(good, block_signers=(ADA.public,)), "trusted"),
    ):
        with pytest.raises((Unverified, SigInvalid), match=words):
            replay_channel(home, "ea.core", counts, trust=trust)
    one = make(ropewalk)
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", str(one)).code == 0
    Path("trust.json").write_bytes(BARE.to_bytes())
    folding = ("ledger", "replay", "--channel", "audit", "--reducer", "counts")
    assert ropewalk(*folding).code == 0
    assert ropewalk(*folding, "--trust", "trust.json").code == 5


def test_trust_files_keep_what_they_say_about_evidence():
    trust = replace(BARE, roots=(VENDOR.root.pem,), evidence=replace(PINS, max_age_s=5))
    assert parse_trust(trust.to_bytes()) == trust
    assert any("builder" in line for line in trust.explain())
    assert any("no builder and no measurement" in line for line in replace(trust, evidence=None).explain())


@pytest.mark.parametrize(
    "pins",
    [
        {"x": 1},
        {"keys": 1},
        {"builders": [1]},
        {"pcrs": {"32": []}},
        {"pcrs": {"0": ["AB"]}},
        {"max_age_s": 0},
        [],
    ],
)
def test_pins_are_read_strictly(pins):
    value = {**json.loads(BARE.to_bytes()), "evidence": pins}
    with pytest.raises(Invalid, match="trust file"):
        parse_trust(json.dumps(value).encode())


def test_a_root_that_is_no_certificate_is_told_as_the_trust_files_fault(tmp_path):
    home = channel_with(tmp_path / "home", observed(1))
    with pytest.raises(Invalid, match="trust file: this is no certificate"):
        verdict(bundle_of(home, tmp_path / "b.tar.zst"), replace(BARE, roots=("-----BEGIN x",)))


def test_what_a_channel_believes_is_written_read_and_put_into_its_trust(tmp_path):
    home = channel_with(tmp_path, observed(1))
    assert read_evidence(home, "ea.core") is None
    assert not channel_trust(home, "ea.core").judges_evidence
    settings = EvidenceSettings((VENDOR.root.pem,), PINS)
    path = write_evidence(home, "ea.core", settings)
    assert read_evidence(home, "ea.core") == settings
    assert channel_trust(home, "ea.core").evidence == PINS
    with pytest.raises(Invalid):
        write_evidence(home, "ea.core", EvidenceSettings(("no certificate",), PINS))
    path.write_text("{}")
    with pytest.raises(Damaged):
        read_evidence(home, "ea.core")


def test_the_evidence_commands_set_show_wrap_check_and_gate(ropewalk, tmp_path):
    Path("root.pem").write_text(VENDOR.root.pem)
    assert ropewalk("ledger", "create", "--channel", "audit").code == 0
    assert ropewalk("ledger", "evidence", "show", "--channel", "audit").code == 3
    setting = ("ledger", "evidence", "set", "--channel", "audit")
    pinned = (
        "--root",
        "root.pem",
        "--builder",
        BUILDER,
        "--pcr",
        f"0={PCR0.hex()}",
        "--key",
        ADA.public.did(),
    )
    assert ropewalk(*setting, *pinned).code == 0
    shown = ropewalk("ledger", "evidence", "show", "--channel", "audit", "--json").json
    assert (shown["builders"], shown["pcrs"]) == ([BUILDER], {"0": [PCR0.hex()]})
    assert "believes builder" in ropewalk("ledger", "evidence", "show", "--channel", "audit").out
    good, bad = Path("good.json"), Path("bad.json")
    good.write_bytes(attested(dsse(ADA), "slsa.v1").raw)
    bad.write_bytes(attested(dsse(NODE), "slsa.v1").raw)
    check = ("ledger", "evidence", "check", "--channel", "audit", "--json", "--file")
    assert ropewalk(*check, str(good)).json["status"] == "passed"
    refused = ropewalk(*check, str(bad))
    assert (refused.code, refused.json["status"]) == (5, "failed")
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", str(bad)).code == 5
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", str(good)).code == 0
    assert ropewalk("ledger", "trust", "--channel", "audit", "-o", "trust.json").code == 0
    assert json.loads(Path("trust.json").read_text())["evidence"]["builders"] == [BUILDER]
    assert ropewalk("ledger", "verify", "--channel", "audit", "--deep", "--trust", "trust.json").code == 0
    assert ropewalk("ledger", "evidence", "check", "--file", str(good), "--trust", "trust.json").code == 0
    assert ropewalk("ledger", "evidence", "check", "--file", str(good)).code == 2
    asked = ropewalk(*check, str(good), "--nonce", "0a0b")
    assert (asked.code, asked.json["status"]) == (5, "failed") and "nonce" in asked.json["detail"]
    assert ropewalk(*check, str(good), "--nonce", "no hex").code == 2
    assert ropewalk(*setting, "--pcr", "x").code == 2
    assert ropewalk(*setting, "--root", str(good)).code == 8


def test_wrapped_evidence_is_bound_to_the_envelope_it_is_put_into(ropewalk):
    from tests.unit.ledger.attesting import PAYLOAD

    Path("body.json").write_text(json.dumps(PAYLOAD))
    Path("report.json").write_text(json.dumps(dsse(ADA)))
    wrap = (
        "ledger",
        "evidence",
        "wrap",
        "--format",
        "slsa.v1",
        "--report",
        "report.json",
        "-o",
        "evidence.json",
    )
    assert ropewalk(*wrap).code == 0
    one = make(ropewalk, "one.json", "--evidence", "evidence.json", kind="Attestation")
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", str(one)).code == 0
    Path("body.json").write_text("{}")
    other = make(ropewalk, "other.json", "--evidence", "evidence.json", kind="Attestation")
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", str(other)).code == 5


# --- two histories ----------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two copies of a channel that went different ways after their first block, under one key."""
    homes = []
    for number in (1, 2):
        home = tmp_path / str(number)
        channel_with(home, observed(0), observed(number))
        homes.append(home)
    return homes[0], homes[1]


def test_bundles_of_two_histories_prove_a_fork(two, tmp_path):
    left, right = (bundle_of(home, tmp_path / f"{at}.tar.zst") for at, home in enumerate(two))
    found = compare_bundles(left, right)
    assert found.fork is not None and (found.same, found.fork.ours.height) == (1, 1)
    again = parse_fork(found.fork.to_bytes())
    assert verify_fork(again, BARE).ok
    assert verify_fork(again).steps[-1].status == "not_checked"
    assert not verify_fork(again, Trust((ADA.public,), ())).ok
    assert compare_bundles(left, left).to_json() == {
        "channel": "ea.core",
        "same": 2,
        "alone": 0,
        "fork": False,
    }


def test_a_fork_document_that_proves_nothing_is_refused(two, tmp_path):
    left, right = (bundle_of(home, tmp_path / f"{at}.tar.zst") for at, home in enumerate(two))
    fork = compare_bundles(left, right).fork
    assert fork is not None
    same = replace(fork, theirs=fork.ours)
    assert {s.name for s in verify_fork(same).steps if s.status == "failed"} == {"two_blocks"}
    raw: Any = json.loads(fork.to_bytes())
    raw["theirs"]["header"]["timestamp"] = "5"
    bent = parse_fork(json.dumps(raw).encode())
    assert "second_signature" in {s.name for s in verify_fork(bent).steps if s.status == "failed"}
    with pytest.raises(Invalid):
        parse_fork(json.dumps({**raw, "height": 7}).encode())


def test_a_bundle_beside_a_channel_keeps_the_fork_as_evidence(two, tmp_path):
    theirs = bundle_of(two[1], tmp_path / "theirs.tar.zst")
    with open_channel(two[0], "ea.core") as channel:
        assert compare_with_channel(theirs, channel).fork is not None
    (kept,) = (two[0] / "ledger" / "ea.core" / "evidence").glob("fork-1-*.json")
    assert verify_fork(parse_fork(kept.read_bytes()), BARE).ok


def test_blocks_beyond_a_channel_are_no_fork(tmp_path):
    home = channel_with(tmp_path / "short", observed(0))
    longer = channel_with(tmp_path / "long", observed(0), observed(1))
    theirs = bundle_of(longer, tmp_path / "theirs.tar.zst")
    with open_channel(home, "ea.core") as channel:
        found = compare_with_channel(theirs, channel)
    assert (found.fork, found.same, found.alone) == (None, 1, 1)


def test_bundle_compare_says_5_and_verify_reads_what_it_kept(ropewalk, two, tmp_path):
    left, right = (str(bundle_of(home, tmp_path / f"{at}.tar.zst")) for at, home in enumerate(two))
    assert ropewalk("bundle", "compare", left, left).code == 0
    answer = ropewalk("bundle", "compare", left, right, "-o", "fork.json", "--json")
    assert (answer.code, answer.json["height"]) == (5, 1)
    assert "were kept" in answer.json["advice"]
    assert "-o FORK.json" in ropewalk("bundle", "compare", left, right, "--json").json["advice"]
    Path("trust.json").write_bytes(BARE.to_bytes())
    assert ropewalk("verify", "fork.json", "--trust", "trust.json").code == 0
    assert ropewalk("verify", "fork.json", "--json").json["steps"][-1]["status"] == "not_checked"
    assert ropewalk("bundle", "compare", left).code == 2
