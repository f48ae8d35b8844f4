"""The reference of commands is what the commands say of themselves."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import click
import pytest

from ropewalk.cli.common.command import Session
from ropewalk.cli.main import root

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "generate_cli.py"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


def test_the_page_has_not_drifted(script, capsys):
    assert script["main"](["--check"]) == 0, capsys.readouterr().out


def test_every_command_says_what_it_does_and_gives_an_example(script):
    mute = [
        context.command_path
        for context, command in script["commands"]()
        if not command.help or not command.epilog
    ]
    assert not mute


def test_every_option_says_what_it_does(script):
    mute = [
        f"{context.command_path} {param.opts[0]}"
        for context, command in script["commands"]()
        for param in command.params
        if isinstance(param, click.Option) and not param.hidden and not param.help
    ]
    assert not mute


def test_every_command_stands_on_the_page(script):
    page = script["render"]()
    paths = [context.command_path for context, _ in script["commands"]()]
    assert len(paths) == len(set(paths)) > 5
    assert [path for path in paths if f"# `{path}`\n" not in page] == ["ropewalk"]


def test_a_terminal_does_not_change_the_page(script, monkeypatch):
    wide = script["render"]()
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("ROPEWALK_REPO", "/somewhere/else.git")
    assert script["render"]() == wide


def test_drift_is_shown_and_ends_with_5(script, tmp_path, monkeypatch, capsys):
    main = script["main"]
    stale = tmp_path / "cli.md"
    stale.write_text(script["render"]().replace("# Commands", "# Old commands"))
    monkeypatch.setitem(main.__globals__, "PAGE", stale)
    assert main(["--check"]) == 5
    shown = capsys.readouterr().out
    assert "-# Old commands" in shown and "+# Commands" in shown
    assert main([]) == 0 and main(["--check"]) == 0


def test_bars_and_angle_brackets_survive_markdown(script):
    @click.command("x", help="Takes <a> or `<b>`.\n\n\b\nas\n  it is", epilog="Examples:\n  x --kind a\n")
    @click.option("--kind", type=click.Choice(["a", "b"]), help="Which <kind>.")
    def command(kind: str) -> None: ...

    text = script["_section"](click.Context(command, info_name="ropewalk x"), command)
    assert "Takes &lt;a> or `<b>`." in text
    assert "```text\nas\n  it is\n```" in text
    assert "| `--kind [a\\|b]` | Which &lt;kind>. |" in text
    assert "```text\nx --kind a\n```" in text


def test_every_example_is_a_line_its_command_takes(script):
    wrong = []
    for _, command in script["commands"]():
        for line in (command.epilog or "").replace("\\\n", "").splitlines():
            told = re.sub(r"\$\([^)]*\)", "x", line.strip())  # what another command answers
            for part in told.split(" | "):
                words = shlex.split(re.split(r" [<>] ", part)[0]) if part.startswith("ropewalk ") else []
                problem = _refused(words[1:]) if words else None
                if problem is not None:
                    wrong.append(f"{part}: {problem}")
    assert not wrong


def _refused(words: list[str]) -> str | None:
    """Why the command line makes no sense, None if it does; nothing is run."""
    context = click.Context(root, **root.context_settings, info_name="ropewalk", obj=Session())
    command: click.Command = root
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words[0])
        if found is None:
            break
        command, words = found, words[1:]
    try:
        command.make_context(command.name, list(words), parent=context)
    except click.exceptions.Exit:  # --help
        return None
    except click.ClickException as error:
        return error.format_message()
    return None


def test_the_man_page_has_not_drifted():
    man = runpy.run_path(str(SCRIPT.with_name("generate_man.py")))
    page = man["render"]()
    assert man["PAGE"].read_text(encoding="utf-8") == page, "run make docs"
    assert page.count(".SS ") > 100 and "\n.TH" not in page[5:]
