"""Gossip logs wired to their stores: where a topic lives, and `ropewalk.gossip.open`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ropewalk.errors import NotFound
from ropewalk.gossip.log import TABLES, Log
from ropewalk.gossip.message import check_topic, profile_named
from ropewalk.stores.lmdb import LmdbTables
from ropewalk.stores.memory import MemoryTables

__all__ = ["open_log", "open_topic", "topic_folder", "topics"]


def open_log(topic: str, path: str | os.PathLike[str] | None = None, **options: Any) -> Log:
    """Open a gossip log: in memory without a path, in the folder `path` with one. Options are those of `Log`.

    >>> from ropewalk.kernel.keys import SigningKey
    >>> with open_log("com.example.demo", signer=SigningKey.generate("ed25519", bytes(32))) as log:
    ...     log.append({"text": "hello"}).message.clock
    1
    """
    if path is None:
        return Log(MemoryTables(TABLES), topic, **options)
    check_topic(profile_named(options.get("profile") or "v0.13"), topic)  # before a folder is made for it
    tables = LmdbTables(Path(path), TABLES)
    try:
        return Log(tables, topic, **options)
    except BaseException:
        tables.close()
        raise


def open_topic(home: Path, topic: str, *, create: bool, **options: Any) -> Log:
    """Open a topic kept under a repository's `ropewalk` folder; NotFound unless it is there or may be made."""
    folder = topic_folder(home, topic)
    if not create and not folder.is_dir():
        raise NotFound(
            f"no gossip topic {topic!r} here",
            name=topic,
            advice="Make it with `ropewalk gossip append` or `ropewalk gossip sync`.",
        )
    return open_log(topic, folder, **options)


def topic_folder(home: Path, topic: str) -> Path:
    """Where a topic lives; a topic of dots must not climb out of its folder.

    >>> topic_folder(Path("home"), "..").as_posix()
    'home/gossip/%2E%2E'
    """
    name = quote(topic, safe="")
    return home / "gossip" / (name.replace(".", "%2E") if name.startswith(".") else name)


def topics(home: Path) -> list[str]:
    """The topics kept under a repository's `ropewalk` folder."""
    folder = home / "gossip"
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(unquote(each.name) for each in found if (each / "data.mdb").is_file())
