"""What is forked for tests ends as what is started: else a test could pass here, and its command fail."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tools import needs_that
from tests.unit.cli.conftest import living_in
from tests.waiting import LIMIT_S
from tests.waiting import ended as running

ROOT = Path(__file__).parents[3]
SERVERS = (
    "serve --port 0",
    "stream serve --port 0",
    "gossip serve --topic com.example --port 0",
    "ledger serve --port 0",
    "ledger mailbox serve box --channel audit",
)
STARTED = "import sys\n{}"
FORKED = "import sys\nfrom tests.forking import end_as_python\ndef main():\n {}\nend_as_python(main)"


def ended(code: str, stdout: str) -> tuple[int, list[str]]:
    """Its exit code, and the last thing it says."""
    with Path(stdout).open("wb") as stream:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=stream,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            timeout=LIMIT_S,
            check=False,
        )
    return done.returncode, done.stderr.splitlines()[-1:]


@pytest.mark.parametrize(
    "does",
    [
        "pass",
        "sys.exit()",
        "sys.exit(3)",
        "sys.exit('a word')",
        "raise ValueError(1)",
        "raise KeyboardInterrupt",
    ],
)
def test_a_forked_command_ends_with_the_code_of_a_started_one(does):
    assert ended(FORKED.format(does), "/dev/null") == ended(STARTED.format(does), "/dev/null")


@needs_that(Path("/dev/full").exists(), "/dev/full is a Linux device")
def test_what_cannot_be_printed_shows_in_the_code_of_both():
    assert (
        ended(FORKED.format("print(1)"), "/dev/full")[0]
        == ended(STARTED.format("print(1)"), "/dev/full")[0]
        == 120
    )


def test_servers_also_start(tmp_path):
    """Other tests fork their servers; here each is started, says where it listens, and ends when asked to."""
    run = living_in(tmp_path)
    assert run("init", "log.git").code == 0
    assert run("--repo", "log.git", "ledger", "create", "--channel", "audit").code == 0
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                running(
                    subprocess.Popen(
                        [Path(sys.executable).with_name("ropewalk"), "--repo", "log.git", *words.split()],
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        cwd=tmp_path,
                        env=environment,
                    )
                )
            )
            for words in SERVERS
        ]
        for server in started:
            assert server.stdout is not None and "url" in json.loads(server.stdout.readline())
            server.terminate()
            assert server.wait(LIMIT_S) == 0
