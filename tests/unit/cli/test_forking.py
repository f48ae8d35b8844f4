"""What is forked for tests ends as what is started: else a test could pass here, and its command fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import LIMIT_S

ROOT = Path(__file__).parents[3]
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full here")
def test_what_cannot_be_printed_shows_in_the_code_of_both():
    assert (
        ended(FORKED.format("print(1)"), "/dev/full")[0]
        == ended(STARTED.format("print(1)"), "/dev/full")[0]
        == 120
    )
