"""A witness that answers over HTTP (C2SP tlog-witness): `add-checkpoint`, and the newest checkpoint of each log."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, generate_latest

from ropewalk.errors import (
    Conflict,
    Invalid,
    NotFound,
    RateLimited,
    RopewalkError,
    SigInvalid,
    TooLarge,
    Unverified,
)
from ropewalk.kernel.digest import sha256
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.note.key import SignatureType, Signer
from ropewalk.kernel.note.ml_dsa import MlDsaSigningKey
from ropewalk.kernel.note.note import claimed_head, cosign_head
from ropewalk.ledger.transparency.witness import REQUEST_BYTES_MAX, WitnessRequest, parse_request
from ropewalk.ledger.transparency.witness_folder import Witness
from ropewalk.net.refusals import listening
from ropewalk.net.threads import in_thread
from ropewalk.server.auth.rate_limit import RateLimiter
from ropewalk.server.http.connections import http_protocol
from ropewalk.server.run import QuietServer, bind, server_config, start
from ropewalk.server.settings import TlsPaths

REQUEST_S: Final = 10.0  # until a request was sent
CONNECTIONS_MAX: Final = 256
COSIGNING_MAX: Final = 64  # requests that wait for the witness's lock; more are refused
SIZE_TYPE: Final = b"text/x.tlog.size"
_CHECKPOINT = re.compile(r"/([0-9a-f]{64})/checkpoint")
_journal = logging.getLogger("ropewalk.witness")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class WitnessAnswer:
    """An answer: status, body, and further headers."""

    status: int
    body: bytes
    media_type: bytes = b"text/plain; charset=utf-8"
    headers: tuple[tuple[bytes, bytes], ...] = ()


def count_requests(registry: CollectorRegistry) -> Counter:
    """Return the counter of requests."""
    return Counter("ropewalk_witness_requests", "Requests answered.", ("status",), registry=registry)


class WitnessApp:
    """The ASGI application of one witness. The head is durable before its cosignature is sent."""

    def __init__(
        self, witness: Witness, secret: SigningKey | MlDsaSigningKey, *, rate: float, now_s: Callable[[], int]
    ) -> None:
        self._witness, self._secret, self._now_s = witness, secret, now_s
        self._signer = Signer(witness.vkey.name, secret, SignatureType.of_witness(secret.alg))
        self._limiter = RateLimiter(rate, max(1.0, 2 * rate))
        self._waiting = 0
        self._registry = CollectorRegistry()
        self._requests = count_requests(self._registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        try:
            answer = await self._answer(scope, receive)
        except RopewalkError as error:
            answer = _refusal(error)
        except Exception:
            _journal.exception("a request failed")
            answer = WitnessAnswer(500, b"the witness failed\n")
        self._requests.labels(answer.status).inc()
        headers = [
            (b"content-type", answer.media_type),
            (b"content-length", b"%d" % len(answer.body)),
            *answer.headers,
        ]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, scope: Scope, receive: Receive) -> WitnessAnswer:
        method, path = scope["method"], scope["path"]
        if path == "/add-checkpoint" and method == "POST":
            address = scope["client"][0] if scope.get("client") else "?"
            wait_s = self._limiter.wait_s(address, time.monotonic())
            if wait_s:
                raise RateLimited("too many requests from this address", retry_after_s=wait_s)
            return await self._add(await _body(receive))
        if method not in ("GET", "HEAD"):
            return WitnessAnswer(405, b"POST /add-checkpoint, or GET\n")
        if found := _CHECKPOINT.fullmatch(path):
            return await in_thread(self._newest, found[1])
        if path == "/metrics":
            return WitnessAnswer(200, generate_latest(self._registry))
        if path == "/healthz":
            return WitnessAnswer(200, b"ok\n")
        return WitnessAnswer(404, b"POST /add-checkpoint\n")

    async def _add(self, raw: bytes) -> WitnessAnswer:
        request = parse_request(raw)
        if request.old is None:
            raise Invalid("request: the first line must be `old SIZE`")
        if self._waiting >= COSIGNING_MAX:
            raise RateLimited("the witness is busy", retry_after_s=1.0)
        self._waiting += 1
        try:
            return await in_thread(self._cosign, request)
        finally:
            self._waiting -= 1

    def _cosign(self, request: WitnessRequest) -> WitnessAnswer:
        try:
            done = self._witness.cosign(request, self._secret, self._now_s)
        except Conflict as error:
            return _size_answer(error.fields["size"])
        except SigInvalid:
            raise
        except (Unverified, Invalid) as error:
            # C2SP asks about the size first. Evidence of a fork was kept in either case.
            log = self._witness.log(claimed_head(request.note)[0].origin)
            if log is not None and request.old != log.head.size:
                return _size_answer(log.head.size)
            return WitnessAnswer(422, f"{error.detail}\n".encode())
        return WitnessAnswer(200, done.note.rstrip(b"\n").rpartition(b"\n")[2] + b"\n")

    def _newest(self, origin_hash: str) -> WitnessAnswer:
        for log in self._witness.logs():
            if sha256(log.origin.encode()).hex() == origin_hash and log.note is not None:
                # Ed25519 is deterministic: these are the bytes that were sent before.
                return WitnessAnswer(200, cosign_head(log.note, self._signer, log.time_s))
        raise NotFound("no checkpoint of that log was cosigned")


def _size_answer(size: int) -> WitnessAnswer:
    return WitnessAnswer(409, b"%d\n" % size, SIZE_TYPE)


def _refusal(error: RopewalkError) -> WitnessAnswer:
    """Return the status that C2SP names: 403 for signatures, 400 for what cannot be parsed, 404 for unknown logs."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    status = error.status
    if isinstance(error, SigInvalid):
        status = 403
    elif isinstance(error, Invalid) and not isinstance(error, TooLarge):
        status = 400
    elif isinstance(error, RateLimited):
        headers = ((b"retry-after", b"%d" % max(1, round(error.fields.get("retry_after_s", 1)))),)
    return WitnessAnswer(status, f"{error.detail}\n".encode(), headers=headers)


async def _body(receive: Receive) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Invalid("the request was broken off")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > REQUEST_BYTES_MAX:
            raise TooLarge(
                f"request of more than {REQUEST_BYTES_MAX} bytes", size=size, limit=REQUEST_BYTES_MAX
            )
        if not message.get("more_body", False):
            return b"".join(parts)


@contextlib.asynccontextmanager
async def serve_witness(
    app: WitnessApp, host: str, port: int, tls: tuple[Path, Path] | None = None
) -> AsyncIterator[str]:
    """Serve within the `async with`; yields the URL."""
    with listening(host, port):
        listener = bind(host, port)
    with listener:
        protocol, files = (
            http_protocol(REQUEST_S, CONNECTIONS_MAX),
            TlsPaths(*tls) if tls is not None else None,
        )
        config = server_config(app, protocol, files, ws="none", timeout_graceful_shutdown=5)
        server = QuietServer(config, files)
        serving = await start(server, listener)
        name = f"[{host}]" if ":" in host else host
        try:
            yield f"http{'s' if tls is not None else ''}://{name}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving
