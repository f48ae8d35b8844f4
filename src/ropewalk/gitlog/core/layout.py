"""Where a layout puts things: SHIPLOG (S0), MESSAGES (S1) and COMPAT (`git shiplog`) are values, not subclasses."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ropewalk.errors import InvalidName
from ropewalk.kernel.ulid import Ulid

NAMESPACE = re.compile(r"[a-z][a-z0-9._-]{0,63}")
TOPIC_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
TOPIC_CHARACTERS_MAX = 200  # the ref is a path; most file systems stop at 255 bytes a name
GROUP_CHARACTERS_MAX = 100
CONSUMERS = "refs/gatos/consumers/"
LOG_NOTES = "refs/notes/gatos/shiplog/logs"

SCHEMA_BASE = "https://gatos.dev/schemas/v1/shiplog/"
ENVELOPE_SCHEMA_ID = SCHEMA_BASE + "event_envelope.schema.json"
TRAILER_SCHEMA_ID = SCHEMA_BASE + "deployment_trailer.schema.json"


@dataclass(frozen=True, slots=True)
class Layout:
    """How one profile names refs, places envelopes and keeps cursors."""

    name: Literal["shiplog", "messages", "compat"]
    prefix: str
    suffix: str
    path: Callable[[str, Ulid], tuple[str, ...]] | None  # None: the commit carries no envelope
    envelope_schema: str
    has_trailer: bool
    topic_is_ns: bool  # S0 §5: envelope.ns = header = ref
    check: Callable[[str], str]

    def head_ref(self, topic: str) -> str:
        """Return the ref that is the head of a topic.

        >>> SHIPLOG.head_ref("governance"), MESSAGES.head_ref("jobs/pending")
        ('refs/gatos/shiplog/governance/head', 'refs/gatos/messages/jobs/pending/head')
        """
        return f"{self.prefix}{self.check(topic)}{self.suffix}"

    def option(self, topic: str) -> str:
        """Return how the command line names a topic of this layout.

        >>> SHIPLOG.option("prod"), MESSAGES.option("jobs/pending")
        ('--ns prod', '--topic jobs/pending')
        """
        return f"{'--topic' if self.name == 'messages' else '--ns'} {topic}"

    def topic_of(self, ref: str) -> str | None:
        """Return the topic a ref is the head of, None if it is none of this layout.

        >>> SHIPLOG.topic_of("refs/gatos/shiplog/governance/head"), SHIPLOG.topic_of("refs/heads/main")
        ('governance', None)
        """
        if not ref.startswith(self.prefix) or not ref.endswith(self.suffix):
            return None
        topic = ref[len(self.prefix) : len(ref) - len(self.suffix) or None]
        try:
            return self.check(topic)
        except InvalidName:
            return None


def check_namespace(name: str) -> str:
    """Check a namespace of S0, which git must also take as part of a ref, and return it.

    >>> check_namespace("governance")
    'governance'
    >>> check_namespace("a..b")
    Traceback (most recent call last):
    ropewalk.errors.InvalidName: namespace 'a..b': git refuses ".." in ref names
    """
    if not NAMESPACE.fullmatch(name):
        if len(name) > 64:
            raise _invalid("namespace", name, f"{len(name)} characters; at most 64 are allowed")
        error = _invalid("namespace", name, "it must match ^[a-z][a-z0-9._-]{0,63}$")
        short = re.fullmatch(
            r"(?:refs/gatos/)?shiplog/([^/]+?)(?:/head)?", name
        )  # a ref, or the name of the log
        if short and NAMESPACE.fullmatch(short[1]):
            error.advice_now = f"Name the namespace alone: {short[1]}"
        raise error
    return _check_part("namespace", name, name)


def check_topic(name: str) -> str:
    """Check a topic of S1, parts joined by `/` that git takes as parts of a ref, and return it.

    >>> check_topic("jobs/pending")
    'jobs/pending'
    """
    if not name or len(name) > TOPIC_CHARACTERS_MAX:
        raise _invalid("topic", name, f"{len(name)} characters; 1 to {TOPIC_CHARACTERS_MAX} are allowed")
    for part in name.split("/"):
        if not TOPIC_PART.fullmatch(part):
            raise _invalid(
                "topic", name, "parts are letters, digits, `.`, `_`, `-`, and start with a letter or digit"
            )
        if part == "head":
            raise _invalid("topic", name, "a part called `head` would collide with the head ref")
        _check_part("topic", name, part)
    return name


def check_group(name: str) -> str:
    """Check the name of a consumer group and return it.

    >>> check_group("analytics")
    'analytics'
    """
    if not TOPIC_PART.fullmatch(name) or len(name) > GROUP_CHARACTERS_MAX:
        raise _invalid(
            "group", name, "use letters, digits, `.`, `_` and `-`, starting with a letter or digit"
        )
    return _check_part("group", name, name)


def consumer_ref(group: str, topic: str) -> str:
    """Return the ref that keeps how far a group has read a topic.

    >>> consumer_ref("analytics", "governance")
    'refs/gatos/consumers/analytics/governance'
    """
    return f"{CONSUMERS}{check_group(group)}/{check_topic(topic)}"


def anchors_ref(layout: Layout, topic: str) -> str:
    """Return the ref of a topic's anchors.

    >>> anchors_ref(SHIPLOG, "prod"), anchors_ref(COMPAT, "prod")
    ('refs/gatos/shiplog/prod/anchors', 'refs/_shiplog/anchors/prod')
    """
    if layout is COMPAT:
        return f"refs/_shiplog/anchors/{topic}"
    return f"{layout.prefix}{layout.check(topic)}/anchors"


def signed_heads_ref(layout: Layout, topic: str) -> str:
    """Return the ref of a topic's signed heads.

    >>> signed_heads_ref(SHIPLOG, "prod")
    'refs/gatos/signed-heads/shiplog/prod'
    """
    return f"refs/gatos/signed-heads/{layout.name}/{layout.check(topic)}"


def _check_compat(name: str) -> str:
    """Check an environment of `git shiplog`: git must accept it as part of a ref."""
    bad = re.search(r"[\x00-\x20\x7f~^:?*\[\\]|@\{|\.\.|//", name)
    if not name or bad or any(p[:1] in (".", "") or p.endswith((".lock", ".")) for p in name.split("/")):
        raise _invalid("environment", name, "git refuses it as part of a ref name")
    return name


def _check_part(what: str, name: str, part: str) -> str:
    if ".." in part:
        raise _invalid(what, name, 'git refuses ".." in ref names')
    if part.endswith("."):
        raise _invalid(what, name, 'git refuses a ref part that ends with "."')
    if part.endswith(".lock"):
        raise _invalid(what, name, 'git refuses a ref part that ends with ".lock"')
    return name


def _invalid(what: str, name: str, reason: str) -> InvalidName:
    shown = name if len(name) <= 80 else name[:77] + "…"
    # The advice of the error itself is for namespaces, the strictest of the names.
    advice = None if what == "namespace" else f"Choose another {what}."
    return InvalidName(f"{what} {shown!r}: {reason}", name=shown, reason=reason, advice=advice)


SHIPLOG = Layout(
    name="shiplog",
    prefix="refs/gatos/shiplog/",
    suffix="/head",
    path=lambda ns, ulid: ("gatos", "shiplog", ns, f"{ulid}.json"),
    envelope_schema="shiplog/event_envelope",
    has_trailer=True,
    topic_is_ns=True,
    check=check_namespace,
)
MESSAGES = Layout(
    name="messages",
    prefix="refs/gatos/messages/",
    suffix="/head",
    path=lambda _topic, _ulid: ("message", "envelope.json"),
    envelope_schema="message-plane/event_envelope",
    has_trailer=False,
    topic_is_ns=False,
    check=check_topic,
)
COMPAT = Layout(
    name="compat",
    prefix="refs/_shiplog/journal/",
    suffix="",
    path=None,
    envelope_schema="shiplog/event_envelope",
    has_trailer=True,
    topic_is_ns=True,
    check=_check_compat,
)
LAYOUTS = {layout.name: layout for layout in (SHIPLOG, MESSAGES, COMPAT)}
