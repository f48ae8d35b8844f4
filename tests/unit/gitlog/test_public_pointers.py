"""Opaque pointers that callers bring along: judged on append, on publish and by `verify`, at any depth."""

from __future__ import annotations

import pytest

from ropewalk.errors import Denied, InvalidEnvelope, RopewalkError
from ropewalk.gitlog.core.envelope import Draft, seal_foreign
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG
from ropewalk.gitlog.core.objects import GitSignature
from ropewalk.gitlog.core.planning import AppendContext, Plan, Tip, add_event
from ropewalk.gitlog.privacy.pointer import may_hold_pointers, seal_pointer
from ropewalk.kernel import ulid
from ropewalk.kernel.seal import SealingKey
from ropewalk.repository_check import verify_gitlogs

DIGEST = "blake3:" + "ab" * 32
GOOD = {
    "kind": "opaque_pointer",
    "algo": "blake3",
    "digest": DIGEST,
    "location": "https://vault.example/blobs/7",
    "capability": "gatos-key://v1/xchacha20-poly1305/vault",
}


def without(*names, **changed):
    return {name: value for name, value in {**GOOD, **changed}.items() if name not in names}


BAD = {
    "token_in_capability": (without(capability="https://kms.example/k?access_token=s3cr3tvalue"), Denied),
    "escaped_token": (without(capability="https://kms.example/k%3Faccess_token%3Ds3cr3tvalue"), Denied),
    "password_in_location": (without(location="https://ada:hunter22@vault.example/7"), Denied),
    "signed_location": (without(location="s3://bucket/7?X-Amz-Signature=ab"), Denied),
    "token_in_the_newest_form": (without("capability", location="https://v.example/7?sig=abcdef"), Denied),
    "low_entropy_with_digest": (
        without(ciphertext_digest=DIGEST, extensions={"class": "low-entropy"}),
        InvalidEnvelope,
    ),
    "no_digest": (without("digest"), InvalidEnvelope),
    "no_location": (without("location"), InvalidEnvelope),
    "neither": (without("location", "digest"), InvalidEnvelope),
    "kind_alone": ({"kind": "opaque_pointer"}, InvalidEnvelope),
    "more_members": (without(plaintext="4111"), InvalidEnvelope),
}
PLACES = [
    lambda pointer: {"card": pointer},
    lambda pointer: {"a/b": {"cards": [{"n": 1}, {"card": pointer}]}},
    lambda pointer: pointer,
    lambda pointer: {"cards": (pointer,)},  # recorded as a list
]


@pytest.mark.parametrize("layout", [SHIPLOG, MESSAGES], ids=lambda layout: layout.name)
@pytest.mark.parametrize("name", BAD)
def test_pointer_refused_wherever_it_appears(log, name, layout):
    pointer, kind = BAD[name]
    log.allow_secrets = True  # the scan for secrets finds some of these, too
    for place in PLACES:
        with pytest.raises(kind, match="opaque pointer at"):
            log.append("demo", {"type": "t", "payload": place(pointer)}, layout=layout)
    assert log.topics(layout) == []


def test_pointer_refusal_names_the_place(log):
    with pytest.raises(InvalidEnvelope) as refused:
        log.append("demo", {"type": "t", "payload": PLACES[1](without("location"))})
    assert refused.value.fields["where"].startswith("/a~1b/cards/1/card")
    with pytest.raises(Denied) as withheld:
        log.append("demo", {"type": "t", "payload": BAD["token_in_capability"][0]})
    assert "s3cr3t" not in str(withheld.value)


def test_pointer_in_a_trailer_is_judged(log):
    with pytest.raises(Denied, match="opaque pointer at /what/build"):
        log.append(
            "demo",
            {"type": "t", "payload": {}},
            trailer={"what": {"build": BAD["token_in_capability"][0]}},
        )


def test_pointer_of_either_form_is_recorded(log):
    sealed = seal_pointer(
        SealingKey(bytes(32)),
        b"4111",
        actor="user:ada",
        policy="1",
        location=GOOD["location"],
        capability=GOOD["capability"],
        low_entropy=True,
    )
    payload = {"a": GOOD, "b": without("capability"), "c": sealed.pointer.document, "d": "opaque_pointer"}
    log.append("demo", {"type": "t", "payload": payload})
    (event,) = log.events("demo")
    assert event.payload == payload


@pytest.mark.parametrize(
    ("rule", "pointer", "reason"),
    [
        ({"publish_plaintext_digest": False}, GOOD, "shows the digest"),
        ({"require_ciphertext_digest": True}, GOOD, "has no ciphertext_digest"),
        ({}, without(ciphertext_digest=DIGEST), None),
    ],
)
def test_pointer_of_a_caller_fits_its_class(log, rule, pointer, reason):
    from tests.unit.gitlog.test_privacy import pointerize, with_policy

    with_policy(log, pointerize("card", **{"class": "pan"}), classes={"pan": rule})
    try:
        log.append("demo", {"type": "t", "payload": {"card": pointer}})
        assert reason is None
    except RopewalkError as refusal:
        assert isinstance(refusal, Denied) and reason is not None and reason in refusal.detail


@pytest.mark.parametrize("layout", [SHIPLOG, MESSAGES], ids=lambda layout: layout.name)
@pytest.mark.parametrize("name", BAD)
def test_verify_reports_a_recorded_pointer(log, clock, name, layout):
    """Other software recorded it; a copy of it is told, too."""
    document = {"ns": "demo", "type": "t", "payload": {"cards": [BAD[name][0]]}}
    made = Plan(Tip(), Tip())
    sealed = seal_foreign(layout, "demo", document, ulid.make(clock.ms, 0))
    who = GitSignature("A", "a@b", 0)
    add_event(
        layout,
        "demo",
        made,
        Draft({}),
        sealed,
        AppendContext(clock.ms, bytes(10), who, lambda *_: None),
        None,
    )
    assert made.tip.commit is not None
    with log.store.put(list(made.objects)):
        log.store.move_head(layout.head_ref("demo"), None, made.tip.commit)
    failed = {s.name: s.detail for s in verify_gitlogs(log.store).steps if s.status == "failed"}
    assert set(failed) == {"pointers"}
    assert made.tip.commit in failed["pointers"] and "/cards/0" in failed["pointers"]


def test_pointer_spelt_with_escapes_is_searched():
    assert may_hold_pointers(rb'{"kind":"opaque\u005fpointer"}')
    assert not may_hold_pointers(b'{"kind":"note"}')
