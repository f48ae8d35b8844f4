"""Complete the values of options: namespaces, topics, channels and consumer groups of the repository."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

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


VALUES: dict[str, Callable[[RepositoryPaths], Iterable[str]]] = {
    "--ns": _namespaces,
    "--topic": _topics,
    "--channel": _channels,
    "--group": _groups,
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
