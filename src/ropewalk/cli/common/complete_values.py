"""Complete the values of options: namespaces, topics, channels and consumer groups of the repository."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

COMPARED_FILES = 1_000  # compared with the name of a missing file

if TYPE_CHECKING:
    from ropewalk.disk.repository_paths import RepositoryPaths
    from ropewalk.errors import NotFound


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


VALUES: dict[str, Callable[[RepositoryPaths], Iterable[str]]] = {
    "--ns": _namespaces,
    "--topic": _topics,
    "--channel": _channels,
    "--group": _groups,
    "--key": _keys,
}


def complete_value(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names that begin with `incomplete`; nothing if the repository cannot be read."""
    from ropewalk.cli.common.command import Session
    from ropewalk.disk.repository_paths import find_repository
    from ropewalk.errors import RopewalkError

    session = ctx.find_root().obj
    repo = session.repo if isinstance(session, Session) else None
    named = os.environ.get("ROPEWALK_REPO")
    try:
        place = find_repository(repo or Path(named or "."))
        names = [name for each in param.opts if each in VALUES for name in VALUES[each](place)]
    except (RopewalkError, OSError):
        return []
    return sorted(name for name in names if name.startswith(incomplete))


def suggest_existing(ctx: click.Context, error: NotFound) -> str | None:
    """Return a question that names similar logs, channels, groups, keys or files; None if there are none."""
    from ropewalk.cli.common.suggest import did_you_mean

    asked = {value for value in error.fields.values() if isinstance(value, str)}
    for param in ctx.command.params:
        typed = ctx.params.get(param.name or "")
        if isinstance(typed, str) and typed in asked:
            names = complete_value(ctx, param, "")
            if not names and error.detail.startswith("no file") and (folder := Path(typed).parent).is_dir():
                names = [str(each) for each in islice(folder.iterdir(), COMPARED_FILES) if each.is_file()]
            if like := did_you_mean(typed, (name for name in names if name != typed)):
                return like
    return None
