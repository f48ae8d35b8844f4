"""Appends past the framework: its request and response objects cost as much as the append itself.

The route functions and the OpenAPI document stay those of the framework; only the way to `append_events` and
`publish_message` is shorter.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qsl

from litestar import Response

from ropewalk.errors import TooLarge
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG
from ropewalk.server.append_queue import spelled
from ropewalk.server.http.git_routes import append_to
from ropewalk.server.http.problems import on_error
from ropewalk.server.http.replies import Asked
from ropewalk.server.node import ServerNode

EVENTS_TEMPLATE, MESSAGES_PATH = "/api/v1/shiplog/{ns}/events", "/api/v1/messages"
_EVENTS = re.compile(r"/api/v1/shiplog/([^/]+)/events")


class DirectRequest:
    """As much of a request as an append needs."""

    def __init__(
        self, scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Any]], node: ServerNode
    ) -> None:
        self.scope = scope
        self.method = scope["method"]
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.app = SimpleNamespace(state=SimpleNamespace(node=node))
        self._receive, self._limit = receive, node.settings.body_bytes_max

    async def body(self) -> bytes:
        """Return the body; one over the limit is refused before it is whole."""
        parts, size, more = [], 0, True
        while more:
            message = await self._receive()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
            if size > self._limit:
                raise TooLarge(f"the body has more than {self._limit} bytes", limit=self._limit)
        return parts[0] if len(parts) == 1 else b"".join(parts)


async def append_directly(
    scope: MutableMapping[str, Any],
    receive: Callable[[], Awaitable[Any]],
    send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    node: ServerNode,
) -> bool:
    """Serve the request if it is an append of one kind or the other; False if it is none."""
    if scope["method"] != "POST":
        return False
    found = _EVENTS.fullmatch(scope["path"])
    if found is not None:
        layout, topic, name, scope["path_template"] = SHIPLOG, found[1], "ns", EVENTS_TEMPLATE
    elif scope["path"] == MESSAGES_PATH:
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        if len(query) != 1 or query[0][0] != "topic":
            return False
        layout, topic, name, scope["path_template"] = MESSAGES, query[0][1], "topic", MESSAGES_PATH
    else:
        return False
    request = cast(Asked, DirectRequest(scope, receive, node))
    answer: Response[Any]
    try:
        answer = await append_to(request, layout, topic, {name: topic})
    except Exception as error:
        answer = on_error(request, spelled(layout, error))
    headers = {
        "content-type": answer.media_type,
        "content-length": str(len(answer.content)),
        **answer.headers,
    }
    encoded = [(key.lower().encode(), str(value).encode()) for key, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status_code, "headers": encoded})
    await send({"type": "http.response.body", "body": answer.content})
    return True
