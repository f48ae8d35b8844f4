"""`gossip serve --auth`: the identities and rights of `ropewalk serve` decide which peers may connect."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import websockets.sync.client as client
from tests.forking import Popen
from tests.serving import call, environment, make
from tests.unit.gossip.conftest import memory_log
from tests.waiting import LIMIT_S, ended, soon
from websockets.exceptions import InvalidStatus

from ropewalk.gossip import connect
from ropewalk.gossip.peer.server import GossipServer

TOPIC = "com.example"


@contextmanager
def guarded(folder: Path) -> Iterator[str]:
    """A peer that asks for identities: its URL."""
    process = Popen[bytes](
        ["--repo", str(folder / "log.git"), "gossip", "serve", "--topic", TOPIC, "--port", "0",
         "--auth", str(folder / "log.git" / "ropewalk" / "auth.json")],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment(folder), cwd=folder,
    )  # fmt: skip
    with ended(process):
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]


def token(folder: Path, name: str, right: str) -> str:
    done = call(folder, "auth", "add", name, "--right", right)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


def visit(url: str, headers: dict[str, str]) -> None:
    with client.connect(url, additional_headers=headers, proxy=None, open_timeout=LIMIT_S):
        pass


def test_gossip_peers_need_the_right_to_read(tmp_path):
    make(tmp_path)
    ada = token(tmp_path, "ada", f"gossip/{TOPIC}:read,append")
    bob, eve = (
        token(tmp_path, "bob", f"gossip/{TOPIC}:append"),
        token(tmp_path, "eve", "gossip/x:read,append"),
    )
    with guarded(tmp_path) as url:
        for each in (None, "wrong", bob, eve):
            headers = {"Authorization": f"Bearer {each}"} if each is not None else {}
            with pytest.raises(InvalidStatus, match="401"):
                visit(url, headers)
        refused = call(tmp_path, "gossip", "sync", url, "--topic", TOPIC)
        assert refused.returncode == 7, refused
        (tmp_path / "token").write_text(ada)
        clone = tmp_path / "clone"
        clone.mkdir()
        make(clone)
        synced = call(
            clone, "gossip", "sync", url, "--topic", TOPIC, "--token-file", str(tmp_path / "token"), "--json"
        )
        assert synced.returncode == 0 and ada.encode() not in synced.stderr, synced
        headers = {"Authorization": f"Bearer {ada}"}
        visit(url, headers)
        assert call(tmp_path, "auth", "revoke", "ada").returncode == 0
        with pytest.raises(InvalidStatus, match="401"):  # without a restart
            visit(url, headers)


def test_peer_that_may_only_read_changes_nothing():
    """It gets all there is and all that comes, and nothing of its own arrives, until it may append."""
    refusals: list[str | None] = ["bob may not append"]

    async def main() -> None:
        ours, theirs = memory_log(), memory_log()
        ours.append({"n": 1})
        theirs.append({"mine": 1})
        admit, append = (lambda *_shown: None), (lambda *_shown: refusals[0])
        async with GossipServer(ours, admit=admit, may_append=append) as server, connect(theirs, server.url):
            await soon(lambda: len(theirs) == 2)
            theirs.append({"mine": 2})
            ours.append({"n": 2})
            await soon(lambda: len(theirs) == 4)
            (peer,) = server.peers
            assert len(ours) == 2 and peer.received == 0
            refusals[0] = None
            await soon(lambda: len(ours) == 4)

    asyncio.run(main())


def test_revoked_gossip_peer_is_disconnected(caplog):
    """A peer that is connected leaves within a second or so after its right is gone."""
    refusals: list[str | None] = [None]

    async def main() -> None:
        ours, theirs = memory_log(), memory_log()
        admit = lambda _shown, _certificate: refusals[0]  # noqa: E731
        async with GossipServer(ours, admit=admit) as server, connect(theirs, server.url):
            await soon(lambda: bool(server.peers))
            refusals[0] = "ada was revoked"
            await soon(lambda: not server.peers)
        assert "ada was revoked" in caplog.text

    asyncio.run(main())
