"""Mirror a gossip topic: fetch the messages that another repository or a peer holds; nothing is sent to it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from ropewalk.bridge.brokers.port import address_of
from ropewalk.bridge.event_copy import MirrorResult
from ropewalk.bridge.progress import Progress
from ropewalk.disk.repository_paths import find_repository
from ropewalk.errors import Conflict, RopewalkError
from ropewalk.gitlog.repository.repository import FOLLOW_PAUSE_S, GitRepository
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.peer.client import SyncReport, profile_of, reach, sync_with
from ropewalk.gossip.peer.topics import open_topic, topics
from ropewalk.gossip.sync.session import PullResult, pull_from

PEER_PAUSE_S = 2.0  # between two connections to a peer that is followed


class GossipMirror:
    """A topic of this repository, and the repositories (by path) and peers (by URL) that it is fetched from.

    Messages are verified and stored as they come, and equal parts of both logs are skipped: a mirror that was killed
    continues without a mark.
    """

    def __init__(
        self,
        log: GitRepository,
        sources: Sequence[str],
        topic: str,
        *,
        tls: ssl.SSLContext | None = None,
        token: str | None = None,
    ) -> None:
        self._home, self._topic, self._tls, self._token = log.store.place.home, topic, tls, token
        self._sources = {each: Progress.of(log, "mirror", self._address(each), self.name) for each in sources}
        self._began = False
        self.done = MirrorResult()  # in the last round, also in one that failed
        self.pause_s = PEER_PAUSE_S if any("://" in each for each in sources) else FOLLOW_PAUSE_S

    @property
    def name(self) -> str:
        """The name of the topic among the logs of a repository."""
        return f"gossip/{self._topic}"

    def head(self) -> tuple[str, str | None]:
        """Return the name of the topic and the hash over all its messages."""
        with open_topic(self._home, self._topic, create=False) as log:
            return self.name, log.root().hash.hex()

    def catch_up(self, progress: Callable[[int], None] = lambda _count: None) -> MirrorResult:
        """Fetch all that is new from each source; then raise the first error, if sources failed.

        The first call also counts what was there before.
        """
        self.done = MirrorResult() if self._began else MirrorResult(skipped=self._count())
        self._began = True
        failure: RopewalkError | None = None
        for source, record in self._sources.items():
            try:
                self.done += MirrorResult(self._fetch(source, record))
            except RopewalkError as error:
                record.fail(error)
                failure = failure or error
            progress(self.done.mirrored)
        if failure is not None:
            raise failure
        return self.done

    def _count(self) -> int:
        if self._topic not in topics(self._home):
            return 0
        with open_topic(self._home, self._topic, create=False) as log:
            return len(log)

    def _fetch(self, source: str, record: Progress) -> int:
        if "://" in source:
            profile = None if self._topic in topics(self._home) else profile_of(source)
            if profile is not None:  # a wrong address must not leave a topic behind
                asyncio.run(reach(source, self._topic, tls=self._tls, token=self._token))
            with open_topic(self._home, self._topic, create=True, profile=profile) as log:
                report = asyncio.run(sync_with(log, source, pull_only=True, tls=self._tls, token=self._token))
                return _record(record, log, report, None)
        with open_topic(find_repository(Path(source)).home, self._topic, create=False) as other:
            height = len(other)
            with open_topic(self._home, self._topic, create=True, profile=other.profile.name) as log:
                return _record(record, log, pull_from(log, other), height)

    def _address(self, source: str) -> str:
        if "://" in source:
            return address_of(source.partition(":")[0], source, self._topic)
        place = find_repository(Path(source))
        if place.home.resolve() == self._home.resolve():
            raise Conflict(f"{source} is this repository", advice="Name another repository, or a peer's URL.")
        return f"file://{place.git_dir}"


def _record(record: Progress, log: GossipLog, report: PullResult | SyncReport, height: int | None) -> int:
    """Record the hash of the topic and how many messages the source has, which is known of a repository only."""
    known, root = record.read(), log.root().hash.hex()
    refused = f"{report.refused} messages were refused by the rules of the topic" if report.refused else ""
    if (known.get("position"), known.get("height"), known.get("error", "")) == (root, height, refused):
        record.seen(refused)
    else:
        before = known.get("height")
        moved = report.received  # which a killed run did not count
        if height is not None:
            moved = max(0, height - (before if type(before) is int else 0))
        record.write(moved=moved, error=refused, position=root, height=height)
    return report.received
