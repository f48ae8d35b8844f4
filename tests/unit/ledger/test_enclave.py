"""Envelopes for an enclave: sealed to a key that hardware vouches for, and opened nowhere else."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.attesting import DAY, PCR0, Authority, dsse, nitro_document, statement
from tests.unit.ledger.calling import Ropewalk, make
from tests.unit.ledger.making import ADA, NODE, NOON, NOON_NS, observed

from ropewalk import errors
from ropewalk.errors import Denied, Invalid, InvalidKey, SigInvalid, Unverified
from ropewalk.kernel.keys import SealingKey
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.envelope.envelope import build, parse
from ropewalk.ledger.envelope.model import Envelope, payload_hash
from ropewalk.ledger.evidence.allowed import EvidenceAllowList
from ropewalk.ledger.evidence.binding import report_data, wrap_report
from ropewalk.ledger.mailbox.enclave import (
    EnclaveKey,
    EnclaveOffer,
    check_offer,
    offer_of,
    offer_payload,
    open_sealed,
    parse_sealed,
)
from ropewalk.ledger.mailbox.enclave_channel import seal_envelope
from ropewalk.ledger.proof.trust import Trust

VECTORS = Path(__file__).parents[3] / "vectors" / "ledger_enclave"
KEY = EnclaveKey("pay-1", SealingKey(bytes(range(32))))
ROOT = Authority("root")
LOWER = Authority("lower", ROOT, path_length=0)
LEAF = Authority("enclave", LOWER, ca=False)
TRUST = Trust((), (), roots=(ROOT.pem,), evidence=EvidenceAllowList(pcrs={0: (PCR0.hex(),)}))


def evidence(payload: dict[str, Any], leaf: Authority = LEAF, **changes: Any) -> dict[str, Any]:
    """What the hardware says about a payload."""
    bound = report_data(bytes.fromhex(payload_hash(payload)), "c-1")
    document = nitro_document(leaf, [ROOT, LOWER], **{"user_data": bound, **changes})
    return wrap_report("tee.report", {"tee_type": "aws_nitro", "document": b64encode(document).decode()})


def advertised(payload: dict[str, Any] | None = None, said: dict[str, Any] | None = None) -> Envelope:
    """An enclave's advertisement, with evidence about it unless other evidence is given."""
    payload = offer_payload(KEY.offer) if payload is None else payload
    return build(
        ADA,
        domain="ops",
        event_class="CapabilityAdvertisement",
        event_type="transport.capability",
        payload=payload,
        timestamp=NOON,
        correlation_id="c-1",
        evidence=evidence(payload) if said is None else said,
    )


def secret(number: int = 1, ref: str = "pay-1") -> Envelope:
    return observed(number, confidentiality={"level": "restricted", "enclave_ref": ref})


def cases(name: str) -> list[Any]:
    found = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))["cases"]
    return [pytest.param(case, id=case["name"]) for case in found]


@pytest.mark.parametrize("case", cases("key"))
def test_keys_are_derived_as_others_derive_them(case):
    key = EnclaveKey(case["input"]["enclave_ref"], SealingKey(bytes.fromhex(case["input"]["secret"])))
    assert {"public_key": key.offer.public.hex(), "key_id": key.offer.key_id} == case["expect"]


@pytest.mark.parametrize("case", cases("open"))
def test_what_others_sealed_opens_or_is_refused(case):
    key = EnclaveKey("pay-1", SealingKey(bytes(range(0x40, 0x60))))
    if "error" in case:
        with pytest.raises(getattr(errors, case["error"])):
            open_sealed(parse_sealed(case["input"].encode()), key, "pay")
        return
    sealed = parse_sealed(case["input"].encode())
    assert sealed.to_bytes() == case["input"].encode()
    assert open_sealed(sealed, key, "pay").raw == case["expect"].encode()


def test_an_envelope_is_read_in_its_enclave_and_carried_unread():
    envelope = secret()
    offer = check_offer(advertised(), TRUST, NOON_NS)
    assert offer == KEY.offer
    raw, again = (seal_envelope(envelope, "pay", offer).to_bytes() for _ in range(2))
    assert raw != again  # a fresh key each time
    assert open_sealed(parse_sealed(raw), KEY, "pay") == envelope
    shown = json.loads(raw)
    assert shown["envelope_id"] == envelope.hex_id and envelope.raw[:40] not in raw
    assert set(shown) == {"version", "suite", "channel", "enclave_ref", "key_id", "envelope_id", "sealed"}


