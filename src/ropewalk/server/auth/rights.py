"""Decide what an identity may do. Pure, and the same for HTTP, streams, gRPC, QUIC and gossip."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args

from ropewalk.errors import Denied, Invalid, Unauthenticated
from ropewalk.stream.core.access import Access
from ropewalk.stream.core.patterns import Kind, Pattern, parse_pattern

Action = Literal["read", "append", "checkpoint", "admin"]
ACTIONS: Final[tuple[str, ...]] = get_args(Action)
ENGINES: Final = ("shiplog", "messages", "ledger", "gossip")
WAREHOUSE: Final = "warehouse"  # what `serve --warehouse` shows: rows of all logs
_FLAT: Final = ("shiplog", "ledger", "gossip")
_DOTTED_STARS: Final = re.compile(r"\.(\*\*?)(?=/|$)")
_HEADS: Final = {"refs/gatos/shiplog/": "shiplog/", "refs/gatos/messages/": "messages/"}


@dataclass(frozen=True, slots=True)
class Right:
    """Some actions on the logs that a pattern matches, such as `shiplog/prod` or `messages/jobs.**`."""

    logs: tuple[Pattern, ...]
    actions: frozenset[str]

    def to_json(self) -> dict[str, Any]:
        """Return the right as the auth file has it."""
        return {"logs": [each.text for each in self.logs], "actions": sorted(self.actions)}


@dataclass(frozen=True, slots=True)
class Identity:
    """A client that the server knows, or `anonymous`."""

    name: str
    rights: tuple[Right, ...]
    known: bool = True
    # Whether the policy of the repository shows a log; streams ask it themselves, with the same rules.
    sees: Callable[[str], bool] | None = field(default=None, compare=False)

    def may(self, action: Action, log: str) -> bool:
        """Return whether the action on the log is allowed.

        >>> ada = Identity("ada", (parse_right({"logs": ["shiplog/prod"], "actions": ["read"]}),))
        >>> ada.may("read", "shiplog/prod"), ada.may("append", "shiplog/prod"), ada.may("read", "shiplog/dev")
        (True, False, False)
        """
        if action == "read" and self.sees is not None and not self.sees(log):
            return False
        for right in self.rights:  # asked for every request; nested generators cost four times as much
            if action in right.actions:
                for each in right.logs:
                    if each.matches(log):
                        return True
        return False

    def may_somewhere(self, action: Action) -> bool:
        """Return whether the action is allowed on any log."""
        return any(action in right.actions for right in self.rights)

    def require(self, action: Action, log: str) -> None:
        """Raise `Denied`, or `Unauthenticated` for an anonymous caller, unless the action is allowed."""
        if self.may(action, log):
            return
        if action == "read" and self.sees is not None and not self.sees(log):
            raise Denied(f"the policy of this repository does not show {log}", log=log, action=action)
        if not self.known:
            raise Unauthenticated(f"anonymous clients may not {action} {log}", log=log, action=action)
        raise Denied(
            f"{self.name} may not {action} {log}",
            log=log,
            action=action,
            advice="Ask the operator of this server for the right.",
        )


EVERYTHING: Final = parse_pattern("topic", "**")
# A server on loopback without an auth file: every local client may do everything but administer.
LOCAL: Final = Identity(
    "local", (Right((EVERYTHING,), frozenset(("read", "append", "checkpoint"))),), known=True
)


def parse_right(document: Any, where: str = "rights") -> Right:
    """Read one entry of `rights`."""
    if not isinstance(document, dict) or document.keys() != {"logs", "actions"}:
        raise Invalid(f'{where} must be an object with "logs" and "actions"')
    logs, actions = document["logs"], document["actions"]
    if not isinstance(logs, list) or not logs or not all(isinstance(each, str) for each in logs):
        raise Invalid(f'{where}: "logs" must be a list of patterns, got {logs!r:.80}')
    if not isinstance(actions, list) or not actions or not set(map(str, actions)) <= set(ACTIONS):
        raise Invalid(
            f'{where}: "actions" must be some of {", ".join(ACTIONS)}, got {actions!r:.80}',
            advice="A right is a log and actions, such as shiplog/prod:read,append.",
        )
    return Right(tuple(log_pattern(each) for each in logs), frozenset(actions))


def log_pattern(text: str) -> Pattern:
    """Read a log pattern: an engine, a slash and a name; `**` is every log.

    Topics are compared by their slashes, other names as a whole. `jobs.**` is every topic below `jobs`.

    >>> log_pattern("messages/jobs.**").matches("messages/jobs/pending")
    True
    >>> log_pattern("messages/a/b").matches("messages/a.b"), log_pattern("ledger/a.*").matches("ledger/a.b")
    (False, True)
    """
    pattern = parse_pattern("topic", text)
    if text == "**":
        return pattern
    engine, _, name = (text[:-1] + "**" if text.endswith(">") else text).partition("/")
    if text == WAREHOUSE:
        return pattern
    if engine not in (*ENGINES, "*", "**"):
        raise Invalid(
            f"log pattern {text!r:.80} must start with {', '.join(each + '/' for each in ENGINES)} "
            f"or be {WAREHOUSE} or **",
            advice=f"For the namespace {text[:64]} write shiplog/{text[:64]}.",
        )
    # Stars after a dot are written as after a slash; only topics have slashes in their names.
    name = name.replace(".**", ".*") if engine in _FLAT else _DOTTED_STARS.sub(r"/\1", name)
    parts = (engine, *name.split("/")) if name else (engine,)
    if parts[-1] == "**":  # at the end it matches at least one part
        parts = (*parts[:-1], "*", "**")
    return Pattern("ref", text, parts)


def log_of(kind: Kind, name: str) -> str | None:
    """Return the log that a frame of a stream is about; None for refs that belong to no log.

    >>> log_of("ref", "refs/gatos/messages/jobs/head"), log_of("topic", "shiplog/prod"), log_of("topic", "jobs")
    ('messages/jobs', 'shiplog/prod', 'messages/jobs')
    """
    if kind == "topic":
        return name if name.startswith(("shiplog/", "ledger/")) else f"messages/{name}"
    for prefix, engine in _HEADS.items():
        if name.startswith(prefix) and name.endswith("/head"):
            return engine + name[len(prefix) : -len("/head")]
    return None


def topic_of(log: str) -> str | None:
    """Return the topic that a stream has for a log; None for a log that no stream carries.

    >>> topic_of("messages/jobs/a"), topic_of("shiplog/prod"), topic_of("gossip/chat")
    ('jobs/a', 'shiplog/prod', None)
    """
    engine, _, name = log.partition("/")
    return name if engine == "messages" else log if engine in ("shiplog", "ledger") else None


@dataclass(frozen=True, slots=True)
class ClientAccess(Access):
    """What one client sees of a stream: the policy of the repository, narrowed by the client's rights."""

    identity: Identity = LOCAL

    def sees(self, kind: Kind, name: str) -> bool:
        """Return whether frames about this name may be sent."""
        log = log_of(kind, name) or f"refs/{name}"
        return Access.sees(self, kind, name) and self.identity.may("read", log)


def client_access(policy: Access, identity: Identity) -> ClientAccess:
    """Narrow the access that a policy gives by the rights of a client."""
    return ClientAccess(policy.allow, policy.deny, policy.sealed, replace(identity, sees=None))


def parse_rights(texts: Iterable[str]) -> tuple[Right, ...]:
    """Read `LOG:ACTION` texts of the command line; actions may be joined by commas.

    >>> [right.to_json() for right in parse_rights(["shiplog/prod:read,append"])]
    [{'logs': ['shiplog/prod'], 'actions': ['append', 'read']}]
    """
    rights = []
    for text in texts:
        log, _, actions = text.rpartition(":")
        rights.append(parse_right({"logs": [log], "actions": actions.split(",")}, f"right {text!r:.80}"))
    return tuple(rights)
