"""Exit codes, channels and the shape of errors: the same for every command."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.tools import needs_that
from tests.unit.cli.conftest import living_in
from tests.waiting import ended

from ropewalk import __version__
from ropewalk.cli.ledger.ledger import ledger
from ropewalk.cli.main import COMMANDS, root

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


def walk(group: click.Group, words: str = "ropewalk") -> Iterator[tuple[str, click.Command]]:
    """Every command and group with its words, parents first."""
    context = click.Context(group, **group.context_settings)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield f"{words} {name}", found
        if isinstance(found, click.Group):
            yield from walk(found, f"{words} {name}")


def test_commands_at_any_depth_take_json_and_repo():
    lacking = [
        words
        for words, found in walk(root)
        if not {"--json", "--repo"} <= {text for each in found.params for text in each.opts}
    ]
    assert not lacking


def test_commands_at_any_depth_have_an_example_of_themselves():
    lacking = [
        words
        for words, found in walk(root)
        if words.split(" ", 1)[1] not in (found.epilog or "")  # as ropewalk or gatosd
    ]
    assert not lacking


def test_help_starts_with_a_verb():
    """A help text names what the command does: no article, no question word, no noun with a colon."""
    nouns = {"a", "an", "the", "what", "how", "where", "which", "who", "whose", "why"}
    wrong = [
        words
        for words, found in walk(root)
        if words.split()[1] not in ("gossip", "pipeline")
        if (start := (found.help or "").split(" ")[0]).lower().rstrip(":,.") in nouns or start.endswith(":")
    ]
    assert not wrong


@pytest.mark.parametrize("group", [root, ledger], ids=["ropewalk", "ledger"])
def test_help_lists_commands_by_section(group):
    listed = [name for names in group.sections.values() for name in names]
    assert len(listed) == len(set(listed)) and set(listed) <= set(
        group.list_commands(click.Context(group, **group.context_settings))
    )
    text = group.get_help(click.Context(group, **group.context_settings))
    assert all(f"\n{heading}:\n" in text for heading in group.sections)


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


def test_no_color_is_heeded_on_a_terminal_too(tmp_path):
    said = {}
    for wish in ("", "1"):
        ours, theirs = pty.openpty()
        command = [Path(sys.executable).with_name("ropewalk"), "hash", tmp_path / "nothing.json"]
        env = {"PATH": os.environ["PATH"], "TERM": "xterm", "NO_COLOR": wish}
        subprocess.run(command, stdin=subprocess.DEVNULL, stderr=theirs, env=env, check=False)
        os.close(theirs)
        said[wish] = os.read(ours, 4096)
        os.close(ours)
    assert b"\x1b" in said[""]
    assert b"\x1b" not in said["1"]


def test_what_an_error_quotes_cannot_steer_the_terminal(ropewalk, tmp_path):
    for name in ("\x1b]0;title\x07", "\x1b[2J", "\x9b2J", "ada\nok  verified", "\u202eadA"):
        answer = ropewalk("key", "show", name)
        assert answer.code == 8
        assert all(line.isprintable() for line in answer.err.split("\n")), answer.err
        assert "\nok  verified" not in answer.err
        assert ropewalk("key", "show", name, "--json").json["name"] == name


def test_a_name_that_is_not_utf8_is_told_in_json_all_the_same(ropewalk):
    name = os.fsdecode(b"\xff.json")
    for encoding in ("utf-8:strict", "ascii:strict", ""):
        answer = ropewalk("hash", name, "--json", env={"PYTHONIOENCODING": encoding})
        assert (answer.code, answer.json["name"]) == (3, name)
        assert ropewalk("hash", name, env={"PYTHONIOENCODING": encoding}).code == 3


@pytest.mark.parametrize(
    ("closed", "code"),
    [("<&-", 8), (">&-", 0), ("2>&-", 0), ("<&- >&- 2>&-", 8)],
    ids=["in", "out", "err", "all"],
)
@pytest.mark.parametrize("command", ["canon", "hash"])
def test_a_closed_stream_is_an_empty_one(tmp_path, command, closed, code):
    ropewalk = Path(sys.executable).with_name("ropewalk")
    line = f"echo 1 | (exec {ropewalk} {command} - {closed})"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Internal" not in done.stderr and "Traceback" not in done.stderr


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    command = f"{Path(sys.executable).with_name('ropewalk')} --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
    assert done.stderr == ""


@needs_that(Path("/dev/full").exists(), "/dev/full is a Linux device")
@pytest.mark.parametrize("command", ["--help", "key ls --json", "hash nothing --json"])
def test_an_answer_that_finds_no_room_is_told_on_stderr(tmp_path, command):
    line = f"exec {Path(sys.executable).with_name('ropewalk')} {command} > /dev/full"
    env = {"PATH": os.environ["PATH"], "ROPEWALK_CONFIG": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False, env=env, cwd=tmp_path
    )
    assert done.returncode == (3 if "nothing" in command else 7)
    assert done.stderr.startswith("error  ") and "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_ctrl_c_ends_with_130(tmp_path):
    with ended(
        subprocess.Popen(
            [Path(sys.executable).with_name("ropewalk"), "hash", "-"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    ) as waiting:
        assert waiting.stdin is not None
        waiting.stdin.write(bytes(1 << 18))  # more than a pipe holds: from here on it is reading
        waiting.send_signal(signal.SIGINT)
        _, err = waiting.communicate()
    assert waiting.returncode == 130
    assert b"interrupted" in err


@pytest.mark.parametrize(
    "words", ["--help", "hash -", "hash nothing --json", "key ls", "frobnicate", "heads ls --json"]
)
def test_a_command_that_was_forked_answers_as_one_that_was_started(tmp_path, words):
    answers = []
    for name, env in (("forked", None), ("started", {"PYTHONHASHSEED": "0"})):
        folder = tmp_path / name / "same"
        folder.mkdir(parents=True)
        answer = living_in(folder)(*words.split(), stdin=b"{}", env=env)
        told = answer.text.replace(str(folder), "here"), answer.err.replace(str(folder), "here")
        answers.append((answer.code, *told))
    assert answers[0] == answers[1]
