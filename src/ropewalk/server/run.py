"""Run a node: listen, say when it is ready, drain on SIGTERM, end at once on a second one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import uvicorn
from cryptography import x509

from ropewalk.errors import Invalid, NotFound, RopewalkError, Usage
from ropewalk.net.admission import connection_budget
from ropewalk.net.log_rate_limit import LogRateLimit
from ropewalk.net.refusals import listening
from ropewalk.net.tls import file_mark
from ropewalk.server.http.app import API, make_app
from ropewalk.server.http.connections import HttpConnection, StreamSockets, http_protocol
from ropewalk.server.http.direct import DirectAppends
from ropewalk.server.http.guard import Gate
from ropewalk.server.ledger_transports import ledger_server
from ropewalk.server.node import ServerNode
from ropewalk.server.settings import Settings, TlsPaths
from ropewalk.stream.serve.server import STREAM_PATH

KEEP_ALIVE_S = 30
BACKLOG = 1_024  # connections that the kernel keeps until they are accepted
# asyncio accepts as many in one turn as its backlog says, before those beyond the limit are closed; few enough that
# the reserve of file descriptors holds them.
ACCEPTED_PER_TURN = 32
RENEWAL_TICKS = 20  # uvicorn ticks ten times a second
ENDED_AT_ONCE = 143  # as a shell reports SIGTERM
_journal = logging.getLogger("ropewalk.server")

Facts = dict[str, Any]


def check_exposure(settings: Settings) -> None:
    """Refuse to serve other machines without identities, or tokens without encryption being a choice."""
    if not settings.is_loopback and settings.auth is None:
        raise Usage(
            f"--host {settings.host} serves other machines and needs --auth FILE",
            advice="Make identities with `ropewalk auth add NAME --right LOG:ACTION`, or serve 127.0.0.1.",
        )


async def serve(node: ServerNode, ready: Callable[[Facts], None], notify: Callable[[str], None]) -> None:
    """Serve until a signal comes. `ready` gets the addresses, `notify` the states of systemd's protocol."""
    settings = node.settings
    check_exposure(settings)
    with contextlib.ExitStack() as stack:
        with listening(settings.host, settings.port):
            listener = stack.enter_context(bind(settings.host, settings.port))
        async with node, contextlib.AsyncExitStack() as closing:
            channels = ledger_server(node)
            if channels is not None:
                node.transports = await closing.enter_async_context(channels)
            _report_loop_errors()
            server = _Server(_config(node), node)
            stack.enter_context(_signals(server, notify))
            serving = await start(server, listener)
            if not serving.done():
                listener.listen(BACKLOG)
                urls = channels.urls if channels is not None else {}
                ready(addresses(settings, listener.getsockname()[1]) | urls)
                notify("READY=1")
            await serving
    notify("STATUS=stopped")


