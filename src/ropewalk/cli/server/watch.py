"""`ropewalk watch`: signals, alerts and schedules of the ledger channels."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import emit, emit_line, group, parse_input, session
from ropewalk.cli.common.hangup import Hangup
from ropewalk.cli.common.locations import here, signing_key
from ropewalk.cli.common.options import flag, option
from ropewalk.disk.state_folder import StateFolder
from ropewalk.errors import Unverified
from ropewalk.kernel.terminal_text import printable

if TYPE_CHECKING:
    from ropewalk.kernel.keys import SigningKey


@group(
    "watch",
    "ropewalk watch --once",
    "ropewalk watch --config watch.json",
    "ropewalk watch status",
    invoke_without_command=True,
)
@flag("--once", "Do one round; exit 5 if an alert fires.")
@option("--config", "FILE", "What to watch and where alerts go, as JSON.")
@click.pass_context
def watch(context: click.Context, once: bool, config: str | None) -> None:
    """Watch the channels: seals, evidence, policies, keys, versions; send alerts; do what is due by schedule.

    One round, and one job of the schedules, runs at a time in a repository. A round looks only at what is new.
    """
    if context.invoked_subcommand is not None:
        return
    from ropewalk.cli.ledger.remote.remote import keys_from_here
    from ropewalk.server.watch.config import WatchConfig, read_watch
    from ropewalk.server.watch.rounds import Watch
    from ropewalk.server.watch.schedules import Schedules

    settings = parse_input(config, read_watch) if config is not None else WatchConfig()

    def named(name: str) -> SigningKey:
        with context.scope(cleanup=False):  # called in threads, which have no context
            return signing_key(name)

    parts: Any = {"channel_keys": keys_from_here(), "signing_key": named, "now_ns": time.time_ns}
    watching, schedules = Watch(here().home, settings, **parts), Schedules(here().home, settings, **parts)
    stop = Hangup() if not once else threading.Event()
    working: threading.Thread | None = None
    acts = schedules.run_due() if once else []
    while not stop.is_set():
        if not once and (working is None or not working.is_alive()):  # a long job must not hold up a round
            working = threading.Thread(target=schedules.run_due, name="ropewalk-schedules", daemon=True)
            working.start()
        found = {**watching.round().to_json(), **({"acts": acts} if once else {})}
        if session().json:
            emit_line(found)
        else:
            click.echo("\n".join(_lines(found)))
        if once:
            if found["alerts"]:
                raise click.exceptions.Exit(Unverified.exit_code)
            return
        stop.wait(settings.interval_s)


@watch.command("status", "ropewalk watch status --json")
def status() -> None:
    """Print what the last round found and did."""
    from ropewalk.server.watch.alerts import for_alertmanager, moment
    from ropewalk.server.watch.config import WatchConfig
    from ropewalk.server.watch.rounds import Watch
    from ropewalk.server.watch.schedules import read_jobs

    jobs = read_jobs(StateFolder(here().home / "schedules"))
    state = Watch(
        here().home, WatchConfig(), channel_keys=lambda _: (), signing_key=signing_key, now_ns=time.time_ns
    ).state()
    answer = {
        "last": moment(state["last_ns"]) if "last_ns" in state else None,
        "channels": {name: each["height"] for name, each in state["channels"].items()},
        "alerts": [
            for_alertmanager(each) for each in state["alerts"].values() if each.get("until_ns") is None
        ],
        "schedules": [
            {
                "job": name,
                "state": _job_state(job),
                "last": moment(job["ended_ns"]) if "ended_ns" in job else None,
                "due": moment(job["due_ns"]) if "due_ns" in job else None,
                "detail": job.get("detail", ""),
            }
            for name, job in jobs.items()
        ],
        "failures": state.get("failures", []),
    }
    emit(answer, [f"last round  {answer['last'] or 'none yet'}", *_lines(answer)])


def _job_state(job: dict[str, Any]) -> str:
    if job.get("started_ns", 0) > job.get("ended_ns", 0):
        return "running"
    return "ok" if job.get("ok") else "failed"


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [
        printable(
            f"{each['labels']['severity']:<7} {each['labels']['alertname']}  {each['annotations']['summary']}"
        )
        for each in found["alerts"]
    ]
    lines += [printable(f"failed  {each}") for each in found["failures"]]
    lines = lines or ["ok  no alert fires"]
    lines += [printable(f"did     {each}") for each in found.get("acts", ())]
    return lines + [
        printable(
            f"{each['state']:<7} {each['job']:<8} due {each['due'] or 'now'}  {each['detail']}"
        ).rstrip()
        for each in found.get("schedules", ())
    ]
