"""Entries as `git shiplog` wrote them: a text for people, a line that starts with `---`, and a JSON trailer.

Only the trailer is read. Oddities of an entry are reported and stop nothing: a journal written by a shell script over
years holds many forms, and each of them is a record.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.errors import BrokenLink, Denied, InvalidEnvelope, InvalidJson
from ropewalk.gitlog.core.commit import STATUSES, check_trailer
from ropewalk.gitlog.core.objects import Commit, GitSignature, Oid, parse_commit
from ropewalk.kernel import jcs

ROOTS = ("refs/_shiplog/", "refs/heads/_shiplog/")  # the second where a host takes only branches
SEPARATORS_MAX = 64  # lines that start with `---`, tried from the last one
DOUBLE_MAX = 1.7976931348623157e308  # where jq stops when a number is beyond all doubles
TRAILER_FIELDS = (
    *("version", "env", "who", "what", "where", "why", "how", "status", "when"),
    *("trust_oid", "repo_head"),
)
CLOSED = {"who": ("name", "email"), "when": ("start_ts", "end_ts", "dur_s")}
PERSON = re.compile(
    rb"(?P<name>.*?)<(?P<mail>[^>]*)>?[^0-9+-]*(?P<time>-?\d{1,18})?\s*(?P<zone>[+-]\d{4})?(?!\d).*",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class CompatEntry:
    """One entry of a journal. `trailer` is None where none could be read; `message` is then all there is."""

    oid: Oid
    commit: Commit
    raw: bytes
    trailer: dict[str, Any] | None
    problems: tuple[str, ...]
    exact: bool  # the trailer is the strict reading of the message

    @property
    def message(self) -> dict[str, str]:
        """The whole message, for entries whose trailer does not tell everything."""
        try:
            return {"message": self.commit.message.decode()}
        except UnicodeDecodeError:
            return {"message_base64": b64encode(self.commit.message).decode()}


def note_refs(root: str) -> tuple[str, str]:
    """Return the refs of a journal's notes: git puts `refs/notes/` before the name it is given; fetches may undo that.

    >>> note_refs("refs/_shiplog/")
    ('refs/notes/refs/_shiplog/notes/logs', 'refs/_shiplog/notes/logs')
    """
    return f"refs/notes/{root}notes/logs", f"{root}notes/logs"


def slug(env: str) -> str:
    """Return a namespace for an environment whose name is none.

    >>> slug("QA"), slug("eu/Prod"), slug("2024"), slug("prod")
    ('qa', 'eu-prod', 'env-2024', 'prod')
    """
    lower = "".join(letter.lower() if letter.isascii() else "-" for letter in env)
    name = re.sub(r"[^a-z0-9._-]", "-", lower)
    if not re.match(r"[a-z]", name):
        name = "env-" + name.lstrip("-._")
    name = re.sub(r"\.lock$", "-lock", name[:64])
    return name.rstrip(".")


def parse_entry(oid: Oid, raw: bytes) -> CompatEntry:
    """Return an entry from the bytes of its commit; nothing in it is fatal."""
    commit, problems = _commit(raw)
    before = len(problems)
    text = _text(commit, problems)
    is_text = len(problems) == before
    trailer, exact = _trailer(text, problems)
    return CompatEntry(oid, commit, raw, trailer, tuple(problems), exact and is_text)


def native_trailer(found: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    """Return a journal's trailer as S0's schema has it: nulls, `ts`, nested `repo_head` and foreign keys stay behind.

    None if its status is outside S0's list. What had to be left out beyond that is said.

    >>> native_trailer({"status": "success", "ts": "…", "what": {"service": "web", "artifact": None}})[0]
    {'what': {'service': 'web'}, 'status': 'success'}
    """
    status = found.get("status")
    if not isinstance(status, str) or status not in STATUSES:
        return None, [f"status {_shown(status)} is none of {', '.join(STATUSES)}"]
    kept = {name: _without_nulls(found[name]) for name in TRAILER_FIELDS if found.get(name) is not None}
    for name, fields in CLOSED.items():
        if isinstance(kept.get(name), dict):
            kept[name] = {field: kept[name][field] for field in fields if field in kept[name]}
    if isinstance(kept.get("where"), dict):
        kept["where"].pop("env", None)
    kept = {name: value for name, value in kept.items() if value != {}}
    problems = []
    for name, fault in _not_canonical(kept):
        del kept[name]
        problems.append(f"trailer field {name} stays in the payload only: {fault}")
    # The schema names one fault at a time; each round drops the field that holds it.
    needed = {
        "version": 1,
        "when": {"start_ts": "1970-01-01T00:00:00Z", "end_ts": "1970-01-01T00:00:00Z", "dur_s": 0},
    }
    for _ in TRAILER_FIELDS:
        try:
            check_trailer({**needed, **kept})
            break
        except (Denied, InvalidEnvelope) as error:
            name = str(error.fields.get("where", "")).lstrip("/").partition("/")[0]
            if name not in kept:
                break
            del kept[name]
            problems.append(f"trailer field {name} stays in the payload only: {error.detail}")
    return kept, problems


def _not_canonical(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the fields S0 has no canonical bytes for, each with the reason: numbers that would lose digits."""
    try:
        jcs.encode(dict(fields))
        return []
    except InvalidJson:
        faults = []
    for name, value in fields.items():
        try:
            jcs.encode(value)
        except InvalidJson as error:
            faults.append((name, error.detail))
    return faults


