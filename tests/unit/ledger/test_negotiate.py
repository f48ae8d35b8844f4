"""Negotiation: what follows from two advertisements, and that whoever strips an option is seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.ledger.making import ADA, NODE, NOON, P256, changed, observed, resigned

from ropewalk.errors import Denied, Invalid, RopewalkError, SigInvalid, Unavailable, Unverified
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import Tag, blake3
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.envelope.envelope import parse
from ropewalk.ledger.envelope.model import Envelope, payload_hash
from ropewalk.ledger.remote.negotiate import (
    Agreement,
    Capabilities,
    NegotiationAnswer,
    advertise,
    answer,
    capabilities_of,
    check_answer,
    choose,
    transcript,
)

TLS = Capabilities(("tls",))


def asked(able: Capabilities = TLS, key: SigningKey = ADA, nonce: str = "c-1") -> Envelope:
    return advertise(key, able, timestamp=NOON, correlation_id=nonce)


def answered(said: Envelope, able: Capabilities = TLS, key: SigningKey = NODE) -> NegotiationAnswer:
    return answer(key, said, able, timestamp=NOON)


def example(key: SigningKey = ADA) -> bytes:
    """S4 §9 as it is printed, its placeholders filled."""
    payload: dict[str, Any] = {
        "transports": ["quic", "grpc", "vm_mailbox", "enclave_bridge"],
        "supported_versions": ["1.0.x", "1.1.x"],
        "max_message_bytes": 1048576,
        "compression": ["none", "zstd"],
        "attestation_formats": ["tee.report", "slsa.v1"],
        "features": {"streaming": True, "retry": True},
    }
    names = ["protocol_version", "domain", "event_class", "event_type", "timestamp", "payload_hash"]
    value: dict[str, Any] = {
        "protocol_version": "1.0.0",
        "domain": "ea.core",
        "event_class": "CapabilityAdvertisement",
        "event_type": "transport.capability",
        "correlation_id": "9f1c",
        "timestamp": "2024-11-01T12:00:00Z",
        "origin_identity": key.public.to_json(),
        "payload_hash": payload_hash(payload),
        "signature": {"alg": "ed25519", "sig": "", "signed_fields": names},
        "payload": payload,
    }
    return resigned(value, key)


def test_specification_example_is_accepted():
    said = parse(example())
    able = capabilities_of(said)
    assert able.transports == ("quic", "grpc", "vm_mailbox", "enclave_bridge")
    assert able.features == {"streaming", "retry"} and able.max_message_bytes == 1 << 20
    there = replace(TLS, transports=("grpc",))
    told = answered(said, there)
    agreement = check_answer(said, told.advertisement, told.agreed, [NODE.public])
    assert agreement == told.agreement
    assert (agreement.transport, agreement.protocol_version) == ("grpc", "1.1.x")
    assert (agreement.compression, agreement.attestation_format) == ("none", "tee.report")
    assert agreement.max_message_bytes == 1 << 20


def test_where_nothing_is_common_it_is_said_what_each_side_can():
    with pytest.raises(Unavailable, match=r"no transport in common.*quic.*the other tls"):
        answered(parse(example()))
    with pytest.raises(Unavailable, match="no version in common"):
        choose(TLS, replace(TLS, supported_versions=("2.0.x",)))
    with pytest.raises(Unavailable, match="no compression in common: one side can zstd, the other none"):
        choose(replace(TLS, compression=("zstd",)), replace(TLS, compression=()))


def test_negotiation_picks_common_minor_and_limits():
    theirs = replace(
        TLS,
        supported_versions=("1.0.x", "1.1.x", "1.10.x"),
        compression=("zstd", "none"),
        attestation_formats=("slsa.v1", "tee.report", "other"),
        max_message_bytes=100_000,
        max_in_flight=4,
        features=frozenset({"append", "streaming", "dance"}),
    )
    chosen = choose(theirs, TLS)
    assert chosen.protocol_version == "1.1.x" and chosen.versions == ("1.0.x", "1.1.x")
    assert chosen.compression == "zstd" and chosen.attestation_formats == ("slsa.v1", "tee.report")
    assert (chosen.max_message_bytes, chosen.max_in_flight) == (100_000, 4)
    assert chosen.features == {"append", "streaming"}
    assert choose(replace(theirs, features=frozenset({"append"})), TLS).max_in_flight == 1


def test_negotiation_names_retiring_versions():
    here = replace(
        TLS, supported_versions=("1.1.x",), retiring_versions=("1.1.x",), grace_versions=("1.0.x",)
    )
    assert capabilities_of(asked(here)).retiring_versions == ("1.1.x",)
    old = choose(replace(TLS, supported_versions=("1.0.x",)), here)
    assert old.protocol_version == "1.0.x" and "append" not in old.features and "read" in old.features
    assert "append" in choose(TLS, here).features


def test_the_transcript_covers_both_advertisements_and_the_choice():
    said = asked()
    told = answered(said)
    raw = jcs.encode(told.agreement.to_json())
    want = blake3(b"ea:capability:v1" + said.id + told.advertisement.id + raw)
    assert bytes(Tag.CAPABILITY) == b"ea:capability:v1"
    assert transcript(said, told.advertisement, told.agreement) == want
    payload: Any = told.agreed.payload
    assert payload["transcript"] == want.hex()
    assert told.agreed.causality_chain == (said.hex_id, told.advertisement.hex_id, "c-1")


def stripped(envelope: Envelope, key: SigningKey | None, **members: Any) -> Envelope:
    """The advertisement with other members: as it was signed, or signed again by somebody."""
    value = dict(envelope.value)
    payload: Any = {**value["payload"], **members}
    value["payload"] = payload
    if key is None:
        return parse(jcs.encode(value))
    value |= {"payload_hash": payload_hash(payload), "origin_identity": key.public.to_json()}
    return parse(resigned(value, key))


MALLORY = SigningKey.generate("ed25519", b"mallory" + bytes(25))
WEAK = {"compression": ["none"]}


def test_an_option_stripped_from_what_was_asked_is_seen_there_or_here():
    said = asked(replace(TLS, compression=("zstd", "none")))
    with pytest.raises(SigInvalid, match="not the one that was signed"):
        answered(stripped(said, None, **WEAK))
    # Well signed, by somebody: the answer names another question.
    told = answered(stripped(said, MALLORY, **WEAK))
    with pytest.raises(SigInvalid, match="does not follow"):
        check_answer(said, told.advertisement, told.agreed)


def test_an_option_stripped_from_the_answer_is_seen():
    said = asked(replace(TLS, compression=("zstd", "none")))
    told = answered(said)
    own, agreed = told.advertisement, told.agreed
    assert check_answer(said, own, agreed, [NODE.public]).compression == "zstd"
    with pytest.raises(SigInvalid, match="not the one that was signed"):
        check_answer(said, stripped(own, None, **WEAK), agreed)
    with pytest.raises(SigInvalid, match="two keys"):
        check_answer(said, stripped(own, MALLORY, **WEAK), agreed)
    weak: Any = {**told.agreement.to_json(), "compression": "none"}
    with pytest.raises(SigInvalid, match="not the one that was signed"):
        check_answer(said, own, stripped(agreed, None, agreed=weak))
    with pytest.raises(SigInvalid, match="does not follow"):  # also if the responder itself would
        check_answer(said, own, stripped(agreed, NODE, agreed=weak))


def test_an_answer_to_another_question_or_by_another_key_is_refused():
    first, second = asked(nonce="c-1"), asked(nonce="c-2")
    old = answered(first)
    with pytest.raises(SigInvalid, match="does not follow"):
        check_answer(second, old.advertisement, old.agreed)
    false = answered(second, key=MALLORY)
    assert check_answer(second, false.advertisement, false.agreed)  # nobody said who may answer
    with pytest.raises(SigInvalid, match="not trusted"):
        check_answer(second, false.advertisement, false.agreed, [NODE.public])


@pytest.mark.parametrize(
    "members",
    [
        {"transports": "tls"},
        {"transports": [1]},
        {"transports": ["x" * 65]},
        {"transports": ["x"] * 65},
        {"supported_versions": ["1.0"]},
        {"supported_versions": None},
        {"retiring_versions": ["soon"]},
        {"max_message_bytes": 0},
        {"max_message_bytes": 1000},
        {"max_message_bytes": 1.5},
        {"max_message_bytes": True},
        {"max_in_flight": 0},
        {"compression": {}},
        {"features": ["append"]},
        {"features": {"append": 1}},
    ],
)
def test_an_advertisement_that_makes_no_sense_is_refused(members):
    with pytest.raises(Invalid):
        capabilities_of(stripped(asked(), ADA, **members))


def test_members_nobody_knows_yet_say_nothing():
    assert capabilities_of(stripped(asked(), ADA, colours=["red"])) == TLS


@pytest.mark.parametrize(
    "made",
    [
        lambda: observed(1),
        lambda: changed(asked(), event_type="transport.other"),
        lambda: changed(asked(), event_class="Observation"),
        lambda: changed(asked(), payload=[], payload_hash=payload_hash([])),
        lambda: changed(asked(), origin_identity=P256.public.to_json()),
        lambda: parse(
            resigned({**asked().value, "signature": {"alg": "ed25519", "signed_fields": ["domain"]}})
        ),
        lambda: parse(jcs.encode({**asked().value, "timestamp": "2024-11-01T12:00:01Z"})),
    ],
)
def test_what_is_no_signed_advertisement_opens_nothing(made):
    with pytest.raises(RopewalkError):
        answered(made())


def agreed_on(transport: str = "tls", **members: Any) -> Agreement:
    able = replace(Capabilities((transport,)), **members)
    return choose(able, Capabilities((transport,)))


def test_a_transport_without_encryption_refuses_restricted_envelopes():
    secret = observed(confidentiality={"level": "restricted"})
    agreed_on("tls").check(secret)
    with pytest.raises(Denied, match="restricted, and tcp does not encrypt"):
        agreed_on("tcp").check(secret)
    agreed_on("tcp").check(observed(confidentiality={"level": "confidential"}))
    assert agreed_on("tcp").narrows(Capabilities(("tcp",))) and not agreed_on().narrows(TLS)


def test_unagreed_versions_and_evidence_refused():
    old = agreed_on(supported_versions=("1.0.x",), attestation_formats=("slsa.v1",))
    old.check(observed())
    with pytest.raises(Unverified, match=r"1\.1\.0 was not agreed on"):
        old.check(observed(protocol_version="1.1.0"))
    evidence = {"format": "tee.report", "evidence_hash": "00" * 32}
    with pytest.raises(Denied, match=r"tee\.report was not agreed on"):
        old.check(observed(evidence=evidence))
    assert old.narrows(TLS)
