"""One entry of a journal, turned into an event: its ULID, its envelope, its trailer, and what is odd about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from ropewalk.errors import RopewalkError
from ropewalk.gitlog.compat.entries import CompatEntry, native_trailer, parse_entry
from ropewalk.gitlog.compat.ssh_signatures import (
    Roster,
    Verdict,
    judge,
    parse_allowed_signers,
    split_signature,
)
from ropewalk.gitlog.core.envelope import Draft, EncodedEnvelope, Event, read_envelope, seal_foreign
from ropewalk.gitlog.core.layout import SHIPLOG
from ropewalk.gitlog.core.log import Repo, get_object
from ropewalk.gitlog.core.objects import EMPTY_TREE, FOLDER, GitSignature, Oid, parse_commit, parse_tree
from ropewalk.gitlog.core.planning import Tip
from ropewalk.gitlog.privacy.pointer import check_pointers
from ropewalk.gitlog.privacy.secrets import scan_json
from ropewalk.kernel import jcs, ulid
from ropewalk.kernel.digest import ContentId, Tag, content_id, parse_content_id, tagged
from ropewalk.kernel.ulid import Ulid

PROFILE = "shiplog-compat"
TIME_S_MAX = 253_402_300_799  # the last second of the year 9999, which RFC 3339 can still write


class Journals(Repo, Protocol):
    """A repository whose refs can be listed."""

    def head_names(self, prefix: str) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Problem:
    """Something odd, and the commit (or at least the ref) it is odd about."""

    ref: str
    reason: str
    commit: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"commit": self.commit, "reason": self.reason, "ref": self.ref}


def ulid_of(oid: str, time_s: int, last: Ulid | None) -> Ulid:
    """Return the ULID of an imported commit: its committer's second, and chance that is a digest of its id.

    >>> ulid_of("0" * 40, 1700000000, None)
    '01HF7YAT00WDSCBD7V3YSKGB8K'
    """
    chance = int.from_bytes(tagged(Tag.IMPORT, oid.encode())[:10], "big")
    time_ms = min(max(time_s, 0), TIME_S_MAX) * 1000
    if last is None or time_ms > ulid.time_ms(last):
        return ulid.make(time_ms, chance)
    time_ms = ulid.time_ms(last)
    if chance > ulid.randomness(last):
        return ulid.make(time_ms, chance)
    if ulid.randomness(last) < ulid.RANDOMNESS_MAX:
        return ulid.make(time_ms, ulid.randomness(last) + 1)
    return ulid.make(time_ms + 1, chance)


def source_of(event: Event) -> tuple[str, str] | None:
    """Return the journal ref and commit an event was imported from, None for events of our own."""
    if b'"profile":"%s"' % PROFILE.encode() not in event.raw:
        return None
    source = event.payload.get("source")
    if not isinstance(source, dict) or source.get("profile") != PROFILE:
        return None
    return str(source.get("ref")), str(source.get("commit"))


def find_envelope(repo: Journals, entry: CompatEntry) -> tuple[dict[str, Any], str] | None:
    """Return the envelope of an entry and its promised name: in the trailer (our exports) or in the tree (S0)."""
    trailer = entry.trailer or {}
    envelope, promised = trailer.get("envelope"), trailer.get("content_id")
    if isinstance(envelope, dict) and isinstance(promised, str):
        return envelope, promised
    if entry.commit.tree == EMPTY_TREE:
        return None
    try:
        return _planted(repo, entry.commit.tree)
    except RopewalkError:
        return None


def envelope_name(document: Any) -> ContentId | None:
    """Return the content id of an envelope's canonical bytes; None for a document without canonical bytes.

    >>> envelope_name({"b": 1.0, "a": []}) == content_id(b'{"a":[],"b":1}')
    True
    """
    try:
        return content_id(jcs.encode_foreign(document))
    except RopewalkError:
        return None


def _planted(repo: Journals, tree: Oid) -> tuple[dict[str, Any], str] | None:
    at = tree
    for name in ("gatos", "shiplog", None):
        entries = [
            e for e in parse_tree(get_object(repo, at, "tree")) if e.mode == FOLDER and name in (None, e.name)
        ]
        if len(entries) != 1:
            return None
        at = entries[0].oid
    files = [e for e in parse_tree(get_object(repo, at, "tree")) if e.name.endswith(".json")]
    if len(files) != 1:
        return None
    raw = get_object(repo, files[0].oid, "blob")
    document = jcs.parse_foreign(raw)
    if not isinstance(document, dict):
        return None
    return document, content_id(jcs.encode_foreign(document))


class EntryReader:
    """Entries of one journal, each turned into an event."""

    def __init__(self, repo: Journals, ref: str, env: str, topic: str) -> None:
        self.repo, self.ref, self.env, self.topic = repo, ref, env, topic
        self._rosters: dict[str, Roster | None] = {}

    def event(self, oid: Oid, tip: Tip, problems: list[Problem]) -> tuple[EncodedEnvelope, Draft]:
        """Return the event of an entry, to stand on a tip."""
        entry = parse_entry(oid, get_object(self.repo, oid, "commit"))
        odd = [*entry.problems, *self._place_oddities(entry)]
        sealed, document, trailer = self._ascarried_by(entry, tip, odd) or self._as_entry(entry, tip, odd)
        odd += [f"it holds what looks like a {each.kind} at {each.where}" for each in scan_json(document)]
        problems += [Problem(self.ref, reason, oid) for reason in odd]
        # S0 has no text for what git's own fsck refuses, so a person is written as git would.
        author, committer = (
            kept_signature(person) for person in (entry.commit.author, entry.commit.committer)
        )
        return sealed, Draft(document, trailer, author, committer)

    def _ascarried_by(
        self, entry: CompatEntry, tip: Tip, odd: list[str]
    ) -> tuple[EncodedEnvelope, dict[str, Any], dict[str, Any] | None] | None:
        carried = find_envelope(self.repo, entry)
        if carried is None:
            return None
        document, promised = carried
        try:
            parse_content_id(promised)
            read_envelope(jcs.encode_foreign(document), promised)
            own = ulid.parse(str(document.get("ulid")))
            if tip.ulid is not None and own <= tip.ulid:
                odd.append(f"its own ULID {own} does not lie above {tip.ulid}; it gets another")
                return None
            check_pointers(document.get("payload"))
            sealed = seal_foreign(SHIPLOG, self.topic, document, own)
        except RopewalkError as error:
            odd.append(f"the envelope it carries is not taken: {error.detail}")
            return None
        trailer, _ = native_trailer(entry.trailer or {})
        return sealed, document, trailer

    def _as_entry(
        self, entry: CompatEntry, tip: Tip, odd: list[str]
    ) -> tuple[EncodedEnvelope, dict[str, Any], dict[str, Any] | None]:
        name = ulid_of(entry.oid, entry.commit.committer.time_s, tip.ulid)
        trailer, verdict = entry.trailer, self._verdict(entry, odd)
        source: dict[str, Any] = {
            "profile": PROFILE,
            "ref": self.ref,
            "commit": entry.oid,
            "signature": verdict,
        }
        if trailer is not None:
            native, left_out = native_trailer(trailer)
            odd += left_out
            whole = {} if entry.exact else entry.message
            document: dict[str, Any] = {
                "type": f"deployment.{trailer['status']}" if native is not None else "deployment.other",
                "payload": {"trailer": trailer, "source": {**source, **whole}},
                "refs": {"trailer": content_id(jcs.encode_foreign(trailer))},
            }
            try:
                check_pointers(trailer)
                return seal_foreign(SHIPLOG, self.topic, document, name), document, native
            except RopewalkError as error:
                odd.append(f"its trailer is left in the source commit: {error.detail}")
        document = {"type": "deployment.other", "payload": {"source": {**source, **entry.message}}}
        try:
            return seal_foreign(SHIPLOG, self.topic, document, name), document, None
        except RopewalkError as error:
            odd.append(f"its message is left in the source commit: {error.detail}")
        document = {"type": "deployment.other", "payload": {"source": source}}
        return seal_foreign(SHIPLOG, self.topic, document, name), document, None

    def _place_oddities(self, entry: CompatEntry) -> Iterable[str]:
        time_s = entry.commit.committer.time_s
        if not 0 <= time_s <= TIME_S_MAX:
            yield f"its committer's time, {time_s}, is outside 1970 to 9999"
        trailer = entry.trailer
        if trailer is None:
            return
        env, parent = trailer.get("env"), trailer.get("journal_parent")
        if env is not None and env != self.env:
            yield f"trailer env must be {self.env!r}, got {str(env)[:60]!r}"
        actual = entry.commit.parents[0] if entry.commit.parents else None
        if "journal_parent" in trailer and parent != actual:
            yield f"trailer journal_parent must be {actual}, got {str(parent)[:40]}"

    def _verdict(self, entry: CompatEntry, odd: list[str]) -> Verdict:
        if split_signature(entry.raw)[1] is None:
            return "none"
        named = (entry.trailer or {}).get("trust_oid")
        roster = self._roster(named) if isinstance(named, str) else None
        verdict = judge(entry.raw, roster, entry.commit.committer.time_s)
        if verdict in ("good", "untrusted") and roster is None:
            odd.append("it is signed, but the trust tree it names is not here; the signer is untrusted")
        elif verdict != "good":
            odd.append(f"its signature is {verdict}")
        return verdict

    def _roster(self, trust: str) -> Roster | None:
        if trust not in self._rosters:
            self._rosters[trust] = _read_roster(self.repo, trust)
        return self._rosters[trust]


def _read_roster(repo: Journals, trust: str) -> Roster | None:
    try:
        kind, raw = repo.get(trust)
        tree = parse_commit(raw).tree if kind == "commit" else Oid(trust)
        entries = parse_tree(get_object(repo, tree, "tree"))
        found = next((entry.oid for entry in entries if entry.name == "allowed_signers"), None)
        return (
            ()
            if found is None
            else parse_allowed_signers(get_object(repo, found, "blob").decode("utf-8", "replace"))
        )
    except RopewalkError:
        return None


def kept_signature(person: GitSignature) -> GitSignature:
    """Return a person with a time git's own fsck takes."""
    return person._replace(time_s=max(person.time_s, 0))
