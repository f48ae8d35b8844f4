"""`ropewalk.init` and `ropewalk.open`: a repository, and a handle for every log in it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ropewalk.disk import key_files
from ropewalk.disk.closing import Closing
from ropewalk.disk.repository_paths import RepositoryPaths, make_repository
from ropewalk.errors import Usage
from ropewalk.gitlog.core.envelope import Event
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG
from ropewalk.gitlog.core.reading import LIMIT_DEFAULT
from ropewalk.gitlog.repository import opening
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.handles.events import EventLog
from ropewalk.handles.handle import Handle
from ropewalk.kernel.keys import SigningKey

if TYPE_CHECKING:
    from ropewalk.bridge.event_copy import MirrorResult
    from ropewalk.bridge.governance.run import Governance
    from ropewalk.disk.durable import Disk
    from ropewalk.gossip.core.access import MessageHistory
    from ropewalk.gossip.core.ids import ProfileName
    from ropewalk.gossip.core.message import SignedMessage
    from ropewalk.gossip.core.writing import Apply
    from ropewalk.gossip.peer.topics import LogOptions
    from ropewalk.handles.channel import LedgerChannel
    from ropewalk.handles.gossip import GossipTopic
    from ropewalk.kernel.report import Report
    from ropewalk.ledger.proof.trust import Trust
    from ropewalk.ledger.rules.policy import Policy
    from ropewalk.stream.core.connection import StreamLimits
    from ropewalk.stream.core.window import WindowBounds
    from ropewalk.stream.serve.repository_stream import RepositoryStream

NODE_KEY = "node"  # the repository's key, made by `init`
H = TypeVar("H", bound=Handle)


class Repository(Closing):
    """A git repository with its event logs, ledger channels and gossip topics. Safe to share between threads.

    >>> import ropewalk, tempfile
    >>> with tempfile.TemporaryDirectory() as folder, ropewalk.init(folder) as repo:
    ...     receipt = repo.events("prod").append({"type": "deploy.finished", "payload": {"v": 7}})
    ...     repo.namespaces(), repo.verify().verdict
    (['prod'], 'passed')
    """

    def __init__(self, git: GitRepository) -> None:
        self._opened = git
        self._handles: list[Handle] = []
        self._handles_lock = threading.Lock()
        self.closed = False

    @property
    def path(self) -> Path:
        """The git directory."""
        return self._opened.store.place.git_dir

    @property
    def _git(self) -> GitRepository:
        self.check_open()
        return self._opened

    @property
    def _place(self) -> RepositoryPaths:
        return self._git.store.place

    # Logs

    def events(self, ns: str) -> EventLog:
        """Return the log of a namespace (shiplog); the first append creates it."""
        return self._kept(EventLog(self._git, SHIPLOG, ns, self.check_open))

    def messages(self, topic: str) -> EventLog:
        """Return the log of a topic (message plane); the first append creates it."""
        return self._kept(EventLog(self._git, MESSAGES, topic, self.check_open))

    def channel(
        self, name: str, *, key: SigningKey | None = None, lock_wait_s: float = 10.0
    ) -> LedgerChannel:
        """Open a ledger channel. `key` signs its blocks; default: the repository's key that the channel names."""
        from ropewalk.handles.channel import LedgerChannel

        def find_key() -> SigningKey:
            return key or self.key(handle.settings.key)

        handle = LedgerChannel(self._place.home, name, find_key, lock_wait_s=lock_wait_s)
        return self._kept(handle)

    def create_channel(
        self, name: str, *, key: SigningKey | None = None, policy: Policy | None = None
    ) -> LedgerChannel:
        """Create a ledger channel, sealed by `key` (default: the repository's key), and open it."""
        from ropewalk.ledger.channel.settings import create_channel

        signer = key or self.key()
        create_channel(self._place.home, name, NODE_KEY if key is None else "", signer.public, policy)
        return self.channel(name, key=key)

    def gossip(
        self,
        topic: str,
        *,
        create: bool = True,
        profile: ProfileName | None = None,
        signer: SigningKey | None = None,
        apply: Apply | None = None,
        validate: Callable[[Any], bool | Awaitable[bool]] | dict[str, Any] | None = None,
        access: Callable[[MessageHistory, SignedMessage], Awaitable[None] | None] | None = None,
        index_ancestors: bool = False,
        replay: bool = False,
    ) -> GossipTopic:
        """Open a gossip topic; create it unless `create` is False.

        `signer` signs what is appended here. `validate` (a function or a JSON schema), `access` and `apply` run in this
        order for every message before it is stored; an exception rejects it. They may be coroutine functions.
        """
        from ropewalk.gossip.peer.topics import open_topic
        from ropewalk.handles.gossip import GossipTopic

        options: LogOptions = {
            "profile": profile,
            "signer": signer,
            "apply": apply,
            "validate": validate,
            "index_ancestors": index_ancestors,
            "replay": replay,
        }
        if access is not None:
            options["access"] = access
        return self._kept(GossipTopic(open_topic(self._place.home, topic, create=create, **options)))

    def stream(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        origins: Sequence[str] = (),
        page: bool = False,
        bounds: WindowBounds | None = None,
        limits: StreamLimits | None = None,
    ) -> RepositoryStream:
        """Return a WebSocket server of this repository's changes; use it in `async with`.

        Clients need `token` where one is given. `page` also serves the live page to browsers.
        """
        from ropewalk.stream.core.connection import LIMITS
        from ropewalk.stream.core.window import BOUNDS
        from ropewalk.stream.serve.repository_stream import RepositoryStream

        return RepositoryStream(
            self._git,
            bounds=bounds or BOUNDS,
            host=host,
            port=port,
            token=token,
            origins=origins,
            page=page,
            limits=limits or LIMITS,
        )

    # Lists

    def namespaces(self) -> list[str]:
        """Return the namespaces that have events."""
        return self._git.topics(SHIPLOG)

    def topics(self) -> list[str]:
        """Return the message topics that have events."""
        return self._git.topics(MESSAGES)

    def channels(self) -> list[str]:
        """Return the ledger channels."""
        from ropewalk.ledger.channel.settings import channels

        return channels(self._place.home)

    def gossip_topics(self) -> list[str]:
        """Return the gossip topics."""
        from ropewalk.gossip.peer.topics import topics

        return topics(self._place.home)

    # Several logs at once

    def tail(
        self,
        namespaces: Sequence[str],
        since: Mapping[str, str] | None = None,
        limit_per_ns: int = LIMIT_DEFAULT,
    ) -> list[Event]:
        """Return the newest events of several namespaces in turn; with `since`, those after each one's ULID."""
        return self._git.tail(namespaces, since, limit_per_ns)

    def follow(
        self,
        namespaces: Sequence[str],
        since: Mapping[str, str] | None = None,
        stop: threading.Event | None = None,
    ) -> Iterator[Event]:
        """Yield the events of several namespaces as they are appended, in turn, until `stop` is set."""
        return self._git.follow(namespaces, since, stop=stop)

    def mirror(self, sources: str | Sequence[str], to: str) -> MirrorResult:
        """Copy into one log what it lacks of other logs: `repo.mirror("ns:prod", "topic:deploys")`.

        Logs are named as on the command line: `ns:NS`, `topic:T`, and as a source also `channel:C`. `gossip:T` is
        fetched from the repositories and peers that `sources` names by path or URL.
        """
        from ropewalk.bridge.mirror import mirror

        return mirror(self._git, sources, to)

    def governance(self) -> Governance:
        """Return the proposals of this repository: `propose`, `approve`, `reject`, `execute`, `proposals`, `get`."""
        from ropewalk.bridge.governance.run import Governance

        return Governance(self._git)

    def verify(self, ns: str | None = None, *, deep: bool = False, trust: Trust | None = None) -> Report:
        """Verify every log of every engine, or those called `ns`; with `deep` also every byte of every pack.

        `trust` names the keys that sign heads and seal channels. Without it the repository's own keys count.
        """
        from ropewalk.repository_check import verify_all

        return verify_all(self._place, ns, deep=deep, trust=trust)

    def key(self, name: str = NODE_KEY, *, passphrase: bytes | None = None) -> SigningKey:
        """Return a signing key kept in this repository; default: its own key, made by `init`.

        `passphrase` opens an encrypted key, which then stays open for this process: appends find it too.
        """
        return key_files.load_signing(self._place.keys, name, passphrase)

    # Closing

    def check_open(self) -> None:
        """Raise `Usage` if the repository is closed."""
        if self.closed:
            raise Usage(
                f"repository {self.path} must be open, but it is closed",
                advice="Open it again with `ropewalk.open`.",
            )

    def close(self) -> None:
        """Close every handle and finish background work. Acknowledged events do not depend on it."""
        with self._handles_lock:
            if self.closed:
                return
            for handle in self._handles:
                handle.close()
            self.closed = True
        self._opened.close()

    def __repr__(self) -> str:
        return f"<Repository {str(self.path)!r}{' closed' if self.closed else ''}>"

    def _kept(self, handle: H) -> H:
        """Close the handle with the repository. Handles of git logs hold nothing and are not kept."""
        with self._handles_lock:
            self.check_open()
            if not isinstance(handle, EventLog):
                self._handles = [each for each in self._handles if not each.closed] + [handle]
        return handle


