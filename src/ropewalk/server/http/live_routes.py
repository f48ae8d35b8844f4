"""The stream as Server-Sent Events, probes, metrics and the OpenAPI document."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

from litestar import Response, Router, get
from litestar.params import FromPath, QueryParameter
from litestar.response import Stream

from ropewalk.bridge.progress import list_progress
from ropewalk.errors import Invalid
from ropewalk.kernel.schema import shipped
from ropewalk.server.http import models
from ropewalk.server.http.asyncapi import asyncapi_document
from ropewalk.server.http.openapi import docs_page, openapi_document
from ropewalk.server.http.problems import HttpRefusal
from ropewalk.server.http.replies import Asked, identity_of, node_of, reply
from ropewalk.server.metrics import CONTENT_TYPE
from ropewalk.server.stream_host import NAMESPACES, EventStream
from ropewalk.stream.core.frames import Sub
from ropewalk.stream.core.patterns import parse_pattern

SEQ_CHARS_MAX = 16


@get("/stream", status_code=426, media_type="application/problem+json")
async def upgrade_stream() -> Response[Any]:
    """Open the live stream as a WebSocket (S2). Without an upgrade the answer is 426."""
    raise HttpRefusal(426, "the stream is a WebSocket", {"Upgrade": "websocket", "Connection": "Upgrade"})


@get("/events", media_type="text/event-stream")
async def stream_events(
    request: Asked,
    ns: Annotated[list[str] | None, QueryParameter(description="A namespace or pattern; may repeat.")] = None,
    topic: Annotated[list[str] | None, QueryParameter(description="A topic or pattern; may repeat.")] = None,
    since: Annotated[str | None, QueryParameter(description="Only frames after this `seq`.")] = None,
) -> Stream:
    """Follow namespaces and topics as Server-Sent Events: the frames of the stream, `id` is their `seq`.

    `Last-Event-ID` continues behind a frame, as browsers send it by themselves.
    """
    node = node_of(request)
    names = [*(NAMESPACES + each for each in ns or ()), *(topic or ())] or ["**"]
    for each in names:
        parse_pattern("topic", each)
    text = request.headers.get("last-event-id", since)
    subscription = Sub(topics=tuple(dict.fromkeys(names)), since_seq=_seq(text))
    if len(subscription.topics) > node.stream._limits.topics_max:
        raise Invalid(f"at most {node.stream._limits.topics_max} patterns, got {len(subscription.topics)}")
    client = request.scope.get("client")
    events = EventStream(f"{client[0]}:{client[1]}" if client else "?", subscription)
    identity, shown = identity_of(request), request.scope["state"]["credentials"]
    serving = partial(node.stream.serve_client, events, identity, shown)
    return Stream(
        partial(_chunks, events, serving),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def _seq(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > SEQ_CHARS_MAX:
        raise Invalid(f"since and Last-Event-ID must be the seq of a frame, got {text[:40]!r}")
    return int(text)


async def _chunks(events: EventStream, serve: Any) -> AsyncIterator[bytes]:
    serving = asyncio.create_task(serve())
    serving.add_done_callback(lambda _: events.leave())
    try:
        while (chunk := await events.chunks.get()) is not None:
            yield chunk
    finally:
        events.leave()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


@get("/metrics", media_type="text/plain")
async def show_metrics(request: Asked) -> Response[str]:
    """Return the figures for Prometheus. Needs the right read on some log."""
    node = node_of(request)
    if not identity_of(request).may_somewhere("read"):
        identity_of(request).require("read", "metrics")
    node.metrics.take_bridges(await node.read(lambda: list(list_progress(node.log))))
    body: Any = node.metrics.render(node)
    return Response(body, media_type=CONTENT_TYPE, headers={"Cache-Control": "no-store"})


@get("/healthz")
async def show_health() -> Response[models.Status]:
    """Say that the server runs."""
    return reply({"status": "ok"})


@get("/readyz")
async def show_ready(request: Asked) -> Response[models.Status]:
    """Say whether the server can do its work; 503 with the reason if not."""
    node = node_of(request)
    fault = node.fault
    figures = {"seq": node.stream.window.seq, "connections": len(node.stream.connections)}
    if fault is None:
        return reply({"status": "ok", **figures})
    return reply({"status": "unavailable", "reason": fault, **figures}, 503)


@get("/openapi.json", include_in_schema=False)
async def show_openapi(request: Asked) -> Response[Any]:
    """Return the OpenAPI document."""
    return reply(openapi_document(request.app))


@get("/asyncapi.json", include_in_schema=False)
async def show_asyncapi() -> Response[Any]:
    """Return the AsyncAPI document of streams and bridges."""
    return reply(asyncapi_document())


@get("/docs", include_in_schema=False, media_type="text/html")
async def show_docs(request: Asked) -> Response[Any]:
    """Return the OpenAPI document as a page that needs no network."""
    body = docs_page(openapi_document(request.app)).encode()
    policy = "default-src 'self'; style-src 'self' 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return Response(body, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": policy})


@get("/schemas/{area:str}/{name:str}")
async def show_schema(area: FromPath[str], name: FromPath[str]) -> Response[dict[str, Any]]:
    """Return a JSON Schema that ships with ropewalk, such as shiplog/event_envelope."""
    return reply(shipped.text(f"{area}/{name}"))


API_ROUTES = Router("/", route_handlers=[upgrade_stream, stream_events, show_schema], tags=["live"])
OUTER_ROUTES = [
    Router("/", route_handlers=[show_metrics, show_health, show_ready], tags=["operation"]),
    show_openapi,
    show_asyncapi,
    show_docs,
]
