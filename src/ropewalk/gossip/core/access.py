"""Access control as pure functions: who may say what, decided from the message and its own history alone.

Every peer must come to the same verdict whatever it received first, so a rule sees the signature, the message and
what lies below it, and nothing else: no clock on the wall, no list kept beside the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ropewalk.errors import Denied, RopewalkError, SigInvalid
from ropewalk.gossip.core.ids import MessageId
from ropewalk.gossip.core.message import SignedMessage
from ropewalk.kernel import cbor
from ropewalk.kernel.keys import PublicKey, SigningKey

_SESSION = "ropewalk:gossip:session:v1"


class MessageHistory(Protocol):
    """The part of a log that a rule may look at: what lies below the message in question."""

    def get(self, id: MessageId) -> SignedMessage | None:
        """A stored message."""

    def is_ancestor(self, id: MessageId, ancestor: MessageId) -> bool:
        """Whether one stored message lies below another."""


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
        """Whether one stored message lies below another."""
        self.get(ancestor)
        self.get(id)
        return self._history.is_ancestor(id, ancestor)


def everybody_may_append(_history: MessageHistory, _signed: SignedMessage) -> None:
    """The open log: a good signature is enough. This is the default, and its name says what that means."""


def owners(*dids: str) -> Access:
    """Only these keys may append.

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
    """The payload by which an owner lets a temporary key write up to a clock; any key may carry it in, alone."""
    grant = {"delegate": delegate, "owner": owner.public.did(), "topic": topic, "until_clock": until_clock}
    return {"session": {**grant, "signature": owner.sign(_grant_bytes(grant))}}


def sessions(*dids: str) -> Access:
    """Owners may append, and so may a key that a session below the message delegates to.

    A delegate's payload is a map whose `via` is the id of that session. The session has to be an ancestor, because
    only then does every peer have it when it judges the message.
    """
    allowed = frozenset(dids)

    def rule(history: MessageHistory, signed: SignedMessage) -> None:
        author, payload = signed.signature.public_key, signed.message.payload
        if author in allowed:
            return
        if isinstance(payload, dict) and "session" in payload:
            _check_grant(payload["session"], signed.message.topic, allowed)
            if len(payload) > 1:  # sessions are public: who copies one must not say anything beside it
                raise Denied(
                    f"{author} is not an owner of {signed.message.topic}; it may carry a session alone"
                )
            return
        via = payload.get("via") if isinstance(payload, dict) else None
        if not isinstance(via, str):
            raise Denied(f"{author} is not an owner of {signed.message.topic} and names no session")
        session = history.get(MessageId(via)) if _is_id(via) else None
        if session is None or not any(history.is_ancestor(p, session.id) for p in signed.message.parents):
            raise Denied(f"session {via!r} does not lie below the message")
        grant = _check_grant(_member(session.message.payload, "session"), signed.message.topic, allowed)
        if grant["delegate"] != author:
            raise Denied(f"session {via} is for {grant['delegate']}, not for {author}")
        if signed.message.clock > grant["until_clock"]:
            raise Denied(f"session {via} ended at clock {grant['until_clock']}")

    return rule


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
