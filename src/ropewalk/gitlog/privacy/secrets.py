"""Secrets that must not be recorded: keys and tokens whose form leaves little doubt (S0 §10).

A log cannot forget, so what looks like a credential is refused before it is hashed. Each pattern is one that
its issuer made recognisable, or one whose surroundings say what it is; guesses by entropy alone are left to others,
because a refusal that is usually wrong teaches people to switch it off. A finding has the place and the kind. It never
holds the secret.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson

from ropewalk.errors import Denied, InvalidJson

ALLOW_MARK = "ropewalk:allow-secret"  # on the same line: a person confirmed that it is none
TEXT_CHARACTERS_MAX = 64 << 20
FINDINGS_MAX = 20  # enough to act on; the rest is found when these are gone
NESTING_MAX = 200
HINTS_AT_ONCE = 32  # the engine looks for so few with vector instructions, three times faster
ADVICE = (
    "Seal it (`ropewalk pointer seal`) or take it out, and change the secret if it was shown to anybody. "
    "If it is none, allow it with --allow-secret."
)


@dataclass(frozen=True, slots=True)
class SecretFinding:
    """What looks like a secret: which kind, and where; never the thing itself."""

    kind: str
    where: str


@dataclass(frozen=True, slots=True)
class _Pattern:
    kind: str
    hints: tuple[str, ...]  # every match holds one of these, so that most texts are dismissed at once
    form: str  # compiled when a text holds a hint: most programs never meet one
    holds: Callable[[re.Match[str]], bool] = lambda _: True


def scan_text(text: str, allow: Collection[str] = ()) -> list[SecretFinding]:
    """Return what looks like a secret in a text, by line.

    >>> scan_text("all is well\\ntoken: ghp_" + "Zk3" * 12)
    [SecretFinding(kind='github-token', where='line 2')]
    >>> scan_text("the documented example is AKIAIOSFODNN7EXAMPLE")
    []
    """
    found: dict[SecretFinding, None] = {}
    for kind, at in _matches(text[:TEXT_CHARACTERS_MAX], allow):
        found[SecretFinding(kind, f"line {text.count(chr(10), 0, at) + 1}")] = None
        if len(found) == FINDINGS_MAX:
            break
    return list(found)


def scan_json(value: Any, allow: Collection[str] = ()) -> list[SecretFinding]:
    """Return what looks like a secret in the texts of a JSON value, by JSON pointer.

    >>> scan_json({"payload": {"steps": ["AKIA" + "QRSTUVWX23456Z7A"]}})
    [SecretFinding(kind='aws-access-key', where='/payload/steps/0')]
    """
    found: dict[SecretFinding, None] = {}
    if _is_plainly_free(_whole(value)):
        return []
    for where, text in _texts(value):
        for kind, _ in _matches(text, allow):
            found[SecretFinding(kind, where or "/")] = None
            if len(found) == FINDINGS_MAX:
                return list(found)
    return list(found)


def are_plainly_free(values: Sequence[Any]) -> bool:
    """Return whether one look at many JSON values shows that none of them holds a secret; if not, look at each.

    >>> are_plainly_free([{"a": 1}, {"b": "all is well"}]), are_plainly_free([{"a": "AKIAQRSTUVWX23456Z7A"}])
    (True, False)
    """
    try:
        return _is_plainly_free(_whole(values))
    except InvalidJson:  # one of them is not JSON: checking it alone reports that
        return False


def refuse_secrets(value: Any, what: str, allow: Collection[str] = ()) -> None:
    """Refuse a document, or a text, that holds what looks like a secret. `what` names it in the refusal.

    >>> refuse_secrets({"note": "-----BEGIN OPENSSH PRIVATE KEY-----\\nb3Bl"}, "the payload")
    Traceback (most recent call last):
    ropewalk.errors.Denied: the payload holds what looks like a private-key at /note; nothing was recorded
    """
    found = scan_text(value, allow) if isinstance(value, str) else scan_json(value, allow)
    if not found:
        return
    places = ", ".join(f"a {each.kind} at {each.where}" for each in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    raise Denied(
        f"{what} holds what looks like {places}{more}; nothing was recorded",
        advice=ADVICE,
        findings=[{"kind": each.kind, "where": each.where} for each in found],
    )


def _matches(text: str, allow: Collection[str]) -> Iterator[tuple[str, int]]:
    if len(text) < 8 or _is_plainly_free(text):
        return
    for pattern in PATTERNS:
        if pattern.kind in allow or not any(hint in text for hint in pattern.hints):
            continue
        for match in re.finditer(pattern.form, text):
            if pattern.holds(match) and not _is_marked(text, match):
                yield pattern.kind, match.start()


def _is_plainly_free(text: str) -> bool:
    """Return whether one look at a text shows that no pattern can match: nearly always so, and nearly free."""
    try:
        # A connection string needs both signs: links alone are in every second document.
        return not _glance().is_valid(text) and ("@" not in text or "://" not in text)
    except ValueError:  # half a character: the engine takes none, the patterns do
        return False


@cache
def _glance() -> Any:
    # Python looks for one text at a time. The schema library's engine looks for all of them in one pass, twenty times
    # faster, and an append must not wait for seventy searches.
    from jsonschema_rs import Draft202012Validator

    hints = {hint for pattern in PATTERNS for hint in pattern.hints if hint != "://"}
    escaped = [re.sub(r"([.^$*+?()\[\]{}|\\])", r"\\\1", hint) for hint in sorted(hints)]
    groups = range(0, len(escaped), HINTS_AT_ONCE)
    return Draft202012Validator(
        {"anyOf": [{"pattern": "|".join(escaped[at : at + HINTS_AT_ONCE])} for at in groups]}
    )


def _is_marked(text: str, match: re.Match[str]) -> bool:
    end = text.find("\n", match.end())
    start = text.rfind("\n", 0, match.start()) + 1
    return ALLOW_MARK in text[start : end if end >= 0 else len(text)]


def _whole(value: Any) -> str:
    """Return a document as one text. No hint holds a character that JSON escapes, so each appears unchanged."""
    try:
        return orjson.dumps(value, default=_opened).decode()
    except (TypeError, ValueError):
        pass
    try:
        return json.dumps(value, default=_opened)
    except (TypeError, ValueError, RecursionError) as error:
        # It holds itself, say, and would be looked at for ever.
        raise InvalidJson(f"this is no JSON document: {error}", reason="not JSON") from error


def _opened(value: object) -> object:
    """Return what JSON does not know, so that its texts are seen: a mapping need not be a dict to be recorded."""
    return dict(value) if isinstance(value, Mapping) else str(value)


def _texts(value: Any) -> Iterator[tuple[str, str]]:
    """Yield every text of a value, keys among them, with its place. A key's own place is its parent's."""
    waiting: list[tuple[str, Any, int]] = [("", value, 0)]
    while waiting:
        where, each, depth = waiting.pop()
        if isinstance(each, str):
            yield where, each
        elif depth < NESTING_MAX:
            members: Iterable[tuple[Any, Any]] = ()
            if isinstance(each, Mapping):
                yield from ((where, name) for name in each if isinstance(name, str))
                members = reversed(list(each.items()))
            elif isinstance(each, (list, tuple)):
                members = reversed(list(enumerate(each)))
            for name, inner in members:
                step = str(name).replace("~", "~0").replace("/", "~1")
                step = step if not any(_matches(step, ())) else "…"
                waiting.append((f"{where}/{step}", inner, depth + 1))


# --- what the patterns lean on ---

PLACEHOLDER = re.compile(
    r"example|placeholder|redacted|changeme|your[_-]|dummy|sample|xxxx|\*\*\*|\.\.\.|…|^<.*>$|^\$|^%|\{\{|^\[.*\]$",
    re.IGNORECASE,
)


def _real(group: int | str = 0, varied: int = 5) -> Callable[[re.Match[str]], bool]:
    """Tell a real value from a placeholder: no placeholder word, and enough different characters."""

    def holds(match: re.Match[str]) -> bool:
        text = match[group]
        return PLACEHOLDER.search(text) is None and len(set(text)) >= varied

    return holds


def _is_jwt(match: re.Match[str]) -> bool:
    head = match[0].partition(".")[0]
    try:
        parsed = json.loads(urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (Base64Error, ValueError, RecursionError):
        return False
    return isinstance(parsed, dict) and "alg" in parsed


def _is_password(match: re.Match[str]) -> bool:
    return PLACEHOLDER.search(match["password"]) is None and match["password"] not in (
        "PASSWORD",
        "PASS",
        "password",
    )


PATTERNS = tuple(
    _Pattern(kind, tuple(hints.split(" | ")), form, holds)
    for kind, hints, form, holds in (
        (
            "private-key",
            "PRIVATE KEY",
            r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
            r"(?:(?:\\[nr]|[\r\n])(?:\\[nr]|\s){0,8}(?:[A-Za-z-]{1,40}: [^\n]{0,200}\n){0,8}\s{0,8}[A-Za-z0-9+/]"
            r"|[ \t]{1,8}[A-Za-z0-9+/]{16})",
            lambda _: True,
        ),
        ("age-key", "AGE-SECRET-KEY-1", r"\bAGE-SECRET-KEY-1[0-9A-Z]{58}\b", _real()),
        (
            "aws-access-key",
            "AKIA | ASIA | ABIA | ACCA",
            r"(?<![A-Za-z0-9])(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}(?![A-Za-z0-9])",
            _real(),
        ),
        (
            "aws-secret-key",
            "ecret | ECRET",
            r"(?i:aws_?secret_?access_?key|secretaccesskey|aws_?secret_?key)[\"']?\s*[:=]\s*[\"']?"
            r"(?P<secret>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
            _real("secret", 12),
        ),
        ("google-api-key", "AIza", r"(?<![A-Za-z0-9_-])AIza[0-9A-Za-z_-]{35}(?![A-Za-z0-9_-])", _real()),
        ("google-oauth-secret", "GOCSPX-", r"\bGOCSPX-[A-Za-z0-9_-]{28}(?![A-Za-z0-9_-])", _real()),
        ("azure-storage-key", "AccountKey=", r"AccountKey=[A-Za-z0-9+/]{86}==", _real(varied=12)),
        (
            "azure-client-secret",
            "Q~",
            r"(?<![A-Za-z0-9_~.-])[A-Za-z0-9_~.]{3}\dQ~[A-Za-z0-9_~.-]{31,34}(?![A-Za-z0-9_~-])",
            _real(varied=12),
        ),
        (
            "github-token",
            "ghp_ | gho_ | ghu_ | ghs_ | ghr_",
            r"(?<![A-Za-z0-9])gh[pousr]_[A-Za-z0-9]{36,251}(?![A-Za-z0-9])",
            _real(varied=3),
        ),
        ("github-token", "github_pat_", r"\bgithub_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}\b", _real()),
        (
            "gitlab-token",
            "glpat- | gldt- | glrt- | glptt- | glcbt- | glsoat- | glft- | glimt- | glagent-",
            r"(?<![A-Za-z0-9])gl(?:pat|dt|rt|ptt|cbt|soat|ft|imt|agent)-[A-Za-z0-9_.-]{20,}",
            _real(),
        ),
        (
            "slack-token",
            "xoxa- | xoxb- | xoxe- | xoxo- | xoxp- | xoxr- | xoxs-",
            r"(?<![A-Za-z0-9])xox[abeoprs]-(?:\d+-)*[A-Za-z0-9-]{10,}",
            _real(varied=8),
        ),
        ("slack-token", "xapp-", r"(?<![A-Za-z0-9])xapp-\d-[A-Z0-9]+-\d+-[a-f0-9]{20,}", _real()),
        (
            "slack-webhook",
            "hooks.slack.com/",
            r"hooks\.slack\.com/(?:services|workflows)/[A-Z0-9]{8,}/[A-Z0-9]{8,}/[A-Za-z0-9]{16,}",
            _real(),
        ),
        ("stripe-key", "k_live_", r"(?<![A-Za-z0-9])[rs]k_live_[A-Za-z0-9]{16,}", _real()),
        ("stripe-webhook-secret", "whsec_", r"\bwhsec_[A-Za-z0-9+/]{32,}", _real()),
        ("twilio-key", "wilio | WILIO", r"(?i:twilio)[^\n]{0,40}\bSK[0-9a-f]{32}\b", _real()),
        ("sendgrid-key", "SG.", r"(?<![A-Za-z0-9])SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}", _real()),
        ("npm-token", "npm_", r"(?<![A-Za-z0-9])npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])", _real()),
        ("pypi-token", "pypi-Ag", r"\bpypi-AgE[A-Za-z0-9_-]{50,}", _real()),
        ("rubygems-key", "rubygems_", r"\brubygems_[0-9a-f]{48}\b", _real()),
        ("docker-token", "dckr_pat_", r"\bdckr_pat_[A-Za-z0-9_-]{27,}", _real()),
        (
            "openai-key",
            "sk-proj- | sk-svcacct- | sk-admin-",
            r"(?<![A-Za-z0-9])sk-(?:proj-|svcacct-|admin-)[A-Za-z0-9_-]{40,}",
            _real(varied=12),
        ),
        (
            "openai-key",
            "T3BlbkFJ",
            r"(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{20,}T3BlbkFJ[A-Za-z0-9_-]{20,}",
            _real(varied=12),
        ),
        (
            "anthropic-key",
            "sk-ant-",
            r"(?<![A-Za-z0-9])sk-ant-[a-z0-9]+-[A-Za-z0-9_-]{40,}",
            _real(varied=12),
        ),
        ("huggingface-token", "hf_", r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{34,}(?![A-Za-z0-9])", _real(varied=10)),
        ("digitalocean-token", "doo_v1_ | dop_v1_ | dor_v1_", r"\bdo[opr]_v1_[a-f0-9]{64}\b", _real()),
        (
            "hashicorp-token",
            "hvs. | hvb. | hvr.",
            r"(?<![A-Za-z0-9])hv[sbr]\.[A-Za-z0-9_-]{24,}",
            _real(varied=10),
        ),
        ("databricks-token", "dapi", r"(?<![A-Za-z0-9])dapi[a-f0-9]{32}(?:-\d)?(?![A-Za-z0-9])", _real()),
        (
            "shopify-token",
            "shpat_ | shpca_ | shppa_ | shpss_",
            r"(?<![A-Za-z0-9])shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}\b",
            _real(),
        ),
        ("atlassian-token", "ATATT3", r"\bATATT3[A-Za-z0-9_=-]{100,}", _real()),
        ("telegram-token", ":AA", r"(?<![0-9])\d{8,10}:AA[A-Za-z0-9_-]{33}(?![A-Za-z0-9_-])", _real()),
        (
            "jwt",
            "eyJ",
            r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}",
            _is_jwt,
        ),
        (
            "bearer-token",
            "earer ",
            r"(?i:authorization)[\"']?\s*[:=]\s*[\"']?[Bb]earer (?P<secret>[A-Za-z0-9._~+/-]{20,}=*)",
            _real("secret", 8),
        ),
        (
            "basic-auth",
            "asic ",
            r"(?i:authorization)[\"']?\s*[:=]\s*[\"']?[Bb]asic (?P<secret>[A-Za-z0-9+/]{12,}=*)",
            _real("secret", 6),
        ),
        (
            "connection-string",
            "://",
            r"\b(?i:postgres(?:ql)?|mysql|mariadb|mongodb(?:\+srv)?|rediss?|amqps?|mssql|sqlserver|ftps?|sftp|smtps?|ldaps?|nats|clickhouse|https?|ssh|git\+https)"
            r"(?:\+[a-z0-9]+)?://[^\s:/@?#\"'<>]*:(?P<password>[^\s/@?#\"'<>]{3,})@[^\s/@\"'<>]+",
            _is_password,
        ),
        (
            "connection-string",
            "assword= | ASSWORD= | wd= | WD=",
            r"(?i:server|data source|host)\s*=[^;\n]{1,200};[^\n]{0,400}?"
            r"\b(?i:password|pwd)=(?P<password>[^;\s\"']{3,})",
            _is_password,
        ),
        (
            "netrc-password",
            "password ",
            r"\bmachine \S+\s+login \S+\s+password (?P<password>\S{3,})",
            _is_password,
        ),
        (
            "signed-url",
            "ignature=",
            r"https://[^\s\"'<>]+[?&](?:X-Amz-Signature=[0-9a-f]{64}|X-Goog-Signature=[0-9a-f]{64,})",
            _real(),
        ),
        (
            "signed-url",
            "sig=",
            r"https://[^\s\"'<>]+\.core\.windows\.net/[^\s\"'<>]*[?&]sig=[A-Za-z0-9%+/]{40,}",
            _real(),
        ),
    )
)
KINDS = tuple(dict.fromkeys(pattern.kind for pattern in PATTERNS))
