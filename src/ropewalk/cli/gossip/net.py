"""`ropewalk gossip sync`, `serve` and `peers`: connect a log to its peers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from ropewalk.cli.common.command import command, emit, say, session
from ropewalk.cli.common.locations import here
from ropewalk.cli.common.options import (
    choice,
    decimal,
    flag,
    integer,
    option,
    path_option,
    repeated,
    required,
    together,
)
from ropewalk.cli.common.serving import connection_options, log_to_stderr, read_token, run_server
from ropewalk.cli.gossip.gossip import PROFILES, open_here, say_new_topic, topic_option
from ropewalk.errors import RopewalkError
from ropewalk.kernel.terminal_text import printable

if TYPE_CHECKING:
    from ropewalk.gossip.core.log import GossipLog
    from ropewalk.gossip.peer.server import GossipServer
    from ropewalk.net.websocket import Admit

IDLE_S = 30.0  # written out so that --help loads no engine; a test compares
PEERS_MAX = 64

idle_option = decimal(
    "--idle",
    "SECONDS",
    "Disconnect from a peer that makes no progress for this many seconds.",
    least=0.05,
    default=IDLE_S,
)


client_options: Callable[[Any], Any] = together(
    path_option(
        "--ca", "F", "PEM certificates to trust for wss:// peers. Default: the system's authorities."
    ),
    path_option("--client-cert", "F", "PEM certificate to show to wss:// peers that ask for one."),
    path_option("--client-key", "F", "PEM key of --client-cert."),
    option("--token-file", "F", "File with the token for peers that ask for one (`auth add`)."),
)


@command(
    "sync",
    "ropewalk gossip sync ws://127.0.0.1:8080 --topic com.example",
    "ropewalk gossip sync tcp://127.0.0.1:8081 --topic com.example --pull-only --json",
)
@click.argument("url")
@required("--topic", "TOPIC", "The log; made if it is new.")
@flag("--pull-only", "Only fetch; send nothing.")
@idle_option
@client_options
def sync(
    url: str,
    topic: str,
    pull_only: bool,
    idle: float,
    ca: Path | None,
    client_cert: Path | None,
    client_key: Path | None,
    token_file: str | None,
) -> None:
    """Exchange messages with the peer at URL until both logs are equal, then disconnect.

    ws:// and wss:// speak v0.13, tcp:// speaks v0.6. There is no deadline, and a sync that was cut off continues where
    it stopped. To stay connected, use `gossip serve --peer URL`.
    """
    from ropewalk.gossip.peer.client import profile_of, reach, sync_with
    from ropewalk.gossip.peer.tls import client_context
    from ropewalk.gossip.peer.topics import open_topic, topics

    known = topics(here().home)
    tls = client_context(ca, client_cert, client_key) if url.lower().startswith("wss:") else None
    token = read_token(token_file)
    new = _profile_if_new(topic, profile_of(url))
    if new:
        # A wrong address or name must not leave a topic behind.
        asyncio.run(reach(url, topic, idle_s=idle, tls=tls, token=token))
    with open_topic(here().home, topic, create=True, **new) as log:
        say_new_topic(topic, known)
        work = sync_with(log, url, pull_only=pull_only, idle_s=idle, tls=tls, token=token)
        report = asyncio.run(_shown(log, work))
    if not report.taken:
        say("the peer does not fetch on this connection: it does not have your messages yet")
    if report.refused:
        say(f"{report.refused} messages of the peer were refused by this log's rules")
    root = {"level": report.root.level, "hash": report.root.hash.hex()}
    emit(
        {"received": report.received, "sent": report.sent, "root": root, "refused": report.refused},
        f"ok  received={report.received} sent={report.sent} root={root['level']}/{root['hash']}",
    )


def _profile_if_new(topic: str, profile: str) -> dict[str, Any]:
    from ropewalk.gossip.peer.topics import topic_folder

    # An existing topic keeps its profile; sync then reports which address would fit.
    return {} if topic_folder(here().home, topic).is_dir() else {"profile": profile}


async def _shown(log: GossipLog, work: Any) -> Any:
    """Do the work; on a terminal, say now and then how far it is."""
    if not sys.stderr.isatty() or session().json:
        return await work
    from rich.console import Console

    start = len(log)
    with Console(stderr=True).status("syncing…") as status:
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([task], timeout=0.5))[0]:
                status.update(f"syncing… {len(log) - start} messages received")
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        return task.result()


@command(
    "serve",
    "ropewalk gossip serve --topic com.example --port 8080",
    "ropewalk gossip serve --topic com.example --port 8081 --peer ws://127.0.0.1:8080",
)
@required("--topic", "TOPIC", "The log; made if it is new.")
@option("--host", "HOST", "The address to listen on.", default="127.0.0.1")
@integer("--port", "P", "Port; 0 takes a free one.", most=65535, required=True)
@repeated("--peer upstreams", "URL", "Stay connected to this peer. May be repeated.")
@repeated("--announce", "URL", "Address of this peer to tell to connected peers. May be repeated.")
@repeated(
    "--discover",
    "PATTERN",
    "Connect to learned addresses that match, such as '*.example.org:7447' or '203.0.113.0/24:7447'; default: to none.",
)
@choice("--profile", PROFILES, "The wire profile of a new topic; default v0.13.")
@idle_option
@repeated("--origin origins", "URL", "Origin of web pages that may connect. May be repeated.")
@path_option(
    "--auth", "F", "Identities and rights: peers need read on gossip/TOPIC, and append to be read from."
)
@path_option("--tls-cert", "F", "PEM certificate; serve wss:// instead of ws://.")
@path_option("--tls-key", "F", "PEM key of --tls-cert.")
@path_option("--client-ca", "F", "PEM certificates; accept only peers with a certificate under one of them.")
@client_options
@connection_options(PEERS_MAX)
def serve(
    topic: str,
    host: str,
    port: int,
    upstreams: tuple[str, ...],
    announce: tuple[str, ...],
    discover: tuple[str, ...],
    profile: Any,
    idle: float,
    origins: tuple[str, ...],
    max_connections: int,
    max_per_address: int | None,
    token_file: str | None,
    **tls: Path | None,
) -> None:
    """Accept peers, stay connected to every --peer, and exchange what is appended on any side.

    Prints one JSON line when it listens. Messages that other processes append to the topic are pushed too. A lost peer
    is connected again, with growing pauses of up to a minute. A v0.13 topic is served over WebSockets, a v0.6 topic
    over TCP, where peers are polled every second.
    """
    from ropewalk.gossip.peer.client import profile_of
    from ropewalk.gossip.peer.server import GossipServer
    from ropewalk.gossip.peer.tls import client_context, server_context
    from ropewalk.gossip.peer.topics import open_log, open_topic, topics
    from ropewalk.net.admission import ConnectionLimits

    profiles = [profile_of(url) for url in upstreams]
    known = topics(here().home)
    if topic not in known and profile is None and profiles:
        profile = profiles[0]
    secure = bool(discover) or any(url.lower().startswith("wss:") for url in upstreams)
    make_server = partial(
        GossipServer,
        host=host,
        port=port,
        upstreams=upstreams,
        idle_s=idle,
        limits=ConnectionLimits(max_connections, address_max=max_per_address),
        origins=origins,
        admit=_admission(tls["auth"], topic, "read") if tls["auth"] is not None else None,
        may_append=_admission(tls["auth"], topic, "append") if tls["auth"] is not None else None,
        token=read_token(token_file),
        announce=announce,
        discover=discover,
        tls=server_context(tls["tls_cert"], tls["tls_key"], tls["client_ca"]),
        client_tls=client_context(tls["ca"], tls["client_cert"], tls["client_key"]) if secure else None,
    )

    async def run(log: GossipLog) -> None:
        await run_server(make_server(log), _facts)

    if topic not in known:  # what fails must not leave an empty topic behind, whose profile would be fixed
        with open_log(topic, profile=profile) as empty:
            make_server(empty)
    log_to_stderr("ropewalk.gossip.peers")
    with open_topic(here().home, topic, create=True, profile=profile) as log:
        say_new_topic(topic, known)
        asyncio.run(run(log))


def _admission(path: Path, topic: str, action: Literal["read", "append"]) -> Admit:
    """Return who may read or append, by the auth file of `ropewalk serve`; it is read again when it changes."""
    from ropewalk.server.auth.auth_file import Authenticator, credentials_of

    known = Authenticator(path)

    def admit(shown: Sequence[str], certificate: bytes | None) -> str | None:
        try:
            values = [each.encode("latin-1", "replace") for each in shown]
            identity = known.identify(credentials_of(values, certificate))
            identity.require(action, f"gossip/{topic}")
        except RopewalkError as error:
            return error.detail
        return None

    return admit


def _facts(server: GossipServer) -> dict[str, Any]:
    return {
        "url": server.url,
        "host": server.host,
        "port": server.port,
        "topic": server.log.topic,
        "profile": server.log.profile.name,
        "peers": [connection.url for connection in server.connections],
    }


@command("peers", "ropewalk gossip peers --topic com.example --json")
@topic_option
def peers(topic: str | None) -> None:
    """List the peers of every running `gossip serve` and program that has the topic open.

    STATE is connected, connecting, waiting (for the next attempt), or learned (announced by a peer, not connected to).
    """
    from ropewalk.gossip.peer.peer_list import read_peers
    from ropewalk.gossip.peer.topics import topic_folder

    with open_here(topic) as log:
        found = log.topic
    rows = read_peers(topic_folder(here().home, found))
    emit({"peers": rows}, map(_peer_line, rows), "no peers")


def _peer_line(row: dict[str, Any]) -> str:
    line = f"{row['url']}  {row['state']}  since={row['since']} received={row['received']} sent={row['sent']}"
    return printable(f"{line}  {row['error']}" if row.get("error") else line)
