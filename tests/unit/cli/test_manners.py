"""Exit codes, channels and the shape of errors: the same for every command."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk import __version__
from ropewalk.cli.main import COMMANDS

GATOSD = Path(sys.executable).with_name("gatosd")


def test_version_under_both_names(ropewalk):
    assert ropewalk("--version").text == f"ropewalk {__version__}\n"
    assert subprocess.run([GATOSD, "--version"], capture_output=True, check=True).stdout.strip()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(ropewalk, name):
    answer = ropewalk(name, "--help")
    assert answer.code == 0
    assert "Examples:" in answer.text, answer.text
    assert "--json" in answer.text and "--repo" in answer.text


def test_an_unknown_command_is_a_usage_error(ropewalk):
    answer = ropewalk("wibble")
    assert (answer.code, answer.out) == (2, b"")
    assert "wibble" in answer.err
    assert ropewalk("wibble", "--json").json["code"] == "Usage"


def test_an_unknown_option_is_a_usage_error(ropewalk):
    assert ropewalk("hash", "--wibble", "-").code == 2


def test_errors_go_to_stderr_with_code_reason_and_advice(ropewalk):
    answer = ropewalk("hash", "-", stdin=b"{")
    assert answer.out == b""
    first, second = answer.err.strip().splitlines()
    assert first.startswith("error  InvalidJson: ")
    assert second.strip()


def test_no_color_is_asked_for_and_none_is_used_in_a_pipe(ropewalk):
    assert "\x1b" not in ropewalk("hash", "-", stdin=b"{").err
    assert "\x1b" not in ropewalk("hash", "-", stdin=b"{", env={"NO_COLOR": "1", "FORCE_COLOR": "1"}).err


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    command = f"{Path(sys.executable).with_name('ropewalk')} --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
    assert done.stderr == ""


def test_ctrl_c_ends_with_130(tmp_path):
    waiting = subprocess.Popen(
        [Path(sys.executable).with_name("ropewalk"), "hash", "-"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    # The command reads its modules before stdin: wait until it blocks on the pipe.
    status = Path(f"/proc/{waiting.pid}/wchan")
    while status.exists() and "pipe" not in status.read_text():
        if waiting.poll() is not None:
            break
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=20)
    assert waiting.returncode == 130
    assert b"interrupted" in err
