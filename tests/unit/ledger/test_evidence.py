"""Evidence: bound to its envelope, signed by somebody configured, under a configured root, fresh and measured."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace

import cbor2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.parsers import PARSERS
from tests.unit.ledger.attesting import (
    DAY,
    NOON,
    PAYLOAD,
    PCR0,
    Authority,
    attested,
    dsse,
    nitro,
    nitro_document,
    statement,
)
from tests.unit.ledger.making import ADA, NODE, NOON_NS, P256, observed, opened
from tests.unit.ledger.quoting import revocations

from ropewalk.errors import Invalid, RopewalkError
from ropewalk.kernel import jcs
from ropewalk.ledger.envelope.model import payload_hash
from ropewalk.ledger.evidence.binding import report_data, signed_bytes
from ropewalk.ledger.evidence.crls import parse_crl
from ropewalk.ledger.evidence.trust import EvidenceTrust, parse_evidence_trust
from ropewalk.ledger.evidence.verify import check_evidence, evidence_check
from ropewalk.ledger.rules.rules import judge
from ropewalk.ledger.rules.verdict import Context

BUILDER = "https://builder.example/v1"
ROOT = Authority("root")
MIDDLE = Authority("middle", ROOT, path_length=1)
LOWER = Authority("lower", MIDDLE, path_length=0)
LEAF = Authority("enclave", LOWER, ca=False)
BUNDLE = [ROOT, MIDDLE, LOWER]
TRUST = EvidenceTrust((ROOT.certificate,), (NODE.public,), frozenset({BUILDER}), {0: frozenset({PCR0})})


def verdict(envelope, trust=TRUST, at_ns=NOON_NS, **options):
    return check_evidence(envelope, trust, at_ns, **options)


def refused(envelope, word, trust=TRUST, at_ns=NOON_NS, **options):
    status, detail = verdict(envelope, trust, at_ns, **options)
    assert status == "failed" and word in detail, (status, detail)


# --- provenance ---


@pytest.mark.parametrize("key", [NODE, P256], ids=["ed25519", "p256"])
def test_provenance_by_a_configured_key_passes(key):
    trust = replace(TRUST, keys=(ADA.public, key.public))
    status, detail = verdict(attested(dsse(key), "slsa.v1"), trust)
    assert status == "passed" and BUILDER in detail


def test_provenance_under_a_configured_root_passes():
    signer = Authority("builder", LOWER, ca=False)
    envelope = attested(dsse(signer), "slsa.v1", cert_chain=[signer.pem, LOWER.pem, MIDDLE.pem])
    trust = replace(TRUST, keys=())
    assert verdict(envelope, trust)[0] == "passed"
    refused(envelope, "not issued", replace(trust, roots=(Authority("root").certificate,)))
    refused(envelope, "not valid", trust, NOON_NS + 2 * 86_400 * 10**9)
    other = Authority("other", LOWER, ca=False)
    refused(
        attested(dsse(other), "slsa.v1", cert_chain=[signer.pem, LOWER.pem, MIDDLE.pem]),
        "no signature",
        trust,
    )


def test_provenance_by_nobody_known_is_refused():
    refused(attested(dsse(ADA), "slsa.v1"), "no signature")


def test_nothing_is_trusted_by_default():
    assert verdict(attested(dsse(NODE), "slsa.v1"), EvidenceTrust())[0] == "not_checked"
    assert verdict(nitro(nitro_document(LEAF, BUNDLE)), EvidenceTrust())[0] == "not_checked"


def test_a_builder_that_is_not_listed_is_refused():
    refused(attested(dsse(NODE), "slsa.v1"), "not allowed", replace(TRUST, builders=frozenset()))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"_type": "https://in-toto.io/Statement/v0.1"}, "no in-toto"),
        ({"predicateType": "https://slsa.dev/provenance/v0.2"}, "no in-toto"),
        ({"predicate": None}, "buildType"),
        ({"predicate": {"buildDefinition": {}, "runDetails": {"builder": {"id": BUILDER}}}}, "buildType"),
        ({"predicate": {"buildDefinition": {"buildType": "x"}, "runDetails": {}}}, "externalParameters"),
        (
            {
                "predicate": {
                    "buildDefinition": {"buildType": "x", "externalParameters": {}},
                    "runDetails": {},
                }
            },
            "builder",
        ),
        ({"subject": [{"digest": {"blake3": "0" * 64}}]}, "no subject"),
        ({"subject": [{"digest": {"sha256": payload_hash(PAYLOAD)}}]}, "no subject"),
        ({"subject": []}, "no subject"),
    ],
)
def test_statements_that_say_something_else_are_refused(change, word):
    refused(attested(dsse(NODE, statement(**change)), "slsa.v1"), word)


def test_dsse_envelopes_that_were_touched_are_refused():
    good = dsse(NODE)
    other = b64encode(jcs.encode(statement(more=1))).decode()
    refused(attested({**good, "payload": other}, "slsa.v1"), "no signature")
    refused(attested({**good, "signatures": []}, "slsa.v1"), "signatures")
    refused(attested({**good, "signatures": good["signatures"] * 17}, "slsa.v1"), "signatures")
    refused(attested({**good, "signatures": [{}]}, "slsa.v1"), "sig")
    refused(attested({**good, "signatures": [{"sig": "AAAA"}]}, "slsa.v1"), "no signature")
    refused(attested({**good, "extra": 1}, "slsa.v1"), "DSSE")
    refused(attested(dsse(NODE, kind="text/plain"), "slsa.v1"), "payload type")
    wrong_hash = attested(good, "slsa.v1").value["attestation_evidence"] | {"evidence_hash": "0" * 64}
    refused(observed(payload=PAYLOAD, evidence=wrong_hash), "evidence_hash")


def test_type_and_payload_cannot_flow_into_one_another():
    assert signed_bytes("a", b"bc") != signed_bytes("ab", b"c")


# --- AWS Nitro ---


@pytest.mark.parametrize("tagged", [False, True])
def test_a_nitro_document_under_a_configured_root_passes(tagged):
    status, detail = verdict(nitro(nitro_document(LEAF, BUNDLE, tagged=tagged)))
    assert status == "passed", detail


def test_user_data_may_hold_the_binding_literally():
    literal = bytes.fromhex(payload_hash(PAYLOAD)) + b"c-1"
    assert verdict(nitro(nitro_document(LEAF, BUNDLE, user_data=literal)))[0] == "passed"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"user_data": None}, "user_data"),
        ({"user_data": report_data(bytes(32), "c-1")}, "user_data"),
        ({"user_data": report_data(bytes.fromhex(payload_hash(PAYLOAD)), "c-2")}, "user_data"),
        ({"pcrs": {0: b"\x08" * 48}}, "PCR0"),
        ({"pcrs": {1: PCR0}}, "debug"),
        ({"pcrs": {0: bytes(48)}}, "debug"),
        ({"pcrs": {0: b"\7" * 47}}, "form"),
        ({"pcrs": {}}, "form"),
        ({"pcrs": {32: PCR0}}, "form"),
        ({"digest": "SHA256"}, "form"),
        ({"timestamp": 0}, "form"),
        ({"module_id": ""}, "form"),
        ({"cabundle": []}, "form"),
        ({"certificate": b""}, "form"),
        ({"certificate": b"x"}, "certificate"),
        ({"nonce": b"x" * 513}, "form"),
        ({"public_key": b""}, "form"),
        ({"cabundle": [ROOT.der, LOWER.der]}, "not issued"),
        ({"cabundle": [MIDDLE.der, ROOT.der, LOWER.der]}, ""),
        ({"certificate": ROOT.der}, ""),
    ],
)
def test_nitro_documents_that_are_wrong_are_refused(change, word):
    refused(nitro(nitro_document(LEAF, BUNDLE, **change)), word)


def test_each_flaw_of_a_chain_is_found():
    def doc(leaf, *bundle):
        return nitro(nitro_document(leaf, list(bundle)))

    assert verdict(doc(Authority("e", ROOT, ca=False), ROOT))[0] == "passed"
    stranger = Authority("root")
    refused(doc(Authority("e", stranger, ca=False), stranger), "")
    refused(doc(Authority("e", Authority("stranger"), ca=False), Authority("stranger")), "no configured root")
    refused(doc(Authority("e", ROOT), ROOT), "authority")
    refused(doc(Authority("e", ROOT, ca=False, sign=False), ROOT), "digitalSignature")
    refused(doc(Authority("e", ROOT, ca=False, usage=False), ROOT), "digitalSignature")
    not_ca = Authority("m", ROOT, ca=False)
    refused(doc(Authority("e", not_ca, ca=False), ROOT, not_ca), "no authority")
    may_not = Authority("m", ROOT, sign=False)
    refused(doc(Authority("e", may_not, ca=False), ROOT, may_not), "keyCertSign")
    short = Authority("s", ROOT, path_length=0)
    long = Authority("l", short)
    refused(doc(Authority("e", long, ca=False), ROOT, short, long), "below it")
    late = Authority("late", ROOT, start=NOON + DAY / 2)
    refused(doc(Authority("e", late, ca=False), ROOT, late), "not valid")
    refused(doc(Authority("e", ROOT, ca=False, end=NOON - DAY / 2), ROOT), "not valid")
    refused(doc(Authority("e", ROOT, ca=False, critical=True), ROOT), "critical")
    p256 = Authority("e", ROOT, ca=False, curve=ec.SECP256R1())
    with pytest.raises(OverflowError):
        nitro_document(Authority("x", ROOT, ca=False, curve=ec.SECP521R1()), [ROOT])
    refused(doc(p256, ROOT), "P-384")


def test_a_chain_is_valid_only_in_its_time():
    envelope = nitro(nitro_document(LEAF, BUNDLE))
    refused(envelope, "not valid", at_ns=NOON_NS + 2 * 86_400 * 10**9)
    refused(envelope, "not valid", at_ns=NOON_NS - 2 * 86_400 * 10**9)


def test_old_documents_and_wrong_nonces_are_refused():
    envelope = nitro(nitro_document(LEAF, BUNDLE), nonce="0a0b")
    assert verdict(envelope)[0] == "passed"
    assert verdict(envelope, nonce=b"\x0a\x0b")[0] == "passed"
    refused(envelope, "nonce", nonce=b"other")
    refused(nitro(nitro_document(LEAF, BUNDLE), nonce="ff"), "nonce")
    refused(nitro(nitro_document(LEAF, BUNDLE, nonce=None), nonce="ff"), "nonce")
    aged = replace(TRUST, max_age_s=60)
    assert verdict(envelope, aged, NOON_NS + 59 * 10**9)[0] == "passed"
    refused(envelope, "old", aged, NOON_NS + 61 * 10**9)


def test_max_age_applies_to_provenance():
    """The builder signs when the build ended; without a time its age is not known."""

    def built(metadata):
        details = {"builder": {"id": BUILDER}, **({} if metadata is None else {"metadata": metadata})}
        predicate = {**statement()["predicate"], "runDetails": details}
        return attested(dsse(NODE, statement(predicate=predicate)), "slsa.v1")

    aged, noon = replace(TRUST, max_age_s=60), {"finishedOn": "2024-11-01T12:00:00Z"}
    for metadata in (noon, {"startedOn": noon["finishedOn"]}):
        assert verdict(built(metadata), aged, NOON_NS + 59 * 10**9)[0] == "passed"
        refused(built(metadata), "the build is 61 s old", aged, NOON_NS + 61 * 10**9)
    refused(built(noon), "the build is -301 s old", aged, NOON_NS - 301 * 10**9)
    for metadata in (None, {}, [], {"finishedOn": 5}):  # type: ignore[assignment]
        assert verdict(built(metadata))[0] == "passed"
        refused(built(metadata), "must name finishedOn", aged)


def test_freshness_named_in_the_report_is_kept():
    def fresh(**members):
        document = b64encode(nitro_document(LEAF, BUNDLE)).decode()
        return attested({"tee_type": "aws_nitro", "document": document, "freshness": members}, nonce="0a0b")

    assert verdict(fresh(expires_at="2024-11-01T12:00:01Z", nonce="0a0b"))[0] == "passed"
    refused(fresh(expires_at="2024-11-01T11:59:59Z"), "expired")
    refused(fresh(expires_at="soon"), "timestamp")
    refused(fresh(nonce="ffff"), "differ")


def test_the_measurement_beside_the_document_must_be_its_own():
    document = b64encode(nitro_document(LEAF, BUNDLE)).decode()
    good = {"tee_type": "aws_nitro", "document": document, "measurement": PCR0.hex()}
    assert verdict(attested(good))[0] == "passed"
    refused(attested({**good, "measurement": "00" * 48}), "measurement")


def test_certificate_time_and_issuer_must_match():
    document = b64encode(nitro_document(LEAF, BUNDLE)).decode()
    good = {
        "tee_type": "aws_nitro",
        "document": document,
        "certificate": LEAF.pem,
        "timestamp": "2024-11-01T12:00:00Z",
        "issuer": "https://aws.example",
    }
    assert verdict(attested(good))[0] == "passed"
    refused(attested({**good, "certificate": LOWER.pem}), "certificate named")
    refused(attested({**good, "timestamp": "2024-11-01T12:00:01Z"}), "timestamp named")
    refused(attested({**good, "timestamp": "noon"}), "timestamp")
    refused(attested({**good, "issuer": 1}), "issuer")


def test_revoked_certificates_are_refused():
    signer = Authority("builder", LOWER, ca=False)
    built = attested(dsse(signer), "slsa.v1", cert_chain=[signer.pem, LOWER.pem, MIDDLE.pem])
    trust = replace(TRUST, keys=())
    for envelope, revoked, issuer in (
        (nitro(nitro_document(LEAF, BUNDLE)), LEAF, LOWER),
        (nitro(nitro_document(LEAF, BUNDLE)), LOWER, MIDDLE),
        (built, signer, LOWER),
        (built, MIDDLE, ROOT),
    ):
        assert (
            verdict(envelope, replace(trust, crls=(parse_crl(revocations(issuer).encode()),)))[0] == "passed"
        )
        crl = parse_crl(revocations(issuer, revoked).encode())
        refused(envelope, "was revoked", replace(trust, crls=(crl,)))


def test_measurements_must_be_configured():
    refused(nitro(nitro_document(LEAF, BUNDLE)), "configure PCR0", replace(TRUST, pcrs={}))
    more = replace(TRUST, pcrs={**TRUST.pcrs, 8: frozenset({PCR0})})
    refused(nitro(nitro_document(LEAF, BUNDLE)), "PCR8 is missing", more)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_certificates_of_any_bytes_are_refused_and_not_tripped_over(data):
    raw = bytearray(LEAF.der)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    if bytes(raw) != LEAF.der:
        refused(nitro(nitro_document(LEAF, BUNDLE, certificate=bytes(raw))), "")


def test_a_certificate_is_spelt_in_one_way():
    """The byte before the signature counts bits to leave out: the library reads the same signature all the same."""
    signature = x509.load_der_x509_certificate(LEAF.der).signature
    even = LEAF.der[: -len(signature)]
    for bits in range(1, 8):
        raw = even[:-1] + bytes([bits]) + signature
        refused(nitro(nitro_document(LEAF, BUNDLE, certificate=raw)), "")


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_no_changed_byte_of_a_document_survives(data):
    raw = bytearray(nitro_document(LEAF, BUNDLE))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    status, _ = verdict(nitro(bytes(raw)))
    # The unprotected header is empty and unsigned; whatever stands there instead proves nothing.
    if status != "failed":
        before, after = cbor2.loads(nitro_document(LEAF, BUNDLE)), cbor2.loads(bytes(raw))
        assert before[0] == after[0] and len(after) == 4


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=300))
def test_no_bytes_surprise_the_document_reader(raw):
    assert verdict(nitro(raw))[0] == "failed"


@settings(deadline=None, max_examples=100)
@given(
    st.recursive(
        st.none() | st.integers(-9, 9) | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
        max_leaves=8,
    ),
    st.sampled_from(["slsa.v1", "tee.report", "snark.v1"]),
)
def test_no_report_surprises(report, format_):
    if not isinstance(report, dict):
        report = {"payload": report, "tee_type": "aws_nitro"}
    assert verdict(attested(report, format_))[0] in ("failed", "not_checked")


# --- the others, and rule 5 ---


@pytest.mark.parametrize("kind", ["sgx", "sev", "tdx"])
def test_other_hardware_is_bound_but_not_checked(kind):
    bound = report_data(bytes.fromhex(payload_hash(PAYLOAD)), "c-1").hex()
    status, detail = verdict(attested({"tee_type": kind, "report_data": bound}))
    assert status == "not_checked" and kind in detail
    refused(attested({"tee_type": kind, "report_data": "00" * 64}), "report_data")


def test_unbound_snark_is_refused():
    refused(attested({"system": "groth16", "public_inputs": []}, "snark.v1"), "public inputs")


def test_a_report_elsewhere_is_not_checked():
    evidence = {"format": "slsa.v1", "evidence_hash": "0" * 64}
    assert verdict(observed(payload=PAYLOAD, evidence=evidence))[0] == "not_checked"


def test_rule_5_asks_for_evidence_that_holds_where_roots_are_configured():
    context = Context(evidence=evidence_check(TRUST, lambda: NOON_NS))
    good, bad = attested(dsse(NODE), "slsa.v1"), attested(dsse(ADA), "slsa.v1")
    assert judge(good, context).findings[4].status == "passed"
    assert judge(bad, context).findings[4].status == "failed"
    assert judge(bad, Context()).findings[4].status == "passed"  # bound; nobody can say more without keys
    with pytest.raises(RopewalkError, match="rule 5"):
        judge(bad, context).require()


def test_configurations_are_read_strictly():
    raw = jcs.encode(
        {
            "version": 1,
            "roots": [ROOT.pem],
            "keys": [NODE.public.to_json()],
            "builders": [BUILDER],
            "pcrs": {"0": [PCR0.hex()]},
            "max_age_s": None,
        }
    )
    trust = parse_evidence_trust(raw)
    assert verdict(nitro(nitro_document(LEAF, BUNDLE)), trust)[0] == "passed"
    assert verdict(attested(dsse(NODE), "slsa.v1"), trust)[0] == "passed"
    for wrong in (
        b"[]",
        b"{}",
        b'{"version":1,"more":1}',
        b'{"version":1,"roots":["x"]}',
        b'{"version":1,"roots":"x"}',
        b'{"version":1,"keys":[1]}',
        b'{"version":1,"pcrs":{"99":[]}}',
        b'{"version":1,"pcrs":{"0":["XX"]}}',
        b'{"version":1,"pcrs":{"0":1}}',
        b'{"version":1,"max_age_s":0}',
    ):
        with pytest.raises(Invalid):
            parse_evidence_trust(wrong)


def test_a_channel_with_roots_refuses_evidence_that_does_not_hold(tmp_path):
    with opened(tmp_path):
        pass
    config = {"version": 1, "keys": [NODE.public.to_json()], "builders": [BUILDER]}
    (tmp_path / "ledger" / "ea.core" / "evidence.json").write_bytes(jcs.encode(config))
    with opened(tmp_path) as ledger:
        assert ledger.log.submit(attested(dsse(NODE), "slsa.v1").raw).height == 0
        with pytest.raises(RopewalkError, match="rule 5"):
            ledger.log.submit(attested(dsse(ADA), "slsa.v1").raw)


def test_crl_of_unknown_version_is_refused():
    """Found by mutation: a version that cryptography does not know is an `InvalidVersion`, which is no ValueError."""
    sample = next(each for each in PARSERS if each.name == "crl").samples[0]
    der = parse_crl(sample).public_bytes(Encoding.DER)
    assert der.count(b"\x02\x01\x01") == 1
    with pytest.raises(Invalid, match="no revocation list"):
        parse_crl(der.replace(b"\x02\x01\x01", b"\x02\x01\x05"))
