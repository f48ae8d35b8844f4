"""The application of `ropewalk serve` in this process, called without sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from ropewalk.disk.repository_paths import make_repository
from ropewalk.kernel.keys import SigningKey
from ropewalk.server.http.app import API, make_app
from ropewalk.server.http.guard import Gate
from ropewalk.server.node import ServerNode
from ropewalk.server.settings import Settings
from tests.serving import Answer

PORT = 7480


class Client:
    """Calls the application of one node."""

    def __init__(self, node: ServerNode) -> None:
        self.node = node
        self._app = make_app(node, Gate(node))

    async def __call__(
        self,
        method: str,
        path: str,
        document: Any = None,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        leaves: bool = False,
    ) -> Answer:
        """Send one request; a client that `leaves` has closed its connection once the request is sent."""
        raw = body if document is None else json.dumps(document).encode()
        shown = {"host": f"127.0.0.1:{PORT}", "content-type": "application/json", **(headers or {})}
        path, _, query = (path if path.startswith("//") else API + path).partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path.replace("//", "/", 1),
            "raw_path": path.replace("//", "/", 1).encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in shown.items()],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", PORT),
            "state": {},
        }
        sent: list[Any] = []
        pieces = iter([raw])
        done = asyncio.Event()

        async def receive() -> dict[str, Any]:
            piece = next(pieces, None)
            if piece is not None:
                return {"type": "http.request", "body": piece, "more_body": False}
            if not leaves:
                await done.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                done.set()

        await self._app(scope, receive, send)
        names = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], names, b"".join(each.get("body", b"") for each in sent[1:]))


@contextlib.asynccontextmanager
async def served(folder: Path, **settings: Any) -> AsyncIterator[Client]:
    """Open a new repository in the folder for serving."""
    place, _ = make_repository(folder / "log.git")
    key = SigningKey.generate("ed25519", os.urandom(32))
    node = ServerNode(
        place, Settings(**settings), channel_keys=lambda _channel: [key], signing_key=lambda _name: key
    )
    async with node:
        yield Client(node)
