"""`ropewalk shiplog show`, `ls` and `current`: one event, recent events, current deployments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import command, emit, say
from ropewalk.cli.common.options import integer, option, repeated
from ropewalk.cli.common.suggest import did_you_mean
from ropewalk.cli.git.events import event_json, event_line, opened, short, since_ms, suggesting_names
from ropewalk.errors import NotFound
from ropewalk.gitlog.core.layout import SHIPLOG
from ropewalk.kernel.terminal_text import printable
from ropewalk.kernel.ulid import time_ms

if TYPE_CHECKING:
    from ropewalk.gitlog.repository.repository import GitRepository

SHOWN_MAX = 10


@command("show", "ropewalk shiplog show governance")
@click.argument("name", metavar="REF_OR_ULID")
def show(name: str) -> None:
    """Show one event with its trailer, author and captured output.

    REF_OR_ULID is a ULID, a commit, a namespace or a ref.
    """
    from ropewalk.gitlog.repository.recent import find_event

    with opened() as log:
        found = find_event(log, name)
        answer = {"ns": found.event.topic, **event_json(found.event), "height": found.event.height}
        answer |= {"trailer": found.trailer, "author": found.author, "time": found.time, "note": found.note}

        def plain() -> str:
            lines = [event_line(found.event), f"ns      {found.event.topic}, height {found.event.height}"]
            lines.append(f"author  {found.author}, {found.time}")
            lines += [f"{key:<16}{_words(value)}" for key, value in (found.trailer or {}).items()]
            note = ["", *found.note.rstrip("\n").split("\n")] if found.note else []
            return "\n".join(map(printable, lines + note))

        emit(answer, plain)


@command("ls", "ropewalk shiplog ls --since 2d", "ropewalk shiplog ls --since yesterday --env prod")
@repeated("--ns namespaces", "NS", "Show only this namespace; repeatable.")
@option("--env", "ENV", "Show only events of this environment.")
@option("--since", "SPAN", "Show only newer events: 2d, 3h, 30m, today, yesterday, or a date.")
@integer("--limit", "N", "Maximum number of events.", least=1, default=50)
def ls(namespaces: tuple[str, ...], env: str | None, since: str | None, limit: int) -> None:
    """List recorded events, newest first."""
    with opened() as log, suggesting_names(log, SHIPLOG):
        floor = since_ms(since, log.now_ms()) if since else 0
        logs = [_newest_first(log, ns, floor) for ns in namespaces or log.topics()]
        both = merge(*logs, key=lambda row: row["ulid"], reverse=True)
        known: dict[str, bool] = {}
        rows = list(islice(_of_env(both, env, known), limit))
        if not rows and since is None:
            _check_env(env, known)

        lines = (
            f"{row['time']}  {row['ns']:<16} {row['type']:<24} {_outcome(row):<11} "
            f"{row['service'] or '-':<12} {short(row['commit'])}  {row['ulid']}"
            for row in rows
        )
        emit({"events": rows}, (printable(line) for line in lines), "nothing was recorded")
        _advise_pull(log)


@command("current", "ropewalk shiplog current --env prod")
@repeated("--ns namespaces", "NS", "Show only this namespace; repeatable.")
@option("--env", "ENV", "Show only this environment.")
def current(namespaces: tuple[str, ...], env: str | None) -> None:
    """Show what is deployed now: the last effective deployment per environment and service."""
    from ropewalk.gitlog.repository.deployments import current_rows

    with opened() as log, suggesting_names(log, SHIPLOG):
        known: dict[str, bool] = {}
        found = (row for ns in namespaces or log.topics() for row in _newest_first(log, ns, 0))
        rows = current_rows(_of_env(found, env, known))
        _check_env(env, known)

        lines = (
            f"{row['env']:<12} {row['service']:<16} {row['artifact'] or '-':<32} since {row['time']}  "
            f"{row['who'] or '-'}  {short(row['commit'])}"
            for row in rows
        )
        emit({"current": rows}, (printable(line) for line in lines), "no deployment was recorded")
        _advise_pull(log)


def _advise_pull(log: GitRepository) -> None:
    """Name the remote to pull from, if this repository has no logs and a remote may have some."""
    from ropewalk.gitlog.sharing.remotes import advise_missing

    if not log.topics() and (advice := advise_missing(log.store.place.git_dir, log.store, SHIPLOG)):
        say(advice)


def _of_env(
    rows: Iterable[dict[str, Any]], env: str | None, known: dict[str, bool]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one environment, or all; `known` gets each environment and whether it has deployments."""
    for row in rows:
        known[row["env"]] = known.get(row["env"], False) or _is_deployment(row)
        if env in (None, row["env"]):
            yield row


def _check_env(env: str | None, known: dict[str, bool]) -> None:
    """Raise if no event names this environment but others are named: it is probably a typo."""
    if env is not None and known and env not in known:
        # The trailer of any other event has its namespace there.
        names = sorted(name for name, is_used in known.items() if is_used) or sorted(known)
        raise NotFound(
            f"no event names the environment {env!r}",
            advice=did_you_mean(env, names) or f"The environments are: {', '.join(names[:SHOWN_MAX])}",
            env=env,
        )


def _outcome(row: dict[str, Any]) -> str:
    """Return the status of a deployment; other events have none, although S0's trailer demands one."""
    return (_is_deployment(row) and row["status"]) or "-"


def _is_deployment(row: dict[str, Any]) -> bool:
    return bool(row["service"]) or row["type"].startswith("deployment.")


def _words(value: Any) -> str:
    """Return a trailer value for people, without JSON punctuation."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(each)}" for key, each in value.items())
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _newest_first(log: GitRepository, ns: str, floor_ms: int) -> Iterator[dict[str, Any]]:
    from ropewalk.gitlog.repository.deployments import deployment_row
    from ropewalk.gitlog.repository.recent import newest_first

    for event, headers in newest_first(log, ns):
        if time_ms(event.ulid) < floor_ms:
            return
        yield deployment_row(event, headers.trailer or {})
