"""Versions add fields: optional ones in a minor version, required ones in a major version that is negotiated."""

from __future__ import annotations

import json

import pytest
from tests.unit.ledger.evolving import evolve
from tests.unit.ledger.making import NODE, NOON_NS, changed, observed, opened, resigned

from ropewalk.errors import Invalid, InvalidEnvelope, RopewalkError, Unverified
from ropewalk.kernel import jcs
from ropewalk.ledger.channel.channel import open_channel, verify_blocks
from ropewalk.ledger.envelope.adapt import adapt, check_adapted, read_as
from ropewalk.ledger.envelope.envelope import parse, parse_cbor, parse_stored, to_cbor
from ropewalk.ledger.envelope.formats import AddedField, Formats
from ropewalk.ledger.remote.negotiate import Capabilities, choose
from ropewalk.ledger.rules.policy import EVALUATOR, STRICT, Policy
from ropewalk.ledger.rules.rules import judge
from ropewalk.ledger.rules.verdict import Context
from ropewalk.ledger.versions.versions import Lifecycle

KNOWN = [Lifecycle("1.0", "active"), Lifecycle("1.1", "active"), Lifecycle("2.0", "active")]


@pytest.fixture(autouse=True)
def _evolved(monkeypatch):
    evolve(monkeypatch)


def minor(number: int = 1, **added):
    return observed(number, protocol_version="1.1.0", added=added)


def major(number: int = 1, **added):
    return observed(number, protocol_version="2.0.0", added={"tenant": "acme", **added})


def test_optional_field_is_absent_by_default():
    bare, full = minor(), minor(priority=3)
    assert "priority" not in bare.value and full.value["priority"] == 3
    null = jcs.encode({**bare.value, "priority": None})
    assert parse(null) == bare  # null is absent, and has no other id
    with pytest.raises(InvalidEnvelope, match="not canonical"):
        parse_stored(null)
    for each in (bare, full):
        assert parse_stored(each.raw) == each and parse_cbor(to_cbor(each)) == each
        assert judge(each, Context()).ok


def test_optional_field_needs_its_version():
    with pytest.raises(InvalidEnvelope, match="priority"):
        observed(1, added={"priority": 3})
    with pytest.raises(InvalidEnvelope, match="priority: "):
        minor(priority=-1)


def test_added_field_is_signed():
    lie = parse(jcs.encode({**minor(priority=3).value, "priority": 4}))
    assert judge(lie, Context()).findings[1].status == "failed"
    value = {**minor().value, "priority": 3}  # present, but not among the signed fields
    unsigned = parse(resigned(value))
    assert unsigned.unsigned_fields == ("priority",)
    assert not judge(unsigned, Context(policy=STRICT)).ok


def test_added_field_with_nested_keys_keeps_its_hashes():
    """Bytes of an added field must not be taken for the payload's."""
    value = {**minor().value, "protocol_version": "2.0.0", "tenant": 'x","payload_hash":"y'}
    value["signature"]["signed_fields"].append("tenant")
    made = parse(resigned(value))
    assert judge(made, Context()).ok and judge(parse_stored(made.raw), Context()).ok


def test_older_reader_sees_no_newer_field(tmp_path):
    full = minor(priority=3)
    with opened(tmp_path) as ledger:
        ledger.log.submit(full.raw)
    assert "priority" not in read_as(full.value, minor="1.0")
    assert read_as(full.value, minor="1.1")["priority"] == 3
    with open_channel(tmp_path, "ea.core") as channel:
        assert channel.envelope(full.id).raw == full.raw  # what its author signed
    assert verify_blocks(tmp_path, "ea.core", deep=True).ok


def test_adapted_envelope_keeps_known_fields():
    value = {**minor(priority=3).value, "protocol_version": "1.2.0", "later": 1}
    done = adapt(resigned(value), NODE, "2024-11-02T00:00:00Z", KNOWN).envelope
    assert done.protocol_version == "1.1.0" and done.value["priority"] == 3 and "later" not in done.value
    assert check_adapted(done)["later"] == 1
    with pytest.raises(Unverified, match="priority"):
        check_adapted(changed(done, NODE, priority=4))


def test_required_field_raises_the_major_version():
    with pytest.raises(InvalidEnvelope, match=r"tenant is required since 2\.0"):
        observed(1, protocol_version="2.0.0")
    with pytest.raises(InvalidEnvelope, match="tenant"):
        major(tenant="")
    assert judge(major(priority=1), Context()).ok
    for since in ("1.0", "1.2", "2.1"):
        with pytest.raises(Invalid, match="needs a new major version"):
            Formats((AddedField("owner", since, required=True),))
    with pytest.raises(Invalid, match="absent by default"):
        Formats((AddedField("owner", "1.2", legacy="nobody"),))
    with pytest.raises(Invalid, match="every version has this field"):
        Formats((AddedField("payload", "1.2"),))


def test_new_major_reads_older_envelopes():
    assert read_as(observed(1).value, minor="2.0")["tenant"] == "default"
    assert read_as(major().value, minor="2.0")["tenant"] == "acme"
    with pytest.raises(Unverified, match=r"cannot be read by an adapter for 1\.1\.x"):
        read_as(major().value, minor="1.1")


def test_required_field_is_negotiated():
    new, old = Capabilities(("tls",), ("1.0.x", "1.1.x", "2.0.x")), Capabilities(("tls",))
    agreed = choose(new, old)
    assert agreed.protocol_version == "1.1.x"
    with pytest.raises(Unverified, match=r"2\.0\.0 was not agreed on"):
        agreed.check(major())
    agreed = choose(new, new)
    assert agreed.protocol_version == "2.0.x"
    agreed.check(major())
    with pytest.raises(RopewalkError):
        choose(Capabilities(("tls",), ("2.0.x",)), old)


def test_new_major_is_accepted_where_a_policy_names_it(tmp_path):
    with opened(tmp_path) as ledger, pytest.raises(Unverified, match="rule 4"):
        ledger.log.submit(major().raw)
    policy = Policy("p", (), EVALUATOR, {"versions": ["1.0.x", "2.0.x"]})
    with opened(tmp_path, "new", policy, now_ns=lambda: NOON_NS) as ledger:
        ledger.log.submit(major(priority=2).raw)
        broken = json.loads(major(2).raw)
        del broken["tenant"]
        with pytest.raises(InvalidEnvelope, match="tenant is required"):
            ledger.log.submit(resigned(broken))
    assert verify_blocks(tmp_path, "new", deep=True).ok
