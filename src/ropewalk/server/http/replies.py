"""What the routes share: who asks, what they sent, and how an answer is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
from litestar import Request, Response

from ropewalk.errors import Invalid, InvalidJson, RopewalkError
from ropewalk.gitlog.core.envelope import Event
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG, Layout
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import content_id
from ropewalk.server.auth.rights import Action, Identity
from ropewalk.server.http.problems import HttpRefusal
from ropewalk.server.idempotency import KeyedRequest, is_final
from ropewalk.server.node import ServerNode

Asked = Request[Any, Any, Any]
JSON = "application/json"
FOREVER = "private, max-age=31536000, immutable"
LAYOUTS = {"shiplog": SHIPLOG, "messages": MESSAGES}
ITEMS_MAX = 4_096  # events or envelopes in one request


def node_of(request: Asked) -> ServerNode:
    """Return the node that serves the request."""
    found = request.app.state.node
    assert isinstance(found, ServerNode)
    return found


def identity_of(request: Asked) -> Identity:
    """Return who sends the request."""
    found = request.scope["state"]["identity"]
    assert isinstance(found, Identity)
    return found


def permitted(request: Asked, action: Action, log: str) -> ServerNode:
    """Return the node that serves the request; raise what refuses a sender without the right."""
    identity_of(request).require(action, log)
    return node_of(request)


def git_log(log: str) -> tuple[Layout, str]:
    """Return the layout and the topic of a git log by its name."""
    engine, _, topic = log.partition("/")
    if engine not in LAYOUTS or not topic:
        raise Invalid(f"log must be shiplog/NS or messages/TOPIC, got {log[:80]!r}")
    return LAYOUTS[engine], topic


def reply(
    document: Any, status: int = 200, *, etag: str | None = None, immutable: bool = False
) -> Response[Any]:
    """Return a document, or bytes that are JSON already, as a response."""
    body = document if isinstance(document, bytes) else orjson.dumps(document)
    headers = {"Cache-Control": FOREVER if immutable else "no-cache" if etag else "no-store"}
    if etag is not None:
        headers["ETag"] = f'"{etag}"'
    return Response(body, status_code=status, media_type=JSON, headers=headers)


def not_modified(request: Asked, etag: str, *, immutable: bool = False) -> Response[Any] | None:
    """Return 304 if the client has this version already, None otherwise."""
    known = request.headers.get("if-none-match")
    if known is None or (known != "*" and f'"{etag}"' not in (each.strip() for each in known.split(","))):
        return None
    headers = {"ETag": f'"{etag}"', "Cache-Control": FOREVER if immutable else "no-cache"}
    return Response(b"", status_code=304, headers=headers)


def check_media_type(headers: Mapping[str, str], *media_types: str) -> None:
    """Refuse a body whose media type is none of those; without any, JSON."""
    wanted = media_types or (JSON,)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in wanted:
        raise HttpRefusal(415, f"Content-Type must be {' or '.join(wanted)}, got {kind[:60] or 'none'}")


async def body_of(request: Asked, *media_types: str) -> bytes:
    """Return the body if its media type is one of those; without any, JSON."""
    check_media_type(request.headers, *media_types)
    return await request.body()


def parse_items(raw: bytes) -> tuple[list[Any], bool]:
    """Read a JSON body: one object, or an array of them; also say which it was."""
    value: Any = jcs.parse(raw, bytes_max=len(raw))
    if not isinstance(value, list):
        return [value], False
    if not 0 < len(value) <= ITEMS_MAX:
        raise InvalidJson(f"an array must have 1 to {ITEMS_MAX} items, got {len(value)}", reason="items")
    return value, True


def target_of(scope: Mapping[str, Any]) -> str:
    """Return what an `Idempotency-Key` belongs to."""
    return f"{scope['method']} {scope['path']}?{scope.get('query_string', b'').decode('latin-1')}"


@asynccontextmanager
async def keyed_alone(request: Asked, raw: bytes) -> AsyncIterator[KeyedRequest | None]:
    """Return the request as its `Idempotency-Key` knows it; None without the header.

    A request with a key waits for the one with that key before it, and then finds its outcomes.
    """
    key = request.headers.get("idempotency-key")
    if key is None:
        yield None
        return
    mark = identity_of(request).name, f"{request.method} {request.scope['path']}", key
    under_way = node_of(request).keys.under_way
    while (before := under_way.get(mark)) is not None:
        await before.wait()
    ended = under_way[mark] = asyncio.Event()
    try:
        node, target = node_of(request), target_of(request.scope)
        yield await node.read(node.keys.find, identity_of(request).name, target, key, raw)
    finally:
        del under_way[mark]
        ended.set()


async def has_left(request: Asked) -> bool:
    """Return whether the client is known to have closed its connection. The body must not be needed any more."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0):
            for _ in range(2):  # what is left of the body, then the end of the connection
                if (await request.receive())["type"] == "http.disconnect":
                    return True
    return False


async def remember(request: Asked, key: KeyedRequest | None, outcomes: Sequence[dict[str, Any]]) -> None:
    """Keep the outcomes of a request with a key, before they are answered."""
    if key is not None and is_final(outcomes):
        key.outcomes = list(outcomes)
        await node_of(request).read(node_of(request).keys.keep, [key])


def receipts(outcomes: Sequence[dict[str, Any]], many: bool, name: dict[str, str]) -> Response[Any]:
    """Answer an append: the receipt or the problem of one, or all of an array in their places."""
    rows = [each if "status" in each else {**each, **name} for each in outcomes]
    if many:
        refused = any("status" in each for each in rows)
        return reply({"receipts": rows}, 200 if refused else 201)
    (row,) = rows
    if "status" in row:
        from ropewalk.server.http.problems import RETRY_S, answer

        return answer(row, {"Retry-After": str(RETRY_S)} if row["status"] in (429, 503) else None)
    return reply(row, 201)


def event_bytes(event: Event, ns: str | None = None) -> bytes:
    """Return an event as `shiplog read --json` shows it; its canonical bytes go out as they are stored.

    `withheld` is there only where the policy keeps a part of it from the reader.
    """
    raw = event.raw if content_id(event.raw) == event.content_id else jcs.encode_foreign(event.envelope)
    front = b'"ns":%s,' % orjson.dumps(ns) if ns is not None else b""
    return b'{%s"ulid":"%s","content_id":"%s","commit":"%s","envelope":%s%s}' % (
        front,
        event.ulid.encode(),
        event.content_id.encode(),
        event.commit.encode(),
        raw,
        b',"withheld":true' if event.withheld else b"",
    )


def count_appends(request: Asked, engine: str, outcomes: Sequence[Any]) -> None:
    """Count what was appended, and is on disk, and what was refused."""
    mark_durable(request, engine, outcomes)
    node_of(request).metrics.count_outcomes(engine, outcomes)


def mark_durable(request: Asked, engine: str, outcomes: Sequence[Any]) -> None:
    """Record in the span of a request, if it has one, that its entries are on disk."""
    span = request.scope["state"].get("span")
    if span is not None:
        refused = sum(isinstance(each, RopewalkError) for each in outcomes)
        facts = {"ropewalk.engine": engine, "ropewalk.appended": len(outcomes) - refused}
        span.add_event("durable", {**facts, "ropewalk.refused": refused})
