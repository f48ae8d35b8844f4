"""`ropewalk ledger serve`, `send` and `pull` as processes: what kill −9 leaves behind, and what other software sees."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.forking import Popen
from tests.unit.cli.conftest import Answer, living_in, move_in
from tests.unit.ledger.certifying import Authority
from tests.unit.ledger.making import observed
from tests.waiting import LIMIT_S, ended, until

from ropewalk.cli.ledger.remote import remote
from ropewalk.ledger.channel.channel import open_channel, verify_blocks
from ropewalk.ledger.envelope.envelope import parse
from ropewalk.ledger.remote.client import RETRY_S
from ropewalk.net.frame_pipe import IDLE_S

pytestmark = pytest.mark.timeout(400)


class House:
    """A folder with a repository, and servers that are ended after the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "log.git" / "ropewalk"
        self._running: list[subprocess.Popen[str]] = []
        self._run = living_in(folder)

    def __call__(self, *arguments: str, repo: str = "log.git", **more: Any) -> Answer:
        return self._run("ledger", *arguments, env={"ROPEWALK_REPO": str(self.folder / repo)}, **more)

    def command(self, *arguments: str) -> Answer:
        return self._run(*arguments)

    def start(self, *arguments: str, repo: str = "log.git", **streams: Any) -> subprocess.Popen[str]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "LANG": "C.UTF-8"}
        process = Popen[str](
            ["ledger", *arguments],
            cwd=self.folder,
            env={**environment, "ROPEWALK_REPO": repo},
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, **streams},
        )
        self._running.append(process)
        return process

    def serve(self, *more: str, port: int = 0) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        process = self.start("serve", "--port", str(port), *more)
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline())

    def envelopes(self) -> list[bytes]:
        with open_channel(self.home, "audit") as channel:
            return [raw for block in channel.blocks() for raw in block.envelopes]

    def close(self) -> None:
        for process in self._running:
            with process:  # closes what is still open, and waits
                process.kill()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remote")
    run = living_in(folder)
    assert run("init", "log.git").code == 0
    assert run("--repo", "log.git", "ledger", "create", "--channel", "audit").code == 0
    return folder


@pytest.fixture
def house(tmp_path: Path, made: Path) -> Iterator[House]:
    move_in(made, tmp_path)
    found = House(tmp_path)
    yield found
    found.close()


def test_the_limits_in_the_help_are_those_of_the_engine():
    assert (remote.IDLE_S, remote.RETRY_S) == (IDLE_S, RETRY_S)


def test_send_over_tls_answers_as_append(house, tmp_path):
    tls = tmp_path / "tls"
    tls.mkdir()
    authority = Authority(tls)
    authority.files("server")
    authority.files("client")
    server, said = house.serve(
        *("--tls-cert", "tls/server.crt", "--tls-key", "tls/server.key", "--client-ca", "tls/ca.pem")
    )
    assert said["url"] == f"tls://127.0.0.1:{said['port']}" and said["channels"] == ["audit"]
    shown = ("--tls-cert", "tls/client.crt", "--tls-key", "tls/client.key", "--server-ca", "tls/ca.pem")
    to = ("send", said["url"], "--channel", "audit", "--json", *shown, "--file", "-")
    one = house(*to, repo="nowhere", stdin=observed(1).raw)
    assert one.code == 0, one
    again = house("append", "--channel", "audit", "--json", "--file", "-", stdin=observed(1).raw)
    assert again.json == one.json | {"replayed": True}
    lines = b"\n".join([observed(2).raw, b"nonsense", observed(1).raw])
    many = house(*to, "--jsonl", "--compress", repo="nowhere", stdin=lines)
    answers = [json.loads(line) for line in many.text.splitlines()]
    assert many.code == 8 and [answer.get("code") for answer in answers] == [None, "InvalidJson", None]
    assert answers[1]["detail"].startswith("line 2: ") and answers[2]["replayed"]
    stopped = house(*to, "--jsonl", "--stop-on-error", stdin=b"nonsense\n" + observed(3).raw)
    assert stopped.code == 8 and len(stopped.text.splitlines()) == 1
    server.send_signal(signal.SIGTERM)
    assert server.wait(LIMIT_S) == 0
    assert house(*to, stdin=observed(3).raw).code == 7
    assert len(house.envelopes()) == 2