def _report_loop_errors() -> None:
    """Log what no coroutine handles, such as a failed accept, in one line each and not without limit."""
    say = LogRateLimit(_journal.error)

    def report(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        say(f"{context['message']}: {context.get('exception')!r}")

    asyncio.get_running_loop().set_exception_handler(report)


def addresses(settings: Settings, port: int) -> Facts:
    """Return the addresses of all parts."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    secure = "s" if settings.tls is not None else ""
    url = f"http{secure}://{authority}"
    return {
        "url": url,
        "api": url + API,
        "console": f"{url}/" if settings.console else None,
        "metrics": f"{url}/metrics",
        "stream": f"ws{secure}://{authority}{STREAM_PATH}",
        "grpc": None,
        "quic": None,
        "pid": os.getpid(),
    }


class QuietServer(uvicorn.Server):
    """The server of uvicorn, whose signals are ours. It uses certificates that were replaced without a restart."""

    def __init__(self, config: uvicorn.Config, tls: TlsPaths | None) -> None:
        super().__init__(config)
        self._tls, self._tls_mark = tls, _mark(tls)

    async def on_tick(self, counter: int) -> bool:
        if counter % RENEWAL_TICKS == 0 and (mark := _mark(self._tls)) != self._tls_mark:
            self._tls_mark = mark
            self._renew_certificate()
        return await super().on_tick(counter)

    def _renew_certificate(self) -> None:
        """Use the certificate that is in the files now for new connections, if it fits its key."""
        tls, context = self._tls, self.config.ssl
        assert tls is not None and context is not None
        try:
            tls_context(tls)  # loading a pair that does not fit would spoil the context in use
            context.load_cert_chain(tls.certificate, tls.key, password="")
        except (RopewalkError, OSError) as error:
            _journal.warning("the certificate was not renewed, and the old one stays in use: %s", error)
        else:
            _journal.info("renewed the certificate from %s", tls.certificate)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def start(server: uvicorn.Server, listener: socket.socket) -> asyncio.Task[None]:
    """Return the task that serves, once the server has started or failed."""
    serving = asyncio.create_task(server.serve([listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    return serving


class _Server(QuietServer):
    """The server of a node."""

    def __init__(self, config: uvicorn.Config, node: ServerNode) -> None:
        super().__init__(config, node.settings.tls)
        self._node = node

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Streams never end by themselves: close them first, then wait for the answers under way.
        await self._node.drain()
        await super().shutdown(sockets)


def _config(node: ServerNode) -> uvicorn.Config:
    gate = Gate(node)
    settings = node.settings
    budget = connection_budget(settings.connections_max)
    app = make_app(node, gate)
    return server_config(
        app,
        http_protocol(settings.request_seconds, budget, DirectAppends(node, app)),
        settings.tls,
        ws=StreamSockets(node, gate),
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
        backlog=ACCEPTED_PER_TURN,
    )


def server_config(
    app: Any, protocol: type[HttpConnection], tls: TlsPaths | None, **options: Any
) -> uvicorn.Config:
    """Return what our servers have in common, and further options of uvicorn."""
    config = uvicorn.Config(
        app,
        http=protocol,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # a client must not choose the address that it is limited by
        **options,
    )
    config.load()
    if tls is not None:
        config.ssl = tls_context(tls)
    return config


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except BaseException:
        listener.close()
        raise
    return listener


def _mark(tls: TlsPaths | None) -> list[object]:
    """Return what changes when the files of the certificate are replaced."""
    return [file_mark(path) for path in (tls.certificate, tls.key)] if tls is not None else []


def tls_context(paths: TlsPaths) -> ssl.SSLContext:
    """Return the TLS settings of a server with these files."""
    for path in filter(None, (paths.certificate, paths.key, paths.client_ca)):
        if not path.is_file():
            raise NotFound(f"no file {path}", name=str(path))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(paths.certificate, paths.key, password="")
        if paths.client_ca is not None:
            context.load_verify_locations(paths.client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL  # a client may show a token instead
        certificate = x509.load_pem_x509_certificate(paths.certificate.read_bytes())
    except (ssl.SSLError, ValueError) as error:
        raise Invalid(
            f"{paths.certificate}, {paths.key}: must be a PEM certificate with its unlocked key"
        ) from error
    until = certificate.not_valid_after_utc
    if until < datetime.now(UTC):
        _journal.warning("%s expired on %s: clients refuse it", paths.certificate, f"{until:%Y-%m-%d}")
    return context


@contextlib.contextmanager
def _signals(server: _Server, notify: Callable[[str], None]) -> Iterator[None]:
    """Let, within, the first SIGTERM or SIGINT drain and the second end the process."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if server.should_exit:
            os._exit(ENDED_AT_ONCE)
        server.should_exit = True
        notify("STOPPING=1")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def systemd_notifier(address: str | None) -> Callable[[str], None]:
    """Return what tells systemd the state of the service; nothing happens without `$NOTIFY_SOCKET`."""
    if not address:
        return lambda _state: None
    target = "\0" + address[1:] if address.startswith("@") else address

    def notify(state: str) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(state.encode(), target)

    return notify