def init(path: str | os.PathLike[str]) -> Repository:
    """Make a bare git repository with a key at `path`, or add what is missing to the one there, and open it.

    >>> import ropewalk, tempfile
    >>> with tempfile.TemporaryDirectory() as folder, ropewalk.init(folder) as repo:
    ...     repo.namespaces(), repo.channels(), repo.key().public.alg
    ([], [], 'ed25519')
    """
    place, _ = make_repository(Path(path))
    if not (place.keys / f"{NODE_KEY}.json").exists():
        key_files.make(place.keys, NODE_KEY, "ed25519", os.urandom(key_files.SECRET_BYTES))
    return open_repository(place.git_dir)


def open_repository(
    path: str | os.PathLike[str] = ".",
    *,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    entropy: Callable[[int], bytes] = os.urandom,
    disk: Disk | None = None,
    lock_wait_s: float = 10.0,
    allow_secrets: bool | Collection[str] = False,
) -> Repository:
    """Open the git repository at `path` or around it. Use it in a `with` block, or call `close()`.

    `allow_secrets` accepts payloads that look like secrets: True for all, or the kinds to accept.

    >>> import ropewalk, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ropewalk.init(folder).close()
    ...     with ropewalk.open(folder) as repo:
    ...         len(repo.events("prod"))
    0
    """
    git = opening.open_repository(path, now_ms=now_ms, entropy=entropy, disk=disk, lock_wait_s=lock_wait_s)
    git.allow_secrets = allow_secrets
    return Repository(git)
