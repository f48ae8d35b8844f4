"""Intel SGX and TDX quotes: bound, signed from the platform down, at a status that is allowed, and measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.ledger.attesting import DAY, NOON, Authority
from tests.unit.ledger.calling import make
from tests.unit.ledger.making import NOON_NS, observed
from tests.unit.ledger.quoting import (
    COMPONENTS,
    FMSPC,
    MR_ENCLAVE,
    MR_SIGNER,
    MR_TD,
    RTMRS,
    Vendor,
    element,
    member,
    number,
    platform_extension,
    quoted,
    revocations,
    stamp,
    tcb_info,
)

from ropewalk.errors import Invalid, RopewalkError
from ropewalk.kernel.schema import shipped as schema
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.evidence.allowed import (
    CollateralTexts,
    EvidenceAllowList,
    parse_allow_list,
    parse_collateral_texts,
)
from ropewalk.ledger.evidence.crls import CRL_BYTES_MAX, crl_text, parse_crl
from ropewalk.ledger.evidence.tee.dcap import _certificates, _check_signatures
from ropewalk.ledger.evidence.tee.intel_collateral import parse_collateral, parse_statement
from ropewalk.ledger.evidence.tee.intel_quote import QUOTE_BYTES_MAX, parse_quote
from ropewalk.ledger.evidence.trust import EvidenceTrust
from ropewalk.ledger.evidence.verify import check_evidence

INTEL = Vendor()
TDX, SGX = INTEL.quote(), INTEL.quote("sgx", 3)
COLLATERAL = {tee: INTEL.collateral(tee) for tee in ("sgx", "tdx")}
PINNED = {"tdx.mrtd": frozenset({MR_TD}), "sgx.mrenclave": frozenset({MR_ENCLAVE})}
TRUST = EvidenceTrust((INTEL.root.certificate,), measurements=PINNED)


def verdict(
    envelope: Envelope, trust: EvidenceTrust = TRUST, at_ns: int = NOON_NS, **options: Any
) -> tuple[str, str]:
    return check_evidence(envelope, trust, at_ns, **options)


def refused(envelope: Envelope, words: str, trust: EvidenceTrust = TRUST, **options: Any) -> None:
    status, detail = verdict(envelope, trust, **options)
    assert status == "failed" and words in detail, (status, detail)


def tdx(document: bytes = TDX, **said: Any) -> Envelope:
    return quoted(document, said={"collateral": COLLATERAL["tdx"], **said})


def sgx(document: bytes = SGX, **said: Any) -> Envelope:
    return quoted(document, "sgx", said={"collateral": COLLATERAL["sgx"], **said})


@pytest.mark.parametrize(("tee", "version"), [("sgx", 3), ("sgx", 4), ("sgx", 5), ("tdx", 4), ("tdx", 5)])
def test_a_quote_under_a_configured_root_passes(tee, version):
    envelope = quoted(INTEL.quote(tee, version), tee, said={"collateral": COLLATERAL[tee]})
    status, detail = verdict(envelope)
    assert status == "passed" and FMSPC.hex() in detail and tee.upper() in detail, detail


def test_a_quote_of_tdx_1_5_passes():
    assert verdict(tdx(INTEL.quote(version=5, size=648)))[0] == "passed"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"header": {0: b"\x02"}}, "version 2; known are 3 to 5"),
        ({"header": {0: b"\x06"}}, "version 6"),
        ({"header": {2: b"\x03"}}, "type 3"),
        ({"header": {4: b"\x82"}}, "TEE type 0x82"),
        ({"header": {12: b"\0"}}, "not Intel's"),
        ({"body": {120: b"\x01"}}, "debug"),
        ({"body": {520: b"\0"}}, "report_data of the document"),
        ({"body": {136: b"\0"}}, "tdx.mrtd"),
        ({"body": {0: b"\x01"}}, "below all"),
        ({"body": {0: b"\x03"}}, "TDX module: OutOfDate"),
        ({"body": {1: b"\x02"}}, "no TDX module of version 2"),
        ({"body": {2: b"\x05"}}, "platform: SWHardeningNeeded"),
        ({"body": {64: b"\x01"}}, "TDX module is not one"),
        ({"body": {112: b"\x01"}}, "TDX module is not one"),
        ({"qe": {48: b"\x17"}}, "quoting enclave ran in debug"),
        ({"qe": {48: b"\x05"}}, "attributes of the quoting enclave"),
        ({"qe": {16: b"\x01"}}, "miscselect"),
        ({"qe": {128: b"\0"}}, "not one that Intel has signed"),
        ({"qe": {256: b"\x01"}}, "not one that Intel has signed"),
        ({"qe": {258: b"\x05"}}, "quoting enclave: OutOfDate"),
        ({"qe": {258: b"\x01"}}, "below all"),
        ({"qe": {320: b"\0"}}, "does not name the key"),
        ({"qe": {360: b"\1"}}, "does not name the key"),
        ({"key": ec.generate_private_key(ec.SECP256R1())}, "signature over the quote"),
        ({"version": 5, "kind": 3}, "type 3"),
        ({"version": 5, "kind": 1}, "type 1"),
    ],
)
def test_quotes_that_say_something_else_are_refused_with_the_reason(options, words):
    refused(tdx(INTEL.quote(**options)), words)


def test_an_old_module_without_a_version_is_judged_with_the_platform():
    level = tcb_info()["tcbLevels"][0]
    level["tcb"]["tdxtcbcomponents"] = [{"svn": 5}, *[{"svn": 0}] * 15]
    collateral = INTEL.collateral(tcb={"tcbLevels": [level]})
    old = INTEL.quote(body={0: b"\x05\x00"})
    assert verdict(tdx(old, collateral=collateral))[0] == "passed"
    refused(tdx(INTEL.quote(body={0: b"\x04\x00"}), collateral=collateral), "none of the levels")
    refused(
        tdx(INTEL.quote(body={0: b"\x05\x00", 64: b"\1"}), collateral=collateral), "TDX module is not one"
    )


def test_an_enclave_in_debug_mode_is_refused():
    refused(sgx(INTEL.quote("sgx", 3, body={48: b"\x07"})), "debug mode")


def test_the_kind_of_hardware_is_the_quotes_own():
    refused(quoted(TDX, "sgx", said={"collateral": COLLATERAL["tdx"]}), "the quote is of tdx")
    refused(quoted(SGX, "tdx", said={"collateral": COLLATERAL["sgx"]}), "the quote is of sgx")


def test_a_quote_of_another_envelope_is_refused():
    evidence = tdx().value["attestation_evidence"]
    refused(observed(payload={"image": "other"}, correlation_id="c-1", evidence=evidence), "report_data")


# --- what is pinned ---


def test_only_what_is_pinned_passes():
    refused(tdx(), "configure tdx.mrtd", replace(TRUST, measurements={}))
    refused(sgx(), "configure sgx.mrenclave or sgx.mrsigner", replace(TRUST, measurements={}))
    status, detail = verdict(tdx(), replace(TRUST, measurements={}, pinned=False))
    assert status == "not_checked" and "is not pinned" in detail
    assert verdict(tdx(), EvidenceTrust())[0] == "not_checked"
    for register, value in enumerate(RTMRS):
        name = f"tdx.rtmr{register}"
        assert (
            verdict(tdx(), replace(TRUST, measurements={**PINNED, name: frozenset({value})}))[0] == "passed"
        )
        refused(tdx(), name, replace(TRUST, measurements={**PINNED, name: frozenset({bytes(48)})}))


def test_a_signer_counts_with_a_product_and_a_level():
    signer = replace(TRUST, measurements={"sgx.mrsigner": frozenset({MR_SIGNER})})
    refused(sgx(), "alone allows all", signer)
    assert verdict(sgx(), replace(signer, sgx_isv={"prodid": 1, "svn": 8}))[0] == "passed"
    refused(sgx(), "product 1", replace(signer, sgx_isv={"prodid": 2}))
    refused(sgx(), "level 8 of the enclave is below 9", replace(signer, sgx_isv={"prodid": 1, "svn": 9}))
    refused(sgx(), "sgx.mrsigner", replace(signer, measurements={"sgx.mrsigner": frozenset({bytes(32)})}))


def test_a_status_counts_only_if_it_is_allowed():
    soft = INTEL.platform(platform_extension(pce_svn=12))
    envelope = tdx(INTEL.quote(pck=soft))
    refused(envelope, "platform: SWHardeningNeeded, which is not allowed")
    soft_too = replace(TRUST, tcb_statuses=frozenset({"UpToDate", "SWHardeningNeeded"}))
    assert verdict(envelope, soft_too)[0] == "passed"
    old = tdx(INTEL.quote(pck=INTEL.platform(platform_extension(bytes([6, *COMPONENTS[1:]])))))
    refused(old, "platform: OutOfDate", soft_too)
    refused(tdx(INTEL.quote(pck=INTEL.platform(platform_extension(bytes(16))))), "none of the levels")
    refused(tdx(INTEL.quote(pck=INTEL.platform(platform_extension(pce_svn=4)))), "none of the levels")


def test_what_is_said_beside_the_quote_must_be_its_own():
    assert verdict(tdx(measurement=MR_TD.hex(), certificate=INTEL.pck.pem))[0] == "passed"
    refused(tdx(measurement="00" * 48), "measurement named")
    refused(tdx(certificate=INTEL.ca.pem), "certificate named")
    refused(tdx(), "correlation id", nonce=b"\x0a")
    refused(tdx(), "names no timestamp", replace(TRUST, max_age_s=60))


# --- chains and revocation ---


def test_each_flaw_of_a_pck_chain_is_found():
    stranger = Vendor()
    refused(tdx(stranger.quote(), collateral=stranger.collateral()), "")
    refused(tdx(INTEL.quote(chain=[INTEL.pck, stranger.ca, INTEL.root])), "not issued")
    refused(tdx(INTEL.quote(chain=[INTEL.ca, INTEL.root])), "certificate authority")
    refused(tdx(INTEL.quote(chain=[])), "no certificate")
    assert verdict(tdx(INTEL.quote(chain=[INTEL.pck, INTEL.ca])))[0] == "passed"
    refused(tdx(INTEL.quote(pck=INTEL.platform(end=NOON - DAY / 2))), "not valid")
    refused(tdx(INTEL.quote(pck=stranger.pck, chain=[INTEL.pck, INTEL.ca, INTEL.root])), "over the QE report")
    bare = Authority("no platform", INTEL.ca, ca=False, curve=ec.SECP256R1())
    refused(tdx(INTEL.quote(pck=bare)), "no PCK certificate")
    wide = Authority("wide", INTEL.ca, ca=False)
    refused(tdx(INTEL.quote(chain=[wide, INTEL.ca, INTEL.root])), "no P-256 key")


@pytest.mark.parametrize(
    ("extension", "words"),
    [
        (b"", "one element"),
        (b"\x30\x80", "indefinite"),
        (b"\x30\x80" * 2000, "indefinite"),
        (element(0x30, element(0x30, b"") * 65), "in a row"),
        (element(0x30, element(0x30, b"") * 2), "pairs"),
        (platform_extension(fmspc=b"\1" * 5), "6 bytes"),
        (platform_extension(pce_id=None), "lacks member"),
        (platform_extension(tcb=None), "lacks member"),
        (platform_extension(ppid=member(b"\4", element(4, FMSPC))), "each id once"),
        (platform_extension(pce_svn=0x10000), "at most 65535"),
        (platform_extension(tcb=member(b"\2", element(0x30, member(b"\2\1", number(1))))), "lacks member"),
        (platform_extension() + b"\0", "cut off"),
    ],
)
def test_what_a_pck_certificate_says_is_read_strictly(extension, words):
    refused(tdx(INTEL.quote(pck=INTEL.platform(extension))), words)


def test_revoked_certificates_are_refused_where_lists_are_given():
    def lists(*texts: str) -> EvidenceTrust:
        return replace(TRUST, crls=tuple(parse_crl(text.encode()) for text in texts))

    assert verdict(tdx(), lists(revocations(INTEL.ca), revocations(INTEL.root)))[0] == "passed"
    refused(tdx(), "was revoked at", lists(revocations(INTEL.ca, INTEL.pck)))
    refused(tdx(), "was revoked at", lists(revocations(INTEL.root, INTEL.ca)))
    refused(tdx(), "was revoked at", lists(revocations(INTEL.root, INTEL.signer)))
    # Revoked after the time it is judged at: what was true then stays true.
    assert verdict(tdx(), lists(revocations(INTEL.ca, INTEL.pck, when=NOON + DAY / 2)))[0] == "passed"
    refused(tdx(), "had ended", lists(revocations(INTEL.ca, end=NOON - DAY)))
    assert verdict(tdx(), lists(revocations(INTEL.ca, end=NOON - DAY), revocations(INTEL.ca)))[0] == "passed"
    forged = Authority("SGX PCK Platform CA", curve=ec.SECP256R1())
    refused(tdx(), "no revocation list for", lists(revocations(forged)))
    assert verdict(tdx(), lists(revocations(forged, INTEL.pck), revocations(INTEL.ca)))[0] == "passed"
    assert verdict(tdx(), lists(revocations(Authority("somebody else"))))[0] == "passed"


def test_revocation_lists_are_taken_in_both_forms_and_within_a_bound():
    text = revocations(INTEL.ca, INTEL.pck)
    der = parse_crl(text.encode()).public_bytes(Encoding.DER)
    assert crl_text(der) == crl_text(text.encode()) == text
    for wrong in (b"", der[:-1], b"\x30" * 40, bytes(CRL_BYTES_MAX + 1)):
        with pytest.raises(Invalid):
            parse_crl(wrong)


# --- collateral ---


def test_without_collateral_nothing_pinned_passes():
    bare = quoted(TDX)
    refused(bare, "no collateral for")
    status, detail = verdict(bare, replace(TRUST, pinned=False))
    assert status == "not_checked" and "no collateral for" in detail
    for other in ({"fmspc": "00" * 6}, {"pceId": "0001"}):
        refused(tdx(collateral=INTEL.collateral(tcb=other)), "no collateral for")
    refused(tdx(collateral=COLLATERAL["sgx"]), "no collateral for")


def test_the_newest_collateral_that_counts_decides_whoever_gave_it():
    def dated(**changes: Any) -> dict[str, Any]:
        return INTEL.collateral(tcb=changes)

    newer = stamp(NOON - DAY / 2)
    worse = [{**tcb_info()["tcbLevels"][0], "tcbStatus": "OutOfDate"}]
    warned = parse_collateral(parse_collateral_texts(dated(issueDate=newer, tcbLevels=worse), Invalid))
    refused(tdx(), "platform: OutOfDate", replace(TRUST, collateral=(warned,)))
    own = parse_collateral(parse_collateral_texts(COLLATERAL["tdx"], Invalid))
    assert verdict(quoted(TDX), replace(TRUST, collateral=(own,)))[0] == "passed"
    old = dated(nextUpdate=stamp(NOON - DAY / 4))
    refused(tdx(collateral=old), "of another time")
    assert verdict(tdx(collateral=old), replace(TRUST, collateral=(own,)))[0] == "passed"
    refused(tdx(collateral=dated(issueDate=stamp(NOON + DAY / 4))), "of another time")


def test_collateral_must_be_signed_directly_under_the_root_of_the_quote():
    stranger = Vendor()
    by_stranger = {**stranger.collateral(), "chain": [stranger.signer.pem, stranger.root.pem]}
    both = replace(TRUST, roots=(INTEL.root.certificate, stranger.root.certificate))
    refused(tdx(collateral=by_stranger), "", both)
    refused(tdx(collateral=INTEL.collateral(signer=INTEL.pck)), "by a platform")
    below = Authority("signer", INTEL.ca, ca=False, curve=ec.SECP256R1())
    deep = [below.pem, INTEL.ca.pem, INTEL.root.pem]
    refused(tdx(collateral=INTEL.collateral(signer=below, chain=deep)), "directly under the root")
    refused(tdx(collateral=INTEL.collateral(signer=below, chain=deep[:2])), "directly under the root")
    refused(tdx(collateral=INTEL.collateral(signer=below, chain=deep[:1])), "no configured root")
    refused(tdx(collateral=INTEL.collateral(signer=INTEL.pck, chain=[INTEL.pck.pem])), "by a platform")
    refused(tdx(collateral={**COLLATERAL["tdx"], "chain": []}), "directly under the root")
    for name in ("tcb_info", "qe_identity"):
        text = COLLATERAL["tdx"][name].replace('"tcbEvaluationDataNumber":17', '"tcbEvaluationDataNumber":18')
        refused(tdx(collateral={**COLLATERAL["tdx"], name: text}), "does not hold")


def test_collateral_is_signed_in_the_bytes_it_came_in():
    text = COLLATERAL["tdx"]["tcb_info"]
    assert verdict(tdx(collateral={**COLLATERAL["tdx"], "tcb_info": f"\n{text} \n"}))[0] == "passed"
    spaced = text.replace('"version":3', '"version": 3')
    refused(tdx(collateral={**COLLATERAL["tdx"], "tcb_info": spaced}), "signature over tcbInfo")


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {**COLLATERAL["tdx"], "more": 1},
        {**COLLATERAL["tdx"], "chain": "x"},
        {**COLLATERAL["tdx"], "chain": ["x"]},
        {**COLLATERAL["tdx"], "tcb_info": 1},
        {**COLLATERAL["tdx"], "tcb_info": "{}"},
        {**COLLATERAL["tdx"], "tcb_info": COLLATERAL["tdx"]["qe_identity"]},
        {**COLLATERAL["tdx"], "tcb_info": "x" * (1 << 19)},
        INTEL.collateral(tcb={"version": 2}),
        INTEL.collateral(tcb={"id": "QE"}),
        INTEL.collateral(tcb={"issueDate": "soon"}),
        INTEL.collateral(tcb={"tcbLevels": []}),
        INTEL.collateral(tcb={"tcbLevels": [1]}),
        INTEL.collateral(tcb={"tcbLevels": [{"tcb": {}, "tcbStatus": "UpToDate"}] * 257}),
        INTEL.collateral(tcb={"tcbLevels": [{"tcb": {"sgxtcbcomponents": []}, "tcbStatus": "UpToDate"}]}),
        INTEL.collateral(tcb={"tdxModuleIdentities": {}}),
        INTEL.collateral(tcb={"fmspc": "xx"}),
        INTEL.collateral(qe={"attributesMask": "00"}),
        INTEL.collateral(qe={"isvprodid": "2"}),
        INTEL.collateral(qe={"mrsigner": None}),
        INTEL.collateral(qe={"tcbLevels": [{"tcb": {"isvsvn": -1}, "tcbStatus": "UpToDate"}]}),
    ],
    ids=range(23),  # they are signed anew in every process
)
def test_collateral_of_another_form_is_refused(value):
    refused(tdx(collateral=value), "")


def test_a_revoked_status_cannot_be_allowed():
    with pytest.raises(Invalid, match="tcb_statuses"):
        parse_allow_list({"tcb_statuses": ["Revoked"]}, Invalid)
    gone = [{**tcb_info()["tcbLevels"][0], "tcbStatus": "Revoked"}]
    refused(tdx(collateral=INTEL.collateral(tcb={"tcbLevels": gone})), "Revoked")


# --- any bytes ---


def test_a_quote_cut_anywhere_is_refused_and_says_so():
    for raw, wrapped in ((TDX, tdx), (SGX, sgx)):
        for length in range(0, len(raw), 1 if len(raw) < 700 else 7):
            refused(wrapped(raw[:length]), "quote")
        refused(wrapped(raw + b"\0\1"), "after the end of the quote")
        assert verdict(wrapped(raw + bytes(70)))[0] == "passed"  # as buffers of a fixed size leave it
    refused(tdx(bytes(QUOTE_BYTES_MAX + 1)), "at most")


@pytest.mark.parametrize(("raw", "wrapped"), [(TDX, tdx), (SGX, sgx)], ids=["tdx", "sgx"])
def test_no_changed_byte_of_a_quote_survives(raw, wrapped):
    """Up to the certificates each byte is tried; among these, what PEM allows between its lines is not signed."""
    end = raw.index(b"-----BEGIN")
    for place in range(end):
        changed = bytearray(raw)
        changed[place] ^= 1 << place % 8
        with pytest.raises(RopewalkError):  # cheaper than an envelope each
            _judge(bytes(changed))
    for place in range(0, end, 37):
        changed = bytearray(raw)
        changed[place] ^= 1 << place % 8
        refused(wrapped(bytes(changed)), "")


def _judge(raw: bytes) -> None:
    """The checks of signed bytes alone, in the order in which they are made."""
    quote = parse_quote(raw)
    _check_signatures(quote, _certificates(quote)[0])


@settings(deadline=None, max_examples=120)
@given(st.data())
def test_changed_certificates_help_no_verdict(data):
    begin = TDX.index(b"-----BEGIN")
    raw = bytearray(TDX)
    raw[data.draw(st.integers(begin, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    status, detail = verdict(tdx(bytes(raw)))
    if status != "failed":
        # Nothing but the spelling of PEM was touched: the certificates are the same, byte for byte.
        kept = _certificates(parse_quote(bytes(raw)))
        assert kept == [each.certificate for each in (INTEL.pck, INTEL.ca, INTEL.root)][: len(kept)], detail
        assert len(kept) >= 2


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=700))
def test_no_bytes_surprise_the_reader_of_quotes(raw):
    refused(tdx(raw), "")
    refused(tdx(TDX[:636] + raw), "")


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=200))
def test_no_text_surprises_the_reader_of_collateral(text):
    with pytest.raises(Invalid):
        parse_statement(text, "tcbInfo")
    body = f'{{"tcbInfo":{{{text}}},"signature":"{"00" * 64}"}}'
    with pytest.raises(Invalid):
        parse_statement(body, "tcbInfo")


def test_a_key_that_is_no_point_is_refused():
    for public in (b"\xff" * 64, bytes(63) + b"\1"):
        refused(tdx(INTEL.quote(public=public)), "no point of P-256")


def test_certification_data_of_another_kind_or_size_are_refused():
    outer = 48 + 584 + 4 + 128
    inner = outer + 6 + 384 + 64 + 2 + 32
    for at, kind in ((outer, 6), (inner, 5)):
        assert TDX[at] == kind
        refused(tdx(TDX[:at] + b"\1" + TDX[at + 1 :]), f"{kind} is expected here")
        refused(tdx(TDX[: at + 2] + b"\0" + TDX[at + 3 :]), "bytes of certification data")


# --- settings and the command line ---


def test_pins_for_intel_are_read_strictly_and_come_out_again():
    pins = EvidenceAllowList(
        measurements={"tdx.mrtd": (MR_TD.hex(),)},
        sgx_isv={"prodid": 1, "svn": 8},
        tcb_statuses=("UpToDate", "SWHardeningNeeded"),
        collateral=(parse_collateral_texts(COLLATERAL["tdx"], Invalid),),
        crls=(revocations(INTEL.ca),),
    )
    assert parse_allow_list(json.loads(json.dumps(pins.to_json())), Invalid) == pins
    assert verdict(quoted(TDX), EvidenceTrust.of([INTEL.root.pem], pins))[0] == "passed"
    said = "\n".join(pins.explain())
    assert "SGX prodid 1" in said and "SWHardeningNeeded" in said and "1 given" in said
    wrongs: tuple[Any, ...] = (
        {"sgx_isv": {"prodid": 0x10000}},
        {"sgx_isv": {"other": 1}},
        {"tcb_statuses": "UpToDate"},
        {"collateral": {}},
        {"collateral": [1]},
        {"crls": [1]},
    )
    for wrong in wrongs:
        with pytest.raises(Invalid):
            parse_allow_list(wrong, Invalid)
    no_collateral = CollateralTexts("{}", "{}", ())
    for broken in (EvidenceAllowList(crls=("x",)), EvidenceAllowList(collateral=(no_collateral,))):
        with pytest.raises(Invalid):
            EvidenceTrust.of([], broken)


def test_quote_round_trip_by_commands(ropewalk):
    Path("body.json").write_text('{"image": "web"}')
    Path("quote.bin").write_bytes(TDX)
    Path("tcb.json").write_text(COLLATERAL["tdx"]["tcb_info"])
    Path("qe.json").write_text(COLLATERAL["tdx"]["qe_identity"])
    Path("signer.pem").write_text(INTEL.signer.pem + INTEL.root.pem)
    Path("root.pem").write_text(INTEL.root.pem)
    Path("pck.crl").write_text(revocations(INTEL.ca))
    files = ("--tcb-info", "tcb.json", "--qe-identity", "qe.json", "--collateral-cert", "signer.pem")
    document = ("--format", "tee.report", "--tee", "tdx", "--document", "quote.bin")
    wrap = ("ledger", "evidence", "wrap", *document)
    assert ropewalk(*wrap, *files, "-o", "evidence.json").code == 0
    assert ropewalk(*wrap, "-o", "bare.json").code == 0
    for name in ("evidence", "bare"):
        make(ropewalk, f"{name}.envelope", "--correlation-id", "c-1", "--evidence", f"{name}.json")

    pins = ("--measurement", f"tdx.mrtd={MR_TD.hex()}", "--crl", "pck.crl", "--tcb-status", "UpToDate")
    assert ropewalk("ledger", "create", "--channel", "built").code == 0
    believe = ("ledger", "evidence", "set", "--channel", "built", "--root", "root.pem", *pins)
    assert ropewalk(*believe).code == 0

    def check(name: str, *more: str) -> tuple[int, str]:
        at = ("--at", "2024-11-01T12:00:00Z", "--file", f"{name}.envelope")
        answer = ropewalk("ledger", "evidence", "check", *at, *(more or ("--channel", "built")))
        return answer.code, answer.out

    code, said = check("evidence")
    assert code == 0 and "TDX on FMSPC 90c06f000000" in said
    code, said = check("bare")
    assert code == 5 and "no collateral" in said
    assert ropewalk(*believe, *files, "--sgx-isv", "prodid=1").code == 0
    assert check("bare")[0] == 0
    shown = ropewalk("ledger", "evidence", "show", "--channel", "built").out
    assert "Intel's collateral, 1 given" in shown and "revocation lists" in shown
    assert ropewalk("ledger", "trust", "--channel", "built", "-o", "trust.json").code == 0
    schema.validate("ledger/trust", json.loads(Path("trust.json").read_bytes()))
    assert check("bare", "--trust", "trust.json")[0] == 0

    assert ropewalk(*wrap, *files[:2]).code == 2
    assert ropewalk(*believe, *files[:4]).code == 2
    assert ropewalk(*believe, "--tcb-status", "Revoked").code == 8
    Path("tcb.json").write_text("{}")
    assert ropewalk(*wrap, *files).code == 8