def _commit(raw: bytes) -> tuple[Commit, list[str]]:
    try:
        return parse_commit(raw), []
    except BrokenLink as error:
        problems = [error.detail]
    head, _, message = raw.partition(b"\n\n")
    fields = [line.partition(b" ")[::2] for line in head.split(b"\n") if not line.startswith(b" ")]
    named = dict(reversed(fields))
    people = [_person(named.get(name, b"")) for name in (b"author", b"committer")]
    parents = tuple(Oid(value.decode("ascii", "replace")) for name, value in fields if name == b"parent")
    tree = Oid(named.get(b"tree", b"").decode("ascii", "replace"))
    return Commit(tree, parents, people[0], people[1], message), problems


def _person(raw: bytes) -> GitSignature:
    match = PERSON.fullmatch(raw)
    name, mail = (match["name"], match["mail"]) if match else (raw, b"")
    time_s = int(match["time"]) if match and match["time"] else 0
    zone = match["zone"].decode() if match and match["zone"] else "+0000"
    return GitSignature(
        name.decode("utf-8", "replace").strip(), mail.decode("utf-8", "replace").strip(), time_s, zone
    )


def _text(commit: Commit, problems: list[str]) -> str:
    stated = next(
        (value.decode("ascii", "replace") for name, value in commit.extra if name == "encoding"), "utf-8"
    )
    for encoding in dict.fromkeys((stated, "utf-8")):
        try:
            codecs.lookup(encoding)
            return commit.message.decode(encoding)
        except (LookupError, UnicodeError, ValueError):
            problems.append(f"the message is not {encoding[:40]}")
    return commit.message.decode("utf-8", "replace")


def _trailer(text: str, problems: list[str]) -> tuple[dict[str, Any] | None, bool]:
    """Read the JSON behind the last line that starts with `---`, or behind an earlier one if that is unreadable."""
    lines = text.split("\n")
    separators = [at for at, line in enumerate(lines) if line.startswith("---")][-SEPARATORS_MAX:]
    if not separators:
        problems.append("no line starts with ---; the whole message is kept")
        return None, False
    reason = ""
    for at in reversed(separators):
        body = "\n".join(lines[at + 1 :]).strip()
        try:
            strict = jcs.parse_foreign(body.encode("utf-8", "surrogatepass"))
            lenient: list[str] = []
            value: Any = strict
        except InvalidJson as error:
            reason = reason or error.detail
            value, lenient = _lenient(body)
        if not isinstance(value, dict):
            continue
        if at != separators[-1]:
            lenient.append(
                "nothing readable follows the last line that starts with ---; an earlier one was taken"
            )
        problems += lenient
        return value, not lenient
    problems.append(f"the trailer is no JSON object ({reason or 'another value'}); the whole message is kept")
    return None, False


def _lenient(body: str) -> tuple[Any, list[str]]:
    """Parse JSON as jq does: the last of equal keys, doubles at their limit, U+FFFD for broken characters."""
    odd: list[str] = []

    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(members)
        if len(made) != len(members):
            seen: set[str] = set()
            twice = next(name for name, _ in members if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            odd.append(f"the trailer holds key {_shown(twice)} twice; the last one counts")
        return {_sound(name, odd): _sound(value, odd) for name, value in made.items()}

    def number(text: str) -> float | int:
        value = float(text)
        if math.isinf(value):
            odd.append("a number is beyond all doubles")
            return math.copysign(DOUBLE_MAX, value)
        if value.is_integer() and abs(value) <= jcs.INTEGER_MAX:
            return int(value)
        return value

    def constant(name: str) -> None:
        odd.append(f"{name} is no JSON number; it became null")

    decoder = json.JSONDecoder(
        object_pairs_hook=pairs, parse_int=number, parse_float=number, parse_constant=constant, strict=False
    )
    try:
        value, end = decoder.raw_decode(body)
    except (ValueError, RecursionError):
        return None, []
    if body[end:].strip():
        odd.append(f"{len(body[end:].strip())} characters stand behind the trailer")
    if not odd:
        odd.append("the trailer is not strict JSON")
    try:
        jcs.encode_foreign(value)
    except InvalidJson:
        return None, []
    return value, odd


def _sound(value: Any, odd: list[str]) -> Any:
    if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
        odd.append("a text holds half a character; it became U+FFFD")
        return re.sub("[\ud800-\udfff]", "�", value)
    if isinstance(value, list):
        return [_sound(each, odd) for each in value]
    return value


def _without_nulls(value: Any) -> Any:
    """S0's trailer knows no null, and `repo_head` at the top only."""
    if isinstance(value, dict):
        return {
            name: _without_nulls(each)
            for name, each in value.items()
            if each is not None and name != "repo_head"
        }
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else text[:59] + "…"
