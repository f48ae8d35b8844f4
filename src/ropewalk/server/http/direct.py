"""Appends from their connection to the queue and back, without the framework and without a task.

Both cost more than the append itself. A usual request is taken here (`DirectAppends.take`); any other goes to the route
functions, which answer the same: `prepare` and `rows_of` in `git_routes` are common to both.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson
from litestar import Response
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from ropewalk.errors import RopewalkError
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG, Layout
from ropewalk.server.append_queue import Outcome, spelled
from ropewalk.server.auth.rights import Identity
from ropewalk.server.http.git_routes import prepare, rows_of
from ropewalk.server.http.guard import SECURITY_HEADERS, SMALL_DIGITS, Guard
from ropewalk.server.http.problems import on_error
from ropewalk.server.http.replies import receipts
from ropewalk.server.idempotency import KeyedRequest
from ropewalk.server.node import ServerNode

if TYPE_CHECKING:
    from ropewalk.server.http.connections import HttpConnection

TEMPLATES = {SHIPLOG: "/api/v1/shiplog/{ns}/events", MESSAGES: "/api/v1/messages"}
NAMES = {SHIPLOG: "ns", MESSAGES: "topic"}
_PLAIN = rb"[A-Za-z0-9._~-]+"
_TARGET = re.compile(
    rb"/api/v1/(?:shiplog/(%s)/events|messages\?topic=(%s(?:/%s)*))" % (_PLAIN, _PLAIN, _PLAIN)
)
_UNUSUAL = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"origin"))
_FIXED = b"".join(b"%s: %s\r\n" % pair for pair in SECURITY_HEADERS)
_CREATED = STATUS_LINE[201] + b"content-type: application/json\r\ncache-control: no-store\r\n" + _FIXED


class DirectAppends:
    """Takes appends off connections."""

    def __init__(self, node: ServerNode, guard: Guard) -> None:
        self.node = node
        self.guard = guard

    def take(self, connection: HttpConnection) -> DirectAppend | None:
        """Return the request whose head has come if it is a usual append, None otherwise."""
        if connection.parser.get_method() != b"POST" or self.node.telemetry is not None:
            return None
        found = _TARGET.fullmatch(connection.url)
        if found is None or connection.flow.write_paused or connection.parser.get_http_version() != "1.1":
            return None
        sized = False
        for name, value in connection.headers:
            if name == b"content-length":
                sized = len(value) < SMALL_DIGITS and value.isdigit() and int(value) <= HIGH_WATER_LIMIT
            elif name in _UNUSUAL:
                return None
        if not sized:
            return None
        layout = SHIPLOG if found[1] is not None else MESSAGES
        return DirectAppend(self, connection, layout, (found[1] or found[2]).decode())


class DirectAppend:
    """One append. Its attributes without an underscore are those that the connection knows of a request."""

    def __init__(self, owner: DirectAppends, connection: HttpConnection, layout: Layout, topic: str) -> None:
        self._owner, self._connection, self._layout, self._topic = owner, connection, layout, topic
        self._start = time.perf_counter()
        self._scope: Any = connection.scope
        self._key: KeyedRequest | None = None
        self._many = False
        self.body = bytearray()
        self.more_body = True
        self.disconnected = self.response_started = self.response_complete = False
        self.keep_alive = connection.parser.should_keep_alive()
        self.message_event = self

    def set(self) -> None:
        """Do nothing: no task waits for the body."""

    def admit(self) -> None:
        """Refuse the request by its head, before its body comes."""
        scope, url = self._scope, self._connection.url
        path, _, query = url.partition(b"?")
        scope["method"], scope["path"], scope["query_string"] = "POST", path.decode(), query
        scope["path_template"] = TEMPLATES[self._layout]
        try:
            self._owner.guard.admit(scope)
        except RopewalkError as error:
            self._respond(self._owner.guard.refusal(scope, error))

    def run(self) -> None:
        """Append the body, which is whole; the answer is written when it is on disk."""
        if self.response_complete or self.disconnected:
            return
        try:
            identity: Identity = self._scope["state"]["identity"]
            found = reversed(self._connection.headers)  # the first of a name counts, as in the routes
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in found}
            made = prepare(identity, self._layout, self._topic, self._scope, headers, bytes(self.body))
            self._key, self._many = made.key, made.many
            self._owner.node.appends.put(
                self._layout, self._topic, made.drafts, self._answer, made.key, len(self.body)
            )
        except Exception as error:
            self._respond(on_error(None, spelled(self._layout, error)))

    def _answer(self, outcomes: list[Outcome] | BaseException) -> None:
        if isinstance(outcomes, Exception):
            return self._respond(on_error(None, spelled(self._layout, outcomes)))
        assert isinstance(outcomes, list)
        node, name = self._owner.node, {NAMES[self._layout]: self._topic}
        rows: Sequence[dict[str, Any]] = rows_of(node, self._layout, outcomes, self._key)
        if self._many or "status" in rows[0]:
            return self._respond(receipts(rows, self._many, name))
        return self._write(201, _CREATED, orjson.dumps(rows[0] | name))

    def _respond(self, answer: Response[Any]) -> None:
        status = answer.status_code or 500
        found = {"content-type": answer.media_type, **answer.headers}
        lines = "".join(f"{name.lower()}: {value}\r\n" for name, value in found.items())
        head = STATUS_LINE[status] + lines.encode("latin-1") + _FIXED
        self._write(status, head, answer.content)

    def _write(self, status: int, head: bytes, body: bytes) -> None:
        connection = self._connection
        self.response_started = self.response_complete = True
        if not self.disconnected:
            more = b"".join(b"%s: %s\r\n" % pair for pair in connection.server_state.default_headers)
            end = b"" if self.keep_alive else b"connection: close\r\n"
            size = b"content-length: %d\r\n\r\n" % len(body)
            connection.write_whole(b"".join((head, more, end, size, body)))
            if not self.keep_alive:
                connection.transport.close()
            connection.on_response_complete()
        self._owner.guard.count(self._scope, status, time.perf_counter() - self._start)
