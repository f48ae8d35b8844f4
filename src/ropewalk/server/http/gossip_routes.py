"""Gossip topics over HTTP, and verification of one log."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any, TypeVar

from litestar import Response, Router, get, post
from litestar.params import FromPath, FromQuery, QueryParameter

from ropewalk.errors import Invalid, InvalidName, NotFound
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG
from ropewalk.gossip.core.dag_json import from_json, to_json
from ropewalk.gossip.core.log import Cursor, GossipLog
from ropewalk.gossip.core.message import SignedMessage
from ropewalk.gossip.core.verify import verify_log as verify_topic
from ropewalk.gossip.peer.peer_list import read_peers
from ropewalk.gossip.peer.topics import open_topic, topic_folder, topics
from ropewalk.kernel import jcs
from ropewalk.kernel.report import Report
from ropewalk.ledger.channel.maintenance import verify_stored
from ropewalk.repository_check import verify_gitlogs
from ropewalk.server.auth.rights import ENGINES
from ropewalk.server.http import models
from ropewalk.server.http.replies import (
    Asked,
    body_of,
    count_appends,
    identity_of,
    keyed_alone,
    node_of,
    permitted,
    receipts,
    remember,
    reply,
)
from ropewalk.server.node import NODE_KEY, ServerNode

LIMIT_DEFAULT, LIMIT_MAX = 128, 512
PAGE_BYTES = 8 << 20  # after which a page ends
T = TypeVar("T")


@get("/gossip")
async def list_topics(request: Asked) -> Response[models.GossipTopics]:
    """List the gossip topics."""
    node, identity = node_of(request), identity_of(request)
    found = await node.read(topics, node.place.home)
    return reply({"topics": [each for each in found if identity.may("read", f"gossip/{each}")]})


@get("/gossip/{topic:str}/messages")
async def read_gossip(
    request: Asked,
    topic: FromPath[str],
    after: Annotated[str | None, QueryParameter(description="The cursor `next_after` of a page.")] = None,
    limit: FromQuery[int] = LIMIT_DEFAULT,
) -> Response[models.GossipPage]:
    """Read messages in the order in which they arrived here: a page never skips a late one."""
    count = max(1, min(limit, LIMIT_MAX))

    def look(log: GossipLog) -> dict[str, Any]:
        rows, last, size = [], after, 0
        for cursor, signed in islice(log.arrivals(Cursor(after) if after is not None else None), count):
            last = cursor
            rows.append(_row(signed))
            size += len(jcs.encode_foreign(rows[-1]["payload"]))
            if size >= PAGE_BYTES:
                break
        return {"messages": rows, "next_after": last}

    return reply(await _with_topic(request, topic, look))


@post("/gossip/{topic:str}/messages", status_code=201)
async def append_gossip(request: Asked, topic: FromPath[str]) -> Response[models.GossipReceipt]:
    """Sign a payload with a key of the server and put it on top of all heads: `{"payload", "key"}`."""
    node = permitted(request, "append", f"gossip/{topic}")
    raw = await body_of(request)
    async with keyed_alone(request, raw) as key:
        if key is None or key.outcomes is None:
            document: Any = jcs.parse(raw, bytes_max=len(raw))
            if not isinstance(document, dict) or not {"payload"} <= document.keys() <= {"payload", "key"}:
                raise Invalid('the body must be an object with "payload" and, if not node, "key"')
            name = document.get("key", NODE_KEY)
            if not isinstance(name, str):
                raise InvalidName("key must be the name of a key", name=str(name)[:80])
            if name != NODE_KEY:  # other keys belong to the account that runs the server
                identity_of(request).require("admin", f"gossip/{topic}")
            row = await node.read(_append, node, topic, from_json(document["payload"]), name)
            count_appends(request, "gossip", [row])
            await remember(request, key, [row])
        else:
            (row,) = key.outcomes
    return receipts([row], many=False, name={})


def _append(node: ServerNode, topic: str, payload: Any, key: str) -> dict[str, Any]:
    with open_topic(node.place.home, topic, create=True, signer=node.signing_key(key)) as log:
        stored = log.append(payload)
    return {"id": stored.id, "clock": stored.message.clock, "parents": list(stored.message.parents)}


@get("/gossip/{topic:str}/heads")
async def show_heads(request: Asked, topic: FromPath[str]) -> Response[models.GossipHeads]:
    """Show the messages without children, the clock that the next one gets, and the connected peers."""

    def look(log: GossipLog) -> dict[str, Any]:
        clock, ids = log.get_clock()
        return {"heads": ids, "clock": clock, "pending": len(log.pending())}

    found = await _with_topic(request, topic, look)
    node = node_of(request)
    peers = await node.read(read_peers, topic_folder(node.place.home, topic))
    return reply({**found, "peers": peers})


@get("/verify")
async def verify_log(
    request: Asked,
    log: Annotated[
        str, QueryParameter(description="shiplog/NS, messages/TOPIC, ledger/CHANNEL or gossip/TOPIC.")
    ],
) -> Response[models.VerifyReport]:
    """Verify one log again, from its bytes: the steps of `ropewalk verify --json`."""
    node = permitted(request, "read", log)
    engine, _, name = log.partition("/")
    if engine not in ENGINES or not name:
        raise Invalid(f"log must start with {', '.join(each + '/' for each in ENGINES)}, got {log[:80]!r}")
    return reply((await node.read_long(_verify, node, engine, name)).to_json())


def _verify(node: ServerNode, engine: str, name: str) -> Report:
    if engine == "ledger":
        return verify_stored(node.place.home, name)
    if engine == "gossip":
        with open_topic(node.place.home, name, create=False) as topic:
            return verify_topic(topic)
    report = verify_gitlogs(node.log.store, name, layouts=(SHIPLOG if engine == "shiplog" else MESSAGES,))
    if not report.steps:
        raise NotFound(f"there is no log {engine}/{name}", topic=name)
    return report


async def _with_topic(request: Asked, topic: str, act: Callable[[GossipLog], T]) -> T:
    """Return what `act` finds in a topic that the caller may read."""
    node = permitted(request, "read", f"gossip/{topic}")

    def look() -> T:
        with open_topic(node.place.home, topic, create=False) as log:
            return act(log)

    return await node.read(look)


def _row(signed: SignedMessage) -> dict[str, Any]:
    message = signed.message
    return {
        "id": signed.id,
        "clock": message.clock,
        "parents": list(message.parents),
        "payload": to_json(message.payload),
        "author": signed.signature.public_key,
    }


ROUTES = Router(
    "/",
    route_handlers=[list_topics, read_gossip, append_gossip, show_heads, verify_log],
    tags=["gossip and verification"],
)
