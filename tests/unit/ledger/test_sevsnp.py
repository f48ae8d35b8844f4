"""AMD SEV-SNP reports: bound, signed by a chip under a configured root, at known levels, and measured."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.ledger.attesting import DAY, NOON, attested
from tests.unit.ledger.calling import make
from tests.unit.ledger.chips import (
    CHIP,
    LEVELS,
    MEASUREMENT,
    POLICY,
    Chip,
    Vendor,
    certify,
    chip_extensions,
    pem,
    revocations,
    rsa_key,
    sealed,
    sev,
    tcb,
)
from tests.unit.ledger.making import NOON_NS, observed

from ropewalk.errors import Invalid
from ropewalk.kernel.schema import shipped as schema
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.evidence.allowed import parse_allow_list
from ropewalk.ledger.evidence.crls import parse_crl
from ropewalk.ledger.evidence.tee.sev_snp import REPORT_BYTES, SIGNED_BYTES, parse_snp_report
from ropewalk.ledger.evidence.trust import EvidenceTrust, parse_evidence_trust
from ropewalk.ledger.evidence.verify import check_evidence

AMD = Vendor()
MILAN = AMD.chip()
REPORT = MILAN.report()
TRUST = EvidenceTrust((AMD.ark,), measurements={"sev.measurement": frozenset({MEASUREMENT})})
OID = "1.3.6.1.4.1.3704.1."


def verdict(
    envelope: Envelope, trust: EvidenceTrust = TRUST, at_ns: int = NOON_NS, **options: Any
) -> tuple[str, str]:
    return check_evidence(envelope, trust, at_ns, **options)


def refused(envelope: Envelope, words: str, trust: EvidenceTrust = TRUST, **options: Any) -> None:
    status, detail = verdict(envelope, trust, **options)
    assert status == "failed" and words in detail, (status, detail)


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_a_report_of_a_chip_under_a_configured_root_passes(version):
    status, detail = verdict(sev(MILAN.report(version=version), MILAN.chain))
    assert status == "passed" and "Milan-B1" in detail and MEASUREMENT.hex()[:16] in detail


@pytest.mark.parametrize("version", [2, 3])
def test_a_chip_with_an_fmc_and_a_short_id_passes(version):
    turin = AMD.chip(chip_extensions(1, CHIP[:8]))
    assert verdict(sev(turin.report(layout=1, version=version), turin.chain))[0] == "passed"
    if version == 3:
        refused(sev(turin.report(version=3, changes={0x1A0: CHIP[:8] + bytes(56)}), turin.chain), "family")
        refused(sev(MILAN.report(version=3, changes={0x188: b"\x1a"}), MILAN.chain), "family")


def test_a_key_that_a_cloud_has_loaded_passes_and_says_so():
    loaded = AMD.chip(chip_extensions(chip=None, cloud="cloud.example"))
    by_vlek = loaded.report(changes={0x048: b"\x04", 0x1A0: bytes(64)})
    status, detail = verdict(sev(by_vlek, loaded.chain))
    assert status == "passed" and "cloud.example" in detail
    refused(sev(loaded.report(), loaded.chain), "names a VCEK")
    refused(sev(MILAN.report(changes={0x048: b"\x04"}), MILAN.chain), "names a VLEK")


def test_the_root_may_stand_in_the_chain_and_is_configured_all_the_same():
    whole = [*MILAN.chain, pem(AMD.ark)]
    assert verdict(sev(REPORT, whole))[0] == "passed"
    assert verdict(sev(REPORT, whole), EvidenceTrust())[0] == "not_checked"
    stranger = Vendor(1)
    refused(sev(REPORT, whole), "", replace(TRUST, roots=(stranger.ark,)))
    refused(sev(REPORT, MILAN.chain), "", replace(TRUST, roots=(stranger.ark,)))
    theirs = stranger.chip()
    refused(sev(theirs.report(), [*theirs.chain, pem(stranger.ark)]), "")
    refused(sev(REPORT, [pem(MILAN.leaf), pem(stranger.ask)]), "not issued")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({0x000: b"\x01"}, "version 1; known are 2 to 5"),
        ({0x000: b"\x06"}, "version 6"),
        ({0x034: b"\x02"}, "algorithm 2"),
        ({0x008: (POLICY | 1 << 19).to_bytes(8, "little")}, "debugging"),
        ({0x008: (POLICY & ~(1 << 17)).to_bytes(8, "little")}, "bit 17"),
        ({0x030: b"\xff\xff\xff\xff"}, "host asked"),
        ({0x048: b"\x02"}, "does not sign"),
        ({0x048: b"\x1c"}, "does not sign"),
        ({0x048: b"\x08"}, "signing key 2"),
        ({0x050: b"\0"}, "report_data of the document"),
        ({0x180: tcb()[:7] + b"\x01"}, "reported TCB"),
        ({0x1A0: bytes(64)}, "chip id"),
        ({0x090: b"\0"}, "sev.measurement"),
    ],
)
def test_reports_that_say_something_else_are_refused_with_the_reason(changes, words):
    refused(sev(MILAN.report(changes=changes), MILAN.chain), words)


def test_a_report_of_another_envelope_is_refused():
    evidence = sev(REPORT, MILAN.chain).value["attestation_evidence"]
    refused(observed(payload={"image": "other"}, correlation_id="c-1", evidence=evidence), "report_data")
    assert verdict(sev(REPORT, MILAN.chain))[0] == "passed"


def test_only_what_is_pinned_passes():
    envelope = sev(REPORT, MILAN.chain)
    refused(envelope, "configure sev.measurement", replace(TRUST, measurements={}))
    status, detail = verdict(envelope, replace(TRUST, measurements={}, pinned=False))
    assert status == "not_checked" and "is not pinned" in detail
    assert verdict(envelope, EvidenceTrust()) == ("not_checked", "no roots are configured for AMD SEV-SNP")
    host = {**TRUST.measurements, "sev.host_data": frozenset({b"\1" * 32})}
    refused(envelope, "sev.host_data", replace(TRUST, measurements=host))
    told = MILAN.report(changes={0x0C0: b"\1" * 32})
    assert verdict(sev(told, MILAN.chain), replace(TRUST, measurements=host))[0] == "passed"


def test_levels_below_those_asked_for_are_refused():
    envelope = sev(REPORT, MILAN.chain)
    assert verdict(envelope, replace(TRUST, sev_tcb={"snp": LEVELS["snp"]}))[0] == "passed"
    refused(envelope, "snp is below 25", replace(TRUST, sev_tcb={"snp": LEVELS["snp"] + 1}))
    refused(envelope, "fmc is below 1", replace(TRUST, sev_tcb={"fmc": 1}))


def test_what_is_said_beside_the_report_must_be_its_own():
    good = {"measurement": MEASUREMENT.hex(), "certificate": pem(MILAN.leaf)}
    assert verdict(sev(REPORT, MILAN.chain, said=good))[0] == "passed"
    refused(sev(REPORT, MILAN.chain, said={"measurement": "00" * 48}), "measurement named")
    refused(sev(REPORT, MILAN.chain, said={"certificate": pem(AMD.ask)}), "certificate named")
    refused(sev(REPORT, MILAN.chain, said={"report_data": "00" * 64}), "report_data")


def test_a_nonce_counts_only_where_the_chip_has_signed_it():
    envelope = sev(REPORT, MILAN.chain, said={"freshness": {"nonce": "0a0b"}})
    assert verdict(envelope)[0] == "passed"
    refused(envelope, "correlation id", nonce=b"\x0a\x0b")
    refused(sev(REPORT, MILAN.chain, nonce="0a0b"), "correlation id")
    assert verdict(sev(REPORT, MILAN.chain, nonce="c-1"))[0] == "passed"


def test_the_age_of_a_report_is_what_the_signer_of_its_envelope_says():
    aged = replace(TRUST, max_age_s=60)
    refused(sev(REPORT, MILAN.chain), "names no timestamp", aged)
    said = {"timestamp": "2024-11-01T11:59:00Z"}
    assert verdict(sev(REPORT, MILAN.chain, said=said), aged)[0] == "passed"
    refused(sev(REPORT, MILAN.chain, said=said), "61 s old", aged, at_ns=NOON_NS + 10**9)
    refused(sev(REPORT, MILAN.chain, said={"timestamp": "2024-11-01T12:06:00Z"}), "-360 s old", aged)


def test_a_report_in_words_is_bound_and_not_checked():
    assert verdict(attested({"tee_type": "sev", "report_data": "00" * 64}))[0] == "failed"
    status, _ = verdict(attested({"tee_type": "sev", "document": ""}))
    assert status == "failed"


# --- chains ---


def by(leaf: Chip) -> Envelope:
    return sev(leaf.report(), leaf.chain)


def test_each_flaw_of_an_amd_chain_is_found():
    refused(sev(REPORT, []), "cert_chain must begin")
    refused(sev(REPORT, MILAN.chain[:1]), "1 certificates")
    refused(sev(REPORT, [*MILAN.chain, pem(AMD.ark), pem(AMD.ark)]), "4 certificates")
    refused(sev(REPORT, ["x", *MILAN.chain[1:]]), "PEM")
    refused(sev(REPORT, ["".join(MILAN.chain), *MILAN.chain[1:]]), "more than one certificate")
    refused(by(AMD.chip(end=NOON - DAY / 2)), "not valid")
    refused(by(MILAN), "not valid", at_ns=NOON_NS + 2 * 86_400 * 10**9)
    authority = certify("VCEK", MILAN.key, (AMD.ask, AMD.ask_key), ca=True, extensions=chip_extensions())
    refused(sev(REPORT, [pem(authority), pem(AMD.ask)]), "certificate authority")
    refused(by(AMD.chip(pss=False)), "RSA-PSS")
    other_curve = AMD.chip(curve=ec.SECP256R1())
    refused(by(other_curve), "P-384")
    refused(by(Vendor(0, usage=False).chip()), "keyCertSign")
    # A report by another chip of the same vendor.
    refused(sev(AMD.chip().report(), MILAN.chain), "signature does not hold")


def test_revoked_signing_key_refused_by_list():
    good, bad = (parse_crl(text.encode()) for text in (revocations(AMD), revocations(AMD, AMD.ask)))
    assert verdict(by(MILAN), replace(TRUST, crls=(good,)))[0] == "passed"
    refused(by(MILAN), "was revoked", replace(TRUST, crls=(bad,)))


def test_an_authority_with_a_short_key_is_refused():
    small = rsa_key(9, 2048)
    short = certify("SEV-Milan", small, (AMD.ark, rsa_key(0)), ca=True)
    leaf = certify("SEV-VCEK", MILAN.key, (short, small), ca=False, extensions=chip_extensions())
    refused(sev(REPORT, [pem(leaf), pem(short)]), "4096 bits")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"1": b"\x02\x01\x02"}, "structure version 2"),
        ({"1": None}, "1.1 is missing"),
        ({"3.3": None}, "1.3.3 is missing"),
        ({"3.3": b"\x02\x02\x01\x00"}, "at most 255"),
        ({"3.3": b"\x02\x01\xff"}, "negative"),
        ({"3.3": b"\x02\x02\x00\x05"}, "number is not spelt"),
        ({"3.3": b"\x02\x81\x01\x18"}, "length is not spelt"),
        ({"3.3": b"\x02\x80\x18\x00"}, "indefinite"),
        ({"3.3": b"\x02\x84\xff\xff\xff\xff"}, "cut off"),
        ({"3.3": b"\x30\x80" * 400}, "indefinite"),
        ({"3.3": b"\x02\x01\x01" * 400}, "in a row"),
        ({"3.3": b"\x1f\x01\x18"}, "several bytes"),
        ({"3.3": b""}, "one element"),
        ({"3.3": b"\x02"}, "cut off"),
        ({"2": b"\x16\x02\x00\x00"}, "short text"),
        ({"2": b"\x0c\x01A"}, "one element"),
        ({"4": CHIP[:9]}, "chip id of no known length"),
        ({"4": b"\x04\x09" + CHIP[:9]}, "chip id of no known length"),
        ({"4": None}, "neither a chip nor a cloud"),
        ({"5": b"\x16\x01x"}, "or both"),
        ({"4": b"\x04\x40" + b"\7" * 64}, "chip id"),
    ],
)
def test_what_a_chips_certificate_says_is_read_strictly(changes, words):
    said = chip_extensions()
    for number, value in changes.items():
        if value is None:
            del said[OID + number]
        else:
            said[OID + number] = value
    refused(by(AMD.chip(said)), words)


def test_a_chip_id_may_be_wrapped_as_der_would_have_it():
    said = {**chip_extensions(), OID + "4": b"\x04\x40" + CHIP}
    assert verdict(by(AMD.chip(said)))[0] == "passed"


# --- any bytes ---


def test_a_report_cut_anywhere_is_refused_with_its_length():
    for length in range(REPORT_BYTES):
        refused(sev(REPORT[:length], MILAN.chain), f"1184 bytes, not {length}")
    refused(sev(REPORT + b"\0", MILAN.chain), "at most 1184")


def test_no_changed_byte_of_a_report_survives():
    for place in range(REPORT_BYTES):
        raw = bytearray(REPORT)
        raw[place] ^= 1 << place % 8
        status, detail = verdict(sev(bytes(raw), MILAN.chain))
        assert status == "failed", (hex(place), detail)


def test_every_signed_byte_is_signed():
    """What no field check looks at is still covered by the signature."""
    for place in (
        0x004,
        0x010,
        0x020,
        0x038,
        0x040,
        0x04C,
        0x110,
        0x140,
        0x188,
        0x1E8,
        0x1F8,
        SIGNED_BYTES - 1,
    ):
        raw = bytearray(REPORT)
        raw[place] ^= 1
        refused(sev(bytes(raw), MILAN.chain), "signature does not hold")
        assert verdict(sev(sealed(MILAN.key, bytes(raw[:SIGNED_BYTES])), MILAN.chain))[0] == "passed"


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 1), st.data())
def test_no_changed_byte_of_a_chain_survives(which, data):
    certificates = [MILAN.leaf, AMD.ask]
    raw = bytearray(certificates[which].public_bytes(Encoding.DER))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    chain = list(MILAN.chain)
    text = b64encode(bytes(raw)).decode()
    chain[which] = f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"
    refused(sev(REPORT, chain), "")


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=40), st.integers(0, REPORT_BYTES - 40))
def test_no_bytes_surprise_the_reader_of_reports(raw, at):
    bent = REPORT[:at] + raw + REPORT[at + len(raw) :]
    if bent != REPORT:
        refused(sev(bent, MILAN.chain), "")
    assert parse_snp_report(REPORT).measurement == MEASUREMENT


def test_a_certificate_in_pem_is_spelt_in_one_way():
    der = MILAN.leaf.public_bytes(Encoding.DER)
    even = der[: -len(x509.load_der_x509_certificate(der).signature) - 1]
    raw = even + b"\x01" + der[len(even) + 1 :]
    text = f"-----BEGIN CERTIFICATE-----\n{b64encode(raw).decode()}\n-----END CERTIFICATE-----\n"
    refused(sev(REPORT, [text, pem(AMD.ask)]), "")


# --- settings ---


def test_pins_of_hardware_are_read_strictly_and_come_out_again():
    value = {"measurements": {"sev.measurement": ["5a" * 48]}, "sev_tcb": {"snp": 24}}
    pins = parse_allow_list(value, Invalid)
    assert parse_allow_list(pins.to_json(), Invalid) == pins
    assert pins.explain() == ["sev.measurement 5a5a5a5a5a5a5a5a…", "AMD snp of level 24 or above"]
    wrongs: tuple[Any, ...] = (
        {"measurements": []},
        {"measurements": {"sev.other": []}},
        {"measurements": {"sev.measurement": "5a"}},
        {"measurements": {"sev.measurement": ["5a"]}},
        {"measurements": {"sev.measurement": ["5A" * 48]}},
        {"sev_tcb": {"snp": -1}},
        {"sev_tcb": {"snp": True}},
        {"sev_tcb": {"other": 1}},
        {"sev_tcb": 1},
    )
    for wrong in wrongs:
        with pytest.raises(Invalid):
            parse_allow_list(wrong, Invalid)


def test_a_channels_file_can_name_hardware():
    trust = parse_evidence_trust(b'{"version":1,"measurements":{"sev.host_data":["' + b"01" * 32 + b'"]}}')
    assert trust.measurements == {"sev.host_data": frozenset({b"\1" * 32})}


# --- the command line ---


def test_snp_report_round_trip_by_commands(ropewalk):
    Path("body.json").write_text('{"image": "web"}')
    said = ropewalk("ledger", "evidence", "report-data", "--payload", "body.json", "--correlation-id", "c-1")
    assert said.out.strip() == REPORT[0x50:0x90].hex()
    asked = ("--payload", "body.json", "--correlation-id", "c-1", "-o", "request.bin")
    assert ropewalk("ledger", "evidence", "report-data", *asked).code == 0
    assert Path("request.bin").read_bytes() == REPORT[0x50:0x90]

    Path("report.bin").write_bytes(REPORT)
    Path("vcek.der").write_bytes(MILAN.leaf.public_bytes(Encoding.DER))
    Path("chain.pem").write_text(pem(AMD.ask) + pem(AMD.ark))
    Path("ark.pem").write_text(pem(AMD.ark))
    document = ("--format", "tee.report", "--tee", "sev", "--document", "report.bin")
    certs = ("--cert", "vcek.der", "--cert", "chain.pem", "--timestamp", "2024-11-01T12:00:00Z")
    assert ropewalk("ledger", "evidence", "wrap", *document, *certs, "-o", "evidence.json").code == 0
    make(
        ropewalk,
        "one.json",
        "--correlation-id",
        "c-1",
        "--evidence",
        "evidence.json",
        "--payload",
        "body.json",
    )

    pins = ("--measurement", f"sev.measurement={MEASUREMENT.hex()}", "--sev-tcb", "snp=24")
    assert ropewalk("ledger", "create", "--channel", "built").code == 0
    told = ropewalk("ledger", "evidence", "set", "--channel", "built", "--root", "ark.pem", *pins)
    assert told.out.endswith("1 roots, 0 keys, 0 builders, 1 measurements\n")
    shown = ropewalk("ledger", "evidence", "show", "--channel", "built")
    assert "AMD snp of level 24 or above" in shown.out
    check = ("ledger", "evidence", "check", "--file", "one.json", "--at", "2024-11-01T12:00:00Z")
    judged = ropewalk(*check, "--channel", "built")
    assert judged.code == 0 and "SEV-SNP guest on Milan-B1" in judged.out
    assert ropewalk("ledger", "trust", "--channel", "built", "-o", "trust.json").code == 0
    schema.validate("ledger/trust", json.loads(Path("trust.json").read_bytes()))
    assert ropewalk(*check, "--trust", "trust.json").code == 0
    assert ropewalk(*check, "--trust", "trust.json", "--nonce", "0a0b").code == 5


def test_a_document_needs_its_hardware_and_nothing_else_beside_it(ropewalk):
    Path("report.bin").write_bytes(REPORT)
    wrap = ("ledger", "evidence", "wrap", "--format")
    for wrong in (
        ("tee.report",),
        ("tee.report", "--document", "report.bin"),
        ("tee.report", "--tee", "sev", "--report", "report.bin"),
        ("slsa.v1", "--tee", "sev", "--document", "report.bin"),
        ("tee.report", "--tee", "sev", "--document", "report.bin", "--report", "report.bin"),
    ):
        assert ropewalk(*wrap, *wrong).code == 2
    assert (
        ropewalk(*wrap, "tee.report", "--tee", "sev", "--document", "report.bin", "--cert", "report.bin").code
        == 8
    )
    bad = ("ledger", "evidence", "set", "--channel", "c")
    assert ropewalk("ledger", "create", "--channel", "c").code == 0
    Path("two.pem").write_text(pem(AMD.ask) + pem(AMD.ark))  # which of them would be the root?
    several = ropewalk(*bad, "--root", "two.pem")
    assert several.code == 8 and "more than one certificate" in several.err
    assert ropewalk(*bad, "--sev-tcb", "snp=x").code == 2
    assert ropewalk(*bad, "--measurement", "sev.measurement").code == 2
