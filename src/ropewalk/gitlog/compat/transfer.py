"""`refs/_shiplog` in and out: the importer and the exporter, given the logs of an open repository."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ropewalk.errors import NotFound
from ropewalk.gitlog.compat.exporter import ExportReport, export_journal
from ropewalk.gitlog.compat.importer import import_journals
from ropewalk.gitlog.compat.journal import ImportReport, Note
from ropewalk.gitlog.consumers.consumers import cursors
from ropewalk.gitlog.core.envelope import Event
from ropewalk.gitlog.core.layout import SHIPLOG
from ropewalk.gitlog.core.planning import Plan, Tip
from ropewalk.gitlog.core.reading import events
from ropewalk.gitlog.privacy.apply import CAPABILITY, location_of, record_of
from ropewalk.gitlog.privacy.pointer import seal_pointer
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.kernel import jcs
from ropewalk.kernel.seal import SealingKey
from ropewalk.kernel.ulid import Ulid

NOTE_POLICY = "shiplog-import"  # bound into sealed notes as the policy version


class _Target:
    """The logs of a repository as the importer and the exporter see them."""

    def __init__(self, log: GitRepository) -> None:
        self._log = log

    def tip(self, topic: str) -> Tip:
        head = self._log.store.head(SHIPLOG.head_ref(topic))
        return self._log.lines.tip(SHIPLOG, topic, head)

    def find(self, topic: str, wanted: Ulid) -> Event | None:
        line = self._log.lines.line(SHIPLOG, topic, must_exist=False)
        slot = line.find(wanted)
        if slot is None:
            return None
        return next(events(self._log.store, line, slot.height, slot.height + 1), None)

    def events(self, topic: str, start: int) -> Iterator[Event]:
        line = self._log.lines.line(SHIPLOG, topic, must_exist=False)
        return events(self._log.store, line, start, line.count)

    def grown(self, topic: str, made: Plan) -> None:
        self._log.lines.grown(SHIPLOG, topic, made.start, made.tip, made.places)


def import_from_compat(
    log: GitRepository, mapping: Mapping[str, str] | None = None, note: Note | None = None
) -> ImportReport:
    """Bring the journals under `refs/_shiplog/` into logs of this repository.

    `mapping` is environment → namespace; `note` gives what is kept of a note, by default its bytes.
    """
    return import_journals(log.store, _Target(log), mapping or {}, note, limit=log.clock_limit())


def sealed_note(log: GitRepository, key: SealingKey, key_name: str, policy: str = NOTE_POLICY) -> Note:
    """Keep of a note a pointer to it; the note itself is sealed in the private store."""
    mail = log.store.identity.rpartition("<")[2].rstrip(">")

    def seal(raw: bytes) -> bytes:
        made = seal_pointer(
            key,
            raw,
            actor=f"user:{mail}",
            policy=policy,
            location=location_of(log.store.place),
            capability=CAPABILITY + key_name,
        )
        log.private.put(made.blob, record_of(made, f"user:{mail}", policy, key_name, log.now_ms()))
        return jcs.encode(made.pointer.document)

    return seal


def export_to_compat(
    log: GitRepository, topic: str, env: str | None = None, *, consumers: bool = False
) -> ExportReport:
    """Write what a log holds into its journal under `refs/_shiplog/`, on top of what is there.

    With `consumers` the cursors of the log's consumer groups are mirrored there, too.
    """
    if log.store.head(SHIPLOG.head_ref(topic)) is None:
        raise NotFound(f"there is no log {topic!r} ({SHIPLOG.head_ref(topic)})", topic=topic)
    found = [each for each in cursors(log) if each.topic == topic] if consumers else []
    mirrored = {each.group: each.commit for each in found if each.by == "commit" and each.commit is not None}
    return export_journal(log.store, _Target(log), topic, env, mirrored)
