"""NATS JetStream as a broker (extra `[nats]`). Positions are the sequence numbers of the stream."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from ropewalk.bridge.brokers.port import START, Incoming, Moved, Outgoing, address_of, mark_of
from ropewalk.errors import Conflict, TooLarge, Unavailable, Usage

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext

ACK_WAIT_S: Final = 10.0  # for the acknowledgements of one batch, for each MiB begun
CONNECT_S: Final = 5.0
WRONG_LAST_SEQUENCE: Final = 10071  # JetStream's error code for a position that has moved
HEADER_BYTES: Final = 768  # names of headers, and those that this module adds
CONSUMER_IDLE_S: Final = 60.0  # after which the server removes the consumer of a bridge that has gone
FETCHES_MAX: Final = 20  # of one batch that does not arrive whole
NO_STREAM: Final = b'{"error": {"description": "no stream has the subject"}}'
_journal = logging.getLogger("ropewalk.bridge")
SUBJECT: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def subject_of(log: str) -> str:
    """Return the default subject of a log.

    >>> subject_of("messages/jobs/pending")
    'ropewalk.messages.jobs.pending'
    """
    return "ropewalk." + ".".join(re.sub(r"[^A-Za-z0-9_-]", "_", part) for part in re.split(r"[/.]", log))


class NatsBroker:
    """One subject of one JetStream stream."""

    def __init__(
        self, client: Client, context: JetStreamContext, stream: str, subject: str, mark: str, shared: bool
    ) -> None:
        self._client, self._context = client, context
        self._shared = shared  # with other subjects: sequence numbers do not count the messages of this one
        self.stream, self.subject, self.mark = stream, subject, mark
        self._consumer: Any = None
        self._next = ""  # the position behind which the consumer goes on
        self._taken = 0  # messages that the consumer has brought: it numbers them, and none may be missing

    @classmethod
    async def connect(cls, url: str, subject: str, stream: str | None = None) -> Self:
        """Connect, and find the stream of the subject; make one that holds this subject alone if there is none."""
        if not SUBJECT.fullmatch(subject):
            raise Usage(
                f"subject must be words of letters, digits, _ and - joined by dots, got {subject[:80]!r}"
            )
        try:
            import nats
            import nats.errors
            from nats.js.errors import NotFoundError
        except ImportError as error:
            raise Unavailable("the NATS bridge needs nats-py", advice='Run: pip install ".[nats]"') from error
        try:
            client = await nats.connect(
                url,
                connect_timeout=CONNECT_S,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0.2,
                error_cb=_quiet,
                name="ropewalk bridge",
            )
        except (TimeoutError, OSError, nats.errors.Error, ValueError) as error:
            raise Unavailable(f"cannot connect to {address_of('nats', url, subject)}: {error}") from error
        context = client.jetstream()
        try:
            try:
                found = await context.find_stream_name_by_subject(subject)
            except NotFoundError:
                found = stream or re.sub(r"[^A-Za-z0-9_-]", "_", subject).upper()
                await context.add_stream(name=found, subjects=[subject])
            if stream is not None and found != stream:
                raise Conflict(
                    f"subject {subject} belongs to stream {found}, not {stream}",
                    advice=f"Leave --stream out, or write --stream {found}.",
                )
            facts = await context.stream_info(found)
        except (nats.errors.Error, TimeoutError) as error:
            await client.close()
            said = error or "timeout"
            raise Unavailable(f"JetStream of {address_of('nats', url, subject)}: {said}") from error
        except Conflict:
            await client.close()
            raise
        mark = mark_of(f"nats {found} {facts.created}")
        return cls(client, context, found, subject, mark, facts.config.subjects != [subject])

    async def last(self) -> str:
        """Return the sequence number of the stream's newest message."""
        state = (await self._asked(self._context.stream_info(self.stream))).state
        return str(state.last_seq)

    async def publish(self, batch: Sequence[Outgoing], expected: str) -> str:
        """Publish a batch in one go. Every message names its predecessor, so a refused one stops all behind it."""
        first, refused = int(expected), None
        for number, message in enumerate(batch):
            limit = self._client.max_payload - HEADER_BYTES - sum(map(len, message.headers.values()))
            if len(message.body) > limit:
                refused = TooLarge(
                    f"event {message.id} must be at most {limit} bytes for this server, got {len(message.body)}",
                    advice="Raise max_payload in the server's configuration.",
                )
                batch = batch[:number]  # those before it are published
                break
        answers = await self._acknowledged(batch, first) if batch else []
        faults = [said["error"] for said in answers if "error" in said]
        for fault in faults:
            if fault.get("err_code") != WRONG_LAST_SEQUENCE:
                raise Unavailable(f"stream {self.stream} did not take a message: {fault.get('description')}")
        numbers = [0 if said.get("duplicate") else said.get("seq", 0) for said in answers]
        if faults or sorted(numbers) != list(range(first + 1, first + len(batch) + 1)):
            raise Moved
        if refused is not None:
            raise refused
        return str(first + len(batch))

    async def _acknowledged(self, batch: Sequence[Outgoing], first: int) -> list[dict[str, Any]]:
        """Send a batch and return the answers. All come to one inbox: a request for each costs twice as much CPU."""
        import nats.errors

        answers: list[bytes] = []
        done = asyncio.Event()

        async def take(answer: Any) -> None:
            answers.append(answer.data or NO_STREAM)
            if len(answers) == len(batch):
                done.set()

        clock = asyncio.get_running_loop().time
        deadline = clock() + ACK_WAIT_S * (1 + sum(len(each.body) for each in batch) // 2**20)
        try:
            inbox = self._client.new_inbox()
            subscription = await self._client.subscribe(inbox, cb=take)
            for number, message in enumerate(batch, first):
                headers = {"Nats-Msg-Id": message.id, "Nats-Expected-Last-Sequence": str(number)}
                await self._client.publish(
                    self.subject, message.body, reply=inbox, headers={**message.headers, **headers}
                )
                if (
                    clock() > deadline
                ):  # a timeout around the loop would be lost: the client swallows cancellation
                    raise TimeoutError
            async with asyncio.timeout_at(deadline):
                await done.wait()
            await subscription.unsubscribe()
            return [dict(said) for said in json.loads(b"[" + b",".join(answers) + b"]")]
        except (TimeoutError, nats.errors.Error, OSError, ValueError) as error:
            raise Unavailable(f"stream {self.stream} did not take a message: {error or 'timeout'}") from error

    async def fetch(self, after: str, limit: int, wait_s: float) -> Sequence[Incoming]:
        """Return the next messages of the subject in the order of the stream; none only if the server has none."""
        for attempt in range(FETCHES_MAX):
            if self._consumer is None or self._next != after:
                await self._subscribe(after)
            found = await self._fetched(limit, wait_s * (attempt + 1))
            numbers = [each.metadata.sequence.consumer for each in found]
            if numbers != list(range(self._taken + 1, self._taken + 1 + len(numbers))):
                self._consumer = None  # something was sent and did not arrive: ask again from `after`
                continue
            self._taken += len(numbers)
            if found:
                self._next = str(found[-1].metadata.sequence.stream)
                return [self._incoming(each, each.metadata.sequence.stream) for each in found]
            # A slow server or network also brings nothing in time; a caller must not take that for the end.
            said = await self._asked(self._consumer.consumer_info())
            if not said.num_pending and said.delivered.consumer_seq == self._taken:
                return ()
            if said.delivered.consumer_seq != self._taken:
                self._consumer = None
        raise Unavailable(f"messages of stream {self.stream} behind {after} do not arrive")

    def _incoming(self, message: Any, number: int) -> Incoming:
        headers = dict(message.headers or {})
        return Incoming(str(number), message.data, headers, None if self._shared else number)

    async def _fetched(self, limit: int, wait_s: float) -> Sequence[Any]:
        import nats.errors

        try:
            found: Sequence[Any] = await self._consumer.fetch(limit, timeout=wait_s)
            return found
        except (TimeoutError, nats.errors.TimeoutError):
            return ()
        except (nats.errors.Error, OSError) as error:
            self._consumer = None
            raise Unavailable(f"cannot read stream {self.stream}: {error}") from error

    async def _subscribe(self, after: str) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        if self._consumer is not None:
            await self._asked(self._consumer.unsubscribe())
        if self._shared and after != START:
            front = (await self._asked(self._context.stream_info(self.stream))).state.first_seq
            if front > int(after) + 1:
                said = "stream %s removed messages %d to %d, perhaps some of subject %s that were not read"
                _journal.warning(said, self.stream, int(after) + 1, front - 1, self.subject)
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.ALL if after == START else DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=None if after == START else int(after) + 1,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=CONSUMER_IDLE_S,
        )
        self._consumer = await self._asked(
            self._context.pull_subscribe(self.subject, stream=self.stream, config=config)
        )
        self._next, self._taken = after, 0

    async def _asked(self, answer: Any) -> Any:
        import nats.errors

        try:
            return await answer
        except (TimeoutError, nats.errors.Error, OSError) as error:
            raise Unavailable(f"stream {self.stream} does not answer: {error or 'timeout'}") from error

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


async def _quiet(_error: Exception) -> None:
    """Keep the client from printing: a failing call raises by itself."""
