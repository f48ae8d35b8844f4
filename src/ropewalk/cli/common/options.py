"""Options of commands, each in one call: its names, the placeholder of its value, its help.

The names are one text, as in `"--from start"`: how the option is written, then the parameter if it has another name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any] | click.Command)


def option(names: str, metavar: str, help_line: str, **more: Any) -> Callable[[F], F]:
    """Return an option that takes a value."""
    return click.option(*names.split(), metavar=metavar, help=help_line, **more)


def required(names: str, metavar: str, help_line: str, **more: Any) -> Callable[[F], F]:
    """Return an option that must be given."""
    return option(names, metavar, help_line, required=True, **more)


def path_option(names: str, metavar: str, help_line: str, **more: Any) -> Callable[[F], F]:
    """Return an option that takes the name of a file or a folder."""
    return option(names, metavar, help_line, type=click.Path(path_type=Path), **more)


def repeated(names: str, metavar: str, help_line: str, **more: Any) -> Callable[[F], F]:
    """Return an option that may be given several times."""
    return option(names, metavar, help_line, multiple=True, **more)


def integer(
    names: str, metavar: str, help_line: str, *, least: int = 0, most: int | None = None, **more: Any
) -> Callable[[F], F]:
    """Return an option that takes a whole number, by default any that is not negative."""
    return option(names, metavar, help_line, type=click.IntRange(least, most), **more)


def decimal(names: str, metavar: str, help_line: str, **more: Any) -> Callable[[F], F]:
    """Return an option that takes a number `above` a bound, or from `least` (default: 0) to `most`."""
    above, least, most = (more.pop(bound, None) for bound in ("above", "least", "most"))
    numbers = click.FloatRange(least or 0, most) if above is None else click.FloatRange(above, min_open=True)
    return option(names, metavar, help_line, type=numbers, **more)


def choice(names: str, values: Sequence[str], help_line: str, **more: Any) -> Callable[[F], F]:
    """Return an option that takes one of some values."""
    return click.option(*names.split(), type=click.Choice(values), help=help_line, **more)


def flag(names: str, help_line: str) -> Callable[[F], F]:
    """Return an option without a value."""
    return click.option(*names.split(), is_flag=True, help=help_line)


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return several options as one decorator; `--help` lists them in this order."""

    def decorate(command: F) -> F:
        for add in reversed(options):
            command = add(command)
        return command

    return decorate


channel_option = required("--channel", "C", "The channel.")
