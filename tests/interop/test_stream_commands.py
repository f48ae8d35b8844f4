"""`ropewalk stream serve` and `sub` as processes: what other software sees, and what kill −9 leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.forking import Popen
from tests.unit.cli.conftest import Ropewalk, living_in, move_in, ropewalk  # noqa: F401 - a fixture
from tests.unit.stream.conftest import publish
from tests.unit.stream.items import bus_event
from tests.unit.stream.test_following import served_beside

from ropewalk.cli.stream import serve as command
from ropewalk.errors import Unavailable
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.stream.core.frames import BusEvent
from ropewalk.stream.core.subscriber import Lost
from ropewalk.stream.core.window import BOUNDS
from ropewalk.stream.serve.follow import follow

pytestmark = pytest.mark.timeout(400)


class Processes:
    """Commands that run beside the test, all ended after it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, stdout: Any = subprocess.PIPE) -> subprocess.Popen[str]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._folder), "LANG": "C.UTF-8"}
        process = Popen[str](
            ["stream", *arguments],
            cwd=self._folder,
            env={**environment, "ROPEWALK_REPO": "log.git"},
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._running.append(process)
        return process

    def serve(self, *more: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        process = self.start("serve", *(more or ("--port", "0")))
        return process, next(lines(process))

    def close(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.communicate()


def lines(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def connected(process: subprocess.Popen[str]) -> None:
    """Wait until the server says that somebody came."""
    assert process.stderr is not None
    for line in process.stderr:
        if ": connected" in line:
            return
    raise AssertionError("nobody came")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stream")
    assert living_in(folder)("init", "log.git").code == 0
    return folder


@pytest.fixture
def beside(tmp_path: Path, repository: Path) -> Iterator[Processes]:
    move_in(repository, tmp_path)
    found = Processes(tmp_path)
    yield found
    found.close()


@pytest.fixture
def log(beside: Processes, tmp_path: Path) -> Iterator[GitRepository]:
    with open_repository(tmp_path / "log.git") as opened:
        yield opened


def test_what_one_process_publishes_another_prints(beside, log):
    server, said = beside.serve()
    assert said["url"] == f"ws://127.0.0.1:{said['port']}/api/v1/stream"
    assert said["stream"] and said["seq"]
    asking = ("--topic", "gatos.jobs.*", "--ref", "refs/gatos/messages/**", "--limit", "4", "--jsonl")
    reader = beside.start("sub", f"ws://127.0.0.1:{said['port']}", *asking)
    connected(server)
    publish(log, "jobs/pending", {"id": 7}, {"id": 8}, {"id": 9})
    update, *events = lines(reader)
    assert (update["kind"], update["ref"]) == ("ref.update", "refs/gatos/messages/jobs/pending/head")
    assert [event["payload"]["id"] for event in events] == [7, 8, 9]
    assert reader.wait(60) == 0
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0


def test_a_late_reader_catches_up_and_reads_plainly(beside, log, ropewalk):  # noqa: F811
    _, said = beside.serve()
    publish(log, "jobs", {"text": "steer\x1b[31m"})
    answer = ropewalk("stream", "sub", said["url"], "--topic", "**", "--since-seq", "0", "--limit", "1")
    assert answer.code == 0, answer.err
    assert "  jobs  " in answer.text
    assert r'{"text":"steer\u001b[31m"}' in answer.text


def test_a_server_killed_and_begun_anew_is_noticed_and_followed_again(beside, log):
    server, said = beside.serve()
    with follow(said["url"], topics=["jobs"]) as frames:
        publish(log, "jobs", {"n": 1})
        assert bus_event(next(frames)).payload == {"n": 1}
        server.kill()
        server.wait()
        publish(log, "jobs", {"n": 2})
        beside.serve("--port", str(said["port"]))
        lost = next(frames)
        assert isinstance(lost, Lost)
        assert lost.reason == "restarted"
        publish(log, "jobs", {"n": 3})
        last = next(frames)
        assert isinstance(last, BusEvent)
        assert last.payload == {"n": 3}


def test_a_server_that_stays_away_is_waited_for_as_long_as_was_said(beside):
    server, said = beside.serve()
    reader = beside.start("sub", said["url"], "--topic", "jobs", "--patience", "0.3")
    connected(server)
    with follow(said["url"], topics=["jobs"], patience_s=0.3) as frames:
        server.kill()
        with pytest.raises(Unavailable):
            next(frames)
    assert reader.wait(60) == 7


def test_a_reader_killed_leaves_the_others_in_peace(beside, log):
    server, said = beside.serve()
    doomed = beside.start("sub", said["url"], "--topic", "jobs", "--jsonl")
    connected(server)
    with follow(said["url"], topics=["jobs"]) as frames:
        publish(log, "jobs", {"n": 1})
        assert bus_event(next(frames)).payload == {"n": 1}
        assert next(lines(doomed))["payload"] == {"n": 1}
        doomed.kill()
        doomed.wait()
        publish(log, "jobs", *({"n": n} for n in range(2, 300)))
        assert [bus_event(next(frames)).payload["n"] for _ in range(2, 300)] == list(range(2, 300))


@pytest.mark.parametrize("role", ["serve", "sub"])
def test_ctrl_c_ends_with_130(beside, role):
    server, said = beside.serve()
    reader = beside.start("sub", said["url"], "--topic", "jobs")
    connected(server)
    process = server if role == "serve" else reader
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


def test_sub_ends_when_its_reader_has_gone(beside, log):
    server, said = beside.serve()
    reader = beside.start("sub", said["url"], "--topic", "jobs", "--jsonl")
    connected(server)
    publish(log, "jobs", {"n": 1})
    assert next(lines(reader))["payload"] == {"n": 1}
    assert reader.stdout is not None
    reader.stdout.close()
    publish(log, "jobs", {"n": 2})
    assert reader.wait(60) == 0
    reader.stdout = None  # nothing more to read from it


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("sub", "ws://127.0.0.1:1", "--topic", "jobs"), 7, "ws://127.0.0.1:1"),
        (("sub", "ws://127.0.0.1:1"), 8, "nothing to follow"),
        (("sub", "ws://127.0.0.1:1", "--topic", "a..b"), 8, "a part is empty"),
        (("sub", "ws://127.0.0.1:1", "--ref", "heads/main"), 8, "begin with refs/"),
        (("sub", "http://127.0.0.1:1", "--topic", "jobs"), 2, "no WebSocket address"),
        (("sub", "ws://127.0.0.1:port", "--topic", "jobs"), 2, "no WebSocket address"),
        (("sub", "ws://127.0.0.1:1", "--topic", "jobs", "--since-seq", "-1"), 2, "--since-seq"),
        (("sub", "ws://127.0.0.1:1", "--topic", "jobs", "--token-file", "missing"), 3, "no file missing"),
        (("serve", "--port", "70000"), 2, "--port"),
        (("serve", "--port", "0", "--replay-limit", "0"), 2, "--replay-limit"),
        (("serve", "--port", "0", "--host", "256.0.0.1"), 7, "cannot listen"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else None,
)
def test_a_wrong_command_says_so_and_ends_with_its_code(beside, ropewalk, arguments, code, words):  # noqa: F811
    answer = ropewalk("--repo", "log.git", "stream", *arguments)
    assert answer.code == code, answer.err
    assert words in answer.err
    assert "Traceback" not in answer.err


def test_a_token_in_a_file_opens_the_door(beside, log, ropewalk, tmp_path):  # noqa: F811
    (tmp_path / "token").write_text("let-me-in\n", encoding="ascii")
    (tmp_path / "empty").write_text("\n", encoding="ascii")
    _, said = beside.serve("--port", "0", "--token-file", "token")
    publish(log, "jobs", {"n": 1})
    asking = ("stream", "sub", said["url"], "--topic", "jobs", "--since-seq", "0", "--limit", "1", "--json")
    answer = ropewalk(*asking)
    assert (answer.code, answer.json["code"]) == (6, "PolicyDenied")
    assert ropewalk(*asking, "--token-file", "empty").code == 8
    answer = ropewalk(*asking, "--token-file", "token")
    assert (answer.code, answer.json["payload"]) == (0, {"n": 1})


def test_sub_denied_everything_ends_at_once(beside, log, ropewalk):  # noqa: F811
    policy = {"stream": {"topics": {"deny": ["payroll.**"]}, "refs": {"deny": ["refs/gatos/audit/**"]}}}
    (log.store.place.home / "policy.json").write_text(json.dumps(policy), encoding="utf-8")
    _, said = beside.serve()
    asking = (
        "stream",
        "sub",
        said["url"],
        "--topic",
        "payroll.march",
        "--ref",
        "refs/gatos/audit/**",
        "--json",
    )
    answer = ropewalk(*asking)
    assert answer.code == 6
    first, problem = (json.loads(line) for line in answer.text.splitlines())
    assert (first["code"], problem["code"]) == ("POLICY_DENIED", "PolicyDenied")
    publish(log, "jobs", {"n": 1})
    answer = ropewalk(*asking, "--topic", "jobs", "--since-seq", "0", "--limit", "1")
    assert answer.code == 0
    assert json.loads(answer.text.splitlines()[-1])["payload"] == {"n": 1}


def test_the_window_is_as_large_as_asked_for(beside, log, ropewalk):  # noqa: F811
    _, said = beside.serve("--port", "0", "--replay-limit", "3")
    with follow(said["url"], topics=["jobs"]) as frames:
        publish(log, "jobs", *({"n": n} for n in range(10)))
        assert [bus_event(next(frames)).payload["n"] for _ in range(10)] == list(range(10))
        assert frames.seq is not None
        since = frames.seq - 3
    asking = ("stream", "sub", said["url"], "--topic", "jobs", "--limit", "3", "--jsonl")
    answer = ropewalk(*asking, "--since-seq", str(since))
    assert [json.loads(line)["payload"]["n"] for line in answer.text.splitlines()] == [7, 8, 9]


def test_the_numbers_in_the_help_are_those_of_the_engine():
    assert (BOUNDS.frames_max, BOUNDS.age_ms_max) == (command.REPLAY_FRAMES, command.REPLAY_MINUTES * 60_000)


def test_a_server_that_lies_cannot_steer_the_terminal(ropewalk):  # noqa: F811
    steer = "\x1b]0;x\x07\x9b31m"

    async def lying(socket: Any) -> None:
        await socket.send('{"kind":"ack","stream":"s","seq":1,"credit":1000}')
        for frame in (
            {"kind": "error", "code": steer, "message": steer, "topic": steer},
            {"kind": "ref.update", "ref": steer, "old": steer, "new": steer, "seq": 2, "ts": steer},
            {
                "kind": "bus.event",
                "topic": steer,
                "payload": {steer: steer},
                "seq": 3,
                "ts": steer,
                "type": steer,
            },
        ):
            await socket.send(json.dumps(frame))
        await socket.wait_closed()

    with served_beside(lying) as url:
        answer = ropewalk("stream", "sub", url, "--topic", "jobs", "--ref", "refs/gatos/**", "--limit", "2")
    assert answer.code == 0
    assert all(each.isprintable() or each == "\n" for each in answer.text + answer.err)
    assert len(answer.text.splitlines()) >= 2
