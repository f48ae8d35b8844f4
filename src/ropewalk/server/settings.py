"""The settings of a server: options of the command line over the configuration file over these defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from ropewalk.errors import Invalid
from ropewalk.kernel import jcs
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.remote.negotiate import Attest

PORT: Final = 7480
BODY_BYTES_MAX: Final = 16 << 20
CONFIG_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TlsPaths:
    """Certificate and key of the server, and the authority of client certificates."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    crl: Path | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator can set. Members from `hosts` on may also be set in the `server` object of `--config`."""

    host: str = "127.0.0.1"
    port: int = PORT
    auth: Path | None = None
    tls: TlsPaths | None = None
    console: bool = True
    grpc: tuple[str, int] | None = None
    quic: tuple[str, int] | None = None
    peer_trust: Trust | None = None  # what the evidence of ledger peers must satisfy
    attest: Attest | None = None  # seals our answers to negotiations
    otel: str | None = None  # base URL of an OTLP/HTTP collector
    warehouse: Path | None = None  # of `pipeline ingest`
    hosts: tuple[str, ...] = ()  # names by which clients may call the server, in addition to its address
    origins: tuple[str, ...] = ()  # web pages that may use the API, in addition to our own
    body_bytes_max: int = BODY_BYTES_MAX
    requests_per_second: float = 2_000.0  # of one client
    burst: float = 4_000.0
    append_waiting_max: int = 8_192  # events
    read_threads: int = 8
    read_waiting_max: int = 512  # requests
    connections_max: int = 4_096
    drain_seconds: float = 10.0
    request_seconds: float = 30.0  # for a client to send a whole request
    webhooks_private: bool = False  # whether clients may add webhooks for loopback and private addresses

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can connect.

        >>> Settings().is_loopback, Settings(host="0.0.0.0").is_loopback
        (True, False)
        """
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


_NAMES: Final = [each.name for each in fields(Settings)]
_FROM_FILE: Final = {each.name: each.type for each in fields(Settings)[_NAMES.index("hosts") :]}


def parse_config(raw: bytes) -> dict[str, Any]:
    """Read a configuration file: an object with `server`, `watch` or both; unknown members are refused.

    >>> server_options(parse_config(b'{"version":1,"server":{"drain_seconds":5,"hosts":["log.example"]}}'))
    {'drain_seconds': 5, 'hosts': ('log.example',)}
    """
    document: Any = jcs.parse(raw, bytes_max=CONFIG_BYTES_MAX)
    if not isinstance(document, dict) or document.get("version") != 1:
        raise Invalid('a configuration file must be an object with "version": 1')
    return document


def server_options(document: dict[str, Any]) -> dict[str, Any]:
    """Return the options in the `server` member of a configuration file."""
    found = document.get("server", {})
    if not isinstance(found, dict):
        raise Invalid('"server" must be an object')
    options: dict[str, Any] = {}
    for name, value in found.items():
        kind = _FROM_FILE.get(name)
        if kind is None:
            raise Invalid(f'"server" has no setting {name!r:.60}; it has: {", ".join(_FROM_FILE)}')
        if kind == "tuple[str, ...]":
            if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                raise Invalid(f'"server.{name}" must be a list of strings')
            options[name] = tuple(value)
        elif kind == "bool":
            if not isinstance(value, bool):
                raise Invalid(f'"server.{name}" must be true or false')
            options[name] = value
        elif isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise Invalid(f'"server.{name}" must be a number above 0, got {value!r:.40}')
        else:
            options[name] = value
    return options
