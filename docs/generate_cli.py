"""Write docs/reference/cli.md and docs/man/ropewalk.1 from the commands: `python docs/generate_cli.py [--check]`.

With `--check` nothing is written; a page that has drifted ends with 5 and the difference.
"""

from __future__ import annotations

import difflib
import inspect
import re
import runpy
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from ropewalk.cli.main import root

__all__ = ["PAGE", "commands", "main", "render"]

PAGE = Path(__file__).resolve().parent / "reference" / "cli.md"
WIDTH = 10_000  # the page wraps for itself; a terminal's width must not reach it
EVERYWHERE = ("--repo", "--json", "--help", "--passphrase-file")  # said once at the top

INTRO = """\
# Commands

Written by `docs/generate_cli.py` from the commands themselves; do not edit.

`gatosd` is the same command under a second name, and `ropewalk --version` says which ropewalk this is. Data go to
stdout, talk to stderr. `NO_COLOR` is respected, and nothing is asked unless a terminal is there. Other variables are in
[the guide](../guide/operate.md#settings)."""


def commands(
    command: click.Command = root, name: str = "ropewalk", parent: click.Context | None = None
) -> Iterator[tuple[click.Context, click.Command]]:
    """Every command that is shown, each with the context it would run in, parents first."""
    context = command.context_class(
        command,
        info_name=name,
        parent=parent,
        **{**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH},
    )
    yield context, command
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            member = command.get_command(context, each)
            if member is not None and not member.hidden:
                yield from commands(member, each, context)


def render() -> str:
    """The whole page."""
    (root_context, _), *rest = commands()
    top = [entry for entry in rest if entry[0].parent is root_context]
    contents = [f"- [`{c.command_path}`](#{_anchor(c.command_path)}) {_first_line(each)}" for c, each in top]
    parts = [
        INTRO,
        _prose(root.help or ""),
        "## Everywhere\n\nThese go before or after the subcommand.",
        _options(root_context, root, shared=True),
        _examples(root),
        "## Contents",
        "\n".join(contents),
        *(_section(context, command) for context, command in rest),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(context: click.Context, command: click.Command) -> str:
    depth = context.command_path.count(" ") + 1
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [
        f"{'#' * min(depth, 5)} `{context.command_path}`",
        _prose(command.help or ""),
        f"```text\n{usage}\n```",
        _options(context, command, shared=False),
        _examples(command),
    ]
    return "\n\n".join(part for part in parts if part)


def _options(context: click.Context, command: click.Command, *, shared: bool) -> str:
    records = [
        record
        for param in command.get_params(context)
        if isinstance(param, click.Option) and shared == bool(set(param.opts) & set(EVERYWHERE))
        if (record := param.get_help_record(context)) is not None
    ]
    if not records:
        return ""
    rows = [f"| `{_cell(left)}` | {_cell(_escaped(told))} |" for left, told in records]
    return "\n".join(["| option | what it does |", "|---|---|", *rows])


def _examples(command: click.Command) -> str:
    if not command.epilog:
        return ""
    blocks = [each.removeprefix("Examples:\n") for each in command.epilog.strip("\n").split("\n\n")]
    return "\n\n".join(f"```text\n{textwrap.dedent(each)}\n```" for each in blocks)


def _prose(text: str) -> str:
    paragraphs = inspect.cleandoc(text.partition("\f")[0]).split("\n\n")
    # Click's mark \b keeps the lines of a paragraph as they are.
    return "\n\n".join(
        f"```text\n{each.removeprefix(chr(8)).strip(chr(10))}\n```"
        if each.startswith("\b")
        else _escaped(each)
        for each in paragraphs
        if each
    )


def _escaped(text: str) -> str:
    # Angle brackets outside of code would be read as HTML.
    return "".join(
        piece if piece.startswith("`") else piece.replace("<", "&lt;")
        for piece in re.split(r"(`[^`]*`)", text)
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _first_line(command: click.Command) -> str:
    return _escaped(inspect.cleandoc(command.help or "").partition("\n")[0])


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def main(arguments: list[str]) -> int:
    """Write the page, or compare it."""
    if arguments not in ([], ["--check"]):
        print("usage: python docs/generate_cli.py [--check]", file=sys.stderr)
        return 2
    page = render()
    if not arguments:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page, encoding="utf-8")
        return 0
    stands = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    drift = difflib.unified_diff(
        stands.splitlines(), page.splitlines(), "cli.md", "the commands", lineterm=""
    )
    lines = list(drift)
    if lines:
        print("\n".join([*lines, "docs/reference/cli.md has drifted: run make docs"]))
    return 5 if lines else 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.exit(code or runpy.run_path(str(Path(__file__).with_name("generate_man.py")))["main"](sys.argv[1:]))
