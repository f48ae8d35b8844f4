"""What a repository has to tell on a stream: refs that moved, and every message of a topic, in order."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, cast

from ropewalk.disk.repository_paths import RepositoryPaths
from ropewalk.errors import HistoryRewritten, RopewalkError
from ropewalk.gitlog.core.envelope import Event
from ropewalk.gitlog.core.layout import MESSAGES, Layout
from ropewalk.gitlog.core.log import describe
from ropewalk.gitlog.core.objects import Oid
from ropewalk.gitlog.core.reading import events
from ropewalk.gitlog.privacy.apply import policy_file
from ropewalk.gitlog.privacy.rules import PrivacyPolicy, Rule, parse_policy, public_event
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.gitlog.repository.tracked_logs import IndexedLog
from ropewalk.kernel import jcs
from ropewalk.kernel.ulid import Ulid
from ropewalk.stream.core.access import EVERYBODY, NOBODY, Access, parse_access
from ropewalk.stream.core.frames import BusEvent, RefUpdate
from ropewalk.stream.serve.ref_watch import RefWatch

WATCHED = "refs/gatos/"  # where refs are published
CHUNK = 250  # messages read at a time
ENVELOPE_BYTES_MAX = 4 << 20  # of a message that travels whole; what we append is a megabyte at most

_journal = logging.getLogger("ropewalk.stream")


@dataclass(frozen=True, slots=True)
class _Passed:
    """How far the messages of a topic were handed out; the ULID is looked up when it is first needed."""

    commit: str | None
    ulid: Ulid | None = None


class PolicyRules:
    """What the policy of a repository shows to readers over the network, on streams and by requests alike."""

    def __init__(self, place: RepositoryPaths) -> None:
        self._path = policy_file(place)
        self._mark: object = None
        self.access: Access = EVERYBODY  # which refs and topics
        self.privacy: PrivacyPolicy | None = None  # what is left out of a payload

    def look(self) -> None:
        """Read the policy, if it changed. Unreadable rules let nothing through."""
        try:
            found = self._path.stat()
            mark: object = (found.st_mtime_ns, found.st_size, found.st_ino)
            if mark != self._mark:
                raw = self._path.read_bytes()
                privacy, document = parse_policy(raw), cast(dict[str, Any], jcs.parse(raw))
                self.privacy, self.access = privacy, parse_access(document.get("stream", {}))
                self._mark = mark
        except FileNotFoundError:
            self._mark, self.privacy, self.access = None, None, EVERYBODY
        except OSError as error:
            if self.access is not NOBODY:  # once, not five times a second
                _journal.warning("%s: %s; nothing is shown", self._path, error.strerror)
            self._mark, self.access = None, NOBODY
        except RopewalkError as error:
            _journal.warning("%s: %s; nothing is shown", self._path, error.detail)
            self._mark, self.access = mark, NOBODY


class StreamSource:
    """Looks at one repository. It begins with what happens after it was made. Not for several threads at once."""

    def __init__(self, log: GitRepository) -> None:
        self._log = log
        self._refs = RefWatch(log.store, WATCHED)
        self._passed: dict[str, _Passed] = {}
        self.behind: set[str] = set()  # topics that have messages not yet handed out
        self.rules = PolicyRules(log.store.place)

    @property
    def access(self) -> Access:
        """Who may see what."""
        return self.rules.access

    @property
    def private(self) -> frozenset[Rule]:
        """The rules for what is not shown of a message."""
        return frozenset(self.rules.privacy.rules if self.rules.privacy is not None else ())

    def look(self) -> list[RefUpdate]:
        """Return which refs moved since the last look; topics are `behind` until their messages are taken."""
        moved = self._refs.look()
        for update in moved:
            topic = self.topic_of(update.ref)
            if topic is not None:
                self._passed.setdefault(topic, _Passed(update.old))
                self.behind.add(topic)
        return moved

    def topic_of(self, ref: str) -> str | None:
        """Return the stream topic whose log has this head; None for other refs."""
        return MESSAGES.topic_of(ref)

    def log_of(self, topic: str) -> tuple[Layout, str]:
        """Return the log behind a stream topic: its layout and its name."""
        return MESSAGES, topic

    def take(self, topic: str) -> list[BusEvent]:
        """Return the next messages of a topic; in place of one that cannot be read, the error."""
        line = self._log.lines.line(*self.log_of(topic))
        self.rules.look()  # only now: what was appended under a rule is shown under that rule
        if self.access is NOBODY:
            return []
        start = self._start(topic, line)
        frames: list[BusEvent] = []
        try:
            for event in events(self._log.store, line, start, min(start + CHUNK, line.count)):
                frames.append(self.frame(topic, event))
                self._passed[topic] = _Passed(event.commit, event.ulid)
        except Exception:  # what was read before is published; the rest is tried again
            if not frames:
                raise
        if not frames:
            self.behind.discard(topic)
        return frames

    def trim(self, topic: str, keep: int) -> bool:
        """Pass over all but the last `keep` events of a topic; return whether some were passed over."""
        line = self._log.lines.line(*self.log_of(topic))
        if line.count - self._start(topic, line) <= keep:
            return False
        (last,) = line.span(line.count - keep - 1, line.count - keep)
        self._passed[topic] = _Passed(last.commit, last.ulid)
        return True

    def pass_over(self, topic: str) -> None:
        """Continue after the head of a topic, without reading what is before it."""
        self.behind.discard(topic)
        layout, name = self.log_of(topic)
        self._passed[topic] = _Passed(self._refs.heads.get(layout.head_ref(name)))

    def _start(self, topic: str, line: IndexedLog) -> int:
        passed = self._passed[topic]
        if passed.commit is None:
            return 0
        ulid = passed.ulid or self._ulid(line, passed.commit)
        place = line.find(ulid) if ulid is not None else None
        if place is not None and place.commit == passed.commit:
            return place.height + 1
        # Another history was accepted. What it holds above the last message handed out comes; that below it
        # there may be others is reported.
        start = line.first_above(ulid) if ulid is not None else line.count
        below = line.span(start - 1, start) if start else ()
        self._passed[topic] = _Passed(below[0].commit, below[0].ulid) if below else _Passed(None)
        raise HistoryRewritten(
            f"{line.topic} has another history than before, without {passed.commit[:7]}; read it anew",
            topic=line.topic,
            ref=line.ref,
        )

    def _ulid(self, line: IndexedLog, commit: str) -> Ulid | None:
        try:
            return describe(self._log.store, line.layout, line.topic, Oid(commit)).ulid
        except RopewalkError:  # git removed it: it is in no history any more
            return None

    def frame(self, topic: str, event: Event) -> BusEvent:
        """Return the frame that announces an event."""
        about: dict[str, Any] = {
            "ulid": event.ulid,
            "type": event.type,
            "content_id": event.content_id,
            "commit": event.commit,
        }
        if len(event.raw) > ENVELOPE_BYTES_MAX:
            return BusEvent(topic, {}, about={**about, "omitted": len(event.raw)})
        return BusEvent(topic, public_event(self.rules.privacy, event).payload, about=about)
