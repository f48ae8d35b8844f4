"""Sync a gossip log with one peer, named by its address."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from ropewalk.errors import Conflict, Unavailable, Usage
from ropewalk.gossip.core.ids import ProfileName, key_of
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.peer.frames import GossipFrames, Questions, answer_questions, pull_over
from ropewalk.gossip.peer.peer import Peer
from ropewalk.gossip.peer.topics import open_log
from ropewalk.gossip.sync import wire
from ropewalk.kernel.prolly.node import Node
from ropewalk.net.frame_pipe import IDLE_S
from ropewalk.net.tcp import TcpPipe, connect_tcp
from ropewalk.net.threads import in_thread
from ropewalk.net.websocket import connect_websocket

OFFERS_MAX = 5  # connections over which a v0.6 peer may take what we have


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What a sync came to; `refused` counts messages of the peer that our own rules keep out.

    `taken` is False if the peer only answers and never asks: then it does not have what we have.
    """

    received: int
    sent: int
    refused: int
    root: Node
    taken: bool = True


def profile_of(url: str) -> ProfileName:
    """Return the wire profile of an address.

    >>> profile_of("ws://127.0.0.1:8080"), profile_of("tcp://127.0.0.1:8080")
    ('v0.13', 'v0.6')
    """
    scheme = url.partition(":")[0].lower() if isinstance(url, str) else ""
    if scheme in ("ws", "wss"):
        return "v0.13"
    if scheme == "tcp":
        return "v0.6"
    raise Usage(
        f"peer address must start with ws://, wss:// or tcp://, got {url!r:.80}",
        advice="Write ws://HOST:PORT (v0.13) or tcp://HOST:PORT (v0.6).",
    )


async def reach(
    url: str,
    topic: str,
    *,
    idle_s: float = IDLE_S,
    tls: ssl.SSLContext | None = None,
    token: str | None = None,
) -> None:
    """Raise unless the peer at the address has the topic: call it before a log is made for what may never come.

    A v0.6 peer does not name its topic.
    """
    if profile_of(url) == "v0.13":
        with open_log(topic) as nothing:
            pipe = await connect_websocket(url, timeout_s=idle_s, tls=tls, token=token)
            async with Peer(nothing, pipe, dialer=True, idle_s=idle_s) as peer:
                await peer.meet()
    else:
        await (await _dial_v06(url, idle_s)).close()


def check_profile(log: GossipLog, url: str) -> ProfileName:
    """Return the wire profile of an address; Conflict unless it is the log's."""
    wanted = profile_of(url)
    if log.profile.name != wanted:
        raise Conflict(
            f"topic {log.topic} is of profile {log.profile.name}, and {url} speaks {wanted}",
            advice="ws:// speaks v0.13 and tcp:// speaks v0.6; a topic keeps the profile it was made with.",
        )
    return wanted


async def sync_with(
    log: GossipLog,
    url: str,
    *,
    pull_only: bool = False,
    idle_s: float = IDLE_S,
    tls: ssl.SSLContext | None = None,
    token: str | None = None,
    quiet: bool = False,
) -> SyncReport:
    """Make a log and a peer's hold the same, or only fetch. There is no deadline, only a limit on silence.

    What was verified is stored as it comes and stays, however the sync ends. With `quiet`, listeners get no event for a
    v0.6 sync that brought nothing. `token` is shown to a v0.13 peer that asks for one.
    """
    profile, before = check_profile(log, url), await in_thread(log.last_arrival)
    try:
        if profile == "v0.13":
            return await _sync_v13(log, url, pull_only, idle_s, tls, token)
        return await _sync_v06(log, url, pull_only, idle_s, quiet)
    except Unavailable as error:
        if await in_thread(log.last_arrival) != before:
            error.advice_now = "What was verified until then is kept; sync again to go on from there."
        raise


async def _sync_v13(
    log: GossipLog, url: str, pull_only: bool, idle_s: float, tls: ssl.SSLContext | None, token: str | None
) -> SyncReport:
    pipe = await connect_websocket(url, timeout_s=idle_s, tls=tls, token=token)
    async with Peer(log, pipe, dialer=True, idle_s=idle_s, count_sent=True) as peer:
        if not pull_only:
            await peer.start_push()
        pulled = await peer.pull()
        sent = 0 if pull_only else await peer.give()
    return SyncReport(peer.received, sent, pulled.refused, await in_thread(log.root))


async def _sync_v06(log: GossipLog, url: str, pull_only: bool, idle_s: float, quiet: bool) -> SyncReport:
    peer = await _dial_v06(url, idle_s)
    try:
        questions = Questions(GossipFrames(peer, limit=wire.RESPONSE_BYTES_MAX, idle_s=idle_s), log.profile)
        known = questions.leaves = set()
        pulled = await pull_over(log, questions)
    finally:
        await peer.close()
    event = await in_thread(log.note_sync, url, pulled.received)
    root = event.root
    if pulled.received or not quiet:
        log.tell(event)
    if pull_only or questions.root == root:
        return SyncReport(pulled.received, 0, pulled.refused, root)
    taking = _Taking(known)
    taken = False
    for _ in range(OFFERS_MAX):
        before = taking.requests
        await _offer_v06(log, url, idle_s, taking)
        if taking.requests == before:
            break
        if taken := await _holds_v06(log, url, idle_s):
            break
    return SyncReport(pulled.received, len(taking.sent), pulled.refused, root, taken)


class _Taking:
    """What a v0.6 peer fetches. Leaves travel with their values, so it is also sent some that it has."""

    def __init__(self, known: set[bytes]) -> None:
        self._known = known
        self.requests = 0
        self.sent: set[bytes] = set()

    def served(self, keys: tuple[bytes, ...]) -> None:
        self.requests += 1
        self.sent.update(key for key in keys if key not in self._known)


async def _offer_v06(log: GossipLog, url: str, idle_s: float, taking: _Taking) -> None:
    """Let the peer ask: an empty frame, which is no question, gives it the turn."""
    peer = await _dial_v06(url, idle_s)
    try:
        frames = GossipFrames(peer, limit=wire.REQUEST_BYTES_MAX, idle_s=idle_s)
        await frames.send(b"")
        await answer_questions(log, frames, taking.served)
    finally:
        await peer.close()


async def _holds_v06(log: GossipLog, url: str, idle_s: float) -> bool:
    heads = [key_of(id) for id in await in_thread(log.heads)]
    peer = await _dial_v06(url, idle_s)
    try:
        frames = GossipFrames(peer, limit=wire.RESPONSE_BYTES_MAX, idle_s=idle_s)
        return await Questions(frames, log.profile).lacks(heads) == []
    finally:
        await peer.close()


async def _dial_v06(url: str, idle_s: float) -> TcpPipe:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None:
        raise Usage(f"{url!r} names no host and port", advice="Write tcp://HOST:PORT.")
    return await connect_tcp(host, port, timeout_s=idle_s)
