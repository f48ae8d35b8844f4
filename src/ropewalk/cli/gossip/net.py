"""`ropewalk gossip sync` and `serve`: a log meets its peers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import Command, emit, say, session
from ropewalk.cli.common.locations import here
from ropewalk.cli.common.serving import connection_options, run_server, say_journal
from ropewalk.cli.gossip.gossip import PROFILES, say_new_topic

if TYPE_CHECKING:
    from ropewalk.gossip.core.log import Log
    from ropewalk.net.admission import ConnectionLimits

IDLE_S = 30.0  # written out so that --help loads no engine; a test compares
PEERS_MAX = 64

idle_option = click.option(
    "--idle",
    type=click.FloatRange(min=0.05),
    default=IDLE_S,
    show_default=True,
    metavar="SECONDS",
    help="How long the peer may make no progress.",
)


@click.command(
    "sync",
    cls=Command,
    epilog="Examples:\n  ropewalk gossip sync ws://127.0.0.1:8080 --topic com.example\n"
    "  ropewalk gossip sync tcp://127.0.0.1:8081 --topic com.example --pull-only --json\n",
)
@click.argument("url")
@click.option("--topic", required=True, metavar="TOPIC", help="The log; made if it is new.")
@click.option("--pull-only", is_flag=True, help="Only fetch; the peer gets nothing from us.")
@idle_option
def sync(url: str, topic: str, pull_only: bool, idle: float) -> None:
    """Make this log and that of the peer at URL hold the same messages.

    ws:// speaks v0.13, tcp:// speaks v0.6. There is no deadline: a large log may take its time, and a sync that was
    cut off goes on where it stopped.
    """
    from ropewalk.gossip.peer.client import profile_of, reach, sync_with
    from ropewalk.gossip.peer.topics import open_topic, topics

    known = topics(here().home)

    new = _profile_if_new(topic, profile_of(url))
    if new:
        asyncio.run(reach(url, topic, idle_s=idle))  # a wrong address or name must not leave a topic behind
    with open_topic(here().home, topic, create=True, **new) as log:
        say_new_topic(topic, known)
        report = asyncio.run(_shown(log, sync_with(log, url, pull_only=pull_only, idle_s=idle)))
    if not report.taken:
        say("the peer asks for nothing on this connection: it does not have your messages yet")
    if report.refused:
        say(f"{report.refused} messages of the peer were kept out by this log's own rules")
    root = {"level": report.root.level, "hash": report.root.hash.hex()}
    emit(
        {"received": report.received, "sent": report.sent, "root": root, "refused": report.refused},
        f"ok  received={report.received} sent={report.sent} root={root['level']}/{root['hash']}",
    )


def _profile_if_new(topic: str, profile: str) -> dict[str, Any]:
    from ropewalk.gossip.peer.topics import topic_folder

    # An existing topic keeps its profile; sync then says which address would fit.
    return {} if topic_folder(here().home, topic).is_dir() else {"profile": profile}


async def _shown(log: Log, work: Any) -> Any:
    """Do the work; on a terminal, say now and then how far it is."""
    import sys

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


@click.command(
    "serve",
    cls=Command,
    epilog="Examples:\n  ropewalk gossip serve --topic com.example --port 8080\n",
)
@click.option("--topic", required=True, metavar="TOPIC", help="The log; made if it is new.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="HOST", help="The address to listen on."
)
@click.option("--port", required=True, type=click.IntRange(0, 65535), metavar="P", help="0 takes a free one.")
@click.option(
    "--profile", type=click.Choice(PROFILES), help="The wire profile of a new topic; default v0.13."
)
@idle_option
@connection_options(PEERS_MAX)
def serve(
    topic: str,
    host: str,
    port: int,
    profile: Any,
    idle: float,
    max_connections: int,
    max_per_address: int | None,
) -> None:
    """Let peers connect, answer them, and push whatever is appended here, by this or any other process.

    Prints one JSON line when it listens. A v0.13 topic is served over WebSockets, a v0.6 topic over TCP.
    """
    from ropewalk.gossip.peer.topics import open_topic, topics
    from ropewalk.net.admission import ConnectionLimits

    known = topics(here().home)
    say_journal("ropewalk.gossip.peers")
    with open_topic(here().home, topic, create=True, profile=profile) as log:
        say_new_topic(topic, known)
        limits = ConnectionLimits(max_connections, address_max=max_per_address)
        asyncio.run(_serve(log, host, port, idle, limits))


async def _serve(log: Log, host: str, port: int, idle_s: float, limits: ConnectionLimits) -> None:
    from ropewalk.gossip.peer.server import GossipServer

    await run_server(
        GossipServer(log, host=host, port=port, idle_s=idle_s, limits=limits),
        lambda server: {
            "url": server.url,
            "host": host,
            "port": server.port,
            "topic": log.topic,
            "profile": log.profile.name,
        },
    )
