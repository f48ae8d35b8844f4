"""Complete and correct names of the repository: namespaces, topics, channels, consumer groups, keys, remotes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropewalk.cli.common.command import Session
from ropewalk.errors import NotFound, RopewalkError

COMPARED_FILES = 1_000  # compared with the name of a missing file

if TYPE_CHECKING:
    from ropewalk.disk.repository_paths import RepositoryPaths


def _namespaces(place: RepositoryPaths) -> Iterable[str]:
    from ropewalk.gitlog.core.layout import SHIPLOG
    from ropewalk.gitlog.store.object_store import GitStore

    refs = GitStore(place).head_names(SHIPLOG.prefix)
    return (topic for ref in refs if (topic := SHIPLOG.topic_of(ref)) is not None)


def _topics(place: RepositoryPaths) -> Iterable[str]:
    from ropewalk.gitlog.core.layout import MESSAGES
    from ropewalk.gitlog.store.object_store import GitStore
    from ropewalk.gossip.peer.topics import topics

    refs = GitStore(place).head_names(MESSAGES.prefix)
    return [*(topic for ref in refs if (topic := MESSAGES.topic_of(ref)) is not None), *topics(place.home)]


def _channels(place: RepositoryPaths) -> Iterable[str]:
    from ropewalk.ledger.channel.settings import channels

    return channels(place.home)


def _groups(place: RepositoryPaths) -> Iterable[str]:
    from ropewalk.gitlog.consumers.cursor import split_ref
    from ropewalk.gitlog.core.layout import CONSUMERS
    from ropewalk.gitlog.store.object_store import GitStore

    return {split_ref(ref)[0] for ref in GitStore(place).head_names(CONSUMERS)}


def _keys(place: RepositoryPaths) -> Iterable[str]:
    from ropewalk.cli.common.locations import key_folder
    from ropewalk.disk.key_files import ls

    return [each.name for folder in (key_folder(), place.keys) for each in ls(folder)]


def _remotes(place: RepositoryPaths) -> Iterable[str]:
    from ropewalk.gitlog.sharing.remotes import remotes

    return remotes(place.git_dir)


# By the name of an option, and by the field of a NotFound that holds the name looked up.
VALUES: dict[str, Callable[[RepositoryPaths], Iterable[str]]] = {
    "ns": _namespaces,
    "topic": _topics,
    "channel": _channels,
    "group": _groups,
    "key": _keys,
    "remote": _remotes,
}


def _known(ctx: click.Context, kind: str) -> list[str]:
    """Return the existing names of a kind; nothing if the repository cannot be read."""
    from ropewalk.disk.repository_paths import find_repository

    session = ctx.find_root().obj
    repo = session.repo if isinstance(session, Session) else None
    named = os.environ.get("ROPEWALK_REPO")
    try:
        return sorted(VALUES[kind](find_repository(repo or Path(named or "."))))
    except (RopewalkError, OSError):
        return []


def kind_of(param: click.Parameter) -> str | None:
    """Return which of `VALUES` an option takes."""
    return next((each[2:] for each in param.opts if each.startswith("--") and each[2:] in VALUES), None)


def complete_value(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names that begin with `incomplete`."""
    kind = kind_of(param)
    return [name for name in _known(ctx, kind) if name.startswith(incomplete)] if kind else []


def suggest_existing(ctx: click.Context, error: NotFound) -> str | None:
    """Return a question that names similar logs, channels, groups, keys, remotes or files."""
    from ropewalk.cli.common.suggest import did_you_mean

    asked = {field: value for field, value in error.fields.items() if isinstance(value, str)}
    given = [(kind_of(param), ctx.params.get(param.name or "")) for param in ctx.command.params]
    options = [(kind, typed) for kind, typed in given if kind and typed in asked.values()]
    # A name that is no option's value may be a part of one, as in `--from ns:prod`.
    fields = [
        (kind, typed)
        for field, typed in asked.items()
        for kind in {"topic": ("ns", "topic")}.get(field, (field,))
    ]
    for kind, typed in options or fields:
        names = _known(ctx, kind) if kind in VALUES else []
        if isinstance(typed, str) and typed not in names and (like := did_you_mean(typed, names)):
            return like
    name = asked.get("name", "").removeprefix("shiplog/")
    if error.detail.startswith("no file") and ctx.command.name == "verify" and name in _known(ctx, "ns"):
        return f"It is a namespace: ropewalk verify --ns {name}"
    if error.detail.startswith("no file") and (folder := Path(asked.get("name", "")).parent).is_dir():
        files = islice(folder.iterdir(), COMPARED_FILES)
        return did_you_mean(asked.get("name", ""), [str(each) for each in files if each.is_file()])
    return None
