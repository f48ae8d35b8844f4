"""A repository as a stream: refs that move and messages that are published, by this process or any other, as frames.

One watcher looks every so often, however many are connected. Of a topic every message comes, in order, also when its
head jumped over many of them between two looks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from dataclasses import replace
from typing import Any

from ropewalk.errors import SPELLINGS, RopewalkError
from ropewalk.gitlog.privacy.rules import Rule
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.net.threads import in_thread
from ropewalk.stream.core.frames import ErrorFrame, RefUpdate
from ropewalk.stream.core.window import BOUNDS, Window, WindowBounds
from ropewalk.stream.serve.server import Clock, StreamServer
from ropewalk.stream.serve.source import WATCHED, StreamSource

LOOK_S = 0.2  # how often we look for what other processes have done
PAUSE_S_MAX = 2.0  # between two looks, where looking takes so long that a tenth of the time would go into it
RETRY_S = 2.0  # how often a topic that cannot be read is tried again

_journal = logging.getLogger("ropewalk.stream")


class RepositoryStream:
    """Serves what changes in one repository. Use it as a context; options are those of `StreamServer`."""

    def __init__(
        self,
        log: GitRepository,
        *,
        bounds: WindowBounds = BOUNDS,
        look_s: float = LOOK_S,
        server: type[StreamServer] = StreamServer,
        source: type[StreamSource] = StreamSource,
        **options: Any,
    ) -> None:
        clock = Clock()
        self.window = Window(log.new_ulid(), clock.now_us(), bounds, refs_below=WATCHED)
        self.server = server(self.window, clock=clock, look=self._look_at_rules, **options)
        self._log = log
        self._source_type = source
        self._source: StreamSource | None = None
        self._rules = asyncio.Lock()
        self._moved: dict[str, RefUpdate] = {}  # and not published: the rules were unreadable
        self._private: frozenset[Rule] = frozenset()  # the rules for messages that what is kept was held to
        self._look_s = look_s
        self._look_now = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None
        self._cost_s = 0.0  # how long the last look took; of many thousand refs it is longer
        self._troubles: dict[str, str] = {}  # by topic: what its readers were sent

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return self.server.url

    async def __aenter__(self) -> RepositoryStream:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._source = source = await in_thread(self._source_type, self._log)
        await self._look_at_rules()
        await self.server.__aenter__()
        self._watcher = asyncio.create_task(self._watch(source))
        return self

    async def __aexit__(self, *exc: Any) -> None:
        assert self._watcher is not None
        self._watcher.cancel()
        await asyncio.gather(self._watcher, return_exceptions=True)
        await self.server.__aexit__(*exc)

    def look(self) -> None:
        """Look for changes now. Any thread may call this; without a call, they are seen a little later."""
        if threading.get_ident() == self._thread:
            self._look_now.set()  # waking a loop that runs costs a system call
        else:
            self._loop.call_soon_threadsafe(self._look_now.set)

    async def _watch(self, source: StreamSource) -> None:
        retry_at = 0.0
        fault = ""  # what was said last
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._look_s, min(PAUSE_S_MAX, 9 * self._cost_s))):
                    await self._look_now.wait()
            self._look_now.clear()
            again = self._loop.time() >= retry_at
            if again:
                retry_at = self._loop.time() + RETRY_S
            try:
                await self._look(source, again)
                fault = ""
                self.server.fault = "the policy cannot be read" if self._is_sealed else None
            except Exception as error:  # any error: a watcher that ended would look like an idle repository
                if repr(error) != fault:
                    _journal.warning("looking at %s: %s", self._log.store.place.git_dir, error or repr(error))
                fault = repr(error)
                self.server.fault = str(error) or fault

    async def _look_at_rules(self) -> None:
        assert self._source is not None
        async with self._rules:
            await in_thread(self._source.rules.look)
            self._apply_rules(self._source)

    def _apply_rules(self, source: StreamSource) -> None:
        if source.private - self._private:  # frames are kept as they were shown, with what is private now
            self.server.forget()
        self._private = source.private
        if source.access is not self.server.access:
            self.server.set_access(source.access)
            self.server.wake()  # waiting clients learn that nothing can be seen

    @property
    def _is_sealed(self) -> bool:
        """Tell whether the rules are unreadable, as while they are written: then changes wait."""
        return self.server.access.sealed

    async def _look(self, source: StreamSource, again: bool) -> None:
        start = self._loop.time()
        for update in await in_thread(source.look):
            before = self._moved.get(update.ref, update)
            self._moved[update.ref] = replace(update, old=before.old)
        self._cost_s = self._loop.time() - start
        await self._look_at_rules()  # after: what was appended under a rule is shown under that rule
        if self._is_sealed:  # it waits until the rules can be read; readers know
            return
        moved, self._moved = self._moved, {}
        await self.server.publish(moved.values())
        for topic in sorted(source.behind):
            if again or topic not in self._troubles:
                await self._pass_on(source, topic)

    async def _pass_on(self, source: StreamSource, topic: str) -> None:
        """Publish what is new in a topic, a chunk at a time. Report trouble with it to its readers, once."""
        if not self._is_sealed and not self.server.access.sees("topic", topic):
            self.server.withhold("topic", topic)
            return source.pass_over(topic)
        try:
            while await self._pass_on_some(source, topic):
                pass
            if self._troubles.pop(topic, None) is not None:
                self.window.calm(topic)
        except RopewalkError as error:
            if self._troubles.get(topic) != error.detail:
                self._troubles[topic] = error.detail
                _journal.warning("%s: %s: %s", topic, error.code, error.detail)
                code = SPELLINGS[error.code].stream
                self.server.warn(ErrorFrame(code, error.detail, topic=topic))
        return None

    async def _pass_on_some(self, source: StreamSource, topic: str) -> bool:
        async with self._rules:  # or rules could change between reading a message and keeping its frame
            frames = await in_thread(source.take, topic)
            self._apply_rules(source)
            await self.server.publish(frames)
        return bool(frames)