def test_only_the_enclave_that_an_envelope_names_gets_it():
    for envelope in (secret(ref="pay-2"), observed(1), observed(1, confidentiality={"level": "restricted"})):
        with pytest.raises(Denied, match="it is for"):
            seal_envelope(envelope, "pay", KEY.offer)


@pytest.mark.parametrize("place", [0, 31, 32, -1])
def test_a_changed_byte_does_not_open(place):
    sealed = seal_envelope(secret(), "pay", KEY.offer)
    raw = bytearray(sealed.sealed)
    raw[place] ^= 1
    with pytest.raises(SigInvalid):
        open_sealed(replace(sealed, sealed=bytes(raw)), KEY, "pay")


def test_everything_that_is_said_openly_is_bound_into_the_seal():
    sealed = seal_envelope(secret(), "pay", KEY.offer)
    other = EnclaveKey("pay-2", KEY.secret)
    for lie, key, channel in (
        (replace(sealed, channel="other"), KEY, "other"),
        (replace(sealed, envelope_id=bytes(32)), KEY, "pay"),
        (replace(sealed, enclave_ref="pay-2", key_id=other.offer.key_id), other, "pay"),
    ):
        with pytest.raises(SigInvalid):
            open_sealed(lie, key, channel)


# The key is the enclave's.


def test_key_needs_attested_pinned_measurement():
    with pytest.raises(Unverified, match="no valid attestation"):
        check_offer(advertised(), Trust((), ()), NOON_NS)
    with pytest.raises(Unverified, match="no valid attestation"):
        check_offer(advertised(), replace(TRUST, evidence=None), NOON_NS)  # a root alone pins nothing
    other = replace(TRUST, evidence=EvidenceAllowList(pcrs={0: ("08" * 48,)}))
    with pytest.raises(Unverified, match="PCR0"):
        check_offer(advertised(), other, NOON_NS)
    with pytest.raises(Unverified, match="no valid attestation"):
        check_offer(advertised(), TRUST, NOON_NS + 3 * 86_400 * 10**9)  # its certificates have ended
    with pytest.raises(Unverified, match="nonce"):
        check_offer(advertised(), TRUST, NOON_NS, nonce=b"asked for")
    assert check_offer(advertised(), TRUST, NOON_NS, nonce=b"\x0a\x0b") == KEY.offer


def test_evidence_about_one_key_does_not_serve_for_another():
    mine = offer_payload(EnclaveKey("pay-1", SealingKey(bytes(32))).offer)
    with pytest.raises(Unverified, match="does not bind"):
        check_offer(advertised(mine, evidence(offer_payload(KEY.offer))), TRUST, NOON_NS)
    renamed = offer_payload(replace(KEY.offer, enclave_ref="pay-2"))
    with pytest.raises(Unverified, match="does not bind"):
        check_offer(advertised(renamed, evidence(offer_payload(KEY.offer))), TRUST, NOON_NS)


def test_what_a_builder_says_is_no_word_of_hardware():
    payload = offer_payload(KEY.offer)
    subject = [{"name": "offer", "digest": {"blake3": payload_hash(payload)}}]
    said = wrap_report("slsa.v1", dsse(NODE, statement(subject=subject)))
    builders = EvidenceAllowList(keys=(NODE.public,), builders=("https://builder.example/v1",))
    with pytest.raises(Unverified, match="no report of hardware"):
        check_offer(advertised(payload, said), replace(TRUST, evidence=builders), NOON_NS)


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said.pop("enclave_bridge"),
        lambda said: said["enclave_bridge"].update(suite="other"),
        lambda said: said["enclave_bridge"].update(public_key="00"),
        lambda said: said["enclave_bridge"].update(enclave_ref=""),
        lambda said: said["enclave_bridge"].update(enclave_ref="a\nb"),
    ],
    ids=["none", "suite", "key", "nameless", "unprintable"],
)
def test_an_offer_that_makes_no_sense_is_refused(change: Callable[[dict[str, Any]], object]):
    payload = offer_payload(KEY.offer)
    change(payload)
    with pytest.raises(Invalid):
        offer_of(advertised(payload))


