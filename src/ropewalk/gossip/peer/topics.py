"""Gossip logs wired to their stores: where a topic lives, and `ropewalk.gossip.open`."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import time
from asyncio import events
from collections.abc import Awaitable, Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload
from urllib.parse import quote, unquote

from ropewalk.disk.lmdb_tables import LmdbTables
from ropewalk.disk.memory_tables import MemoryTables
from ropewalk.errors import Damaged, InvalidName, NotFound, Usage
from ropewalk.gossip.core.access import MessageHistory
from ropewalk.gossip.core.ids import MessageId, ProfileName
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.message import (
    GossipMessage,
    GossipSignature,
    Payload,
    Result,
    SignedMessage,
    check_topic,
    profile_named,
)
from ropewalk.gossip.core.pending import PendingLimits
from ropewalk.gossip.core.table import TABLES
from ropewalk.gossip.core.writing import Apply
from ropewalk.kernel.keys import SigningKey

FOLDER_CHARS_MAX = 255  # of common file systems


class _SharedOptions(TypedDict, total=False):
    profile: ProfileName | None
    signer: SigningKey | None
    validate: Callable[[Any], bool | Awaitable[bool]] | dict[str, Any] | None
    access: Callable[[MessageHistory, SignedMessage], Awaitable[None] | None]
    index_ancestors: bool
    replay: bool
    pending_limits: PendingLimits
    now_s: Callable[[], int] | None


class LogOptions(_SharedOptions, total=False):
    """The options of `GossipLog`. The callbacks may be coroutine functions, which are run to their end at each call."""

    apply: Apply | None


@overload
def open_log(
    topic: str,
    path: str | os.PathLike[str] | None = None,
    *,
    apply: Callable[[MessageId, GossipSignature, GossipMessage[Payload]], Awaitable[Result]],
    **options: Unpack[_SharedOptions],
) -> GossipLog[Payload, Result]: ...


@overload
def open_log(
    topic: str,
    path: str | os.PathLike[str] | None = None,
    *,
    apply: Callable[[MessageId, GossipSignature, GossipMessage[Payload]], Result],
    **options: Unpack[_SharedOptions],
) -> GossipLog[Payload, Result]: ...


@overload
def open_log(
    topic: str,
    path: str | os.PathLike[str] | None = None,
    *,
    apply: None = None,
    **options: Unpack[_SharedOptions],
) -> GossipLog[Any, None]: ...


def open_log(
    topic: str,
    path: str | os.PathLike[str] | None = None,
    *,
    apply: Callable[..., Any] | None = None,
    **options: Unpack[_SharedOptions],
) -> GossipLog[Any, Any]:
    """Open a gossip log: in memory without a path, in the folder `path` with one. It is made if it is new.

    `signer` signs what is appended here. `validate` (a function that returns a bool, or a JSON Schema), `access`
    (returns None or raises Denied) and `apply` (returns a result; raising refuses the message) run in this order for
    every message before it is stored; all three may be coroutine functions. `replay` applies all stored messages at
    opening, `index_ancestors` keeps the ancestor index up to date, `profile` is the wire profile of a new topic
    (default v0.13).

    >>> from ropewalk.gossip.peer.signers import Ed25519Signer
    >>> with open_log("com.example.demo", signer=Ed25519Signer(), apply=lambda id, signature, message: 7) as log:
    ...     stored = log.append({"text": "hello"})
    >>> stored.message.clock, stored.result
    (1, 7)
    """
    return _open(topic, path, {**options, "apply": apply})


def _open(topic: str, path: str | os.PathLike[str] | None, options: LogOptions) -> GossipLog:
    given = _prepared(options)
    if path is None:
        return GossipLog(MemoryTables(TABLES), topic, **given)
    check_topic(profile_named(options.get("profile") or "v0.13"), topic)  # before a folder is made for it
    tables = LmdbTables(Path(path), TABLES)
    try:
        return GossipLog(tables, topic, **given)
    except BaseException:
        tables.close()
        raise


_OPTIONS = tuple({**_SharedOptions.__annotations__, **LogOptions.__annotations__})


def _prepared(options: LogOptions) -> dict[str, Any]:
    """Return the options as the engine takes them: with a clock, and with coroutine functions that are run."""
    given: dict[str, Any] = {"now_s": _now_s, **options}
    if unknown := sorted(given.keys() - set(_OPTIONS)):
        near = get_close_matches(unknown[0], _OPTIONS, 1)
        raise Usage(
            f"a gossip log has no option {unknown[0]!r}",
            advice=f"Did you mean {near[0]!r}?" if near else f"Options: {', '.join(_OPTIONS)}.",
        )
    for name in ("apply", "access", "validate"):
        if callable(given.get(name)):
            given[name] = settled(given[name])
    return given


def _now_s() -> int:
    return int(time.time())


def open_topic(home: Path, topic: str, *, create: bool, **options: Unpack[LogOptions]) -> GossipLog:
    """Open a topic kept under a repository's `ropewalk` folder; NotFound unless it is there or may be made."""
    folder = topic_folder(home, topic)
    if create:
        return _open(topic, folder, options)
    if not (folder / "data.mdb").is_file():
        raise NotFound(
            f"no gossip topic {topic!r} here",
            name=topic,
            advice="Make it with `ropewalk gossip append` or `ropewalk gossip sync`.",
        )
    tables = LmdbTables(folder, TABLES, create=False)
    try:
        with tables.read() as view:
            if view.get("meta", b"version") is None:
                raise Damaged(f"{folder} is no gossip log: it names neither topic nor profile", reason="meta")
        return GossipLog(tables, topic, **_prepared(options))
    except BaseException:
        tables.close()
        raise


def topic_folder(home: Path, topic: str) -> Path:
    """Return where a topic lives; a topic of dots must not climb out of its folder.

    >>> topic_folder(Path("home"), "..").as_posix()
    'home/gossip/%2E%2E'
    """
    name = quote(topic, safe="")
    name = name.replace(".", "%2E") if name.startswith(".") else name
    if len(name) > FOLDER_CHARS_MAX:
        raise InvalidName(f"topic {topic[:80]!r} has more characters than a folder name", name=topic[:80])
    return home / "gossip" / name


def topics(home: Path) -> list[str]:
    """Return the topics kept under a repository's `ropewalk` folder."""
    folder = home / "gossip"
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(unquote(each.name) for each in found if (each / "data.mdb").is_file())


# Coroutine functions as callbacks of an engine that has no event loop: each call is run to its end.


def settled(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its coroutines run to their end; other results are left as they are.

    >>> async def double(number): return 2 * number
    >>> settled(double)(21)
    42
    """

    @functools.wraps(call)
    def run(*given: Any) -> Any:
        result = call(*given)
        return run_to_end(result) if inspect.isawaitable(result) else result

    return run


def run_to_end(awaitable: Awaitable[Any]) -> Any:
    """Run it in a new event loop in this thread, so that callbacks read what their transaction wrote.

    A loop that already runs in this thread is blocked meanwhile, as by any call that is not awaited.
    """

    async def run() -> Any:
        return await awaitable

    outer = events._get_running_loop()
    events._set_running_loop(None)
    try:
        with asyncio.Runner() as runner:
            return runner.run(run())
    finally:
        events._set_running_loop(outer)
