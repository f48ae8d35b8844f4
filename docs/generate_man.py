"""Write docs/man/ropewalk.1, the man page of all commands: `python docs/generate_man.py [--check]`."""

from __future__ import annotations

import inspect
import runpy
import sys
from pathlib import Path

import click

HERE = Path(__file__).resolve().parent
PAGE = HERE / "man" / "ropewalk.1"
EVERYWHERE = {"--repo", "--json", "--help", "--debug", "--passphrase-file"}
commands = runpy.run_path(str(HERE / "generate_cli.py"))["commands"]


def render() -> str:
    """The whole page, in the man macros."""
    (_, root), *rest = commands()
    lines = [
        '.TH ROPEWALK 1 "" "ropewalk" "User commands"',
        ".SH NAME",
        "ropewalk, gatosd \\- " + _text(root.help or "").rstrip("."),
        ".SH SYNOPSIS",
        ".B ropewalk",
        "[OPTIONS] COMMAND [ARGS]...",
        ".SH COMMANDS",
    ]
    for context, command in rest:
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        lines += [f'.SS "{_text(usage)}"', *_paragraphs(command.help or "")]
        for param in command.get_params(context):
            record = param.get_help_record(context) if isinstance(param, click.Option) else None
            if record is not None and not set(param.opts) & EVERYWHERE:
                lines += [".TP", f".B {_text(record[0])}", _text(record[1])]
        if command.epilog:
            lines += [".PP", ".nf", *map(_text, command.epilog.strip("\n").split("\n")), ".fi"]
    lines += [".SH EXIT STATUS", ".nf", *map(_text, (root.epilog or "").strip().split("\n")[-2:]), ".fi"]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> list[str]:
    parts = inspect.cleandoc(text.replace("\b", "")).split("\n\n")
    return [line for part in parts for line in (".PP", _text(" ".join(part.split())))]


def _text(text: str) -> str:
    """Text that roff prints as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def main(arguments: list[str]) -> int:
    """Write the page, or compare it."""
    page = render()
    if arguments == ["--check"]:
        same = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page
        print("" if same else "docs/man/ropewalk.1 has drifted: run make docs", end="")
        return 0 if same else 5
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
