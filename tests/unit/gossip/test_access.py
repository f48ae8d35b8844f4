"""Sessions, roles and revocations: the same verdict on every peer, from the message and its ancestors alone."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.unit.gossip.conftest import key, memory_log, raws

from ropewalk import gossip
from ropewalk.errors import Denied
from ropewalk.gossip.core import access
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.message import sign

TOPIC = "com.example"
OWNER, GUEST, OTHER = key(1), key(2), key(3)
EDITOR = {"editor": lambda payload: isinstance(payload.get("text"), str)}


def session_log() -> GossipLog:
    return memory_log(access=gossip.sessions(OWNER.public.did()))


def role_log() -> GossipLog:
    return memory_log(access=gossip.roles([OWNER.public.did()], EDITOR))


def test_session_ends_below_a_revocation():
    log = session_log()
    session = log.append(gossip.make_session(OWNER, TOPIC, GUEST.public.did(), 100))
    log.append({"text": "hi", "via": session.id}, signer=GUEST)
    log.append(gossip.make_revocation(GUEST.public.did()))
    with pytest.raises(Denied, match="was revoked"):
        log.append({"text": "again", "via": session.id}, signer=GUEST)
    # The grant is public: carried in again, it does not come back to life.
    again = log.append(gossip.make_session(OWNER, TOPIC, GUEST.public.did(), 100), signer=GUEST)
    with pytest.raises(Denied, match="was revoked"):
        log.append({"text": "again", "via": again.id}, signer=GUEST)


def test_only_owners_revoke():
    log = session_log()
    session = log.append(gossip.make_session(OWNER, TOPIC, GUEST.public.did(), 100))
    other = log.append(gossip.make_session(OWNER, TOPIC, OTHER.public.did(), 100))
    log.append({"revoke": GUEST.public.did(), "via": other.id}, signer=OTHER)
    assert log.append({"text": "still", "via": session.id}, signer=GUEST)


def test_message_made_beside_a_revocation_stays_valid():
    """A revocation counts for what has it as an ancestor, so every order of arrival gives one verdict."""
    source = session_log()
    session = source.append(gossip.make_session(OWNER, TOPIC, GUEST.public.did(), 100))
    base = tuple(source.get(session.id).key for _ in range(1))  # type: ignore[union-attr]
    beside = sign(source.profile, GUEST, TOPIC, base, {"text": "in time", "via": session.id})
    revocation = sign(source.profile, OWNER, TOPIC, base, gossip.make_revocation(GUEST.public.did()))
    late = sign(source.profile, GUEST, TOPIC, (revocation.key,), {"text": "too late", "via": session.id})
    messages = [*raws(source), beside.raw, revocation.raw, late.raw]
    roots = set()
    for order in itertools.permutations(messages):
        log = session_log()
        for raw in order:
            log.insert_many([raw])
        assert log.has(beside.id) and log.has(revocation.id) and not log.has(late.id)
        roots.add(log.root())
    assert len(roots) == 1


def test_role_allows_what_its_predicate_accepts():
    log = role_log()
    grant = log.append(gossip.make_grant(GUEST.public.did(), "editor", 4))
    log.append({"text": "hello", "via": grant.id}, signer=GUEST)
    refused: list[tuple[Any, Any, str]] = [
        (GUEST, {"image": b"", "via": grant.id}, "does not allow this payload"),
        (OTHER, {"text": "x", "via": grant.id}, "must be an owner's grant to"),
        (GUEST, {"text": "x"}, "names no grant"),
        (GUEST, {"text": "x", "via": "0" * 32}, "must be an ancestor"),
        (GUEST, gossip.make_grant(GUEST.public.did(), "editor", 99), "names no grant"),
    ]
    for signer, payload, reason in refused:
        with pytest.raises(Denied, match=reason):
            log.append(payload, signer=signer)
    unknown = log.append(gossip.make_grant(GUEST.public.did(), "admin", 99))
    with pytest.raises(Denied, match="role 'admin' does not allow"):
        log.append({"text": "x", "via": unknown.id}, signer=GUEST)
    log.append("owners may say anything")
    with pytest.raises(Denied, match="ended at clock 4"):
        log.append({"text": "x", "via": grant.id}, signer=GUEST)


def test_role_grants_itself_are_worth_nothing():
    log = role_log()
    grant = log.append(gossip.make_grant(GUEST.public.did(), "editor", 99))
    forged = log.append(
        {**gossip.make_grant(OTHER.public.did(), "editor", 99), "text": "", "via": grant.id}, signer=GUEST
    )
    with pytest.raises(Denied, match="must be an owner's grant"):
        log.append({"text": "x", "via": forged.id}, signer=OTHER)


def test_role_is_revoked_and_granted_again():
    log = role_log()
    grant = log.append(gossip.make_grant(GUEST.public.did(), "editor", 99))
    log.append(gossip.make_revocation(grant.id))
    with pytest.raises(Denied, match="was revoked"):
        log.append({"text": "x", "via": grant.id}, signer=GUEST)
    again = log.append(gossip.make_grant(GUEST.public.did(), "editor", 99))
    assert log.append({"text": "x", "via": again.id}, signer=GUEST)


def test_revocations_do_not_depend_on_the_cache(monkeypatch):
    monkeypatch.setattr(access, "REVOCATIONS_CACHED", 1)
    log = role_log()
    grants = [log.append(gossip.make_grant(GUEST.public.did(), "editor", 999)).id for _ in range(4)]
    for n in range(30):
        log.append({"text": str(n), "via": grants[n % 2]}, signer=GUEST)
    log.append(gossip.make_revocation(grants[0]))
    for n in range(10):
        log.append({"text": str(n), "via": grants[1]}, signer=GUEST)
        with pytest.raises(Denied, match="was revoked"):
            log.append({"text": "x", "via": grants[0]}, signer=GUEST)
