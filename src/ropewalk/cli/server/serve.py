"""`ropewalk serve`: one process for a team."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from ropewalk.cli.common.command import command, emit_line, parse_input, say, session
from ropewalk.cli.common.locations import here, login, named_writer, sealing_key, signing_key
from ropewalk.cli.common.options import choice, flag, integer, option, path_option, repeated
from ropewalk.cli.common.tls_options import address_option
from ropewalk.kernel.terminal_text import printable
from ropewalk.server.auth.rate_limit import RateLimiter

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropewalk.gitlog.repository.repository import GitRepository
    from ropewalk.kernel.keys import SealingKey, SigningKey
    from ropewalk.server.settings import Settings
    from ropewalk.server.watch.config import WatchConfig

PORT = 7480  # written out so that --help loads no server; a test compares
LINES_PER_S = 500  # log lines; errors are always written


def need_server() -> None:
    """Raise with the install line unless the packages of the server are there."""
    from ropewalk.net.refusals import need_packages

    need_packages("server", "litestar", "uvicorn", "httptools", "prometheus_client")


@command(
    "serve",
    "ropewalk serve",
    "ropewalk serve --port 0 --json",
    "ropewalk serve --host 0.0.0.0 --auth auth.json --tls-cert cert.pem --tls-key key.pem",
)
@option("--host", "HOST", "Address to listen on.", default="127.0.0.1")
@integer("--port", "P", "Port; 0 takes a free one.", most=65535, default=PORT)
@option("--config", "FILE", "Settings of the server and of its watches, as JSON.")
@path_option("--auth", "FILE", "Identities and rights; required unless HOST is loopback.")
@path_option("--tls-cert", "F", "Certificate of the server (PEM).")
@path_option("--tls-key", "F", "Key of the certificate (PEM).")
@path_option("--client-ca", "F", "Authority that signs client certificates (PEM).")
@option(
    "--otel",
    "URL",
    "Send traces and metrics to this OTLP/HTTP collector, as http://127.0.0.1:4318.",
    envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
)
@path_option("--crl", "F", "Revocation list of that authority (PEM); read again when it changes.")
@option("--grpc", "HOST:PORT", "Serve channels over gRPC, too; needs the three files.")
@repeated(
    "--origin origins", "URL", "Origin of web pages that may use the API, as https://app.example; repeatable."
)
@option("--quic", "HOST:PORT", "Serve channels over QUIC (UDP), too; needs the three files.")
@option(
    "--peer-trust",
    "F",
    "Trust file that the evidence of gRPC and QUIC peers must satisfy; without, none is asked for.",
)
@option(
    "--attest-command",
    "CMD",
    "Command that gets report data in hex on stdin and prints evidence of this server.",
)
@path_option("--warehouse", "DIR", "Show the tables of `pipeline ingest` in DIR, and answer SQL over them.")
@flag("--no-console", "Serve no web page.")
@choice("--log-format", ["text", "json"], "Form of the log lines on stderr.", default="text")
def serve(log_format: str, config: str | None, **options: Any) -> None:
    """Serve the repository over HTTP: API, live stream, metrics and a page.

    Prints the addresses on a terminal, else one JSON line when it is ready. SIGTERM answers what was taken and ends.
    """
    need_server()
    from ropewalk.server.node import ServerNode
    from ropewalk.server.run import serve as run
    from ropewalk.server.run import systemd_notifier

    _log_lines(log_format)
    context = click.get_current_context()

    def named(name: str) -> SigningKey:
        with context.scope(cleanup=False):  # called in threads, which have no context
            return signing_key(name)

    def sealing(name: str) -> SealingKey:
        with context.scope(cleanup=False):
            return sealing_key(name)

    from ropewalk.cli.ledger.remote.remote import keys_from_here

    def prepare(log: GitRepository) -> None:
        log.store.identify(*named_writer(), fallback=login())
        log.privacy.keys = sealing

    place = here()
    node = ServerNode(
        place,
        settings_from(config, options),
        channel_keys=keys_from_here(),
        signing_key=named,
        prepare=prepare,
        watch=watch_from(config),
    )
    asyncio.run(run(node, _say_ready(), systemd_notifier(os.environ.get("NOTIFY_SOCKET"))))


def watch_from(config: str | None) -> WatchConfig | None:
    """Return what the `watch` member of the configuration file asks for; None without one."""
    from ropewalk.server.settings import parse_config
    from ropewalk.server.watch.config import parse_watch

    found = parse_input(config, parse_config).get("watch") if config is not None else None
    return parse_watch(found) if isinstance(found, dict) else None


def settings_from(config: str | None, options: dict[str, Any]) -> Settings:
    """Return the settings: options over the configuration file."""
    from ropewalk.cli.ledger.remote.remote import attest_by
    from ropewalk.ledger.proof.trust import parse_trust
    from ropewalk.server.settings import Settings, TlsPaths, parse_config, server_options

    found = server_options(parse_input(config, parse_config)) if config is not None else {}
    if origins := options["origins"]:
        found["origins"] = (*found.get("origins", ()), *map(_origin, origins))
    if (options["tls_cert"] is None) != (options["tls_key"] is None):
        raise click.UsageError("--tls-cert and --tls-key go together")
    if options["client_ca"] is not None and options["tls_cert"] is None:
        raise click.UsageError("--client-ca needs --tls-cert and --tls-key")
    if options["crl"] is not None and options["client_ca"] is None:
        raise click.UsageError("--crl needs --client-ca")
    tls = None
    if options["tls_cert"] is not None:
        tls = TlsPaths(*(options[name] for name in ("tls_cert", "tls_key", "client_ca", "crl")))
    return Settings(
        host=options["host"],
        port=options["port"],
        auth=options["auth"],
        tls=tls,
        console=not options["no_console"],
        grpc=address_option(options["grpc"], "--grpc"),
        quic=address_option(options["quic"], "--quic"),
        peer_trust=None if (trust := options["peer_trust"]) is None else parse_input(trust, parse_trust),
        attest=attest_by(options["attest_command"]),
        otel=options["otel"],
        warehouse=options["warehouse"],
        **found,
    )


def _origin(text: str) -> str:
    """Return an origin as browsers write it: scheme and host, without a path."""
    found = urlsplit(text.rstrip("/"))
    if found.scheme not in ("http", "https") or not found.netloc or found.path or found.query or "@" in text:
        raise click.UsageError(
            f"--origin must be a scheme and a host, as https://app.example; got {text[:80]}"
        )
    return f"{found.scheme}://{found.netloc.lower()}"


def _say_ready() -> Callable[[dict[str, Any]], None]:
    as_json = session().json or not sys.stdout.isatty()

    def ready(facts: dict[str, Any]) -> None:
        if as_json:
            emit_line(facts)
            return
        if facts["console"] is not None:
            click.echo(f"console  {facts['console']}")
        click.echo(f"api      {facts['api']}\ndocs     {facts['url']}/docs")
        sys.stdout.flush()

    return ready


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if record.name == "ropewalk.server.access" and text.startswith("{"):
            line |= json.loads(text)
        else:
            line["message"] = text
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))


class _Stderr(logging.Handler):
    """Write lines to stderr, at most so many a second; then say how many were left out."""

    left_out = 0

    def __init__(self) -> None:
        super().__init__()
        self._rate = RateLimiter(LINES_PER_S, LINES_PER_S)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR and self._rate.wait_s("lines", time.monotonic()):
            self.left_out += 1
            return
        if self.left_out:
            missed, self.left_out = self.left_out, 0
            text = f"{missed} lines were left out: more than {LINES_PER_S} a second"
            say(self.format(logging.LogRecord("ropewalk.log", logging.WARNING, "", 0, text, None, None)))
        say(self.format(record))


def _log_lines(form: str) -> None:
    """Write log lines to stderr; requests are logged in the JSON form only."""
    handler = _Stderr()
    handler.setFormatter(_JsonLines() if form == "json" else _TextLines())
    journal = logging.getLogger("ropewalk")
    journal.addHandler(handler)
    logging.getLogger("opentelemetry").addHandler(handler)
    journal.setLevel(logging.INFO)
    if form == "text":
        logging.getLogger("ropewalk.server.access").setLevel(logging.WARNING)
        logging.getLogger("ropewalk.stream").setLevel(logging.WARNING)
