"""`ropewalk shiplog run` when it is told to end: a job that is cancelled, a terminal that goes, Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.conftest import Ropewalk

WAIT_S = 120
COMMAND = Path(sys.executable).with_name("ropewalk")
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# Ends with 40 and how often it got the signal, once there is a file `go`.
COUNTING = (
    "n=0; trap 'n=$((n+1)); echo got' {signal}; echo ready; "
    "while [ ! -e go ]; do sleep 0.1; done; exit $((40 + n))"
)


def environment(folder: Path) -> dict[str, str]:
    places = {"HOME": str(folder / "home"), "ROPEWALK_CONFIG": str(folder / "config")}
    return {"PATH": os.environ["PATH"], "ROPEWALK_REPO": str(folder / "log.git"), **places}


def heed_signals() -> None:
    """In the child: whoever runs these tests may ignore signals, as a shell does for what runs in the background."""
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)


class Job:
    """`shiplog run` in a session of its own, as a job of a machine is: no terminal."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.process = subprocess.Popen(
            [COMMAND, "shiplog", "run", "--ns", "deploy", "--service", "web", "--", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env=environment(folder),
            start_new_session=True,
            preexec_fn=heed_signals,
        )

    def line(self) -> str:
        """The next line the command says."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def see(self, wanted: str) -> None:
        """Wait until the command says something; shells have words of their own for what was ended."""
        while (line := self.line()) != wanted:
            assert line, f"it ended and never said {wanted}"

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, err.decode()


@pytest.fixture
def jobs(log: Ropewalk, tmp_path: Path) -> Iterator[Any]:
    started: list[Job] = []

    def start(*command: str) -> Job:
        started.append(Job(tmp_path, *command))
        return started[-1]

    yield start
    for job in started:
        if job.process.poll() is None:
            os.killpg(job.process.pid, signal.SIGKILL)  # with what it runs
            job.process.wait()


def recorded(log: Ropewalk) -> tuple[str, dict[str, Any], Any]:
    shown = log("shiplog", "show", "deploy", "--json").json
    return shown["envelope"]["type"], shown["envelope"]["payload"]["run"], shown["note"]


def is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)
def test_a_signal_is_passed_on_and_the_run_is_recorded_as_failed(
    jobs: Any, log: Ropewalk, number: signal.Signals
) -> None:
    job = jobs("sh", "-c", "ulimit -c 0; echo $$; exec sleep 600")
    command = job.line()
    job.process.send_signal(number)
    code, err = job.end()
    assert code == 128 + number
    assert f"the command got {number.name} and ended with {code}" in err
    kind, run, note = recorded(log)
    assert (kind, run["exit_code"], run["signals"]) == ("deployment.failed", code, [number.name])
    assert note == f"{command}\n"
    assert not is_alive(command)


def test_what_a_script_was_running_ends_with_it_and_is_waited_for(jobs: Any, log: Ropewalk) -> None:
    step = "trap 'echo tidied; exit 0' TERM; echo $$; while :; do sleep 0.1; done"
    job = jobs("sh", "-c", 'sh -c "$0"; true', step)
    job.line()
    job.process.terminate()
    assert job.end()[0] == 143
    assert recorded(log)[2].endswith("tidied\n")


def test_a_signal_to_the_whole_group_reaches_the_command_once(
    jobs: Any, log: Ropewalk, tmp_path: Path
) -> None:
    job = jobs("sh", "-c", COUNTING.format(signal="TERM"))
    job.see("ready")
    os.killpg(job.process.pid, signal.SIGTERM)
    job.see("got")
    (tmp_path / "go").touch()
    assert job.end()[0] == 41


def test_a_command_that_ignores_a_signal_is_killed_by_the_second(jobs: Any, log: Ropewalk) -> None:
    job = jobs("sh", "-c", "trap 'echo no' TERM; echo $$; while :; do sleep 0.1; done")
    command = job.line()
    job.process.terminate()
    job.see("no")
    job.process.terminate()
    assert job.end()[0] == 137
    kind, run, _ = recorded(log)
    assert (kind, run["exit_code"], run["signals"]) == ("deployment.failed", 137, ["SIGTERM"])
    assert not is_alive(command)


def test_run_success_despite_signal_names_signal(jobs: Any, log: Ropewalk) -> None:
    job = jobs("sh", "-c", "trap 'echo finishing; exit 0' TERM; echo ready; while :; do sleep 0.1; done")
    job.see("ready")
    job.process.terminate()
    assert job.end()[0] == 0
    kind, run, _ = recorded(log)
    assert (kind, run["signals"]) == ("deployment.success", ["SIGTERM"])


@contextmanager
def at_a_terminal(folder: Path, script: str) -> Iterator[tuple[int, int]]:
    """`shiplog run` of a shell's script in front of a terminal: its process, and the other end of the terminal."""
    arguments = [str(COMMAND), "shiplog", "run", "--ns", "deploy", "--", "sh", "-c", script]
    process, terminal = pty.fork()
    if process == 0:
        heed_signals()
        os.chdir(folder)
        os.execve(arguments[0], arguments, environment(folder))
    try:
        yield process, terminal
    finally:
        os.close(terminal)  # which ends it, where it goes on


