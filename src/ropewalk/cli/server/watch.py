"""`ropewalk watch`: signals, alerts and schedules of the ledger channels."""

from __future__ import annotations

import threading
import time
from typing import Any

import click

from ropewalk.cli.common.command import Group, emit, emit_line, parse_input, session
from ropewalk.cli.common.hangup import Hangup
from ropewalk.cli.common.locations import here, signing_key
from ropewalk.errors import Unverified
from ropewalk.kernel.terminal_text import printable


@click.group(
    "watch",
    cls=Group,
    invoke_without_command=True,
    epilog="Examples:\n  ropewalk watch --once\n  ropewalk watch --config watch.json\n  ropewalk watch status\n",
)
@click.option("--once", is_flag=True, help="Do one round; exit 5 if an alert fires.")
@click.option("--config", metavar="FILE", help="What to watch and where alerts go, as JSON.")
@click.pass_context
def watch(context: click.Context, once: bool, config: str | None) -> None:
    """Watch the channels: evidence, policies, keys, versions; send alerts, archive and pack by schedule.

    One round runs at a time in a repository. Each looks only at what is new.
    """
    if context.invoked_subcommand is not None:
        return
    from ropewalk.cli.ledger.remote.remote import keys_from_here
    from ropewalk.server.watch.rounds import Watch, WatchConfig, read_watch

    settings = parse_input(config, read_watch) if config is not None else WatchConfig()
    watching = Watch(
        here().home,
        settings,
        channel_keys=keys_from_here(),
        signing_key=signing_key,
        now_ns=time.time_ns,
    )
    stop = Hangup() if not once else threading.Event()
    while not stop.is_set():
        found = watching.round()
        if session().json:
            emit_line(found.to_json())
        else:
            click.echo("\n".join(_lines(found.to_json())))
        if once:
            if found.firing:
                raise click.exceptions.Exit(Unverified.exit_code)
            return
        stop.wait(settings.interval_s)


@watch.command("status", epilog="Examples:\n  ropewalk watch status --json\n")
def status() -> None:
    """Print what the last round found and did."""
    from ropewalk.server.watch.alerts import for_alertmanager, moment
    from ropewalk.server.watch.rounds import Watch, WatchConfig

    state = Watch(
        here().home, WatchConfig(), channel_keys=lambda _: (), signing_key=signing_key, now_ns=time.time_ns
    ).state()
    answer = {
        "last": moment(state["last_ns"]) if "last_ns" in state else None,
        "channels": {name: each["height"] for name, each in state["channels"].items()},
        "alerts": [
            for_alertmanager(each) for each in state["alerts"].values() if each.get("until_ns") is None
        ],
        "acts": [{"at": moment(at), "act": act} for at, act in state.get("acts", [])],
        "failures": state.get("failures", []),
    }
    emit(answer, lambda: "\n".join([f"last round  {answer['last'] or 'none yet'}", *_lines(answer)]))


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [
        printable(
            f"{each['labels']['severity']:<7} {each['labels']['alertname']}  {each['annotations']['summary']}"
        )
        for each in found["alerts"]
    ]
    lines += [printable(f"failed  {each}") for each in found["failures"]]
    return lines or ["ok  no alert fires"]
