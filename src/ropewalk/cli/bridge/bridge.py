"""`ropewalk bridge`: carry events of git logs to message brokers and webhooks, and messages into topics."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from ropewalk.cli.common.command import emit, group, say
from ropewalk.cli.common.options import choice, flag, option, required, together
from ropewalk.cli.git.events import opened
from ropewalk.kernel.terminal_text import printable

if TYPE_CHECKING:
    from ropewalk.bridge.brokers.port import Broker
    from ropewalk.bridge.brokers.run import BridgeReport, Direction


@group(
    "bridge",
    "ropewalk bridge nats --url nats://127.0.0.1:4222 --log messages/jobs",
    lazy={
        "webhook": "bridge.webhook:webhook Deliver events of a log to an HTTP endpoint, signed and retried."
    },
)
def bridge() -> None:
    """Carry events to message brokers and webhooks, and messages into topics."""


@bridge.command("ls", "ropewalk bridge ls --json")
def ls() -> None:
    """List mirrors, broker bridges and webhooks with position, lag, last run and last error."""
    from ropewalk.bridge.progress import list_progress
    from ropewalk.gitlog.core.commit import rfc3339

    with opened() as repository:
        rows = list(list_progress(repository))
    lines = []
    for row in rows:
        lag = "" if row["lag"] is None else f", {row['lag']} behind"
        lag += f", {row['lost']} lost" if row["lost"] else ""
        run = "never ran" if row["run_ms"] is None else f"last run {rfc3339(row['run_ms'])}"
        at = f"{row['kind']:<8}{row['source']} -> {row['target']}  at {row['position'] or 'the start'}{lag}, {run}"
        lines += [printable(at), *([f"        {printable(row['error'])}"] if row["error"] else [])]
    emit({"bridges": rows}, lines, "no bridges; mirror, bridge nats, redis and webhook make them")


@bridge.command("rm", "ropewalk bridge rm shiplog/prod messages/deploys")
@click.argument("source")
@click.argument("target")
def rm(source: str, target: str) -> None:
    """Remove the record of a mirror or broker bridge that is no longer run, named as `bridge ls` shows it.

    No event and no message is removed. If the bridge is run again, it looks through both sides once.
    """
    from ropewalk.bridge.progress import Progress

    kind = next(
        (end.partition(":")[0] for end in (source, target) if end.startswith(("nats:", "redis:"))), "mirror"
    )
    with opened() as repository:
        Progress.of(repository, kind, source, target).forget()
    emit({"removed": [source, target]}, printable(f"ok  removed the record of {source} -> {target}"))


_shared = together(
    required("--log name", "LOG", "messages/TOPIC or shiplog/NS."),
    choice(
        "--direction",
        ["out", "in", "both"],
        "out: publish events; in: record messages in a topic.",
        default="out",
    ),
    choice(
        "--format form",
        ["envelope", "cloudevents"],
        "Body of published messages: the canonical envelope, or a CloudEvent 1.0 in JSON.",
        default="envelope",
    ),
    flag("--once", "Move what is there now, then exit."),
)


@bridge.command(
    "nats",
    "ropewalk bridge nats --url nats://127.0.0.1:4222 --log messages/jobs",
    "ropewalk bridge nats --url nats://127.0.0.1:4222 --log messages/orders --subject shop.orders --direction in",
)
@required("--url", "URL", "Address of the NATS server, nats:// or tls://.")
@option("--subject", "SUBJECT", "Default: ropewalk.<engine>.<topic>, dots for slashes.")
@option("--stream", "NAME", "JetStream stream; found by the subject, created if it is missing.")
@_shared
def nats(
    url: str, subject: str | None, stream: str | None, name: str, direction: Direction, form: str, once: bool
) -> None:
    """Bridge a git log and a NATS JetStream subject, in order and each event once.

    Every message has LOG/ULID as Nats-Msg-Id and headers that name log, ULID, type, commit and content id. An event
    that comes in records the stream and its sequence number. A killed bridge goes on where the stream and the log end.
    """
    from ropewalk.bridge.brokers.nats import NatsBroker, subject_of
    from ropewalk.bridge.brokers.port import address_of

    subject = subject or subject_of(name)
    address = address_of("nats", url, subject)
    _run(lambda: NatsBroker.connect(url, subject, stream), address, name, direction, form, once)


@bridge.command(
    "redis", "ropewalk bridge redis --url redis://127.0.0.1:6379 --log shiplog/prod --stream deploys"
)
@required("--url", "URL", "Address of the Redis server, redis:// or rediss://.")
@option("--stream", "KEY", "Key of the stream. Default: ropewalk.<engine>.<topic>.")
@_shared
def redis(url: str, stream: str | None, name: str, direction: Direction, form: str, once: bool) -> None:
    """Bridge a git log and a Redis stream, in order and each event once.

    The server decides how durable the stream is: set appendonly yes and appendfsync always.
    """
    from ropewalk.bridge.brokers.nats import subject_of
    from ropewalk.bridge.brokers.port import address_of
    from ropewalk.bridge.brokers.redis import RedisBroker

    stream = stream or subject_of(name)
    address = address_of("redis", url, stream)
    _run(lambda: RedisBroker.connect(url, stream), address, name, direction, form, once)


def _run(
    connect: Callable[[], Awaitable[Broker]],
    address: str,
    name: str,
    direction: Direction,
    form: str,
    once: bool,
) -> None:
    from ropewalk.bridge.brokers.loops import find_log
    from ropewalk.bridge.brokers.run import Bridge

    with opened() as repository:
        log = find_log(repository, name)
        running = Bridge(log, connect, address=address, direction=direction, form=form, jitter=random.random)
        if once:
            report = asyncio.run(running.once())
        else:
            say(f"bridging {name}; Ctrl-C ends")
            report = asyncio.run(_until_signal(running.run))
    lost = f", {report.lost} removed by the broker before they were read" if report.lost else ""
    answer = {name: getattr(report, name) for name in ("published", "received", "lost", "reconnects")}
    emit(answer, f"ok  {report.published} published, {report.received} received{lost}")


async def _until_signal(run: Callable[[asyncio.Event], Awaitable[BridgeReport]]) -> BridgeReport:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return await run(stop)
