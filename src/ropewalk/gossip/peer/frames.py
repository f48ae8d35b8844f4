"""Frames over a pipe, and a sync over frames, in both profiles."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence

from ropewalk.errors import RopewalkError, TooLarge, Unavailable
from ropewalk.gossip.core.ids import Key
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.profiles import Profile
from ropewalk.gossip.core.table import View
from ropewalk.gossip.sync import wire
from ropewalk.gossip.sync.questions import (
    AbortResponse,
    ChildrenResponse,
    NodeRequest,
    NodeResponse,
    RootResponse,
    SyncRequest,
    SyncResponse,
    ValuesRequest,
    ValuesResponse,
    answer,
)
from ropewalk.gossip.sync.session import PullResult, pull
from ropewalk.kernel.prolly.node import Node
from ropewalk.net import frame_pipe
from ropewalk.net.frame_pipe import IDLE_S, SLICE_BYTES
from ropewalk.net.pipe import Pipe
from ropewalk.net.threads import in_thread

VALUES_FIRST = 3  # messages asked for before we know how large they are: all of the largest fit one frame
VALUES_BYTES = 2 << 20  # what we then aim at
ANSWER_BYTES_MAX = 16 << 20  # of an answer to v0.13 questions; every peer may make us hold one
HELD_BYTES = 4 << 20  # messages we hold unchecked before we stop asking for more
SESSION_S = 20.0  # how long a session may hold its view of a v0.13 log; then the peer begins another
COOLDOWN_S_MAX = 10.0  # what a peer may make us wait; it counts milliseconds


class GossipFrames(frame_pipe.FramePipe):
    """Whole frames of gossip over a pipe, with a limit on their size and on silence."""

    def __init__(self, pipe: Pipe, *, limit: int, idle_s: float = IDLE_S, rest: bytes = b"") -> None:
        super().__init__(pipe, wire.FrameCutter(limit), wire.frame, idle_s=idle_s, rest=rest)


class Questions:
    """The asking side of a sync: one question at a time, one answer to each."""

    def __init__(self, frames: GossipFrames, profile: Profile) -> None:
        self._frames = frames
        self._profile = profile
        self._batch = VALUES_FIRST
        self.root: Node | None = None  # as the peer last named it
        self.leaves: set[bytes] | None = None  # if a set is put here: the messages the peer showed (v0.6)
        self.fetched: Callable[[Sequence[bytes]], None] = lambda _keys: (
            None
        )  # called with messages the peer has
        self.cooldown_s = 0.0  # what the peer asked for when it broke off
        self._abort: AbortResponse | None = None  # set once it broke off: every later answer

    async def ask(self, request: SyncRequest) -> SyncResponse:
        """Return one answer; large requests for messages are sent in parts."""
        if isinstance(request, ValuesRequest) and len(request.keys) > self._batch:
            return await self._ask_in_parts(request.keys)
        response = await self._ask(request)
        if isinstance(response, RootResponse):
            self.root = response.node
        elif self.leaves is not None and isinstance(response, ChildrenResponse):
            self.leaves.update(node.key for node in response.nodes if node.level == 0)
        return response

    async def lacks(self, keys: list[Key]) -> list[Key] | None:
        """Return which of these messages the peer lacks; None if it broke off."""
        lacking = []
        for key in keys:
            response = await self._ask(NodeRequest(0, key))
            if isinstance(response, AbortResponse):
                return None
            if not isinstance(response, NodeResponse) or response.node is None:
                lacking.append(key)
        return lacking

    async def _ask(self, request: SyncRequest) -> SyncResponse:
        if self._abort is not None:
            return self._abort
        await self._frames.send(wire.encode_request(request))
        try:
            raw = await self._frames.receive()
        except TooLarge:
            if not isinstance(request, ValuesRequest) or len(request.keys) <= VALUES_FIRST:
                raise
            # We guessed from smaller messages; a new session begins with careful guesses.
            self._abort = AbortResponse()
            return self._abort
        if raw is None:
            raise Unavailable(f"{self._frames.pipe.name} ended the sync instead of answering")
        if len(raw) > SLICE_BYTES:
            response = await in_thread(wire.decode_response, raw, self._profile.name)
        else:
            response = wire.decode_response(raw, self._profile.name)
        if isinstance(response, AbortResponse):
            self._abort = response
            self.cooldown_s = min(COOLDOWN_S_MAX, response.cooldown / 1000)
        if isinstance(request, ValuesRequest) and isinstance(response, ValuesResponse) and response.values:
            self.fetched(request.keys)
            each = max(64, len(raw) // len(response.values))
            self._batch = max(1, min(512, VALUES_BYTES // each))
        return response

    async def _ask_in_parts(self, keys: tuple[bytes, ...]) -> SyncResponse:
        values: list[bytes] = []
        size = 0
        while len(values) < len(keys) and size < HELD_BYTES:
            part = keys[len(values) : len(values) + self._batch]
            response = await self._ask(ValuesRequest(part))
            if isinstance(response, AbortResponse) and values:
                break  # what came before it is kept; the next question gets the abort
            if not isinstance(response, ValuesResponse) or len(response.values) != len(part):
                # An abort, or what the sync will refuse as a whole; it never looks like the right number.
                return ValuesResponse(()) if isinstance(response, ValuesResponse) else response
            values += response.values
            size += sum(map(len, response.values))
        return ValuesResponse(tuple(values), partial=len(values) < len(keys))


async def pull_over(log: GossipLog, questions: Questions) -> PullResult:
    """Run one pull; what it stored stays, however it ends."""
    machine = pull(log)
    try:
        request = await in_thread(_step, machine, None)
        while not isinstance(request, PullResult):
            request = await in_thread(_step, machine, await questions.ask(request))
        return request
    finally:
        machine.close()


def _step(
    machine: Generator[SyncRequest, SyncResponse, PullResult], response: SyncResponse | None
) -> SyncRequest | PullResult:
    # StopIteration cannot leave a thread, so the end is a value.
    try:
        return next(machine) if response is None else machine.send(response)
    except StopIteration as end:
        result: PullResult = end.value
        return result


async def answer_questions(
    log: GossipLog,
    frames: GossipFrames,
    served: Callable[[tuple[bytes, ...]], None],
    *,
    first: bytes | None = None,
    session_s: float = SESSION_S,
) -> None:
    """Answer a peer until it finishes, all from one moment of the log; `served` is called with the messages sent."""
    now = asyncio.get_running_loop().time
    # v0.6 has no way to say "begin again", so there a session lasts as long as it makes progress.
    end = now() + session_s if log.profile.name == "v0.13" else None
    moment = contextlib.ExitStack()
    view = await in_thread(moment.enter_context, log.view())
    try:
        raw = first if first is not None else await frames.receive()
        while raw is not None:
            request = wire.decode_request(raw, log.profile.name)
            if end is not None and now() > end:
                await frames.send(wire.encode_response(AbortResponse(), log.profile.name))
                return
            try:
                encoded, keys = await in_thread(_answer, view, log.profile, request)
            except TooLarge:
                if end is None:
                    raise
                # The peer guessed from smaller messages; a new session begins with careful guesses.
                await frames.send(wire.encode_response(AbortResponse(), log.profile.name))
                return
            await frames.send(encoded)
            served(keys)
            raw = await frames.receive()
    finally:
        await in_thread(moment.close)


def _answer(view: View, profile: Profile, request: SyncRequest) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the encoded answer, and the keys of the messages in it."""
    keys: tuple[bytes, ...] = ()
    if isinstance(request, ValuesRequest):
        keys = request.keys
        response: SyncResponse = ValuesResponse(tuple(_values(view, profile, keys)))
    else:
        response = answer(view, profile, request)
        shown = response.nodes if isinstance(response, ChildrenResponse) else ()
        if isinstance(response, NodeResponse) and response.node is not None:
            shown = (response.node,)
        keys = tuple([node.key for node in shown if node.value is not None])
    return wire.encode_response(response, profile.name), keys


def _values(view: View, profile: Profile, keys: tuple[bytes, ...]) -> Iterator[bytes]:
    """Yield the messages under these keys, one by one: a short question must not fill the memory."""
    size = 0
    for key in keys:
        response = answer(view, profile, ValuesRequest((key,)))
        assert isinstance(response, ValuesResponse)
        size += len(response.values[0])
        if size > wire.RESPONSE_BYTES_MAX - 10 * len(keys):
            raise TooLarge("the messages asked for do not fit one answer", limit=wire.RESPONSE_BYTES_MAX)
        yield response.values[0]


def reason(error: RopewalkError, name: str) -> str:
    """Return one line on why a peer disconnected. An unavailable peer is no error and has no code.

    >>> reason(Unavailable("ws://a:1: Connection refused"), "ws://a:1")
    'ws://a:1: Connection refused'
    """
    said = error.detail.removeprefix(name).lstrip(": ")
    return f"{name}: {said}" if isinstance(error, Unavailable) else f"{name}: {error.code}: {said}"