def test_server_killed_midway_seals_each_once(house):
    server, said = house.serve()
    raws = [observed(i).raw for i in range(2_000)]
    sending = ("send", said["url"], "--channel", "audit", "--file", "-", "--jsonl", "--json")
    client = house.start(*sending, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert client.stdin is not None and client.stdout is not None
    with ended(client):
        client.stdin.write("".join(raw.decode() + "\n" for raw in raws[:1_000]))
        client.stdin.flush()
        answers = [client.stdout.readline()]  # some stand, others are on their way
        server.kill()
        server.wait()
        house.serve(port=said["port"])
        client.stdin.write("".join(raw.decode() + "\n" for raw in raws[1_000:]))
        client.stdin.close()
        answers += client.stdout.readlines()
        assert client.wait(LIMIT_S) == 0
    receipts = [json.loads(answer) for answer in answers]
    assert [receipt["envelope_id"] for receipt in receipts] == [parse(raw).hex_id for raw in raws]
    places = [(receipt["height"], receipt["index"]) for receipt in receipts]
    assert places == sorted(places) and len(set(places)) == len(raws)
    assert house.envelopes() == raws
    assert verify_blocks(house.home, "audit", deep=True).ok


def test_whoever_asks_for_it_waits_for_a_server_that_is_about_to_start(house):
    server, said = house.serve()
    server.send_signal(signal.SIGTERM)
    assert server.wait(LIMIT_S) == 0
    to = (said["url"], "--channel", "audit")
    assert house("send", *to, "--file", "-", stdin=observed(1).raw).code == 7  # nobody asked for patience
    late = house("send", *to, "--retry", "0.1", "--file", "-", stdin=observed(1).raw)
    assert late.code == 7 and "Connection refused; retrying for 0.1 s" in late.err
    (house.folder / "one.json").write_bytes(observed(1).raw)
    assert house.command("init", "copy.git").code == 0
    sending = ("send", *to, "--retry", str(LIMIT_S), "--file", "one.json")
    client = house.start(*sending, stderr=subprocess.PIPE)
    follower = house.start("pull", *to, "--follow", repo="copy.git", stderr=subprocess.PIPE)
    with ended(client), ended(follower):
        assert client.stderr is not None and follower.stderr is not None and follower.stdout is not None
        assert "retrying for" in client.stderr.readline() and "retrying for" in follower.stderr.readline()
        house.serve(port=said["port"])
        assert client.wait(LIMIT_S) == 0
        assert follower.stdout.readline().startswith("ok  audit")
    assert house.envelopes() == [observed(1).raw]


def test_a_client_killed_in_the_middle_leaves_a_channel_that_goes_on(house):
    _, said = house.serve()
    raws = [observed(i).raw for i in range(1_500)]
    sending = ("send", said["url"], "--channel", "audit", "--file", "-", "--jsonl", "--json")
    client = house.start(*sending, stdin=subprocess.PIPE)
    assert client.stdin is not None and client.stdout is not None
    client.stdin.write("".join(raw.decode() + "\n" for raw in raws))
    client.stdin.flush()
    first = json.loads(client.stdout.readline())
    client.kill()
    client.wait()
    again = house(*sending, stdin=b"\n".join(raws))
    assert again.code == 0
    receipts = [json.loads(line) for line in again.text.splitlines()]
    assert receipts[0] == first | {"replayed": True}
    assert house.envelopes() == raws  # in order, each once


def test_a_copy_is_kept_up_while_the_channel_grows(house):
    assert house._run("init", "copy.git").code == 0
    trust = house("trust", "--channel", "audit", "-o", "trust.json")
    assert trust.code == 0
    _, said = house.serve("--read-only")
    house("append", "--channel", "audit", "--file", "-", stdin=observed(1).raw)
    pulling = ("pull", said["url"], "--channel", "audit", "--trust", "trust.json", "--json")
    copying = house.start(*pulling, "--follow", "--every", "0.05", repo="copy.git")
    assert copying.stdout is not None
    with ended(copying):
        assert json.loads(copying.stdout.readline())["envelopes"] == 1
        house("append", "--channel", "audit", "--file", "-", stdin=observed(2).raw)
        second = json.loads(copying.stdout.readline())
        assert (second["blocks"], second["height"]) == (1, 1)
        copying.stdout.close()  # nobody reads any more: it ends by itself
        assert copying.wait(LIMIT_S) == 0
    report = house(
        "verify", "--channel", "audit", "--deep", "--trust", "trust.json", "--json", repo="copy.git"
    )
    assert report.code == 0 and report.json["entries"] == 2
    refused = house("send", said["url"], "--channel", "audit", "--file", "-", stdin=observed(3).raw)
    assert refused.code == 6 and "cannot be appended to" in refused.err


def test_replica_serves_blocks_but_signs_no_head(house):
    assert house("append", "--channel", "audit", "--file", "-", stdin=observed(1).raw).code == 0
    _, said = house.serve()
    for name in ("copy.git", "second.git"):
        assert house.command("init", name).code == 0
    assert house("pull", said["url"], "--channel", "audit", repo="copy.git").code == 0
    process = house.start("serve", "--port", "0", repo="copy.git")
    assert process.stdout is not None
    copy = json.loads(process.stdout.readline())["url"]
    assert house("pull", copy, "--channel", "audit", repo="second.git").code == 0
    assert house("verify", "--channel", "audit", "--deep", repo="second.git").code == 0
    refused = house("send", copy, "--channel", "audit", "--json", "--file", "-", stdin=observed(2).raw)
    assert refused.code == 4 and "`ropewalk ledger send`" in refused.json["advice"]
    here = house("append", "--channel", "audit", "--file", "-", repo="copy.git", stdin=observed(2).raw)
    assert here.code == 4 and "Update a replica with `ropewalk ledger pull`" in here.err
    note = house("head", "--channel", "audit", "--note", "--host", "a.example", "--json", repo="copy.git")
    assert note.code == 4 and "no available key" in note.json["detail"]


def test_commands_that_append_here_go_on_beside_a_server(house):
    _, said = house.serve()
    sending = ("send", said["url"], "--channel", "audit", "--file", "-")
    there = house(*sending, stdin=observed(1).raw)
    here = house("append", "--channel", "audit", "--file", "-", stdin=observed(2).raw)
    again = house(*sending, stdin=observed(3).raw)
    assert (there.code, here.code, again.code) == (0, 0, 0), (there, here, again)
    assert len(house.envelopes()) == 3


def test_a_server_without_channels_says_so_and_serves_those_to_come(house):
    assert house.command("init", "empty.git").code == 0
    server = house.start("serve", "--port", "0", repo="empty.git", stderr=subprocess.PIPE)
    with ended(server):
        assert server.stdout is not None and server.stderr is not None
        said = json.loads(server.stdout.readline())
        assert said["channels"] == [] and "there are no channels to serve" in server.stderr.readline()
        assert house("create", "--channel", "late", repo="empty.git").code == 0
        sent = house("send", said["url"], "--channel", "late", "--file", "-", stdin=observed(1).raw)
        assert sent.code == 0, sent


def test_what_makes_no_sense_is_told_before_anything_listens(house):
    for arguments, complaint in (
        (("--append-only", "--read-only"), "exclude each other"),
        (("--tls-cert", "x"), "must be given together"),
        (("--host", "0.0.0.0"), "would not be encrypted"),
    ):
        answer = house("serve", "--port", "0", *arguments)
        assert answer.code == 2 and complaint in answer.err
    assert house("serve", "--port", "0", "--channel", "nope").code == 3
    assert (
        house("send", "tls://127.0.0.1:1", "--channel", "audit", "--file", "-", stdin=observed(1).raw).code
        == 2
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert house("serve", "--port", str(taken.getsockname()[1])).code == 7


def test_an_interrupt_ends_a_server_as_it_ends_every_command(house):
    server, said = house.serve()
    server.send_signal(signal.SIGINT)
    assert server.wait(LIMIT_S) == 130
    until(
        lambda: (
            house("send", said["url"], "--channel", "audit", "--file", "-", stdin=observed(1).raw).code == 7
        )
    )