def test_an_advertisement_that_somebody_changed_offers_nothing():
    value = json.loads(advertised().raw)
    value["payload"]["enclave_bridge"]["public_key"] = "11" * 32
    with pytest.raises(SigInvalid):
        offer_of(parse(json.dumps(value).encode()))


def test_a_key_that_everybody_could_open_for_is_refused():
    with pytest.raises(InvalidKey):
        seal_envelope(secret(), "pay", EnclaveOffer("pay-1", bytes(32)))


def test_sealing_and_appending_from_the_command_line(ropewalk: Ropewalk):
    now = datetime.now(UTC)
    root = Authority("root", start=now - DAY, end=now + DAY)
    lower = Authority("lower", root, path_length=0, start=now - DAY, end=now + DAY)
    leaf = Authority("enclave", lower, ca=False, start=now - DAY, end=now + DAY)
    Path("root.pem").write_text(root.pem)
    assert ropewalk("key", "new", "box", "--alg", "xchacha20poly1305").code == 0
    for channel in ("audit", "pay"):
        assert ropewalk("ledger", "create", "--channel", channel).code == 0
    own = ("--key", "box", "--enclave-ref", "pay-1")
    assert ropewalk("ledger", "enclave", "offer", *own, "-o", "offer.json").code == 0
    asked = ropewalk(
        "ledger", "evidence", "report-data", "--payload", "offer.json", "--correlation-id", "c-1"
    )
    bound = report_data(bytes.fromhex(payload_hash(json.loads(Path("offer.json").read_bytes()))), "c-1")
    assert bound.hex() in asked.out
    document = nitro_document(leaf, [root, lower], user_data=bound, timestamp=int(now.timestamp() * 1000))
    report = {"tee_type": "aws_nitro", "document": b64encode(document).decode()}
    Path("evidence.json").write_text(json.dumps(wrap_report("tee.report", report)))
    advertising = ("--class", "CapabilityAdvertisement", "--type", "transport.capability")
    made = ropewalk(
        *("ledger", "envelope", "--channel", "audit", "--domain", "ops", *advertising, "--key", "ada"),
        *(
            "--payload",
            "offer.json",
            "--correlation-id",
            "c-1",
            "--evidence",
            "evidence.json",
            "-o",
            "ad.json",
        ),
    )
    assert made.code == 0, made
    pins = ("--root", "root.pem", "--pcr", f"0={PCR0.hex()}")
    assert ropewalk("ledger", "evidence", "set", "--channel", "audit", *pins).code == 0
    assert ropewalk("ledger", "trust", "--channel", "audit", "-o", "trust.json").code == 0
    make(ropewalk, "one.json", "--level", "restricted", "--enclave-ref", "pay-1")
    sealing = ("ledger", "enclave", "seal", "--to", "ad.json", "--channel", "pay", "--file", "one.json")
    sealed = ropewalk(*sealing, "--trust", "trust.json", "-o", "sealed.json")
    assert sealed.code == 0 and "sealed for pay-1" in sealed.out, sealed
    assert ropewalk("ledger", "trust", "--channel", "pay", "-o", "nobody.json").code == 0
    assert ropewalk(*sealing, "--trust", "nobody.json").code == 5
    assert ropewalk(*sealing, "--trust", "trust.json", "--nonce", "zz").code == 2
    opening = ("ledger", "enclave", "append", "--channel", "pay")
    assert ropewalk(*opening, "--key", "box", "--enclave-ref", "pay-2", "--file", "sealed.json").code == 6
    refused = ropewalk(*opening, *own, "--file", "sealed.json")
    assert refused.code == 6 and "restricted" in refused.err  # the channel has no policy that lets it in
    make(ropewalk, "two.json", "--level", "confidential", "--enclave-ref", "pay-1")
    more = ropewalk(*sealing[:-1], "two.json", "--trust", "trust.json")
    Path("lines").write_text(more.out + "nonsense\n" + more.out)
    answers = ropewalk(*opening, *own, "--file", "lines", "--jsonl", "--json")
    one, two, three = map(json.loads, answers.out.splitlines())
    assert answers.code == 8 and two["code"] == "InvalidJson" and three == one | {"replayed": True}
    with open_channel(Path("repo.git/ropewalk"), "pay") as reading:
        assert reading.head().envelopes == 1
    absent = ropewalk("ledger", "enclave", "append", "--channel", "nowhere", *own, "--file", "sealed.json")
    assert absent.code == 3
