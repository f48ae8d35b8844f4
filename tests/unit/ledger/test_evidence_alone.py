"""Evidence that is wrong in one thing only, which no other check would notice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cbor2
import pytest
from tests.unit.ledger.attesting import PCR0, Authority, attested, dsse, es384, nitro, nitro_document
from tests.unit.ledger.making import (
    ADA,
    NODE,
    NOON_NS,
    changed,
)

from ropewalk.errors import (
    Invalid,
    Unverified,
)
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.evidence.allowed import EvidenceAllowList, parse_allow_list
from ropewalk.ledger.evidence.certificates import CHAIN_MAX as CERTIFICATES_MAX
from ropewalk.ledger.evidence.certificates import check_chain
from ropewalk.ledger.evidence.recheck import SNAPSHOT_TYPE, EvidenceTally
from ropewalk.ledger.evidence.tee.nitro import DOCUMENT_BYTES_MAX
from ropewalk.ledger.evidence.trust import EvidenceTrust
from ropewalk.ledger.evidence.verify import SIGNATURES_MAX, check_evidence
from ropewalk.ledger.proof.trust import Trust

# --- evidence ---


ROOT = Authority("root")
LEAF = Authority("leaf", ROOT, ca=False)
TRUST = EvidenceTrust(
    (ROOT.certificate,), (ADA.public,), frozenset({"https://builder.example/v1"}), {0: frozenset({PCR0})}
)


def judged(
    envelope: Envelope, trust: EvidenceTrust = TRUST, at_ns: int = NOON_NS, **more: Any
) -> tuple[str, str]:
    return check_evidence(envelope, trust, at_ns, **more)


def test_a_report_without_the_nonce_that_was_asked_for_is_refused():
    fresh = attested({**dsse(ADA), "freshness": {"nonce": "0a0b"}}, "slsa.v1")
    assert judged(fresh)[0] == "passed"
    assert judged(fresh, nonce=b"\x0a\x0b")[0] == "passed"
    for report in (
        fresh,
        attested({**dsse(ADA), "freshness": {}}, "slsa.v1"),
        attested(dsse(ADA), "slsa.v1"),
    ):
        found, detail = judged(report, nonce=b"\x0c")
        assert found == "failed" and "asked for" in detail


def test_a_document_from_the_future_is_refused_beyond_five_minutes():
    aged = replace(TRUST, max_age_s=60)
    envelope = nitro(nitro_document(LEAF, [ROOT]))
    assert judged(envelope, aged, NOON_NS - 300 * 10**9)[0] == "passed"
    assert judged(envelope, aged, NOON_NS - 301 * 10**9)[0] == "failed"


def signed_document(protected: dict[int, Any], tag: int | None = None) -> bytes:
    """An honest document under a protected header of our choice."""
    _, _, payload, _ = cbor2.loads(nitro_document(LEAF, [ROOT]))
    head = cbor2.dumps(protected)
    signature = es384(LEAF.key, cbor2.dumps(["Signature1", head, b"", payload]))
    value: Any = [head, {}, payload, signature]
    return cbor2.dumps(value if tag is None else cbor2.CBORTag(tag, value))


def test_document_header_allows_es384_only():
    assert judged(nitro(signed_document({1: -35})))[0] == "passed"
    for wrong in ({1: -35, 2: [4]}, {1: -7}, {}):
        found, detail = judged(nitro(signed_document(wrong)))
        assert found == "failed" and "ES384" in detail


def test_a_document_under_another_tag_is_no_sign1():
    assert judged(nitro(signed_document({1: -35}, 18)))[0] == "passed"
    for tag in (17, 98):
        found, detail = judged(nitro(signed_document({1: -35}, tag)))
        assert found == "failed" and "COSE_Sign1" in detail


def test_a_document_beyond_its_bound_is_not_even_read():
    found, detail = judged(nitro(bytes(DOCUMENT_BYTES_MAX + 1)))
    assert found == "failed" and "at most" in detail


def test_more_signatures_than_anybody_makes_are_not_tried():
    report = dsse(ADA)
    (signature,) = report["signatures"]
    many = {**report, "signatures": [signature] * SIGNATURES_MAX}
    assert judged(attested(many, "slsa.v1"))[0] == "passed"
    found, detail = judged(attested({**many, "signatures": [*many["signatures"], signature]}, "slsa.v1"))
    assert found == "failed" and "signatures are expected" in detail


def test_a_freshness_nobody_can_read_is_refused():
    wrongs: tuple[Any, ...] = ("soon", [], 5)
    for wrong in wrongs:
        assert judged(attested({**dsse(ADA), "freshness": wrong}, "slsa.v1"))[0] == "failed"


def test_a_snapshot_vouches_for_itself_only_with_the_key_that_seals():
    trust = Trust(
        (NODE.public,), (), evidence=EvidenceAllowList((ADA.public,), ("https://builder.example/v1",))
    )
    by_others = changed(attested(dsse(ADA), "slsa.v1"), event_type=SNAPSHOT_TYPE)
    assert EvidenceTally(trust).judge(by_others, NOON_NS)[0] == "passed"  # by who is pinned, as all evidence
    nobody = Trust((NODE.public,), ())
    assert EvidenceTally(nobody).judge(by_others, NOON_NS)[0] == "not_checked"
    sealer = NODE.public.to_json()
    own = changed(attested(dsse(NODE), "slsa.v1"), NODE, event_type=SNAPSHOT_TYPE, origin_identity=sealer)
    assert EvidenceTally(nobody).judge(own, NOON_NS)[0] == "passed"
    assert EvidenceTally(nobody).judge(own, NOON_NS, b"asked for")[0] == "failed"


# --- chains and pins ---


def test_a_chain_of_more_certificates_than_anybody_issues_is_not_walked():
    with pytest.raises(Unverified, match="at most"):
        check_chain(LEAF.certificate, [ROOT.certificate] * CERTIFICATES_MAX, [ROOT.certificate], NOON_NS)
    check_chain(LEAF.certificate, [ROOT.certificate], [ROOT.certificate], NOON_NS)


@pytest.mark.parametrize("pins", [{"keys": {}}, {"builders": "urn:x"}, {"pcrs": []}, {"builders": {}}])
def test_pins_of_another_shape_are_refused_as_such(pins):
    with pytest.raises(Invalid, match="keys and builders are lists, pcrs is an object"):
        parse_allow_list(pins, Invalid)
