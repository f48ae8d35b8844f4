"""Access control as pure functions of a message and its ancestors.

Every peer must reach the same verdict in any order of arrival, so a rule sees the signature, the message and its
ancestors, and nothing else: no wall clock, and no list that is kept apart from the log.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from ropewalk.errors import Denied, RopewalkError, SigInvalid
from ropewalk.gossip.core.ids import MessageId
from ropewalk.gossip.core.message import SignedMessage
from ropewalk.kernel import cbor
from ropewalk.kernel.keys import PublicKey, SigningKey

REVOCATIONS_CACHED = (
    4096  # messages whose revocations are remembered; others are found by walking down to one
)
_SESSION = "ropewalk:gossip:session:v1"


class MessageHistory(Protocol):
    """The part of a log that a rule may look at: what lies below the message in question."""

    def get(self, id: MessageId) -> SignedMessage | None:
        """Return a stored message, or None."""

    def is_ancestor(self, id: MessageId, ancestor: MessageId) -> bool:
        """Return whether one stored message is an ancestor of another."""


Access = Callable[[MessageHistory, SignedMessage], None]
"""A rule: returns None for yes, raises Denied for no. Any other result is an error."""


class MissingParent(BaseException):  # not an Exception: a rule must not catch it by accident
    """A rule needs a message that is not stored yet."""


class StoredHistory:
    """The history of a message whose parents are missing. A verdict that needs nothing of them is final."""

    def __init__(self, history: MessageHistory) -> None:
        self._history = history

    def get(self, id: MessageId) -> SignedMessage | None:
        """Return a stored message; MissingParent for any other, which may still arrive."""
        found = self._history.get(id)
        if found is None:
            raise MissingParent
        return found

    def is_ancestor(self, id: MessageId, ancestor: MessageId) -> bool:
        """Return whether one stored message is an ancestor of another."""
        self.get(ancestor)
        self.get(id)
        return self._history.is_ancestor(id, ancestor)


def everybody_may_append(_history: MessageHistory, _signed: SignedMessage) -> None:
    """Accept every message with a valid signature. This is the default, and its name is a warning."""


def owners(*dids: str) -> Access:
    """Return the rule by which only these keys may append.

    >>> from ropewalk.gossip.core.message import sign
    >>> from ropewalk.gossip.core.profiles import V13
    >>> ada, eve = (SigningKey.generate("ed25519", bytes([n] * 32)) for n in (1, 2))
    >>> rule = owners(ada.public.did())
    >>> rule(None, sign(V13, ada, "t", (), 1))
    >>> rule(None, sign(V13, eve, "t", (), 1))
    Traceback (most recent call last):
    ropewalk.errors.Denied: did:key:z6Mko9hTggMwjSTEaJaPUfE6tqcy2xvU6BnNq3e3o8qVBiyH is not an owner of t
    """
    allowed = frozenset(dids)

    def rule(_history: MessageHistory, signed: SignedMessage) -> None:
        if signed.signature.public_key not in allowed:
            raise Denied(f"{signed.signature.public_key} is not an owner of {signed.message.topic}")

    return rule


def make_session(owner: SigningKey, topic: str, delegate: str, until_clock: int) -> dict[str, Any]:
    """Return the payload by which an owner lets a temporary key write up to a clock; any key may append it, alone."""
    grant = {"delegate": delegate, "owner": owner.public.did(), "topic": topic, "until_clock": until_clock}
    return {"session": {**grant, "signature": owner.sign(_grant_bytes(grant))}}


def make_grant(to: str, role: str, until_clock: int) -> dict[str, Any]:
    """Return the payload by which an owner, who appends it, gives a key a role up to a clock."""
    return {"grant": {"to": to, "role": role, "until_clock": until_clock}}


def make_revocation(target: str) -> dict[str, Any]:
    """Return the payload by which an owner, who appends it, revokes a delegate's key or the id of a grant.

    It counts for every message that has it in its history. A message that its author made without knowing of it, at
    the same time on another peer, stays valid: no peer can tell which of the two came first.
    """
    return {"revoke": target}


def sessions(*dids: str) -> Access:
    """Return the rule by which owners may append, and keys that a session below the message delegates to.

    A delegate's payload is a map whose `via` is the id of that session. The session has to be an ancestor, because
    only then does every peer have it when it judges the message. It ends at its clock, or below a revocation.
    """
    allowed = frozenset(dids)
    revoked = _Revocations(allowed)

    def rule(history: MessageHistory, signed: SignedMessage) -> None:
        author, payload = signed.signature.public_key, signed.message.payload
        if author in allowed:
            return
        if isinstance(payload, dict) and "session" in payload:
            _check_grant(payload["session"], signed.message.topic, allowed)
            if len(payload) > 1:  # sessions are public: a key that copies one may add nothing to it
                raise Denied(
                    f"{author} is not an owner of {signed.message.topic}; it may carry a session alone"
                )
            return
        session = _named_ancestor(history, signed, "session")
        grant = _check_grant(_member(session.message.payload, "session"), signed.message.topic, allowed)
        if grant["delegate"] != author:
            raise Denied(f"session {session.id} is for {grant['delegate']}, not for {author}")
        if signed.message.clock > grant["until_clock"]:
            raise Denied(f"session {session.id} ended at clock {grant['until_clock']}")
        if author in revoked.below(history, signed):  # the key: its session could be carried in again
            raise Denied(f"{author} was revoked")

    return rule


def roles(owners: Iterable[str], may: Mapping[str, Callable[[Any], bool]]) -> Access:
    """Return the rule by which owners may append anything, and other keys what their role allows.

    `may` holds a predicate over payloads for each role. A key that is no owner names its grant in `via`; the grant has
    to be an ancestor that an owner appended. It ends at its clock, or below a revocation of its id.

    >>> rule = roles(["did:key:ada"], {"editor": lambda payload: "text" in payload})
    """
    allowed = frozenset(owners)
    revoked = _Revocations(allowed)

    def rule(history: MessageHistory, signed: SignedMessage) -> None:
        author, payload = signed.signature.public_key, signed.message.payload
        if author in allowed:
            return
        found = _named_ancestor(history, signed, "grant")
        match _member(found.message.payload, "grant"):
            case {"to": str(to), "role": str(role), "until_clock": int(until)} if (
                found.signature.public_key in allowed and to == author
            ):
                pass
            case _:
                raise Denied(f"{found.id} must be an owner's grant to {author}")
        if signed.message.clock > until:
            raise Denied(f"grant {found.id} ended at clock {until}")
        if found.id in revoked.below(history, signed):
            raise Denied(f"grant {found.id} was revoked")
        if role not in may or may[role](payload) is not True:
            raise Denied(f"role {role!r} does not allow this payload")

    return rule


def _named_ancestor(history: MessageHistory, signed: SignedMessage, kind: str) -> SignedMessage:
    """Return the message that `via` names, which has to be an ancestor."""
    via = _member(signed.message.payload, "via")
    if not isinstance(via, str):
        author = signed.signature.public_key
        raise Denied(f"{author} is not an owner of {signed.message.topic} and names no {kind}")
    found = history.get(MessageId(via)) if _is_id(via) else None
    if found is None or not any(history.is_ancestor(p, found.id) for p in signed.message.parents):
        raise Denied(f"{kind} {via!r} must be an ancestor of the message")
    return found


class _Revocations:
    """What owners have revoked in the history of a message; a bounded cache of a pure function of that history."""

    def __init__(self, owners: frozenset[str]) -> None:
        self._owners = owners
        self._cache: OrderedDict[MessageId, frozenset[str]] = OrderedDict()

    def below(self, history: MessageHistory, signed: SignedMessage) -> frozenset[str]:
        return frozenset().union(*(self._at(history, parent) for parent in signed.message.parents))

    def _at(self, history: MessageHistory, start: MessageId) -> frozenset[str]:
        found: set[str] = set()
        todo, seen = [start], {start}
        while todo:
            id = todo.pop()
            if (known := self._cache.get(id)) is not None:
                found |= known
                continue
            signed = history.get(id)
            if signed is None:
                continue
            target = _member(signed.message.payload, "revoke")
            if isinstance(target, str) and signed.signature.public_key in self._owners:
                found.add(target)
            fresh = [parent for parent in signed.message.parents if parent not in seen]
            seen.update(fresh)
            todo += fresh
        self._cache[start] = frozenset(found)
        if len(self._cache) > REVOCATIONS_CACHED:
            self._cache.popitem(last=False)
        return self._cache[start]


def _is_id(text: str) -> bool:
    return len(text) == 32 and all(char in "0123456789abcdefghijklmnopqrstuv" for char in text)


def _member(payload: Any, name: str) -> Any:
    return payload.get(name) if isinstance(payload, dict) else None


def _grant_bytes(grant: dict[str, Any]) -> bytes:
    return cbor.dag_encode(
        [_SESSION, grant["topic"], grant["owner"], grant["delegate"], grant["until_clock"]]
    )


def _check_grant(grant: Any, topic: str, allowed: frozenset[str]) -> dict[str, Any]:
    match grant:
        case {
            "delegate": str(),
            "owner": str(owner),
            "signature": bytes(signature),
            "topic": str(named),
            "until_clock": int(),
        } if len(grant) == 5:
            pass
        case _:
            raise Denied("the session is not delegate, owner, topic, until_clock and signature")
    if named != topic:
        raise Denied(f"the session is for topic {named!r}, not for {topic!r}")
    if owner not in allowed:
        raise Denied(f"{owner} is not an owner of {topic}")
    try:
        PublicKey.from_did(owner).verify(_grant_bytes(grant), signature)
    except (SigInvalid, RopewalkError) as error:
        raise Denied(f"the session is not signed by {owner}") from error
    return dict(grant)
