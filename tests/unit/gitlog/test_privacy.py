"""Privacy rules: what a policy marks never reaches the bytes that are hashed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.errors import Denied, Invalid, InvalidEnvelope, InvalidJson
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.planning import Receipt
from ropewalk.gitlog.privacy.apply import policy_file
from ropewalk.gitlog.privacy.pointer import is_pointer, open_pointer, read_pointer
from ropewalk.gitlog.privacy.rules import apply_policy, parse_policy
from ropewalk.kernel.seal import SealingKey

KEY = SealingKey(bytes(32))


def policy(*rules, classes=None):
    return parse_policy(json.dumps({"privacy": {"classes": classes or {}, "rules": list(rules)}}).encode())


def redact(select):
    return {"select": select, "action": "redact"}


def pointerize(select, **more):
    return {"select": select, "action": "pointerize", **more}


PAYLOAD = {
    "user": {"email": "ada@example.test", "name": "Ada", "a.b": 1},
    "cards": [{"number": "4111", "kind": "x"}, {"number": "4222"}],
    "deep": {"er": [{"ssn": 1, "keep": 2}], "ssn": 3},
    "ssn": 4,
}


@pytest.mark.parametrize(
    ("select", "gone"),
    [
        ("user.email", ["/user/email"]),
        ("user", ["/user"]),
        ("user.*", ["/user/a.b", "/user/email", "/user/name"]),
        ("user.*a*", ["/user/a.b", "/user/email", "/user/name"]),
        ("user.e?ail", ["/user/email"]),
        ("cards.*.number", ["/cards/0/number", "/cards/1/number"]),
        ("cards[*].number", ["/cards/0/number", "/cards/1/number"]),
        ("cards[1].number", ["/cards/1/number"]),
        ("cards[*]", ["/cards/0", "/cards/1"]),
        ("**.ssn", ["/deep/er/0/ssn", "/deep/ssn", "/ssn"]),
        ("deep.**.keep", ["/deep/er/0/keep"]),
        ("nothing.here", []),
        ("User.email", []),
    ],
)
def test_select_finds_what_it_describes(select, gone):
    applied = apply_policy(policy(redact(select)), PAYLOAD, None)
    assert list(applied.redacted) == gone
    for where in gone:
        value: Any = applied.payload
        for step in where.split("/")[1:-1]:
            value = value[int(step)] if isinstance(value, list) else value.get(step, {})
        assert not isinstance(value, dict) or where.split("/")[-1] not in value


def test_the_payload_that_was_given_is_not_changed():
    before = json.dumps(PAYLOAD)
    apply_policy(policy(redact("**.ssn")), PAYLOAD, None)
    assert json.dumps(PAYLOAD) == before


def test_rules_look_into_tuples_which_are_recorded_as_lists():
    applied = apply_policy(policy(redact("**.email")), {"u": ({"email": "ada@example.test", "n": 1},)}, None)
    assert applied.payload == {"u": [{"n": 1}]}
    assert applied.redacted == ("/u/0/email",)


def test_cyclic_or_deep_payload_refused_alone(log):
    policy_file(log.store.place).write_text(json.dumps({"privacy": {"rules": [redact("**.email")]}}))
    circle: dict[str, Any] = {}
    circle["again"] = [circle]
    deep: Any = {}
    for _ in range(5_000):
        deep = {"in": deep}
    drafts = [Draft({"type": "t", "payload": payload}) for payload in ({"n": 1}, circle, deep, {"n": 2})]
    first, second, third, fourth = log.append_all("demo", drafts)
    assert isinstance(second, InvalidJson)
    assert isinstance(third, InvalidJson)
    assert isinstance(first, Receipt)
    assert isinstance(fourth, Receipt)


def test_pointer_without_key_is_refused_and_hidden():
    with pytest.raises(Denied) as refused:
        apply_policy(policy(pointerize("user.email")), PAYLOAD, None)
    assert refused.value.exit_code == 6 and refused.value.fields["where"] == "/user/email"
    assert "ada@example" not in str(refused.value.to_problem())


def test_a_pointer_that_stands_there_already_is_fine():
    pointer = {
        "kind": "opaque_pointer",
        "algo": "blake3",
        "ciphertext_digest": "blake3:" + "0" * 64,
        "location": "gatos://p/1",
        "capability": "gatos://c/1",
    }
    applied = apply_policy(policy(pointerize("**.email"), redact("**.location")), {"email": pointer}, None)
    assert applied.payload == {"email": pointer} and applied.pointerized == ()


def test_a_class_decides_whether_the_digest_is_public():
    seen = []

    def sealer(plaintext, rule, low_entropy):
        seen.append((plaintext, low_entropy))
        return {"sealed": True}

    classes = {
        "never": {"publish_plaintext_digest": False},
        "short": {"min_entropy_bits": 40},
        "open": {},
    }
    rules = [
        pointerize("a", **{"class": "never"}),
        pointerize("b", **{"class": "short"}),
        pointerize("c", **{"class": "open"}),
    ]
    apply_policy(policy(*rules, classes=classes), {"a": "x" * 99, "b": 7, "c": 7}, sealer)
    assert seen == [(b'"' + b"x" * 99 + b'"', True), (b"7", True), (b"7", False)]


@pytest.mark.parametrize("select", ["", "a..b", ".", "a." * 40 + "b"])
def test_a_path_that_is_none_is_refused(select):
    with pytest.raises(Invalid):
        policy(redact(select))


def test_a_policy_that_breaks_its_schema_is_refused():
    with pytest.raises(InvalidEnvelope):
        parse_policy(b'{"privacy":{"rules":[{"select":"a","action":"hide"}]}}')
    with pytest.raises(Invalid, match="no class"):
        policy(pointerize("a", **{"class": "missing"}))


VALUES = st.recursive(
    st.integers(0, 9) | st.just("private"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3))
def test_nothing_of_a_marked_name_is_left_at_any_depth(payload):
    applied = apply_policy(policy(redact("**.b")), payload, None)
    assert '"b"' not in json.dumps(applied.payload)
    # And what was not marked is still there.
    assert json.dumps(apply_policy(policy(redact("**.z")), payload, None).payload) == json.dumps(payload)


# --- in a repository ---


def with_policy(log, *rules, **more):
    policy_file(log.store.place).write_text(json.dumps({"privacy": {"rules": list(rules), **more}}))
    log.privacy.keys = lambda name: KEY


def test_rules_apply_before_hashing(log):
    with_policy(log, redact("user.name"), pointerize("user.email"))
    receipt = log.append(
        "prod", {"type": "a", "payload": {"user": {"email": "ada@example.test", "name": "Ada", "id": 7}}}
    )
    (event,) = log.events("prod")
    assert (
        event.content_id == receipt.content_id and b"ada@example" not in event.raw and b"Ada" not in event.raw
    )
    assert event.payload["user"]["id"] == 7 and is_pointer(event.payload["user"]["email"])


def test_pointer_opens_only_with_bound_names(log):
    with_policy(log, pointerize("secret", capability="gatos-key://v1/xchacha20-poly1305/vault"))
    log.append("prod", {"type": "a", "payload": {"secret": {"n": 1}}})
    (event,) = log.events("prod")
    pointer = read_pointer(event.payload["secret"])
    record = log.private.find(pointer.ciphertext_digest)
    blob = log.private.blob(record.ciphertext_digest)
    assert record.key == "vault" and record.actor.startswith("user:")
    assert open_pointer(KEY, pointer, blob, actor=record.actor, policy=record.policy) == b'{"n":1}'


def test_the_same_event_gives_the_same_bytes_again(log):
    with_policy(log, pointerize("secret"))
    document = {"type": "a", "payload": {"secret": "x"}, "ulid": "01HF4Y9Q1SM8Q7K9DK2R4V5CXD"}
    first = log.append("prod", document)
    again = log.append("prod", document)
    assert again.replayed and again.commit == first.commit


def test_without_a_key_private_data_is_refused_and_nothing_is_recorded(log):
    with_policy(log, pointerize("secret"))
    log.privacy.keys = None
    with pytest.raises(Denied):
        log.append("prod", {"type": "a", "payload": {"secret": "x"}})
    log.append("prod", {"type": "a", "payload": {"open": "x"}})
    assert len(list(log.events("prod"))) == 1


def test_a_policy_nobody_can_read_lets_nothing_through(log):
    policy_file(log.store.place).write_text("{")
    with pytest.raises(Denied, match="cannot be applied"):
        log.append("prod", {"type": "a", "payload": {}})


def test_a_policy_that_changes_counts_at_once(log):
    log.append("prod", {"type": "a", "payload": {"x": 1}})
    with_policy(log, redact("x"))
    log.append("prod", {"type": "a", "payload": {"x": 1}})
    assert [event.payload for event in log.events("prod")] == [{"x": 1}, {}]


def test_a_rule_for_a_key_that_is_not_ours_is_refused(log):
    with_policy(log, pointerize("x", capability="kms://aws/alias/a"))
    with pytest.raises(Denied, match="no key for it"):
        log.append("prod", {"type": "a", "payload": {"x": 1}})
