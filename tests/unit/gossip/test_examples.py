"""The examples of the gossip engine run, and say what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("gossip_register.py", ["together again      {'colour': 'teal', 'size': 7}"]),
        ("gossip_chat.py", [" 1  ada           the tide is at six", "refused: Denied", "cleo's laptop"]),
    ],
)
def test_an_example_runs_as_printed(name: str, lines: list[str]):
    done = subprocess.run([sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, check=True)
    for line in lines:
        assert line in done.stdout
