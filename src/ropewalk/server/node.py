"""One repository, open for serving: its logs, channels and topics, the stream, and who may use them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ropewalk.bridge.webhooks.run import WebhookRunner
from ropewalk.disk.repository_paths import RepositoryPaths
from ropewalk.errors import NotFound, RopewalkError, Unavailable, Usage
from ropewalk.gitlog.core.envelope import Event
from ropewalk.gitlog.privacy.rules import public_event
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.channel.channel import check_first
from ropewalk.ledger.channel.settings import create_channel, read_settings
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.remote.server import LedgerServer
from ropewalk.ledger.remote.writer_lease import WriterLease
from ropewalk.ledger.versions.lifecycle import version_to_write
from ropewalk.net.admission import address_group
from ropewalk.net.log_rate_limit import LogRateLimit
from ropewalk.net.revocation import RevocationList
from ropewalk.net.threads import in_thread
from ropewalk.server.append_queue import AppendQueue
from ropewalk.server.auth.audit import CHANNEL as AUDIT_CHANNEL
from ropewalk.server.auth.audit import audit_envelope
from ropewalk.server.auth.auth_file import Authenticator, Credentials
from ropewalk.server.auth.rate_limit import RateLimiter
from ropewalk.server.auth.rights import Identity, topic_of
from ropewalk.server.consumer_lag import EVERY_S, ConsumerLag, consumer_rows
from ropewalk.server.group_reading import GroupMoves
from ropewalk.server.idempotency import IdempotencyKeys
from ropewalk.server.metrics import Metrics, TimedDisk
from ropewalk.server.settings import Settings
from ropewalk.server.stream_host import HostedStream, NodeSource, NodeStream
from ropewalk.server.watch.config import WatchConfig
from ropewalk.server.watch.rounds import Watch
from ropewalk.server.watch.schedules import Schedules
from ropewalk.stream.serve.source import PolicyRules

if TYPE_CHECKING:
    from ropewalk.server.telemetry import Telemetry

TICK_S = 1.0
LONG_THREADS = 2
LONG_WAITING_MAX = 16  # requests that read a whole log
NODE_KEY = "node"
T = TypeVar("T")
_journal = logging.getLogger("ropewalk.server")
_journal.addHandler(logging.NullHandler())


class ServerNode:
    """What the routes work with. Use it as an asynchronous context.

    `channel_keys` finds the signing keys of a channel, `signing_key` one by its name; both may be called in threads.
    """

    def __init__(
        self,
        place: RepositoryPaths,
        settings: Settings,
        *,
        channel_keys: Callable[[str], Sequence[SigningKey]],
        signing_key: Callable[[str], SigningKey],
        prepare: Callable[[GitRepository], None] = lambda _log: None,
        watch: WatchConfig | None = None,
    ) -> None:
        self.place = place
        self.settings = settings
        self.metrics = Metrics()
        tls, revoked = settings.tls, None
        if tls is not None and tls.crl is not None and tls.client_ca is not None:
            revoked = RevocationList(tls.crl, tls.client_ca)
        self.auth = Authenticator(settings.auth, revoked)
        self.limiter = RateLimiter(settings.requests_per_second, settings.burst)
        self.channel_keys = channel_keys
        self.signing_key = signing_key
        self._prepare = prepare
        self._watch = watch
        self.read = ReadThreads(settings.read_threads, settings.read_waiting_max, "requests wait to be read")
        # Whole logs are read in a few other threads: short reads never wait for them.
        long = "verifications and exports are under way"
        self.read_long = ReadThreads(LONG_THREADS, LONG_WAITING_MAX, long)
        self.telemetry = _telemetry(settings.otel) if settings.otel is not None else None
        self.moves = GroupMoves()
        self.lag = ConsumerLag()
        self._doors: dict[str, WriterLease] = {}
        self._stop_delivering = threading.Event()
        self._warn = LogRateLimit(_journal.warning)
        self.draining = False
        self.transports: LedgerServer | None = None  # what serves channels over gRPC and QUIC
        self.started_s = time.monotonic()

    async def __aenter__(self) -> ServerNode:
        async with contextlib.AsyncExitStack() as closing:
            await self._open(closing)
            self._closing = closing.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()

    async def _open(self, closing: contextlib.AsyncExitStack) -> None:
        """Open everything; `closing` ends it, the last first."""
        disk = TimedDisk(self.metrics)
        self.log = await asyncio.to_thread(open_repository, self.place.git_dir, disk=disk)
        closing.push_async_callback(asyncio.to_thread, self.log.close)
        self._prepare(self.log)
        self.rules = PolicyRules(self.place)
        self.keys = await asyncio.to_thread(IdempotencyKeys, self.place.home / "server" / "idempotency")
        closing.callback(self.keys.close)
        closing.callback(self.read_long.shutdown, cancel_futures=True)
        closing.callback(self.read.shutdown)
        closing.push_async_callback(self._close_doors)
        self.appends = AppendQueue(self.log, self.keys, waiting_max=self.settings.append_waiting_max)
        stream = NodeStream(
            self.log, server=partial(HostedStream, authenticator=self.auth), source=NodeSource
        )
        self._stream = await closing.enter_async_context(stream)
        self.stream.catch_up = stream.catch_up
        now_ms = lambda: time.time_ns() // 1_000_000  # noqa: E731
        self.webhooks = WebhookRunner(self.log, now_ms=now_ms, chance=random.random)
        delivering = asyncio.create_task(in_thread(self.webhooks.run, self._stop_delivering))
        delivering.add_done_callback(_report_failure)
        # A delivery under way may end with the process: it is made again, and has an id to deduplicate on.
        closing.push_async_callback(asyncio.wait, [delivering], timeout=self.settings.drain_seconds)
        if self.telemetry is not None:
            await closing.enter_async_context(_running(self.telemetry.run(self)))
        closing.push_async_callback(self.drain)
        if self._watch is not None:
            await closing.enter_async_context(_running(self._run_watch(self._watch)))
        closing.callback(self._stop_delivering.set)
        await closing.enter_async_context(_running(self._look_after()))
        await closing.enter_async_context(_running(self._sample_lag()))

    async def _close_doors(self) -> None:
        await asyncio.gather(*(door.close() for door in self._doors.values()), return_exceptions=True)

    async def drain(self) -> None:
        """Take nothing new, and answer what was taken."""
        self.draining = True
        await self.stream.close_clients()
        await self.appends.drain()

    @property
    def stream(self) -> HostedStream:
        """The stream that clients subscribe to."""
        found = self._stream.server
        assert isinstance(found, HostedStream)
        return found

    def wake_stream(self) -> None:
        """Look for news now: something was appended here."""
        self._stream.look()

    @property
    def fault(self) -> str | None:
        """Why the node cannot do its work; None if it can."""
        if self.draining:
            return "the server is stopping"
        return self.auth.fault or self.stream.fault

    def identify(self, shown: Credentials) -> Identity:
        """Return the client that the credentials belong to; it reads what its rights and the policy both show."""
        return replace(self.auth.identify(shown), sees=self.sees)

    def wait_s(self, identity: Identity, host: str) -> float:
        """Return how long a client must wait: each identity of the auth file has its rate, and each other address."""
        named = identity.known and self.auth.required
        who = identity.name if named else f"address {address_group((host, 0))}"
        return self.limiter.wait_s(who, time.monotonic())

    def sees(self, log: str) -> bool:
        """Return whether the policy of the repository shows a log to readers over the network, as on streams."""
        self.rules.look()
        if self.rules.access.sealed:
            raise Unavailable(
                "the policy of the repository cannot be read, and nothing is shown until it can"
            )
        topic = topic_of(log)
        return topic is None or self.rules.access.sees("topic", topic)

    def shown(self, event: Event) -> Event:
        """Return an event as the policy shows it; `sees` has looked at the rules before."""
        return public_event(self.rules.privacy, event)

    async def submit(self, channel: str, raws: Sequence[bytes]) -> list[LedgerReceipt | RopewalkError]:
        """Judge envelopes and seal them into the channel, which is made if its first envelope is good."""
        if channel not in self._doors:
            await self.read(self._find_channel, channel, raws)
        outcomes = await self.door(channel).submit_many(raws)
        self.wake_stream()
        return outcomes

    def door(self, channel: str) -> WriterLease:
        """Return the one writer of a channel in this process."""
        if channel not in self._doors:
            self._doors[channel] = WriterLease(self.place.home, channel, self.channel_keys)
        return self._doors[channel]

    async def record_act(self, act: str, actor: str, facts: dict[str, Any]) -> None:
        """Seal an administrative act into the audit channel, before it takes place."""
        version = await self.read(version_to_write, self.place.home, None, time.time_ns())
        raw = audit_envelope(self.signing_key(NODE_KEY), act, actor, facts, version)
        (outcome,) = await self.submit(AUDIT_CHANNEL, [raw])
        if isinstance(outcome, RopewalkError):
            raise outcome

    def _find_channel(self, channel: str, raws: Sequence[bytes]) -> None:
        try:
            read_settings(self.place.home, channel)
        except NotFound:
            check_first(self.place.home, raws[0])
            create_channel(self.place.home, channel, NODE_KEY, self.signing_key(NODE_KEY).public)
            _journal.info("made channel %s, sealed by the key %s", channel, NODE_KEY)

    async def _run_watch(self, config: WatchConfig) -> None:
        """Do what `ropewalk watch` does, in threads: a long job must not hold up the next round."""
        parts: Any = {
            "channel_keys": self.channel_keys, "signing_key": self.signing_key, "now_ns": time.time_ns,
        }  # fmt: skip
        watch = Watch(self.place.home, config, **parts)
        schedules = Schedules(self.place.home, config, **parts)
        working: asyncio.Future[Any] | None = None
        while True:
            if working is None or working.done():
                working = asyncio.ensure_future(in_thread(schedules.run_due))
                working.add_done_callback(_report_failure)
            try:
                self.metrics.take_signals(await in_thread(watch.round))
            except Exception as error:  # any error: a watch that ended would look like one that finds nothing
                _journal.warning("watch: %s", str(error) or repr(error))
            await asyncio.sleep(config.interval_s * (0.9 + random.random() / 5))  # noqa: S311 - jitter

    async def _look_after(self) -> None:
        """Look once a second after revoked clients, figures that change by themselves, and old keys."""
        last_drop_s = 0.0
        while True:
            await asyncio.sleep(TICK_S)
            with self._going_on():
                self.stream.recheck()
                self.metrics.look(self)
                if time.monotonic() - last_drop_s > 3_600:
                    last_drop_s = time.monotonic()
                    await self.read(self.keys.drop_old, time.time_ns() // 1_000_000)

    async def _sample_lag(self) -> None:
        while True:
            with self._going_on():
                self.lag.take(await self.read(consumer_rows, self.log), time.time_ns() // 1_000_000)
            await asyncio.sleep(EVERY_S)

    @contextlib.contextmanager
    def _going_on(self) -> Iterator[None]:
        """Pass over what may go away by itself, and report any other error: work that ended would not be missed."""
        try:
            with contextlib.suppress(RopewalkError, OSError):
                yield
        except Exception as error:
            self._warn(f"background work failed: {error!r}")


class ReadThreads:
    """Calls blocking code of requests in threads. `waiting` counts the calls without a result."""

    def __init__(self, threads: int, waiting_max: int, busy: str) -> None:
        self._threads = ThreadPoolExecutor(threads, "ropewalk-read")
        self._waiting_max, self._busy = waiting_max, busy
        self.shutdown = self._threads.shutdown
        self.waiting = 0

    async def __call__(self, act: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Return what `act` returns. A full queue is refused at once."""
        if self.waiting >= self._waiting_max:
            raise Unavailable(f"{self.waiting} {self._busy}", advice="Send it again after Retry-After.")
        self.waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, partial(act, *arguments, **options))
        finally:
            self.waiting -= 1


@contextlib.asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine within the block, and cancel it behind."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _report_failure(done: asyncio.Future[Any]) -> None:
    if not done.cancelled() and done.exception() is not None:
        _journal.warning("background work failed: %s", done.exception())


def _telemetry(endpoint: str) -> Telemetry:
    if not endpoint.startswith(("http://", "https://")):
        raise Usage(f"--otel must be an http or https URL, got {endpoint[:80]!r}")
    try:
        from ropewalk.server.telemetry import Telemetry
    except ImportError as error:
        raise Unavailable(
            f"--otel needs {error.name}, which is not installed", advice='Install it: pip install ".[otel]"'
        ) from error
    return Telemetry(endpoint)
