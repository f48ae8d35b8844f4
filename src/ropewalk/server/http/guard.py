"""What every request passes before a route sees it: host, origin, identity, rate, size, time."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from ipaddress import ip_address
from typing import Any

from litestar import Response
from prometheus_client import Counter, Histogram

from ropewalk.errors import Denied, RateLimited, RopewalkError, TooLarge, Unavailable
from ropewalk.net.log_rate_limit import LogRateLimit
from ropewalk.server.auth.auth_file import Credentials, credentials_of
from ropewalk.server.auth.rights import Identity
from ropewalk.server.http.problems import MEDIA_TYPE, body_of, headers_of
from ropewalk.server.node import ServerNode

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]
# Probes and their like have no identity, and are not counted against one.
OPEN_PATHS = {
    "/healthz",
    "/readyz",
}
KNOWN_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
SMALL_DIGITS = 6  # a Content-Length of fewer digits is a small body
BODIES_BYTES_MAX = 256 << 20  # of large bodies under way, all clients together
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
]
# What pages of a listed origin may send and see (CORS); those of any other origin are refused.
CORS_HEADERS = [
    (b"access-control-allow-methods", b"GET, POST, PUT, DELETE"),
    (b"access-control-allow-headers", b"Authorization, Content-Type, Idempotency-Key, If-None-Match"),
    (b"access-control-expose-headers", b"ETag, Retry-After"),
    (b"access-control-max-age", b"600"),
    (b"vary", b"Origin"),
]
_journal = logging.getLogger("ropewalk.server.access")
_journal.addHandler(logging.NullHandler())


class Gate:
    """Decides whether a request may come in, and who sends it. The same for HTTP and for WebSockets."""

    def __init__(self, node: ServerNode) -> None:
        self._node = node
        self._names = {each.lower() for each in node.settings.hosts}
        self._origins = set(node.settings.origins)

    def admit(
        self,
        headers: Headers,
        client: str,
        server: str | None,
        scheme: str,
        certificate: bytes | None,
        *,
        is_page: bool = False,
    ) -> tuple[Identity, Credentials]:
        """Return the sender's identity and what proves it; raise what refuses the request.

        `is_page` is whether the path is one that a person may open by a link.
        """
        shown: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            shown.setdefault(name.lower(), []).append(value)
        host = self._check_host(shown.get(b"host", []), server)
        self._check_origin(shown.get(b"origin", []), f"{scheme}://{host}")
        if not (is_page and shown.get(b"sec-fetch-mode") == [b"navigate"]):
            self._check_site(shown)
        credentials = credentials_of(shown.get(b"authorization", []), certificate)
        identity = self._node.identify(credentials)
        wait_s = self._node.wait_s(identity, client)
        if wait_s:
            raise RateLimited(
                f"more than {self._node.settings.requests_per_second:g} requests a second",
                retry_after_s=wait_s,
            )
        return identity, credentials

    def listed_origin(self, headers: Headers) -> bytes | None:
        """Return the origin of a request if the operator listed it; None for any other and for none."""
        found = [value for name, value in headers if name.lower() == b"origin"] if self._origins else []
        return found[0] if len(found) == 1 and found[0].decode("latin-1") in self._origins else None

    def admit_preflight(self, headers: Headers, server: str | None) -> None:
        """Raise what refuses the question of a browser whether it may send a request; it shows no identity."""
        self._check_host([value for name, value in headers if name.lower() == b"host"], server)

    def _check_host(self, hosts: list[bytes], server: str | None) -> str:
        if len(hosts) != 1:
            raise Denied("a request must have exactly one Host header")
        host = hosts[0].decode("latin-1").lower()
        name = _name_of(host)
        here = {*LOOPBACK} if server is None or server in LOOPBACK else {server}
        if name not in here | self._names and not (server is not None and _same_address(name, server)):
            raise Denied(
                f"Host {name[:80]!r} is not a name of this server",
                advice='Call it by its address, or list the name in "hosts" of --config.',
            )
        return host

    def _check_origin(self, origins: list[bytes], own: str) -> None:
        for origin in origins:
            text = origin.decode("latin-1")
            if text != own and text not in self._origins:
                raise Denied(
                    f"web pages of {text[:80]!r} may not use this server",
                    advice='Start the server with --origin ORIGIN, or list it in "origins" of --config.',
                )

    def _check_site(self, shown: dict[bytes, list[bytes]]) -> None:
        """Refuse what a page of another origin makes a browser send without an Origin header, such as an image."""
        sites = shown.get(b"sec-fetch-site", [])
        if sites and b"origin" not in shown and not {*sites} <= {b"same-origin", b"none"}:
            raise Denied(
                "web pages of another origin may not use this server without an Origin header",
                advice="Start the server with --origin and the page's origin, and call it with CORS.",
            )


def _is_preflight(scope: Scope) -> bool:
    asks = any(name == b"access-control-request-method" for name, _ in scope["headers"])
    return bool(asks and scope["method"] == "OPTIONS")


def _name_of(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def _same_address(name: str, server: str) -> bool:
    try:
        return ip_address(name) == ip_address(server.partition("%")[0])
    except ValueError:
        return False


class Guard:
    """The ASGI application around the routes."""

    def __init__(
        self, app: Callable[[Scope, Receive, Send], Awaitable[None]], node: ServerNode, gate: Gate
    ) -> None:
        self._app = app
        self._node = node
        self._gate = gate
        self._figures: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._bodies = 0  # bytes of large bodies under way
        self._refusals = LogRateLimit(_journal.warning)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start = time.perf_counter()
        answered = 500
        origin = self._gate.listed_origin(scope["headers"])
        cors = [] if origin is None else [(b"access-control-allow-origin", origin), *CORS_HEADERS]

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = message["status"]
                message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS, *cors]
            await send(message)

        telemetry = self._node.telemetry
        span = None
        if telemetry is not None and scope["method"] == "POST":  # every POST is an append
            span = scope.setdefault("state", {})["span"] = telemetry.begin(scope)
        try:
            if cors and _is_preflight(scope):
                server = scope.get("server")
                self._gate.admit_preflight(scope["headers"], server[0] if server else None)
                await watched({"type": "http.response.start", "status": 204, "headers": []})
                return await watched({"type": "http.response.body", "body": b""})
            large = self.admit(scope)
            await self._app(scope, self._counted(scope, receive) if large else receive, watched)
        except RopewalkError as error:
            found = self.refusal(scope, error)
            fields = {"content-type": MEDIA_TYPE, "content-length": str(len(found.content)), **found.headers}
            encoded = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
            await watched({"type": "http.response.start", "status": found.status_code, "headers": encoded})
            await watched({"type": "http.response.body", "body": found.content})
        finally:
            self._bodies -= scope.pop("ropewalk.body", 0)
            if span is not None and telemetry is not None:
                telemetry.end(span, scope, answered)
        self.count(scope, answered, time.perf_counter() - start)
        return None

    def admit(self, scope: Scope) -> bool:
        """Refuse the request, or return whether its body may be large, and counts against a common limit."""
        if scope["path"] in OPEN_PATHS:
            return False
        if self._node.draining:
            raise Unavailable("the server is stopping")
        client, server = scope.get("client"), scope.get("server")
        state = scope.setdefault("state", {})
        state["identity"], state["credentials"] = self._gate.admit(
            scope["headers"],
            client[0] if client else "?",
            server[0] if server else None,
            scope["scheme"],
            state.get("certificate"),
            is_page=not scope["path"].startswith("/api/"),
        )
        limit = self._node.settings.body_bytes_max
        large = False
        for name, value in scope["headers"]:
            if name == b"transfer-encoding" or (name == b"content-length" and len(value) >= SMALL_DIGITS):
                large = True
            if name == b"content-length" and (not value.isdigit() or int(value) > limit):
                raise TooLarge(
                    f"the body has {value.decode('latin-1')[:20]} bytes; at most {limit} are taken",
                    limit=limit,
                )
        return large

    def refusal(self, scope: Scope, error: RopewalkError) -> Response[bytes]:
        """Count and report a request that was not admitted, and return the answer to it."""
        self._node.metrics.refused.labels(error.code).inc()
        self._refusals(f"refused {scope['method']}: {error.code}: {error.detail}")
        return Response(
            body_of(error.to_problem()),
            status_code=error.status,
            media_type=MEDIA_TYPE,
            headers=headers_of(error),
        )

    def _counted(self, scope: Scope, receive: Receive) -> Receive:
        async def counted() -> MutableMapping[str, Any]:
            message = await receive()
            size = len(message.get("body", b""))
            scope["ropewalk.body"] = scope.get("ropewalk.body", 0) + size
            self._bodies += size
            if self._bodies > BODIES_BYTES_MAX:
                raise Unavailable(
                    f"requests under way have more than {BODIES_BYTES_MAX} bytes",
                    advice="Nothing was written; send it again after Retry-After.",
                )
            return message

        return counted

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        """Count an answered request, and log it where the operator asked for that."""
        route = scope.get("path_template") or "unmatched"
        method = scope["method"] if scope["method"] in KNOWN_METHODS else "other"
        key = method, route, status
        figures = self._figures.get(key)
        if figures is None:  # looking them up by labels takes a tenth of a request
            metrics = self._node.metrics
            figures = metrics.requests.labels(method, route, str(status)), metrics.latency.labels(route)
            self._figures[key] = figures
        figures[0].inc()
        figures[1].observe(seconds)
        if _journal.isEnabledFor(logging.INFO):
            identity = scope.get("state", {}).get("identity")
            facts = {
                "method": scope["method"],
                "route": route,
                "status": status,
                "ms": round(seconds * 1_000, 1),
                "client": identity.name if identity is not None else None,
            }
            _journal.info(json.dumps(facts))
