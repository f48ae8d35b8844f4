"""`ropewalk gossip sync` and `serve` as processes: what other software sees, and what kill −9 leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.forking import Popen
from tests.unit.cli.conftest import Ropewalk, living_in, move_in, ropewalk  # noqa: F401 - a fixture
from tests.waiting import aside, ended, soon, until

from ropewalk.cli.gossip import net
from ropewalk.gossip.core.ids import ProfileName
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.peer.topics import open_topic, topics
from ropewalk.kernel.keys import SigningKey
from ropewalk.net.frame_pipe import IDLE_S
from ropewalk.net.pipe import Pipe
from ropewalk.net.tcp import serve_tcp

TOPIC = "com.example.chat"
pytestmark = pytest.mark.timeout(400)  # a dozen processes one after the other, on whatever machine


def key(n: int) -> SigningKey:
    return SigningKey.generate("ed25519", bytes([n] * 32))


class Processes:
    """Commands that run beside the test, all ended after it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[str]] = []

    def start(self, repo: str, *arguments: str) -> subprocess.Popen[str]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._folder), "LANG": "C.UTF-8"}
        process = Popen[str](
            ["--repo", repo, "gossip", *arguments],
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._running.append(process)
        return process

    def serve(self, repo: str, *more: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        port = () if "--port" in more else ("--port", "0")
        process = self.start(repo, "serve", "--topic", TOPIC, *port, *more)
        assert process.stdout is not None
        said: dict[str, Any] = json.loads(process.stdout.readline())
        return process, said

    def close(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture(scope="module")
def two_repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two_repositories")
    for name in ("one.git", "two.git"):
        assert living_in(folder)("init", name).code == 0
    return folder


@pytest.fixture
def beside(tmp_path: Path, two_repositories: Path) -> Iterator[Processes]:
    move_in(two_repositories, tmp_path)
    found = Processes(tmp_path)
    yield found
    found.close()


def home(tmp_path: Path, repo: str) -> Path:
    return tmp_path / repo / "ropewalk"


def fill(tmp_path: Path, repo: str, count: int, profile: ProfileName | None = None, signer: int = 1) -> None:
    with open_topic(home(tmp_path, repo), TOPIC, create=True, signer=key(signer), profile=profile) as log:
        log.append_many({"n": n, "text": "x" * 200} for n in range(count))


def count(tmp_path: Path, repo: str) -> int:
    try:
        with open_topic(home(tmp_path, repo), TOPIC, create=False) as log:
            return len(log)
    except Exception:
        return 0  # not made yet


def has_grown(log: GossipLog, start: int) -> bool:
    return len(log) > start


def test_learned_peer_stands_in_for_a_stopped_one(beside, ropewalk, tmp_path):  # noqa: F811
    """C knows A only. It learns B, which announced itself to A, and gets what is appended on B when A is gone."""
    assert ropewalk("init", "three.git").code == 0
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    announced = f"ws://127.0.0.1:{port}"
    fill(tmp_path, "one.git", 1)
    first, a = beside.serve("one.git", "--discover", "127.0.0.1:1")
    beside.serve("two.git", "--peer", a["url"], "--port", str(port), "--announce", announced)

    def peers(repo: str) -> dict[str, tuple[str, str | None]]:
        rows = ropewalk("--repo", repo, "gossip", "peers", "--topic", TOPIC, "--json").json["peers"]
        return {row["url"]: (row["state"], row["error"]) for row in rows}

    refusal = "no --discover pattern allows it"
    until(lambda: peers("one.git").get(announced) == ("learned", refusal))
    beside.serve("three.git", "--peer", a["url"], "--discover", f"127.0.0.0/8:{port}")
    until(lambda: peers("three.git").get(announced) == ("connected", None))
    first.kill()
    first.wait()
    fill(tmp_path, "two.git", 1, signer=2)
    until(lambda: count(tmp_path, "three.git") == 2)


def test_events_of_other_processes_are_printed(beside, ropewalk, tmp_path):  # noqa: F811
    """One process prints the message, the commit and the sync of another one."""
    fill(tmp_path, "two.git", 1)
    _, server = beside.serve("one.git")
    following = beside.start("two.git", "log", "--topic", TOPIC, "--events", "--json")

    def sync() -> bool:
        fill(tmp_path, "one.git", 1, signer=2)
        assert ropewalk("--repo", "two.git", "gossip", "sync", server["url"], "--topic", TOPIC).code == 0
        return bool(select.select([following.stdout], [], [], 0.5)[0])

    until(sync)  # it prints what happens after it has begun
    assert following.stdout is not None
    found = [json.loads(following.stdout.readline())]
    while found[-1]["event"] != "sync":
        found.append(json.loads(following.stdout.readline()))
    assert {row["event"] for row in found} == {"message", "commit", "sync"}
    assert found[-1]["peer"] == server["url"]
    assert found[-1]["root"] == found[-2]["root"]


@pytest.mark.parametrize("profile", ["v0.13", pytest.param("v0.6", marks=pytest.mark.slow)])
def test_three_served_peers_exchange_every_append(beside, ropewalk, tmp_path, profile):  # noqa: F811
    """S3-overview.6 with commands alone: each of three connected peers appends, and all of them print all of it."""
    assert ropewalk("init", "three.git").code == 0
    repos = ("one.git", "two.git", "three.git")
    _, first = beside.serve(repos[0], "--profile", profile)
    second, middle = beside.serve(repos[1], "--peer", first["url"])
    beside.serve(repos[2], "--peer", middle["url"])
    following = beside.start(repos[2], "log", "--topic", TOPIC, "--follow", "--limit", "4", "--json")

    def texts(repo: str) -> list[str]:
        rows = ropewalk("--repo", repo, "gossip", "log", "--topic", TOPIC, "--json").json["messages"]
        return sorted(row["payload"]["text"] for row in rows)

    def append(repo: str, payload: str) -> None:
        done = ropewalk(
            "--repo", repo, "gossip", "append", "--topic", TOPIC, "--payload", "-", stdin=payload.encode()
        )
        assert done.code == 0, done.err

    for n, repo in enumerate(repos):
        payload = json.dumps({"text": f"{n} from {repo}"})
        append(repo, payload)
    wanted = [f"{n} from {repo}" for n, repo in enumerate(repos)]
    for repo in repos:
        until(lambda repo=repo: texts(repo) == wanted)  # type: ignore[misc]
    second.kill()  # the middle goes; it returns on the same port, and both ends find it again
    second.wait()
    payload = json.dumps({"text": "9 while the middle was away"})
    append(repos[0], payload)
    beside.serve(repos[1], "--peer", first["url"], "--port", str(middle["port"]))
    until(lambda: len(texts(repos[2])) == 4)
    assert following.stdout is not None
    rows = [json.loads(following.stdout.readline()) for _ in range(4)]
    assert sorted(row["payload"]["text"] for row in rows) == [*wanted, "9 while the middle was away"]
    assert following.wait() == 0
    roots = {ropewalk("--repo", repo, "gossip", "root", "--topic", TOPIC).text for repo in repos}
    assert len(roots) == 1


def test_peers_lists_what_serve_is_connected_to(beside, ropewalk, tmp_path):  # noqa: F811
    _, first = beside.serve("one.git")
    second, _ = beside.serve("two.git", "--peer", first["url"], "--peer", "ws://127.0.0.1:9")

    def peers(repo: str) -> list[dict[str, Any]]:
        found = ropewalk("--repo", repo, "gossip", "peers", "--topic", TOPIC, "--json").json["peers"]
        assert isinstance(found, list)
        return found

    until(lambda: any(row["state"] == "connected" for row in peers("two.git")))
    rows = {row["url"]: row for row in peers("two.git")}
    assert set(rows) == {first["url"], "ws://127.0.0.1:9"}
    assert rows["ws://127.0.0.1:9"]["state"] in ("connecting", "waiting")
    assert all({"url", "state", "since", "received", "sent"} <= row.keys() for row in rows.values())
    until(lambda: len(peers("one.git")) == 1)
    assert "connected" in ropewalk("--repo", "one.git", "gossip", "peers", "--topic", TOPIC).text
    second.send_signal(signal.SIGTERM)
    assert second.wait() == 0
    until(lambda: peers("two.git") == peers("one.git") == [])


@pytest.mark.parametrize(("profile", "scheme"), [("v0.13", "ws"), ("v0.6", "tcp")])
def test_serve_says_where_and_sync_answers_as_promised(beside, ropewalk, tmp_path, profile, scheme):  # noqa: F811
    fill(tmp_path, "one.git", 30, profile)
    process, said = beside.serve("one.git")
    assert said["url"] == f"{scheme}://127.0.0.1:{said['port']}"
    assert (said["topic"], said["profile"]) == (TOPIC, profile)
    answer = ropewalk("--repo", "two.git", "gossip", "sync", said["url"], "--topic", TOPIC, "--json")
    assert answer.code == 0, answer.err
    assert (answer.json["received"], answer.json["sent"]) == (30, 0)
    fill(tmp_path, "two.git", 5, signer=2)
    answer = ropewalk("--repo", "two.git", "gossip", "sync", said["url"], "--topic", TOPIC, "--json")
    assert (answer.json["received"], answer.json["sent"]) == (0, 5)
    there = ropewalk("--repo", "one.git", "gossip", "root", "--topic", TOPIC, "--json")
    assert there.json == answer.json["root"]
    fill(tmp_path, "two.git", 1, signer=2)
    answer = ropewalk("--repo", "two.git", "gossip", "sync", said["url"], "--topic", TOPIC, "--pull-only")
    assert answer.text.startswith("ok  received=0 sent=0 root=")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_ctrl_c_ends_serve_with_130(beside):
    process, _ = beside.serve("one.git")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


def test_exit_codes_of_sync(beside, ropewalk, tmp_path):  # noqa: F811
    def sync(url: str, *more: str) -> Any:
        return ropewalk("--repo", "two.git", "gossip", "sync", url, "--topic", TOPIC, "--json", *more)

    assert sync("ws://127.0.0.1:1").code == 7
    assert sync("ftp://127.0.0.1:1").code == 2
    assert sync("tcp://127.0.0.1:1").code == 7  # a sync with nobody has made no topic of either profile
    fill(tmp_path, "two.git", 1, "v0.13")
    assert sync("tcp://127.0.0.1:1").json["code"] == "Conflict"

    async def silent(pipe: Pipe) -> None:
        while await pipe.receive():
            pass

    async def babbling(pipe: Pipe) -> None:
        await pipe.send(b"\xff" * 100)
        await silent(pipe)

    async def against(accept: Any, topic: str, idle_s: str) -> int:
        listening = await serve_tcp(accept, "127.0.0.1", 0)
        url = f"tcp://127.0.0.1:{listening.port}"
        arguments = ("--repo", "two.git", "gossip", "sync", url, "--topic", topic, "--idle", idle_s)
        answer = await aside(ropewalk, *arguments)
        await listening.close()
        return int(answer.code)

    assert asyncio.run(against(silent, "com.silent", "0.5")) == 7
    assert asyncio.run(against(babbling, "com.babbling", "60")) == 8
    fill(tmp_path, "one.git", 3, "v0.6")
    _, said = beside.serve("one.git")
    # Under another topic the signatures do not hold: v0.6 does not say its topic on the wire.
    lied = ropewalk("--repo", "two.git", "gossip", "sync", said["url"], "--topic", "com.other")
    assert lied.code == 5


def test_a_sync_with_a_peer_of_another_topic_leaves_no_topic(beside, ropewalk, tmp_path):  # noqa: F811
    _, said = beside.serve("one.git")
    answer = ropewalk("--repo", "two.git", "gossip", "sync", said["url"], "--topic", "com.other", "--json")
    assert (answer.code, answer.json["code"]) == (7, "CapabilityUnavailable")
    assert "com.other" in answer.json["detail"]
    assert topics(home(tmp_path, "two.git")) == []


def test_the_idle_limit_in_the_help_is_the_real_one():
    assert net.IDLE_S == IDLE_S


def test_what_another_process_appends_is_pushed_to_connected_peers(beside, ropewalk, tmp_path):  # noqa: F811
    from ropewalk.gossip.peer.peer import Peer
    from ropewalk.gossip.peer.topics import open_log
    from ropewalk.net.websocket import connect_websocket

    _, said = beside.serve("one.git")

    async def run() -> None:
        with open_log(TOPIC) as follower:
            pipe = await connect_websocket(said["url"], timeout_s=30)
            async with Peer(follower, pipe, dialer=True) as peer:
                await peer.start_push()
                await asyncio.sleep(0)
                words = (
                    "--repo",
                    "one.git",
                    "gossip",
                    "append",
                    "--topic",
                    TOPIC,
                    "--payload",
                    "-",
                    "--json",
                )
                made = await aside(partial(ropewalk, *words, stdin=b'{"text":"hi"}'))
                await soon(partial(follower.has, made.json["id"]))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("victim", "profile"),
    [
        ("puller", "v0.13"),
        ("server", "v0.6"),
        pytest.param("puller", "v0.6", marks=pytest.mark.slow),
        pytest.param("server", "v0.13", marks=pytest.mark.slow),
    ],
)
def test_kill_9_in_the_middle_of_a_sync_loses_nothing_acknowledged(
    beside,
    ropewalk,  # noqa: F811
    tmp_path,
    profile,
    victim,
):
    # Whoever lacks the messages is killed while they come: the one that syncs, or the one that serves.
    server, syncer, lacking = (
        ("one.git", "two.git", "two.git") if victim == "puller" else ("two.git", "one.git", "two.git")
    )
    fill(tmp_path, "two.git", 20, profile, signer=2)
    stopped_at = total = 20
    for more in (4000, 8000, 16000, 32000):  # a sync that was over before the kill is tried with a longer log
        fill(tmp_path, "one.git", more, profile)
        total += more
        with open_topic(home(tmp_path, lacking), TOPIC, create=False) as watched:
            grown = partial(has_grown, watched, len(watched))
            serving, said = beside.serve(server)
            syncing = beside.start(syncer, "sync", said["url"], "--topic", TOPIC, "--idle", "60")
            killed = syncing if victim == "puller" else serving
            until(grown)
            killed.send_signal(signal.SIGSTOP)
            before = [signed.id for signed in watched.iterate()]
            killed.kill()
            killed.wait()
            assert all(watched.has(id_) for id_ in before)
        # Counted after opening anew: a commit whose last act was cut off is whole on disk, but an open reader still
        # sees the one before it.
        with open_topic(home(tmp_path, lacking), TOPIC, create=False) as left:
            assert all(left.has(id_) for id_ in before)
            stopped_at = len(left)
        if stopped_at < total:
            break
        for process in (serving, syncing):
            process.kill()
            process.wait()
    assert stopped_at < total
    if victim == "server":
        assert syncing.wait(60) == 7
    report = ropewalk("--repo", lacking, "gossip", "verify", "--topic", TOPIC, "--json")
    assert report.code == 0, report.text
    if victim == "server":
        serving, said = beside.serve(server)
    again = ropewalk("--repo", syncer, "gossip", "sync", said["url"], "--topic", TOPIC, "--json")
    assert again.code == 0, again.text
    moved = again.json["received"] if victim == "puller" else again.json["sent"]
    assert moved == total - stopped_at
    assert count(tmp_path, "one.git") == count(tmp_path, "two.git") == total
    report = ropewalk("--repo", lacking, "gossip", "verify", "--topic", TOPIC, "--json")
    assert report.code == 0, report.text


def mirroring(tmp_path: Path, *sources: str, more: tuple[str, ...] = ()) -> list[str]:
    named = [part for source in sources for part in ("--from", source)]
    return ["--repo", str(tmp_path / "two.git"), "mirror", *named, "--to", f"gossip:{TOPIC}", *more, "--json"]


@pytest.mark.slow
def test_killed_gossip_mirror_goes_on(beside, tmp_path, ropewalk):  # noqa: F811
    """SIGKILL after the first messages were stored, several times; the last run ends with all of them."""
    fill(tmp_path, "one.git", 6000)
    for stored in (1, 1000, 2500):
        command = mirroring(tmp_path, "one.git")
        with ended(Popen[bytes](command, cwd=tmp_path, stdout=subprocess.DEVNULL)) as run:
            while run.poll() is None and count(tmp_path, "two.git") < stored:
                time.sleep(0.005)  # `ended` kills it
    assert ropewalk(*mirroring(tmp_path, "one.git")).code == 0
    assert count(tmp_path, "two.git") == 6000
    row = ropewalk("--repo", "two.git", "bridge", "ls", "--json").json["bridges"][0]
    assert (row["moved"], row["lag"], row["error"]) == (6000, 0, None)
    assert ropewalk("--repo", "two.git", "gossip", "verify", "--topic", TOPIC).code == 0


@pytest.mark.slow
def test_gossip_mirror_follows_a_peer_that_restarts(beside, tmp_path, ropewalk):  # noqa: F811
    fill(tmp_path, "one.git", 5)
    server, said = beside.serve("one.git")
    url = f"ws://127.0.0.1:{said['port']}"
    with ended(
        Popen[bytes](mirroring(tmp_path, url, more=("--follow",)), cwd=tmp_path, stdout=subprocess.DEVNULL)
    ):
        until(lambda: count(tmp_path, "two.git") == 5)
        server.kill()
        server.wait()
        fill(tmp_path, "one.git", 2)
        until(lambda: bool(state(ropewalk)["error"]))
        beside.serve("one.git", "--port", str(said["port"]))
        until(lambda: count(tmp_path, "two.git") == 7)
        until(lambda: state(ropewalk)["moved"] == 7)
    assert state(ropewalk)["error"] is None


def state(command: Ropewalk) -> dict[str, Any]:
    rows = command("--repo", "two.git", "bridge", "ls", "--json").json["bridges"]
    return rows[0] if rows else {"error": None, "moved": 0}