def test_ctrl_c_at_a_terminal_reaches_the_command_once(log: Ropewalk, tmp_path: Path) -> None:
    with at_a_terminal(tmp_path, COUNTING.format(signal="INT")) as (process, terminal):
        _see(terminal, b"ready")
        os.write(terminal, b"\x03")
        _see(terminal, b"got")
        (tmp_path / "go").touch()
        _see(terminal, b"ended with 41")
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 41
    _, run, _ = recorded(log)
    assert (run["exit_code"], run["signals"]) == (41, ["SIGINT"])


def test_a_signal_to_the_wrapper_alone_is_passed_on_at_a_terminal_too(log: Ropewalk, tmp_path: Path) -> None:
    with at_a_terminal(tmp_path, "echo ready; exec sleep 600") as (process, terminal):
        _see(terminal, b"ready")
        os.kill(process, signal.SIGTERM)
        _see(terminal, b"ended with 143")
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 143
    kind, run, _ = recorded(log)
    assert (kind, run["signals"]) == ("deployment.failed", ["SIGTERM"])


def _see(terminal: int, wanted: bytes) -> None:
    seen = b""
    while wanted not in seen:
        piece = os.read(terminal, 1024)
        assert piece, seen
        seen += piece


def test_run_drops_secret_output_keeps_exit_code(
    log: Ropewalk,
) -> None:
    script = "echo ghp_$(printf 'Zk3%.0s' 1 2 3 4 5 6 7 8 9 10 11 12); exit "
    for code in (0, 9):
        ran = log("shiplog", "run", "--ns", "deploy", "--", "sh", "-c", script + str(code))
        assert ran.code == code
        said = ran.err.splitlines()
        assert said[0].startswith("recorded  success" if code == 0 else "recorded  failed with exit code 9")
        assert said[1] == (
            "the command was recorded, but its output was NOT kept: it holds what looks like a github-token at line 1"
        )
        assert "nothing was recorded" not in ran.err
        assert "error" not in ran.err
        _, run, note = recorded(log)
        assert (run["exit_code"], run["log_attached"], note) == (code, False, None)


def test_a_reader_that_has_gone_does_not_change_the_exit_code(jobs: Any, log: Ropewalk) -> None:
    job = jobs("sh", "-c", "echo ready; exec sleep 600")
    job.see("ready")
    job.process.stdout.close()
    job.process.stderr.close()
    job.process.send_signal(signal.SIGHUP)
    assert job.process.wait(timeout=WAIT_S) == 129
    assert recorded(log)[1]["signals"] == ["SIGHUP"]


@pytest.mark.parametrize(("noun", "name"), [("shiplog", "--ns"), ("messages", "--topic")])
def test_read_says_how_to_go_on_when_there_is_more(log: Ropewalk, noun: str, name: str) -> None:
    lines = b"".join(b'{"type":"tick","payload":{"n":%d}}\n' % n for n in range(5))
    act = "append" if noun == "shiplog" else "publish"
    assert log(noun, act, name, "ticks", "--file", "-", "--jsonl", stdin=lines).code == 0
    page = log(noun, "read", name, "ticks", "--limit", "3")
    last = page.text.splitlines()[-1].split()[0]
    assert len(page.text.splitlines()) == 3
    assert page.err == f"2 more; to go on: --since {last}\n"
    rest = log(noun, "read", name, "ticks", "--since", last, "--limit", "2")
    assert (len(rest.text.splitlines()), rest.err) == (2, "")
    told = log(noun, "read", name, "ticks", "--limit", "3", "--json")
    assert (told.json["next_since"], told.err) == (last, "")


def test_read_for_a_group_goes_on_when_it_is_run_again(log: Ropewalk) -> None:
    for n in range(3):
        message = json.dumps({"type": "tick", "payload": {"n": n}}).encode()
        assert log("messages", "publish", "--topic", "ticks", "--file", "-", stdin=message).code == 0
    read = ("messages", "read", "--topic", "ticks", "--group", "workers", "--limit", "2")
    assert log(*read).err.endswith("1 more; to go on: run it again\n")
    assert (len(log(*read).text.splitlines()), log(*read).err) == (1, "")
